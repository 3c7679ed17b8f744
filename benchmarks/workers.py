"""One process against several: `clearfunds relay --workers`, on the cores of this machine.

Publishers send QoS 0 packets of 200 bytes, and each has subscribers of its own. These are with the
same worker as their publisher (they stay), or half of them with another one (they spread, as
clients do that connect where the kernel puts them). Each publisher sends the next packet when all
of its subscribers have the last one; or as fast as it is read (--pipelined), which the relay takes
and delivers in batches. One process and several run at the same time and are measured by turns.

The generator shares the cores with the relay. So deliveries a second say little on two cores; the
capacity with cores enough is that of the busiest process: deliveries for each second of its CPU.

    python benchmarks/workers.py                     # a table: two minutes
    python benchmarks/workers.py --pipelined         # the same with batches
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from statistics import median
from typing import Final, Literal, cast
from urllib.request import urlopen

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cluster import CHUNK, FILTERS, SECONDS, WARM, client, spread
from benchmarks.idle import utf8
from benchmarks.journal import cpu_seconds
from benchmarks.servers import Relay, Running, ServerError

NAME: Final = "w"
GOAL: Final = 1.6
"""Times of the capacity of one process that two workers have, at least."""

Way = Literal["stay", "spread"]
WAYS: Final[tuple[Way, ...]] = ("stay", "spread")


@attrs.frozen
class Server:
    """A relay of some processes."""

    workers: tuple[int, ...]
    """Their process identifiers."""
    nats: int | None
    port: int
    pages: tuple[str, ...]
    """The URL of each one's pages."""

    def cpu(self) -> list[float]:
        """Return the CPU seconds so far of each worker, of NATS, and of this process."""
        nats = 0.0 if self.nats is None else cpu_seconds(self.nats)
        return [*map(cpu_seconds, self.workers), nats, time.process_time()]

    def place_of(self, name: str) -> int:
        """Return the worker that a client is with.

        Raises:
            ServerError: There is none.
        """
        for place, page in enumerate(self.pages):
            with urlopen(f"{page}/ledger.json", timeout=SECONDS) as answer:
                if any(row["name"].endswith(f"/{name}") for row in json.load(answer)["accounts"]):
                    return place
        raise ServerError(f"no worker has the client {name}")


def of_many(running: Running, count: int) -> Server:
    """Return the parts of a relay with workers.

    Raises:
        ServerError: Its processes are not those that were expected.
    """
    tasks = Path(f"/proc/{running.pid}/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
    names = [f"{NAME}-{number}" for number in range(1, count + 1)]
    workers = [pid for name in names for pid in children if f"--name={name}\0" in commands[pid]]
    nats = [pid for pid in children if "nats-server\0" in commands[pid]]
    if len(workers) != count or len(nats) != 1:
        raise ServerError(f"{count} workers and a NATS server are not all there: {commands}")
    pages = tuple(f"{running.page}/{name}" for name in names)
    return Server(tuple(workers), nats[0], running.port, pages)


@contextlib.contextmanager
def set_up(count: int) -> Generator[dict[int, Server]]:
    """Run one process, and so many workers, for the length of a block.

    Raises:
        ServerError: One of them does not start.
    """
    many = (f"--workers={count}", f"--name={NAME}")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        one = stack.enter_context(Relay("one", ("mqtt",)).running(scratch, None))
        two = stack.enter_context(Relay("many", ("mqtt",), options=many).running(scratch, None))
        yield {1: Server((one.pid,), None, one.port, (one.page,)), count: of_many(two, count)}


def client_at(server: Server, place: int, name: str, topic: str | None = None) -> socket.socket:
    """Connect a client until it is with one of the workers.

    Raises:
        ServerError: It was not let in.
    """
    for attempt in itertools.count():
        called = f"{name}-{attempt}"
        sock = client(server.port, called, topic)
        if server.place_of(called) == place % len(server.workers):
            return sock
        sock.close()
    raise AssertionError


def frames(group: int, topics: int, size: int) -> bytes:
    """Return a PUBLISH with QoS 0 for each topic of a group."""
    bodies = [utf8(f"group-{group}/{topic:04}") + bytes(size) for topic in range(topics)]
    return b"".join(bytes((0x30, len(body) & 127 | 128, len(body) >> 7)) + body for body in bodies)


def send(sock: socket.socket, packets: bytes, count: int) -> None:
    """Send packets so many times."""
    most = max(1, CHUNK // len(packets))
    many = packets * most
    for _ in range(count // most):
        sock.sendall(many)
    sock.sendall(packets * (count % most))


@attrs.define(eq=False)
class Group:
    """A publisher and its subscribers."""

    publisher: socket.socket
    readers: Sequence[socket.socket]
    packets: bytes
    """A packet for each topic, all of one length."""
    topics: int
    _next: int = 0
    _left: int = 0

    def send_next(self) -> None:
        """Send the next packet."""
        size = len(self.packets) // self.topics
        self.publisher.sendall(self.packets[self._next : self._next + size])
        self._next = (self._next + size) % len(self.packets)
        self._left = size * len(self.readers)

    def has_all(self, came: int) -> bool:
        """Take the number of bytes that have come; return whether all have the last packet."""
        self._left -= came
        return not self._left


def exchange(groups: Sequence[Group], count: int, *, pipelined: bool) -> None:
    """Send each group's packets so many times, and read them all at each reader.

    The kernel discards what has come, so that the generator takes little CPU.

    Raises:
        ServerError: They do not all come.
    """
    left = {group: count * len(group.packets) * len(group.readers) for group in groups}
    deadline = time.monotonic() + SECONDS
    room = bytearray(1 << 20)
    with selectors.DefaultSelector() as selector:
        for group in groups:
            for reader in group.readers:
                selector.register(reader, selectors.EVENT_READ, group)
            if pipelined:
                args = (group.publisher, group.packets, count)
                threading.Thread(target=send, args=args, daemon=True).start()
            else:
                group.send_next()
        while left:
            for key, _ in selector.select(1.0):
                group = key.data
                came = cast("socket.socket", key.fileobj).recv_into(room, 0, socket.MSG_TRUNC)
                if not came:
                    raise ServerError("a subscriber was disconnected")
                left[group] -= came
                if not left[group]:
                    del left[group]
                elif not pipelined and group.has_all(came):
                    group.send_next()
            if time.monotonic() > deadline:
                raise ServerError(f"after {SECONDS:g} s {len(left)} groups lack messages")


@attrs.frozen
class Pass:
    """One measurement."""

    deliveries: int
    seconds: float
    workers: tuple[float, ...]
    """CPU seconds of each worker."""
    nats: float
    """CPU seconds of NATS."""
    generator: float
    """CPU seconds of this process."""

    @property
    def rate(self) -> float:
        """Deliveries a second."""
        return self.deliveries / self.seconds

    @property
    def capacity(self) -> float:
        """Deliveries for each CPU second of the busiest worker."""
        return self.deliveries / max(self.workers)


@attrs.frozen
class Load:
    """The traffic."""

    groups: int
    pipelined: bool
    subscribers: int
    """Subscribers of each group."""
    topics: int
    size: int
    deliveries: int
    """Deliveries of one measurement, about."""


def measure(server: Server, way: Way, load: Load) -> Pass:
    """Measure one way.

    Raises:
        ServerError: Messages are missing.
    """
    groups: list[Group] = []
    with contextlib.ExitStack() as stack:
        for number in range(load.groups):
            readers = [
                stack.enter_context(
                    client_at(
                        server,
                        number if way == "stay" else number + each,
                        f"reader-{number}-{each}",
                        f"group-{number}/#",
                    )
                )
                for each in range(load.subscribers)
            ]
            publisher = stack.enter_context(client_at(server, number, f"publisher-{number}"))
            groups.append(
                Group(publisher, readers, frames(number, load.topics, load.size), load.topics)
            )
        time.sleep(FILTERS)
        count = load.deliveries // (load.groups * load.subscribers * load.topics)
        exchange(groups, max(1, int(count * WARM)), pipelined=load.pipelined)
        before, began = server.cpu(), time.perf_counter()
        exchange(groups, count, pipelined=load.pipelined)
        seconds = time.perf_counter() - began
        *workers, nats, own = (after - b for after, b in zip(server.cpu(), before, strict=True))
    time.sleep(FILTERS)
    deliveries = count * load.groups * load.subscribers * load.topics
    return Pass(deliveries, seconds, tuple(workers), nats, own)


def row(way: Way, count: int, passes: Sequence[Pass]) -> str:
    """Return the row of a table."""
    relays = " + ".join(
        f"{median(p.workers[n] / p.seconds for p in passes):.2f}" for n in range(count)
    )
    others = (
        median(p.nats / p.seconds for p in passes),
        median(p.generator / p.seconds for p in passes),
    )
    return (
        f"| {way} | {count} | {spread([p.rate / 1e6 for p in passes])} | {relays} "
        f"| {others[0]:.2f} | {others[1]:.2f} | {spread([p.capacity / 1e6 for p in passes])} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="workers (2)")
    parser.add_argument("--publishers", type=int, help="a worker (pipelined 1, else 8)")
    parser.add_argument("--pipelined", action="store_true", help="publishers do not wait")
    parser.add_argument("--subscribers", type=int, default=20, help="of each publisher (20)")
    parser.add_argument("--topics", type=int, default=16, help="topics, in turns (16)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a payload (200)")
    parser.add_argument(
        "--deliveries", type=int, help="a measurement (pipelined 16000000, else 400000)"
    )
    parser.add_argument("--passes", type=int, default=3, help="measurements of each, in turns (3)")
    parser.add_argument("--check", action="store_true", help="exit status 1 if the goal is missed")
    given = parser.parse_args(arguments)
    deliveries = given.deliveries or (16_000_000 if given.pipelined else 400_000)
    groups = given.workers * (given.publishers or (1 if given.pipelined else 8))
    load = Load(groups, given.pipelined, given.subscribers, given.topics, given.size, deliveries)
    print(
        "| subscribers | processes | M deliveries/s | cores: relay | NATS | generator "
        "| M deliveries per CPU second of the busiest process |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    fails = False
    with set_up(given.workers) as servers:
        for way in WAYS:
            found: dict[int, list[Pass]] = {count: [] for count in servers}
            for _ in range(given.passes):
                for count, server in servers.items():
                    found[count].append(measure(server, way, load))
            for count, passes in found.items():
                print(row(way, count, passes), flush=True)
            pairs = list(zip(found[1], found[given.workers], strict=True))
            rates = [many.rate / one.rate for one, many in pairs]
            capacities = [many.capacity / one.capacity for one, many in pairs]
            holds = median(capacities) >= GOAL
            fails |= not holds
            print(
                f"{'holds' if holds else 'FAILS'}: {way}: {spread(capacities)} times the capacity "
                f"of one process, at least {GOAL:g}; {spread(rates)} times the deliveries a "
                "second, with the generator on the same cores",
                flush=True,
            )
    return int(fails and given.check)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(f"workers: {error}")
