"""The plots in docs/queues.md, from the results of benchmarks/queues.py.

Plots have their own light card, so that they are readable on dark and light pages. The colours suit
red-green colour-blind readers (Okabe and Ito). Lines for the same quantity of two things differ in
their dashes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import statistics
from collections.abc import Callable, Generator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

CARD: Final = "#fbfbfd"
INK: Final = "#24292f"
GRID: Final = "#d8dee4"
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
MIB: Final = 1 << 20

STYLE: Final = {
    "axes.axisbelow": True,  # lines of the grid behind bars
    "axes.edgecolor": INK,
    "axes.facecolor": CARD,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": CARD,
    "font.size": 9,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "savefig.facecolor": CARD,
    # The same picture from the same figures, and letters as letters.
    "svg.fonttype": "none",
    "svg.hashsalt": "clearfunds",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

PHASES: Final = {
    "paused": ("#f0e4cf", "no consumers"),
    "draining": ("#dcebe4", "consumers are back"),
}

KINDS: Final = {"disk": (BLUE, "-", "on disk"), "memory": (ORANGE, "--", "in memory")}


def draw(data: Path, to: Path) -> None:
    """Draw a picture of each file that is there.

    Raises:
        ImportError: There is no matplotlib.
    """
    for name, picture in (
        ("backlog", backlog),
        ("ten-million", ten_million),
        ("sweeps", sweeps),
    ):
        source = data / f"{name}.json"
        if source.exists():
            result = json.loads(source.read_text())
            path = to / f"queues-{name}.svg"
            save(partial(picture, result), path)
            print(path)


@contextlib.contextmanager
def styled() -> Generator[None]:
    """Draw and save in the style of all figures.

    Raises:
        ImportError: There is no matplotlib.
    """
    try:
        mpl = module("matplotlib")
    except ImportError as error:
        msg = "the figures need matplotlib: pip install 'clearfunds[bench]'"
        raise ImportError(msg) from error
    with mpl.rc_context(STYLE):
        yield


def save(make: Callable[[], Any], path: Path) -> None:
    """Make a figure and save it as SVG.

    Raises:
        ImportError: There is no matplotlib.
    """
    with styled():
        path.parent.mkdir(parents=True, exist_ok=True)
        make().savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib ends some lines with blanks.
    lines = path.read_text().splitlines()
    path.write_text("".join(line.rstrip() + "\n" for line in lines))


def module(name: str) -> Any:
    """Return a module of a package that is only needed here."""
    return importlib.import_module(name)


def figure_of(width: float, height: float) -> Any:
    return module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def thousands(axis: Any) -> None:
    def text(value: float, _: int) -> str:
        return f"{value:,.0f}" if value == int(value) else f"{value:g}"

    axis.set_major_formatter(module("matplotlib.ticker").FuncFormatter(text))


# -- the experiment of 2011 ------------------------------------------------------------------------


def backlog(result: dict[str, Any]) -> Any:
    """Draw backlog, memory, rates and CPU over time, a column for each policy."""
    runs: list[dict[str, Any]] = result["runs"]
    figure = figure_of(4.6 * len(runs), 8.4)
    axes: Any = figure.subplots(4, len(runs), sharex="col", sharey="row", squeeze=False)
    for column, run in enumerate(runs):
        _backlog_column([row[column] for row in axes], run, first=column == 0)
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
    return figure


def rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return what was written column by column, row by row."""
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _backlog_column(axes: list[Any], run: dict[str, Any], *, first: bool) -> None:
    samples = rows(run["samples"])
    times = [sample["t"] for sample in samples]
    queued, memory, rates, cpu = axes
    _shade(axes, run["phases"], times[-1])
    queued.set_title(f"{run['settings']['paging']} paging", loc="left", fontweight="bold")
    queued.plot(times, [s["ready"] / 1000 for s in samples], color=BLUE, label="ready")
    in_memory = [s["in_memory"] / 1000 for s in samples]
    queued.plot(times, in_memory, color=ORANGE, label="of these in memory")
    memory.plot(times, [s["rss"] / MIB for s in samples], color=BLUE, label="RSS of the server")
    if run["settings"]["paging"] == "classic":
        mark = run["settings"]["memory"] / MIB / 2
        memory.axhline(mark, color=INK, dashes=(4, 3), linewidth=1, label="pages from here on")
    rates.plot(times, _rate(samples, "published"), color=GREEN, label="into the three queues")
    rates.plot(times, _rate(samples, "acked"), color=PINK, label="acked")
    cpu.plot(times, [100 * each for each in _rate(samples, "cpu")], color=BLUE, label="server")
    for axis, label in zip(
        axes, ("thousand messages", "MiB", "messages a second", "% of a core"), strict=True
    ):
        axis.legend(
            loc="lower right", bbox_to_anchor=(1, 0.99), ncols=3, borderaxespad=0, columnspacing=1
        )
        thousands(axis.yaxis)
        if first:
            axis.set_ylabel(label)
    cpu.set_xlabel("seconds")


def _shade(axes: list[Any], phases: dict[str, float], end: float) -> None:
    order = [*phases.items(), ("end", end)]
    for (phase, start), (_, stop) in pairwise(order):
        if phase in PHASES:
            colour, text = PHASES[phase]
            for axis in axes:
                axis.axvspan(start, stop, color=colour, zorder=0)
            middle = (start + stop) / 2
            axes[-1].annotate(
                text, (middle, 0.04), xycoords=("data", "axes fraction"), ha="center", fontsize=8
            )


def _rate(samples: list[dict[str, Any]], what: str, width: int = 3) -> list[float]:
    """Return how fast something grows, over a few samples around each."""
    rates: list[float] = []
    for place in range(len(samples)):
        before = samples[max(0, place - width)]
        after = samples[min(len(samples) - 1, place + width)]
        seconds = after["t"] - before["t"]
        rates.append((after[what] - before[what]) / seconds if seconds else 0.0)
    return rates


# -- ten million messages --------------------------------------------------------------------------


def ten_million(result: dict[str, Any]) -> Any:
    """Draw memory and rate over the number of messages queued."""
    samples: list[list[float]] = result["samples"]
    figure = figure_of(7.6, 2.9)
    memory, rate = figure.subplots(1, 2)
    queued = [number / 1e6 for _, number, _ in samples]
    memory.plot(queued, [rss / MIB for _, _, rss in samples], color=BLUE)
    memory.axhline(
        result["rss_before"] / MIB + 256, color=INK, dashes=(4, 3), linewidth=1, label="the bound"
    )
    memory.legend(loc="center right")
    memory.set_ylabel("RSS of the relay, MiB")
    steps = list(zip(samples, samples[5:], strict=False))
    speeds = [(b[1] - a[1]) / (b[0] - a[0]) / 1000 for a, b in steps]
    rate.plot([b[1] / 1e6 for _, b in steps], speeds, color=GREEN)
    rate.set_ylabel("thousand PUBACKs a second")
    for axis in (memory, rate):
        axis.set_ylim(bottom=0)
        axis.set_xlabel("million messages queued")
    return figure


# -- the three sweeps ------------------------------------------------------------------------------

TITLES: Final = {
    "in-flight": "in-flight window",
    "prefetch": "prefetch",
    "ack-interval": "ack interval",
}
FIXED: Final = {
    "in-flight": "prefetch 1000, ack interval 1",
    "prefetch": "in-flight 1000, ack interval 1",
    "ack-interval": "in-flight 1000, prefetch 1000",
}


def sweeps(result: dict[str, Any]) -> Any:
    """Draw throughput, CPU and latency over each setting."""
    names = [name for name in TITLES if any(p["sweep"] == name for p in result["points"])]
    figure = figure_of(3.4 * len(names), 8.0)
    axes: Any = figure.subplots(3, len(names), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(names):
        throughput, cpu, latency = (row[column] for row in axes)
        throughput.set_title(f"{TITLES[name]}\n({FIXED[name]})")
        for kind, (colour, dashes, text) in KINDS.items():
            points = [p for p in result["points"] if (p["sweep"], p["kind"]) == (name, kind)]
            points.sort(key=_value)
            if points:
                _spread(throughput, points, _received, colour, dashes, text)
                _spread(cpu, points, _cpu, colour, dashes, text)
                for share, width in (("p50", 1.8), ("p99", 0.8)):
                    values = [_median(point, share) for point in points]
                    latency.plot(
                        [point["value"] for point in points], values, color=colour,
                        linestyle=dashes, linewidth=width, marker=".", label=f"{share}, {text}",
                    )  # fmt: skip
        values = sorted({p["value"] for p in result["points"] if p["sweep"] == name})
        for axis in (throughput, cpu, latency):
            axis.set_xscale("log")
            axis.set_xticks(values, [f"{value:,}" for value in values])
            axis.minorticks_off()
        for axis in (throughput, cpu):
            thousands(axis.yaxis)
        latency.set_yscale("log")
        thousands(latency.yaxis)
        latency.set_xlabel(TITLES[name])
    for axis in (*axes[0], *axes[1]):
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("messages received a second")
    axes[1][0].set_ylabel("server CPU, µs a message")
    axes[2][0].set_ylabel("end to end, ms")
    axes[0][0].legend(loc="lower right")
    axes[2][0].legend(loc="upper left")
    return figure


def _value(point: dict[str, Any]) -> int:
    value: int = point["value"]
    return value


def _received(run: dict[str, Any]) -> float:
    received: float = run["received"]
    return received


def _cpu(run: dict[str, Any]) -> float:
    """Return microseconds of the server's CPU for each message received."""
    return float("nan") if not run["received"] else 1e6 * run["server_cpu"] / run["received"]


def _median(point: dict[str, Any], what: str) -> float:
    found = [run[what] for run in point["runs"] if run[what] is not None]
    return statistics.median(found) if found else float("nan")


def _spread(
    axis: Any, points: list[dict[str, Any]], of: Any, colour: str, dashes: str, text: str
) -> None:
    """Draw medians, and between the least and the most."""
    values = [_value(point) for point in points]
    found = [sorted(of(run) for run in point["runs"]) for point in points]
    axis.plot(
        values, [statistics.median(each) for each in found],
        color=colour, linestyle=dashes, marker=".", label=text,
    )  # fmt: skip
    axis.fill_between(
        values, [each[0] for each in found], [each[-1] for each in found], color=colour, alpha=0.15
    )
