"""Three sweeps of a publisher's and a consumer's settings, beside what RabbitMQ's found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from benchmarks import queue_plots
from benchmarks.evidence._section import Rendered, Section, Setting
from benchmarks.evidence._text import listed, table, wrapped
from benchmarks.queues import SWEEPS, Point, SweepSettings, measure_points, value_of

SETTINGS: Final = SweepSettings(size=1000, seconds=0.8, warm_up=0.4, runs=2)
ALIKE: Final = 0.1
"""Two figures that differ by less are no difference: the runs are short."""

KNEE: Final = 0.9
"""Of the best throughput: from there on there is little to gain."""

LEFT_OUT: Final = (
    "Queues in memory are not swept, only those on disk; `python benchmarks/queues.py sweeps` does "
    "both, in a quarter of an hour."
)
FIGURE: Final = (
    "![Throughput, server CPU a message and latency over the in-flight window, the prefetch "
    "and the ack interval](evidence-sweeps.svg)"
)

NAMES: Final = {
    "in-flight": "in-flight window",
    "prefetch": "prefetch",
    "ack-interval": "ack interval",
}


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Measure each setting once a pass; where sweeps meet, it is one measurement for all."""
    sweeps = {name: some(points, setting.scale) for name, points in SWEEPS.items()}
    once: dict[tuple[int, int, int], Point] = {}
    for point in (point for points in sweeps.values() for point in points):
        once.setdefault(_knobs(point), point)
    settings = attrs.evolve(
        SETTINGS,
        seconds=max(0.2, SETTINGS.seconds * setting.scale),
        warm_up=max(0.2, SETTINGS.warm_up * setting.scale),
        runs=SETTINGS.runs if setting.scale >= 0.5 else 1,
    )
    found = measure_points(
        [("disk", point) for point in once.values()],
        settings,
        cores=setting.cores,
        report=lambda text: setting.report(f"sweeps: {text}"),
    )
    runs = {(row["sweep"], row["value"]): row["runs"] for row in found}
    points: list[dict[str, Any]] = []
    for name, those in sweeps.items():
        for point in those:
            measured = once[_knobs(point)]
            points.append(
                {
                    "kind": "disk",
                    "sweep": name,
                    "value": value_of(point),
                    "runs": runs[measured.sweep, value_of(measured)],
                }
            )
    return {
        "settings": attrs.asdict(settings),
        "points": points,
        "skipped": [LEFT_OUT],
    }


def _knobs(point: Point) -> tuple[int, int, int]:
    return point.in_flight, point.prefetch, point.every


def some(points: Sequence[Point], scale: float) -> list[Point]:
    """Return all points, or of a trial the first, the middle one and the last."""
    if scale >= 0.2:
        return list(points)
    return [points[0], points[len(points) // 2], points[-1]]


# -- Showing ---------------------------------------------------------------------------------------


COUNTS: Final = ("received", "confirmed")


class Sweep:
    """What one sweep has found."""

    def __init__(self, name: str, points: Sequence[Mapping[str, Any]]) -> None:
        """Take the points of this sweep."""
        self.name = name
        self._runs: dict[int, list[dict[str, Any]]] = {
            point["value"]: point["runs"] for point in points if point["sweep"] == name
        }
        self.values = sorted(self._runs)

    def all(self, value: int, what: str) -> list[float]:
        """Return what each pass has found there; of one in which nothing came, only that."""
        runs = self._runs[value]
        return [_figure(run, what) for run in runs if what in COUNTS or run["received"]]

    def at(self, value: int, what: str = "received") -> float:
        """Return the median over passes."""
        found = self.all(value, what)
        return statistics.median(found) if found else float("nan")

    def ratio(self, first: int, other: int, what: str = "received") -> float | None:
        """Return what ``other`` has of what ``first`` has, the median of passes; None: unknown."""
        if not {first, other} <= set(self.values):
            return None
        pairs = zip(self._runs[first], self._runs[other], strict=True)
        found = [
            _figure(b, what) / _figure(a, what) for a, b in pairs if a["received"] and b["received"]
        ]
        return statistics.median(found) if found else None

    @property
    def best(self) -> int:
        """The setting with the most messages a second."""
        return max(self.values, key=self.at)

    @property
    def knee(self) -> int:
        """The smallest setting with nine tenths of the most."""
        enough = KNEE * self.at(self.best)
        return next(value for value in self.values if self.at(value) >= enough)

    @property
    def step(self) -> tuple[int, int]:
        """The neighbours between which most messages a second are won."""
        return max(pairwise(self.values), key=lambda pair: self.at(pair[1]) - self.at(pair[0]))


def _figure(run: Mapping[str, Any], what: str) -> float:
    if what == "each":
        return 1e6 * float(run["server_cpu"]) / float(run["received"])
    return float(run[what])


def render(data: dict[str, Any]) -> Rendered:
    """Show the sweeps, and what became of the post's findings."""
    sweeps = {name: Sweep(name, data["points"]) for name in NAMES}
    settings = data["settings"]
    introduction = wrapped(
        "The three sweeps of RabbitMQ's post on flow control (2020; a mirrored queue and a quorum "
        f"queue in a cluster of three): messages of {settings['size']:,} bytes, one publisher, one "
        "consumer, as fast as they are let. Here against "
        "[examples/work_queue.py](../examples/work_queue.py), on disk, fsynced every 200 ms, over "
        "loopback, both clients in one process. Settings that are not swept are a window of 1,000, "
        "a prefetch of 1,000 and an ack for each message. Each point is a fresh server, "
        f"{settings['warm_up']:g} s of warm-up and {settings['seconds']:g} s measured, "
        f"{settings['runs']} times in a mixed order; lines and tables are medians, shades go from "
        "minimum to maximum."
    )
    blocks = [
        introduction,
        FIGURE,
        *(_table(sweep) for sweep in sweeps.values()),
        wrapped(
            "The post's findings, and whether they hold here; figures that differ by less than "
            f"{ALIKE:.0%} count as alike:"
        ),
        table(
            ["", "the post", "here", "the same"],
            [[NAMES[name], *line] for name, lines in findings(sweeps).items() for line in lines],
        ),
        wrapped(_remark(data)),
    ]
    return Rendered("\n\n".join(blocks), {"sweeps": lambda: queue_plots.sweeps(data)})


def _table(sweep: Sweep) -> str:
    def row(name: str, what: str, form: str) -> list[str]:
        cells = [format(sweep.at(value, what), form) for value in sweep.values]
        return [name, *(cell.replace("nan", "-") for cell in cells)]

    return table(
        [f"**{NAMES[sweep.name]}**", *(f"{value:,}" for value in sweep.values)],
        [
            row("received/s", "received", ",.0f"),
            row("p50, ms", "p50", ",.1f"),
            row("p99, ms", "p99", ",.1f"),
            row("server CPU, µs each", "each", ",.0f"),
        ],
        right=range(1, len(sweep.values) + 1),
    )


def findings(sweeps: Mapping[str, Sweep]) -> dict[str, list[list[str]]]:
    """Return what the post says, what is found here, and whether that is the same."""
    window, prefetch, acks = (sweeps[name] for name in NAMES)
    return {
        "in-flight": [_rises(window), _steps(window, (20, 200)), *_too_deep(window)],
        "prefetch": [*_one(prefetch), _enough(prefetch), *_deep(prefetch)],
        "ack-interval": [
            *_every_one(acks, prefetch),
            _steps(acks, (1, 10)),
            _tenth(acks),
            *_late(acks),
        ],
    }


def _word(same: bool) -> str:
    return "yes" if same else "**no**"


def _rises(window: Sweep) -> list[str]:
    first, knee, last = window.values[0], window.knee, window.values[-1]
    here = (
        f"From {window.at(first):,.0f} to {window.at(window.best):,.0f} a second; nine tenths of "
        f"that from a window of {knee:,} on."
    )
    post = "Throughput rises with the window up to a point, and no further."
    return [post, here, _word(first < knee < last)]


def _steps(sweep: Sweep, post: tuple[int, int]) -> list[str]:
    before, after = sweep.step
    here = (
        f"It is from {before:,} to {after:,}: {sweep.at(before):,.0f} to {sweep.at(after):,.0f} a "
        "second."
    )
    return [
        f"The largest step is from {post[0]} to {post[1]}.",
        here,
        _word((before, after) == post),
    ]


def _too_deep(window: Sweep) -> list[list[str]]:
    speed, latency = (window.ratio(1000, 10_000, what) for what in ("received", "p50"))
    if speed is None or latency is None:
        return []
    return [
        [
            "10,000 adds nothing to 1,000 but latency.",
            f"{speed:.2f} times the messages a second at {latency:.2g} times the latency (p50).",
            _word(speed <= 1 + ALIKE and latency > 1 + ALIKE),
        ]
    ]


def _one(prefetch: Sweep) -> list[list[str]]:
    share = prefetch.ratio(prefetch.best, 1)
    if share is None:
        return []
    confirmed = prefetch.at(1, "confirmed")
    behind = max(0.0, 1 - prefetch.at(1) / confirmed) if confirmed else 0.0
    here = (
        f"It gets {share:.0%} of the best; of what was confirmed meanwhile, {behind:.0%} stayed in "
        "the queue."
    )
    post = "A prefetch of 1 is terrible for one consumer, and the queue fills."
    return [[post, here, _word(share <= 0.5 and behind > ALIKE)]]


def _enough(prefetch: Sweep) -> list[str]:
    return [
        "From 100 on throughput is at its maximum.",
        f"Nine tenths of the best from {prefetch.knee:,} on.",
        _word(prefetch.knee <= 100),
    ]


def _deep(prefetch: Sweep) -> list[list[str]]:
    found = [prefetch.ratio(100, value, "p50") for value in (1000, 10_000)]
    latencies = [ratio for ratio in found if ratio is not None]
    if not latencies:
        return []
    return [
        [
            "A high prefetch (1,000 and 10,000) has no more latency than 100.",
            f"{' and '.join(f'{ratio:.2g}' for ratio in latencies)} times the latency (p50).",
            _word(max(latencies) <= 1 + ALIKE),
        ]
    ]


def _every_one(acks: Sweep, prefetch: Sweep) -> list[list[str]]:
    each, one = acks.ratio(acks.best, 1), prefetch.ratio(prefetch.best, 1)
    if each is None or one is None:
        return []
    return [
        [
            "An interval of 1 is fine; it matters far less than the prefetch.",
            f"It has {each:.0%} of the best; a prefetch of 1 has {one:.0%}.",
            _word(each >= 0.5 and each > one + ALIKE),
        ]
    ]


def _tenth(acks: Sweep) -> list[str]:
    best = acks.best
    reached = [value for value in acks.values if max(acks.all(value, "received")) >= acks.at(best)]
    within = [value for value in reached if 50 <= value <= 100]
    others = [value for value in reached if value != best]
    spread = f"; so had {listed([f'{v:,}' for v in others])} in some pass" if others else ""
    sure = 50 <= best <= 100
    return [
        "The best are 50 to 100, 5 to 10% of the prefetch.",
        f"The best median has {best:,}{spread}.",
        _word(sure) if sure or not within else "within the spread",
    ]


def _late(acks: Sweep) -> list[list[str]]:
    share = acks.ratio(acks.best, 500)
    if share is None:
        return []
    as_which = "as quorum queues" if share >= 1 - ALIKE else "as mirrored queues"
    return [
        [
            "At half of the prefetch (500) mirrored queues slow down, quorum queues do not.",
            f"{share:.0%} of the best.",
            as_which,
        ]
    ]


def _remark(data: Mapping[str, Any]) -> str:
    runs = [run for point in data["points"] for run in point["runs"]]
    busiest = max(run["client_cpu"] for run in runs)
    text = (
        "Windows have to cover the time until a confirm comes, which is a network and two replicas "
        f"in the post, and loopback here. The two clients took {busiest:.0%} of a core at most"
    )
    text += ": they were the limit somewhere." if busiest > 0.9 else ": they were not the limit."
    return text


SECTION: Final = Section(
    key="d",
    name="sweeps",
    title="In-flight window, prefetch, ack interval",
    seconds=85,
    command="python -m benchmarks.evidence --only sweeps",
    measure=measure,
    render=render,
)
