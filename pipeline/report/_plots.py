"""Plots as SVG without a library, in the colours of the page, light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ._report_words import duration, moment, size, text

COLOURS: Final = 6
"""Series with their own colour; the page's style has as many."""

_WIDTH: Final = 960
_HEIGHT: Final = 260
_LEFT: Final = 72
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 28

_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600),
    *(7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800),
)


@attrs.frozen
class Series:
    """A line, with the same moments as all others of its plot."""

    label: str
    values: Sequence[float]


def nice_step(span: float, most: int, *, binary: bool = False) -> float:
    """Return a round distance between marks that gives at most `most` of them."""
    if span <= 0:
        return 1.0
    if binary and span >= 2048:
        unit = 1024.0 ** int(math.log(span, 1024))
        return nice_step(span / unit, most) * unit if span / unit >= 2 else unit / 2
    rough = span / most
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= rough * 0.999)


def debts(moments: Sequence[int], series: Sequence[Series]) -> str:
    """Draw the debt of accounts in bytes over time, stacked.

    Args:
        moments: Nanoseconds since 1970, rising; at least two.
        series: From the lowest to the highest; those after the sixth are grey.
    """
    began, ended = moments[0], moments[-1]
    totals: list[float] = [
        sum(values) for values in zip(*(each.values for each in series), strict=True)
    ]
    highest = max([*totals, 1.0])
    step = nice_step(highest, 4, binary=True)
    top: float = math.ceil(highest / step - 1e-9) * step

    def x(ns: int) -> float:
        return _LEFT + (ns - began) / (ended - began) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_y_marks(step, top, y), _x_marks(began, ended, x)]
    below = [0.0] * len(moments)
    for place, each in enumerate(series):
        above = [low + value for low, value in zip(below, each.values, strict=True)]
        forth = _steps(moments, above, x, y)
        back = list(reversed(_steps(moments, below, x, y)))
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in forth + back) + "Z"
        colour = f"c{place + 1}" if place < COLOURS else "c0"
        peak = max(each.values, default=0.0)
        title = text(f"{each.label}: at most {size(peak)}")
        parts.append(f'<path class="{colour}" d="{path}"><title>{title}</title></path>')
        below = above
    label = f"Debt over time in bytes, at most {size(max(totals))}"
    return _svg(_WIDTH, _HEIGHT, label, "".join(parts), "plot")


def _steps(
    moments: Sequence[int],
    values: Sequence[float],
    x: Callable[[int], float],
    y: Callable[[float], float],
) -> list[tuple[float, float]]:
    return [(x(at), y(value)) for at, value in zip(moments, values, strict=True)]


def _y_marks(step: float, top: float, y: Callable[[float], float]) -> str:
    marks: list[str] = []
    for number in range(round(top / step) + 1):
        value = number * step
        at = y(value)
        marks.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
            f"{size(value) if value else '0'}</text>"
        )
    return "".join(marks)


def _x_marks(began: int, ended: int, x: Callable[[int], float]) -> str:
    span = (ended - began) / 1e9
    step = next((s for s in _TIME_STEPS if span / s <= 8), _TIME_STEPS[-1])
    marks: list[str] = []
    at = math.ceil(began / 1e9 / step) * step
    while at * 1e9 <= ended:
        ns = int(at * 1e9)
        place = x(ns)
        # No label may be half outside the plot.
        if _LEFT + 24 < place < _WIDTH - _RIGHT - 24:
            marks.append(
                f'<text x="{place:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{moment(ns)}</text>'
            )
        at += step
    return "".join(marks)


@attrs.frozen
class Axis:
    """A logarithmic axis of times, shared by the plots of several rows."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Axis:
        """Return an axis for these seconds, from one round number to another."""
        known = [value for value in values if value > 0] or [1e-3]
        low = 10.0 ** math.floor(math.log10(min(known)) + 1e-9)
        high = 10.0 ** math.ceil(math.log10(max(known)) - 1e-9)
        return cls(low, max(high, low * 10))

    def place(self, seconds: float) -> float:
        """Return the place of a time on the axis, from 0 to 1."""
        if seconds <= self.low:
            return 0.0
        at = math.log10(seconds / self.low) / math.log10(self.high / self.low)
        return min(at, 1.0)

    def marks(self) -> list[float]:
        """Return the round numbers on the axis."""
        number = round(math.log10(self.high / self.low))
        return [self.low * 10**power for power in range(number + 1)]


_ROW: Final = 320


def hold_range(axis: Axis, holds: Sequence[float], target: float) -> str:
    """Draw the hold times of a holder: the median as a dot, the 99th percentile as a bar's end.

    Args:
        axis: The axis of times.
        holds: The median, the 90th and the 99th percentile, and the longest, in seconds.
        target: The target for the 99th percentile.
    """
    p50, p90, p99, longest = holds
    at = [8 + axis.place(value) * (_ROW - 16) for value in (*holds, target)]
    late = "late" if p99 > target else "fine"
    drawn = (
        f'<line class="target" x1="{at[4]:.1f}" x2="{at[4]:.1f}" y1="0" y2="24"/>'
        f'<line class="thin" x1="{at[0]:.1f}" x2="{at[3]:.1f}" y1="12" y2="12"/>'
        f'<line class="thick {late}" x1="{at[0]:.1f}" x2="{at[2]:.1f}" y1="12" y2="12"/>'
        f'<line class="tick" x1="{at[1]:.1f}" x2="{at[1]:.1f}" y1="7" y2="17"/>'
        f'<circle class="{late}" cx="{at[0]:.1f}" cy="12" r="4.5"/>'
    )
    label = (
        f"half within {duration(p50)}, 90 % within {duration(p90)}, 99 % within {duration(p99)}, "
        f"all within {duration(longest)}"
    )
    return _svg(_ROW, 24, label, drawn, "range")


def hold_axis(axis: Axis, target: float) -> str:
    """Draw the axis of `hold_range`, with the target on it."""
    parts: list[str] = []
    marks = axis.marks()
    # Room for five labels.
    for number, value in enumerate(marks):
        if number % (len(marks) // 5 + 1):
            continue
        at = 8 + axis.place(value) * (_ROW - 16)
        anchor = "start" if at < 20 else "end" if at > _ROW - 20 else "middle"
        place = 0 if anchor == "start" else _ROW if anchor == "end" else at
        parts.append(
            f'<text x="{place:.1f}" y="12" text-anchor="{anchor}">{duration(value)}</text>'
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="16" y2="20"/>'
        )
    at = 8 + axis.place(target) * (_ROW - 16)
    parts.append(f'<line class="target" x1="{at:.1f}" x2="{at:.1f}" y1="16" y2="24"/>')
    return _svg(
        _ROW, 24, f"from {duration(axis.low)} to {duration(axis.high)}", "".join(parts), "range"
    )


def bar(share: float, label: str, kind: str = "") -> str:
    """Draw a share of the whole, from 0 to 1."""
    width = max(min(share, 1.0) * 100, 0.5 if share > 0 else 0)
    inner = f'<rect class="{kind or "part"}" width="{width:.2f}" height="10" rx="1"/>'
    return _svg(100, 10, label, inner, "bar", stretch=True)


def _svg(
    width: int, height: int, label: str, inner: str, kind: str, *, stretch: bool = False
) -> str:
    how = ' preserveAspectRatio="none"' if stretch else ""
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(label)}"{how}><title>{text(label)}</title>{inner}</svg>'
    )
