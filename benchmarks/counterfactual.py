"""The cost of a delivery with loans, and without any accounts.

One publisher and N consumers are tasks of one process. The publisher looks up the consumers of a
message, passes it to them, and goes on when all have handled it. A consumer waits for messages, and
takes all there are. Only the queue in between differs:

    loans     a `Dataspace`: a turn for each message, a `Mailbox` for each consumer, who settles
    queues    a plain deque for each consumer, and a parking lot to wait at; nothing bounds it
    channels  a memory channel of Trio's for each consumer, with room for a burst
    runs      as `loans`, but a burst is one run, as the relay has the messages of one read
    lists     as `queues`, but a burst is one entry: the same without accounts

All of them look up consumers in the routes of the same dataspace. A consumer only counts messages.

    python benchmarks/counterfactual.py
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

import attrs
import trio
import trio.testing

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import middle, table
from clearfunds.accounts import Ledger, LoanQueue, Outcome
from clearfunds.dataspace import Batch, Dataspace, Mailbox, Publication, TopicFilter

TOPIC: Final = "counted/here"
PAYLOAD: Final = bytes(200)
NBYTES: Final = len(TOPIC) + len(PAYLOAD)
CONSUMERS: Final = (1, 9, 100)
BURSTS: Final = (1, 50)
"""Messages that are published before the consumers have their turn."""
SAMPLE_SECONDS: Final = 0.1


class Idle(LoanQueue):
    """A holder that `Routes` finds, and that never gets anything."""

    __slots__ = ()

    kind = "idle"

    def ready(self) -> None:
        """Do nothing."""

    def give_up(self, why: str) -> None:
        """Do nothing."""


class Counter:
    """How many deliveries have been dealt with."""

    def __init__(self) -> None:
        self.count = 0

    async def until(self, count: int) -> None:
        """Wait until the count is reached."""
        while self.count < count:
            await trio.lowlevel.checkpoint()


Publish = Callable[[int], Awaitable[None]]
"""Publishes a burst of that many messages."""
Way = Callable[[int, Counter, trio.Nursery], Awaitable[Publish]]
"""Sets up that many consumers."""


# -- with loans ---------------------------------------------------------------------------------


async def loans(consumers: int, counter: Counter, nursery: trio.Nursery) -> Publish:
    """Set up a dataspace with mailboxes; messages are published one by one."""
    dataspace, account, _ = _mailboxes(consumers, counter, nursery)
    publication = Publication(TOPIC, PAYLOAD)

    async def publish(burst: int) -> None:
        await account.ensure_clear_funds()
        for _ in range(burst):
            with account.turn(items=1, nbytes=NBYTES) as turn:
                turn.publish(dataspace, publication, nbytes=NBYTES)

    return publish


async def runs(consumers: int, counter: Counter, nursery: trio.Nursery) -> Publish:
    """Set up the same; a burst is one run."""
    dataspace, account, mailboxes = _mailboxes(consumers, counter, nursery, runs=True)
    raw: dict[int, bytes] = {}

    async def publish(burst: int) -> None:
        await account.ensure_clear_funds()
        whole = raw.setdefault(burst, bytes(burst * NBYTES))
        batch = Batch(whole, burst, _no_events, TOPIC)
        destinations = dataspace.routes.of(TOPIC).run
        assert destinations is not None
        dataspace.route_run(account, batch, destinations.holders)
        for mailbox in mailboxes:
            mailbox.ready()

    return publish


def _no_events(_: bytes) -> Sequence[Publication]:
    return ()


def _mailboxes(
    consumers: int, counter: Counter, nursery: trio.Nursery, *, runs: bool = False
) -> tuple[Dataspace, Any, list[Any]]:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    account = ledger.open("publisher")
    made = [
        RunBox(ledger, f"consumer-{n}") if runs else Mailbox(ledger, f"consumer-{n}")
        for n in range(consumers)
    ]
    with account.turn() as turn:
        for holder in made:
            dataspace.observe(turn, TopicFilter(TOPIC), holder)

    async def consume(mailbox: Mailbox) -> None:
        while True:
            loan = await mailbox.receive()
            with loan as events:
                for _ in events:
                    counter.count += 1

    for holder in made:
        if isinstance(holder, RunBox):
            nursery.start_soon(holder.consume, counter)
        else:
            nursery.start_soon(consume, holder)
    return dataspace, account, made


class RunBox(LoanQueue):
    """A holder of runs that does not take them to pieces, as the relay's outlet."""

    __slots__ = ("_lot",)

    kind = "box"

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger, name)
        self._lot = trio.lowlevel.ParkingLot()

    def ready(self) -> None:
        """Wake who takes it."""
        if self._lot and self.queue:
            self._lot.unpark()

    def give_up(self, why: str) -> None:
        """Write off what it held."""
        self.settle_all(Outcome.WRITTEN_OFF)

    async def consume(self, counter: Counter) -> None:
        """Take all there is, and settle it, for ever."""
        while True:
            await trio.lowlevel.checkpoint()
            while not self.queue:
                await self._lot.park()
            while self.queue:
                loan = self.queue.popleft()
                for run in loan.item:
                    counter.count += run.count
                loan.settle()


# -- without ------------------------------------------------------------------------------------


def _routed(consumers: int) -> tuple[Dataspace, dict[Any, int]]:
    """Return a dataspace that knows the consumers of the topic, and a number for each of them."""
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    made = {Idle(ledger, f"consumer-{number}"): number for number in range(consumers)}
    with ledger.open("publisher").turn() as turn:
        for holder in made:
            dataspace.observe(turn, TopicFilter(TOPIC), holder)
    return dataspace, made


@attrs.define(slots=True)
class Plain:
    """A queue without accounts."""

    queue: deque[Any] = attrs.field(factory=deque[Any])
    lot: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)


async def queues(
    consumers: int, counter: Counter, nursery: trio.Nursery, *, as_runs: bool = False
) -> Publish:
    """Set up plain queues."""
    dataspace, made = _routed(consumers)
    plain = {holder: Plain() for holder in made}
    publication = Publication(TOPIC, PAYLOAD)
    raw: dict[int, bytes] = {}

    async def consume(mine: Plain) -> None:
        queue = mine.queue
        while True:
            await trio.lowlevel.checkpoint()
            while not queue:
                await mine.lot.park()
            while queue:
                entry = queue.popleft()
                counter.count += entry.count if as_runs else 1

    for each in plain.values():
        nursery.start_soon(consume, each)

    async def publish(burst: int) -> None:
        if as_runs:
            whole = raw.setdefault(burst, bytes(burst * NBYTES))
            entries: Sequence[Any] = (Batch(whole, burst, _no_events, TOPIC),)
        else:
            entries = (publication,) * burst
        for entry in entries:
            for holder in dataspace.routes.of(TOPIC).plain.holders:
                one = plain[holder]
                one.queue.append(entry)
                if one.lot:
                    one.lot.unpark()

    return publish


async def channels(consumers: int, counter: Counter, nursery: trio.Nursery) -> Publish:
    """Set up memory channels."""
    dataspace, made = _routed(consumers)
    ends = {holder: trio.open_memory_channel[Publication](max(BURSTS)) for holder in made}
    publication = Publication(TOPIC, PAYLOAD)

    async def consume(channel: trio.MemoryReceiveChannel[Publication]) -> None:
        while True:
            await channel.receive()
            counter.count += 1
            try:
                while True:
                    channel.receive_nowait()
                    counter.count += 1
            except trio.WouldBlock:
                pass

    for _, receive in ends.values():
        nursery.start_soon(consume, receive)

    async def publish(burst: int) -> None:
        for _ in range(burst):
            for holder in dataspace.routes.of(TOPIC).plain.holders:
                send = ends[holder][0]
                try:
                    send.send_nowait(publication)
                except trio.WouldBlock:
                    await send.send(publication)

    return publish


WAYS: Final[dict[str, Way]] = {
    "loans": loans,
    "queues": queues,
    "channels": channels,
    "runs": runs,
    "lists": partial(queues, as_runs=True),
}
WHOLE: Final = ("runs", "lists")
"""The ways that take a burst as one entry: with bursts of one message they are nothing new."""


# -- measuring ----------------------------------------------------------------------------------


@attrs.frozen
class Cost:
    """The cost of deliveries in one way."""

    way: str
    consumers: int
    burst: int
    samples: tuple[float, ...]
    """CPU seconds per million deliveries."""

    @property
    def median(self) -> float:
        """The median of the samples."""
        return median(self.samples)


async def measure(
    way: str, consumers: int, burst: int, *, repeats: int, seconds: float = SAMPLE_SECONDS
) -> Cost:
    """Measure one way; each sample takes at least that many seconds."""
    counter = Counter()
    samples: list[float] = []
    async with trio.open_nursery() as nursery:
        publish = await WAYS[way](consumers, counter, nursery)
        await trio.testing.wait_all_tasks_blocked()

        async def bursts(count: int) -> float:
            before = process_time()
            for _ in range(count):
                due = counter.count + burst * consumers
                await publish(burst)
                await counter.until(due)
            return process_time() - before

        count, spent = 1, 0.0
        while spent < seconds / 2:
            count *= 2
            spent = await bursts(count)
        count = max(1, round(count * seconds / spent))
        for _ in range(repeats):
            samples.append(await bursts(count) * 1e6 / (count * burst * consumers))
        nursery.cancel_scope.cancel()
    return Cost(way, consumers, burst, tuple(samples))


async def measure_all(repeats: int, seconds: float = SAMPLE_SECONDS) -> list[Cost]:
    """Measure all ways."""
    return [
        await measure(way, consumers, burst, repeats=repeats, seconds=seconds)
        for burst in BURSTS
        for consumers in CONSUMERS
        for way in WAYS
        if burst > 1 or way not in WHOLE
    ]


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="samples of each (5)")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats: at least 1")
    found = trio.run(measure_all, options.repeats)
    print("CPU seconds per million deliveries\n")
    rows = [
        [each.way, str(each.burst), str(each.consumers), middle(each.samples, ".3f")]
        for each in found
    ]
    print(table(["way", "burst", "consumers", "CPU s per M"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
