"""Measured ratios; nothing here asserts a time."""

from mirrormax.bench.ratios import append_run, check_appendable, comparison, describe, read_history
