"""The plots in docs/rabbitmq.md, from the results of benchmarks/perftest.py.

They are in the style of those beside them (`queue_plots.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.queue_plots import BLUE, MIB, ORANGE, figure_of, save, thousands

SERVERS: Final = {"relay": (BLUE, "-", "clearfunds"), "rabbitmq": (ORANGE, "--", "RabbitMQ")}

SWEEPS: Final = {
    "confirm": "confirms outstanding\n(prefetch 100)",
    "prefetch": "prefetch\n(1,000 confirms outstanding)",
    "ack-every": "deliveries for each ack\n(prefetch 1,000)",
}

Results = list[dict[str, Any]]


def draw(data: dict[str, Any], to: Path) -> None:
    """Draw a picture of the sweeps and one of the runs over time.

    Raises:
        ImportError: There is no matplotlib.
    """
    results: Results = data["results"]
    for name, picture in (("sweeps", sweeps), ("memory", memory)):
        path = to / f"perftest-{name}.svg"
        save(partial(picture, results), path)
        print(path)


def sweeps(results: Results) -> Any:
    """Draw throughput, the server's CPU and latency over each setting."""
    names = [name for name in SWEEPS if any(each["sweep"] == name for each in results)]
    figure = figure_of(3.4 * len(names), 8.0)
    axes: Any = figure.subplots(3, len(names), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(names):
        throughput, cpu, latency = (row[column] for row in axes)
        throughput.set_title(SWEEPS[name])
        those = [each for each in results if each["sweep"] == name]
        values = sorted({each["value"] for each in those})
        for server, look in SERVERS.items():
            mine = [each for each in those if each["server"] == server]
            _line(throughput, mine, values, lambda run: run["received"], look)
            _line(cpu, mine, values, lambda run: run["cpu"], look)
            _line(latency, mine, values, lambda run: (run["latency_ms"] or [None])[0], look)
        for axis in (throughput, cpu, latency):
            axis.set_xscale("log")
            axis.set_xticks(values, [f"{value:,}" for value in values])
            axis.minorticks_off()
        thousands(throughput.yaxis)
        throughput.set_ylim(bottom=0)
        for axis in (cpu, latency):
            axis.set_yscale("log")
            thousands(axis.yaxis)
    axes[0][0].set_ylabel("messages received a second")
    axes[1][0].set_ylabel("server CPU, µs a message")
    axes[2][0].set_ylabel("median latency, ms")
    axes[0][0].legend(loc="lower right")
    return figure


def _line(
    axis: Any,
    runs: Results,
    values: list[int],
    of: Callable[[dict[str, Any]], float | None],
    look: tuple[str, str, str],
) -> None:
    """Draw medians, and between the least and the most."""
    colour, dashes, text = look
    by_value = {
        value: sorted(
            found for run in runs if run["value"] == value and (found := of(run)) is not None
        )
        for value in values
    }
    known = {value: found for value, found in by_value.items() if found}
    if not known:
        return
    middle = [statistics.median(found) for found in known.values()]
    axis.plot([*known], middle, color=colour, linestyle=dashes, marker=".", label=text)
    low, high = zip(*((found[0], found[-1]) for found in known.values()), strict=True)
    axis.fill_between([*known], low, high, color=colour, alpha=0.15)


def memory(results: Results) -> Any:
    """Draw rates and memory over time: a backlog that drains, and a consumer that has stopped."""
    figure = figure_of(8.4, 5.2)
    axes: Any = figure.subplots(2, 2, sharex="col")
    for column, (load, title) in enumerate(
        (("backlog", "consumers come after five seconds"), ("stalled", "a consumer has stopped"))
    ):
        rate, rss = axes[0][column], axes[1][column]
        rate.set_title(title)
        what = 2 if load == "backlog" else 1
        for server, (colour, dashes, text) in SERVERS.items():
            runs = [r for r in results if (r["load"], r["server"]) == (load, server)]
            for place, run in enumerate(runs):
                times = [each[0] for each in run["seconds"]]
                label = "" if place else text
                for axis, values in (
                    (rate, [each[what] for each in run["seconds"]]),
                    (rss, [each[3] / MIB for each in run["seconds"]]),
                ):
                    axis.plot(times, values, color=colour, linestyle=dashes, label=label)
        rate.set_ylabel("received a second" if what == 2 else "published a second")
        rss.set_ylabel("RSS of the server, MiB")
        rss.set_xlabel("seconds")
        for axis in (rate, rss):
            axis.set_ylim(bottom=0)
            thousands(axis.yaxis)
    axes[0][0].legend(loc="upper left")
    return figure
