"""Whole numbers rounded up."""

from __future__ import annotations


def ceil_div(value: int, divisor: int) -> int:
    """value / divisor, rounded up."""
    return -(-value // divisor)


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `value`."""
    return ceil_div(value, step) * step
