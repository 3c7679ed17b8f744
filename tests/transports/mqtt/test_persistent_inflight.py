"""What is under way to a client whose session is kept: identifiers, and the window."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clearfunds.store import Store
from clearfunds.transports.mqtt import PubAck, PubComp, PubRec, PubRel
from clearfunds.transports.mqtt.codec._identifiers import MAX_PACKET_ID
from tests.relay.brokers import Broker, Visitor, bodies, numbered
from tests.transports.peers import RunningRelay, running, until


@asynccontextmanager
async def counting_from(path: Path, seq: int, qos: int) -> AsyncGenerator[RunningRelay]:
    """Run a relay with a session that is subscribed, and whose next message has this number."""
    store = Store.open(path)
    changes = store.begin()
    queue = changes.declare("mqtt/k-client")
    changes.put(queue, seq - 1, b"", b"")
    changes.done(queue, seq - 1)
    changes.set(
        "mqtt/session/k-client", b'{"name":"k","left":null,"filters":[["k/topic",%d]]}' % qos
    )
    store.commit(changes)
    store.close()
    async with running(store=str(path), fsync_interval=0.0) as relay:
        yield relay


def unacked(relay: RunningRelay) -> int:
    """How many messages the client has and has not acknowledged."""
    kept = relay.relay.mqtt.persistent_sessions
    assert kept is not None
    return kept.by_id["k-client"].queue.statistics().unacked


async def subscribed(broker: Broker, client: Visitor, qos: int) -> Visitor:
    await client.subscribe(broker.topic, qos=qos)
    return client


async def test_identifiers_follow_from_the_numbers_in_the_queue_and_go_round(
    tmp_path: Path,
) -> None:
    async with counting_from(tmp_path, MAX_PACKET_ID - 2, 1) as relay:
        broker = Broker(relay.port, 32, "k")
        async with broker.visit(present=True) as client:
            await broker.publish(numbered(5), 1)
            first = await client.messages(5)
            assert [m.packet_id for m in first] == [65_534, 65_535, 1, 2, 3]
        async with broker.visit(present=True) as client:
            assert [m.packet_id for m in await client.messages(5)] == [65_534, 65_535, 1, 2, 3]


async def test_an_identifier_that_is_in_use_is_not_given_to_another(tmp_path: Path) -> None:
    """Of what has been received, and not released while 65,534 others were."""
    store = Store.open(tmp_path)
    changes = store.begin()
    changes.set("mqtt/releasing/5/k-client", bytes(8))
    store.commit(changes)
    store.close()
    async with counting_from(tmp_path, 4, 1) as relay:
        broker = Broker(relay.port, 32, "k")
        async with broker.visit(present=True) as client:
            await client.expect(PubRel(5))
            await broker.publish([b"1", b"2"], 1)
            first, second = await client.messages(2)
            assert 5 not in (first.packet_id, second.packet_id)
            await client.send(PubAck(second.packet_id), PubAck(first.packet_id))
            await until(lambda: not unacked(relay))
            relay.audit()


async def test_what_waits_for_its_pubcomp_has_a_place_in_the_window() -> None:
    """Also on the next connection."""
    async with running(max_inflight=2) as relay:
        broker = Broker(relay.port, 2, "k")
        async with broker.visit() as client:
            await subscribed(broker, client, 2)
            await broker.publish(numbered(4), 2)
            first, second = await client.messages(2)
            await client.send(PubRec(first.packet_id), PubRec(second.packet_id))
            await client.expect(PubRel(first.packet_id), PubRel(second.packet_id))
            assert await client.all() == []
        async with broker.visit(present=True) as client:
            await client.expect(PubRel(first.packet_id), PubRel(second.packet_id))
            assert await client.all() == []
            await client.send(PubComp(second.packet_id))
            (third,) = await client.messages(1)
            assert (third.payload, third.dup) == (b"2", False)
            # Said twice, it makes room once.
            await client.send(PubComp(second.packet_id), PubComp(99))
            assert await client.all() == []
            await client.send(PubComp(first.packet_id))
            assert bodies(await client.messages(1)) == [b"3"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_acknowledgements_of_the_other_kind_end_the_connection(qos: int) -> None:
    async with running() as relay:
        broker = Broker(relay.port, 32, "k")
        async with broker.visit() as client:
            await subscribed(broker, client, qos)
            await broker.publish([b"1"], qos)
            (message,) = await client.messages(1)
            wrong = PubAck if qos == 2 else PubRec
            await client.send(wrong(message.packet_id))
            assert await client.receive() is None
        # Nothing has come of it.
        async with broker.visit(present=True) as client:
            (again,) = await client.messages(1)
            assert (again.packet_id, again.dup) == (message.packet_id, True)


async def test_acknowledgements_of_nothing_change_nothing() -> None:
    async with running() as relay:
        broker = Broker(relay.port, 32, "k")
        async with broker.visit() as client:
            await subscribed(broker, client, 2)
            await broker.publish([b"1"], 2)
            (message,) = await client.messages(1)
            other = message.packet_id + 1
            await client.send(PubAck(other), PubRec(other), PubComp(message.packet_id))
            assert await client.all() == [PubRel(other)]
            assert unacked(relay) == 1
            relay.audit()
