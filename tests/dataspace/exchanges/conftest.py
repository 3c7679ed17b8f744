"""What the tests of virtual hosts share: a process in small, and properties that are JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import attrs
import pytest

from clearfunds.accounts import NO_LIMIT, Account, Ledger
from clearfunds.dataspace import Dataspace, Publication
from clearfunds.dataspace.exchanges import (
    DeclaredQueue,
    HostError,
    HostQueue,
    Message,
    QueueMaker,
    Reason,
    VirtualHost,
)
from clearfunds.dataspace.exchanges._tables import decode_table, encode_table
from clearfunds.dataspace.queues import Channel, Delivery, MemoryShelf
from tests.accounts.conftest import Recording
from tests.dataspace.queues.conftest import Heard

WALL = 1.7e9
"""What the wall clock says when the ledger's says 0."""


class TextProperties:
    """Properties as text: a table with the headers and whatever else there is."""

    def headers(self, message: Message) -> Mapping[str, object]:
        if message.headers is not None:
            return message.headers
        found: Any = decode_table(message.properties.decode()).get("headers", {})
        return cast("Mapping[str, object]", found)

    def with_headers(self, message: Message, headers: Mapping[str, object]) -> Message:
        table = decode_table(message.properties.decode())
        table["headers"] = dict(headers)
        if message.expiration is None:
            table.pop("expiration", None)
        return attrs.evolve(message, properties=encode_table(table).encode(), headers=None)

    def from_publication(
        self, publication: Publication, exchange: str, routing_key: str, expiration: float | None
    ) -> Message:
        table = {"headers": {"mqtt": publication.properties.decode()}}
        return Message(
            exchange,
            routing_key,
            encode_table(table).encode(),
            publication.payload,
            persistent=publication.qos > 0,
            expiration=expiration,
        )

    def to_publication(
        self, message: Message, topic: str, qos: int, expires: float | None
    ) -> Publication:
        return Publication(topic, message.body, qos, properties=b"amqp", expires=expires)


def properties_of(headers: Mapping[str, object], **more: object) -> bytes:
    """Return properties with these headers."""
    return encode_table({"headers": headers, **more}).encode()


class MemoryKeeper:
    """A store of which a test decides what is durable."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.shelves: dict[str, MemoryShelf] = {}
        self.waiting: list[Any] = []
        self.hurried = 0

    def shelf(self, name: str) -> MemoryShelf:
        return self.shelves.setdefault(name, MemoryShelf())

    def drop(self, shelf: MemoryShelf) -> None:
        shelf.queue = None
        for name, each in list(self.shelves.items()):
            if each is shelf:
                del self.shelves[name]

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def when_durable(self, callback: Any, whose: object = None) -> None:
        self.waiting.append(callback)

    def hurry(self) -> None:
        self.hurried += 1

    def sync(self) -> None:
        """Make everything durable."""
        for shelf in list(self.shelves.values()):
            shelf.settle()
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()

    def crash(self) -> MemoryKeeper:
        """Return the keeper that a restart finds: all values, and what is safe on the shelves."""
        found = MemoryKeeper()
        found.values = dict(self.values)
        found.shelves = {name: shelf.crash() for name, shelf in self.shelves.items()}
        return found


class Bench:
    """One process: its books, a dataspace, a publisher and a virtual host."""

    def __init__(self, keeper: MemoryKeeper | None = None, **more: Any) -> None:
        self.now = 0.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.ledger.recorder = self.recording = Recording()
        self.dataspace = Dataspace(self.ledger)
        self.publisher = self.ledger.open("publisher", limit=NO_LIMIT)
        self.account = self.ledger.open("host", limit=NO_LIMIT)
        self.disk = self.ledger.open("disk", limit=NO_LIMIT)
        self.keeper = keeper
        self.more = more
        self.host = self.another(**more)

    def wall(self) -> float:
        """Return the time of the wall clock."""
        return WALL + self.now

    def another(self, name: str = "/", **more: Any) -> VirtualHost:
        """Return a further host."""
        maker = QueueMaker(
            self.ledger, above=self.disk, limit=NO_LIMIT, keeper=self.keeper, wall=self.wall
        )
        return VirtualHost(
            name,
            dataspace=self.dataspace,
            account=self.account,
            maker=maker,
            keeper=self.keeper,
            properties=TextProperties(),
            wall=self.wall,
            **more,
        )

    def queue(self, name: str, *bindings: tuple[Any, ...], **more: Any) -> DeclaredQueue:
        """Declare a queue with bindings (exchange, and perhaps key and arguments)."""
        declared = self.host.declare_queue(name, **more)
        bind: Any = partial(self.host.bind_queue, by=more.get("exclusive_to"))
        for binding in bindings:
            bind(name, *binding)
        return declared

    def publish(
        self,
        exchange: str,
        key: str,
        body: str = "m",
        *,
        headers: Mapping[str, object] | None = None,
        host: VirtualHost | None = None,
        account: Account | None = None,
        confirm: Heard | None = None,
        **more: Any,
    ) -> bool:
        """Publish one message in a turn; return whether it was routed."""
        properties = b"" if headers is None else properties_of(headers)
        properties = more.pop("properties", properties)
        message = Message(exchange, key, properties, body.encode(), **more)
        account = self.publisher if account is None else account
        with account.turn(confirm=confirm) as turn:
            routed = (host or self.host).publish(turn, exchange, message)
        self.ledger.audit()
        return routed

    def publish_topic(self, topic: str, body: str = "m", **more: Any) -> None:
        """Publish in the dataspace, as MQTT does."""
        with self.publisher.turn() as turn:
            turn.publish(self.dataspace, Publication(topic, body.encode(), **more))
        self.ledger.audit()

    def reached(self) -> dict[str, list[str]]:
        """Return what lies in each queue, and take it out."""
        found = {name: self.take(name) for name in self.host.queues}
        return {name: bodies for name, bodies in found.items() if bodies}

    def take(self, name: str) -> list[str]:
        """Take all that is ready in a queue."""
        return [event.body.decode() for event in self.messages(name)]

    def messages(self, name: str) -> list[Message]:
        """Take all that is ready in a queue."""
        queue = self.host.queues[name].queue
        events: list[Message] = []
        while True:
            delivery = queue.get(Channel("test"))
            if delivery is not None:
                events.append(delivery.event)
                delivery.ack()
            elif queue.waiting and self.keeper is not None:
                self.keeper.sync()
            else:
                break
        self.ledger.audit()
        return events

    def wait(self, seconds: float) -> None:
        """Let time pass, for all queues."""
        self.now += seconds
        self.host.tick(self.now)
        self.ledger.audit()

    def restart(self) -> Bench:
        """Return the process that comes after a crash of this one."""
        assert self.keeper is not None
        after = Bench(self.keeper.crash(), **self.more)
        assert after.keeper is not None
        after.host.recover(after.keeper.values)
        after.keeper.sync()
        after.ledger.audit()
        return after

    def close(self) -> None:
        """End everything, with balanced books."""
        self.ledger.audit()
        for declared in list(self.host.queues.values()):
            declared.queue.delete()
        for name, exchange in list(self.host.exchanges.items()):
            for binding in list(exchange.bindings.values()):
                self.host.unbind_exchange(
                    binding.destination.name, name, binding.key, binding.arguments
                )
        for name in list(self.host.exchanges):
            if not name.startswith("amq."):
                self.host.delete_exchange(name)
        assert not self.host.bindings
        assert not self.host.definition_bytes
        assert not self.publisher.debt_items
        assert not self.disk.debt_items
        assert not self.account.debt_items
        assert not self.account.standing().items
        self.ledger.audit()
        self.recording.agrees(self.ledger)


class Worker:
    """A consumer that keeps what it gets."""

    def __init__(self, queue: HostQueue, **more: Any) -> None:
        self.got: list[Delivery] = []
        self.ends: list[str] = []
        self.channel = Channel("worker")
        self.consumer = queue.consume(
            self.got.append, channel=self.channel, on_cancelled=self.ends.append, **more
        )

    @property
    def bodies(self) -> list[str]:
        """What it got, in order."""
        return [delivery.event.body.decode() for delivery in self.got]


def refused(reason: Reason, text: str, call: Any, *args: Any, **more: Any) -> None:
    """Check that a call is refused, for a reason and with a text."""
    with pytest.raises(HostError) as caught:
        call(*args, **more)
    assert (caught.value.reason, caught.value.text) == (reason, text)
    assert str(caught.value) == text


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Return a bench whose books have to balance at the end."""
    bench = Bench()
    yield bench
    bench.close()
