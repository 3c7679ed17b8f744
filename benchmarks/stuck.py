"""One of nine subscribers stops reading: head-of-line blocking, losses, log lines and waits.

A publisher sends at a steady pace to nine subscribers. Two seconds later one of them stops reading:
for good, or for fifteen seconds. The servers are the relay with its defaults, the relay under each
policy, and mosquitto, NATS, Redis and RabbitMQ with their defaults; each server is started afresh.

    python benchmarks/stuck.py                       # everything there is: 20 minutes
    python benchmarks/stuck.py --only relay,nats --away 15

The publisher has a fixed pace and never catches up: while its server does not read, it waits, and
then goes on at that pace. So the messages that the others lack are those that it did not send.
`docs/patience.md` shows the table and explains it.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.clients import WIRES, Scene, family, kinds_of, lines_of, logs_in, resident
from benchmarks.servers import PEERS, AnyServer, Relay, ServerError

SUBSCRIBERS: Final = 9
AWAY: Final = 15.0
"""Seconds after which it reads again, in the runs in which it does."""
PATIENCE: Final = 5.0
"""Seconds, under each policy; the relay with its defaults has its own."""
LOOK: Final = 0.25
"""Seconds between two looks at the received messages and at the server."""
LEFT: Final = 12.0
"""Seconds, at most, in which it reads what is left for it."""
POLICIES: Final = ("wait", "disconnect", "drop_oldest", "drop_newest", "conflate", "spill")
STUCK: Final = "the-stuck-one"
BESIDE: Final = ("mosquitto", "nats", "redis", "rabbitmq")
"""The servers beside the relay: those that have wildcards and take this load."""


@attrs.frozen
class Terms:
    """The load on each server; times are in seconds."""

    rate: int = 2_000
    """Messages a second."""
    payload: int = 1_000
    """Bytes of a message."""
    warm: float = 2.0
    """Seconds before the one stops reading."""
    watch: float = 40.0
    """Seconds from then on."""
    away: float | None = None
    """Seconds after which it reads again; None: never."""
    quiet: float = 1.5
    """Seconds without a message after which all messages have come."""


# -- what is found ------------------------------------------------------------------------------


@attrs.frozen
class Found:
    """The results of one run; times are in seconds from when the one stopped reading."""

    server: str
    version: str
    away: float | None
    """Seconds for which it did not read; None: for good."""
    offered: int
    """Messages that the publisher offered."""
    sent: int
    before: float
    """The mean share of the offered messages that the others had until then: much below 1, the
    server was too slow for this load in any case."""
    share: float
    """The share of the offered messages that the worst served of the other eight got."""
    gap: float
    """The longest time without a message for one of them."""
    waited: float
    """How long the publisher waited in all."""
    went_on: float | None
    """When its longest wait was over; None: it never was, or there was none."""
    waits: bool
    """Whether it waits at the end."""
    others_lost: int
    """The most sent messages that one of the others never got."""
    stuck_got: int
    """The sent messages that the stuck one got in the end, from the very first."""
    stuck_lost: int
    cut: bool
    """Whether the server closed its connection."""
    cut_after: float | None
    """When that was seen, while it was watched."""
    memory: float
    """The most megabytes by which the server grew."""
    log: tuple[str, ...]
    """The lines of the server's log about it, each kind of line once."""
    over_time: dict[str, list[float]] = attrs.field(repr=False)
    """Seconds; the mean number of messages that the others had by then; the server's memory in
    MB."""


# -- a run --------------------------------------------------------------------------------------


def run(
    server: AnyServer, label: str, terms: Terms, scratch: Path, core: int | None = None
) -> Found:
    """Measure one server once.

    Args:
        server: The server.
        label: Its name in the table.
        terms: The load.
        scratch: An empty directory, for its files.
        core: Its core; None: any.

    Raises:
        ServerError: It did not start, or not end, as it should; or it closed the publisher's
            connection.
    """
    protocol = server.speaks("mqtt")
    assert protocol is not None
    names = [*(f"reader-{number}" for number in range(1, SUBSCRIBERS)), STUCK]
    stuck = SUBSCRIBERS - 1
    with server.running(scratch, core) as running:
        scene = Scene(
            WIRES[protocol], running.port, names=names, payload=terms.payload, rate=terms.rate
        )
        try:
            until = time.monotonic() + terms.warm
            scene.pace.begin(time.monotonic())
            while time.monotonic() < until:
                scene.step()
            seen = {path: path.stat().st_size for path in logs_in(scratch)}
            pids = family(running.pid)
            before = resident(pids)
            first, sent_before = scene.receivers[stuck].messages, scene.pace.sent
            scene.reads(stuck, "nothing")
            began = time.monotonic()
            earlier = sum(receiver.messages for receiver in scene.receivers[:stuck]) / stuck
            for receiver in scene.receivers[:stuck]:
                receiver.begin(began)
            scene.pace.begin(began)
            # Of what was sent before, some is still on its way to the others.
            over_time: dict[str, list[float]] = {"t": [0.0], "others": [0.0], "mb": [before]}
            looked, back, cut_after = began, terms.away is None, None
            while (now := time.monotonic()) < began + terms.watch:
                scene.step()
                if not back and terms.away is not None and now - began >= terms.away:
                    scene.reads(stuck, "all")
                    back = True
                if now - looked >= LOOK:
                    looked = now
                    over_time["t"].append(round(now - began, 3))
                    came = sum(receiver.messages for receiver in scene.receivers[:stuck])
                    over_time["others"].append(round(came / stuck, 1))
                    over_time["mb"].append(round(resident(pids), 2))
                    if cut_after is None and scene.ports[stuck] not in scene.ends().open:
                        cut_after = now - began
            waits = scene.pace.end(now)
            pace = attrs.evolve(scene.pace)  # as it is now
            gap = max(receiver.gap(now) for receiver in scene.receivers[:stuck])
            got = [receiver.messages for receiver in scene.receivers[:stuck]]
            said = [line for path in logs_in(scratch) for line in lines_of(path, seen.get(path, 0))]
            scene.drain(terms.quiet)
            if terms.away is None:
                scene.reads(stuck, "all")
                scene.drain(terms.quiet, LEFT, empty=True)
            others = min(receiver.messages for receiver in scene.receivers[:stuck])
            total = sent_before + pace.sent
            reached = scene.receivers[stuck].messages
            assert first <= reached
            offered = round(terms.rate * terms.watch)
            return Found(
                server=label,
                version=server.version(),
                away=terms.away,
                offered=offered,
                sent=pace.sent,
                before=earlier / (terms.rate * terms.warm),
                share=min(got) / offered,
                gap=gap,
                waited=pace.waited,
                went_on=None if pace.went_on is None else pace.went_on - began,
                waits=waits,
                others_lost=max(0, pace.sent - others),
                stuck_got=reached,
                stuck_lost=total - reached,
                cut=cut_after is not None or stuck in scene.ended,
                cut_after=cut_after,
                memory=max(over_time["mb"]) - before,
                log=kinds_of(said),
                over_time=over_time,
            )
        finally:
            scene.close()


# -- the table ----------------------------------------------------------------------------------

COLUMNS: Final = (
    "server",
    "the other eight got",
    "longest gap",
    "the publisher waited",
    "went on after",
    "the stuck one lost",
    "it was cut off",
    "the log tells",
    "memory",
)


def row(found: Found) -> tuple[str, ...]:
    """Return a run as a row of the table."""
    went_on = "-"
    if found.waits:
        went_on = "never"
    elif found.waited >= 0.5 and found.went_on is not None:
        went_on = f"{found.went_on:.1f} s"
    lost = f"{found.stuck_lost:,} of {found.stuck_got + found.stuck_lost:,}"
    others = "" if found.others_lost == 0 else f" ({found.others_lost:,} lost)"
    return (
        found.server,
        f"{found.share:.1%}{others}",
        f"{found.gap:.1f} s",
        f"{found.waited:.1f} s",
        went_on,
        lost,
        "yes" if found.cut else "no",
        "yes" if found.log else "no",
        f"+{found.memory:.0f} MB",
    )


def table(found: Iterable[Found]) -> str:
    """Return runs as a table in Markdown."""
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(row(each) for each in found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- the command --------------------------------------------------------------------------------


AS_IT_COMES: Final = "relay, as it comes"
PROFILES: Final = ("lossless", "live")
"""Those that are not the default."""


def servers(scratch: Path, patience: float) -> Iterator[tuple[str, AnyServer]]:
    """Yield each server, with its name in the table."""
    yield AS_IT_COMES, Relay(protocols=("mqtt",))
    for profile in PROFILES:
        yield f"relay, {profile}", Relay(protocols=("mqtt",), options=(f"--profile={profile}",))
    for policy in POLICIES:
        options = [f"--stuck={policy}", f"--patience={patience:g}"]
        if policy == "spill":
            options.append(f"--store={scratch / 'store'}")
        yield f"relay, {policy}", Relay(protocols=("mqtt",), options=tuple(options))
    for peer in PEERS:
        if peer.name in BESIDE:
            yield peer.name, peer


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="words of the servers' names, with commas")
    parser.add_argument(
        "--away", choices=("good", f"{AWAY:g}"), help="for how long it does not read (both)"
    )
    parser.add_argument("--patience", type=float, default=PATIENCE, help="under each policy (5)")
    parser.add_argument("--watch", type=float, default=Terms().watch, help="for how long (40 s)")
    parser.add_argument("--json", type=Path, help="write all that was found there")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    found: list[Found] = []
    status = 0
    for away in (None, AWAY):
        if options.away is not None and (options.away == "good") != (away is None):
            continue
        these: list[Found] = []
        terms = Terms(watch=options.watch, away=away)
        with tempfile.TemporaryDirectory() as folder:
            for number, (label, server) in enumerate(servers(Path(folder), options.patience)):
                if words and not any(word in label for word in words):
                    continue
                missing = server.missing()
                if missing is not None:
                    print(missing, file=sys.stderr)
                    continue
                scratch = Path(folder) / str(number)
                scratch.mkdir()
                print(f"{label} ...", file=sys.stderr)
                try:
                    these.append(run(server, label, terms, scratch))
                except (ServerError, OSError) as error:
                    print(f"stuck: {label}: {error}", file=sys.stderr)
                    status = 1
        what = "for good" if away is None else f"for {away:g} s"
        print(f"\nIt reads no more {what}; {options.watch:g} s are watched:\n")
        print(table(these))
        for each in these:
            for line in each.log[:4]:
                print(f"  {each.server} says: {line[:240]}")
        found += these
    if options.json is not None:
        made = {"python": platform.python_version(), "runs": [attrs.asdict(f) for f in found]}
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
