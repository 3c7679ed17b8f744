"""What a subscriber is to acknowledge: in order, within its window, owed for until then."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise

import attrs
import pytest
import trio
import trio.testing

from clearfunds.accounts import Account, AuditError, Ledger, Outcome
from clearfunds.dataspace import AtLeastOnce, Publication
from clearfunds.transports import Outlet, RemoteProtocolError, open_flusher
from clearfunds.transports.mqtt import NEED_DATA, Connection, Publish, Role
from clearfunds.transports.mqtt.codec._connection import State
from clearfunds.transports.mqtt.codec._packets import ConnAck, Connect, encode, encode_publish
from clearfunds.transports.mqtt.server._framing import Framing
from clearfunds.transports.mqtt.server._inflight import Inflight
from clearfunds.transports.mqtt.server._parting_session import frame


@attrs.define
class Subscriber:
    """An outlet and what goes through it to be acknowledged, with the other end of the socket."""

    ledger: Ledger
    account: Account
    outlet: Outlet
    inflight: Inflight
    peer: socket.socket
    broken: list[str]
    reader: Connection

    def publish(self, n: int, payload: bytes = b"", qos: int = 1) -> None:
        """Publish number `n` in a turn of its own."""
        publication = Publication("t", payload or b"%d" % n, qos)
        with self.account.turn(publication) as turn:
            turn.send(self.inflight, publication)

    def received(self) -> list[Publish]:
        """What has arrived."""
        found: list[Publish] = []
        while True:
            packet = self.reader.next_packet()
            if packet is NEED_DATA:
                try:
                    self.reader.receive_data(self.peer.recv(1 << 20))
                except BlockingIOError:
                    return found
            else:
                assert isinstance(packet, Publish)
                found.append(packet)


@asynccontextmanager
async def subscriber(
    window: int = 4,
    framing: Framing | None = None,
) -> AsyncGenerator[Subscriber]:
    ledger = Ledger()
    broken: list[str] = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    reader = Connection(Role.CLIENT)
    reader.send(Connect())
    reader.receive_data(encode(ConnAck(False, 0)))
    reader.next_packet()
    assert reader.state is State.CONNECTED
    with ours, theirs:
        async with open_flusher() as flusher:
            outlet = Outlet(ledger, flusher, ours, "S", frame=frame, on_broken=broken.append)
            inflight = Inflight(
                ledger,
                outlet,
                "S",
                window=window,
                on_broken=broken.append,
                framing=framing,
            )
            yield Subscriber(ledger, ledger.open("a"), outlet, inflight, theirs, broken, reader)
            outlet.close()
            inflight.close()
            inflight.close()
    ledger.audit()
    assert ledger.statistics().debt_items == ledger.statistics().debt_bytes == 0
    assert len(inflight) == 0


async def test_it_is_owed_for_until_it_is_acknowledged() -> None:
    async with subscriber() as s:
        s.publish(1, b"payload")
        (packet,) = s.received()
        assert (packet.topic, packet.payload, packet.qos, packet.dup) == ("t", b"payload", 1, False)
        assert (s.account.debt_items, s.account.debt_bytes) == (1, 8)
        s.ledger.audit()
        s.inflight.acknowledged(packet.packet_id)
        assert s.account.debt_items == 0
        assert s.ledger.repaid_items[Outcome.ACKED] == 1
        s.inflight.acknowledged(packet.packet_id)
        s.inflight.acknowledged(77)
        assert s.ledger.repaid_items[Outcome.ACKED] == 1


async def test_with_qos_2_it_is_owed_for_until_it_is_received() -> None:
    async with subscriber(window=1) as s:
        s.publish(1, b"payload", qos=2)
        s.publish(2, qos=2)
        (packet,) = s.received()
        assert (packet.qos, packet.payload) == (2, b"payload")
        with pytest.raises(RemoteProtocolError, match="PUBACK for packet 1, which was sent with"):
            s.inflight.acknowledged(packet.packet_id)
        assert s.account.debt_items == 2
        s.inflight.received(packet.packet_id)
        assert s.account.debt_items == 1
        s.ledger.audit()
        s.inflight.received(packet.packet_id)
        s.outlet.ready()
        assert s.received() == []  # the window is full until it is released
        s.inflight.completed(packet.packet_id)
        s.inflight.completed(packet.packet_id)
        s.outlet.ready()
        (second,) = s.received()
        assert second.payload == b"2"
        s.ledger.audit()


async def test_a_subscription_that_was_granted_qos_1_gets_no_more() -> None:
    async with subscriber() as s:
        once = AtLeastOnce(s.inflight)
        publication = Publication("t", b"x", 2, retain=True)
        with s.account.turn(publication) as turn:
            turn.send(once, publication)
            turn.send(once, Publication("t", b"y", 1))
        first, second = s.received()
        assert (first.qos, first.payload, first.retain) == (1, b"x", True)
        assert (second.qos, second.payload) == (1, b"y")
        with pytest.raises(RemoteProtocolError, match="PUBREC for packet 2, which was sent with"):
            s.inflight.received(second.packet_id)


async def test_at_most_a_window_is_under_way() -> None:
    async with subscriber(window=4) as s:
        for n in range(10):
            s.publish(n)
        first = s.received()
        assert [p.payload for p in first] == [b"0", b"1", b"2", b"3"]
        assert len(s.inflight) == s.account.debt_items == 10
        assert repr(s.inflight) == "<Inflight S: 4 unacked, 6 waiting>"
        s.inflight.acknowledged(first[2].packet_id)  # in whatever order
        s.outlet.ready()
        (fifth,) = s.received()
        assert fifth.payload == b"4"
        assert fifth.packet_id not in {p.packet_id for p in first}
        s.ledger.audit()


@pytest.mark.parametrize("seed", range(4))
async def test_all_arrive_in_order_each_with_an_identifier_of_its_own(seed: int) -> None:
    chance = random.Random(seed)
    async with subscriber(window=chance.randint(1, 40)) as s:
        under_way: list[int] = []
        got: list[bytes] = []
        published = 0
        while len(got) < 500:
            if published < 500 and chance.random() < 0.6:
                s.publish(published)
                published += 1
            for packet in s.received():
                assert packet.packet_id not in under_way
                under_way.append(packet.packet_id)
                got.append(packet.payload)
            if under_way and chance.random() < 0.7:
                s.inflight.acknowledged(under_way.pop(chance.randrange(len(under_way))))
                s.outlet.ready()
            assert len(s.inflight) == s.account.debt_items
            s.ledger.audit()
        assert got == [b"%d" % n for n in range(500)]


async def test_identifiers_go_round() -> None:
    async with subscriber(window=1) as s:
        seen: set[int] = set()
        for n in range(65_537):
            s.publish(n)
            seen |= {p.packet_id for p in s.received()}
            (packet_id,) = s.inflight.unacked
            s.inflight.acknowledged(packet_id)
        assert min(seen) == 1
        assert max(seen) == 65_535


async def test_given_up_is_written_off_and_said_once() -> None:
    async with subscriber(window=2) as s:
        for n in range(5):
            s.publish(n)
        s.inflight.give_up("it is stuck")
        assert s.broken == ["it is stuck"]
        assert s.account.debt_items == 0
        assert s.ledger.repaid_items[Outcome.WRITTEN_OFF] == 5
        s.publish(6)
        assert s.account.debt_items == 0
        assert s.ledger.repaid_items[Outcome.DROPPED] == 1
        s.inflight.acknowledged(1)
        assert s.ledger.repaid_items[Outcome.ACKED] == 0


@pytest.mark.parametrize("qos", [1, 2])
async def test_each_acknowledgement_changes_what_it_awaits(qos: int) -> None:
    async with subscriber(window=3) as s:
        seen = [s.inflight.symptoms()]
        assert (seen[0].outstanding, seen[0].unsent) == (0, False)
        for n in range(5):
            s.publish(n, qos=qos)
        assert s.inflight.symptoms().unsent is False
        packets = s.received()
        seen.append(s.inflight.symptoms())
        assert seen[1].outstanding == 3
        # In any order, whether others follow or not.
        for packet in (packets[1], packets[2], packets[0]):
            if qos == 1:
                s.inflight.acknowledged(packet.packet_id)
                seen.append(s.inflight.symptoms())
            else:
                s.inflight.received(packet.packet_id)
                seen.append(s.inflight.symptoms())
                s.inflight.completed(packet.packet_id)
                seen.append(s.inflight.symptoms())
        for before, after in pairwise(seen):
            assert before.position != after.position
        assert s.inflight.symptoms() == s.inflight.symptoms()
        for n in range(3):
            s.publish(n, bytes(4 << 20))
        assert s.outlet.blocked
        assert s.inflight.symptoms().unsent


async def test_an_acknowledgement_is_progress() -> None:
    async with subscriber(window=2) as s:
        now = 100.0
        s.ledger.clock = lambda: now
        for n in range(3):
            s.publish(n)
        now = 110.0
        assert s.ledger.holder_statistics(s.inflight).idle_seconds == 10
        s.inflight.acknowledged(s.received()[0].packet_id)
        assert s.ledger.holder_statistics(s.inflight).idle_seconds == 0


async def test_a_large_publication_on_a_slow_line_is_progress() -> None:
    """Not only the acknowledgement, which may be minutes away, but each part of it that leaves."""
    async with subscriber() as s:
        now = 100.0
        s.ledger.clock = lambda: now
        s.publish(1, bytes(4 << 20))
        now = 110.0
        assert s.ledger.holder_statistics(s.inflight).idle_seconds == 10
        for _ in range(100):
            s.peer.recv(1 << 20)
            await trio.testing.wait_all_tasks_blocked()
            if s.outlet.progressed_at == now:
                break
        assert s.outlet.queue
        assert s.ledger.holder_statistics(s.inflight).idle_seconds == 0


async def test_a_delivery_without_a_charge_is_found() -> None:
    async with subscriber() as s:
        s.inflight.hold(s.account, Publication("t", b"stowaway", 1), 1, 9, s.ledger.clock())
        with pytest.raises(AuditError, match=r"account a owes 0 items .*have 1 items and 9"):
            s.ledger.audit()
        s.account.borrow(1, 9)


# --- packets of one's own (MQTT 5) --------------------------------------------------------------


class NoBangs(Framing):
    """Makes packets, but of no payload that begins with a bang."""

    def frame(self, publication: Publication, packet_id: int = 0, dup: bool = False) -> bytes:
        if publication.payload.startswith(b"!"):
            return b""
        return encode_publish("framed", publication.payload, publication.qos, packet_id=packet_id)


async def test_who_gives_packets_of_its_own_may_drop_some() -> None:
    async with subscriber(window=2, framing=NoBangs()) as s:
        for payload in (b"!0", b"1", b"!2", b"!3", b"4", b"!5", b"6"):
            s.publish(0, payload)
        first = s.received()
        assert [(p.topic, p.payload) for p in first] == [("framed", b"1"), ("framed", b"4")]
        # What came while the window was full is looked at when it is its turn.
        assert s.ledger.repaid_items[Outcome.DROPPED] == 3
        s.ledger.audit()
        for packet in first:
            s.inflight.acknowledged(packet.packet_id)
        s.outlet.ready()
        assert [p.payload for p in s.received()] == [b"6"]
        assert s.ledger.repaid_items[Outcome.DROPPED] == 4
        assert s.account.debt_items == len(s.inflight) == 1


async def test_what_has_expired_is_not_sent() -> None:
    now = 90.0
    async with subscriber(window=1, framing=Framing(lambda: now)) as s:
        s.publish(1)
        for n, expires in ((2, 99.0), (3, None), (4, 101.0)):
            publication = Publication("t", b"%d" % n, 1, expires=expires)
            with s.account.turn(publication) as turn:
                turn.send(s.inflight, publication)
        now = 100.0
        (one,) = s.received()
        s.inflight.acknowledged(one.packet_id)
        s.outlet.ready()
        (three,) = s.received()
        assert three.payload == b"3"
        assert s.ledger.repaid_items[Outcome.EXPIRED] == 1
        now = 101.0
        s.inflight.acknowledged(three.packet_id)
        s.outlet.ready()
        assert s.received() == []
        assert s.ledger.repaid_items[Outcome.EXPIRED] == 2
        assert s.account.debt_items == len(s.inflight) == 0


async def test_what_is_dropped_is_no_progress() -> None:
    async with subscriber(framing=NoBangs()) as s:
        now = 100.0
        s.ledger.clock = lambda: now
        s.publish(1)
        now = 110.0
        s.publish(0, b"!")
        assert s.ledger.holder_statistics(s.inflight).idle_seconds == 10


async def test_a_publication_that_is_refused_is_over() -> None:
    """MQTT 5, section 4.3.3: without PUBREL, and its identifier may be used again."""
    async with subscriber(window=1) as s:
        s.publish(1, qos=2)
        s.publish(2, qos=1)
        (packet,) = s.received()
        assert s.inflight.refused(packet.packet_id)
        assert not s.inflight.refused(packet.packet_id)
        s.outlet.ready()
        (second,) = s.received()
        assert second.payload == b"2"
        assert not s.inflight.releasing
        assert s.ledger.repaid_items[Outcome.REJECTED] == 1
        with pytest.raises(RemoteProtocolError, match="PUBREC for packet 2, which was sent with"):
            s.inflight.refused(second.packet_id)
        s.ledger.audit()


async def test_a_lower_qos_changes_nothing_else() -> None:
    got: list[Publication] = []

    class Noting(Framing):
        def frame(self, publication: Publication, packet_id: int = 0, dup: bool = False) -> bytes:
            got.append(publication)
            return b""

    async with subscriber(framing=Noting()) as s:
        publication = Publication("t", b"x", 2, True, b"p", 4e9, True)
        with s.account.turn(publication) as turn:
            turn.send(AtLeastOnce(s.inflight), publication)
        assert got == [attrs.evolve(publication, qos=1)]
        assert got[0].was_retained


# -- in rounds -------------------------------------------------------------------------------------


async def sent_in_turn(s: Subscriber, count: int) -> list[bytes]:
    """Acknowledge one after the other; return what came."""
    came: list[bytes] = []
    while len(came) < count:
        s.outlet.ready()
        for packet in s.received():
            came.append(packet.payload)
            s.inflight.acknowledged(packet.packet_id)
            s.ledger.audit()
    return came


def from_two(s: Subscriber) -> tuple[list[bytes], list[bytes]]:
    """Let one publisher have a backlog, and another one publish a little; return their payloads."""
    noisy = [b"noisy %02d" % n + bytes(1_000) for n in range(60)]
    quiet = [b"quiet %d" % n for n in range(5)]
    account, other = s.account, s.ledger.open("b")
    for payload in noisy:
        s.publish(1, payload)
    s.account = other
    for payload in quiet:
        s.publish(1, payload)
    s.account = account
    return noisy, quiet


@pytest.mark.parametrize("fair", [True, False])
async def test_publishers_are_served_in_rounds(fair: bool) -> None:
    async with subscriber(window=3) as s:
        s.inflight.fair = fair
        noisy, quiet = from_two(s)
        assert len(s.inflight) == 65
        s.ledger.audit()
        came = await sent_in_turn(s, 65)
        assert [x for x in came if x.startswith(b"noisy")] == noisy
        assert [x for x in came if x.startswith(b"quiet")] == quiet
        # Those before them had waited already when nobody else did, or are of the same rounds.
        last = max(n for n, x in enumerate(came) if x.startswith(b"quiet"))
        assert (last < 20) == fair
        # Later it is as ever.
        s.publish(1, b"later")
        assert await sent_in_turn(s, 1) == [b"later"]
        assert not s.inflight.is_backlogged


async def test_there_are_no_rounds_where_the_order_has_to_be_kept() -> None:
    async with subscriber(window=3) as s:
        s.inflight.fair = True
        account = s.account
        from_two(s)
        s.inflight.keep_order()
        s.account = s.ledger.open("c")
        s.publish(1, b"last")
        s.account = account
        assert (await sent_in_turn(s, 66))[-1] == b"last"


async def test_closed_with_a_backlog_of_several_it_owes_nothing() -> None:
    async with subscriber(window=3) as s:
        s.inflight.fair = True
        from_two(s)
        assert s.inflight.is_backlogged
        assert not s.inflight.room.has_room
        s.inflight.close()
        s.ledger.audit()
        assert not s.ledger.statistics().debt_items
