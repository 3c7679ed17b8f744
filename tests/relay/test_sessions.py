"""Persistent sessions and QoS 2, packet by packet, with connections that are cut at every stage."""

from __future__ import annotations

import attrs
import pytest
import trio

from clearfunds.transports.mqtt import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from tests.relay.brokers import Broker, bodies, numbered

# --- what a session is ------------------------------------------------------------------------


async def test_whether_a_session_is_present(broker: Broker) -> None:
    async with broker.visit(present=False, leave=True):
        pass
    async with broker.visit(present=True):  # cut: it is kept all the same
        pass
    async with broker.visit(present=True, leave=True):
        pass
    # A clean session never is [MQTT-3.2.2-1], ends what there was, and leaves none behind.
    async with broker.visit(clean=True, present=False):
        pass
    async with broker.visit(present=False):
        pass
    async with broker.visit(clean=True, present=False, leave=True):
        pass
    async with broker.visit(present=False):
        pass
    await broker.forget()


@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_wait_for_a_client_that_is_away(broker: Broker, qos: int) -> None:
    async with broker.visit(present=False, leave=True) as client:
        await client.subscribe(broker.topic, qos=qos)
    payloads = numbered(200)
    await broker.publish(payloads, qos)
    async with broker.visit(present=True) as client:
        taken = await client.take(200)
        assert bodies(taken) == payloads
        assert {(message.qos, message.dup, message.retain) for message in taken} == {
            (qos, False, False)
        }
        await broker.publish([b"now"], qos)
        assert bodies(await client.take(1)) == [b"now"]
        assert await client.all() == []
    await broker.forget()


async def test_a_clean_session_has_nothing_of_what_was(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=2)
        await broker.publish([b"1"], 1)
        await client.messages(1)
    await broker.publish([b"2", b"3"], 2)
    async with broker.visit(clean=True, present=False) as client:
        assert await client.all() == []
        await broker.publish([b"4"], 1)
        assert await client.all() == []
        # Identifiers are new ones, too.
        await client.subscribe(broker.topic, qos=1)
        await broker.publish([b"5"], 1)
        message = await client.message()
        assert (message.payload, message.dup) == (b"5", False)
    await broker.publish([b"6"], 1)
    async with broker.visit(present=False) as client:
        assert await client.all() == []
        await broker.publish([b"7"], 1)
        assert await client.all() == []
    await broker.forget()


async def test_subscriptions_are_kept_with_their_qos(broker: Broker) -> None:
    async with broker.visit(leave=True) as client:
        for qos in range(3):
            await client.subscribe(f"{broker.prefix}/{qos}/+", qos=qos)
        await client.subscribe(f"{broker.prefix}/gone")
        await client.unsubscribe(f"{broker.prefix}/gone")
    for topic in ("gone", "1/away", "2/away"):
        await broker.publish([b"away"], 2, topic=f"{broker.prefix}/{topic}")
    async with broker.visit(present=True) as client:
        for topic in ("gone", "0/here", "1/here", "2/here"):
            await broker.publish([b"here"], 2, topic=f"{broker.prefix}/{topic}")
        taken = await client.take(5)
        came = sorted((message.topic.removeprefix(broker.prefix), message.qos) for message in taken)
        assert came == [
            ("/0/here", 0),
            *(("/1/away", 1), ("/1/here", 1)),
            *(("/2/away", 2), ("/2/here", 2)),
        ]
        assert await client.all() == []
    await broker.forget()


async def test_subscriptions_can_be_changed_when_back(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=2)
    async with broker.visit(present=True) as client:
        await client.subscribe(broker.topic, qos=1)
    await broker.publish([b"1"], 2)
    async with broker.visit(present=True) as client:
        assert [message.qos for message in await client.take(1)] == [1]
        await client.unsubscribe(broker.topic)
    await broker.publish([b"2"], 2)
    async with broker.visit(present=True) as client:
        assert await client.all() == []
    await broker.forget()


async def test_another_connection_takes_the_session_over(broker: Broker) -> None:
    async with broker.visit() as first:
        await first.subscribe(broker.topic, qos=2)
        await broker.publish([b"1", b"2"], 1)
        before = await first.messages(2)
        async with broker.visit(present=True) as second:
            assert await first.receive() is None  # [MQTT-3.1.4-2]
            again = await second.messages(2)
            assert again == [attrs.evolve(message, dup=True) for message in before]
            await second.send(*(PubAck(message.packet_id) for message in again))
            await broker.publish([b"3"], 2)
            assert bodies(await second.take(1)) == [b"3"]
            async with broker.visit(clean=True, present=False) as third:
                assert await second.receive() is None
                await broker.publish([b"4"], 1)
                assert await third.all() == []


async def test_every_kept_session_gets_its_own(broker: Broker) -> None:
    names = [f"{broker.prefix}-{number}" for number in range(3)]
    for name in names:
        async with broker.visit(name, leave=True) as client:
            await client.subscribe(broker.topic, qos=2)
    payloads = numbered(10)
    async with broker.visit(names[0]) as client:
        await broker.publish(payloads, 2)
        assert bodies(await client.take(10)) == payloads
    for name in names[1:]:
        async with broker.visit(name) as client:
            assert bodies(await client.take(10)) == payloads
    await broker.forget(*names)


async def test_what_is_said_on_leaving_is_not_a_step_of_a_handshake(broker: Broker) -> None:
    async with broker.visit(leave=True) as client:
        await client.subscribe(broker.topic, qos=1)
        await broker.publish([b"1"], 1)
        (message,) = await client.messages(1)
    async with broker.visit(present=True) as client:
        again = await client.message()
        assert again == attrs.evolve(message, dup=True)
        # Acknowledged in the same breath as the farewell: that counts.
        await client.send(PubAck(again.packet_id), Disconnect())
        assert await client.receive() is None
    async with broker.visit(present=True) as client:
        assert await client.all() == []
    await broker.forget()


# --- from the server to the client --------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_was_not_acknowledged_comes_again_with_dup_and_the_same_identifiers(
    broker: Broker, qos: int
) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=qos)
        await broker.publish(numbered(5), qos)
        first = await client.messages(5)
        assert bodies(first) == numbered(5)
        assert len({message.packet_id for message in first}) == 5
        assert not any(message.dup for message in first)
    again = [attrs.evolve(message, dup=True) for message in first]
    async with broker.visit(present=True) as client:
        assert await client.messages(5) == again
    async with broker.visit(present=True) as client:
        # In the order in which they were sent first [MQTT-4.6.0-1]; and new ones behind them.
        await broker.publish([b"new"], qos)
        taken = await client.take(6)
        assert taken[:5] == again
        assert (taken[5].payload, taken[5].dup) == (b"new", False)
    async with broker.visit(present=True) as client:
        assert await client.all() == []
    await broker.forget()


async def test_what_was_acknowledged_does_not_come_again(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=1)
        await broker.publish(numbered(6), 1)
        first = await client.messages(6)
        await client.send(*(PubAck(first[place].packet_id) for place in (1, 3, 4)))
        assert await client.all() == []
    async with broker.visit(present=True) as client:
        left = [attrs.evolve(first[place], dup=True) for place in (0, 2, 5)]
        assert await client.take(3) == left
        assert await client.all() == []
    await broker.forget()


async def test_qos_2_out_cut_after_publish(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=2)
        await broker.publish([b"x"], 2)
        first = await client.message()
    async with broker.visit(present=True) as client:
        assert await client.all() == [attrs.evolve(first, dup=True)]
    async with broker.visit(present=True) as client:
        assert await client.take(1) == [attrs.evolve(first, dup=True)]
    async with broker.visit(present=True) as client:
        assert await client.all() == []
    await broker.forget()


async def test_qos_2_out_cut_after_pubrec(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=2)
        await broker.publish([b"1", b"2"], 2)
        first, second = await client.messages(2)
        await client.send(PubRec(first.packet_id))
        await client.expect(PubRel(first.packet_id))
    for _ in range(2):
        async with broker.visit(present=True) as client:
            # What was received is released; it is not delivered again [MQTT-4.3.3-1].
            said = await client.all()
            assert sorted(said, key=lambda packet: packet.kind) == [
                attrs.evolve(second, dup=True),
                PubRel(first.packet_id),
            ]
    async with broker.visit(present=True) as client:
        assert len(await client.all()) == 2
        await client.send(PubComp(first.packet_id), PubRec(second.packet_id))
        await client.expect(PubRel(second.packet_id))
        await client.send(PubComp(second.packet_id))
        assert await client.all() == []
    async with broker.visit(present=True) as client:
        assert await client.all() == []
    await broker.forget()


async def test_qos_2_out_cut_with_pubrec_on_its_way(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=2)
        await broker.publish([b"x"], 2)
        first = await client.message()
        await client.send(PubRec(first.packet_id))
    async with broker.visit(present=True) as client:
        # It may have arrived or not; if it has not, this is the same message and is known to be.
        packet = await client.receive()
        if packet == attrs.evolve(first, dup=True):
            await client.send(PubRec(first.packet_id))
            packet = await client.receive()
        assert packet == PubRel(first.packet_id)
        await client.send(PubComp(first.packet_id))
        assert await client.all() == []
    async with broker.visit(present=True) as client:
        assert await client.all() == []
    await broker.forget()


async def test_qos_2_out_cut_with_pubcomp_on_its_way(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=2)
        await broker.publish([b"x"], 2)
        first = await client.message()
        await client.send(PubRec(first.packet_id))
        await client.expect(PubRel(first.packet_id))
        await client.send(PubComp(first.packet_id))
    async with broker.visit(present=True) as client:
        for packet in await client.all():
            assert packet == PubRel(first.packet_id)
            await client.send(PubComp(first.packet_id))
        assert await client.all() == []
    async with broker.visit(present=True) as client:
        assert await client.all() == []
    await broker.forget()


@pytest.mark.parametrize("qos", [1, 2])
async def test_order_holds_through_cuts(broker: Broker, qos: int) -> None:
    """Each connection deals with some; the first time that each is seen, it is in its place."""
    async with broker.visit(leave=True) as client:
        await client.subscribe(broker.topic, qos=qos)
    payloads = numbered(100)
    await broker.publish(payloads[:60], qos)
    seen: list[bytes] = []
    received: set[int] = set()
    rest = payloads[60:]
    while len(seen) < 100:
        async with broker.visit(present=True) as client:
            steps = 0
            # Seven steps at a time: it ends between all sorts of packets.
            while steps < 7 and len(seen) < 100:
                match await client.receive():
                    case Publish(qos=1) as message:
                        if message.payload not in seen:
                            seen.append(message.payload)
                        if steps % 3:
                            await client.send(PubAck(message.packet_id))
                    case Publish() as message:
                        if message.packet_id not in received:
                            received.add(message.packet_id)
                            seen.append(message.payload)
                        await client.send(PubRec(message.packet_id))
                    case PubRel(packet_id):
                        received.discard(packet_id)
                        await client.send(PubComp(packet_id))
                    case packet:
                        raise AssertionError(packet)
                steps += 1
            await broker.publish(rest[:4], qos)
            del rest[:4]
    assert seen == payloads
    await broker.forget()


@pytest.mark.parametrize("qos", [1, 2])
async def test_no_more_are_on_their_way_than_the_window_holds(broker: Broker, qos: int) -> None:
    window = broker.window
    payloads = numbered(3 * window)
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=qos)
        await broker.publish(payloads, qos)
        first = await client.messages(window)
        assert bodies(first) == payloads[:window]
        assert await client.all() == []
    async with broker.visit(present=True) as client:
        # The same ones, and no others, until one of them is acknowledged to the end.
        again = await client.messages(window)
        assert again == [attrs.evolve(message, dup=True) for message in first]
        assert await client.all() == []
        number = first[0].packet_id
        if qos == 1:
            await client.send(PubAck(number))
        else:
            await client.send(PubRec(number))
            await client.expect(PubRel(number))
            await client.send(PubComp(number))
        said = [packet for packet in await client.all() if isinstance(packet, Publish)]
        # mosquitto 2.0.11 sends a whole window more then.
        assert bodies(said) == payloads[window:][: len(said)]
        assert 1 <= len(said) <= (window if broker.lax_window else 1)
    await broker.forget()


# --- from the client to the server --------------------------------------------------------------


async def test_qos_2_in_cut_after_publish(broker: Broker) -> None:
    message = Publish(broker.topic, b"x", 2, packet_id=7)
    async with broker.visit(f"{broker.prefix}-watcher", clean=True) as watcher:
        await watcher.subscribe(broker.topic, qos=2)
        async with broker.visit() as client:
            await client.send(message)
            await client.expect(PubRec(7))
        for _ in range(2):
            async with broker.visit(present=True) as client:
                await client.send(attrs.evolve(message, dup=True))
                await client.expect(PubRec(7))
        async with broker.visit(present=True) as client:
            await client.send(attrs.evolve(message, dup=True), PubRel(7))
            await client.expect(PubRec(7), PubComp(7))
        assert bodies(await watcher.take(1)) == [b"x"]
        assert await watcher.all() == []
    await broker.forget()


async def test_qos_2_in_cut_with_publish_on_its_way(broker: Broker) -> None:
    message = Publish(broker.topic, b"x", 2, packet_id=7)
    async with broker.visit(f"{broker.prefix}-watcher", clean=True) as watcher:
        await watcher.subscribe(broker.topic, qos=2)
        async with broker.visit() as client:
            await client.send(message)
        async with broker.visit(present=True) as client:
            await client.send(attrs.evolve(message, dup=True))
            await client.expect(PubRec(7))
            await client.send(PubRel(7))
            await client.expect(PubComp(7))
        assert bodies(await watcher.take(1)) == [b"x"]
        assert await watcher.all() == []
    await broker.forget()


async def test_qos_2_in_cut_after_pubrel(broker: Broker) -> None:
    message = Publish(broker.topic, b"1", 2, packet_id=7)
    async with broker.visit(f"{broker.prefix}-watcher", clean=True) as watcher:
        await watcher.subscribe(broker.topic, qos=2)
        async with broker.visit() as client:
            await client.send(message)
            await client.expect(PubRec(7))
            await client.send(PubRel(7))  # it may arrive or not
        async with broker.visit(present=True) as client:
            await client.send(PubRel(7))
            await client.expect(PubComp(7))
            await client.send(PubRel(7))  # again, as if PUBCOMP had been lost
            await client.expect(PubComp(7))
            # From then on the identifier is a new publication's [MQTT-4.3.3-2].
            await client.publish(broker.topic, b"2", 1)
            await client.send(attrs.evolve(message, payload=b"3", dup=True))
            await client.expect(PubRec(7))
            await client.send(PubRel(7))
            await client.expect(PubComp(7))
        assert bodies(await watcher.take(3)) == [b"1", b"2", b"3"]
        assert await watcher.all() == []
    await broker.forget()


async def test_qos_1_in_again_is_accepted_again(broker: Broker) -> None:
    message = Publish(broker.topic, b"x", 1, packet_id=7)
    async with broker.visit(f"{broker.prefix}-watcher", clean=True) as watcher:
        await watcher.subscribe(broker.topic, qos=1)
        async with broker.visit() as client:
            await client.send(message)
            await client.expect(PubAck(7))
        async with broker.visit(present=True) as client:
            await client.send(attrs.evolve(message, dup=True))
            await client.expect(PubAck(7))
        got = [packet for packet in await watcher.all() if isinstance(packet, Publish)]
        assert len(got) in (1, 2)  # at least once
        # DUP is of the one connection, never passed on [MQTT-3.3.1-3].
        assert not any(message.dup for message in got)
    await broker.forget()


async def test_a_clean_session_forgets_what_was_received(broker: Broker) -> None:
    message = Publish(broker.topic, b"x", 2, packet_id=7)
    async with broker.visit(f"{broker.prefix}-watcher", clean=True) as watcher:
        await watcher.subscribe(broker.topic, qos=0)
        async with broker.visit() as client:
            await client.send(message)
            await client.expect(PubRec(7))
        async with broker.visit(clean=True, present=False) as client:
            # Not a duplicate, though DUP says so: nobody remembers.
            await client.send(attrs.evolve(message, payload=b"y", dup=True))
            await client.expect(PubRec(7))
            await client.send(PubRel(7))
            await client.expect(PubComp(7))
        got = [packet.payload for packet in await watcher.all() if isinstance(packet, Publish)]
        # Whether the first counts as published was the server's to decide (section 4.3.3).
        assert got in ([b"y"], [b"x", b"y"])


# --- levels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [0, 1, 2])
async def test_a_message_comes_with_the_lesser_qos(broker: Broker, wanted: int) -> None:
    async with broker.visit(clean=True, leave=True) as client:
        await client.subscribe(broker.topic, qos=wanted)
        for published in range(3):
            await broker.publish([b"%d" % published], published)
        taken = await client.take(3)
        assert [(message.payload, message.qos) for message in taken] == [
            (b"%d" % published, min(published, wanted)) for published in range(3)
        ]


@pytest.mark.parametrize("wanted", [0, 1, 2])
async def test_what_is_retained_comes_with_the_lesser_qos(broker: Broker, wanted: int) -> None:
    for published in range(3):
        topic = f"{broker.topic}/{published}"
        await broker.publish([b"%d" % published], published, topic=topic, retain=True)
    async with broker.visit(clean=True, leave=True) as client:
        await client.subscribe(f"{broker.topic}/+", qos=wanted)
        taken = await client.take(3)
        assert sorted((message.payload, message.qos, message.retain) for message in taken) == [
            (b"%d" % published, min(published, wanted), True) for published in range(3)
        ]
    for published in range(3):
        await broker.publish([b""], 1, topic=f"{broker.topic}/{published}", retain=True)


async def test_what_is_retained_and_not_taken_comes_again(broker: Broker) -> None:
    await broker.publish([b"kept"], 2, retain=True)
    async with broker.visit() as client:
        await client.subscribe(broker.topic, qos=2)
        first = await client.message()
        assert (first.payload, first.qos, first.retain) == (b"kept", 2, True)
    async with broker.visit(present=True) as client:
        again = await client.take(1)
        assert bodies(again) == [b"kept"]
        assert (again[0].packet_id, again[0].dup) == (first.packet_id, True)
    async with broker.visit(present=True) as client:
        # It is sent for a new subscription, not for a connection.
        assert await client.all() == []
    await broker.forget()
    await broker.publish([b""], 1, retain=True)


async def test_of_overlapping_filters_the_highest_qos_counts(broker: Broker) -> None:
    async with broker.visit() as client:
        await client.subscribe(f"{broker.prefix}/#", qos=1)
        await client.subscribe(broker.topic, qos=2)
        await client.subscribe(f"{broker.prefix}/+", qos=0)
    await broker.publish([b"x"], 2)
    async with broker.visit(present=True) as client:
        packets = [packet for packet in await client.all() if isinstance(packet, Publish)]
        assert max(packet.qos for packet in packets) == 2  # [MQTT-3.3.5-1]
    await broker.forget()


# --- wills --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
async def test_a_will_with_qos_2_is_published_once(broker: Broker, clean: bool) -> None:
    heir = f"{broker.prefix}-heir"
    async with broker.visit(heir) as client:
        await client.subscribe(broker.topic, qos=2)
        async with broker.visit(clean=clean, will=Will(broker.topic, b"not this", 2), leave=True):
            pass
        async with broker.visit(clean=clean, will=Will(broker.topic, b"here", 2)):
            pass
        (message,) = await client.take(1)
        assert (message.payload, message.qos, message.retain) == (b"here", 2, False)
    async with broker.visit(clean=clean, will=Will(broker.topic, b"away", 2)) as mortal:
        assert await mortal.all() == []
    with trio.fail_after(10):
        async with broker.visit(heir, present=True) as client:
            assert bodies(await client.take(1)) == [b"away"]
            assert await client.all() == []
    await broker.forget(heir, broker.name)


async def test_a_retained_will_with_qos_2(broker: Broker) -> None:
    async with broker.visit(f"{broker.prefix}-heir", clean=True) as heir:
        await heir.subscribe(broker.topic, qos=2)
        async with broker.visit(will=Will(broker.topic, b"kept", 2, retain=True)):
            pass
        assert bodies(await heir.take(1)) == [b"kept"]
    async with broker.visit(f"{broker.prefix}-heir", clean=True) as heir:
        await heir.subscribe(broker.topic, qos=2)
        (message,) = await heir.take(1)
        assert (message.payload, message.qos, message.retain) == (b"kept", 2, True)
    await broker.forget()
    await broker.publish([b""], 1, retain=True)
