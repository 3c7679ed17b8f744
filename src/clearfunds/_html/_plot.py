"""Plots as SVG without a library, in the colours of the page, light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ._readable import text

COLOURS: Final = 6
"""Series with a colour of their own; the page's style has as many."""

_WIDTH: Final = 960
_HEIGHT: Final = 260
_LEFT: Final = 72
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 28
_MARKS: Final = 8

_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600),
    *(7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800),
)


class Series(NamedTuple):
    """A line of a plot; it has a gap where a value is missing."""

    label: str
    values: Sequence[float | None]
    dashed: bool = False
    """For expected values beside measured ones."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The positions of values on an axis."""

    marks: Sequence[float]
    place: Callable[[float], float]
    """Maps a value to between 0 and 1."""


def linear(values: Sequence[float], most: int = 4, *, binary: bool = False) -> Scale:
    """Return a scale from 0 to a round number above all values; `binary`: of KiB, MiB, ..."""
    highest = max([*values, 0.0]) or 1.0
    step = _step(highest, most, binary=binary)
    count = math.ceil(highest / step - 1e-9)
    top = count * step
    return Scale([step * number for number in range(count + 1)], lambda value: value / top)


def _step(span: float, most: int, *, binary: bool = False) -> float:
    """Return a round distance between marks that gives at most `most` of them."""
    if binary and span >= 2048:
        unit = 1024.0 ** int(math.log(span, 1024))
        return _step(span / unit, most) * unit if span / unit >= 2 else unit / 2
    rough = span / most
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= rough * 0.999)


def logarithmic(values: Sequence[float]) -> Scale:
    """Return a scale between powers of ten, around all values above 0."""
    known = [value for value in values if value > 0] or [1e-3]
    low = math.floor(math.log10(min(known)) + 1e-9)
    high = max(math.ceil(math.log10(max(known)) - 1e-9), low + 1)

    def place(value: float) -> float:
        at = math.log10(max(value, 10.0**low)) - low
        return min(at / (high - low), 1.0)

    return Scale([10.0**power for power in range(low, high + 1)], place)


def moments(began: int, ended: int) -> Scale:
    """Return a scale of time with marks at round times; in nanoseconds since 1970."""
    span = ended - began
    step = next((s for s in _TIME_STEPS if span / s <= _MARKS * 1e9), _TIME_STEPS[-1]) * 10**9
    marks = range(math.ceil(began / step) * step, ended + 1, step)
    return Scale(marks, lambda ns: (ns - began) / span)


def plot(
    label: str,
    xs: Sequence[float],
    series: Sequence[Series],
    *,
    x: Scale,
    y: Scale,
    x_words: Callable[[float], str],
    y_words: Callable[[float], str],
    stacked: bool = False,
) -> str:
    """Draw values over the same positions, as lines or as areas one upon the other.

    Args:
        label: For readers that cannot see it.
        xs: The positions, rising.
        series: From the lowest to the highest, if they are stacked. Those after the sixth are grey.
        x: The scale of positions.
        y: The scale of values, or of their sums.
        x_words: Says a position.
        y_words: Says a value.
        stacked: Whether to draw areas.
    """

    def across(value: float) -> float:
        return _LEFT + x.place(value) * (_WIDTH - _LEFT - _RIGHT)

    def points(values: Sequence[float | None]) -> list[str | None]:
        height = _HEIGHT - _TOP - _BOTTOM
        return [
            None
            if value is None
            else f"{across(at):.1f} {_HEIGHT - _BOTTOM - y.place(value) * height:.1f}"
            for at, value in zip(xs, values, strict=True)
        ]

    parts: list[str] = []
    for mark in y.marks:
        at = _HEIGHT - _BOTTOM - y.place(mark) * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{text(y_words(mark))}</text>'
        )
    for mark in x.marks[:: math.ceil(len(x.marks) / _MARKS) or 1]:
        at = across(mark)
        anchor = "start" if at < _LEFT + 8 else "end" if at > _WIDTH - _RIGHT - 24 else "middle"
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{text(x_words(mark))}'
            "</text>"
        )
    below = [0.0] * len(xs)
    for place, each in enumerate(series):
        kind = "area" if stacked else "line dashed" if each.dashed else "line"
        if stacked:
            above = [low + (value or 0.0) for low, value in zip(below, each.values, strict=True)]
            path = _path([*points(above), *reversed(points(below))]) + "Z"
            below = above
        else:
            path = _path(points(each.values))
        peak = max([value for value in each.values if value is not None], default=0.0)
        parts.append(
            f'<path class="{kind} {colour(place)}" d="{path}">'
            f"<title>{text(f'{each.label}: at most {y_words(peak)}')}</title></path>"
        )
    return svg(_WIDTH, _HEIGHT, label, "".join(parts), "plot")


def _path(points: Sequence[str | None]) -> str:
    found: list[str] = []
    pen_is_down = False
    for place, point in enumerate(points):
        if point is not None:
            found.append(f"{'L' if pen_is_down else 'M'}{point}")
            if not pen_is_down and (place + 1 == len(points) or points[place + 1] is None):
                found.append("h0.1")  # A value alone is a dot.
        pen_is_down = point is not None
    return "".join(found)


def colour(place: int) -> str:
    """Return the class of a series, by its place."""
    return f"c{place + 1}" if place < COLOURS else "c0"


def legend(series: Sequence[Series]) -> str:
    """Return the names of lines, with their colours."""
    names = "".join(
        f'<span><i class="{colour(place)}{" dashed" if each.dashed else ""}"></i>'
        f"{text(each.label)}</span>"
        for place, each in enumerate(series)
    )
    return f'<p class="legend">{names}</p>'


def svg(
    width: int, height: int, label: str, inner: str, kind: str, *, stretch: bool = False
) -> str:
    """Return a drawing; `kind` is its class, `label` is for readers that cannot see it."""
    how = ' preserveAspectRatio="none"' if stretch else ""
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(label)}"{how}><title>{text(label)}</title>{inner}</svg>'
    )
