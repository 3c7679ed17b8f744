"""The client's half of a session: what is sent again, what is not taken twice, and manual acks."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from clearfunds.transports import LocalProtocolError
from clearfunds.transports.mqtt import (
    ClientSession,
    ConnAck,
    ConnectionLostError,
    Disconnect,
    MqttClient,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    open_mqtt,
)
from tests.transports.mqtt.test_client import Later, MemoryStream, Peer, connected, settled


@asynccontextmanager
async def visit(
    session: ClientSession | None, present: bool = True, **options: Any
) -> AsyncGenerator[tuple[MqttClient, Peer], None]:
    """Connect for a session to be kept; at the end of the block the server cuts the connection."""
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)

    async def accept() -> None:
        await peer.packet()
        await peer.send(ConnAck(present, 0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        with suppress(ConnectionLostError):
            kept: dict[str, Any] = {"client_id": "me", "clean_session": False, "keep_alive": 0}
            async with open_mqtt(ours, **{**kept, **options}, session=session) as client:
                yield client, peer
                await settled()
                await peer.close()
                await settled()


# --- what is published ----------------------------------------------------------------------


async def test_what_is_unfinished_is_sent_again_as_it_was_and_in_order(
    nursery: trio.Nursery,
) -> None:
    session = ClientSession()
    async with visit(session, present=False) as (client, peer):
        for number, qos in enumerate((1, 2, 1, 2, 2)):
            client.publish_nowait(f"t/{number}", b"%d" % number, qos, retain=number == 2)
        client.publish_nowait("t", b"lost", 0)
        await peer.packets(6)
        # The fifth is released, then the second; the third is done.
        await peer.send(PubRec(5), PubRec(2), PubAck(3))
        assert await peer.packets(2) == [PubRel(5), PubRel(2)]
    assert len(session) == 4
    assert "'me': 4 publications unfinished" in repr(session)
    async with visit(session) as (client, peer):
        assert client.session_present
        again = [
            *(PubRel(5), PubRel(2)),
            Publish("t/0", b"0", 1, dup=True, packet_id=1),
            Publish("t/3", b"3", 2, dup=True, packet_id=4),
        ]
        assert await peer.packets(4) == again
        flushing = Later(nursery, client.flush)
        new = Later(nursery, client.publish, "t/5", b"5", 1)
        assert await peer.packet() == Publish("t/5", b"5", 1, packet_id=6)
        await peer.send(PubAck(1), PubComp(5), PubRec(4))
        assert await peer.packet() == PubRel(4)
        await settled()
        assert not flushing.done
    assert isinstance(flushing.error, ConnectionLostError)
    assert isinstance(new.error, ConnectionLostError)
    async with visit(session) as (client, peer):
        assert await peer.packets(3) == [
            *(PubRel(2), PubRel(4)),
            Publish("t/5", b"5", 1, dup=True, packet_id=6),
        ]
        await peer.send(PubComp(4), PubComp(2), PubAck(6))
        with trio.fail_after(5):
            await client.flush()
        assert client.statistics().inflight == client.statistics().identifiers_in_use == 0
    assert len(session) == 0


async def test_it_is_sent_again_to_a_server_that_has_kept_nothing() -> None:
    session = ClientSession()
    async with visit(session, present=False) as (client, peer):
        client.publish_nowait("t", b"1", 1)
        client.publish_nowait("t", b"2", 2)
        client.publish_nowait("t", b"3", 2)
        await peer.packets(3)
        await peer.send(PubRec(2))
        assert await peer.packet() == PubRel(2)
    async with visit(session, present=False) as (client, peer):
        assert await peer.packets(3) == [
            PubRel(2),
            Publish("t", b"1", 1, dup=True, packet_id=1),
            Publish("t", b"3", 2, dup=True, packet_id=3),
        ]


async def test_who_waits_is_told_whether_the_session_has_it(nursery: trio.Nursery) -> None:
    for session in (ClientSession(), None):
        async with visit(session, present=False, max_inflight=1) as (client, peer):
            begun = Later(nursery, client.publish, "t", b"1", 1)
            await settled()
            waits = Later(nursery, client.publish, "t", b"2", 1)
            await settled()
            await peer.packet()
        for call, kept in ((begun, session is not None), (waits, False)):
            assert isinstance(call.error, ConnectionLostError)
            assert call.error.kept is kept


async def test_without_a_session_nothing_is_sent_again() -> None:
    async with visit(None, present=False) as (client, peer):
        client.publish_nowait("t", b"1", 1)
    async with visit(None) as (client, peer):
        client.publish_nowait("t", b"2", 1)
        assert await peer.packet() == Publish("t", b"2", 1, packet_id=1)


async def test_the_window_holds_for_what_is_sent_again(nursery: trio.Nursery) -> None:
    session = ClientSession()
    async with visit(session, present=False) as (client, peer):
        for number in range(1, 8):
            client.publish_nowait("t", b"%d" % number, 2 if number < 4 else 1)
        await peer.packets(7)
        await peer.send(PubRec(1), PubRec(2), PubRec(3))

    def dup(number: int) -> Publish:
        return Publish("t", b"%d" % number, 2 if number < 4 else 1, dup=True, packet_id=number)

    async with visit(session, max_inflight=2) as (client, peer):
        # The server has places for what it has received; the rest waits for them.
        assert await peer.packets(3) == [PubRel(1), PubRel(2), PubRel(3)]
        later = Later(nursery, client.publish, "t", b"new", 1)
        await settled()
        assert await peer.nothing_yet()
        with pytest.raises(trio.WouldBlock):
            client.publish_nowait("t", b"x", 1)
        await peer.send(PubComp(2))
        assert await peer.nothing_yet()
        await peer.send(PubComp(1))
        assert await peer.packet() == dup(4)
        # An answer to what was not sent again yet is taken for what it says, and frees no place.
        await peer.send(PubAck(5))
        assert await peer.nothing_yet()
        await peer.send(PubAck(4))
        assert await peer.packet() == dup(6)
        await peer.send(PubComp(3))
        assert await peer.packet() == dup(7)
        await peer.send(PubAck(6))
        assert await peer.packet() == Publish("t", b"new", 1, packet_id=8)
        assert await peer.nothing_yet()
        await peer.send(PubAck(7), PubAck(8))
        await settled()
        assert later.done
        assert later.error is None
    assert len(session) == 0


async def test_identifiers_of_requests_do_not_outlive_their_connection(
    nursery: trio.Nursery,
) -> None:
    session = ClientSession()
    async with visit(session, present=False) as (client, peer):
        asking = Later(nursery, client.subscribe, "a", 1)
        await settled()
        client.publish_nowait("t", b"", 1)
    assert isinstance(asking.error, ConnectionLostError)
    async with visit(session) as (client, peer):
        assert client.statistics().identifiers_in_use == 1
        asking = Later(nursery, client.subscribe, "a", 1)
        assert await peer.packet() == Publish("t", b"", 1, dup=True, packet_id=2)
        await peer.packet()
        await peer.send(SubAck(3, (1,)))
        await settled()
        assert asking.result == (1,)


# --- what is received -----------------------------------------------------------------------


async def test_what_was_taken_is_not_taken_again() -> None:
    session = ClientSession()
    async with visit(session, present=False) as (client, peer):
        messages = [Publish("t", b"%d" % number, 2, packet_id=number) for number in (7, 8, 9)]
        await peer.send(*messages)
        await settled()
        assert client.receive_nowait() == messages[0]
        assert await peer.packet() == PubRec(7)
        await peer.close()
        await settled()
        # Its PUBREC cannot leave any more.
        assert client.receive_nowait() == messages[1]
    again = [attrs.evolve(message, dup=True) for message in messages]
    async with visit(session) as (client, peer):
        # The server knows of the first that it was received, or it does not.
        await peer.send(PubRel(7), *again[1:])
        assert await client.receive() == again[2]
        assert await peer.packets(3) == [PubComp(7), PubRec(8), PubRec(9)]
    async with visit(session) as (client, peer):
        await peer.send(*again)
        assert await client.receive() == again[0]  # it was released: this is another one
        # In the order of the messages [MQTT-4.6.0-3].
        assert await peer.packets(3) == [PubRec(7), PubRec(8), PubRec(9)]
        await peer.send(PubRel(7), PubRel(8), PubRel(9))
        assert await peer.packets(3) == [PubComp(7), PubComp(8), PubComp(9)]
    async with visit(session, present=False) as (client, peer):
        await peer.send(messages[0])
        assert await client.receive() == messages[0]
    async with visit(session, present=False) as (client, peer):
        # A server that has forgotten the session counts anew.
        await peer.send(messages[0])
        assert await client.receive() == messages[0]


async def test_what_was_not_taken_is_sent_again_and_taken_once() -> None:
    session = ClientSession()
    message = Publish("t", b"x", 2, packet_id=3)
    async with visit(session, present=False) as (client, peer):
        await peer.send(message)
        await settled()
        assert client.statistics().buffered_messages == 1
    with pytest.raises(ConnectionLostError, match="closed the connection"):
        client.receive_nowait()
    async with visit(session) as (client, peer):
        await peer.send(attrs.evolve(message, dup=True))
        assert (await client.receive()).payload == b"x"
        assert await peer.packet() == PubRec(3)


async def test_a_repeated_message_of_qos_1_that_is_here_is_not_another_one() -> None:
    async with connected() as (client, peer):
        message = Publish("t", b"x", 1, packet_id=3)
        await peer.send(message, attrs.evolve(message, dup=True))
        await settled()
        assert client.receive_nowait() == message
        with pytest.raises(trio.WouldBlock):
            client.receive_nowait()
        assert await peer.packet() == PubAck(3)
        await peer.send(message)
        await settled()
        assert client.receive_nowait() == message
        assert await peer.packet() == PubAck(3)


async def test_an_identifier_that_is_in_use_cannot_be_a_new_messages() -> None:
    async with visit(None, present=False) as (client, peer):
        await peer.send(
            Publish("t", b"x", 1, packet_id=3), Publish("t", b"another", 1, packet_id=3)
        )
        assert (await client.receive()).payload == b"x"
        with pytest.raises(ConnectionLostError, match=r"MQTT-2\.3\.1-4"):
            await client.receive()


# --- manual acknowledgements ----------------------------------------------------------------


async def test_manual_acks_leave_in_the_order_of_the_messages() -> None:
    async with connected(manual_ack=True) as (client, peer):
        messages = [
            Publish("t", b"%d" % number, qos, packet_id=number)
            for number, qos in ((1, 1), (2, 2), (3, 1), (4, 1), (5, 2))
        ]
        await peer.send(Publish("t", b"0"), *messages)
        await settled()
        client.ack(client.receive_nowait())
        assert [client.receive_nowait() for _ in messages] == messages
        assert await peer.nothing_yet()
        assert client.statistics().unacknowledged == 5
        first, second, third, fourth, fifth = messages
        client.ack(fifth)
        client.ack(third)
        assert await peer.nothing_yet()
        client.ack(first)
        assert await peer.packets(2) == [PubAck(1), PubAck(3)]
        assert await peer.nothing_yet()
        client.ack(second)
        assert await peer.packets(2) == [PubRec(2), PubRec(5)]
        for done in (first, second, third, fifth):
            with pytest.raises(LocalProtocolError, match=f"identifier {done.packet_id} to be"):
                client.ack(done)
        client.ack(fourth)
        assert await peer.packet() == PubAck(4)
        assert client.statistics().unacknowledged == 0


async def test_a_held_back_ack_is_said_once() -> None:
    async with connected(manual_ack=True) as (client, peer):
        messages = [Publish("t", b"", 1, packet_id=number) for number in (1, 2)]
        await peer.send(*messages)
        await settled()
        client.ack(messages[1])
        with pytest.raises(LocalProtocolError):
            client.ack(messages[1])
        client.ack(messages[0])
        assert await peer.packets(2) == [PubAck(1), PubAck(2)]


async def test_what_was_dealt_with_after_the_loss_is_known_to_the_session() -> None:
    session = ClientSession()
    messages = [
        Publish("t", b"1", 1, packet_id=1),
        *(Publish("t", b"2", 2, packet_id=number) for number in (2, 3, 4)),
    ]
    async with visit(session, present=False, manual_ack=True) as (client, peer):
        await peer.send(*messages)
        await settled()
        assert [client.receive_nowait() for _ in messages] == messages
        client.ack(messages[2])  # held back: the one before it is not done
        await peer.close()
        await settled()
        client.ack(messages[0])
        client.ack(messages[1])
    with pytest.raises(LocalProtocolError):
        client.ack(messages[3])
    again = [attrs.evolve(message, dup=True) for message in messages]
    async with visit(session, manual_ack=True) as (client, peer):
        await peer.send(*again)
        assert await peer.packets(2) == [PubRec(2), PubRec(3)]
        # One of QoS 1 comes again; one of QoS 2 only if nobody was done with it.
        assert [await client.receive() for _ in range(2)] == [again[0], again[3]]
        assert await peer.nothing_yet()
        client.ack(again[3])
        client.ack(again[0])
        assert await peer.packets(2) == [PubRec(4), PubAck(1)]


async def test_acks_by_hand_need_a_client_that_has_them() -> None:
    async with connected() as (client, peer):
        await peer.send(Publish("t", b"", 1, packet_id=1))
        message = await client.receive()
        with pytest.raises(LocalProtocolError, match="manual_ack=True"):
            client.ack(message)
        assert await peer.packet() == PubAck(1)


async def test_nothing_is_acknowledged_after_the_farewell() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        async with open_mqtt(ours, keep_alive=0, manual_ack=True) as client:
            await peer.send(*(Publish("t", b"", 1, packet_id=number) for number in (1, 2)))
            message = await client.receive()
            await client.receive()
            leaving = Later(nursery, client.disconnect)
            assert await peer.packet() == Disconnect()
            client.ack(message)
            await settled()
            # Nothing follows a DISCONNECT [MQTT-3.14.4-2]; the connection would complain.
            assert await peer.nothing_yet()
            await peer.close()
            await settled()
            assert leaving.done
            assert leaving.error is None


# --- whose session it is --------------------------------------------------------------------


async def test_a_session_is_for_one_client_and_for_one_connection_at_a_time() -> None:
    session = ClientSession()
    assert session  # though it holds nothing
    async with visit(session, present=False):
        assert "in use" in repr(session)
        with pytest.raises(LocalProtocolError, match="'me' is in use"):
            async with open_mqtt("nowhere", client_id="me", clean_session=False, session=session):
                pytest.fail("two connections had one session")
    with pytest.raises(LocalProtocolError, match="that of 'me'; 'you' needs its own"):
        async with open_mqtt("nowhere", client_id="you", clean_session=False, session=session):
            pytest.fail("two clients had one session")
    with pytest.raises(LocalProtocolError, match="clean_session=False"):
        async with open_mqtt("nowhere", client_id="me", session=session):
            pytest.fail("a clean session was kept")
    async with visit(session):
        pass
    assert "in use" not in repr(session)


async def test_a_connection_that_fails_leaves_the_session_as_it_was() -> None:
    session = ClientSession()
    async with visit(session, present=False) as (client, _):
        client.publish_nowait("t", b"", 1)
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    with pytest.raises(ConnectionLostError):
        async with open_mqtt(ours, client_id="me", clean_session=False, session=session):
            pytest.fail("nobody answered")
    assert len(session) == 1
    async with visit(session) as (_, peer):
        assert await peer.packet() == Publish("t", b"", 1, dup=True, packet_id=1)


async def test_a_client_whose_block_was_left_by_an_exception_is_lost() -> None:
    session = ClientSession()
    ours, theirs = memory_stream_pair()
    clients: list[MqttClient] = []

    async def fail() -> None:
        async with open_mqtt(ours, client_id="me", clean_session=False, session=session) as client:
            clients.append(client)
            client.publish_nowait("t", b"", 1)
            raise KeyError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Peer(theirs).accept)
        with pytest.raises(KeyError):
            await fail()
    (client,) = clients
    with pytest.raises(ConnectionLostError, match="its block has been left"):
        client.receive_nowait()
    with pytest.raises(ConnectionLostError):
        client.publish_nowait("t", b"", 1)
    assert len(session) == 1


# --- cuts at every step, against a server with a memory --------------------------------------


class CutError(Exception):
    """The server has cut the connection here."""


class Server:
    """A server of one session that forgets nothing, and whose connections are cut when told."""

    def __init__(self, cuts: list[int], deliveries: list[tuple[int, bytes]]) -> None:
        self.cuts = cuts
        self.steps = 0
        self.published: list[tuple[int, bytes]] = []
        self.undelivered = [
            Publish("to", payload, qos, packet_id=number)
            for number, (qos, payload) in enumerate(deliveries, 1)
        ]
        self.outgoing: dict[int, Publish | PubRel] = {}
        self.received: set[int] = set()
        self.known = False

    def step(self) -> None:
        """Count what has happened; cut the connection if it is to be cut here."""
        if self.cuts and self.steps >= self.cuts[0]:
            self.cuts.pop(0)
            self.steps = 0
            raise CutError
        self.steps += 1

    async def serve(self, stream: MemoryStream) -> None:
        peer = Peer(stream)
        with suppress(CutError, trio.BrokenResourceError):
            await peer.packet()
            await peer.send(ConnAck(self.known, 0))
            self.known = True
            for unfinished in self.outgoing.values():
                self.step()
                if isinstance(unfinished, Publish):
                    unfinished = attrs.evolve(unfinished, dup=True)
                await peer.send(unfinished)
            while True:
                while self.undelivered and len(self.outgoing) < 3:
                    message = self.undelivered.pop(0)
                    self.outgoing[message.packet_id] = message
                    self.step()
                    await peer.send(message)
                packet = await peer.packet()
                if packet is None or packet == Disconnect():
                    break
                self.step()
                answer = self.handle(packet)
                self.step()
                if answer is not None:
                    await peer.send(answer)
        await stream.aclose()

    def handle(self, packet: Packet) -> Packet | None:
        match packet:
            case Publish():
                if packet.packet_id not in self.received:
                    self.published.append((packet.qos, packet.payload))
                if packet.qos == 1:
                    return PubAck(packet.packet_id)
                self.received.add(packet.packet_id)
                return PubRec(packet.packet_id)
            case PubRel(packet_id):
                self.received.discard(packet_id)
                return PubComp(packet_id)
            case PubRec(packet_id):
                # To its place at the end: PUBREL in the order of PUBREC.
                self.outgoing.pop(packet_id, None)
                self.outgoing[packet_id] = PubRel(packet_id)
                return PubRel(packet_id)
            case PubAck(packet_id) | PubComp(packet_id):
                self.outgoing.pop(packet_id, None)
            case _:
                raise AssertionError(packet)
        return None


def in_order_of_first(seen: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return list(dict.fromkeys(seen))


messages_of_both_kinds = st.lists(st.sampled_from((1, 2)), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 25), max_size=8),
    messages_of_both_kinds,
    messages_of_both_kinds,
    st.booleans(),
    st.integers(1, 4),
)
def test_exactly_once_and_at_least_once_hold_wherever_the_connection_is_cut(
    cuts: list[int], out: list[int], back: list[int], manual: bool, window: int
) -> None:
    wanted = [(qos, b"%d" % number) for number, qos in enumerate(out)]
    expected = [(qos, b"%d" % number) for number, qos in enumerate(back)]
    server = Server(cuts, expected)
    taken: list[tuple[int, bytes]] = []
    done = 0

    async def publish(client: MqttClient) -> None:
        nonlocal done
        while done < len(wanted):
            qos, payload = wanted[done]
            await client.publish("from", payload, qos, wait=False)
            done += 1
        await client.flush()

    async def take(client: MqttClient) -> None:
        while set(taken) != set(expected):
            message = await client.receive()
            if manual:
                # Who is interrupted before he is done gets it again; who is done does not.
                await trio.lowlevel.checkpoint()
                client.ack(message)
            taken.append((message.qos, message.payload))

    async def live() -> None:
        session = ClientSession()
        for _ in range(len(cuts) + 1):
            ours, theirs = memory_stream_pair()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, theirs)
                try:
                    async with open_mqtt(
                        ours,
                        client_id="me",
                        clean_session=False,
                        session=session,
                        keep_alive=0,
                        max_inflight=window,
                        manual_ack=manual,
                    ) as client:
                        async with trio.open_nursery() as users:
                            users.start_soon(publish, client)
                            users.start_soon(take, client)
                        return
                except* ConnectionLostError:
                    pass
        pytest.fail("there was a connection for each cut and one more")

    trio.run(live)
    for sent, got in ((wanted, server.published), (expected, taken)):
        assert set(got) == set(sent)
        exactly_once = [item for item in got if item[0] == 2]
        assert exactly_once == [item for item in sent if item[0] == 2]
        at_least_once = [item for item in got if item[0] == 1]
        assert in_order_of_first(at_least_once) == [item for item in sent if item[0] == 1]
