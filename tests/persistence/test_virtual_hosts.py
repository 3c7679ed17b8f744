"""A virtual host of AMQP on a real store, over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from clearfunds.accounts import NO_LIMIT
from clearfunds.dataspace import Dataspace
from clearfunds.dataspace.exchanges import PREFIX, Message, QueueMaker, VirtualHost
from clearfunds.dataspace.queues import Channel, Delivery
from clearfunds.persistence import Shelves
from tests.persistence.shelves import Heard, Process, on_disk
from tests.transports.peers import until


def host_of(process: Process) -> VirtualHost:
    """Return the virtual host of a process, with what was there before."""
    shelves = process.shelves
    assert isinstance(shelves, Shelves)
    ledger = process.ledger
    host = VirtualHost(
        "/",
        dataspace=Dataspace(ledger),
        account=ledger.open("host", limit=NO_LIMIT),
        maker=QueueMaker(ledger, above=process.disk, limit=NO_LIMIT, keeper=shelves),
        keeper=shelves,
    )
    host.recover(shelves.store.values(PREFIX))
    return host


def publish(process: Process, host: VirtualHost, exchange: str, key: str, body: bytes) -> Heard:
    heard = Heard()
    message = Message(exchange, key, b"\x00properties", body, persistent=True, expiration=1000.0)
    with process.publisher.turn(confirm=heard) as turn:
        assert host.publish(turn, exchange, message)
    return heard


@pytest.mark.rule(7)
async def test_what_is_durable_is_there_after_a_restart(tmp_path: Path) -> None:
    answers: list[str] = []
    async with on_disk(tmp_path) as process:
        host = host_of(process)
        host.declare_exchange("x/y", "topic", durable=True)
        host.declare_queue("a/b", durable=True, arguments={"x-message-ttl": 3_600_000})
        host.bind_queue("a/b", "x/y", "#.k")
        host.declare_queue("short", durable=True)
        host.declare_queue("transient")
        host.when_durable(lambda: answers.append("declared"))
        assert answers == []
        await until(lambda: answers == ["declared"])
        heard = publish(process, host, "x/y", "some.k", b"one")
        assert (heard.expected, heard.done) == (1, False)
        await until(lambda: heard.done)
        assert process.publisher.debt_items == 0
        late = publish(process, host, "", "short", b"two")
        host.delete_queue("short")
        assert late.done
        host.close()
        process.audit()
    async with on_disk(tmp_path) as process:
        host = host_of(process)
        assert list(host.queues) == ["a/b"]
        assert host.bindings == 1
        queue = host.queues["a/b"].queue
        assert queue.settings.message_ttl == 3_600
        heard = publish(process, host, "x/y", "another.k", b"three")
        assert isinstance(process.shelves, Shelves)
        # The shelf of the deleted queue has gone.
        assert [name for name in process.shelves.store.queues if name.startswith(PREFIX)] == [
            queue.account.name
        ]
        channel = Channel()
        got: list[Delivery] = []
        queue.consume(got.append, channel=channel)
        await until(lambda: len(got) == 2)
        messages = [delivery.event for delivery in got]
        assert [
            (each.exchange, each.routing_key, each.properties, each.body, each.expiration)
            for each in messages
        ] == [
            ("x/y", "some.k", b"\x00properties", b"one", 1000.0),
            ("x/y", "another.k", b"\x00properties", b"three", 1000.0),
        ]
        channel.ack(0, multiple=True)
        await until(lambda: not queue.account.debt_items)
        host.delete_queue("a/b")
        host.delete_exchange("x/y")
        host.close()
    async with on_disk(tmp_path) as process:
        assert isinstance(process.shelves, Shelves)
        assert not process.shelves.store.values(PREFIX)
        assert not [name for name in process.shelves.store.queues if name.startswith(PREFIX)]
