"""What a stuck client has to acknowledge is put aside: all of it comes, once, in order."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import (
    Account,
    Holder,
    Ledger,
    Limit,
    Outcome,
    StuckPolicy,
    UnfitPolicyError,
)
from clearfunds.dataspace import Publication
from clearfunds.persistence import open_ram_shelves
from clearfunds.persistence._spool import Spool
from clearfunds.transports import Outlet, open_flusher
from clearfunds.transports.mqtt.codec._packets import encode_publish
from clearfunds.transports.mqtt.server._droppable import packets_of, with_packet_id
from clearfunds.transports.mqtt.server._inflight import Inflight
from tests.transports.peers import until


@attrs.define
class Client:
    """What goes to a client, and what it says to it."""

    ledger: Ledger
    publisher: Account
    outlet: Outlet
    inflight: Inflight
    sock: socket.socket
    broken: list[str]
    sent: int = 0
    got: list[int] = attrs.field(factory=list[int])
    unacked: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])

    def publish(self, qos: int, size: int = 10) -> None:
        publication = Publication("t", b"%06d" % self.sent + bytes(size), qos)
        self.sent += 1
        with self.publisher.turn(publication) as turn:
            turn.send(self.inflight, publication, nbytes=publication.nbytes)

    def read(self) -> None:
        """Take what has come."""
        data = b""
        with suppress(BlockingIOError):
            while piece := self.sock.recv(1 << 20):
                data += piece
        for packet in packets_of(data):
            assert packet[0] & 0x06
            qos = packet[0] >> 1 & 3
            at = packet.index(b"\x00\x01t") + 3
            self.unacked.append((int.from_bytes(packet[at : at + 2], "big"), qos))
            self.got.append(int(packet[at + 2 : at + 8]))

    def acknowledge(self, how_many: int) -> None:
        for packet_id, qos in self.unacked[:how_many]:
            if qos == 1:
                self.inflight.acknowledged(packet_id)
            else:
                assert self.inflight.received(packet_id)
                self.inflight.completed(packet_id)
        del self.unacked[:how_many]
        self.outlet.ready()


@asynccontextmanager
async def client(window: int = 4, limit: int | None = None) -> AsyncGenerator[Client]:
    ledger = Ledger()
    broken: list[str] = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    at_rest = ledger.open("kept", limit=Limit(items=None, bytes=None), at_rest="ram")
    with ours, theirs:
        async with open_flusher() as flusher, open_ram_shelves(flusher) as shelves:

            def open_spool(holder: Holder, on_more: Any, on_over: Any) -> Spool:
                account = ledger.open("spill", limit=Limit(items=limit, bytes=None), parent=at_rest)
                return Spool(holder, shelves, account, "spill", on_more=on_more, on_over=on_over)

            outlet = Outlet(ledger, flusher, ours, "S", on_broken=broken.append)
            inflight = Inflight(
                ledger, outlet, "S", window=window, on_broken=broken.append,
                policy=StuckPolicy.SPILL, open_spool=open_spool,
            )  # fmt: skip
            found = Client(ledger, ledger.open("p"), outlet, inflight, theirs, broken)
            yield found
            ledger.audit()
            outlet.close()
            inflight.close()
            inflight.close()
    ledger.audit()
    assert all(not account.debt_items for account in ledger.accounts.values())
    assert len(inflight) == 0
    assert not ledger.lagging


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([1, 2]), st.integers(0, 300)),
        st.tuples(st.just("ack"), st.integers(1, 5)),
        st.sampled_from([("read",), ("relieve",), ("yield",), ("yield",)]),
    ),
    max_size=60,
)


@given(steps=STEPS, fair=st.booleans())
@settings(max_examples=60, deadline=None)
async def test_all_of_it_comes_once_and_in_order(steps: list[tuple[Any, ...]], fair: bool) -> None:
    async with client() as c:
        c.inflight.fair = fair
        for step in steps:
            if step[0] == "publish":
                c.publish(step[1], step[2])
            elif step[0] == "ack":
                c.acknowledge(step[1])
            elif step[0] == "read":
                c.read()
            elif step[0] == "relieve":
                c.inflight.relieve("it is stuck")
            else:
                await trio.lowlevel.checkpoint()
            c.ledger.audit()
        with trio.fail_after(20):
            while c.inflight:
                c.read()
                c.acknowledge(100)
                await trio.lowlevel.checkpoint()
        assert c.got == list(range(c.sent))
        assert c.ledger.repaid_items[Outcome.ACKED] == c.sent
        assert c.ledger.repaid_items[Outcome.DROPPED] == 0
        # What comes next finds out that it has caught up.
        c.publish(1)
        assert not c.inflight.lagging


async def test_nobody_waits_for_its_acknowledgements() -> None:
    async with client() as c:
        c.publisher.limit = Limit(items=0)
        for n in range(50):
            c.publish(1 + n % 2)
            if n == 10:
                assert not c.publisher.funds_are_clear()
                c.inflight.relieve("it is stuck")
            if n >= 10:
                await until(lambda: not c.publisher.debt_items)
        assert len(c.inflight) == 50
        assert c.inflight.relief.stored_items == 46  # a window was under way
        c.read()
        c.acknowledge(4)
        await until(lambda: len(c.inflight.unacked) == 4)
        # What it is sent then is not theirs either.
        assert not c.publisher.debt_items


async def test_without_room_its_publishers_wait_and_then_it_is_disconnected() -> None:
    async with client(limit=20) as c:
        c.publisher.limit = Limit(items=0)  # few messages wait for more, unless somebody waits
        for n in range(40):
            c.publish(1)
            if n == 10:
                c.inflight.relieve("it is stuck")
            await trio.lowlevel.checkpoint()
        assert not c.inflight.closed
        assert c.inflight.full_patience is not None
        assert c.inflight.policy is StuckPolicy.DISCONNECT
        assert c.publisher.debt_items > 0
        c.ledger.audit()
        c.inflight.give_up("nobody takes it")
        assert c.broken == ["nobody takes it"]
        assert not c.publisher.debt_items


async def test_where_nothing_can_be_put_aside_it_cannot_be_told_to() -> None:
    async with client() as c:
        with pytest.raises(UnfitPolicyError, match="nowhere to put aside"):
            Inflight(c.ledger, c.outlet, "S", on_broken=c.broken.append, policy=StuckPolicy.SPILL)
        with pytest.raises(UnfitPolicyError, match="cannot conflate"):
            c.inflight.policy = StuckPolicy.CONFLATE


@given(st.text("ab/é", min_size=1, max_size=200), st.integers(0, 20_000), st.sampled_from([1, 2]))
@settings(max_examples=40, deadline=None)
def test_a_packet_gets_another_identifier(topic: str, size: int, qos: int) -> None:
    one, other = (
        encode_publish(topic, bytes(size), qos=qos, packet_id=number) for number in (1, 54_321)
    )
    assert with_packet_id(one, 54_321) == other


async def test_what_is_not_to_be_sent_is_not_put_aside_either() -> None:
    async with client(window=1) as c:
        c.publish(1)
        c.inflight.relieve("it is stuck")
        for expires in (1.0, 4e9):
            publication = Publication("t", b"%06d" % c.sent, 1, expires=expires)
            c.sent += 1
            with c.publisher.turn(publication) as turn:
                turn.send(c.inflight, publication)
        assert c.ledger.repaid_items[Outcome.EXPIRED] == 1
        c.ledger.audit()
        with trio.fail_after(10):
            while len(c.got) < 2:
                c.read()
                c.acknowledge(1)
                await trio.sleep(0.01)
        assert c.got == [0, 2]
