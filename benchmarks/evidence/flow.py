"""What the relay's debt buys and costs, beside RabbitMQ's credit, and beside no limit at all."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks import credit_flow, credit_flow_plots
from benchmarks.credit_flow import (
    FAILURES,
    MOST_BYTES,
    PACED,
    PACED_BYTES,
    SLOW_STORE_SECONDS,
    Plan,
    schemes_in,
)
from benchmarks.evidence._plot import MIB
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import listed, size_of, table, wrapped
from clearfunds.accounts import DEFAULT_LIMIT_BYTES, DEFAULT_LIMIT_ITEMS

FAN_OUTS: Final = (1, 10, 100)
SECONDS: Final = {"keep-up": 0.5, "stall": 4.0, "queues": 3.0}
LEAST: Final = {"keep-up": 0.2, "stall": 1.0, "queues": 2.0}
"""With less there is nothing to see: credit ends after 0.1 s, what is written is on the disk after
1 s."""

DEARER: Final = 0.15
"""More than that is not noise, of ratios within a pass."""

HEARD: Final = 0.3
"""Seconds that a silence has to be longer than another connection's to be called one."""

LIMIT_MIB: Final = DEFAULT_LIMIT_BYTES / MIB
"""Of a connection, by default."""

ITEM_KIB: Final = 1.0
"""What a message that waits may take besides its bytes: each of those in queues is an object."""

MOST_MIB: Final = LIMIT_MIB + DEFAULT_LIMIT_ITEMS * ITEM_KIB / 1024
"""What a connection may make the relay keep, by default."""

SCHEMES: Final = {
    "debt": f"when it owes for {DEFAULT_LIMIT_ITEMS:,} messages or 8 MiB",
    "credit": "when one of its receivers has no credit left for it (400, 200 more each time; "
    "queues in the store 4,000, 800)",
    "nothing": "never: no limit, no patience, no alarm",
}

FIGURES: Final = {
    "keep-up": "CPU, deliveries and memory over the fan-out, for each scheme",
    "stall": "Publications, silence and memory over the fan-out, for each scheme",
    "queues": "Confirms, silence and memory over the number of queues, for each scheme",
}

PANELS: Final[dict[str, tuple[tuple[str, str, float, bool], ...]]] = {
    "keep-up": (
        ("CPU seconds per million deliveries", "cpu", 1, True),
        ("million deliveries a second", "deliveries", 1e6, False),
        ("MiB of RSS", "rss", MIB, False),
    ),
    "stall": (
        ("messages published a second", "published", 1, False),
        ("seconds in which an innocent one heard nothing", "gap_same", 1, False),
        ("MiB of RSS more than before", "grown", MIB, False),
    ),
    "queues": (
        ("confirmed a second", "confirmed", 1, True),
        ("seconds in which an innocent one heard nothing", "gap_same", 1, False),
        ("MiB of RSS more than before", "grown", MIB, True),
    ),
}

SILENT: Final = (
    ("innocent, same connection: silent for, s", "gap_same", 1, ".2f"),
    ("another connection: silent for, s", "gap_other", 1, ".2f"),
)
MEMORY: Final = ("RSS more than before, MiB", "grown", MIB, ",.1f")
COLUMNS: Final[dict[str, tuple[tuple[str, str, float, str], ...]]] = {
    "keep-up": (
        ("deliveries/s", "deliveries", 1, ",.0f"),
        ("CPU s per million", "cpu", 1, ".3f"),
        ("RSS, MiB", "rss", MIB, ",.1f"),
    ),
    "stall": (
        ("published/s", "published", 1, ",.0f"),
        ("delivered/s to the others", "delivered", 1, ",.0f"),
        ("CPU, cores", "cpu_share", 1, ".2f"),
        *SILENT,
        MEMORY,
    ),
    "queues": (
        ("confirmed/s", "confirmed", 1, ",.0f"),
        ("CPU s per million", "cpu", 1, ".1f"),
        *SILENT,
        MEMORY,
    ),
}


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Measure all loads under each scheme; what fails is noted and left out."""
    scale = setting.scale
    plan = Plan(
        FAN_OUTS if scale >= 0.2 else (3,),
        {load: max(LEAST[load], seconds * scale) for load, seconds in SECONDS.items()},
        tuple(SCHEMES),
        passes=2 if scale >= 0.5 else 1,
    )
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    for number, point in plan.points():
        what = f"{point.load}, {point.scheme}, fan-out {point.fan_out}, pass {number + 1}"
        try:
            found = credit_flow.measure(point, None, setting.cores, plan.seconds[point.load])
        except FAILURES as error:
            reason = (str(error).splitlines() or ["no reason given"])[0].rstrip(".")
            skipped.append(f"{what}: {reason}.")
            setting.report(f"flow: {what}: FAILED: {reason}")
            continue
        rows.append({**attrs.asdict(point), "pass": number, **found})
        setting.report(f"flow: {what}: {_short(rows[-1])}")
    return {
        "seconds": plan.seconds,
        "passes": plan.passes,
        "fsync_interval": SLOW_STORE_SECONDS,
        "paced": PACED,
        "paced_bytes": PACED_BYTES,
        "most_bytes": MOST_BYTES,
        "machine_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "rows": rows,
        "skipped": skipped,
    }


def _short(row: Mapping[str, Any]) -> str:
    if row["load"] == "keep-up":
        return f"{row['cpu']:.3f} CPU s per million"
    return f"silent for {row['gap_same']:.2f} s, RSS {size_of(row['rss'])} more"


# -- Showing ---------------------------------------------------------------------------------------


class Found:
    """What was measured, by load, scheme and fan-out."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the rows of all passes."""
        self.rows = [{**row, "grown": _grown(row)} for row in rows]
        self.schemes = schemes_in(self.rows)

    def of(self, load: str) -> list[dict[str, Any]]:
        """Return the rows of a load."""
        return [row for row in self.rows if row["load"] == load]

    def fan_outs(self, load: str) -> list[int]:
        """Return the fan-outs measured with a load under all schemes."""
        return [
            fan_out
            for fan_out in sorted({row["fan_out"] for row in self.of(load)})
            if all(self.at(load, scheme, fan_out) for scheme in self.schemes)
        ]

    def at(self, load: str, scheme: str, fan_out: int) -> list[dict[str, Any]]:
        """Return the passes of one point."""
        wanted = (scheme, fan_out)
        return [row for row in self.of(load) if (row["scheme"], row["fan_out"]) == wanted]

    def middle(self, load: str, scheme: str, fan_out: int, what: str) -> float:
        """Return the median of something over passes; NaN if there is none."""
        return credit_flow.middle(self.rows, load, scheme, fan_out, what)

    def ratio(self, load: str, first: str, other: str, fan_out: int, what: str) -> float:
        """Return what ``other`` has of what ``first`` has, the median of passes."""
        pairs = {row["pass"]: row[what] for row in self.at(load, first, fan_out)}
        found = [
            row[what] / pairs[row["pass"]]
            for row in self.at(load, other, fan_out)
            if row[what] is not None and pairs.get(row["pass"])
        ]
        return statistics.median(found) if found else float("nan")


def _grown(row: Mapping[str, Any]) -> float:
    """Return the bytes that the relay had more than before, at most."""
    grown: float = row["rss"] - row.get("rss_before", 0)
    return max(0.0, grown)


def render(data: dict[str, Any]) -> Rendered:
    """Show each load under each scheme, and say what each buys and costs."""
    found = Found(data["rows"])
    if not found.rows:
        return Rendered("Nothing could be measured.")
    blocks = [_introduction(data)]
    for load, words in (
        ("keep-up", _keep_up(data, found)),
        ("stall", _stall(data, found)),
        ("queues", _queues(data, found)),
    ):
        if found.of(load):
            figure = f"![{FIGURES[load]}](evidence-flow-{load}.svg)"
            blocks += [words[0], _table(found, load), figure, words[1]]
    blocks += ["**What each buys, and what it costs:**", _balance(found)]
    figures = {
        f"flow-{load}": lambda load=load: credit_flow_plots.picture(found.of(load), PANELS[load])
        for load in PANELS
        if found.of(load)
    }
    return Rendered("\n\n".join(blocks), figures, _claims(found))


def _introduction(data: Mapping[str, Any]) -> str:
    schemes = "; ".join(f"*{name}*: {words}" for name, words in SCHEMES.items())
    return wrapped(
        "The same relay under three schemes, which decide when a publisher is not read "
        f"(backpressure): {schemes}. Only the rate and length of each load bound the memory of "
        f"`nothing` here, and a load ends when the relay has {size_of(data['most_bytes'])} more "
        f"than before ({_ended(data)}). Keeping up was measured {data['passes']} times, all "
        "schemes in turn, the others once. [credit-flow.md](credit-flow.md) explains debt and "
        "credit, and measures them at full size."
    )


def _ended(data: Mapping[str, Any]) -> str:
    ended = [
        f"{row['load']}, {row['scheme']}, fan-out {row['fan_out']}"
        for row in data["rows"]
        if row.get("ended")
    ]
    return f"so ended: {'; '.join(ended)}" if ended else "none did"


def _table(found: Found, load: str) -> str:
    columns = COLUMNS[load]
    lines: list[list[str]] = []
    for fan_out in sorted({row["fan_out"] for row in found.of(load)}):
        for scheme in found.schemes:
            cells = [
                format(found.middle(load, scheme, fan_out, what) / unit, form).replace("nan", "-")
                for _, what, unit, form in columns
            ]
            lines.append([str(fan_out), scheme, *cells])
    head = ["fan-out", "", *(name for name, *_ in columns)]
    return table(head, lines, right=(0, *range(2, len(head))))


def _range(values: Sequence[float], form: str = ".2f") -> str:
    """Return ``1.1 to 1.4``, or one of them if they are the same when written."""
    known = sorted(value for value in values if value == value)  # noqa: PLR0124 - not NaN
    if not known:
        return "-"
    least, most = f"{known[0]:{form}}", f"{known[-1]:{form}}"
    return least if least == most else f"{least} to {most}"


# -- The loads, in words ---------------------------------------------------------------------------


def _keep_up(data: Mapping[str, Any], found: Found) -> tuple[str, str]:
    seconds = data["seconds"]["keep-up"]
    before = (
        "**Everybody keeps up.** One publisher, QoS 0, 200 bytes, as fast as the relay lets it, "
        f"subscribers that read; {seconds:g} s, medians of passes:"
    )
    fan_outs = found.fan_outs("keep-up")
    ratios = {
        scheme: [found.ratio("keep-up", "nothing", scheme, n, "cpu") for n in fan_outs]
        for scheme in ("debt", "credit")
    }
    after = (
        f"Compared to `nothing`, within a pass, debt takes {_range(ratios['debt'])} times the CPU, "
        f"credit {_range(ratios['credit'])} times (fan-out {_all(fan_outs)}). "
    )
    if fan_outs and ratios["debt"][-1] > 1 + DEARER:
        after += (
            f"Debt's {ratios['debt'][-1]:.2f} at {fan_outs[-1]} is its limit: "
            f"{DEFAULT_LIMIT_ITEMS:,} deliveries are "
            f"{DEFAULT_LIMIT_ITEMS // fan_outs[-1]:,} messages to {fan_outs[-1]} subscribers, "
            "so that the publisher waits for them, and they are sent in smaller pieces. "
        )
    after += (
        "Under `nothing` the relay keeps its books as well, only nobody waits for them: "
        "[another section](#cost) has the cost of bookkeeping itself."
    )
    return wrapped(before), wrapped(after)


def _all(fan_outs: Sequence[int]) -> str:
    return listed([str(n) for n in fan_outs])


def _stall(data: Mapping[str, Any], found: Found) -> tuple[str, str]:
    seconds = data["seconds"]["stall"]
    before = (
        f"**One subscriber stops reading for {seconds:g} seconds**, of as many as the fan-out "
        f"says. {data['paced']:,} messages a second of {data['paced_bytes']} bytes; the same "
        "connection, and another one, also send a message every 10 ms to an innocent subscriber, "
        "to show head-of-line blocking. Over Unix sockets, in which the kernel keeps little:"
    )
    if not found.fan_outs("stall"):
        return wrapped(before), "Not all schemes could be measured."
    sentences = [_silence(scheme, found) for scheme in found.schemes]
    return wrapped(before), wrapped(" ".join([*sentences, _until_full(data, found)]))


def _stopped(found: Found, load: str, scheme: str, fan_out: int) -> bool:
    """Whether the innocent one heard nothing for much longer than one on another connection."""
    same, other = (found.middle(load, scheme, fan_out, f"gap_{of}") for of in ("same", "other"))
    return same > other + HEARD


def _silence(scheme: str, found: Found) -> str:
    """Say for how long innocent traffic was stopped, and at which memory."""
    fan_outs = found.fan_outs("stall")
    stopped = [n for n in fan_outs if _stopped(found, "stall", scheme, n)]

    def of(what: str, those: Sequence[int], form: str = ".1f") -> str:
        return _range([found.middle("stall", scheme, n, what) for n in those], form)

    memory = _range([found.middle("stall", scheme, n, "grown") / MIB for n in fan_outs], ".1f")
    if not stopped:
        return (
            f"With *{scheme}* nobody was stopped: silence of {of('gap_same', fan_outs, '.2f')} s, "
            f"beside {of('gap_other', fan_outs, '.2f')} s on the other connection, for {memory} "
            "MiB."
        )
    where = "" if stopped == fan_outs else f", at a fan-out of {_all(stopped)},"
    return (
        f"With *{scheme}* the connection was not read any more after {of('gap_after', stopped)} s"
        f"{where} and the innocent one heard nothing for {of('gap_same', stopped)} s, for {memory} "
        "MiB."
    )


def _until_full(data: Mapping[str, Any], found: Found) -> str:
    """Say how fast memory grows where nothing bounds it."""
    fan_outs = found.fan_outs("stall")
    if not fan_outs or "nothing" not in found.schemes:
        return ""
    fan_out = fan_outs[-1]
    a_second = found.middle("stall", "nothing", fan_out, "grown") / data["seconds"]["stall"]
    if a_second < 0.1 * MIB:
        return "Memory did not grow by itself in so short a time."
    text = (
        f"*Nothing* takes {size_of(a_second)} a second for one such subscriber, for as long as it "
        f"reads nothing; at that pace the {size_of(data['machine_bytes'])} of this machine are "
        f"gone in {data['machine_bytes'] / a_second / 3600:,.1f} hours."
    )
    if _stopped(found, "stall", "debt", fan_out):
        debt = found.middle("stall", "debt", fan_out, "grown")
        text += f" Debt ends at {size_of(debt)}, however long it lasts."
    else:
        text += " It was too short for debt to come to its limit."
    return text


def _queues(data: Mapping[str, Any], found: Found) -> tuple[str, str]:
    before = (
        "**Queues on a slow disk.** One publisher with QoS 1, as fast as it is confirmed and with "
        "at most 20,000 unconfirmed messages, into the queues of as many persistent sessions whose "
        "clients are away; a write reaches the disk after "
        f"{data['fsync_interval']:g} s. The innocent ones as above; "
        f"{data['seconds']['queues']:g} s:"
    )
    fan_outs = found.fan_outs("queues")
    if not fan_outs:
        return wrapped(before), "Not all schemes could be measured."
    first, most = fan_outs[0], fan_outs[-1]
    sentences: list[str] = []
    for scheme in found.schemes:
        at = {n: _middles(found, "queues", scheme, n) for n in (first, most)}
        confirmed = " to ".join(f"{at[n]['confirmed']:,.0f}" for n in (first, most))
        memory = " to ".join(f"{at[n]['grown'] / MIB:,.1f}" for n in (first, most))
        sentences.append(
            f"From {first} to {most} queues *{scheme}* goes from {confirmed} confirms a second, "
            f"and from {memory} MiB; with {most}, another connection hears nothing for "
            f"{at[most]['gap_other']:.2f} s."
        )
    if any(found.middle("queues", s, most, "confirmed") == 0 for s in found.schemes):
        sentences.append(
            "Where nothing was confirmed the time was too short: the first messages were still on "
            "their way to the disk."
        )
    return wrapped(before), wrapped(" ".join(sentences))


def _middles(found: Found, load: str, scheme: str, fan_out: int) -> dict[str, float]:
    names = ("confirmed", "grown", "gap_same", "gap_other")
    return {name: found.middle(load, scheme, fan_out, name) for name in names}


# -- Together --------------------------------------------------------------------------------------


def _balance(found: Found) -> str:
    """Say of each scheme what it buys, and what it costs."""
    known = {"debt": _debt, "credit": _credit, "nothing": _nothing}
    lines = [f"- **{scheme}** {known[scheme](found)}" for scheme in found.schemes]
    return "\n".join(lines)


def _memory(found: Found, load: str, scheme: str) -> list[float]:
    return [found.middle(load, scheme, n, "grown") / MIB for n in found.fan_outs(load)]


def _cpu(found: Found, scheme: str) -> str:
    fan_outs = found.fan_outs("keep-up")
    return _range([found.ratio("keep-up", "nothing", scheme, n, "cpu") for n in fan_outs])


def _silences(found: Found, load: str, scheme: str) -> str:
    return _range([found.middle(load, scheme, n, "gap_same") for n in found.fan_outs(load)], ".1f")


def _confirms(found: Found, scheme: str) -> str:
    fan_outs = found.fan_outs("queues")[-1:]
    return _range([found.middle("queues", scheme, n, "confirmed") for n in fan_outs], ",.0f")


def _debt(found: Found) -> str:
    stuck, queued = (_memory(found, load, "debt") for load in ("stall", "queues"))
    both = [*stuck, *queued]
    flat = bool(both) and max(both) <= MOST_MIB
    kind = "memory that its limits bound at any fan-out" if flat else "**no** bound of memory here"
    return (
        f"buys {kind}: {_range(both, '.1f')} MiB, whoever is slow. It costs "
        f"{_cpu(found, 'debt')} times the CPU of nothing while all keep up; "
        f"{_silences_of(found, 'debt')}; and a message to many queues counts as many: "
        f"{_confirms(found, 'debt')} confirms a second with the most queues, where nothing has "
        f"{_confirms(found, 'nothing')}."
    )


def _credit(found: Found) -> str:
    stuck, queued = (_memory(found, load, "credit") for load in ("stall", "queues"))
    grows = bool(queued) and queued[-1] > 2 * queued[0]
    word = "memory that grows with the number of queues" if grows else "memory for queues"
    return (
        f"buys the earliest sign of a slow consumer, for {_range(stuck, '.1f')} MiB. It costs "
        f"{_cpu(found, 'credit')} times the CPU of nothing while all keep up; "
        f"{_silences_of(found, 'credit')}; and {word}, {_range(queued, '.1f')} MiB."
    )


def _nothing(found: Found) -> str:
    stuck, queued = (_memory(found, load, "nothing") for load in ("stall", "queues"))
    return (
        "buys that no slow consumer stops a publisher: "
        f"{_silences_of(found, 'nothing')}. It costs memory for as long as a consumer is slow: "
        f"{_range([*stuck, *queued], '.1f')} MiB in these few seconds, without bound."
    )


def _silences_of(found: Found, scheme: str) -> str:
    return (
        f"the innocent one on the same connection hears nothing for "
        f"{_silences(found, 'stall', scheme)} s beside one that is stuck, and for "
        f"{_silences(found, 'queues', scheme)} s beside queues"
    )


def _claims(found: Found) -> tuple[Claim, ...]:
    waits = [row for row in found.rows if row["scheme"] == "debt" and row["load"] != "keep-up"]
    most = max((row["grown"] for row in waits), default=None)
    return (
        Claim(
            "MiB of RSS that a publisher which has to wait costs under debt, at any fan-out: at "
            f"most its limits, {LIMIT_MIB:g} MiB and {DEFAULT_LIMIT_ITEMS:,} messages with "
            f"{ITEM_KIB:g} KiB for each",
            None if most is None else most / MIB,
            MOST_MIB,
            ".1f",
        ),
    )


SECTION: Final = Section(
    key="g",
    name="flow",
    title="Debt, credit, nothing",
    seconds=145,
    command="python -m benchmarks.evidence --only flow",
    measure=measure,
    render=render,
)
