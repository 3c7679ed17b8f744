"""A fan-out in one step: the same bytes and the same books as with `commit_run` and a flush."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager, suppress

import attrs
import pytest
import trio
import trio.testing

from clearfunds.accounts import Account, Ledger, Outcome, Recipient, commit_run
from clearfunds.dataspace import Batch, Mailbox
from clearfunds.transports._direct_send import commit_and_send
from clearfunds.transports._flusher import OUTLETS_A_STEP, Flusher, open_flusher
from clearfunds.transports._outlet import SEND_BYTES, Outlet

Commit = Callable[[Account, Collection[Recipient], Batch, int, int], None]


def batch_of(raw: bytes, count: int = 1) -> Batch:
    return Batch(raw, count, lambda raw: [])


@attrs.define
class Fan:
    """Some outlets, each with the other end of its socket."""

    ledger: Ledger
    flusher: Flusher
    account: Account
    outlets: list[Outlet]
    peers: list[socket.socket]
    broken: list[str]

    def send(self, raw: bytes, count: int = 1, commit: Commit = commit_and_send) -> None:
        """Do as a reader does with the last run of its read."""
        with self.flusher.corked():
            commit(self.account, self.outlets, batch_of(raw, count), count, len(raw))
        self.flusher.flush_now()
        self.ledger.audit()

    def take(self, at: int) -> bytes:
        """Receive what has arrived."""
        got = bytearray()
        with suppress(BlockingIOError):
            while data := self.peers[at].recv(1 << 16):
                got += data
        return bytes(got)

    async def take_all(self) -> list[bytes]:
        """Receive until nobody is blocked any more."""
        got = [bytearray() for _ in self.peers]
        with trio.fail_after(30):
            while True:
                for at, some in enumerate(got):
                    some += self.take(at)
                if not any(outlet.blocked for outlet in self.outlets):
                    break
                await trio.lowlevel.checkpoint()
        for at, some in enumerate(got):
            some += self.take(at)
        return [bytes(some) for some in got]


@asynccontextmanager
async def fan(n: int) -> AsyncGenerator[Fan]:
    ledger = Ledger()
    broken: list[str] = []
    with ExitStack() as stack:
        async with open_flusher() as flusher:
            outlets: list[Outlet] = []
            peers: list[socket.socket] = []
            for number in range(n):
                ours, theirs = (stack.enter_context(each) for each in socket.socketpair())
                for sock in (ours, theirs):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                    sock.setblocking(False)
                outlets.append(Outlet(ledger, flusher, ours, f"O{number}", on_broken=broken.append))
                peers.append(theirs)
            yield Fan(ledger, flusher, ledger.open("a"), outlets, peers, broken)
            for outlet in outlets:
                outlet.close()
    ledger.audit()
    assert ledger.statistics().debt_items == ledger.statistics().debt_bytes == 0


async def test_what_is_taken_at_once_is_queued_nowhere() -> None:
    async with fan(3) as f:
        with f.flusher.corked():
            commit_and_send(f.account, f.outlets, batch_of(b"12345", 2), 2, 5)
            assert not f.flusher.dirty
            # It has been charged all the same: the input and a copy for each.
            assert f.account.borrowed_items == 8
            assert f.account.borrowed_bytes == 20
            assert (f.account.peak_items, f.account.peak_bytes) == (8, 20)
            assert (f.account.debt_items, f.account.debt_bytes) == (0, 0)
            assert [f.take(at) for at in range(3)] == [b"12345"] * 3
        assert f.ledger.repaid_items[Outcome.DELIVERED] == 8
        assert sum(f.outlets[0].ages.counts) == 6  # of all outlets


async def test_what_a_socket_does_not_take_is_owed_for() -> None:
    raw = random.Random(1).randbytes(SEND_BYTES)
    async with fan(2) as f:
        f.send(raw, 7)
        assert [outlet.blocked for outlet in f.outlets] == [True, True]
        assert (f.account.debt_items, f.account.debt_bytes) == (14, 2 * len(raw))
        f.send(b"after it")
        assert await f.take_all() == [raw + b"after it"] * 2
        assert f.account.debt_items == 0


async def test_one_that_is_full_takes_nothing_yet() -> None:
    async with fan(2) as f:
        full = bytearray()
        with suppress(BlockingIOError):
            while True:
                full += bytes(f.outlets[1].sock.send(bytes(1000)))
        f.send(b"hello")
        assert [outlet.blocked for outlet in f.outlets] == [False, True]
        assert f.account.debt_items == 1
        assert await f.take_all() == [b"hello", bytes(full) + b"hello"]


async def test_a_broken_socket_ends_its_connection_and_no_other() -> None:
    async with fan(3) as f:
        f.peers[1].close()
        f.send(b"hello", 2)
        assert len(f.broken) == 1
        assert f.outlets[1].closed
        assert f.account.debt_items == 0
        assert f.ledger.repaid_items[Outcome.DROPPED] == 2
        assert [f.take(0), f.take(2)] == [b"hello"] * 2


async def test_those_who_got_it_are_told_from_those_who_did_not() -> None:
    """One has it whole, one has a part, one is full, one is broken, one is no socket at all."""
    raw = random.Random(2).randbytes(SEND_BYTES // 2)
    async with fan(4) as f:
        f.outlets[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SEND_BYTES)
        with suppress(BlockingIOError):
            while True:
                f.outlets[2].sock.send(bytes(1000))
        f.peers[3].shutdown(socket.SHUT_RDWR)
        with Mailbox(f.ledger, "box") as box, f.flusher.corked():
            commit_and_send(f.account, (*f.outlets, box), batch_of(raw, 2), 2, len(raw))
            f.ledger.audit()
            assert [len(each.queue) for each in f.outlets] == [0, 1, 1, 0]
            assert f.account.debt_items == 6
            assert f.account.peak_items == 12
            assert f.ledger.repaid_items[Outcome.DELIVERED] == 4  # the input and one copy
            assert f.ledger.repaid_items[Outcome.DROPPED] == 2
            assert f.outlets[0].ages.counts[0] == 2
        got = await f.take_all()
        assert (got[0], got[1]) == (raw, raw)
        assert got[2].endswith(raw)


async def test_who_has_been_closed_is_passed_over() -> None:
    async with fan(2) as f:
        f.outlets[0].close()
        f.send(b"hello")
        assert f.ledger.repaid_items[Outcome.DROPPED] == 1
        assert f.take(1) == b"hello"


async def test_what_is_queued_already_goes_out_first() -> None:
    async with fan(2) as f:
        with f.flusher.corked():
            commit_run(f.account, f.outlets[:1], batch_of(b"first"), 1, 5)
            commit_and_send(f.account, f.outlets, batch_of(b"second"), 1, 6)
            assert f.take(1) == b"second"
        f.flusher.flush_now()
        assert f.take(0) == b"firstsecond"


async def test_other_holders_hold() -> None:
    async with fan(1) as f:
        with Mailbox(f.ledger, "box") as box, f.flusher.corked():
            commit_and_send(f.account, (box, *f.outlets), batch_of(b"hello"), 1, 5)
            assert [loan.items for loan in box.loans()] == [1]
            assert f.account.debt_items == 1
            assert f.take(0) == b"hello"


async def test_others_have_a_turn_among_very_many() -> None:
    async with fan(OUTLETS_A_STEP + 1) as f:
        with f.flusher.corked():
            commit_and_send(f.account, f.outlets, batch_of(b"hello"), 1, 5)
        assert len(f.flusher.dirty) == OUTLETS_A_STEP + 1
        await f.flusher.flush()
        assert f.account.debt_items == 0


async def test_a_send_is_capped() -> None:
    async with fan(1) as f:
        with f.flusher.corked():
            raw = bytes(SEND_BYTES + 1)
            commit_and_send(f.account, f.outlets, batch_of(raw), 1, len(raw))
        assert f.flusher.dirty == f.outlets
        f.flusher.flush_now()
        assert await f.take_all() == [raw]


async def _course(commit: Commit, seed: int) -> tuple[list[bytes], list[object]]:
    """Send much to some that read now and then; return what came and what the books say."""
    chance = random.Random(seed)
    async with fan(4) as f:
        got = [b""] * 4
        for _ in range(60):
            f.send(chance.randbytes(chance.choice((3, 300, 30_000))), chance.randint(1, 9), commit)
            for at in range(4):
                if chance.random() < 0.3:
                    got[at] += f.take(at)
            if chance.random() < 0.3:
                await trio.testing.wait_all_tasks_blocked()
        rest = await f.take_all()
        books: list[object] = [
            f.account.borrowed_items,
            f.account.borrowed_bytes,
            list(f.ledger.repaid_items),
            list(f.ledger.repaid_bytes),
            f.account.debt_items,
        ]
        return [a + b for a, b in zip(got, rest, strict=True)], books


@pytest.mark.parametrize("seed", range(5))
async def test_the_same_as_step_by_step(seed: int) -> None:
    assert await _course(commit_and_send, seed) == await _course(commit_run, seed)
