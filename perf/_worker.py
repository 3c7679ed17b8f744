"""One process of the generator: its share of the clients, run over standard input and output.

`main` reads a line of JSON with the scenario and its share, connects the clients and writes
`ready`; a line with the beginning of the run starts it; `stop` ends it. It reports each second, and
at the end. Then it gets the list of partly sent messages of all processes, and writes the result of
each client.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import attrs
import trio

from ._client import Client, clock_of, keep_alive
from ._errors import PerfError
from ._latency import Latencies
from ._profile import Profile, Step
from ._publisher import Pacemaker, Publisher, PublisherLatencies
from ._scenario import Scenario, Stall
from ._sizes import Sizes
from ._subscriber import Subscriber
from ._tls import tls_of

INTERVAL: Final = 1.0
"""Seconds between reports."""

PROGRESS_SECONDS: Final = 0.1
"""Seconds between progress reports after the end of publishing: they show when the run is over."""

OPENING: Final = 64
"""Connections that are opened at a time."""

LINE_BYTES: Final = 16 << 20


def to_json(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario for JSON."""
    return attrs.asdict(scenario)


def from_json(told: dict[str, Any]) -> Scenario:
    """Return the scenario of a result of `to_json`."""
    size, rate = told["size"], told["rate"]
    made = dict(told)
    made["size"] = Sizes(tuple(size["choices"]), size["most"])
    if rate is not None:
        steps = (Step(each["first"], each["last"], each["seconds"]) for each in rate["steps"])
        made["rate"] = Profile(tuple(steps))
    made["slow_stalls"] = tuple(Stall(**each) for each in told["slow_stalls"])
    return Scenario(**made)


class Worker:
    """The clients of one process.

    Raises:
        PerfError: A file of the scenario cannot be used.
    """

    def __init__(self, task: dict[str, Any], say: Callable[[dict[str, Any]], object]) -> None:
        self.scenario = from_json(task["scenario"])
        prefix = task["prefix"]
        tls = tls_of(self.scenario)
        self._of_publishers = PublisherLatencies()
        self.publishers = [
            Publisher(self.scenario, n, prefix, self._of_publishers, tls)
            for n in task["publishers"]
        ]
        self.subscribers = [Subscriber(self.scenario, n, prefix, tls) for n in task["subscribers"]]
        # The number of subscribers of each of their topics.
        self._takers: list[list[int]] = task["takers"]
        self._say = say
        self._now_ns = clock_of(self.scenario)
        self._epoch_ns = 0
        self._at_end = 0.0
        self._cpu = time.process_time()
        self._looked = time.monotonic()

    @property
    def clients(self) -> list[Client]:
        """All clients."""
        return [*self.subscribers, *self.publishers]

    def clock(self) -> float:
        """Return seconds from the beginning of the run."""
        return (self._now_ns() - self._epoch_ns) / 1e9

    async def open(self) -> None:
        """Connect all clients, subscribers first.

        Raises:
            PerfError: A client could not be connected.
        """
        limiter = trio.CapacityLimiter(OPENING)
        wrong: list[PerfError] = []

        async def open_one(client: Client, nursery: trio.Nursery) -> None:
            async with limiter:
                try:
                    await client.open()
                except PerfError as error:
                    wrong.append(error)
                    nursery.cancel_scope.cancel()

        for some in (self.subscribers, self.publishers):
            async with trio.open_nursery() as nursery:
                for client in some:
                    nursery.start_soon(open_one, client, nursery)
            if wrong:
                raise wrong[0]

    async def run(self, epoch_ns: int, stop: trio.Event) -> None:
        """Publish and subscribe until told to stop; report the partly sent messages."""
        self._epoch_ns = epoch_ns
        for subscriber in self.subscribers:
            subscriber.begin(epoch_ns)
        pacemaker = Pacemaker(self.publishers, self.clock, self.scenario.seconds, epoch_ns)
        async with trio.open_nursery() as nursery:
            for client in self.clients:
                nursery.start_soon(client.run, self.clock)
            nursery.start_soon(keep_alive, self.clients)
            nursery.start_soon(self._report)
            await trio.sleep(max(-self.clock(), 0.0))
            nursery.start_soon(pacemaker.run)
            await stop.wait()
            nursery.cancel_scope.cancel()
        self._at_end = self.clock()
        for publisher in self.publishers:
            publisher.go_on(self._at_end)  # A stall that has not ended counts, too.
        self._say({**self.sample(), "last": True})
        doubtful = [(p.number, *each) for p in self.publishers for each in p.uncertain()]
        self._say({"doubtful": doubtful})

    async def _report(self) -> None:
        while True:
            whole = max(math.floor(self.clock() / INTERVAL + 0.5), 0) + 1
            while (left := whole * INTERVAL - self.clock()) > 0:
                if self.clock() < self.scenario.seconds - PROGRESS_SECONDS:
                    await trio.sleep(left)
                else:
                    await trio.sleep(min(left, PROGRESS_SECONDS))
                    self._say({"progress": self.progress()})
            self._say({**self.sample(), "second": whole})

    def progress(self) -> dict[str, Any]:
        """Return the figures that show whether the run is over."""
        return {
            "at": self.clock(),
            "received": sum(s.received for s in self.subscribers),
            "owed": self._owed([p.sent for p in self.publishers]),
            # These may have been sent, and may come, or not.
            "doubtful": sum(bool(p.half_sent) for p in self.publishers),
            "pending": sum(self._pending(p) for p in self.publishers),
        }

    def _pending(self, publisher: Publisher) -> int:
        """Return its messages that the server does not have; of those still to be sent, one."""
        if publisher.connected:
            known = publisher.unsent + publisher.unconfirmed
        elif self.scenario.reconnect is not None:
            known = 0
        else:
            return 0
        return known + publisher.is_due(self.clock(), self.scenario.seconds)

    def _owed(self, sent: list[list[int]]) -> int:
        """Return the messages that subscribers should get of sent ones, by publisher and topic."""
        return sum(
            count * takers
            for of_publisher, each in zip(sent, self._takers, strict=True)
            for count, takers in zip(of_publisher, each, strict=True)
        )

    def sample(self) -> dict[str, Any]:
        """Return the report for now; latencies since the last report."""
        interval = Latencies()
        for subscriber in self.subscribers:
            interval.add(subscriber.fresh)
            subscriber.latencies.add(subscriber.fresh)
            subscriber.fresh.clear()
        now, cpu = time.monotonic(), time.process_time()
        busy = (cpu - self._cpu) / max(now - self._looked, 1e-9)
        self._cpu, self._looked = cpu, now
        at = self.clock()
        return {
            **self.progress(),
            "published": sum(sum(p.sent) for p in self.publishers),
            "confirmed": sum(p.confirmed for p in self.publishers),
            "received_bytes": sum(s.received_bytes for s in self.subscribers),
            "stalled": sum(p.stalled_until(at) for p in self.publishers),
            "connected": sum(client.connected for client in self.clients),
            "busy": busy,
            "latencies": interval.tell() if len(interval) else None,
        }

    def result(self, doubtful: list[tuple[int, int, int, int]]) -> dict[str, Any]:
        """Return the results of all clients.

        Args:
            doubtful: The partly sent messages of all processes.
        """
        measured = self._of_publishers
        at = self._at_end
        return {
            "publishers": [
                {
                    "number": p.number,
                    "sent": p.sent,
                    "uncertain": sum(end - first for _, first, end in p.uncertain()),
                    "refused": p.refused,
                    "refusals": p.refusals,
                    "window": p.window,
                    "confirmed": p.confirmed,
                    "unconfirmed": p.unconfirmed,
                    "stalled": p.stalled_while_publishing(at),
                    "sent_at": p.sent_at,
                    **_losses(p),
                }
                for p in self.publishers
            ],
            "subscribers": [
                {
                    "number": s.number,
                    "received": s.received,
                    "received_bytes": s.received_bytes,
                    "uncertain": s.received_of(doubtful),
                    "again": s.again,
                    "foreign": s.foreign,
                    "most_unacknowledged": s.most_unacknowledged,
                    "held_back": s.held_back,
                    "longest_gap": s.longest_gap,
                    "last": s.came_at,
                    "latencies": s.latencies.tell(),
                    **_losses(s),
                }
                for s in self.subscribers
            ],
            "at": at,
            "late": measured.late.tell(),
            "stalls": measured.stalls.tell(),
            "confirms": measured.confirms.tell(),
        }


def _losses(client: Client) -> dict[str, Any]:
    return {"losses": client.losses, "lost": [attrs.asdict(loss) for loss in client.lost]}


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def _main() -> int:
    lines = trio.wrap_file(sys.stdin)
    task = json.loads(await lines.readline())
    try:
        worker = Worker(task, _say)
        await worker.open()
    except PerfError as error:
        _say({"failed": str(error)})
        return 1
    _say({"ready": True})
    told = await lines.readline()
    if not told:
        return 0
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run, json.loads(told)["begin"], stop)
        await lines.readline()  # `stop`, or the end of the parent process.
        stop.set()
    told = await lines.readline()
    if told:
        _say({"end": worker.result(json.loads(told)["doubtful"])})
    return 0


def main() -> int:
    """Serve the parent process; return the exit status."""
    return trio.run(_main)
