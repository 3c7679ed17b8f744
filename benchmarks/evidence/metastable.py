"""Clients that send again during an overload (benchmarks/metastable.py)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, label, table, time_of, wrapped
from benchmarks.metastable import (
    BACK_SECONDS,
    GOOD,
    LIMIT_ITEMS,
    TRIGGERS,
    WINDOW,
    Terms,
    servers,
)
from benchmarks.metastable import run as run_one
from benchmarks.servers import ServerError

Run = Mapping[str, Any]

SERVERS: Final = ("relay", "mosquitto")
"""Those here that have QoS 1, and time for this."""
WATCH: Final = 4.0
"""Seconds after the trigger: twice what is claimed."""


def measure(setting: Setting) -> dict[str, Any]:
    """Overload each server in both ways."""
    terms = Terms(watch=WATCH)
    terms = attrs.evolve(
        terms,
        warm=max(1.0, terms.warm * setting.scale),
        trigger=max(1.0, terms.trigger * setting.scale),
        watch=max(2.5, terms.watch * setting.scale),
    )
    runs: list[dict[str, Any]] = []
    skipped: list[str] = []
    here = [name for name in SERVERS if setting.server(name) is not None]
    for server in servers(here):
        for trigger in TRIGGERS:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
                try:
                    found = run_one(server, server.name, trigger, terms, Path(scratch))
                except (ServerError, OSError) as error:
                    skipped.append(f"{server.name}, {trigger}: {first_line(error)}")
                    setting.report(f"metastable: {skipped[-1]}")
                    continue
            runs.append(attrs.asdict(found))
            setting.report(f"metastable: {server.name}, {trigger}: back after {found.back}")
    return {"terms": attrs.asdict(terms), "runs": runs, "skipped": skipped}


HEAD: Final = (
    "", "trigger", "goodput before", "during", "back after", "sent again", "given up unsent",
    "delivered", "delivered twice",
)  # fmt: skip


def _row(run: Run) -> list[str]:
    return [
        label(str(run["server"])),
        str(run["trigger"]),
        f"{run['before']:.0%}",
        f"{run['during']:.0%}",
        "not back" if run["back"] is None else f"{run['back']:.1f} s",
        f"{run['resent']:,}",
        f"{run['given_up']:,}",
        f"{run['delivered']:,}",
        f"{run['twice']:,}",
    ]


def render(data: dict[str, Any]) -> Rendered:
    """Show when goodput was back."""
    terms: Mapping[str, Any] = data["terms"]
    runs: Sequence[Run] = data["runs"]
    text = (
        f"{terms['publishers']} publishers send {terms['rate']:g} QoS 1 messages a second each. "
        f"A message without PUBACK for {time_of(terms['retry'])} is sent again with DUP, as often "
        "as it takes. An overload is metastable if these repetitions outlive its trigger. The "
        f"triggers: for {time_of(terms['trigger'])} the subscriber reads nothing (*stall*), or the "
        f"publishers have {terms['surge']:g} times their rate (*surge*), which is more than a core "
        "can do. Goodput is the share of the messages that were acknowledged in time, within "
        f"{time_of(terms['retry'])}; it is back when it stays at {GOOD:.0%} or more, in each "
        f"{time_of(WINDOW)}. The relay has `--limit-items={LIMIT_ITEMS}`, so that its publishers "
        "wait within the stall. A DUP of a message that is not acknowledged yet is the same debt: "
        "it is not delivered again. NATS and Redis have no QoS 1 here. One run each."
    )
    return Rendered(
        "\n\n".join([wrapped(text), table(HEAD, [_row(run) for run in runs], right=range(2, 9))]),
        claims=_claims(runs),
    )


def _claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
    ours = {str(run["trigger"]): run for run in runs if run["server"] == "relay"}

    def back(trigger: str) -> float | None:
        run = ours.get(trigger)
        if run is None:
            return None
        return float("inf") if run["back"] is None else float(run["back"])

    return tuple(
        Claim(
            f"clients that send again, {trigger}: seconds after it until goodput is back, at most "
            f"{BACK_SECONDS:g}",
            back(trigger), BACK_SECONDS, ".1f",
        )
        for trigger in TRIGGERS
    )  # fmt: skip


SECTION: Final = Section(
    key="l",
    name="metastable",
    title="Clients that send again during an overload",
    seconds=45.0,
    command="python -m benchmarks.evidence --only metastable",
    measure=measure,
    render=render,
)
