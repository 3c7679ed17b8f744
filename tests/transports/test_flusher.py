"""Who sends: the reader, once for each outlet, at the end of its read."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from clearfunds.accounts import Account, Ledger, Limit, Outcome, Tracer
from clearfunds.transports import Flusher, Outlet, open_flusher
from clearfunds.transports._flusher import OUTLETS_A_STEP
from tests.accounts.conftest import Recording


@attrs.define
class Crowd:
    """Outlets with peers, on one ledger."""

    ledger: Ledger
    flusher: Flusher
    outlets: list[Outlet]
    peers: list[socket.socket]
    broken: list[str]

    def send(self, account: Account, data: bytes, outlets: list[Outlet] | None = None) -> None:
        """One turn that sends `data` to each outlet."""
        with account.turn(items=1, nbytes=len(data)) as turn:
            for outlet in self.outlets if outlets is None else outlets:
                turn.send(outlet, data)

    def got(self) -> list[bytes]:
        """What each peer has received."""
        return [_receive(peer) for peer in self.peers]


def _receive(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1 << 20)
    except BlockingIOError:
        return b""


@asynccontextmanager
async def crowd(n: int) -> AsyncGenerator[Crowd]:
    ledger = Ledger()
    broken: list[str] = []
    pairs = [socket.socketpair() for _ in range(n)]
    for pair in pairs:
        for sock in pair:
            sock.setblocking(False)
    async with open_flusher() as flusher:
        outlets = [
            Outlet(ledger, flusher, ours, f"O{i}", on_broken=broken.append)
            for i, (ours, _) in enumerate(pairs, 1)
        ]
        yield Crowd(ledger, flusher, outlets, [theirs for _, theirs in pairs], broken)
        for outlet in outlets:
            outlet.close()
    for pair in pairs:
        for sock in pair:
            sock.close()
    ledger.audit()
    assert ledger.statistics().debt_items == 0


async def test_a_turn_sends_at_its_commit() -> None:
    async with crowd(3) as c:
        account = c.ledger.open("a")
        c.send(account, b"now")
        assert c.got() == [b"now"] * 3
        assert account.debt_items == 0
        assert c.ledger.repaid_items[Outcome.DELIVERED] == 4


async def test_corked_turns_are_sent_together_and_only_by_a_flush() -> None:
    async with crowd(2) as c:
        account = c.ledger.open("a")
        with c.flusher.corked():
            c.send(account, b"one ")
            with c.flusher.corked():
                c.send(account, b"two ")
            c.send(account, b"three")
        assert c.got() == [b"", b""]
        assert account.debt_items == 6
        c.ledger.audit()
        await c.flusher.flush()
        assert c.got() == [b"one two three"] * 2
        assert account.debt_items == 0


async def test_a_failure_uncorks() -> None:
    async with crowd(1) as c:
        with pytest.raises(ZeroDivisionError), c.flusher.corked():
            raise ZeroDivisionError
        c.send(c.ledger.open("a"), b"sent")
        assert c.got() == [b"sent"]


async def test_what_one_flush_sends_is_repaid_to_whom_it_was_charged() -> None:
    async with crowd(6) as c:
        a, b = c.ledger.open("a"), c.ledger.open("b")
        with c.flusher.corked():
            c.send(a, b"a", c.outlets[0:2])
            c.send(b, b"b", c.outlets[2:4])
            c.send(a, b"A", c.outlets[3:6])  # one of them has something of both
        assert (a.debt_items, b.debt_items) == (5, 2)
        c.flusher.flush_now()
        assert c.got() == [b"a", b"a", b"b", b"bA", b"A", b"A"]
        assert (a.debt_items, b.debt_items) == (0, 0)
        assert (a.debt_bytes, b.debt_bytes) == (0, 0)


async def test_a_broken_outlet_does_not_disturb_the_others() -> None:
    async with crowd(3) as c:
        account = c.ledger.open("a")
        c.peers[1].close()
        c.send(account, b"x")
        assert account.debt_items == 0
        assert _receive(c.peers[0]) == _receive(c.peers[2]) == b"x"
        assert c.broken == ["could not be written to: Broken pipe"]
        assert c.ledger.repaid_items[Outcome.CANCELLED] == 1


async def test_few_outlets_are_sent_to_without_a_checkpoint() -> None:
    async with crowd(3) as c:
        with c.flusher.corked():
            c.send(c.ledger.open("a"), b"x")
        with trio.CancelScope() as scope:
            scope.cancel()
            await c.flusher.flush()
        assert not scope.cancelled_caught
        assert c.got() == [b"x"] * 3


async def test_very_many_outlets_are_sent_to_in_steps() -> None:
    n = 3 * OUTLETS_A_STEP + 1
    async with crowd(n) as c:
        account = c.ledger.open("a")
        debts: list[int] = []

        async def look() -> None:
            while True:
                c.ledger.audit()
                debts.append(account.debt_items)
                await trio.lowlevel.checkpoint()

        with c.flusher.corked():
            c.send(account, b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await c.flusher.flush()
            nursery.cancel_scope.cancel()
        assert c.got() == [b"x"] * n
        assert debts == sorted(debts, reverse=True)
        assert set(debts) & {n - OUTLETS_A_STEP, n - 2 * OUTLETS_A_STEP}


async def test_a_cancelled_flush_has_sent_everything() -> None:
    n = 2 * OUTLETS_A_STEP
    async with crowd(n) as c:
        account = c.ledger.open("a")
        with c.flusher.corked():
            c.send(account, b"x")
        with trio.CancelScope() as scope:
            scope.cancel()
            await c.flusher.flush()
        assert scope.cancelled_caught
        assert c.got() == [b"x"] * n
        assert account.debt_items == 0


async def test_two_readers_may_flush_at_once() -> None:
    n = 2 * OUTLETS_A_STEP + 7
    async with crowd(n) as c:
        a, b = c.ledger.open("a"), c.ledger.open("b")

        async def read(account: Account, data: bytes) -> None:
            for _ in range(5):
                with c.flusher.corked():
                    c.send(account, data)
                await c.flusher.flush()
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, a, b"a")
            nursery.start_soon(read, b, b"b")
        assert not c.flusher.dirty
        for data in c.got():
            assert sorted(data) == sorted(b"aaaaabbbbb")
        assert (a.debt_items, b.debt_items) == (0, 0)


async def test_leaving_ends_what_waits_for_blocked_connections() -> None:
    async with crowd(1) as c:
        account = c.ledger.open("a", limit=Limit(items=None, bytes=None))
        while not c.outlets[0].blocked:
            c.send(account, bytes(1 << 16))
        assert len(c.flusher.nursery.child_tasks) == 1
        # The block ends with a task still waiting for the peer to read.
        c.flusher.nursery.cancel_scope.cancel()


def test_a_flusher_without_a_loop_is_plain_functions() -> None:
    """Nothing but a blocked connection needs the nursery."""
    nobody: Any = None
    flusher = Flusher(nobody)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ledger = Ledger()
        outlet = Outlet(ledger, flusher, ours, "O", on_broken=print)
        with ledger.open("a").turn() as turn:
            turn.send(outlet, b"x")
        assert theirs.recv(10) == b"x"
        outlet.close()


async def test_what_goes_out_at_once_is_of_no_age() -> None:
    async with crowd(3) as c:
        c.send(c.ledger.open("a"), b"now")
        ages = c.ledger.loan_ages["outlet"]
        assert (ages.counts[0], ages.count, ages.total) == (3, 3, 0)


async def test_what_waits_for_its_turn_among_many_outlets_has_an_age() -> None:
    # A clock on which each look takes a second.
    n = 2 * OUTLETS_A_STEP + 1
    async with crowd(n) as c:
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            return float(looks)

        c.ledger.clock = clock
        account = c.ledger.open("a")
        with c.flusher.corked():
            c.send(account, b"x")
        looks = 0
        c.flusher.flush_now()
        ages = c.ledger.loan_ages["outlet"]
        # The steps begin 1, 2 and 3 s after the flush.
        assert ages.count == n
        assert ages.total == OUTLETS_A_STEP * (1 + 2) + 3
        with c.flusher.corked():
            c.send(account, b"x")
        looks = 0
        await c.flusher.flush()
        assert ages.count == 2 * n
        assert ages.total == 2 * (OUTLETS_A_STEP * (1 + 2) + 3)
        assert ages.counts[0] == 0


async def test_what_was_kept_waiting_by_its_connection_has_its_age() -> None:
    now = 5.0
    async with crowd(1) as c:
        c.ledger.clock = lambda: now
        account = c.ledger.open("a", limit=Limit(items=None, bytes=None))
        for _ in range(40):
            c.send(account, bytes(64 << 10))
        stuck = c.outlets[0]
        assert stuck.blocked
        at_once = c.ledger.loan_ages["outlet"].count
        assert at_once < 40
        assert c.ledger.loan_ages["outlet"].total == 0
        now = 8.0
        await trio.testing.wait_all_tasks_blocked()
        while stuck.queue:
            c.got()
            await trio.testing.wait_all_tasks_blocked()
        ages = c.ledger.loan_ages["outlet"]
        assert (ages.count, ages.total) == (40, 3.0 * (40 - at_once))


async def test_with_a_recorder_each_loan_is_repaid_for_itself() -> None:
    async with crowd(3) as c:
        c.ledger.recorder = recording = Recording()
        alice, bob = c.ledger.open("alice"), c.ledger.open("bob")
        before = c.ledger.clock()
        with c.flusher.corked():
            c.send(alice, b"one ")
            c.send(alice, b"two")
            c.send(bob, b"three", c.outlets[:1])
        c.flusher.flush_now()
        assert c.got() == [b"one twothree", b"one two", b"one two"]
        assert not recording.settlements[0].opened < before  # type: ignore[operator] # pyright: ignore
        assert sorted((e.account, e.holder, e.items, e.bytes) for e in recording.settlements) == [
            ("alice", "O1", 2, 7),
            ("alice", "O2", 2, 7),
            ("alice", "O3", 2, 7),
            ("bob", "O1", 1, 5),
        ]
        assert {e.outcome for e in recording.settlements} == {Outcome.DELIVERED}
        recording.agrees(c.ledger)


async def test_a_trace_is_whole_with_a_recorder() -> None:
    async with crowd(3) as c:
        c.ledger.recorder = recording = Recording()
        with Tracer(c.ledger) as tracer:
            c.send(c.ledger.open("alice"), b"one")
            trace = await tracer.next()
        assert [loan.holder for loan in trace.loans()] == ["O1", "O2", "O3"]
        assert {s.outcome for loan in trace.loans() for s in loan.settlements} == {
            Outcome.DELIVERED
        }
        assert [each.holder for each in recording.settlements] == ["O1", "O2", "O3"]
        recording.agrees(c.ledger)


async def test_ages_are_the_same_with_a_recorder() -> None:
    ages: list[list[int]] = []
    for recorder in (None, Recording()):
        async with crowd(OUTLETS_A_STEP + 5) as c:
            c.ledger.recorder = recorder
            c.send(c.ledger.open("a"), b"now")
            ages.append([sum(c.outlets[0].ages.counts), c.ledger.repaid_items[Outcome.DELIVERED]])
    assert ages[0] == ages[1] == [OUTLETS_A_STEP + 5, OUTLETS_A_STEP + 6]
