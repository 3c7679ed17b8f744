"""Gates that are closed at a time, and what opens one of them: nobody is lost, nobody spins."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    LatencyLimit,
    Ledger,
    Limit,
    RateLimit,
    commit_run,
)
from clearfunds.accounts._books import charge_rates
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.limits._shares import Shares, wants_more
from tests.accounts.conftest import Box, publish
from tests.accounts.gates import Place, waited
from tests.loops import open_nursery


async def test_who_waits_for_tokens_sleeps_when_there_are_some_but_too_much_is_owed(
    autojump_clock: MockClock,
) -> None:
    """What another reader of the account causes meanwhile closes it for debt as well."""
    place = Place(anyio.current_time)
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        assert looks < 1000, "it looks again and again"
        return anyio.current_time()

    place.ledger.clock = clock
    account = place.ledger.open("account", limit=Limit(items=10))
    account.rate = RateLimit(items_per_s=1, burst_items=1)
    charge_rates(account, 2, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, account, account)
        account.borrow(50, 0)
        await anyio.sleep(30)
        assert place.went_on == []
        assert account.waiting == 2
        account.repay(50, 0)
        await wait_all_tasks_blocked()
        assert place.went_on == ["account", "account"]
    assert not gate_of(account).closed
    blame = account.statistics().blame
    assert blame == pytest.approx({"(rate limit)": 1.0, "(no holder)": 29.0}, abs=0.01)


async def test_who_stands_behind_the_first_for_tokens_is_not_told_of_each(
    autojump_clock: MockClock,
) -> None:
    """What thousands wait for does not change with each token that one of them gets."""
    place = Place(anyio.current_time)
    tenant = place.ledger.open("tenant", limit=NO_LIMIT)
    tenant.rate = RateLimit(items_per_s=1, burst_items=1)
    accounts = [place.ledger.open(f"a{i}", limit=NO_LIMIT, parent=tenant) for i in range(4)]
    charge_rates(tenant, 2, 0)
    began = anyio.current_time()
    stretches: list[float] = []

    async def read(number: int) -> None:
        await accounts[number].ensure_clear_funds()
        place.went_on.append(accounts[number].name)
        charge_rates(accounts[number], 1, 0)
        stretches.extend(waiter.stretch for waiter in place.ledger.waiters)

    async with open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(read, number)
            await wait_all_tasks_blocked()
    assert place.went_on == ["a0", "a1", "a2", "a3"]
    assert stretches == pytest.approx([began] * 6)
    assert anyio.current_time() - began == pytest.approx(4, abs=0.01)
    for number, account in enumerate(accounts, 1):
        assert waited(account) == {"rate": pytest.approx(number, abs=0.01)}
    await anyio.sleep(2)
    assert tenant.funds_are_clear()
    assert not gate_of(tenant).closed


def test_what_was_saved_up_before_does_not_pay_for_what_comes_after() -> None:
    """A source that looks, reads, and charges what it has read a long time after it looked."""
    place = Place()
    account = place.ledger.open("account", limit=NO_LIMIT)
    account.rate = RateLimit(items_per_s=10, burst_items=5)
    assert account.funds_are_clear()
    place.clock.now += 100
    charge_rates(account, 30, 0)
    assert not account.funds_are_clear()
    place.clock.now += 2.4
    assert not account.funds_are_clear()
    place.clock.now += 0.2
    assert account.funds_are_clear()


async def test_a_tenant_that_wants_no_more_parts_its_own_limit_again() -> None:
    """That is more than its share was: who was squeezed by that goes on."""
    place = Place()
    server = place.ledger.open("server", limit=Limit(items=100), shared=True)
    red = place.ledger.open("red", limit=Limit(items=60), parent=server, shared=True)
    blue = place.ledger.open("blue", limit=NO_LIMIT, parent=server)
    one, two = (place.ledger.open(n, limit=NO_LIMIT, parent=red) for n in ("one", "two"))
    async with open_nursery() as nursery:
        one.borrow(35, 0)
        two.borrow(35, 0)
        blue.borrow(60, 0)
        await place.come(nursery, one, two, blue)
        assert place.went_on == []
        two.repay(24, 0)
        assert gate_of(red).throttled
        assert wants_more(red)
        assert red.debt_items == 46
        one.repay(11, 0)
        await wait_all_tasks_blocked()
        place.went_on.clear()
        assert one.debt_items == 24
        await place.come(nursery, one)
        assert gate_of(red).throttled
        assert place.went_on == []
        # Half of 60 is 30, and an eighth less is 26.
        blue.repay(60, 0)
        await wait_all_tasks_blocked()
        assert not gate_of(server).throttled
        assert gate_of(red).throttled
        assert not wants_more(red)
        assert "one" in place.went_on
        nursery.cancel_scope.cancel()


def test_a_limit_that_is_moved_is_not_shared() -> None:
    place = Place()
    account = place.ledger.open("account")
    account.limit_by(LatencyLimit(1.0))
    with pytest.raises(ValueError, match="account has a limit that is moved"):
        account.shared = True
    with pytest.raises(ValueError, match="account has a limit that is moved"):
        place.ledger.open("account", shared=True)
    assert not account.shared
    account.limit_by(None)
    account.shared = True


async def test_what_is_borrowed_below_an_account_whose_limit_moves_breaks_nothing() -> None:
    place = Place()
    above = place.ledger.open("above")
    above.limit_by(LatencyLimit(1.0, floor=Limit(items=10), ceiling=Limit(items=1000)))
    one, two = (place.ledger.open(n, limit=NO_LIMIT, parent=above) for n in ("one", "two"))
    one.borrow(20, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, one, two)
        await place.pass_(0.5)
        one.repay(16, 0)
        one.borrow(500, 0)
        one.repay(1, 0)
        one.repay(503, 0)
    assert sorted(place.went_on) == ["one", "two"]


def test_a_weight_that_is_as_it_was_concerns_no_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(clock=lambda: 0.0)
    server = ledger.open("server", limit=Limit(items=10), shared=True)
    greedy = ledger.open("greedy", limit=NO_LIMIT, parent=server, weight=2)
    other = ledger.open("other", limit=NO_LIMIT, parent=server)
    greedy.borrow(15, 0)
    other.borrow(1, 0)
    assert not greedy.funds_are_clear()
    assert other.funds_are_clear()
    assert server.shares is not None
    active = server.shares.active
    before = server.shares.weight
    assert before == 3.0

    def changed(_: Shares) -> None:
        pytest.fail("all are counted anew")

    with monkeypatch.context() as patch:
        patch.setattr(Shares, "changed", changed)
        ledger.open("greedy", parent=server, weight=2)
        ledger.open("new", limit=NO_LIMIT, parent=server, weight=5)
    assert set(active) == {greedy, other}
    greedy.weight = 3
    assert server.shares.weight == 4.0


@pytest.mark.parametrize("gate", ["debt", "full", "rate"])
@pytest.mark.parametrize("late", [0, 1, 3, 7])
async def test_who_was_let_through_and_looks_again_does_not_make_room_for_those_behind(
    autojump_clock: MockClock, gate: str, late: int
) -> None:
    """As sessions do, which have something to tidy up after a wait.

    If they let those behind them go first, these would do the same, and none would go on.
    """
    place = Place(anyio.current_time)
    limit = NO_LIMIT if gate == "rate" else Limit(items=10)
    above = place.ledger.open("above", limit=limit, shared=gate == "full")
    if gate == "rate":
        above.rate = RateLimit(items_per_s=10, burst_items=1)
    accounts = [place.ledger.open(f"a{i}", limit=NO_LIMIT, parent=above) for i in range(10)]
    box = Box(place.ledger, "box")
    waits = 0

    async def read(account: Account) -> None:
        nonlocal waits
        while True:
            while not account.funds_are_clear():
                waits += 1
                await account.ensure_clear_funds()
                for _ in range(late):
                    await anyio.lowlevel.checkpoint()
            place.went_on.append(account.name)
            publish(account, [box])
            await anyio.lowlevel.checkpoint()

    async with open_nursery() as nursery:
        publish(above, [box] * 30)
        for account in accounts:
            nursery.start_soon(read, account)
        with anyio.move_on_after(30):
            while True:
                await anyio.sleep(0.1)
                box.work(min(1, box.items))
        nursery.cancel_scope.cancel()
    counts = [place.went_on.count(account.name) for account in accounts]
    assert sum(counts) > 250
    assert max(counts) - min(counts) <= 5
    # Those who are let through before the first has brought something in look in vain.
    assert waits < (late + 3) * len(place.went_on)


async def test_who_has_brought_something_in_stands_behind_those_who_wait() -> None:
    ledger = Ledger()
    account = ledger.open("account", limit=Limit(items=10))
    box = Box(ledger, "box")
    tickets: list[int] = []

    async def repay() -> None:
        await wait_all_tasks_blocked()
        (waiter,) = ledger.waiters
        tickets.append(waiter.ticket)
        account.resume("disk")
        box.work(box.items)

    publish(account, [box] * 11)
    for what in ("nothing", "a turn", "a run", "a loan"):
        async with open_nursery() as nursery:
            nursery.start_soon(repay)
            await account.ensure_clear_funds()
        account.halt("disk")
        if what == "a turn":
            publish(account, [box])
        elif what == "a run":
            commit_run(account, [box], b"", 1, 1)
        elif what == "a loan":
            account.lend(None).settle()
    async with open_nursery() as nursery:
        nursery.start_soon(repay)
        await account.ensure_clear_funds()
    # The second looks without having brought in anything: it is where it was.
    assert tickets[0] == tickets[1]
    assert tickets[1:] == sorted(set(tickets))
