"""Line charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

import attrs

COLOURS: Final = 6
"""Lines with a colour of their own; the page's style has the same number."""

_WIDTH: Final = 960
_HEIGHT: Final = 240
_LEFT: Final = 72
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 28
_MARKS: Final = 8


@attrs.frozen
class Line:
    """A line; it has a gap where a value is missing."""

    label: str
    values: Sequence[float | None]
    dashed: bool = False
    """For expected values beside measured ones."""


@attrs.frozen
class Scale:
    """The positions of values on an axis."""

    marks: tuple[float, ...]
    place: Callable[[float], float]
    """Maps a value to between 0 and 1."""


def linear(values: Sequence[float], most: int = 4) -> Scale:
    """Return a scale from 0 to a round number above all values."""
    highest = max([*values, 0.0]) or 1.0
    rough = highest / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * s for s in (1, 2, 5, 10) if power * s >= rough * 0.999)
    count = math.ceil(highest / step - 1e-9)
    top = count * step
    return Scale(tuple(step * n for n in range(count + 1)), lambda value: value / top)


def logarithmic(values: Sequence[float]) -> Scale:
    """Return a scale between powers of ten, around all values above 0."""
    known = [value for value in values if value > 0] or [1e-3]
    low = math.floor(math.log10(min(known)) + 1e-9)
    high = max(math.ceil(math.log10(max(known)) - 1e-9), low + 1)

    def place(value: float) -> float:
        at = math.log10(max(value, 10.0**low)) - low
        return at / (high - low)

    return Scale(tuple(10.0**power for power in range(low, high + 1)), place)


def lines(
    xs: Sequence[float],
    drawn: Sequence[Line],
    *,
    label: str,
    x_scale: Scale,
    x_words: Callable[[float], str],
    y_scale: Scale,
    y_words: Callable[[float], str],
) -> str:
    """Draw lines over the same positions; those after the sixth are grey."""

    def x(value: float) -> float:
        return _LEFT + x_scale.place(value) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - y_scale.place(value) * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[str] = []
    for mark in y_scale.marks:
        at = y(mark)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(y_words(mark))}'
            "</text>"
        )
    step = math.ceil(len(x_scale.marks) / _MARKS)
    for mark in x_scale.marks[::step]:
        at = x(mark)
        anchor = "start" if at < _LEFT + 8 else "end" if at > _WIDTH - _RIGHT - 24 else "middle"
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">'
            f"{escape(x_words(mark))}</text>"
        )
    for place, line in enumerate(drawn):
        colour = f"c{place + 1}" if place < COLOURS else "c0"
        dashed = " dashed" if line.dashed else ""
        points = [
            None if value is None else (x(at), y(value))
            for at, value in zip(xs, line.values, strict=True)
        ]
        parts.append(
            f'<path class="line {colour}{dashed}" d="{_path(points)}">'
            f"<title>{escape(line.label)}</title></path>"
        )
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    found: list[str] = []
    pen_is_down = False
    for place, point in enumerate(points):
        if point is None:
            pen_is_down = False
            continue
        found.append(f"{'L' if pen_is_down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        after = points[place + 1] if place + 1 < len(points) else None
        if not pen_is_down and after is None:
            found.append("h0.1")  # A value alone is a dot.
        pen_is_down = True
    return "".join(found)


def keys(drawn: Sequence[Line]) -> str:
    """Return the legend."""
    return "".join(
        f'<span class="key"><i class="{"c0" if place >= COLOURS else f"c{place + 1}"}'
        f'{" dashed" if line.dashed else ""}"></i>{escape(line.label)}</span>'
        for place, line in enumerate(drawn)
    )
