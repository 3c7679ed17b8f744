"""What the tests of shelves share: queues on a real store, and who publishes to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit
from clearfunds.dataspace import Publication
from clearfunds.dataspace.queues import (
    Channel,
    Consumer,
    Delivery,
    PrefetchWindow,
    Queue,
    QueueSettings,
)
from clearfunds.persistence import RamShelves, Shelves, open_ram_shelves, open_shelves
from clearfunds.store import StoreSettings
from clearfunds.transports._flusher import open_flusher
from tests.transports.peers import SECONDS

SOON = StoreSettings(fsync_interval=0.0, retry_interval=0.02)


class Heard:
    """A confirm that remembers what it was told."""

    def __init__(self) -> None:
        self.expected = 0
        self.taken_by = 0

    def expect(self) -> None:
        self.expected += 1

    def taken(self) -> None:
        self.taken_by += 1

    def refused(self, reason: str) -> None:
        raise AssertionError(reason)

    @property
    def done(self) -> bool:
        return self.taken_by == self.expected


@attrs.define(eq=False)
class Process:
    """Books, and queues whose messages are on shelves."""

    shelves: Shelves | RamShelves
    ledger: Ledger
    disk: Account
    publisher: Account
    queues: dict[str, Queue] = attrs.field(factory=dict[str, Queue])

    def queue(self, name: str = "q", *, budget: Limit = NO_LIMIT) -> Queue:
        shelf = self.shelves.shelf(name)
        queue = self.queues[name] = Queue(
            self.ledger,
            name,
            account=self.ledger.open(f"disk/{name}", limit=budget, parent=self.disk),
            settings=QueueSettings(durable=True),
            shelf=shelf,
        )
        shelf.recover(queue)
        return queue

    def erase(self, queue: Queue) -> None:
        queue.delete()
        shelf: Any = queue.shelf
        self.shelves.drop(shelf)
        del self.queues[queue.name]

    def publish(self, payload: bytes, *queues: Queue, qos: int = 1) -> Heard:
        heard = Heard()
        event = Publication("topic", payload, qos)
        with self.publisher.turn(event, confirm=heard) as turn:
            for queue in queues or self.queues.values():
                turn.send(queue, event)
        return heard

    def audit(self) -> None:
        self.ledger.audit()

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()
            queue.account.close()


@asynccontextmanager
async def on_disk(
    directory: Path,
    settings: StoreSettings = SOON,
    vfs: str | None = None,
) -> AsyncGenerator[Process]:
    """Let there be a process; at the end of the block it ends in an orderly way."""
    async with (
        open_flusher() as flusher,
        open_shelves(directory, settings, flusher, vfs=vfs) as shelves,
    ):
        process = _process(shelves)
        yield process
        process.audit()
        process.close()


@asynccontextmanager
async def in_ram() -> AsyncGenerator[Process]:
    """Let there be a process without a disk."""
    async with open_flusher() as flusher, open_ram_shelves(flusher) as shelves:
        process = _process(shelves)
        yield process
        process.audit()
        process.close()


def _process(shelves: Shelves | RamShelves) -> Process:
    ledger = Ledger()
    return Process(
        shelves,
        ledger,
        ledger.open("disk", limit=NO_LIMIT),
        ledger.open("publisher", limit=NO_LIMIT),
    )


class Taker:
    """A consumer that keeps what it gets."""

    def __init__(self, queue: Queue, prefetch: int = 0) -> None:
        self.channel = Channel()
        self.got: list[Delivery] = []
        self.payloads: list[bytes] = []
        self.consumer: Consumer = queue.consume(
            self._take, channel=self.channel, window=PrefetchWindow(prefetch)
        )

    def _take(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        self.payloads.append(delivery.event.payload)

    async def take(self, count: int) -> list[bytes]:
        """Wait until so many have come, one by one acknowledged."""
        with trio.fail_after(SECONDS):
            while len(self.payloads) < count or self.got:
                got, self.got = self.got, []
                for delivery in got:
                    delivery.ack()
                await trio.sleep(0.001)
        return self.payloads


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]
