"""Measured ratios; nothing here asserts a time."""
