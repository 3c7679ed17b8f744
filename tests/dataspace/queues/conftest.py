"""What the tests of queues share: a process in small, with a clock and a disk that do as told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit, Outcome
from clearfunds.dataspace import Dataspace, Publication, TopicFilter
from clearfunds.dataspace.queues import (
    Channel,
    Consumer,
    Delivery,
    MemoryShelf,
    PrefetchWindow,
    Queue,
    QueueSettings,
)
from tests.accounts.conftest import Recording

WALL = 1.7e9
"""What the wall clock says when the ledger's says 0."""


class Heard:
    """A confirm that remembers what it was told."""

    def __init__(self) -> None:
        self.expected = 0
        self.answers: list[str] = []

    def expect(self) -> None:
        self.expected += 1

    def taken(self) -> None:
        self.answers.append("taken")

    def refused(self, reason: str) -> None:
        self.answers.append(reason)


class Bench:
    """One process: its books, a dataspace, a publisher, and queues."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.ledger.recorder = self.recording = Recording()
        self.dataspace = Dataspace(self.ledger)
        self.publisher = self.ledger.open("publisher", limit=NO_LIMIT)
        self.disk = self.ledger.open("disk", limit=NO_LIMIT)
        self.queues: list[Queue] = []

    def queue(
        self,
        name: str = "queue",
        *,
        topic: str | None = "#",
        shelf: MemoryShelf | None = None,
        budget: Limit = NO_LIMIT,
        dead_letter: Any = None,
        on_deleted: Callable[[Queue], object] | None = None,
        **settings: Any,
    ) -> Queue:
        """Make a queue, bound to a topic filter."""
        account = self.ledger.open(f"disk/{name}", limit=budget, parent=self.disk)
        queue = Queue(
            self.ledger,
            name,
            account=account,
            settings=QueueSettings(**settings),
            shelf=shelf,
            dead_letter=dead_letter,
            wall=lambda: WALL + self.now,
            on_deleted=on_deleted,
        )
        self.queues.append(queue)
        if shelf is not None:
            shelf.recover(queue)
        if topic is not None:
            with self.publisher.turn() as turn:
                queue.bind(turn, self.dataspace, TopicFilter(topic))
        return queue

    def durable(self, name: str = "queue", **more: Any) -> tuple[Queue, MemoryShelf]:
        """Make a durable queue, and its shelf."""
        shelf = MemoryShelf()
        return self.queue(name, shelf=shelf, durable=True, **more), shelf

    def publish(
        self, *names: str, qos: int = 1, topic: str = "t", account: Account | None = None
    ) -> Heard:
        """Publish messages in one turn; return what its confirm hears."""
        heard = Heard()
        account = self.publisher if account is None else account
        with account.turn(b"", confirm=heard) as turn:
            for name in names:
                turn.publish(self.dataspace, Publication(topic, name.encode(), qos=qos))
        self.ledger.audit()
        return heard

    def wait(self, seconds: float) -> None:
        """Let time pass, for all queues."""
        self.now += seconds
        for queue in self.queues:
            queue.tick(self.now)
        self.ledger.audit()

    def repaid(self, outcome: Outcome) -> int:
        """Return how many items were repaid with an outcome, those of turns apart."""
        return self.ledger.repaid_items[outcome]


class Worker:
    """A consumer that keeps what it gets."""

    def __init__(
        self,
        queue: Queue,
        items: int = 0,
        nbytes: int = 0,
        *,
        channel: Channel | None = None,
        window: PrefetchWindow | None = None,
        **more: Any,
    ) -> None:
        self.got: list[Delivery] = []
        self.ends: list[str] = []
        self.channel = Channel("worker") if channel is None else channel
        self.window = PrefetchWindow(items, nbytes) if window is None else window
        self.consumer: Consumer = queue.consume(
            self.got.append,
            window=self.window,
            channel=self.channel,
            on_cancelled=self.ends.append,
            **more,
        )

    @property
    def names(self) -> list[str]:
        """What it got, in order."""
        return [name_of(delivery) for delivery in self.got]

    def fresh(self) -> list[str]:
        """Return what it got since the last time."""
        names = self.names
        self.got.clear()
        return names


def name_of(delivery: Delivery) -> str:
    """Return what a delivered publication was called."""
    return str(delivery.event.payload.decode())


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Return a bench whose books have to balance at the end."""
    bench = Bench()
    yield bench
    bench.ledger.audit()
    for queue in bench.queues:
        queue.delete()
    bench.ledger.audit()
    assert not bench.publisher.debt_items
    assert not bench.disk.debt_items
    bench.recording.agrees(bench.ledger)
