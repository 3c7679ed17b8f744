"""The cost and the memory of each further client, filter, retained topic and account."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

import attrs

from benchmarks.evidence._plot import GREEN, GREY, STYLES, Style, decades, figure_of
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, label, listed, middle, size_of, table, wrapped
from benchmarks.growth import (
    A_PACKET,
    ACCOUNTS,
    CONNECTING_TIMES,
    CROWD,
    GROWTHS,
    LINEAR,
    OPTIONS,
    RETAINED_BYTES,
    RETAINED_MIB,
    STEPS,
    Found,
    Growth,
    Measuring,
    Sample,
    find,
    servers_here,
)
from benchmarks.servers import BARE, TRIO, ServerError

PEERS: Final = ("mosquitto", "nats")

PAGE_KIB: Final = 4
"""The least that a process can grow by; a logarithmic axis has no zero."""

LOOKS: Final = {**STYLES, TRIO.name: Style(GREY, "x", (0, (2, 2)))}

PANELS: Final = (
    ("clients", ("connecting", "crowd")),
    ("filters of one client", ("plain", "plus", "hash")),
    ("filters of many clients", ("many-plain", "many-plus", "many-hash", "shared")),
    ("retained topics", ("retained",)),
    ("accounts that owe", (ACCOUNTS,)),
)
"""What is drawn together: several growths of one server are lines of one colour."""


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Measure all growths; one that fails is left out."""
    skipped: list[str] = []
    samples: list[Sample] = []
    part = min(1.0, setting.scale)
    peers = [server for name in PEERS if (server := setting.server(name)) is not None]
    servers = servers_here(peers)
    measuring = Measuring(setting.cores, part, lambda text: setting.report(f"growth, {text}"))
    for growth in GROWTHS:
        try:
            samples += measuring.growth(growth, servers, 1 if part < 0.5 else None)
        except ServerError as error:
            skipped.append(f"{growth.words}: {first_line(error)}")
    return {"samples": [attrs.asdict(sample) for sample in samples], "skipped": skipped}


# -- Showing ---------------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show how costs grow, and hold them to their budgets."""
    found = Found.of(Sample(**each) for each in data["samples"])
    introduction = wrapped(
        f"""What it costs a server that there comes to be more and more of something. Each run has a
        fresh server, whose CPU time and resident memory are read {STEPS} times, from a 32nd of the
        whole to all of it. Clients send what was encoded before, in Python over plain sockets; they
        connect one after the other, or {CROWD} at a time, and subscribe to {A_PACKET} filters with
        each packet. A retained message has {RETAINED_BYTES} bytes. *Accounts* are measured in a
        process without a network: each owes for a message that has not been taken. `trio` is a
        program that accepts clients with a task and a cancel scope each, answers CONNACK to
        whatever comes and does nothing else; {label(BARE.name)} does as little without Trio. They
        show what of a client's cost is Trio's, Python's and the kernel's. Limits are
        above what is measured (`{" ".join(OPTIONS)}`); all else, logs included, is as it is by
        default."""
    )
    columns = wrapped(
        """*CPU each* and *memory each* are of all of them. *Growth* is the b of cost = a *
        number^b, fitted to the whole cost at all numbers by least squares of the logarithms: 1 is
        linear, below 1 each further one is cheaper. *x mosquitto* compares CPU times of the same
        pass."""
    )
    head = [
        "", "number", "server", "CPU each", "x mosquitto", "growth", "memory each", "whole process",
    ]  # fmt: skip
    rows = [
        _row(growth, each, find(found, growth.name, "mosquitto"))
        for growth in GROWTHS
        for each in found
        if each.growth == growth.name
    ]
    blocks = [
        introduction,
        "![CPU time and memory over the number](evidence-growth.svg)",
        columns,
        table(head, rows, right=(1, 3, 4, 5, 6, 7)),
        *_about_floors(found),
        *_about_more_than_linear(found),
    ]
    return Rendered("\n\n".join(blocks), {"growth": lambda: figure(found)}, _claims(found))


def _row(growth: Growth, found: Found, beside: Found | None) -> list[str]:
    return [
        growth.words,
        f"{found.marks[-1]:,}",
        label(found.server),
        f"{median(found.each_us):.3g} µs",
        middle(found.times(beside), ".2f"),
        f"{found.exponent:.2f}",
        size_of(median(found.each_bytes)),
        f"{found.total_mib:,.0f} MiB",
    ]


def _about_floors(found: list[Found]) -> list[str]:
    """Say what of a client's cost nothing in the relay can change."""
    parts: list[str] = []
    for name, words in (("connecting", "one after the other"), ("crowd", f"{CROWD} at a time")):
        relay = find(found, name, "relay")
        for server, called in ((TRIO.name, "Trio alone"), (BARE.name, label(BARE.name))):
            least = find(found, name, server)
            times = [] if least is None else least.times(find(found, name, "mosquitto"))
            if relay is None or least is None or not times:
                continue
            share = median(least.each_us) / median(relay.each_us)
            parts.append(
                f"{words}, {called} takes {median(times):.2f} times what mosquitto does in all, "
                f"and {share:.0%} of what the relay does"
            )
    if not parts:
        return []
    return [wrapped(f"Of a client that connects: {'; '.join(parts)}.")]


def _about_more_than_linear(found: list[Found]) -> list[str]:
    words = {growth.name: growth.words for growth in GROWTHS}
    above = [
        f"{words[each.growth]} with {label(each.server)} ({each.exponent:.2f})"
        for each in found
        if each.exponent > LINEAR
    ]
    if not above:
        return [wrapped(f"No curve has an exponent above {LINEAR:g}, with any server.")]
    return [wrapped(f"Above {LINEAR:g}: {listed(above)}.")]


def _claims(found: list[Found]) -> tuple[Claim, ...]:
    connecting, retained = (find(found, name, "relay") for name in ("connecting", "retained"))
    times = [] if connecting is None else connecting.times(find(found, "connecting", "mosquitto"))
    whole = {growth.name: growth.most for growth in GROWTHS}
    is_whole = retained is not None and retained.marks[-1] >= whole["retained"]
    exponents = [each.exponent for each in found if each.server == "relay"]
    return (
        Claim(
            f"connecting {whole['connecting']:,} clients, one after the other: CPU, at most "
            f"{CONNECTING_TIMES:g} x mosquitto's",
            median(times) if times else None,
            CONNECTING_TIMES,
        ),
        Claim(
            f"{whole['retained']:,} retained topics of {RETAINED_BYTES} bytes: MiB of the whole "
            f"process, at most {RETAINED_MIB:,}",
            retained.total_mib if retained is not None and is_whole else None,
            RETAINED_MIB,
            ",.0f",
        ),
        Claim(
            "connecting, subscribing, retaining, opening accounts: the highest exponent of the "
            f"relay's CPU, at most {LINEAR:g}",
            max(exponents) if len(exponents) == len(GROWTHS) else None,
            LINEAR,
        ),
    )


def figure(found: list[Found]) -> Any:
    """Draw CPU time over the number, and memory below it, a column for each kind."""
    panels = [
        (words, drawn)
        for words, names in PANELS
        if (drawn := [each for each in found if each.growth in names])
    ]
    picture = figure_of(13.0, 6.4)
    columns = max(1, len(panels))
    axes = picture.subplots(2, columns, squeeze=False)
    for column, (words, drawn) in enumerate(panels):
        for each in drawn:
            look = LOOKS.get(each.server, Style(GREEN, ".", "-"))
            first = next(other for other in drawn if other.server == each.server)
            text = label(each.server) if each is first else None
            costs = [
                median(sample.cpu[place] for sample in each.samples)
                for place in range(len(each.marks))
            ]
            memory = [
                max(PAGE_KIB, median(sample.kib[place] for sample in each.samples)) / 1024
                for place in range(len(each.marks))
            ]
            axes[0][column].plot(each.marks, costs, label=text, **look.line())
            axes[1][column].plot(each.marks, memory, **look.line())
        for row in (0, 1):
            axis = axes[row][column]
            axis.set_xscale("log")
            axis.set_yscale("log")
            ticks = drawn[0].marks[::2]
            axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axis.minorticks_off()
            decades(axis.yaxis)
        axes[1][column].set_xlabel(words)
    axes[0][0].set_ylabel("CPU s")
    axes[1][0].set_ylabel("MiB")
    if panels:
        axes[0][0].legend()
    return picture


SECTION: Final = Section(
    key="growth",
    name="growth",
    title="Growth: connecting, subscribing, retained topics, accounts",
    seconds=170.0,
    command="python -m benchmarks.evidence --only growth",
    measure=measure,
    render=render,
)
