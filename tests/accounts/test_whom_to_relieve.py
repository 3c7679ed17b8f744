"""Of several slow consumers as few are handled as let the readers go on, the best first."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from clearfunds.accounts import Ledger, Limit, StuckPolicy, overdue, watch_patience
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.watch._patience import WATCH_SECONDS
from tests.accounts.conftest import Box, balance, boxes, publish
from tests.loops import LoopClock, open_nursery

pytestmark = pytest.mark.rule(11)


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock, which jumps to whatever happens next."""
    ledger = Ledger(clock=LoopClock())
    yield ledger
    balance(ledger)


async def test_the_culprit_goes_and_the_others_stay(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """One holds up twelve publishers; what three others hold is too little to matter."""
    caplog.set_level(logging.INFO, "clearfunds.accounts")
    publishers = [timed.open(f"pub{n}", limit=Limit(items=10)) for n in range(12)]
    archive, *small = boxes(timed, 4)
    for publisher in publishers:
        publish(publisher, [archive], items=8)
        publish(publisher, small, items=1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for publisher in publishers:
                readers.start_soon(publisher.ensure_clear_funds)
        await anyio.sleep(1)  # until all of them are counted
        nursery.cancel_scope.cancel()
    assert archive.given_up
    assert not any(box.given_up for box in small)
    (freed,) = [r for r in caplog.records if vars(r).get("event") == "freed"]
    assert freed.message == (
        "12 readers go on now that box O1 no longer blocks them; 3 other slow consumers are left "
        "alone"
    )
    assert freed.levelno == logging.INFO
    fields = vars(freed)
    assert (fields["readers"], fields["left_alone"]) == (12, 3)
    assert (fields["holders"], fields["holders_more"]) == (("O1",), 0)
    for box in small:
        box.close()


async def test_who_was_left_alone_has_used_up_its_patience(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """Readers that wait on it again do not wait for another patience."""
    publisher = timed.open("publisher", limit=Limit(items=10))
    first, second, third = boxes(timed, 3)
    publish(publisher, [first], items=8)
    publish(publisher, [second, third], items=2)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        await publisher.ensure_clear_funds()
        assert [bool(box.given_up) for box in (first, second, third)] == [True, False, False]
        await anyio.sleep(100)
        assert not second.given_up  # nobody waits on it
        third.work()
        publish(publisher, [second], items=9)
        publish(publisher, [third])
        began = anyio.current_time()
        await publisher.ensure_clear_funds()
        assert anyio.current_time() - began <= WATCH_SECONDS
        assert second.given_up
        assert second.given_up[0].startswith("box O2 made no progress for 20.")
        assert not third.given_up
        # The third has made progress since, and has its patience anew.
        publish(publisher, [third], items=9)
        began = anyio.current_time()
        await publisher.ensure_clear_funds()
        assert anyio.current_time() - began >= third.patience
        assert third.given_up
        nursery.cancel_scope.cancel()


async def test_one_that_spills_goes_before_one_that_is_disconnected(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    class Relieved(Box):
        policies = frozenset(StuckPolicy)

    publisher = timed.open("publisher", limit=Limit(items=10))
    cut = Box(timed, "cut")
    kept = Relieved(timed, "kept", policy=StuckPolicy.DROP_OLDEST)  # it keeps a thousand
    publish(publisher, [cut, kept], items=6)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        with anyio.fail_after(30):
            await publisher.ensure_clear_funds()
            await publisher.ensure_clear_funds()
        nursery.cancel_scope.cancel()
    assert kept.lagging
    assert not cut.given_up or publisher.debt_items == 0
    for box in (cut, kept):
        box.close()
    kept.caught_up()


async def test_who_is_to_be_waited_for_is_named_only_if_it_still_blocks(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = timed.open("publisher", limit=Limit(items=10))
    cut, waited = Box(timed, "cut"), Box(timed, "waited", policy=StuckPolicy.WAIT)
    publish(publisher, [cut], items=9)
    publish(publisher, [waited], items=2)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        await publisher.ensure_clear_funds()
        nursery.cancel_scope.cancel()
    assert cut.given_up
    assert not [r for r in caplog.records if "its policy is to wait" in r.message]
    waited.close()


@pytest.mark.parametrize("number", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_thousands_of_readers_and_as_many_holders(
    number: int, autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Each publisher owes to two small holders, and to one that holds it up with all others."""
    caplog.set_level(logging.INFO, "clearfunds.accounts")
    archive = Box(timed, "archive")
    small = boxes(timed, number)
    publishers = [timed.open(f"pub{n}", limit=Limit(items=4)) for n in range(number)]
    for n, publisher in enumerate(publishers):
        publish(publisher, [archive], items=3)
        publish(publisher, [small[n], small[n - 1]])
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for publisher in publishers:
                readers.start_soon(publisher.ensure_clear_funds)
        await anyio.sleep(1)  # until all of them are counted
        nursery.cancel_scope.cancel()
    assert archive.given_up
    assert not any(box.given_up for box in small)
    (freed,) = [r for r in caplog.records if vars(r).get("event") == "freed"]
    assert (vars(freed)["readers"], vars(freed)["left_alone"]) == (number, number)
    for box in small:
        box.close()


class Checked(Box):
    """A holder that checks that it is given up only while readers wait on it, and the books."""

    def give_up(self, why: str) -> None:
        waited_at = {waiter.at for waiter in self.ledger.waiters}
        held_up = [
            at
            for loan in self.loans()
            for at in loan.account.chain
            if at in waited_at and gate_of(at).waits_for_repayment
        ]
        assert held_up, self.name
        super().give_up(why)
        self.ledger.audit()


publications = st.lists(
    st.tuples(st.integers(0, 3), st.sets(st.integers(0, 5), min_size=1), st.integers(1, 5)),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(publications, st.integers(0, 12), st.booleans())
def test_nobody_is_handled_without_need_and_nobody_is_left_waiting(
    sent: list[tuple[int, set[int], int]], limit: int, shared: bool
) -> None:
    clock = MockClock(autojump_threshold=0)

    async def scenario() -> None:
        ledger = Ledger(clock=anyio.current_time)
        tenant = ledger.open("tenant", limit=Limit(items=2 * limit), shared=shared)
        publishers = [
            ledger.open(f"pub{n}", limit=Limit(items=limit), parent=tenant) for n in range(4)
        ]
        holders = [Checked(ledger, f"O{n}") for n in range(6)]
        for who, recipients, items in sent:
            publish(publishers[who], [holders[n] for n in sorted(recipients)], items=items)
        async with open_nursery() as nursery:
            nursery.start_soon(watch_patience, ledger)
            with anyio.fail_after(holders[0].patience + 4 * WATCH_SECONDS):
                async with open_nursery() as readers:
                    for publisher in publishers:
                        readers.start_soon(publisher.ensure_clear_funds)
            nursery.cancel_scope.cancel()
        assert not overdue(ledger, anyio.current_time())
        for holder in holders:
            holder.close()
        balance(ledger)

    trio.run(scenario, clock=clock)
