"""A wait that is longer than the threshold is told of: once while it goes on, once at its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    AccountError,
    Ledger,
    Limit,
    RateLimit,
    watch_slow_waits,
)
from clearfunds.accounts._gate import gate_of
from tests.accounts.conftest import Box, balance, boxes, publish
from tests.loops import LoopClock, open_nursery


@pytest.fixture
def timed(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> Iterator[Ledger]:
    """A ledger on the loop's own clock, which jumps to whatever happens next."""
    caplog.set_level(logging.INFO, "clearfunds.accounts")
    ledger = Ledger(clock=LoopClock())
    ledger.warned_unwatched = True  # nothing watches patience here
    yield ledger
    balance(ledger)


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return the records so far; they are forgotten then."""
    records = list(caplog.records)
    assert all(r.levelno == logging.INFO and r.name == "clearfunds.accounts" for r in records)
    caplog.clear()
    return records


async def test_one_line_at_the_threshold_and_one_at_the_end(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=4, bytes=1000, low_items=0))
    quick, stuck = boxes(timed, 2)
    publish(account, [quick, stuck], items=3, nbytes=30)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        async with open_nursery() as readers:
            await wait_all_tasks_blocked()
            readers.start_soon(account.ensure_clear_funds)
            await anyio.sleep(0.5)
            quick.work(2)
            await anyio.sleep(0.4)
            assert told(caplog) == []
            await anyio.sleep(0.2)
            (line,) = told(caplog)
            await anyio.sleep(3)
            stuck.work(3)
            assert told(caplog) == []
            quick.work(1)
        (end,) = told(caplog)
        nursery.cancel_scope.cancel()

    assert line.message == (
        "publisher waits, for 1.0 s so far: it owes 4 items (limit 4) and 40 bytes (limit 1000), "
        "held by box O2 (3 items, 30 bytes) and box O1 (1 items, 10 bytes)"
    )
    assert (line.event, line.account, line.at) == ("slow_wait", "publisher", "publisher")
    assert 1.0 <= line.seconds <= 1.06
    assert (line.items, line.bytes) == (4, 40)
    assert (line.limit_items, line.limit_bytes) == (4, 1000)
    assert line.holders_more == 0
    worst, other = line.holders
    assert (worst["holder"], worst["kind"]) == ("O2", "box")
    assert (worst["items"], worst["bytes"], worst["share"]) == (3, 30, 0.75)
    assert worst["blamed_seconds"] == 0.0
    assert 1.0 <= worst["idle_seconds"] <= 1.1
    # Its last repayment ended a stretch of half a second.
    assert (other["holder"], other["blamed_seconds"], other["share"]) == ("O1", 0.5, 0.25)
    assert other["idle_seconds"] == pytest.approx(line.seconds - 0.5)

    assert end.event == "slow_wait_ended"
    assert (end.account, end.clear, end.seconds) == ("publisher", True, 4.1)
    assert (end.items, end.bytes) == (0, 0)
    assert end.message == (
        "publisher goes on after 4.1 s, for which it waited on O2 (3.6 s, 88%) and "
        "O1 (0.5 s, 12%); it owes 0 items and 0 bytes"
    )
    assert end.holders == [
        {"holder": "O2", "blamed_seconds": 3.6, "share": 0.878},
        {"holder": "O1", "blamed_seconds": 0.5, "share": 0.122},
    ]


async def test_the_line_says_what_else_than_its_limit_it_waits_for(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    server = timed.open("server", limit=Limit(items=40), shared=True)
    greedy, other, fast, blocked = (
        timed.open(name, limit=NO_LIMIT, parent=server)
        for name in ("greedy", "other", "fast", "blocked")
    )
    greedy_box, other_box = boxes(timed, 2)
    publish(greedy, [greedy_box], items=25)
    publish(other, [other_box], items=16)
    fast.rate = RateLimit(items_per_s=10, burst_items=1)
    publish(fast, [], items=40)
    gate_of(blocked).block("queue")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        for account in (greedy, fast, blocked):
            nursery.start_soon(account.ensure_clear_funds)
            await wait_all_tasks_blocked()
        await anyio.sleep(1.1)
        share, rate, credit = told(caplog)
        await anyio.sleep(4)
        (end,) = told(caplog)
        nursery.cancel_scope.cancel()
    assert share.message == (
        "greedy waits, for 1.0 s so far, for its share of what server may owe: it owes 25 items "
        "(limit 24) and 0 bytes (limit 5033164), held by box O1 (25 items, 0 bytes)"
    )
    assert (share.reason, share.limit_items) == ("share", 24)
    assert rate.message == "fast waits, for 1.0 s so far, for the rate of fast: 10 items a second"
    assert (rate.reason, rate.blockers) == ("rate", [])
    assert credit.message == (
        "blocked waits, for 1.0 s so far, blocked by queue: it owes 0 items and 0 bytes, held "
        "by nobody any more"
    )
    assert (credit.reason, credit.blockers) == ("blocked", ["queue"])
    assert end.message == (
        "fast goes on after 3.9 s, for which it waited on (rate limit) (3.9 s, 100%); it owes 0 "
        "items and 0 bytes"
    )
    greedy_box.close()
    other_box.close()


async def test_a_wait_below_the_threshold_is_not_told_of(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        for _ in range(10):
            publish(account, [box])
            async with open_nursery() as readers:
                readers.start_soon(account.ensure_clear_funds)
                await anyio.sleep(0.9)
                box.work()
        assert told(caplog) == []
        nursery.cancel_scope.cancel()
    assert account.waits == 10


@pytest.mark.parametrize("seconds", [0.01, 0.3, 7.0])
async def test_the_threshold_is_kept_to_within_a_look(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    accounts = [timed.open(f"p{n}", limit=Limit(items=0)) for n in range(15)]
    (box,) = boxes(timed, 1)
    for account in accounts:
        publish(account, [box])
    at: dict[str, float] = {}

    class Handler(logging.Handler):
        def emit(self, record: Any) -> None:
            if record.event == "slow_wait":
                assert record.account not in at
                at[record.account] = record.seconds

    handler = Handler()
    logging.getLogger("clearfunds.accounts").addHandler(handler)
    try:
        async with open_nursery() as nursery:
            nursery.start_soon(lambda: watch_slow_waits(timed, seconds=seconds))
            async with open_nursery() as readers:
                for account in accounts:
                    await anyio.sleep(0.037)
                    readers.start_soon(account.ensure_clear_funds)
                # The CPU time of a look may put off the next one by as much again fifty times.
                await anyio.sleep(seconds + 1.0)
                box.work(15)
            nursery.cancel_scope.cancel()
    finally:
        logging.getLogger("clearfunds.accounts").removeHandler(handler)
    assert sorted(at) == sorted(account.name for account in accounts)
    assert all(seconds <= each <= seconds + 1.0 for each in at.values())


async def test_what_a_reader_waits_for_above_is_told_with_its_place(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    server = timed.open("server", limit=Limit(items=5, bytes=None, low_items=0))
    guilty = timed.open("guilty", limit=NO_LIMIT, parent=server)
    victim = timed.open("victim", limit=NO_LIMIT, parent=server)
    box, strangers = boxes(timed, 2)
    publish(guilty, [box], items=6, nbytes=60)
    publish(timed.open("stranger"), [strangers], items=100)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        async with open_nursery() as readers:
            readers.start_soon(victim.ensure_clear_funds)
            await anyio.sleep(2)
            box.work(6)
        line, end = told(caplog)
        nursery.cancel_scope.cancel()
    strangers.close()
    assert (line.account, line.at, line.items, line.limit_bytes) == ("victim", "server", 6, None)
    assert line.message == (
        "victim waits, for 1.0 s so far: server owes 6 items (limit 5) and 60 bytes, "
        "held by box O1 (6 items, 60 bytes)"
    )
    assert [each["holder"] for each in line.holders] == ["O1"]
    assert [(each["holder"], each["share"]) for each in end.holders] == [("O1", 1.0)]
    assert end.holders[0]["blamed_seconds"] == end.seconds == 2.0


async def test_only_this_waits_blame_is_told(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    first, second = boxes(timed, 2)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        for box, seconds in ((first, 5.0), (second, 2.0)):
            publish(account, [box])
            async with open_nursery() as readers:
                readers.start_soon(account.ensure_clear_funds)
                await anyio.sleep(seconds)
                box.work()
        lines = told(caplog)
        nursery.cancel_scope.cancel()
    ends = [each for each in lines if each.event == "slow_wait_ended"]
    assert len(lines) == 4
    assert [[(h["holder"], h["blamed_seconds"]) for h in end.holders] for end in ends] == [
        [("O1", 5.0)],
        [("O2", 2.0)],
    ]


async def test_a_wait_that_is_cancelled_ends_too(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    publish(account, [box])
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        with anyio.move_on_after(3):
            await account.ensure_clear_funds()
        line, end = told(caplog)
        nursery.cancel_scope.cancel()
    assert line.event == "slow_wait"
    assert (end.event, end.clear, end.seconds, end.items) == ("slow_wait_ended", False, 3.0, 1)
    assert end.message == (
        "publisher waits no more, cancelled after 3.0 s; it owes 1 items and 0 bytes"
    )
    box.work()


async def test_a_wait_that_began_before_the_watch_is_told_of(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    publish(account, [box])
    async with open_nursery() as readers:
        readers.start_soon(account.ensure_clear_funds)
        await anyio.sleep(10)
        with anyio.move_on_after(1):
            await watch_slow_waits(timed)
        (line,) = told(caplog)
        assert 10 <= line.seconds <= 10.1
        # Nobody watches any more.
        box.work()
    assert told(caplog) == []


async def test_however_many_wait_the_log_stays_readable(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    server = timed.open("server", limit=Limit(items=0))
    accounts: list[Account] = [
        timed.open(f"p{n:03}", limit=NO_LIMIT, parent=server) for n in range(300)
    ]
    (box,) = boxes(timed, 1)
    publish(accounts[0], [box])
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        async with open_nursery() as readers:
            for account in accounts:
                readers.start_soon(account.ensure_clear_funds)
                await wait_all_tasks_blocked()
            await anyio.sleep(5)
            begun = told(caplog)
            await anyio.sleep(30)
            (rest,) = told(caplog)
            box.work()
        ended = told(caplog)
        nursery.cancel_scope.cancel()
    assert [each.event for each in begun] == ["slow_wait"] * 20
    assert [each.account for each in begun] == [f"p{n:03}" for n in range(20)]
    assert (rest.event, rest.waits) == ("slow_waits_unnamed", 280)
    # Those that were told of, and no others.
    assert sorted(each.account for each in ended) == [f"p{n:03}" for n in range(20)]
    assert all(each.event == "slow_wait_ended" for each in ended)


async def test_of_many_holders_the_worst_are_named(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    everybody = boxes(timed, 9)
    for n, box in enumerate(everybody, 1):
        publish(account, [box], items=n)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        async with open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            await anyio.sleep(2)
            for n, box in enumerate(everybody, 1):
                await anyio.sleep(n)
                box.work(n)
        line, end = told(caplog)
        nursery.cancel_scope.cancel()
    assert [each["holder"] for each in line.holders] == ["O9", "O8", "O7", "O6", "O5"]
    assert line.holders_more == 4
    assert line.message.endswith("box O5 (5 items, 0 bytes) and 4 more")
    # The first is to blame for three seconds of waiting, the others for as many as they took.
    assert [(h["holder"], h["blamed_seconds"]) for h in end.holders] == [
        *(("O9", 9.0), ("O8", 8.0), ("O7", 7.0), ("O6", 6.0), ("O5", 5.0))
    ]
    assert end.holders_more == 4
    assert end.seconds == 47


async def test_open_turns_and_loose_loans_are_holders(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    loan = account.lend("", items=2, nbytes=20)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        async with open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            with account.turn(items=1, nbytes=10):
                await anyio.sleep(1.5)
            loan.settle()
        line, _ = told(caplog)
        nursery.cancel_scope.cancel()
    assert line.message.endswith("(loose) (2 items, 20 bytes) and router (1 items, 10 bytes)")
    assert [(h["holder"], h["kind"], h["items"]) for h in line.holders] == [
        ("(loose)", "loose", 2),
        ("router", "router", 1),
    ]


async def test_one_watch_is_enough(autojump_clock: MockClock, timed: Ledger) -> None:
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        await wait_all_tasks_blocked()
        with pytest.raises(AccountError, match="watched already"):
            await watch_slow_waits(timed)
        nursery.cancel_scope.cancel()
    # And when it has ended another may begin.
    with anyio.move_on_after(1):
        await watch_slow_waits(timed)


async def test_it_keeps_nothing_of_waits_that_are_over(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    server = timed.open("server", limit=Limit(items=0))
    accounts = [timed.open(f"p{n}", limit=NO_LIMIT, parent=server) for n in range(50)]
    box = Box(timed, "box")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_slow_waits, timed)
        await wait_all_tasks_blocked()
        slow_waits = timed.slow_waits
        assert slow_waits is not None
        for seconds in (0.5, 3.0):
            publish(accounts[0], [box])
            async with open_nursery() as readers:
                for account in accounts:
                    readers.start_soon(account.ensure_clear_funds)
                await anyio.sleep(seconds)
                if seconds == 3.0:
                    assert (len(slow_waits.told), len(slow_waits.counted)) == (20, 30)
                box.work()
            assert not slow_waits.fresh
            assert not slow_waits.told
            assert not slow_waits.counted
        nursery.cancel_scope.cancel()
