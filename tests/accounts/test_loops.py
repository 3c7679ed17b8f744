"""Two event loops: what asyncio does otherwise than Trio, and what is refused."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading

import anyio
import anyio.lowlevel
import outcome
import pytest
import trio

from clearfunds.accounts import (
    DEFAULT_PATIENCE,
    Account,
    Ledger,
    Limit,
    NoLoopError,
    Outcome,
    WrongLoopError,
    watch_patience,
)
from clearfunds.accounts._asyncio_loop import ASYNCIO, AsyncioLot
from clearfunds.accounts._loop import TRIO, Loop, Lot, running
from clearfunds.dataspace import Mailbox
from clearfunds.dataspace.queues import InflightWindow
from clearfunds.testing import Box
from tests.loops import open_nursery


def stopped(ledger: Ledger) -> tuple[Account, Box]:
    """Open an account that owes more than it may, to a box."""
    account = ledger.open("pub", limit=Limit(items=3, bytes=None))
    box = Box(ledger, "box")
    with account.turn(items=1, nbytes=0) as turn:
        turn.send(box, b"", items=5, nbytes=5)
    return account, box


async def test_the_running_loop_is_found(loop_of_the_test: str) -> None:
    loop = running()
    assert loop is (TRIO if loop_of_the_test == "trio" else ASYNCIO)
    assert loop.name.lower() == loop_of_the_test
    assert loop.token() is running().token()
    before = loop.now()
    await loop.sleep(0.01)
    assert loop.now() > before


async def test_an_event_is_waited_for_until_a_deadline(autojump_clock: object) -> None:
    loop = running()
    event = loop.event()
    began = loop.now()
    await loop.wait_until(event, began + 5)
    assert loop.now() - began == pytest.approx(5)
    event.set()
    await loop.wait_until(event, began + 50)
    await loop.wait_until(event, float("inf"))
    assert loop.now() - began == pytest.approx(5)


def test_without_a_loop_a_wait_is_refused_and_nothing_is_left() -> None:
    ledger = Ledger()
    account, box = stopped(ledger)
    with pytest.raises(NoLoopError, match="running event loop"):
        account.ensure_clear_funds().send(None)
    assert not ledger.waiters
    assert not account.waiting
    box.settle_all()
    ledger.audit()


def test_funds_that_are_clear_need_no_loop() -> None:
    ledger = Ledger()
    account = ledger.open("pub")
    with pytest.raises(StopIteration):
        account.ensure_clear_funds().send(None)


def test_a_second_loop_is_refused_while_readers_wait_in_the_first() -> None:
    ledger = Ledger()
    account, box = stopped(ledger)
    other = ledger.open("other", limit=Limit(items=0, bytes=None))
    with other.turn(items=1, nbytes=0) as turn:
        turn.send(box, b"", items=1, nbytes=1)
    waits = threading.Event()
    failures: list[BaseException] = []

    def in_a_thread() -> None:
        waits.wait(10)
        try:
            asyncio.run(asyncio.wait_for(other.ensure_clear_funds(), 5))
        except BaseException as exc:  # noqa: BLE001 (it is what is asked for)
            failures.append(exc)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(account.ensure_clear_funds)
            await trio.testing.wait_all_tasks_blocked()
            waits.set()
            await trio.to_thread.run_sync(thread.join)
            box.settle_all()

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    trio.run(main)
    (failure,) = failures
    assert isinstance(failure, WrongLoopError)
    assert "1 readers of this ledger wait in another event loop" in str(failure)
    # The first loop is over: the ledger may be used in the next one.
    asyncio.run(asyncio.wait_for(other.ensure_clear_funds(), 5))
    ledger.audit()


def test_a_ledger_outlives_its_loop() -> None:
    ledger = Ledger()
    account, box = stopped(ledger)

    async def wait() -> None:
        async with open_nursery() as group:
            group.start_soon(account.ensure_clear_funds)
            await anyio.wait_all_tasks_blocked()
            box.settle_all()

    for name in ("trio", "asyncio", "trio"):
        anyio.run(wait, backend=name)
        with account.turn(items=1, nbytes=0) as turn:
            turn.send(box, b"", items=5, nbytes=5)
    box.settle_all()
    ledger.audit()


def test_uvloop_is_such_a_loop() -> None:
    uvloop = pytest.importorskip("uvloop")
    ledger = Ledger()
    account, box = stopped(ledger)

    async def main() -> None:
        watch = asyncio.create_task(watch_patience(ledger, every=0.05))
        waiting = asyncio.create_task(account.ensure_clear_funds())
        await asyncio.sleep(0.2)
        assert account.waiting == 1
        box.settle_all()
        await asyncio.wait_for(waiting, 5)
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    ledger.audit()


async def test_whoever_waits_unwatched_is_told_of_once(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ledger = Ledger(clock=anyio.current_time)
    account, box = stopped(ledger)
    async with open_nursery() as group:
        group.start_soon(account.ensure_clear_funds)
        await anyio.sleep(DEFAULT_PATIENCE - 1)
        assert not caplog.records
        await anyio.sleep(3 * DEFAULT_PATIENCE)
        box.settle_all()
    (record,) = caplog.records
    assert "start watch_patience(ledger)" in record.getMessage()
    assert vars(record)["event"] == "unwatched"
    ledger.audit()


async def test_whoever_is_watched_is_not(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ledger = Ledger(clock=anyio.current_time)
    account, box = stopped(ledger)
    box.patience = 1000.0
    async with open_nursery() as group:
        group.start_soon(watch_patience, ledger)
        await anyio.lowlevel.checkpoint()
        async with open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            await anyio.sleep(3 * DEFAULT_PATIENCE)
            box.settle_all()
        group.cancel_scope.cancel()
    assert not caplog.records
    ledger.audit()


# -- asyncio's own ways ---------------------------------------------------------------------------


async def two_readers(account: Account) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
    """Let two tasks wait for clear funds, the first before the second."""
    first, second = (asyncio.create_task(account.ensure_clear_funds()) for _ in range(2))
    await asyncio.sleep(0)
    return first, second


def test_asyncio_cancels_a_waiting_reader() -> None:
    async def main() -> None:
        ledger = Ledger()
        account, box = stopped(ledger)
        first, second = await two_readers(account)
        assert account.waiting == 2
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert account.waiting == 1
        box.settle_all()
        await asyncio.wait_for(second, 1)
        assert not ledger.waiters
        ledger.audit()

    asyncio.run(main())


def test_asyncio_cancels_a_reader_that_has_been_woken() -> None:
    """The next one goes on in its place."""

    async def main() -> None:
        ledger = Ledger()
        account, box = stopped(ledger)
        first, second = await two_readers(account)
        box.settle_all()
        first.cancel()  # woken, and not gone on yet
        await asyncio.wait_for(second, 1)
        assert first.cancelled()
        assert not ledger.waiters
        ledger.audit()

    asyncio.run(main())


def test_a_timeout_of_asyncio_ends_a_wait() -> None:
    async def main() -> None:
        ledger = Ledger()
        account, box = stopped(ledger)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await account.ensure_clear_funds()
        assert not ledger.waiters
        box.settle_all()
        ledger.audit()

    asyncio.run(main())


def test_a_handler_that_asyncio_cancels_ends_its_loan_as_cancelled() -> None:
    async def main() -> None:
        ledger = Ledger()
        account = ledger.open("pub")
        mailbox = Mailbox(ledger, "mailbox")
        with account.turn(items=1, nbytes=0) as turn:
            turn.send(mailbox, b"", items=1, nbytes=1)

        async def handle() -> None:
            with await mailbox.receive():
                await asyncio.sleep(10)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(handle())
            await asyncio.sleep(0.01)
            task.cancel()
        assert ledger.repaid_items[Outcome.CANCELLED] == 1
        mailbox.close()
        ledger.audit()

    asyncio.run(main())


def test_no_loan_is_lost_with_a_consumer_that_has_been_woken() -> None:
    async def main() -> None:
        ledger = Ledger()
        account = ledger.open("pub")
        mailbox = Mailbox(ledger, "mailbox")
        first = asyncio.create_task(mailbox.receive())
        second = asyncio.create_task(mailbox.receive())
        await asyncio.sleep(0.01)
        with account.turn(items=1, nbytes=0) as turn:
            turn.send(mailbox, b"one", items=1, nbytes=1)
        first.cancel()
        loan = await asyncio.wait_for(second, 1)
        with loan:
            assert loan.item == [b"one"]
        mailbox.close()
        ledger.audit()

    asyncio.run(main())


def test_a_place_in_a_window_is_not_lost() -> None:
    async def main() -> None:
        window = InflightWindow(1)
        assert await window.acquire() == 1
        first = asyncio.create_task(window.acquire())
        await asyncio.sleep(0)
        window.answered(1)
        first.cancel()  # it has been given the place
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await asyncio.wait_for(window.acquire(), 1) == 2

    asyncio.run(main())


def test_a_lot_wakes_in_order_and_skips_the_cancelled() -> None:
    async def main() -> None:
        lot = Lot()
        order: list[int] = []

        async def wait(number: int) -> None:
            await lot.park()
            order.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert len(lot) == 4
        tasks[0].cancel()
        assert len(lot) == 3
        lot.unpark()
        tasks[1].cancel()  # woken already: the next one is woken instead
        await asyncio.sleep(0.01)
        assert order == [2]
        lot.unpark_all()
        await asyncio.sleep(0.01)
        assert order == [2, 3]
        assert not lot
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_nothing_is_woken_that_is_not_there() -> None:
    lot = AsyncioLot()
    lot.unpark()
    lot.unpark_all(3)
    lot.unpark_all()
    assert not len(lot)


def test_for_trio_alone_nothing_of_asyncio_is_loaded() -> None:
    code = (
        "import sys, trio, clearfunds, clearfunds.accounts, clearfunds.dataspace\n"
        "from clearfunds.accounts import Ledger, watch_patience\n"
        "async def main():\n"
        "    with trio.move_on_after(0.01):\n"
        "        await watch_patience(Ledger())\n"
        "trio.run(main)\n"
        "print('clearfunds.accounts._asyncio_loop' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_trio_as_a_guest_of_asyncio_is_told_from_its_host() -> None:
    async def guest() -> list[Loop]:
        found = [running()]
        await trio.sleep(0.01)
        return [*found, running()]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[outcome.Outcome[list[Loop]]] = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
        )
        assert running() is ASYNCIO
        assert (await done).unwrap() == [TRIO, TRIO]
        assert running() is ASYNCIO

    asyncio.run(main())
