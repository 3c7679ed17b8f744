"""Sessions fed with whatever hypothesis makes up, cut into whatever pieces.

Nothing but clean closes comes of it: no error of the relay's own, books that balance at every look,
and nothing left at the end; and the client next to it is served.

No session is kept here, and each piece is dealt with before the next comes: so nothing is due when
DISCONNECT comes. For that see `test_session5_fuzz` and `test_whole_packets`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from clearfunds.access._account_tree import AccountTree
from clearfunds.access._tenants import Tenant
from clearfunds.accounts import Ledger, Limit
from clearfunds.dataspace import Dataspace
from clearfunds.transports import Link, ServerSettings, open_flusher
from clearfunds.transports.mqtt import (
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Unsubscribe,
    Will,
    encode,
)
from clearfunds.transports.mqtt.server._server import MqttServer

topics = st.sampled_from(["a", "a/b", "b", "a/b/c", "$SYS/x", "t" * 70, "/", "ä"])
filters = st.sampled_from(
    ["#", "+", "a/#", "a/+", "b", "+/b/#", "$SYS/#", "f" * 70, "$share/g/a", "$share/g/#"]
)
payloads = st.sampled_from([b"", b"x", bytes(100), bytes(3000)])
packet_ids = st.integers(1, 5)
wills = st.none() | st.builds(Will, topics, payloads, st.integers(0, 2), st.booleans())


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    qos = draw(st.integers(0, 2))
    packet_id = draw(packet_ids) if qos else 0
    dup = bool(qos) and draw(st.booleans())
    return Publish(draw(topics), draw(payloads), qos, draw(st.booleans()), dup, packet_id)


connects = st.builds(
    Connect,
    st.sampled_from(["", "fuzz", "twin", "n" * 70]),
    keep_alive=st.integers(0, 3),
    will=wills,
)
proper: st.SearchStrategy[Packet] = st.one_of(
    publishes(),
    publishes(),
    st.builds(
        Subscribe,
        packet_ids,
        st.lists(st.tuples(filters, st.integers(0, 2)), min_size=1, max_size=4).map(tuple),
    ),
    st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=3).map(tuple)),
    st.builds(PubAck, packet_ids),
    st.builds(PubRel, packet_ids),
    st.just(PingReq()),
)
improper: st.SearchStrategy[Packet] = st.one_of(
    connects,
    st.just(Disconnect()),
    st.builds(PubRec, packet_ids),
    st.builds(PubComp, packet_ids),
    st.just(SubAck(1, (0,))),
)
pieces = st.one_of(
    st.lists(proper, min_size=1, max_size=12).map(lambda ps: b"".join(map(encode, ps))),
    st.lists(proper, min_size=1, max_size=12).map(lambda ps: b"".join(map(encode, ps))),
    # Together with what ends the connection: said alone, all that came before it was over then.
    st.tuples(st.lists(proper, min_size=1, max_size=6), improper).map(
        lambda said: b"".join(map(encode, [*said[0], said[1]]))
    ),
    publishes().map(lambda p: encode(p) * 20),
    improper.map(encode),
    st.binary(max_size=8),
)


@attrs.define
class Served:
    """A server without listeners; its sessions have socket pairs."""

    server: MqttServer
    nursery: trio.Nursery

    def connect(self, receive: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, receive)
        ours.setblocking(False)
        theirs.setblocking(False)
        self.nursery.start_soon(self.server.handle, Link(ours, "pair"), "test")
        return theirs


SETTINGS = ServerSettings(
    limit_items=5,
    limit_bytes=20_000,
    max_packet_size=4000,
    max_subscriptions=3,
    max_client_id=64,
    max_inflight=2,
    max_awaiting_release=3,
    max_topic_length=64,
    max_topic_levels=3,
)
"""Small limits, so that what clients draw comes to them."""

TENANTS = (
    Tenant(name="by", topic=("a/#",), items=6),
    Tenant(name="twin", client=("twin",), users=True, weight=2.0),
    Tenant(name="too", topic=("+/+/c", "b")),
    Tenant(name="rest", default=True),
)


@asynccontextmanager
async def served(tenants: tuple[Tenant, ...] = ()) -> AsyncGenerator[Served]:
    ledger = Ledger()
    async with open_flusher() as flusher:
        limit = Limit(items=12, bytes=None)
        account = ledger.open("server", limit=limit, shared=bool(tenants))
        tree = AccountTree(account, tenants)
        server = MqttServer(
            Dataspace(ledger, max_retained=3), flusher, account, SETTINGS, tree=tree
        )
        async with trio.open_nursery() as nursery:
            yield Served(server, nursery)
            nursery.cancel_scope.cancel()
        assert not flusher.nursery.child_tasks
    tree.close_all()
    ledger.audit()
    assert set(ledger.accounts) == {"server"}
    assert account.debt_items == account.debt_bytes == 0
    assert [holder.kind for holder in ledger.holders] == ["router"]
    assert len(server.dataspace.routes) == 0
    assert not server.open
    assert not server.sessions


def drain(sock: socket.socket) -> bytes:
    """All that has come; b"" also when the other side has closed."""
    data = b""
    try:
        while piece := sock.recv(1 << 20):
            data += piece
    except (BlockingIOError, ConnectionResetError):
        pass
    return data


async def feed(
    hello: bytes, said: list[tuple[int, bytes]], ends: bool, tenants: tuple[Tenant, ...] = ()
) -> None:
    """Let two clients say `hello` and then their pieces; those with a number above 1 read, too."""
    async with served(tenants) as s:
        server = s.server
        calm = s.connect(1 << 20)
        fuzzed = [s.connect(4096), s.connect(1 << 20)]
        calm.send(encode(Connect("calm")) + encode(Subscribe(1, (("calm", 0),))))
        await wait_all_tasks_blocked()
        assert drain(calm) == b"\x20\x02\x00\x00\x90\x03\x00\x01\x00"
        for sock in fuzzed:
            sock.send(hello)
        for number, piece in said:
            sock = fuzzed[number % 2]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                sock.send(piece)
            await wait_all_tasks_blocked()
            server.ledger.audit()
            if number > 1:
                drain(sock)
        if ends:
            for sock in fuzzed:
                sock.shutdown(socket.SHUT_WR)
            await wait_all_tasks_blocked()
            server.ledger.audit()
        calm.send(encode(Publish("calm", b"?")))
        await wait_all_tasks_blocked()
        answer = drain(calm)
        if not answer:
            # The limit of all together holds it up: they have to read, or to go.
            for sock in fuzzed:
                sock.close()
            await wait_all_tasks_blocked()
            answer = drain(calm)
        assert answer == encode(Publish("calm", b"?"))
        assert server.counters.internal_errors == 0
        for sock in (calm, *fuzzed):
            sock.close()


@settings(max_examples=300, deadline=None)
@given(
    connects.map(encode) | st.just(encode(Connect("fuzz"))),
    st.lists(st.tuples(st.integers(0, 3), pieces), max_size=20),
    st.booleans(),
)
def test_nothing_but_clean_closes(hello: bytes, said: list[tuple[int, bytes]], ends: bool) -> None:
    run(hello, said, ends)


@settings(max_examples=100, deadline=None)
@given(
    connects.map(encode) | st.just(encode(Connect("fuzz"))),
    st.lists(st.tuples(st.integers(0, 3), pieces), max_size=20),
    st.booleans(),
)
def test_nothing_but_clean_closes_where_publications_have_tenants(
    hello: bytes, said: list[tuple[int, bytes]], ends: bool
) -> None:
    run(hello, said, ends, TENANTS)


def run(
    hello: bytes, said: list[tuple[int, bytes]], ends: bool, tenants: tuple[Tenant, ...] = ()
) -> None:
    """Feed it in a loop of its own, without the warnings."""
    logging.getLogger("clearfunds").setLevel(logging.ERROR)
    try:
        trio.run(feed, hello, said, ends, tenants)
    finally:
        logging.getLogger("clearfunds").setLevel(logging.NOTSET)
