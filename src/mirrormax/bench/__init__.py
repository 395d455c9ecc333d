"""Measured ratios; nothing here asserts a time."""

from mirrormax.bench.history import append_run as append_run
from mirrormax.bench.history import check_appendable as check_appendable
from mirrormax.bench.history import comparison as comparison
from mirrormax.bench.history import describe as describe
from mirrormax.bench.history import read_history as read_history
