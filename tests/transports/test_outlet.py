"""The way out to one connection: in order, repaid when the kernel has it, settled in any case."""

from __future__ import annotations

import fcntl
import random
import socket
import struct
import termios
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from clearfunds.accounts import (
    JOIN_BYTES,
    Account,
    AuditError,
    Ledger,
    LoanedItem,
    LoanQueue,
    Outcome,
    Tracer,
)
from clearfunds.dataspace import Batch
from clearfunds.transports import Flusher, Outlet, open_flusher
from clearfunds.transports._outlet import SEND_BYTES
from tests.transports.peers import until


@attrs.define
class Way:
    """An outlet, its peer, and two accounts that send through it."""

    ledger: Ledger
    flusher: Flusher
    outlet: Outlet
    ours: socket.socket
    peer: socket.socket
    broken: list[str]
    a: Account
    b: Account

    def send(self, account: Account, data: bytes) -> None:
        """One turn that sends `data`."""
        with account.turn(items=1, nbytes=len(data)) as turn:
            turn.send(self.outlet, data)

    def take(self, most: int = 1 << 20) -> bytes:
        """What the peer can receive now."""
        try:
            return self.peer.recv(most)
        except BlockingIOError:
            return b""

    def on_its_way(self) -> int:
        """How many bytes the kernel has taken and the peer has not."""
        return int(struct.unpack("i", fcntl.ioctl(self.peer, termios.FIONREAD, bytes(4)))[0])

    async def take_all(self, size: int) -> bytes:
        """Receive until there are `size` bytes."""
        got = bytearray()
        with trio.fail_after(30):
            while len(got) < size:
                got += self.take()
                await trio.lowlevel.checkpoint()
        return bytes(got)

    def block(self) -> bytes:
        """Send until the connection takes no more; return what was sent."""
        sent = b""
        while not self.outlet.blocked:
            sent += (piece := random.randbytes(10_000))
            self.send(self.a, piece)
        return sent


@asynccontextmanager
async def way() -> AsyncGenerator[Way]:
    ledger = Ledger()
    broken: list[str] = []
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setblocking(False)
    with ours, theirs:
        async with open_flusher() as flusher:
            outlet = Outlet(ledger, flusher, ours, "O", on_broken=broken.append)
            yield Way(
                ledger, flusher, outlet, ours, theirs, broken, ledger.open("a"), ledger.open("b")
            )
            outlet.close()
    ledger.audit()
    assert ledger.statistics().debt_items == ledger.statistics().debt_bytes == 0


async def test_what_is_not_bytes_is_not_held() -> None:
    """It would be found by whoever sends it: in another turn, or in nobody's."""

    def frame(item: object) -> Any:
        return {"text": "no bytes", "array": bytearray(b"array"), "view": memoryview(b"view")}[
            str(item)
        ]

    def send(account: Account, *items: tuple[Outlet, object]) -> None:
        with account.turn() as turn:
            for outlet, item in items:
                turn.send(outlet, item)

    async with way() as each:
        odd = Outlet(each.ledger, each.flusher, each.ours, "odd", frame=frame, on_broken=print)
        with pytest.raises(TypeError, match="outlet odd must make bytes of an event, not 'no byt"):
            send(each.a, (odd, "text"), (each.outlet, b"for who is there"))
        assert each.take() == b"for who is there"
        send(each.a, (odd, "array"), (odd, "view"))
        assert each.take() == b"arrayview"
        assert each.a.debt_items == 0
        odd.close()


# -- holding --------------------------------------------------------------------------------------


async def test_deliveries_in_a_row_join_one_loan() -> None:
    async with way() as w:
        w.block()
        held = len(w.outlet.queue)
        for account, n in ((w.b, 3), (w.a, 1), (w.b, 2)):
            for _ in range(n):
                w.send(account, b"12345")
        tail = list(w.outlet.queue)[held:]
        assert [(x.account.name, x.items, x.bytes) for x in tail] == [
            ("b", 3, 15),
            ("a", 1, 5),
            ("b", 2, 10),
        ]
        w.ledger.audit()


async def test_what_is_being_sent_is_not_joined() -> None:
    async with way() as w:
        w.send(w.a, bytes(1 << 20))
        assert w.outlet.blocked
        w.send(w.a, b"another")
        assert [x.items for x in w.outlet.queue] == [1, 1]
        w.ledger.audit()


async def test_a_grown_loan_is_not_joined() -> None:
    async with way() as w:
        w.send(w.b, bytes(1 << 20))
        for _ in range(4):
            w.send(w.a, bytes(JOIN_BYTES // 2))
        assert [x.items for x in w.outlet.queue] == [1, 2, 2]


async def test_nothing_joins_a_traced_loan_and_it_is_not_used_again() -> None:
    async with way() as w:
        w.send(w.a, b"x")
        w.take()
        spare = w.outlet.spare
        assert spare is not None
        with Tracer(w.ledger, "a".__eq__, events=3) as tracer:
            w.send(w.a, b"y")
            assert (await tracer.next()).outcomes == {Outcome.DELIVERED: 1}
            assert w.outlet.spare is spare
            w.send(w.b, bytes(1 << 20))
            for _ in range(4):
                w.send(w.a, b"z")
            assert [x.items for x in w.outlet.queue] == [1, 1, 1, 2]
            assert [x.trace is None for x in w.outlet.queue] == [True, False, False, True]
            await w.take_all(len(b"y") + (1 << 20) + 4)
            assert [trace.outcomes for trace in tracer.rest()] == 2 * [{Outcome.DELIVERED: 1}]


async def test_a_batch_goes_out_as_its_bytes_and_counts_for_its_events() -> None:
    async with way() as w:
        batch = Batch(b"raw bytes", 3, lambda raw: ())
        with w.flusher.corked(), w.a.turn(items=3, nbytes=9) as turn:
            turn.send(w.outlet, batch, items=3, nbytes=9)
        assert (w.a.debt_items, w.a.debt_bytes) == (3, 9)
        w.flusher.flush_now()
        assert w.take() == b"raw bytes"


async def test_what_comes_after_the_end_is_dropped_and_counted() -> None:
    async with way() as w:
        w.outlet.close()
        w.outlet.close()
        w.send(w.a, b"late")
        assert w.a.debt_items == 0
        assert w.ledger.repaid_items[Outcome.DROPPED] == 1
        assert w.outlet.closed
        assert "closed" in repr(w.outlet)


# -- sending --------------------------------------------------------------------------------------


async def test_a_loan_is_repaid_when_the_kernel_has_its_last_byte() -> None:
    async with way() as w:
        w.send(w.a, bytes(1 << 20))
        taken = len(w.take())
        assert 0 < taken < 1 << 20
        assert (w.a.debt_items, w.a.debt_bytes) == (1, 1 << 20)
        while taken < 1 << 20:
            assert w.a.debt_items == 1 or taken > (1 << 20) - SEND_BYTES
            taken += len(w.take())
            await trio.lowlevel.checkpoint()
        await until(lambda: not w.outlet.blocked)
        assert w.a.debt_items == 0
        assert w.ledger.repaid_items[Outcome.DELIVERED] == 2


async def test_a_backlog_goes_out_in_order_and_the_way_is_open_again() -> None:
    async with way() as w:
        sent = w.block()
        assert "blocked" in repr(w.outlet)
        for i in range(1000):
            piece = b"%d;" % i
            w.send(w.b if i % 3 else w.a, piece)
            sent += piece
        assert await w.take_all(len(sent)) == sent
        await until(lambda: not w.outlet.blocked)
        assert (w.a.debt_items, w.b.debt_items) == (0, 0)
        assert "open" in repr(w.outlet)
        assert not w.flusher.nursery.child_tasks
        w.send(w.a, b"at once")
        assert w.take() == b"at once"


@pytest.mark.rule(7)
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_the_kernel_takes_nothing_is_lost_or_swapped(seed: int) -> None:
    """Conservation at each step, and a debt that is what the kernel has not got (rule 7)."""
    chance = random.Random(seed)
    async with way() as w:
        sent = bytearray()
        got = bytearray()
        ends: list[int] = []
        for _ in range(400):
            what = chance.random()
            if what < 0.5:
                size = chance.choice([1, 7, 300, 5000, 70_000, 300_000])
                data = chance.randbytes(chance.randint(1, size))
                sent += data
                ends.append(len(sent))
                with w.flusher.corked():
                    w.send(chance.choice([w.a, w.b]), data)
                if chance.random() < 0.7:
                    await w.flusher.flush()
            elif what < 0.8:
                got += w.take(chance.randint(1, 400_000))
            else:
                await trio.lowlevel.checkpoint()
            w.ledger.audit()
            taken = len(got) + w.on_its_way()
            debt = w.a.debt_items + w.b.debt_items
            # It is repaid by whole loans, one send's worth at a time: late, and never early.
            assert sum(end > taken for end in ends) <= debt
            assert debt <= sum(end > taken - SEND_BYTES - 300_000 for end in ends)
        w.flusher.flush_now()
        got += await w.take_all(len(sent) - len(got))
        assert got == sent
        await until(lambda: not w.outlet.queue)


async def test_one_send_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Measured:
        def __init__(self, sock: socket.socket) -> None:
            self.fileno = sock.fileno
            self._sock = sock

        def send(self, data: memoryview) -> int:
            sizes.append(len(data))
            return self._sock.send(data)

    async with way() as w:
        monkeypatch.setattr(w.outlet, "sock", Measured(w.ours))
        size = 0
        for _ in range(40):
            w.send(w.a, bytes(SEND_BYTES // 4 + 1))
            size += SEND_BYTES // 4 + 1
        w.send(w.b, bytes(8 * SEND_BYTES))
        size += 8 * SEND_BYTES
        await w.take_all(size)
        assert max(sizes) <= SEND_BYTES
        assert not w.outlet.queue


async def test_a_backlog_lets_others_run_while_it_goes_out() -> None:
    async with way() as w:
        others = 0

        async def run() -> None:
            nonlocal others
            while True:
                others += 1
                await trio.lowlevel.checkpoint()

        size = 64 * SEND_BYTES
        w.send(w.a, bytes(size))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await w.take_all(size)
            assert others >= 64
            nursery.cancel_scope.cancel()


async def test_progress_is_noted_while_bytes_go_out() -> None:
    async with way() as w:
        now = 100.0
        w.ledger.clock = lambda: now
        w.send(w.a, bytes(1 << 20))
        assert w.ledger.holder_statistics(w.outlet).idle_seconds == 0
        now = 110.0
        assert w.ledger.holder_statistics(w.outlet).idle_seconds == 10
        await wait_all_tasks_blocked()
        assert w.ledger.holder_statistics(w.outlet).idle_seconds == 10
        w.take()
        await wait_all_tasks_blocked()
        assert w.ledger.holder_statistics(w.outlet).idle_seconds == 0


async def test_an_empty_outlet_has_not_been_idle() -> None:
    async with way() as w:
        now = 100.0
        w.ledger.clock = lambda: now
        w.send(w.a, b"taken at once")
        now = 500.0
        w.send(w.a, bytes(1 << 20))
        assert w.ledger.holder_statistics(w.outlet).idle_seconds == 0


# -- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", [True, False])
async def test_an_error_of_the_socket_ends_the_connection_and_no_turn(blocked: bool) -> None:
    async with way() as w:
        if blocked:
            w.block()
            w.send(w.b, b"behind")
        w.peer.close()
        if not blocked:
            w.send(w.a, b"into the void")
        await until(lambda: w.broken)
        assert len(w.broken) == 1
        assert w.broken[0].startswith("could not be written to: ")
        assert w.outlet.closed
        assert (w.a.debt_items, w.b.debt_items) == (0, 0)
        assert w.ledger.repaid_items[Outcome.CANCELLED] > 0
        await until(lambda: not w.flusher.nursery.child_tasks)


async def test_given_up_is_written_off() -> None:
    async with way() as w:
        w.block()
        held = w.a.debt_items
        w.outlet.give_up("it is stuck")
        assert w.a.debt_items == 0
        assert w.ledger.repaid_items[Outcome.WRITTEN_OFF] == held > 0
        assert w.broken == ["it is stuck"]


async def test_closing_at_the_moment_the_peer_reads_breaks_nothing() -> None:
    """Its task may be on its way to send, and finds that there is nothing, on no socket."""
    for _ in range(40):
        async with way() as w:
            w.block()
            await wait_all_tasks_blocked()

            alarm = w.ours.dup()

            async def closing(w: Way = w, alarm: socket.socket = alarm) -> None:
                await trio.lowlevel.wait_writable(alarm)
                w.outlet.close()
                trio.lowlevel.notify_closing(w.ours)
                w.ours.close()

            with alarm:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(closing)
                    await wait_all_tasks_blocked()
                    w.take()
            await wait_all_tasks_blocked()
            assert not w.broken
            assert not w.flusher.nursery.child_tasks


# -- forwarding -----------------------------------------------------------------------------------


class Keeper(LoanQueue):
    """Keeps loans until they are acknowledged; the outlet only sends their bytes."""

    kind = "keeper"

    def ready(self) -> None:
        pass

    def give_up(self, why: str) -> None:
        self.settle_all(Outcome.WRITTEN_OFF)


def forward(w: Way, keeper: Keeper, data: bytes) -> LoanedItem[list[Any]]:
    """Send a loan that `keeper` holds."""
    with w.b.turn(items=1, nbytes=0) as turn:
        turn.send(keeper, data, nbytes=len(data))
    loan = keeper.queue.pop()
    keeper.queue.append(loan)
    w.outlet.forward(loan)
    return loan


async def test_a_forwarded_loan_is_not_repaid_by_sending_it() -> None:
    async with way() as w:
        keeper = Keeper(w.ledger, "K")
        loan = forward(w, keeper, b"to be acked")
        w.ledger.audit()
        w.outlet.ready()
        assert w.take() == b"to be acked"
        assert not w.outlet.queue
        assert loan.items == 1
        w.ledger.audit()
        keeper.settle_all(Outcome.ACKED)


async def test_forwarded_loans_keep_their_place() -> None:
    async with way() as w:
        keeper = Keeper(w.ledger, "K")
        sent = w.block()
        w.send(w.b, b"first,")
        forward(w, keeper, b"second,")
        w.send(w.b, b"third,")
        w.send(w.b, b"fourth,")
        keeper.queue.clear()  # kept apart: the next one does not join it
        w.ledger.unregister(keeper)
        assert [x.items for x in w.outlet.loans()][-2:] == [1, 2]
        expected = sent + b"first,second,third,fourth,"
        forwarded = next(x for x in w.outlet.queue if x.holder is keeper)
        assert await w.take_all(len(expected)) == expected
        await until(lambda: not w.outlet.queue)
        forwarded.settle(outcome=Outcome.ACKED)


async def test_a_forwarded_loan_that_is_settled_meanwhile_goes_out_all_the_same() -> None:
    async with way() as w:
        keeper = Keeper(w.ledger, "K")
        sent = w.block()
        loan = forward(w, keeper, b"half of it is on its way")
        keeper.queue.clear()
        loan.settle(outcome=Outcome.CANCELLED)
        w.ledger.audit()
        expected = sent + b"half of it is on its way"
        assert await w.take_all(len(expected)) == expected
        await until(lambda: not w.outlet.blocked)


async def test_a_closed_outlet_forwards_nothing() -> None:
    async with way() as w:
        keeper = Keeper(w.ledger, "K")
        w.outlet.close()
        forward(w, keeper, b"late")
        keeper.settle_all(Outcome.CANCELLED)
        assert not w.outlet.queue
        assert not w.flusher.dirty


# -- what is held is owed for (rule 15) -----------------------------------------------------------


async def test_a_delivery_without_a_charge_is_found() -> None:
    async with way() as w:
        w.block()
        w.outlet.hold(w.b, b"stowaway", 1, 8, w.ledger.clock())
        with pytest.raises(AuditError, match=r"account b owes 0 items .*have 1 items and 8"):
            w.ledger.audit()
        w.b.borrow(1, 8)


async def test_bytes_slipped_into_a_loan_are_found() -> None:
    async with way() as w:
        w.block()
        w.send(w.b, b"paid for")
        w.outlet.queue[-1].item.append(bytes(200))
        with pytest.raises(AuditError, match="O holds 200 bytes that no loan covers"):
            w.ledger.audit()
        w.outlet.queue[-1].item.pop()
        w.ledger.audit()


async def test_what_is_no_loan_is_found() -> None:
    async with way() as w:
        w.block()
        w.outlet.queue.append(cast("LoanedItem[list[Any]]", b"bytes"))
        with pytest.raises(AuditError, match="O holds b'bytes', which is not a loan"):
            w.ledger.audit()
        w.outlet.queue.pop()


async def test_what_is_half_sent_is_covered() -> None:
    async with way() as w:
        for size in (1 << 20, 3, 70_000):
            w.send(w.a, bytes(size))
        for _ in range(100):
            w.take(30_000)
            await wait_all_tasks_blocked()
            w.ledger.audit()
