"""A subscriber of another relay stops reading: whom it holds up, and how soon it is named.

Two relays are a cluster. On relay r1, `newsroom` publishes 10 kB messages to `archive` on r2, which
stops reading for good. Four other publishers on r1 send 200 bytes at a steady rate, each to a
subscriber on r2 and to one on r1. Before and after `archive` stops: the rate and the latency of
these. All clients are in one process, which shares the machine with the servers.

    python benchmarks/cluster_stuck.py               # with every profile: two minutes
    python benchmarks/cluster_stuck.py --profiles lossless --seconds 5 --passes 1
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.request import urlopen

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cluster import Setup, client, set_up
from benchmarks.idle import resident_kib, utf8
from benchmarks.servers import ServerError

OTHERS: Final = 4
RATE: Final = 250.0
"""Messages a second of each of the others."""
STUCK_RATE: Final = 400.0
STUCK_BYTES: Final = 10_000
POLL: Final = 0.1
"""Seconds between two looks at the page of relay r1."""
PROFILES: Final = ("balanced", "lossless", "live")
_STAMP: Final = struct.Struct(">d")


@attrs.define
class Phase:
    """What the subscribers of the others got in some seconds."""

    received: int = 0
    latencies: list[float] = attrs.field(factory=list[float])

    def add(self, latency: float) -> None:
        """Note one message."""
        self.received += 1
        self.latencies.append(latency)

    def quantile(self, share: float) -> float:
        """Return a latency in milliseconds."""
        ordered = sorted(self.latencies)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@attrs.frozen
class Result:
    """One run."""

    before: Phase
    after: Phase
    named: float | None
    """Seconds from when the publisher began to wait until the page of its relay named the
    subscriber; None: nobody waited, or it was not named."""
    memory: int
    """KiB that both relays have grown by."""


def packet(topic: str, payload: bytes) -> bytes:
    """Return a PUBLISH with QoS 0."""
    body = utf8(topic) + payload
    length = len(body)
    head = bytearray((0x30,))
    while True:
        length, digit = divmod(length, 128)
        head.append(digit | (128 if length else 0))
        if not length:
            return bytes(head) + body


class Load:
    """Publishers that send at a rate, and subscribers that note latencies."""

    def __init__(self, setup: Setup) -> None:
        one, two = (relay.port for relay in setup.relays)
        self.phase = Phase()
        self._ends = threading.Event()
        self.archive = client(two, "archive", "stuck/a")
        self._readers: dict[socket.socket, bytearray] = {}
        senders: list[tuple[socket.socket, str, float, int]] = []
        for number in range(OTHERS):
            topic = f"other/{number}"
            for place, port in (("far", two), ("near", one)):
                self._readers[client(port, f"{place}-{number}", topic)] = bytearray()
            senders.append((client(one, f"other-{number}"), topic, RATE, 200))
        senders.append((client(one, "newsroom"), "stuck/a", STUCK_RATE, STUCK_BYTES))
        time.sleep(0.5)  # so that the other relay has heard of the subscriptions
        self._reads_archive = True
        self._threads = [
            *(threading.Thread(target=self._send, args=each, daemon=True) for each in senders),
            threading.Thread(target=self._read, daemon=True),
        ]
        self._sockets = [self.archive, *self._readers, *(each[0] for each in senders)]
        for thread in self._threads:
            thread.start()

    def _send(self, sock: socket.socket, topic: str, rate: float, size: int) -> None:
        began = time.monotonic()
        sent = 0
        while not self._ends.is_set():
            due = int((time.monotonic() - began) * rate) - sent
            # One that was held up does not catch up: it goes on at its rate.
            if due > rate / 10:
                began, sent, due = time.monotonic(), 0, 1
            for _ in range(due):
                stamp = _STAMP.pack(time.monotonic())
                try:
                    sock.sendall(packet(topic, stamp + bytes(size - len(stamp))))
                except OSError:
                    return
            sent += due
            time.sleep(0.002)

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for reader in (*self._readers, self.archive):
                selector.register(reader, selectors.EVENT_READ)
            while not self._ends.is_set():
                if not self._reads_archive and self.archive in selector.get_map():
                    selector.unregister(self.archive)
                for key, _ in selector.select(0.1):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    try:
                        data = ready.recv(1 << 18)
                    except OSError:
                        return
                    if ready is not self.archive:
                        self._take(self._readers[ready], data)

    def _take(self, buffer: bytearray, data: bytes) -> None:
        buffer += data
        now = time.monotonic()
        while len(buffer) >= 3:
            # All are 200 bytes and a topic long: two bytes of length.
            size = 3 + (buffer[1] & 127) + (buffer[2] << 7)
            if len(buffer) < size:
                return
            (stamp,) = _STAMP.unpack_from(buffer, 5 + len("other/0"))
            self.phase.add(now - stamp)
            del buffer[:size]

    def stop_reading(self) -> None:
        """Let the archive read nothing more."""
        self._reads_archive = False

    def close(self) -> None:
        """End all clients."""
        self._ends.set()
        for sock in self._sockets:
            sock.close()
        for thread in self._threads:
            thread.join(5)


def blame(page: str) -> tuple[bool, bool]:
    """Return whether `newsroom` waits, and whether the page says that it waits for `archive`."""
    with urlopen(f"{page}/ledger.json?top=10", timeout=2) as answer:
        view: Any = json.load(answer)
    waits = [wait for wait in view["waits"] if any("newsroom" in each for each in wait["waiting"])]
    named = any(
        each["name"].startswith("r2/") and "archive" in each["name"]
        for wait in waits
        for each in wait["on"]
    )
    return bool(waits), named


def measure(profile: str, seconds: float) -> Result:
    """Run it once.

    Raises:
        ServerError: A server does not start, or a client is not let in.
    """
    with set_up(f"--profile={profile}") as setup:
        load = Load(setup)
        try:
            time.sleep(2)
            load.phase = before = Phase()
            memory = sum(resident_kib(relay.pid) for relay in setup.relays)
            page = setup.relays[0].page
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                blame(page)  # so that both phases have this load
                time.sleep(POLL)
            load.stop_reading()
            load.phase = after = Phase()
            ends = time.monotonic() + 2 * seconds
            waits_since = named = None
            while time.monotonic() < ends:
                waits, is_named = blame(page)
                now = time.monotonic()
                if waits and waits_since is None:
                    waits_since = now
                if is_named and named is None and waits_since is not None:
                    named = now - waits_since
                time.sleep(POLL)
            memory = sum(resident_kib(relay.pid) for relay in setup.relays) - memory
        finally:
            load.close()
    return Result(before, after, named, memory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--profiles", default=",".join(PROFILES), help=f"profiles ({','.join(PROFILES)})"
    )
    parser.add_argument("--seconds", type=float, default=8, help="seconds before it stops (8)")
    parser.add_argument("--passes", type=int, default=3, help="runs of each profile (3)")
    given = parser.parse_args(arguments)
    print(
        "| profile | others: rate, after to before | p99 before, ms | after, ms | after to before "
        "| named after | memory of both relays |\n| - | - | - | - | - | - | - |"
    )
    for profile in given.profiles.split(","):
        runs = [measure(profile, given.seconds) for _ in range(given.passes)]
        rates = [run.after.received / run.before.received / 2 for run in runs]
        before, after = ([each.quantile(0.99) for each in phases] for phases in (
            [run.before for run in runs], [run.after for run in runs],
        ))  # fmt: skip
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        named = [run.named for run in runs if run.named is not None]
        print(
            f"| {profile} | {median(rates):.2f} | {median(before):.1f} | {median(after):.1f} | "
            f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | "
            f"{f'{max(named):.1f} s' if named else 'nobody waits'} | "
            f"+{max(run.memory for run in runs) / 1024:.0f} MB |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(f"cluster_stuck: {error}")
