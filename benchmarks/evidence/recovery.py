"""After an overload: how long until all is as before, what was lost, and who had to wait."""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.evidence._plot import BLUE, GRID, INK, ORANGE, decades, figure_of
from benchmarks.evidence._section import Rendered, Section, Setting
from benchmarks.evidence._text import first_line, label, listed, table, time_of, wrapped
from benchmarks.fanout import BUSY
from benchmarks.loadgen import GeneratorError, Load, Stall, run_paced
from benchmarks.servers import AnyServer, Relay, ServerError, pinned

RATE: Final = 1_000
PAYLOAD: Final = 5_000
"""Bytes: with the rate 5 MB/s to each subscriber."""
SUBSCRIBERS: Final = 4
TOPICS: Final = 50
"""Subscribed to with one wildcard; of each, conflation keeps the latest message."""
BUFFER: Final = 64 << 10
"""Bytes of the socket of the one that stops reading, so that it is the server that has to cope."""

WARMUP: Final = 1.0
BEFORE: Final = 1.5
AWAY: Final = 3.0
AFTER: Final = 2.5
"""Seconds: of all reading; of one not reading; from when it reads again."""

INTERVAL: Final = 0.1
SETTLED: Final = 5
"""Intervals in a row in which all has to be as before."""
SLACK: Final = 1.0
"""Milliseconds that latency may always be above what it was: twice next to nothing is nothing."""

BESIDE: Final = ("mosquitto", "nats", "redis", "rabbitmq")

NAMES: Final = {
    "relay": "the relay",
    "conflate": "the relay (conflate)",
    "spill": "the relay (spill)",
}
"""Of its rows: as it comes, and with a policy at once, without patience."""


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Stop one of the subscribers of each server for a while."""
    stretch = max(0.25, min(1.0, setting.scale))
    before, away, after = (
        round(seconds * stretch / INTERVAL) * INTERVAL for seconds in (BEFORE, AWAY, AFTER)
    )
    after = max(after, 2 * SETTLED * INTERVAL)
    runs: list[dict[str, Any]] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(prefix="recovery-") as scratch:
        for number, (name, server) in enumerate(_servers(setting, Path(scratch))):
            protocol = server.speaks("mqtt")
            if protocol is None:
                continue
            load = Load(
                protocol,
                SUBSCRIBERS,
                1,
                payload=(PAYLOAD, PAYLOAD),
                topics=TOPICS,
                wildcard=True,
                seconds=before + away + after,
                warmup=WARMUP * stretch,
                rate=RATE,
                interval=INTERVAL,
                stall=Stall(1, before, away, BUFFER),
                reconnect=True,
                drain=1.0,
            )
            folder = Path(scratch) / str(number)
            folder.mkdir()
            try:
                with (
                    server.running(folder, setting.cores.server) as running,
                    pinned(setting.cores.generator),
                ):
                    found = run_paced(load, port=running.ports[protocol], pid=running.pid)
            except (GeneratorError, ServerError) as error:
                skipped.append(f"{NAMES.get(name, label(name))}: {first_line(error)}")
                continue
            runs.append({"server": name, **shortened(found)})
            back = recovered(runs[-1], "stalled", before, before + away)
            setting.report(
                f"recovery: {name}: "
                + ("not as before in the end" if back is None else f"as before after {back:.1f} s")
            )
    absent = [name for name in BESIDE if setting.server(name) is None]
    if absent:
        skipped.append(f"There was no {listed([label(name) for name in absent])}.")
    return {
        "rate": RATE,
        "payload": PAYLOAD,
        "subscribers": SUBSCRIBERS,
        "topics": TOPICS,
        "interval": INTERVAL,
        "before": before,
        "away": away,
        "after": after,
        "runs": runs,
        "skipped": skipped,
    }


def _servers(setting: Setting, scratch: Path) -> Iterator[tuple[str, AnyServer]]:
    relay = setting.server("relay")
    if relay is not None:
        yield "relay", relay
    if isinstance(relay, Relay):
        for policy in ("conflate", "spill"):
            options = [f"--stuck={policy}", "--patience=0"]
            if policy == "spill":
                options.append(f"--store={scratch / 'store'}")
            # By topic: what a peer has to be told that speaks Syndicate cannot be conflated.
            yield (
                policy,
                dataclasses.replace(relay, protocols=("mqtt",), options=(*relay.options, *options)),
            )
    for name in BESIDE:
        server = setting.server(name)
        if server is not None:
            yield name, server


def shortened(found: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a run: a list for each column, latencies in milliseconds."""
    series = found["series"]
    columns: dict[str, list[Any]] = {
        "at": [line["at"] for line in series],
        "due": [line["due"] for line in series],
        "behind": [round(line["behind"] * 1e3, 3) for line in series],
        "rss_mb": [line["rss_mb"] for line in series],
    }
    for who in ("others", "stalled"):
        for of in ("arrived", "came"):
            columns[f"{who}_{of}"] = [line[who][of] for line in series]
        for of in ("p50", "p99"):
            columns[f"{who}_{of}"] = [
                None if line[who][of] is None else round(line[who][of] * 1e3, 3) for line in series
            ]
    queued = [found["generator_queued"] or 0.0, found["server_queued"] or 0.0]
    return {
        "lost": found["lost"],
        "unsent": found["unsent"],
        "reconnected": found["reconnected"],
        "publishers_waited_most": found["publishers_waited_most"],
        "rss_before_mb": found["rss_before_mb"],
        "rss_peak_mb": found["rss_peak_mb"],
        "kept_waiting": max(queued),
        "columns": columns,
    }


# -- What is made of it ----------------------------------------------------------------------------


def level(run: dict[str, Any], who: str, begins: float) -> float | None:
    """Return the median of the 99th percentiles before the stall; None if nothing came in time."""
    columns = run["columns"]
    found = [
        p99
        for at, p99 in zip(columns["at"], columns[f"{who}_p99"], strict=True)
        if at < begins - INTERVAL / 2 and p99 is not None
    ]
    return statistics.median(found) if found else None


def bound(run: dict[str, Any], who: str, begins: float) -> float | None:
    """Return up to which latency all is as before; None if even before all was late."""
    before = level(run, who, begins)
    if before is None or before > 1000 * begins:
        return None
    return max(2 * before, before + SLACK)


def as_before(run: dict[str, Any], who: str, begins: float) -> list[bool]:
    """Return of each interval whether what was due in it came, all of it, and as soon as before."""
    most = bound(run, who, begins)
    columns = run["columns"]
    readers = 1 if who == "stalled" else SUBSCRIBERS - 1
    return [
        most is not None and p99 is not None and p99 <= most and came >= due * readers
        for due, came, p99 in zip(
            columns["due"], columns[f"{who}_came"], columns[f"{who}_p99"], strict=True
        )
    ]


def recovered(run: dict[str, Any], who: str, begins: float, returns: float) -> float | None:
    """Return how long after the return all was as before, for `SETTLED` intervals; None: never."""
    good = as_before(run, who, begins)
    for index, at in enumerate(run["columns"]["at"]):
        if at < returns - INTERVAL / 2 or index + SETTLED > len(good):
            continue
        if all(good[index : index + SETTLED]):
            return max(0.0, float(at) - returns)
    return None


def missing(run: dict[str, Any], who: str) -> int:
    """Return how many of the messages that were due and sent did not come."""
    readers = 1 if who == "stalled" else SUBSCRIBERS - 1
    columns = run["columns"]
    due: int = sum(columns["due"]) - run["unsent"]
    came: int = sum(columns[f"{who}_came"])
    return max(0, due * readers - came)


def worst(run: dict[str, Any], who: str, begins: float) -> float:
    """Return the worst 99th percentile from when the one stopped reading, in milliseconds."""
    columns = run["columns"]
    return max(
        (
            p99
            for at, p99 in zip(columns["at"], columns[f"{who}_p99"], strict=True)
            if at >= begins - INTERVAL / 2 and p99 is not None
        ),
        default=math.nan,
    )


# -- Showing ---------------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show when each server is as it was, what it cost, and latency over time."""
    runs: list[dict[str, Any]] = data["runs"]
    if not runs:
        return Rendered("Nothing could be measured.")
    begins, returns = data["before"], data["before"] + data["away"]
    introduction = wrapped(
        f"A publisher sends {data['rate']:,} messages a second of {data['payload']:,} bytes to "
        f"{data['subscribers']} subscribers, each message when it is due, whatever the server "
        f"does. After {begins:g} s one of the subscribers stops reading, for {data['away']:g} s, "
        f"and misses {data['rate'] * data['payload'] * data['away'] / 1e6:.0f} MB. Then it reads "
        "as fast as it can; if it was cut off, it connects again. *As before* is the first moment "
        "from its return on from which, for half a second, all messages that become due reach it "
        "with at most twice the latency (99th percentile, from when they were due) of before it "
        f"stopped, or {SLACK:g} ms more than that: deliveries are in order, so that the missed "
        "messages have then come, or never will. The relay is measured as it comes (for 20 s it "
        "waits for the slow consumer, and so do publishers when the connection owes too much), "
        "and with policies without patience: *conflate* keeps the latest message of each of "
        f"{data['topics']} topics (a last-value cache), *spill* keeps all of them on disk."
    )
    rows = [_row(run, begins, returns) for run in runs]
    head = [
        "",
        "as before after",
        "never came to it",
        "nor to others",
        "others' worst p99",
        "publisher held up",
        "memory, MB more",
        "cut off",
    ]
    blocks = [
        introduction,
        "![Latency over time while one subscriber stops reading](evidence-recovery.svg)",
        table(head, rows, right=range(1, 8)),
        wrapped(_words(runs, begins, returns)),
    ]
    waiting = statistics.median(run["kept_waiting"] for run in runs)
    if waiting > BUSY:
        blocks.append(
            wrapped(
                "**The machine was busy**: the server or the generator was ready and had no core "
                f"for {waiting:.0%} of the time (median)."
            )
        )
    cells = {
        run["server"]: _time(recovered(run, "stalled", begins, returns))
        for run in runs
        if run["server"] in ("relay", *BESIDE)
    }
    return Rendered(
        "\n\n".join(blocks),
        {"recovery": lambda: figure(data)},
        (),
        {"as before after a stall": cells},
    )


def _name(run: dict[str, Any]) -> str:
    return NAMES.get(run["server"], label(run["server"]))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not in the end"
    return f"{seconds:.1f} s" if seconds >= INTERVAL / 2 else "at once"


def _row(run: dict[str, Any], begins: float, returns: float) -> list[str]:
    late = worst(run, "others", begins)
    return [
        _name(run),
        _time(recovered(run, "stalled", begins, returns)),
        f"{missing(run, 'stalled'):,}",
        f"{missing(run, 'others'):,}",
        "-" if math.isnan(late) else time_of(late / 1e3),
        time_of(run["publishers_waited_most"]) if run["publishers_waited_most"] else "-",
        f"{run['rss_peak_mb'] - run['rss_before_mb']:.0f}",
        "yes" if run["reconnected"] else "-",
    ]


def _words(runs: Sequence[dict[str, Any]], begins: float, returns: float) -> str:
    """Say who made others wait, who lost, and who did neither."""

    def made_wait(run: dict[str, Any]) -> bool:
        # What a busy machine makes late is below that; what waits for a subscriber is not.
        return worst(run, "others", begins) > 100

    lost = [_name(run) for run in runs if missing(run, "stalled") > 0]
    waited = [_name(run) for run in runs if made_wait(run)]
    innocent = [_name(run) for run in runs if missing(run, "others") > 0]
    neither = [_name(run) for run in runs if _name(run) not in {*lost, *waited, *innocent}]
    said = [
        f"Messages never came to the one that stopped with {listed(lost, none='nobody')}.",
        f"The others got messages more than 100 ms late with {listed(waited, none='nobody')}.",
    ]
    if innocent:
        said.append(f"Messages never came to one of the others with {listed(innocent)}.")
    if neither:
        said.append(f"Neither was so with {listed(neither)}, which kept it all meanwhile.")
    never = [_name(run) for run in runs if recovered(run, "stalled", begins, returns) is None]
    if never:
        said.append(f"With {listed(never)} it was not as before by the end.")
    hidden = [_name(run) for run in runs if level(run, "stalled", begins) is None]
    late = [
        _name(run) for run in runs if _name(run) not in hidden and not bound(run, "stalled", begins)
    ]
    if hidden or late:
        said.append(f"Even before it stopped all came late with {listed([*hidden, *late])}.")
    return " ".join(said)


def figure(data: dict[str, Any]) -> Any:
    """Draw latency over time for each server, the one that stops and the others."""
    runs = data["runs"]
    columns = min(4, len(runs))
    rows = math.ceil(len(runs) / columns)
    picture = figure_of(10.4, 0.6 + 2.3 * rows)
    axes = picture.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    begins, returns = data["before"], data["before"] + data["away"]
    lines: list[Any] = []
    for place, each in enumerate(axes.flat):
        if place >= len(runs):
            each.set_visible(False)
            continue
        run = runs[place]
        found = run["columns"]
        each.axvspan(begins, returns, color=GRID, alpha=0.5, linewidth=0)
        lines = [
            *each.plot(found["at"], _drawn(found["stalled_p99"]), color=ORANGE, linestyle="-"),
            *each.plot(found["at"], _drawn(found["others_p99"]), color=BLUE, linestyle="--"),
        ]
        gone = [
            at
            for at, due, came in zip(found["at"], found["due"], found["stalled_came"], strict=True)
            if came < due
        ]
        lines.append(
            each.scatter(
                gone, [0.03] * len(gone), transform=each.get_xaxis_transform(), marker="|",
                color=INK, s=20,
            )
        )  # fmt: skip
        each.set_title(_name(run))
        each.set_yscale("log")
        decades(each.yaxis)
    for each in axes[-1]:
        each.set_xlabel("due, s")
    for row in axes:
        row[0].set_ylabel("p99 latency, ms")
    picture.legend(
        lines,
        [
            "to the one that stops reading (grey) and comes back",
            "to the others",
            "never came to it",
        ],
        loc="outside upper center",
        ncols=3,
    )
    return picture


def _drawn(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


SECTION: Final = Section(
    key="j",
    name="recovery",
    title="After an overload",
    seconds=75,
    command="python -m benchmarks.evidence --only recovery",
    measure=measure,
    render=render,
)
