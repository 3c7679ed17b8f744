"""`RateLimit`: how fast input may come in."""

from __future__ import annotations

import math

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from clearfunds.accounts import NO_LIMIT, Ledger, Limit, RateLimit, commit_run
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.limits._rate_limit import RATE_TICK, TokenBucket
from tests.accounts.conftest import Box, publish
from tests.accounts.gates import Place, waited, waits
from tests.loops import open_nursery


def test_a_bucket_begins_full_and_fills_at_its_rate_up_to_the_burst() -> None:
    bucket = TokenBucket(RateLimit(items_per_s=10, burst_items=5), 100.0)
    assert (bucket.items, bucket.bytes) == (5, math.inf)
    bucket.take(5, 1 << 40)
    assert bucket.wait(100.0) == RATE_TICK
    assert bucket.wait(100.2) == 0.0
    assert bucket.items == pytest.approx(2)
    assert bucket.wait(200.0) == 0.0
    assert bucket.items == 5


def test_a_bucket_may_be_overdrawn_and_says_for_how_long_that_lasts() -> None:
    bucket = TokenBucket(RateLimit(items_per_s=10, bytes_per_s=1000, burst_bytes=100), 0.0)
    bucket.take(1, 2100)
    assert (bucket.items, bucket.bytes) == (9, -2000)
    assert bucket.wait(0.5) == pytest.approx(1.5)
    assert bucket.room(0.5) == (-1, -1)
    assert bucket.wait(2.0) == RATE_TICK  # it has to be above zero
    assert bucket.wait(2.01) == 0.0
    items, nbytes = bucket.room(2.01)
    assert items == 10
    assert nbytes == pytest.approx(10)


def test_the_burst_is_a_second_of_the_rate_and_one_event_at_least() -> None:
    bucket = TokenBucket(RateLimit(items_per_s=0.1, bytes_per_s=300), 0.0)
    assert (bucket.items, bucket.bytes) == (1.0, 300.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"items_per_s": 0},
        {"items_per_s": -1},
        {"bytes_per_s": math.inf},
        {"bytes_per_s": math.nan},
        {"items_per_s": 1, "burst_items": 0},
        {"burst_items": 1},
        {"items_per_s": 1, "burst_bytes": 1},
    ],
)
def test_a_rate_limit_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        RateLimit(**wrong)


@given(
    st.floats(0.5, 50),
    st.floats(0.5, 20),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30)), max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_no_more_comes_in_than_the_rate_the_burst_and_one_packet(
    rate: float, burst: float, life: list[tuple[float, int]]
) -> None:
    """Whenever somebody looks and whatever comes, as long as only who may brings it."""
    bucket = TokenBucket(RateLimit(items_per_s=rate, burst_items=burst), 0.0)
    now = 0.0
    came = 0
    for pause, items in life:
        now += pause
        seconds = bucket.wait(now)
        if seconds:
            # So long and not longer: there is a token then, and none much before.
            assert bucket.items <= 0
            if seconds > 2 * RATE_TICK:
                assert bucket.wait(now + seconds - RATE_TICK) > 0
                now += seconds - RATE_TICK
            now += 2 * RATE_TICK
            assert bucket.wait(now) == 0
        bucket.take(items, 0)
        came += items
        assert came <= burst + rate * now + 30 + 1e-6


async def test_in_the_long_run_no_more_comes_in_than_the_rate(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    server = ledger.open("server", limit=NO_LIMIT)
    fast = ledger.open("fast", limit=NO_LIMIT, parent=server)
    slow = ledger.open("slow", limit=NO_LIMIT, parent=server)
    slow.rate = RateLimit(items_per_s=10, burst_items=3)
    began = anyio.current_time()
    for _ in range(100):
        await slow.ensure_clear_funds()
        publish(slow, [])
    # Three are there at the beginning; and a thousandth of a second is waited for each at most.
    assert anyio.current_time() - began == pytest.approx(9.7, abs=0.2)
    assert anyio.current_time() - began >= 9.6
    for _ in range(100):
        await fast.ensure_clear_funds()
        publish(fast, [])
    assert waits(ledger).keys() == {"rate"}
    assert waited(slow) == {"rate": pytest.approx(anyio.current_time() - began)}
    assert slow.statistics().blame == {"(rate limit)": pytest.approx(waited(slow)["rate"])}
    assert waited(fast) == {}


async def test_a_packet_is_never_split(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    account = ledger.open("account", limit=NO_LIMIT)
    account.rate = RateLimit(bytes_per_s=100)
    box = Box(ledger, "box")
    commit_run(account, [box, box], b"", 1, 1000)  # what comes in counts, not the copies
    assert account.room() == (-1, -1)
    began = anyio.current_time()
    await account.ensure_clear_funds()
    assert anyio.current_time() - began == pytest.approx(9.0, abs=0.01)
    box.close()


async def test_the_room_is_what_tokens_there_are() -> None:
    place = Place()
    account = place.ledger.open("account", limit=Limit(items=1000, bytes=None))
    account.rate = RateLimit(items_per_s=10, bytes_per_s=5000)
    assert account.room() == (10, 5000)
    publish(account, [], items=4, nbytes=100)
    assert account.room() == (6, 4900)


async def test_those_below_a_rate_wait_in_one_line_in_their_order(
    autojump_clock: MockClock,
) -> None:
    place = Place(anyio.current_time)
    tenant = place.ledger.open("tenant", limit=NO_LIMIT)
    tenant.rate = RateLimit(items_per_s=1, burst_items=1)
    accounts = [place.ledger.open(f"a{i}", parent=tenant) for i in range(5)]
    publish(accounts[0], [], items=2)
    times: list[float] = []

    async def read(number: int) -> None:
        await accounts[number].ensure_clear_funds()
        place.went_on.append(accounts[number].name)
        publish(accounts[number], [])
        times.append(anyio.current_time())

    began = anyio.current_time()
    async with open_nursery() as nursery:
        for number in (3, 1, 4, 0, 2):
            nursery.start_soon(read, number)
            await anyio.wait_all_tasks_blocked()
        assert accounts[4].statistics().waiting == 1
        assert gate_of(tenant).closed
        assert not gate_of(tenant).waits_for_repayment
        assert not gate_of(tenant).waits_on_holders
    assert place.went_on == ["a3", "a1", "a4", "a0", "a2"]
    expected = [1, 2, 3, 4, 5]
    assert [time - began for time in times] == pytest.approx(expected, abs=0.05)
    assert waits(place.ledger) == {"rate": 5}


async def test_a_wait_for_tokens_can_be_cancelled_and_the_next_in_line_takes_over(
    autojump_clock: MockClock,
) -> None:
    place = Place(anyio.current_time)
    account = place.ledger.open("account", limit=NO_LIMIT)
    account.rate = RateLimit(items_per_s=1)
    publish(account, [], items=11)
    began = anyio.current_time()
    async with open_nursery() as nursery:
        with anyio.move_on_after(4):
            await account.ensure_clear_funds()
        nursery.start_soon(place.read, account)
        with anyio.move_on_after(3):
            await account.ensure_clear_funds()
    assert anyio.current_time() - began == pytest.approx(10.0, abs=0.01)
    assert place.went_on == ["account"]
    assert account.waiting == 0
    assert not account.line


async def test_a_rate_that_is_set_counts_at_once(autojump_clock: MockClock) -> None:
    place = Place(anyio.current_time)
    account = place.ledger.open("account", limit=NO_LIMIT)
    below = place.ledger.open("below", limit=NO_LIMIT, parent=account)
    account.rate = RateLimit(items_per_s=1)
    publish(below, [], items=1001)
    began = anyio.current_time()
    async with open_nursery() as nursery:
        await place.come(nursery, below)
        account.rate = RateLimit(items_per_s=100)
        await place.come(nursery, account)
    assert place.went_on == ["below", "account"]
    assert anyio.current_time() - began == pytest.approx(10, abs=0.01)
    publish(below, [], items=1001)
    async with open_nursery() as nursery:
        await place.come(nursery, below)
        account.rate = None
    assert anyio.current_time() - began == pytest.approx(10, abs=0.01)
    assert account.rate is None
    assert not account.gated
    assert below.rated == ()
    assert account.statistics().rate_items is None


async def test_debt_and_rate_are_waited_for_together(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=anyio.current_time)
    account = ledger.open("account", limit=Limit(items=10))
    account.rate = RateLimit(items_per_s=1)
    box = Box(ledger, "box")
    publish(account, [box], items=11)
    began = anyio.current_time()

    async def work() -> None:
        await anyio.sleep(3)
        box.work(11)

    async with open_nursery() as nursery:
        nursery.start_soon(work)
        await account.ensure_clear_funds()
    assert anyio.current_time() - began == pytest.approx(10, abs=0.01)
    assert waited(account) == pytest.approx({"account": 3.0, "rate": 7.0}, abs=0.01)
    blame = account.statistics().blame
    assert blame == pytest.approx({"box": 3.0, "(rate limit)": 7.0}, abs=0.01)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RateLimit(items_per_s=10), RateLimit(bytes_per_s=1000)),
        (RateLimit(bytes_per_s=10), RateLimit(items_per_s=100)),
        (RateLimit(items_per_s=10, bytes_per_s=10), RateLimit(bytes_per_s=1000)),
    ],
)
async def test_what_has_no_rate_any_more_is_not_waited_for(
    before: RateLimit, after: RateLimit, autojump_clock: MockClock
) -> None:
    """What was left over of the other unit would never be filled again."""
    ledger = Ledger(clock=anyio.current_time)
    account = ledger.open("account", limit=NO_LIMIT)
    account.rate = before
    commit_run(account, [], b"", 50, 5000)
    account.rate = after
    with anyio.fail_after(20):
        for _ in range(100):
            await account.ensure_clear_funds()
            commit_run(account, [], b"", 1, 10)
