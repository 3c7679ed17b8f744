"""Numbers, moments and names in the form that people read."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape as _escape
from typing import Final

NOTHING: Final = "&ndash;"
"""The placeholder for a missing figure."""

_SIZES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_COUNTS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def _digits(value: float) -> str:
    """Return three significant digits, and no more."""
    if value >= 100:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")
    )


def count(value: float) -> str:
    """Return a count: `1,234`, `12.3 k`, `4.5 M`."""
    for unit, name in _COUNTS:
        if abs(value) >= unit:
            return f"{_digits(value / min(unit, 1e3 if name == 'k' else unit))} {name}"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else _digits(value)


def size(value: float) -> str:
    """Return a number of bytes: `512 B`, `1.5 MiB`."""
    for unit, name in _SIZES:
        if abs(value) >= unit:
            return f"{_digits(value / unit)} {name}"
    return f"{value:,.0f} B" if value == int(value) or value >= 10 else f"{_digits(value)} B"


def duration(seconds: float) -> str:
    """Return a duration: `0`, `85 µs`, `12 ms`, `3.5 s`, `4 min 10 s`, `2 h 5 min`."""
    if seconds < 1e-3:
        return f"{_digits(seconds * 1e6)} µs" if seconds > 0 else "0"
    if seconds < 0.9995:
        return f"{_digits(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{_digits(seconds)} s"
    whole = round(seconds)
    for unit, name, below, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name} {rest} {part}" if rest else f"{whole // unit} {name}"
    rest = whole % 60
    return f"{whole // 60} min {rest} s" if rest else f"{whole // 60} min"


def percent(share: float) -> str:
    """Return a share in percent: `92 %`, `0.4 %`, `under 0.1 %`."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.1f} %"


def moment(ns: int) -> str:
    """Return the time of day, of nanoseconds since 1970: `14:02:10`, in UTC."""
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%H:%M:%S}"


def day(ns: int) -> str:
    """Return the date, of nanoseconds since 1970: `2026-11-21`, in UTC."""
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d}"


def period(began_ns: int, ended_ns: int) -> str:
    """Return a period: `2026-11-21, 14:02:10 to 14:04:13 UTC`."""
    first, last = day(began_ns), day(ended_ns)
    if first == last:
        return f"{first}, {moment(began_ns)} to {moment(ended_ns)} UTC"
    return f"{first} {moment(began_ns)} to {last} {moment(ended_ns)} UTC"


def plural(number: float, what: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 account`, `12 accounts`."""
    return f"{count(number)} {what if number == 1 else several or what + 's'}"


def text(value: object) -> str:
    """Make text from peers safe for a page.

    It can neither end an element nor turn the direction of the rest of the line: characters that
    are not printable become escapes.
    """
    plain = str(value)
    if not plain.isprintable():
        plain = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in plain
        )
    return _escape(plain, quote=True)


def name(value: str | None) -> str:
    """Return an element with the name of an account or a holder; its last part stands out."""
    if value is None:
        return f'<span class="name">{NOTHING}</span>'
    # The last part of a Syndicate peer's name is its address; the first part of any may be a path.
    head, slash, last = value.rpartition("/")
    if not slash or not last:
        head, slash, last = "", "", value
    lead = f"<i>{text(head + slash)}</i>" if head or slash else ""
    return f'<bdi class="name" title="{text(value)}">{lead}<span>{text(last)}</span></bdi>'
