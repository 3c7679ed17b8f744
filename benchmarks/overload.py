"""Overload: which servers buffer, apply backpressure, drop messages, or disconnect subscribers.

A publisher offers messages at a steady pace to nine subscribers that all take a tenth of that, for
`Terms.push` seconds. Then it is silent, and the subscribers read the rest as fast as they can. Ten
times a second the benchmark records the server's memory, the messages sent and received, and the
bytes that the kernel holds in between.

    python benchmarks/overload.py                        # everything there is: about two minutes
    python benchmarks/overload.py --only relay,redis

The publisher never catches up: while its server does not read, it waits, and then goes on at its
pace. A server that uses more memory than `Terms.cap` is killed, before it uses all there is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.clients import WIRES, Ends, Scene, family, kinds_of, lines_of, logs_in, resident
from benchmarks.fanout import Cores
from benchmarks.servers import PEERS, AnyServer, Relay, ServerError, pinned

LOOK: Final = 0.1
"""Seconds between two records."""
ALONE: Final = 1.0
"""Seconds for which it goes on when all subscribers have been cut off."""
LIMIT: Final = 8 << 20
"""Bytes that a connection may owe to the relay, by its default."""
MORE: Final = 64 << 20
"""The same, for the relay with a larger limit."""
UNBOUNDED: Final = (
    *("--limit-items=none", "--limit-bytes=none"),
    *("--server-limit-items=none", "--server-limit-bytes=none", "--memory-alarm=none"),
)


@attrs.frozen
class Terms:
    """The load on each server."""

    subscribers: int = 9
    payload: int = 4_000
    """Bytes of a message."""
    rate: int = 5_000
    """Messages a second that the publisher offers."""
    taken: int = 500
    """Messages a second that each subscriber takes."""
    push: float = 8.0
    """Seconds for which it publishes."""
    drain: float = 8.0
    """Most seconds to wait for the remaining messages."""
    quiet: float = 0.8
    """Seconds without a message after which all have come."""
    cap: float = 1024.0
    """Megabytes above idle at which a server is killed."""


@attrs.frozen
class Looks:
    """What was seen each time, column by column."""

    t: list[float] = attrs.field(factory=list[float])
    """Seconds since the publisher began."""
    mb: list[float] = attrs.field(factory=list[float])
    """Memory of the server, all its processes, in megabytes."""
    published: list[int] = attrs.field(factory=list[int])
    """Messages that the kernel had taken from the publisher."""
    delivered: list[list[int]] = attrs.field(factory=list[list[int]])
    """Messages that each subscriber had."""
    kernel: list[tuple[int, int, int]] = attrs.field(factory=list[tuple[int, int, int]])
    """Bytes to be sent, to be taken, and coming, as `Ends` has them."""


@attrs.frozen
class Found:
    """What was found in one run; what is counted is messages to one subscriber each."""

    server: str
    """Its name."""
    label: str
    version: str
    idle: float
    """The server's memory before it began, in megabytes."""
    peak: float
    """The most it had above that."""
    published: int
    """Messages, each of which is to reach every subscriber."""
    offered: int
    delivered: int
    lost: int
    """Published messages that did not come, those for disconnected subscribers included."""
    strange: int
    """Deliveries that were never sent, came out of order, or came twice."""
    held: int
    """The most messages on their way that came later, or whose subscriber was disconnected."""
    held_bytes: int
    """The most bytes of these outside the kernel's sockets: those that the server itself kept,
    counted for each subscriber."""
    sockets: int
    """The most that was in the sockets, in bytes."""
    held_back: float
    """The share of what was offered that the server did not take in that time."""
    waited: float
    """Seconds in which it took nothing at all."""
    generator: float
    """The share of its core that this process had meanwhile: near 1, it was the limit."""
    cut: list[float | None]
    """When each subscriber was cut off."""
    drain: float | None
    """Seconds from when the publisher ended to the last delivery; None: it was not waited for."""
    ended: str
    """"" or why it was not carried to its end: "cap", "alone", "closed", "slow"."""
    pushed: float
    """Seconds for which was published."""
    owed: int | None
    """The relay alone: the most that was owed to it, in bytes, by its own books."""
    balanced: bool | None
    """The relay alone: whether its books balanced in the end."""
    log: tuple[str, ...]
    """What its log said of it, each kind of line once."""
    over_time: dict[str, list[float]] = attrs.field(repr=False)
    """t, mb (above idle), published, delivered (mean), held and own_bytes, kernel_bytes."""


# -- what was held ------------------------------------------------------------------------------


def on_the_way(arrived: list[int], had: int, published: int, *, cut: bool) -> int:
    """Return how many messages were on their way to a subscriber, with hindsight.

    Args:
        arrived: The numbers of all that came in the end, in order.
        had: How many of them it had.
        published: How many had been published.
        cut: Whether it was cut off later: then it is not known what would have come, and all is
            taken to be on its way.
    """
    if cut:
        return max(0, published - had)
    return max(0, bisect_left(arrived, published) - had)


def held_over_time(
    looks: Looks, arrived: list[list[int]], cut: list[float | None], size: int
) -> tuple[list[int], list[int]]:
    """Return what was held each time: in messages, and in bytes outside of the kernel's sockets.

    Args:
        looks: What was seen.
        arrived: The numbers of all that came, in order, for each subscriber.
        cut: When each was cut off: from then on nothing is held for it.
        size: Bytes of a delivery.
    """
    messages: list[int] = []
    own: list[int] = []
    for at, published, had, kernel in zip(
        looks.t, looks.published, looks.delivered, looks.kernel, strict=True
    ):
        count = 0
        reached = 0
        for numbers, got, gone in zip(arrived, had, cut, strict=True):
            if gone is None or at < gone:
                count += on_the_way(numbers, got, published, cut=gone is not None)
                reached += 1
        messages.append(count)
        to_send, to_take, coming = kernel
        # What the server has not read yet is on its way to all of them.
        own.append(max(0, count * size - to_send - to_take - coming * reached))
    return messages, own


# -- a run --------------------------------------------------------------------------------------


class _Watch:
    """Looks at everything, ten times a second."""

    def __init__(self, scene: Scene, pids: tuple[int, ...], terms: Terms) -> None:
        self.looks = Looks()
        self.cut: list[float | None] = [None] * terms.subscribers
        self.idle = resident(pids)
        self._scene = scene
        self._pids = pids
        self._began = self._looked = time.monotonic()

    @property
    def above(self) -> float:
        """Megabytes above idle, when it was looked last."""
        return self.looks.mb[-1] - self.idle if self.looks.mb else 0.0

    def __call__(self) -> bool:
        """Look, if it is time; return whether it was."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        at = round(now - self._began, 3)
        ends: Ends = self._scene.ends()
        self.looks.t.append(at)
        self.looks.mb.append(round(resident(self._pids), 2))
        self.looks.published.append(self._scene.published)
        self.looks.delivered.append([each.messages for each in self._scene.receivers])
        self.looks.kernel.append((ends.to_send, ends.to_take, ends.coming))
        for number, port in enumerate(self._scene.ports):
            if self.cut[number] is None and port not in ends.open:
                self.cut[number] = at
        return True


def run(
    server: AnyServer, label: str, terms: Terms, scratch: Path, core: int | None = None
) -> Found:
    """Do it once to one server.

    Args:
        server: Which.
        label: What it is called in the table.
        terms: What is done to it.
        scratch: An empty directory, for its files.
        core: The core that it has; None: any.

    Raises:
        ServerError: It did not start, or end, as it should.
    """
    found: Found | None = None
    try:
        with server.running(scratch, core) as running:
            pids = family(running.pid)
            protocol = server.speaks("mqtt")
            assert protocol is not None
            names = [f"reader-{number}" for number in range(1, terms.subscribers + 1)]
            scene = Scene(
                WIRES[protocol], running.port,
                names=names, payload=terms.payload, rate=terms.rate, topics=1, numbered=True,
            )  # fmt: skip
            seen = {path: path.stat().st_size for path in logs_in(scratch)}
            try:
                found = _run(server, label, terms, scene, pids, running.page)
            finally:
                scene.close()
            said = [line for path in logs_in(scratch) for line in lines_of(path, seen.get(path, 0))]
            found = attrs.evolve(found, log=kinds_of(said))
            if found.ended == "cap":
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
    except ServerError:
        if found is None or found.ended != "cap":  # it is not asked to end in good order
            raise
    assert found is not None
    return found


def _run(
    server: AnyServer, label: str, terms: Terms, scene: Scene, pids: tuple[int, ...], page: str
) -> Found:
    time.sleep(0.2)
    watch = _Watch(scene, pids, terms)
    for number in range(terms.subscribers):
        scene.reads(number, float(terms.taken * scene.size))
    began = time.monotonic()
    scene.pace.begin(began)
    cpu = time.process_time()
    ended = ""
    try:
        while time.monotonic() < began + terms.push and not ended:
            scene.step()
            if watch():
                ended = _over(watch, terms)
    except (ServerError, ConnectionError):
        ended = "closed"
    now = time.monotonic()
    scene.pace.end(now)
    pushed, cpu = now - began, time.process_time() - cpu
    published, waited = scene.published, scene.pace.waited
    drain = None
    if ended in {"", "alone"}:
        for number in range(terms.subscribers):
            scene.reads(number, "all")
        try:
            scene.drain(terms.quiet, terms.drain, watch, empty=True)
        except (ServerError, ConnectionError):
            ended = "closed"
        last = max(receiver.last for receiver in scene.receivers)
        drain = max(0.0, last - now)
        missing = any(receiver.messages < scene.published for receiver in scene.receivers)
        if not ended and missing and drain > terms.drain - terms.quiet:
            ended, drain = "slow", None  # there may be more
    owed, balanced = _books(page) if page else (None, None)
    arrived = [sorted(receiver.numbers) for receiver in scene.receivers]
    held, own = held_over_time(watch.looks, arrived, watch.cut, scene.size)
    looks = watch.looks
    published = scene.published  # with what was under way when it ended
    delivered = sum(len(set(numbers)) for numbers in arrived)
    return Found(
        server=server.name,
        label=label,
        version=server.version(),
        idle=watch.idle,
        peak=max(looks.mb, default=watch.idle) - watch.idle,
        published=published,
        offered=round(terms.rate * pushed),
        delivered=delivered,
        lost=published * terms.subscribers - delivered,
        strange=sum(receiver.strange for receiver in scene.receivers),
        held=max(held, default=0),
        held_bytes=max(own, default=0),
        sockets=max((sum(each) for each in looks.kernel), default=0),
        held_back=max(0.0, 1 - published / (terms.rate * pushed)),
        waited=waited,
        generator=cpu / pushed,
        cut=watch.cut,
        drain=drain,
        ended=ended,
        pushed=pushed,
        owed=owed,
        balanced=balanced,
        log=(),
        over_time={
            "t": looks.t,
            "mb": [round(mb - watch.idle, 2) for mb in looks.mb],
            "published": [float(count) for count in looks.published],
            "delivered": [round(statistics.fmean(each), 1) for each in looks.delivered],
            "held": [float(count) for count in held],
            "own_bytes": [float(count) for count in own],
            "kernel_bytes": [float(sum(each)) for each in looks.kernel],
        },
    )


def _over(watch: _Watch, terms: Terms) -> str:
    if watch.above > terms.cap:
        return "cap"
    times = [at for at in watch.cut if at is not None]
    if len(times) == len(watch.cut) and watch.looks.t[-1] > max(times) + ALONE:
        return "alone"
    return ""


def _books(page: str) -> tuple[int, bool]:
    with urlopen(f"{page}/ledger.json", timeout=10) as answer:
        ledger: dict[str, Any] = json.load(answer)
    (server,) = (each for each in ledger["accounts"] if each["name"] == "server")
    return int(server["peak"]["bytes"]), bool(ledger["audit"]["balanced"])


# -- the command --------------------------------------------------------------------------------


def candidates(servers: Iterable[AnyServer]) -> Iterator[tuple[str, AnyServer]]:
    """Yield what is measured, with its name in the table: the relay in three ways."""
    for server in servers:
        if isinstance(server, Relay):
            yield "relay", Relay(protocols=("mqtt",))
            more = ("--limit-items=none", f"--limit-bytes={MORE}")
            yield f"relay, {MORE >> 20} MiB", Relay(protocols=("mqtt",), options=more)
            yield "relay, no limit", Relay(protocols=("mqtt",), options=UNBOUNDED)
        elif server.speaks("mqtt") in WIRES:
            yield server.name, server


def measure(
    servers: Iterable[AnyServer],
    terms: Terms,
    core: int | None,
    report: Callable[[str], None],
) -> tuple[list[Found], list[str]]:
    """Do it once to each; return what was found, and sentences about those that did not go."""
    found: list[Found] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for place, (label, server) in enumerate(candidates(servers)):
            scratch = Path(folder) / str(place)
            scratch.mkdir()
            try:
                one = run(server, label, terms, scratch, core)
            except (ServerError, OSError) as error:
                first = (str(error).splitlines() or ["no reason given"])[0]
                skipped.append(f"{label} could not be measured: {first}.")
                report(skipped[-1])
                continue
            found.append(one)
            report(f"{label}: {one.peak:.0f} MB above idle")
    return found, skipped


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of servers, with commas")
    parser.add_argument("--push", type=float, default=Terms().push, help="seconds (8)")
    parser.add_argument("--json", type=Path, help="write all that was found there")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    chosen: list[AnyServer] = []
    for server in (Relay(), *PEERS):
        if not words or server.name in words:
            if (missing := server.missing()) is not None:
                print(missing, file=sys.stderr)
            else:
                chosen.append(server)

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    cores = Cores.choose()
    with pinned(cores.generator):
        found, skipped = measure(chosen, Terms(push=options.push), cores.server, say)
    for one in found:
        print(one)
    if options.json is not None:
        made = [attrs.asdict(one) for one in found]
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    return 1 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
