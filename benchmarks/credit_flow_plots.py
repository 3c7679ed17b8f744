"""The plots in docs/credit-flow.md, from the results of benchmarks/credit_flow.py.

As in queue_plots.py: on a light card, in colours for the colour-blind, too.
"""

from __future__ import annotations

import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.queue_plots import (
    BLUE,
    GREEN,
    INK,
    MIB,
    ORANGE,
    figure_of,
    module,
    save,
    thousands,
)

SCHEMES: Final = {
    "debt": (BLUE, "o", "-"),
    "credit": (ORANGE, "s", "--"),
    "nothing": (GREEN, "^", ":"),
}

PICTURES: Final[dict[str, tuple[tuple[str, str, float, bool], ...]]] = {
    "keep-up": (
        ("CPU seconds per million deliveries", "cpu", 1, True),
        ("million deliveries a second", "deliveries", 1e6, False),
    ),
    "stall": (
        ("seconds in which an innocent one heard nothing", "gap_same", 1, False),
        ("MiB of RSS more than before", "rss", MIB, True),
    ),
    "queues": (
        ("confirmed a second", "confirmed", 1, True),
        ("seconds in which an innocent one heard nothing", "gap_same", 1, False),
        ("MiB of RSS more than before", "rss", MIB, True),
    ),
}


def draw(result: dict[str, Any], to: Path) -> None:
    """Draw a picture of each load.

    Raises:
        ImportError: There is no matplotlib.
    """
    for load, panels in PICTURES.items():
        rows = [row for row in result["rows"] if row["load"] == load]
        if rows:
            path = to / f"credit-flow-{load}.svg"
            save(partial(picture, rows, panels), path)
            print(path)


def _unseen(value: float | None, logarithmic: bool) -> bool:
    return value is None or (logarithmic and value <= 0)


def picture(rows: list[dict[str, Any]], panels: tuple[tuple[str, str, float, bool], ...]) -> Any:
    """Draw medians over the fan-out, and what each pass has found."""
    figure = figure_of(4.2 * len(panels), 3.0)
    axes: Any = figure.subplots(1, len(panels), squeeze=False)[0]
    fan_outs = sorted({row["fan_out"] for row in rows})
    for axis, (label, what, unit, logarithmic) in zip(axes, panels, strict=True):
        for scheme, (colour, mark, dashes) in SCHEMES.items():
            if all(row["scheme"] != scheme for row in rows):
                continue
            of = {
                n: [
                    math.nan if _unseen(row[what], logarithmic) else row[what] / unit
                    for row in rows
                    if row["scheme"] == scheme and row["fan_out"] == n
                ]
                for n in fan_outs
            }
            axis.plot(
                fan_outs,
                [statistics.median(of[n]) for n in fan_outs],
                color=colour, marker=mark, linestyle=dashes, markersize=4, label=scheme,
            )  # fmt: skip
            for n in fan_outs:
                axis.plot([n] * len(of[n]), of[n], color=colour, marker=mark, markersize=2, lw=0)
        axis.set_xscale("log")
        axis.set_xticks(fan_outs, [str(n) for n in fan_outs])
        if logarithmic:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(module("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
        else:
            axis.set_ylim(bottom=0)
        axis.minorticks_off()
        thousands(axis.yaxis)
        axis.set_title(label, loc="left", fontsize=9, color=INK)
        axis.set_xlabel("fan-out")
        axis.legend()
    return figure
