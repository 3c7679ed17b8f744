"""The plots of the report that stand in tables: ranges of hold times, and bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clearfunds._html import Scale, duration, svg

_ROW: Final = 320


def hold_range(axis: Scale, holds: Sequence[float], target: float) -> str:
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
    return svg(_ROW, 24, label, drawn, "range")


def hold_axis(axis: Scale, target: float) -> str:
    """Draw the axis of `hold_range`, with the target on it."""
    parts: list[str] = []
    marks = axis.marks
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
    return svg(
        _ROW, 24, f"from {duration(marks[0])} to {duration(marks[-1])}", "".join(parts), "range"
    )


def bar(share: float, label: str, kind: str = "") -> str:
    """Draw a share of the whole, from 0 to 1."""
    width = max(min(share, 1.0) * 100, 0.5 if share > 0 else 0)
    inner = f'<rect class="{kind or "part"}" width="{width:.2f}" height="10" rx="1"/>'
    return svg(100, 10, label, inner, "bar", stretch=True)
