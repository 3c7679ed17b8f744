"""Numbers for people."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """Return a length of time with three digits: `1.23 ms`."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return "0" if value <= 0 else f"{_digits(value * 1e6)} us"


def rate(value: float | None) -> str:
    """Return a rate a second, in full: `12,345`."""
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def size(value: float) -> str:
    """Return a size: `1.2 MiB`."""
    for unit, many in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= many:
            return f"{_digits(value / many)} {unit}"
    return f"{value:.0f} B"


def many(count: int, one: str, more: str | None = None) -> str:
    """Return a number with its noun: `1 publisher`, `2 publishers`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
