"""Peers that mean harm: what one says, or leaves undone, reaches nobody else, nor the relay itself.

Each of these once did. Garbage, which is refused as such, is in `test_garbage.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing

from clearfunds.transports.syndicate import Connection, MembraneStatistics, encode
from clearfunds.transports.syndicate._connection import State
from clearfunds.transports.syndicate._incoming import MAX_LOOKAHEAD
from clearfunds.transports.syndicate._packets import Error
from clearfunds.transports.syndicate._preserves import canonical, decode_binary
from clearfunds.transports.syndicate._receiver import RETIRE_STEP, Receiver
from clearfunds.transports.syndicate._session import SyndicateSession
from clearfunds.transports.syndicate._values import places_of
from tests.transports.peers import log_of, until
from tests.transports.syndicate.relay.peers import (
    BIND,
    TCP,
    WHOLE_SAYS,
    Peer,
    SyndicateRelay,
    flat,
    observe,
    rec,
    relay,
    says,
    wire,
)

SYNDICATE = "clearfunds.transports.syndicate"

WS = "syndicate+ws://127.0.0.1:0"

LITTLE = 4096
"""A receive buffer that is soon full."""

SIZE = 8 << 20
"""More than the kernel takes for a peer that does not read."""

SAYS_LARGE = wire(says('"@"')).replace(canonical("@"), canonical("x" * SIZE))

ENOUGH_TO_WAIT = says(f'"{"x" * 2_000}"')
"""Who says this in `blocked` has to wait."""

DO = "<do <credit-flow-control 202506>>"
WILL = "<will <credit-flow-control 202506>>"


def session(served: SyndicateRelay, peer: Peer) -> SyndicateSession:
    """The relay's end of a peer's connection."""
    account = served.account(peer)
    (found,) = [each for each in served.side.open if each.account is account]
    return found


def inside(thing: object, name: str) -> Any:
    """Look at what is nobody's business but a test's."""
    return getattr(thing, name)


def known(session: SyndicateSession) -> MembraneStatistics:
    """What the two sides of a connection know of each other."""
    found: MembraneStatistics = inside(session, "_membrane").statistics()
    return found


def oid_in(line: str) -> int:
    """The number of the reference that ends a line such as `1 + [#:[0 5]]`."""
    return int(line.rstrip("]>").rpartition(" ")[2])


async def given(peer: Peer) -> int:
    """Return by which number the peer knows what it has just been given."""
    (line,) = await peer.told()
    return oid_in(line)


async def unharmed(*peers: Peer) -> None:
    """See that these are still connected, and are told nothing."""
    for peer in peers:
        assert await peer.sync() == []


@asynccontextmanager
async def blocked(**settings: Any) -> AsyncGenerator[tuple[SyndicateRelay, Peer]]:
    """Run a relay in which an observer of `<Says ...>` has not read what one peer has said.

    1,000 bytes more for it are too much to owe.
    """
    settings = {
        "limit_bytes": 1_000,
        "max_packet_size": 2 * SIZE,
        "patience": 60,
        "listen": (TCP, WS),
        **settings,
    }
    async with (
        relay(**settings) as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as filler,
    ):
        await stuck.send(observe(rec("Says", BIND)))
        await stuck.sync()
        await filler.sync()
        await filler.send_raw(SAYS_LARGE)
        await until(lambda: served.account(filler).waiting)
        yield served, stuck


async def read_all(peer: Peer) -> None:
    """Read until cancelled, or until the relay has closed the connection."""
    with suppress(trio.BrokenResourceError):
        while await peer.stream.receive_some(1 << 20):
            pass


def frame(payload: bytes, opcode: int = 2) -> bytes:
    """A client's WebSocket frame; its mask is 0."""
    assert len(payload) < 1 << 16
    if len(payload) > 125:
        length = b"\xfe" + len(payload).to_bytes(2)
    else:
        length = bytes([0x80 | len(payload)])
    return bytes([0x80 | opcode]) + length + b"\0\0\0\0" + payload


PING = frame(b"", 9)
PONG = b"\x8a\x00"


@asynccontextmanager
async def web(served: SyndicateRelay, *, receive_buffer: int | None = None) -> AsyncGenerator[Peer]:
    """Connect by WebSocket, without a client that would do anything unasked."""
    async with served.peer(1, receive_buffer=receive_buffer) as peer:
        await peer.send_raw(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await peer.stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 101 ")
        yield peer


# -- peers that leave -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["leave", "reset", "stop"])
async def test_who_leaves_very_many_assertions_behind(how: str) -> None:
    count = RETIRE_STEP + 1
    async with relay() as served, served.peer() as observer, served.peer() as peer:
        await observer.send(observe(rec("State", BIND)))
        await observer.sync()
        events = [f"[0 <A <State {n}> {n}>]" for n in range(count)]
        await peer.send(f"[{' '.join(events)}]")
        await peer.sync()
        assert len(flat(await observer.sync())) == count
        if how == "stop":
            # All leave at once: see `relay` for what must not be left of them.
            served.running.relay.stop()
            await peer.ended()
            return
        await (peer.leave() if how == "leave" else peer.reset())
        gone = await observer.lines(count)
        assert all(line.startswith("1 - [") for line in gone)
        assert observer.standing == {}
        await until(lambda: len(served.ledger.accounts) == 3)
        assert served.statistics.assertions == 1
        served.audit()


@pytest.mark.parametrize("last", ["within a packet", "within a packet, and credit"])
async def test_who_leaves_within_a_packet_does_not_keep_the_relay_busy(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked ahead again and again until the debt was paid."""
    looks = steps = 0
    look_ahead, process = (
        inside(SyndicateSession, name) for name in ("_look_ahead", "_handle_input")
    )

    async def counted(self: SyndicateSession, wait: trio.CancelScope) -> None:
        nonlocal looks
        looks += self is left
        await look_ahead(self, wait)

    def step(self: SyndicateSession) -> bool:
        nonlocal steps
        steps += self is left
        more: bool = process(self)
        return more

    credit = {"turn_credit": "request"} if last.endswith("credit") else {}
    async with (
        relay(limit_bytes=1_000, max_packet_size=2 * SIZE, patience=60, **credit) as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as peer,
    ):
        if credit:
            await stuck.packet()
            await peer.packet()
            await peer.send(WILL)
        await stuck.send(observe(rec("Says", BIND)))
        await stuck.sync()
        await peer.sync()
        left = session(served, peer)
        monkeypatch.setattr(SyndicateSession, "_look_ahead", counted)
        monkeypatch.setattr(SyndicateSession, "_handle_input", step)
        await peer.send_raw(SAYS_LARGE + SAYS_LARGE[:50])
        await until(lambda: left.account.waiting and looks)
        before = steps
        await peer.leave()
        await until(lambda: len(served.side.open) == 1)
        assert looks == 1
        assert steps - before <= 2
        served.audit()


# -- what a peer cannot be told -------------------------------------------------------------------


DEEP = b"\xb5" * 60 + b"\x81" + b"\x84" * 60
"""As deep as it can be in a packet; what tells of it is deeper."""


@pytest.mark.parametrize(
    ("packet", "count"),
    [
        ('[[0 <M <Says "@" "tail">>]]', 3),  # the third is known again
        ('[[0 <M <Says "@" 1>>]]', 1),
        ('[[0 <M <Says "@">>] [0 <M <Other>>]]', 1),
        ('[[0 <A <Says "@"> 5>]]', 1),
    ],
)
async def test_how_deep_a_text_peer_is_told_is_not_the_publishers_fault(
    packet: str, count: int
) -> None:
    """It was read again, as if it had come from a peer, and that raised in the publisher's turn."""
    async with (
        relay(patience=60) as served,
        served.peer(text=True) as reader,
        served.peer() as publisher,
    ):
        await reader.send(observe(WHOLE_SAYS))
        await reader.sync()
        data = wire(packet).replace(canonical("@"), DEEP)
        for _ in range(count):
            await publisher.send_raw(data)
            await publisher.sync()
            reader.connection = Connection(max_depth=100)
            assert b"[" * 60 in await reader.raw_packet()
        served.audit()
        assert len(served.side.open) == 2


async def test_a_websocket_that_takes_its_leave_is_told_nothing_more() -> None:
    async with relay(listen=(TCP, WS)) as served, served.peer() as publisher, web(served) as peer:
        # In text: what was said to it after its error raised in the publisher's turn.
        await peer.send_raw(frame(observe(WHOLE_SAYS).encode()))
        await until(lambda: served.statistics.observations == 1)
        await publisher.send(says("1"), "[[0 <A <Says 2> 2>]]")
        await unharmed(publisher)
        (left,) = [s for s in served.side.open if s.account is not served.account(publisher)]
        await peer.send_raw(frame(b'<error "bye" #f>'))
        await until(lambda: inside(left, "_connection").state is State.CLOSED)
        await publisher.send(
            says("1"), "[[0 <M <Says 1>>] [0 <M <Says 2>>]]", "[[0 <A <Says 3> 3>]]", "[[0 <R 2>]]"
        )
        await unharmed(publisher)
        served.audit()
        await peer.leave()
        await until(lambda: len(served.side.open) == 1)


async def test_what_is_retracted_while_a_websocket_takes_its_leave() -> None:
    """It surfaced where the asserting peer's connection was ended, and ended the relay."""
    async with relay(listen=(TCP, WS)) as served, web(served) as peer:
        await peer.send_raw(frame(observe(rec("foo")).encode()))
        async with served.peer() as other:
            await other.send("[[0 <A <foo> 1>]]")
            await unharmed(other)
            (left,) = [s for s in served.side.open if s.account is not served.account(other)]
            await peer.send_raw(frame(b'<error "bye" #f>'))
            await until(lambda: inside(left, "_connection").state is State.CLOSED)
        async with served.peer() as another:
            await unharmed(another)
        served.audit()


async def test_a_peer_with_garbage_ahead_is_told_nothing_more() -> None:
    """What is found while it waits for funds closes its connection before its turn comes."""
    async with (
        blocked() as (served, _),
        served.peer(text=True) as peer,
        served.peer() as publisher,
    ):
        await peer.send(observe(rec("tell", BIND), 9, 9))
        await peer.sync()
        await peer.send(ENOUGH_TO_WAIT)
        ahead = session(served, peer)
        await until(lambda: ahead.account.waiting)
        await peer.send_raw(b"}garbage")
        await peer.stream.send_eof()
        await until(lambda: inside(ahead, "_eof"))
        await trio.testing.wait_all_tasks_blocked()
        await publisher.send(
            "[[0 <M <tell 1>>]]", "[[0 <A <tell 2> 2>] [0 <M <tell 3>>]]", "[[0 <R 2>]]"
        )
        await unharmed(publisher)
        served.audit()


async def test_a_message_that_cannot_be_said_does_not_end_the_receiver() -> None:
    """A reference that is its sender's, and unknown to it: anybody could have it cut so."""
    async with relay() as served, served.peer() as service, served.peer() as client:
        await service.send("[[0 <A <here #:[0 1]> 1>]]")
        await service.sync()
        await client.send(observe(rec("here", BIND)), "[[0 <A <mine #:[0 7]> 2>]]")
        oid = await given(client)
        await client.send(f"[[{oid} <M <hello #:[0 7]>>]]", f"[[{oid} <M <still>>]]")
        await unharmed(client)
        assert flat(await service.sync()) == ["1 ! <still>"]
        # The same by way of the dataspace.
        await service.send(observe(rec("Says", BIND), 2, 2))
        await service.sync()
        await client.send("[[0 <M <Says #:[0 7]>>]]", says("1"))
        await unharmed(client)
        assert flat(await service.sync()) == ["2 ! [1]"]
        assert len(served.side.open) == 2


async def test_a_sync_that_cannot_be_asked_for_does_not_end_the_receiver() -> None:
    """Each takes a reference of the one that is to answer; there may be so many of them."""
    async with (
        relay(max_references=50) as served,
        served.peer() as service,
        served.peer() as client,
    ):
        await service.send("[[0 <A <here #:[0 1]> 1>]]")
        await service.sync()
        await client.send(observe(rec("here", BIND)))
        oid = await given(client)
        await client.send(*[f"[[{oid} <S #:[0 2]>]]"] * 100)
        await unharmed(client)
        asked = flat(await service.sync())
        assert 0 < len(asked) < 50
        assert len(served.side.open) == 2
        # Those that could be asked for can be answered.
        for line in asked:
            await service.send(f"[[{oid_in(line)} <M #t>]]")
        await service.sync()
        assert flat(await client.sync()) == ["2 ! #t"] * len(asked)


# -- credit ---------------------------------------------------------------------------------------


async def test_credit_that_falls_due_when_the_connection_is_closed() -> None:
    """Saying so raised in the task that keeps the time, and ended the relay."""
    async with (
        blocked() as (served, stuck),
        served.peer() as peer,
        served.peer() as between,
    ):
        await peer.send(DO)
        assert isinstance(await peer.packet(), object)
        await peer.sync()
        ahead = session(served, peer)
        await until(lambda: ahead.turn_credit.uncredited == 0)
        # Two turns that are held in two loans, of which one is done before the other.
        await peer.packet()
        await peer.send(says(f'"{"x" * 300}"'))
        await until(lambda: ahead.turn_credit.uncredited == 1)
        await between.send(says('"y"'))
        await between.sync()
        await peer.send_raw(SAYS_LARGE)
        await until(lambda: ahead.account.waiting)
        assert ahead.turn_credit.uncredited == 2
        await peer.send_raw(b"\x01garbage")
        await peer.stream.send_eof()
        await until(lambda: inside(ahead, "_eof"))
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                for _ in range(3):
                    await stuck.raw_packet()

            nursery.start_soon(read)
        await until(lambda: ahead.turn_credit.uncredited < 2)
        await unharmed(between)
        served.audit()


@pytest.mark.parametrize("last", ["error", "garbage"])
async def test_what_is_asked_before_the_end_that_is_found_ahead(last: str) -> None:
    """The answers cannot be said any more when their turn comes."""
    async with blocked() as (served, stuck), served.peer() as peer:
        await peer.sync()
        ahead = session(served, peer)
        await peer.send(ENOUGH_TO_WAIT)
        await until(lambda: ahead.account.waiting)
        data = wire(DO, "[[0 <S #:[0 3]>]]", "[[0 <A <x> 1>] [0 <R 1>]]")
        await peer.send_raw(data + (wire('<error "x" 1>') if last == "error" else b"\x01"))
        await peer.stream.send_eof()
        await until(lambda: inside(ahead, "_eof"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, stuck)
            await until(lambda: ahead not in served.side.open)
            nursery.cancel_scope.cancel()
        served.audit()


async def test_credit_given_ahead_settles_nothing_that_has_not_been_sent() -> None:
    """Or who gives credit and does not read would have the relay keep what nobody owes for."""
    async with (
        relay(
            turn_credit="request", limit_bytes=1_000, max_packet_size=2 * SIZE, patience=60
        ) as served,
        served.peer(receive_buffer=LITTLE) as generous,
        served.peer() as publisher,
        served.peer() as witness,
    ):
        for peer in generous, publisher, witness:
            await peer.packet()
        await witness.send(observe(rec("seen")))
        await witness.sync()
        await generous.send(WILL, observe(rec("Says", BIND)))
        await generous.sync()
        account = served.account(publisher)
        outlet = session(served, generous).outlet

        async def say() -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                for _ in range(6):
                    await publisher.send_raw(SAYS_LARGE)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(say)
            await until(lambda: account.waiting)
            for n in range(10):
                await generous.send("<C 1000000>", "[[0 <M <seen>>]]")
                assert await witness.told() == ["1 ! []"], n
                await trio.sleep(0.01)
                # One may be on its way, and one be waited for.
                assert sum(len(piece) for loan in outlet.queue for piece in loan.item) < 3 * SIZE
            assert account.debt_bytes > 1_000
            served.audit()
            nursery.cancel_scope.cancel()


async def test_nops_ahead_are_dropped_and_packets_ahead_are_bounded() -> None:
    async with (
        relay(
            turn_credit="request", limit_bytes=1_000, max_packet_size=2 * SIZE, patience=60
        ) as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as filler,
        served.peer() as peer,
    ):
        for each in stuck, filler, peer:
            await each.packet()
        await stuck.send(observe(rec("Says", BIND)))
        await stuck.sync()
        await filler.send_raw(SAYS_LARGE)
        await until(lambda: any(s.account.waiting for s in served.side.open))
        await peer.send(WILL, observe('<lit "own">'))
        await peer.sync()
        await peer.send('[[0 <M "own">]]', ENOUGH_TO_WAIT)
        ahead = session(served, peer)
        await until(lambda: ahead.account.waiting)
        counters = served.side.counters
        for data, most in ((b"\x80", 0), (b"\xb5\x84", MAX_LOOKAHEAD)):
            goal = counters.received_bytes + 50_000 * len(data)
            await peer.send_raw(data * 50_000)
            await until(lambda: counters.received_bytes >= goal)  # noqa: B023
            await trio.sleep(0.1)  # the last of it is looked at
            assert len(inside(ahead, "_incoming").lookahead) <= most
        served.audit()


# -- WebSocket ------------------------------------------------------------------------------------


async def test_pings_are_answered_while_their_connection_waits() -> None:
    """They were answered in the end only, each of them, and who waited was never woken."""
    async with blocked() as (served, stuck), web(served) as peer:
        known = set(served.ledger.accounts)
        assert known
        await peer.send_raw(frame(wire("[[0 <S #:[0 5]>]]")))
        assert b"\x05" in await peer.stream.receive_some()
        (pinging,) = [s for s in served.side.open if inside(s, "_incoming").websocket is not None]
        await peer.send_raw(frame(wire(ENOUGH_TO_WAIT)))
        await until(lambda: pinging.account.waiting)
        owed = pinging.account.debt_items
        for _ in range(200):
            await peer.send_raw(PING)
            with trio.fail_after(5):
                assert await peer.stream.receive_some(2) == PONG
        assert pinging.account.waiting
        assert pinging.account.debt_items <= owed + 1
        served.audit()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, stuck)
            await until(lambda: not pinging.account.debt_items)
            nursery.cancel_scope.cancel()
        await peer.send_raw(frame(wire("[[0 <S #:[0 5]>]]")))
        with trio.fail_after(5):
            assert await peer.stream.receive_some()


async def test_who_pings_and_does_not_read_makes_nothing_grow() -> None:
    """The latest ping alone has to be answered [RFC 6455 section 5.5.3]."""
    async with (
        relay(listen=(TCP, WS), limit_bytes=None, max_packet_size=2 * SIZE, patience=60) as served,
        served.peer() as filler,
        web(served, receive_buffer=LITTLE) as peer,
    ):
        await peer.send_raw(frame(wire(observe(rec("Says", BIND)))))
        await until(lambda: served.statistics.observations == 1)
        (pinging,) = [s for s in served.side.open if inside(s, "_incoming").websocket is not None]
        await filler.send_raw(SAYS_LARGE)
        await unharmed(filler)
        assert pinging.outlet.queue
        counters = served.side.counters
        for _ in range(300):
            before = counters.received_bytes
            await peer.send_raw(PING)
            await until(lambda: counters.received_bytes > before)  # noqa: B023
        assert pinging.account.debt_items <= 1
        assert len(pinging.outlet.queue) <= 2
        served.audit()


async def test_a_ping_that_came_while_nothing_could_be_sent_is_answered_afterwards() -> None:
    """As soon as its peer has read what there was: it need not say anything more."""
    async with (
        relay(listen=(TCP, WS), limit_bytes=None, max_packet_size=2 * SIZE, patience=60) as served,
        served.peer() as filler,
        web(served, receive_buffer=LITTLE) as peer,
    ):
        await peer.send_raw(frame(wire(observe(rec("Says", BIND)))))
        await until(lambda: served.statistics.observations == 1)
        await filler.send_raw(SAYS_LARGE)
        await unharmed(filler)
        counters = served.side.counters
        before = counters.received_bytes
        await peer.send_raw(PING)
        await until(lambda: counters.received_bytes > before)
        last = b""
        with trio.fail_after(5):
            while not last.endswith(PONG):
                last = last[-1:] + await peer.stream.receive_some(1 << 20)


async def test_empty_messages_are_not_held_while_their_connection_waits() -> None:
    """They are no bytes, of which a connection that waits may have so many."""
    async with blocked() as (served, _), web(served) as peer:
        await peer.send_raw(frame(wire("[[0 <S #:[0 5]>]]")))
        assert b"\x05" in await peer.stream.receive_some()
        (empty,) = [s for s in served.side.open if inside(s, "_incoming").websocket is not None]
        await peer.send_raw(frame(wire(ENOUGH_TO_WAIT)))
        await until(lambda: empty.account.waiting)
        data = frame(b"") * 1_000
        goal = served.side.counters.received_bytes + len(data)
        await peer.send_raw(data + frame(wire("[[0 <S #:[0 6]>]]")))
        await until(lambda: served.side.counters.received_bytes > goal)
        await until(lambda: len(inside(empty, "_incoming").messages) == 1)
        assert empty.account.waiting
        served.audit()


# -- references that have been taken back ---------------------------------------------------------


async def test_events_to_what_its_owner_has_taken_back_are_ignored() -> None:
    """They ended the owner's connection; or reached whatever had the number next."""
    async with relay() as served, served.peer() as owner, served.peer() as other:
        await owner.send("[[0 <A <here #:[0 1]> 1>]]")
        await owner.sync()
        await other.send(observe(rec("here", BIND)))
        oid = await given(other)
        await other.send(f"[[0 <A <keep #:[1 {oid}]> 2>] [{oid} <A <before> 3>]]")
        await other.sync()
        assert flat(await owner.sync()) == ["1 + <before>"]
        await owner.send("[[0 <R 1>]]")
        # What was asserted to it keeps it known: so it is until that has been retracted.
        await owner.sync()
        assert len(flat(await other.sync())) == 1
        await other.send("[[0 <R 3>]]")
        await other.sync()
        await other.send(f"[[{oid} <R 3>]]", f"[[{oid} <A <boo> 4>]]", f"[[{oid} <M <boo>>]]")
        await other.send(f"[[{oid} <S #:[0 8]>]]", f"[[{oid} <R 4>]]")
        await other.sync()
        assert flat(await owner.sync()) == ["1 - <before>"]
        # Another that has the same number is another.
        await owner.send("[[0 <A <again #:[0 1]> 2>]]")
        await owner.sync()
        await other.send(f"[[{oid} <A <boo> 5>]]", f"[[{oid} <M <boo>>]]", f"[[{oid} <R 5>]]")
        await unharmed(other)
        assert await owner.sync() == []
        assert len(served.side.open) == 2
        served.audit()


async def test_an_observer_that_its_owner_has_taken_back_is_told_nothing() -> None:
    """On the way of runs, on that of turns, and of what is asserted."""
    async with (
        relay() as served,
        served.peer() as owner,
        served.peer() as other,
        served.peer() as publisher,
    ):
        await owner.send("[[0 <A <here #:[0 1]> 1>]]")
        await owner.sync()
        await other.send(observe(rec("here", BIND)))
        oid = await given(other)
        await other.send(f"[[0 <A <Observe {rec('Says', BIND)} #:[1 {oid}]> 2>]]")
        await other.sync()
        for n in range(3):
            await publisher.send(says(f'"{n}"'))
        await publisher.sync()
        assert flat(await owner.sync()) == [f'1 ! ["{n}"]' for n in range(3)]
        await owner.send("[[0 <R 1>]]")
        await owner.sync()
        # That number has another meaning from now on.
        await owner.send("[[0 <A <again #:[0 1]> 2>]]")
        await owner.sync()
        for n in range(5):
            await publisher.send(says(f'"{n}"'))
        await publisher.send("[[0 <M <Says 2>>] [0 <M <Nobody>>]]", "[[0 <A <Says 3> 5>]]")
        await publisher.send("[[0 <R 5>]]", "[[0 <A <Says 6> 6>]]")
        await unharmed(publisher)
        assert await owner.sync() == []
        await other.send("[[0 <R 2>]]")
        await other.sync()
        await unharmed(owner)
        assert len(served.side.open) == 3
        served.audit()


# -- what is told and untold ----------------------------------------------------------------------


async def test_what_one_packet_asserts_before_it_ends_its_own_observation() -> None:
    """The number of the observer was forgotten before it had been told."""
    async with relay() as served, served.peer() as peer:
        await peer.send(observe(rec("foo")))
        await peer.sync()
        await peer.send("[[0 <A <foo> 7>] [0 <R 1>]]")
        assert await peer.sync() == [["1 + []", "1 - []"]]
        assert peer.standing == {}
        await peer.send("[[0 <R 7>]]", observe(rec("foo", BIND)))
        await peer.sync()
        await peer.send("[[0 <M <foo 1>>] [0 <R 1>]]")
        assert await peer.sync() == [["1 ! [1]"]]
        await peer.send("[[0 <M <foo 2>>]]")
        await unharmed(peer)
        statistics = known(session(served, peer))
        assert statistics.imported == statistics.assertions_sent == 0


async def test_who_observes_no_more_is_told_that_what_it_was_shown_has_gone() -> None:
    """As syndicate-rs does; its handles were kept for ever, up to the limit on them."""
    async with relay(max_assertions=50) as served, served.peer() as other, served.peer() as peer:
        await other.send("[[0 <A <foo 1> 1>] [0 <A <foo 2> 2>]]")
        await other.sync()
        for n in range(60):
            await peer.send(observe(rec("foo", BIND), 5, n))
            assert sorted(flat(await peer.sync())) == ["5 + [1]", "5 + [2]"]
            await peer.send(f"[[0 <R {n}>]]")
            assert sorted(flat(await peer.sync())) == ["5 - [1]", "5 - [2]"]
        statistics = known(session(served, peer))
        assert statistics.imported == statistics.assertions_sent == 0
        # One of two observers may leave; and what has gone meanwhile goes once.
        await peer.send(observe(rec("foo", BIND), 5, 5), observe(rec("foo", BIND), 6, 6))
        assert sorted(flat(await peer.sync())) == ["5 + [1]", "5 + [2]", "6 + [1]", "6 + [2]"]
        await peer.send("[[0 <R 5>]]")
        assert sorted(flat(await peer.sync())) == ["5 - [1]", "5 - [2]"]
        await other.send("[[0 <R 1>]]")
        await other.sync()
        assert flat(await peer.sync()) == ["6 - [1]"]
        await peer.send("[[0 <R 6>]]")
        assert flat(await peer.sync()) == ["6 - [2]"]
        assert peer.standing == {}


# -- syncs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["asker", "asked"])
async def test_syncs_that_nobody_answers_leave_nothing(ending: str) -> None:
    async with (
        relay(max_references=150) as served,
        served.peer() as asked,
        served.peer() as first,
    ):
        await asked.send("[[0 <A <here #:[0 1]> 1>]]")
        await asked.sync()
        theirs = session(served, asked)
        before = known(theirs)
        for _ in range(2):
            async with served.peer() as asker:
                await asker.send(observe(rec("here", BIND)))
                oid = await given(asker)
                ours = session(served, asker)
                await asker.send(f"[[0 <A <keep #:[1 {oid}]> 9>]]")
                await asker.sync()
                before_that = known(ours)
                await asker.send(*[f"[[{oid} <S #:[0 {n}]>]]" for n in range(10, 110)])
                await unharmed(asker)
                assert len(flat(await asked.sync())) == 100
                assert known(theirs).exported == before.exported + 100
                if ending == "asked":
                    await asked.leave()
                    await until(lambda: theirs not in served.side.open)
                    assert len(flat(await asker.sync())) == 1  # what was here has gone
                    assert known(ours).imported == before_that.imported
                    # And so it is when it has gone already.
                    await asker.send(*[f"[[{oid} <S #:[0 {n}]>]]" for n in range(10, 110)])
                    await unharmed(asker)
                    assert known(ours).imported == before_that.imported
                    return
            await until(lambda: ours not in served.side.open)  # noqa: B023
            assert known(theirs) == before
            assert not inside(theirs, "_answers")
        await unharmed(first)


# -- what costs others ----------------------------------------------------------------------------


async def test_what_one_packet_may_cause_is_bounded() -> None:
    async with (
        relay(max_turn_deliveries=50) as served,
        served.peer() as other,
        served.peer() as peer,
        served.peer() as bystander,
    ):
        await other.send(f"[{' '.join(f'[0 <A <foo {n}> {n}>]' for n in range(10))}]")
        await other.sync()

        def observations(count: int) -> str:
            return f"[{' '.join(observe(rec('foo', BIND), n, n)[1:-1] for n in range(count))}]"

        # They may have as many as they like, one after the other.
        await peer.send(observations(5))
        assert len(flat(await peer.sync())) == 50
        await peer.send("[[0 <R 0>]]", "[[0 <R 1>]]")
        await peer.sync()
        assert served.statistics.observations == 3
        await bystander.send(observations(6))
        why, turns = await bystander.refused()
        assert "50 deliveries" in why
        assert turns == []
        await until(lambda: len(served.side.open) == 2)
        assert served.statistics.observations == 3
        await unharmed(other, peer)
        # Who leaves is not held to that.
        async with served.peer() as one_more:
            await one_more.send(observations(5))
            assert len(flat(await one_more.sync())) == 50
            await other.leave()
            assert len(await peer.lines(30)) == 30
            assert len(await one_more.lines(50)) == 50
        served.audit()


@pytest.mark.rule(5, 9)
async def test_how_many_observe_a_message_is_not_held_against_its_publisher() -> None:
    """Or those who observe often enough would have every publisher refused (rules 5 and 9)."""
    async with (
        relay(max_turn_deliveries=5) as served,
        served.peer() as many,
        served.peer() as publisher,
    ):
        # Two of one peer's are told in one turn each: no way for runs.
        await many.send(*[observe(rec("Says", BIND), n, n) for n in range(8)])
        await many.sync()
        await publisher.send(says("1"))
        await unharmed(publisher)
        assert sorted(await many.told()) == [f"{n} ! [1]" for n in range(8)]
        served.audit()


async def test_what_is_known_again_of_long_messages() -> None:
    """Their beginnings are compared with each packet of the connection."""
    async with relay() as served, served.peer() as peer:
        await peer.sync()
        templates = inside(session(served, peer), "_templates")
        for n in range(3):
            await peer.send(*[says(f'"{"y" * 2_000}" "{n}"')] * 3)
        await peer.sync()
        assert len(templates) == 0
        for n in range(30):
            await peer.send(*[says(f'"{"y" * n}" "z"')] * 3)
        await peer.sync()
        assert 0 < len(templates) <= 8


async def test_many_places_in_a_message_are_found_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was taken apart anew for each of them."""
    calls = 0

    def counted(function: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def call(raw: bytes) -> Any:
            nonlocal calls
            calls += 1
            return function(raw)

        return call

    count = 200
    inner = f"<group <arr> {{{' '.join(f'{n}: <bind <_>>' for n in range(count))}}}>"
    array = rec("Says", inner, BIND)
    keys = " ".join(f"{n}: <bind <_>>" for n in range(count))
    body = f"[{' '.join(['#t'] * 2_000)}]"
    entries = " ".join(f"{n}: #t" for n in range(500))
    async with relay() as served, served.peer() as observer, served.peer() as publisher:
        await observer.send(observe(array))
        await observer.send(f"[[0 <A <Observe <group <dict> {{{keys}}}> #:[0 2]> 2>]]")
        await observer.sync()
        messages = [wire(says(f'{body} "{n}"')) for n in range(4)]
        messages += [wire(f"[[0 <M {{{entries}}}>]]")] * 2
        for module, name in ("_values", "places_of"), ("_runs", "places_of"):
            monkeypatch.setattr(f"{SYNDICATE}.{module}.{name}", counted(places_of))
        monkeypatch.setattr(f"{SYNDICATE}._values.decode_binary", counted(decode_binary))
        for message in messages:
            await publisher.send_raw(message)
            await publisher.sync()
        assert calls < 10 * len(messages)
        monkeypatch.undo()
        assert len(flat(await observer.sync())) == len(messages)


@pytest.mark.parametrize("kind", ["arr", "dict"])
async def test_patterns_that_look_at_very_many_places_are_refused(kind: str) -> None:
    def pattern(count: int) -> str:
        return f"<group <{kind}> {{{' '.join(f'{n}: <_>' for n in range(count))}}}>"

    async with relay() as served, served.peer() as peer, served.peer() as other:
        await peer.send(observe(pattern(900)))
        await peer.sync()
        await peer.send(observe(pattern(1_001), 1, 2))
        why, _ = await peer.refused()
        assert "1000" in why
        await until(lambda: len(served.side.open) == 1)
        assert served.statistics.observations == 0
        await unharmed(other)


async def test_an_observer_that_is_nobody_is_in_nobodys_way() -> None:
    """Everybody's messages took the slow way because of one observation."""
    async with (
        relay() as served,
        served.peer() as observer,
        served.peer() as nobody,
        served.peer() as publisher,
    ):
        await observer.send(observe(rec("Says", BIND)))
        await observer.sync()
        await nobody.send(
            "[[0 <A <Observe <_> #:[1 0]> 1>]]",
            f"[[0 <A <Observe {rec('Says', BIND)} #:[1 0]> 2>]]",
            "[[0 <A <Observe <_> #:[1 77]> 3>]]",
        )
        await nobody.sync()
        turns: list[str] = []
        take_parts = Receiver.take_parts

        def counted(self: Receiver, data: bytes, parts: Any, nbytes: int) -> Iterator[None]:
            turns.append("slow")
            return take_parts(self, data, parts, nbytes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Receiver, "take_parts", counted)
            for n in range(5):
                await publisher.send(says(f'"{n}"'), says(str(n)))
            await publisher.sync()
        assert turns == []
        assert len(inside(session(served, publisher), "_templates")) == 1
        told = [line for n in range(5) for line in (f'1 ! ["{n}"]', f"1 ! [{n}]")]
        assert flat(await observer.sync()) == told
        served.audit()


# -- caveats --------------------------------------------------------------------------------------


async def test_caveats_that_blow_messages_up_let_nothing_through() -> None:
    """16 KiB and four times what came is the most that becomes of it."""
    template = f"<rewrite <bind <_>> <arr [{'<ref 0> ' * 100}]>>"
    async with relay() as served, served.peer() as peer, served.peer() as publisher:
        await peer.send(observe(rec("cap", BIND), 1, 1), observe("<bind <_>>", 2, 2))
        await peer.sync()
        for count, through in ((1, True), (2, False), (3, False), (20, False)):
            await peer.send(f"[[0 <A <cap #:[1 0 {' '.join([template] * count)}]> 3>]]")
            (line, *_) = flat(await peer.sync())
            oid = oid_in(line)
            await peer.send(f'[[{oid} <M "{"x" * 100}">]]', "[[0 <R 3>]]")
            told = [line for line in flat(await peer.sync()) if " ! " in line]
            assert len(told) == through, count
        await unharmed(publisher)


async def test_an_observer_behind_caveats_that_blow_up_is_told_nothing() -> None:
    template = f"<rewrite <bind <_>> <arr [{'<ref 0> ' * 100}]>>"
    async with (
        relay() as served,
        served.peer() as owner,
        served.peer() as observer,
        served.peer() as publisher,
    ):
        await observer.send(observe(rec("cap", BIND)))
        await observer.sync()
        await owner.send("[[0 <A <cap #:[0 7]> 1>]]")
        await owner.sync()
        oid = await given(observer)
        caveats = " ".join([template] * 3)
        await observer.send(f"[[0 <A <Observe {rec('Says', BIND)} #:[1 {oid} {caveats}]> 5>]]")
        await observer.sync()
        await publisher.send(*[says(str(n)) for n in range(5)], "[[0 <A <Says 7> 8>] [0 <R 8>]]")
        await unharmed(publisher, owner, observer)
        served.audit()


async def test_what_is_attenuated_again_and_again_is_one_list_of_caveats() -> None:
    """It was a chain as long as its maker liked, which each event had to go through."""
    count = 300
    async with relay(max_caveats_size=2_000) as served, served.peer() as peer:
        await peer.send(observe(rec("cap", BIND)), observe(rec("Says", BIND), 2, 2))
        await peer.sync()
        oids = [0]
        for n in range(count):
            caveat = f"<reject <lit {n % 2}>>"
            await peer.send(f"[[0 <A <cap #:[1 {oids[-1]} {caveat}]> {n + 10}>]]")
            oids.append(await given(peer))
        let_through: list[bool] = []
        for oid in oids:
            await peer.send(f"[[{oid} <M <Says 7>>]]")
            let_through.append(bool(await peer.sync()))
        # The limit is on all of them together; beyond it nothing comes through.
        longest = let_through.index(False)
        assert 20 < longest < 200
        assert let_through == [True] * longest + [False] * (count + 1 - longest)
        membrane = inside(session(served, peer), "_membrane")
        for oid in oids:
            entity: Any = membrane.exported(oid)
            assert getattr(entity, "entity", served.side.entity) is served.side.entity


@pytest.mark.parametrize(
    "caveat",
    [
        "<rewrite <_> <rec gift [<lit @>]>>",
        "<rewrite <lit @> <lit 1>>",
        "<reject <lit @>>",
        "<or [<rewrite <_> <lit [@]>>]>",
        "<rewrite <_> <dict {a: <lit {b: @}>}>>",
    ],
)
@pytest.mark.parametrize("text", [False, True])
async def test_references_within_caveats_are_refused(caveat: str, text: bool) -> None:
    """Numbers of one connection would have been read as another's."""
    packet = f"[[0 <A <cap #:[1 0 {caveat}]> 2>]]"
    data = wire(packet.replace("@", '"@"')).replace(canonical("@"), b"\x86" + canonical((0, 3)))
    if text:
        data = packet.replace("@", "#:[0 3]").encode()
    async with relay() as served, served.peer() as peer, served.peer() as other:
        await other.send(observe(rec("gift", BIND)))
        await other.sync()
        await peer.send_raw(data)
        why, _ = await peer.refused()
        assert "caveat" in why
        assert "reference" in why
        await until(lambda: len(served.side.open) == 1)
        await unharmed(other)


async def test_a_refusal_does_not_show_what_the_process_is_made_of() -> None:
    async with relay() as served, served.peer() as peer:
        await peer.send("[[0 <A {#:[1 7]: 1 #:[1 8]: 2} 1>]]")
        why, _ = await peer.refused()
        assert "object at" not in why
        await until(lambda: not served.side.open)


# -- the log --------------------------------------------------------------------------------------


async def test_what_a_peer_says_of_an_error_is_logged_in_one_short_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with relay() as served:
        for error in (
            Error("x\n2026-01-01 WARNING forged: a line\r\x1b[2J"),
            Error("y" * 1_000_000),
            Error("z", "y" * 1_000_000),
            Error("z", ["\n", "\x1b"] * 1_000),
        ):
            async with served.peer() as peer:
                await peer.send_raw(encode(error))
                await peer.ended()
            await until(lambda: not served.side.open)
        lines = log_of(caplog, "says:")
        assert len(lines) == 4
        for line in lines:
            assert line.isprintable()
            assert len(line) < 700
        assert "forged" in lines[0]
