"""What TLS costs the relay and mosquitto (benchmarks/tls.py)."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.evidence._section import Rendered, Section, Setting
from benchmarks.evidence._text import first_line, in_order, label, middle, table, wrapped
from benchmarks.servers import ServerError, free_port
from benchmarks.tls import RATE, SUBSCRIBERS, measured, papers_in, servers_of
from clearfunds.perf import PerfError

PASSES: Final = 2
SECONDS: Final = 1.0
CLIENTS: Final = 200
"""Fewer than that script has: each costs mosquitto with TLS a delayed acknowledgement of 40 ms."""

COLUMNS: Final = {
    "one": "CPU s per M deliveries, at a pace",
    "pipelined": "the same, pipelined",
    "connecting": "CPU ms to connect",
    "idle": "KiB for an idle connection",
}


def measure(setting: Setting) -> dict[str, Any]:
    """Measure each server without TLS and with it, by turns."""
    passes = PASSES if setting.scale >= 0.5 else 1
    seconds = max(0.3, SECONDS * setting.scale)
    clients = max(20, round(CLIENTS * min(1.0, setting.scale)))
    runs: list[dict[str, Any]] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        papers = papers_in(Path(folder))
        port = free_port()
        for name, server in servers_of(papers, port).items():
            if (missing := server.missing()) is not None:
                skipped.append(missing)
                continue
            for number in range(1, passes + 1):
                for secure in (False, True):
                    where = f"{name}{' with TLS' if secure else ''}, pass {number}"
                    try:
                        found = measured(
                            server,
                            port if secure else None,
                            papers,
                            seconds,
                            setting.cores,
                            clients,
                        )
                    except (ServerError, PerfError, OSError) as error:
                        skipped.append(f"{where}: {first_line(error)}")
                        continue
                    finally:
                        setting.report(f"tls: {where}")
                    runs.append(
                        {"number": number, "server": name, "tls": secure} | attrs.asdict(found)
                    )
    return {
        "passes": passes,
        "seconds": seconds,
        "clients": clients,
        "runs": runs,
        "skipped": skipped,
    }


def render(data: dict[str, Any]) -> Rendered:
    """Show each figure without TLS, with it, and the ratio."""
    runs: Sequence[Mapping[str, Any]] = data["runs"]
    introduction = wrapped(
        f"The relay and mosquitto without TLS and with it (1.3, a P-256 certificate): {RATE:,} "
        f"messages a second to {SUBSCRIBERS} subscribers, where each message is a record of its "
        "own; pipelined, where a record has many; and connecting, with a full handshake, "
        f"{data.get('clients', CLIENTS)} clients one after the other, which are idle then. "
        f"{_passes(data['passes'])} of {data['seconds']:g} s; the generator is `clearfunds perf`."
    )
    lines: list[list[str]] = []
    for server in in_order(str(run["server"]) for run in runs):
        plain, secure = (
            [run for run in runs if run["server"] == server and run["tls"] is tls]
            for tls in (False, True)
        )
        for of, word in ((plain, ""), (secure, " with TLS")):
            if of:
                cells = [middle((run[name] for run in of), _form(name)) for name in COLUMNS]
                lines.append([f"{label(server)}{word}", *cells])
        if plain and secure:
            ratios = (_ratio(plain, secure, name) for name in COLUMNS)
            lines.append([f"{label(server)}: TLS / none", *ratios])
    head = ("", *COLUMNS.values())
    return Rendered(f"{introduction}\n\n{table(head, lines, right=range(1, len(head)))}")


def _passes(count: int) -> str:
    return f"Medians of {count} passes" if count > 1 else "One pass"


def _form(name: str) -> str:
    return ".0f" if name == "idle" else ".2f"


def _ratio(
    plain: Sequence[Mapping[str, Any]], secure: Sequence[Mapping[str, Any]], name: str
) -> str:
    without = statistics.median(run[name] for run in plain)
    return f"{statistics.median(run[name] for run in secure) / without:.1f}" if without else "-"


SECTION: Final = Section(
    key="p",
    name="tls",
    title="TLS",
    seconds=80,
    command="python -m benchmarks.evidence --only tls",
    measure=measure,
    render=render,
)
