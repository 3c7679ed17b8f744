"""Syndicate's loads that are not alike, beside the Rust server (benchmarks/syndicate_loads.py)."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, table, wrapped
from benchmarks.servers import ServerError
from benchmarks.syndicate_loads import (
    LOADS,
    RELAY,
    RUST,
    AnyServer,
    Load,
    RustServer,
    Sample,
    SyndicateRelay,
    middle,
    ratios,
)
from benchmarks.syndicate_loads import (
    measure as measure_one,
)

PASSES: Final = 2
SECONDS: Final = 1.0
ALIKE: Final = ("alike-1", "alike-9")
"""Loads of which messages are recognised by templates: the fast ones."""


def measure(setting: Setting) -> dict[str, Any]:
    """Measure each load with both servers in turn."""
    servers: list[AnyServer] = [SyndicateRelay()]
    skipped: list[str] = []
    rust = RustServer()
    if (missing := rust.missing()) is None:
        servers.append(rust)
    else:
        skipped.append(missing)
    samples: list[dict[str, Any]] = []
    seconds = max(0.5, SECONDS * setting.scale)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number in range(PASSES):
            for load in LOADS.values():
                found: list[dict[str, Any]] = []
                for server in servers:
                    scratch = Path(folder) / f"{number}-{load.name}-{server.name}"
                    try:
                        sample = measure_one(load, server, seconds, setting.cores, scratch)
                    except ServerError as error:
                        skipped.append(f"{server.name}, {load.name}: {first_line(error)}.")
                        setting.report(skipped[-1])
                        continue
                    found.append(attrs.asdict(sample))
                if len(found) == len(servers):  # ratios are taken pass by pass
                    samples += found
            setting.report(f"syndicate: pass {number + 1} of {PASSES}")
    return {
        "seconds": seconds,
        "rust": rust.version() if RUST in [server.name for server in servers] else None,
        "samples": samples,
        "skipped": skipped,
    }


HEAD: Final = (
    "load", "", "the relay, us", "syndicate-server, us", "ratio, median", "lowest to highest",
    "at most",
)  # fmt: skip


def _row(load: Load, samples: Sequence[Sample]) -> list[str]:
    of = ratios(samples, load.name)
    here, there = (middle(samples, load.name, server) for server in (RELAY, RUST))
    return [
        load.name,
        load.meaning,
        "-" if here is None else f"{here:.2f}",
        "-" if there is None else f"{there:.2f}",
        f"{statistics.median(of):.2f}" if of else "-",
        f"{min(of):.2f} to {max(of):.2f}" if of else "-",
        "-" if load.budget is None else f"{load.budget:g}",
    ]


def render(data: dict[str, Any]) -> Rendered:
    """Show the CPU of both servers, and the ratios."""
    rows: Sequence[Mapping[str, Any]] = data["samples"]
    samples = [Sample(**row) for row in rows]
    rust = data.get("rust")
    passes = max(Counter((each.load, each.server) for each in samples).values(), default=0)
    text = (
        "The relay's Syndicate port beside the server that the protocol's author writes in Rust, "
        f"{'syndicate-server' if rust is None else rust}. *alike*: messages that differ in one "
        "field, as all other sections send them. The others are what its example clients do: "
        "messages that are not alike, many in a turn, assertions that come and go, ping-pong, and "
        "messages through a reference with a caveat. CPU of the server, all threads, for each "
        "delivery (for a ping: there and back, with one or ten under way), in "
        f"{passes} interleaved passes of {data['seconds']:g} s, a fresh server each. One publisher "
        "writes what is taken; the number behind the name counts the observers."
    )
    if rust is None:
        text += " **The Rust server was not here**, so there are no ratios."
    return Rendered(
        f"{wrapped(text)}\n\n"
        f"{table(HEAD, [_row(load, samples) for load in LOADS.values()], right=range(2, 7))}",
        claims=tuple(
            Claim(
                f"Syndicate, {load.meaning}: CPU, at most {load.budget:g} x the Rust server's",
                statistics.median(of) if (of := ratios(samples, load.name)) else None,
                load.budget,
            )
            for load in LOADS.values()
            if load.budget is not None
        ),
    )


SECTION: Final = Section(
    key="syndicate",
    name="syndicate",
    title="Syndicate beside the Rust server",
    seconds=112.0,
    command="python -m benchmarks.evidence --only syndicate",
    measure=measure,
    render=render,
)
