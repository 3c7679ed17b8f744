"""Weighted shares of what a shared account may owe: who goes on, who waits, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from anyio import wait_all_tasks_blocked

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.limits._shares import wants_more
from tests.accounts.conftest import Box, Recording, publish
from tests.accounts.gates import Place, is_full, is_tight, waited, waits
from tests.loops import open_nursery

if TYPE_CHECKING:
    from collections.abc import Sequence

HUNDRED = Limit(items=100, bytes=None)


def family(
    place: Place, weights: Sequence[float], limit: Limit = HUNDRED
) -> tuple[Account, list[Account]]:
    """Open a shared account, and children of such weights."""
    parent = place.ledger.open("parent", limit=limit, shared=True)
    children = [
        place.ledger.open(f"c{i}", limit=NO_LIMIT, parent=parent, weight=weight)
        for i, weight in enumerate(weights)
    ]
    return parent, children


def clear(*accounts: Account) -> list[bool]:
    return [account.funds_are_clear() for account in accounts]


def test_an_account_that_is_not_shared_stops_everybody_below() -> None:
    ledger = Ledger()
    parent = ledger.open("parent", limit=HUNDRED)
    a, b = (ledger.open(name, limit=NO_LIMIT, parent=parent) for name in "ab")
    assert not parent.shared
    assert (a.weight, a.statistics().weight, a.statistics().shared) == (1.0, 1.0, False)
    a.borrow(101, 0)
    assert clear(a, b) == [False, False]


def test_a_child_at_its_share_goes_on_and_one_above_it_does_not() -> None:
    place = Place()
    parent, (a, b, c) = family(place, [1, 2, 1])
    assert parent.statistics().shared
    a.borrow(26, 0)
    b.borrow(50, 0)
    assert clear(a, b, c) == [True, True, True]  # the limit is not reached yet
    assert a.statistics().share_items is None
    c.borrow(25, 0)
    assert clear(a, b, c) == [False, True, True]
    statements = [each.statistics() for each in (a, b, c)]
    assert [each.share_items for each in statements] == [25, 50, 25]
    assert [each.share_bytes for each in statements] == [None] * 3
    assert gate_of(parent).throttled
    assert parent.statistics().state == "throttled"
    # `room` is what is left of the share.
    assert (a.room()[0], b.room()[0], c.room()[0]) == (-1, 0, 0)


async def test_what_some_leave_over_is_for_those_who_want_more() -> None:
    """Max-min fairness: a's 10 are less than its share, so b and c have 45 each, and not 33."""
    place = Place()
    _, (a, b, c) = family(place, [1, 1, 1])
    a.borrow(10, 0)
    b.borrow(46, 0)
    c.borrow(45, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, b)
        assert clear(a, b, c) == [True, False, True]
        c.borrow(1, 0)
        await place.come(nursery, c)
        # Fifteen sixteenths of 45, and the one less that each was above.
        assert gate_of(b).goes_on_at()[0] == gate_of(c).goes_on_at()[0] == 41
        b.repay(5, 0)
        await wait_all_tasks_blocked()
        c.repay(5, 0)
    assert place.went_on == ["c1", "c2"]


async def test_who_is_squeezed_waits_until_it_is_a_sixteenth_below_its_share() -> None:
    place = Place()
    parent, (a, b) = family(place, [3, 1])
    a.borrow(75, 0)
    b.borrow(33, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, b)
        assert (gate_of(b).squeezed, b.state, gate_of(b).closed, gate_of(parent).closed) == (
            True,
            "throttled",
            True,
            False,
        )
        assert gate_of(b).waits_for_repayment
        await place.come(nursery, a)
        assert place.went_on == ["c0"]
        # (100 - 75) / 1 is its level, of which fifteen sixteenths are 23.4; and of what it was
        # above, a sixteenth of the level at the most is taken off.
        assert gate_of(b).goes_on_at()[0] == 21
        b.repay(11, 0)
        await wait_all_tasks_blocked()
        assert place.went_on == ["c0"]
        b.repay(1, 0)
    assert place.went_on == ["c0", "c1"]
    assert not gate_of(b).squeezed
    assert b.state == "owing"
    assert waits(place.ledger) == {"share": 1}
    assert gate_of(parent).throttled


async def test_the_one_furthest_over_its_share_goes_on_last() -> None:
    place = Place()
    _, (a, b, c) = family(place, [1, 2, 1], Limit(items=100, bytes=None, low_items=0))
    a.borrow(90, 0)
    b.borrow(70, 0)
    c.borrow(50, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, a, b, c)
        for account in (c, a, b, a, b, a, c, b, c, a):
            account.repay(10, 0)
            await wait_all_tasks_blocked()
        assert place.went_on == ["c1", "c2"]
        a.repay(40, 0)
    assert place.went_on == ["c1", "c2", "c0"]


async def test_a_large_repayment_of_one_lets_others_go_on() -> None:
    place = Place()
    _, (a, b) = family(place, [1, 1], Limit(items=100, bytes=None, low_items=0))
    a.borrow(80, 0)
    b.borrow(60, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, a, b)
        await place.pass_(2)
        a.repay(80, 0)  # what it leaves is b's: all the 100
        await wait_all_tasks_blocked()
    assert sorted(place.went_on) == ["c0", "c1"]
    assert b.debt_items == 60
    assert waited(b) == {"share": 2.0}
    assert b.statistics().blame == {"(no holder)": 2.0}  # who has repaid a's


async def test_all_go_on_when_the_shared_account_is_at_its_lower_mark() -> None:
    place = Place()
    parent, (a, b, c) = family(place, [100, 1, 1])
    a.borrow(50, 0)
    b.borrow(60, 0)
    async with open_nursery() as nursery:
        c.borrow(1, 0)
        await place.come(nursery, b)
        assert gate_of(b).squeezed
        a.repay(50, 0)
        b.repay(11, 0)
        await wait_all_tasks_blocked()
    assert not gate_of(parent).throttled
    assert parent.shares is not None
    assert not parent.shares.active
    assert place.went_on == ["c1"]


async def test_above_twice_the_limit_everybody_waits_as_without_shares() -> None:
    place = Place()
    parent, (a, b, c) = family(place, [1, 1, 1], Limit(items=80, bytes=None))
    stuck = place.ledger.open("stuck", limit=NO_LIMIT, parent=parent)
    stuck.borrow(140, 0)
    a.borrow(20, 0)
    assert clear(a, b) == [True, True]
    assert a.room()[0] == 0
    stuck.borrow(1, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, a, b)
        assert is_full(parent)
        assert gate_of(parent).closed
        assert gate_of(parent).waits_for_repayment
        assert gate_of(parent).goes_on_at()[0] == 150
        assert a.room() == (-1, -1)
        assert clear(c) == [False]
        assert waits(place.ledger) == {"parent": 2}
        stuck.repay(10, 0)
        await wait_all_tasks_blocked()
        assert place.went_on == []
        stuck.repay(1, 0)  # 150: fifteen eighths
    assert place.went_on == ["c0", "c1"]
    assert not is_full(parent)
    assert gate_of(parent).throttled


async def test_bytes_have_shares_as_items_do() -> None:
    place = Place()
    _, (a, b) = family(place, [1, 1], Limit(items=100, bytes=1000))
    a.borrow(1, 700)
    b.borrow(10, 301)
    assert clear(a, b) == [False, True]
    assert (a.statistics().share_items, b.statistics().share_bytes) == (69, 500)
    b.borrow(40, 0)
    assert clear(a, b) == [False, True]
    b.borrow(1, 0)
    assert clear(a, b) == [False, False]


@pytest.mark.parametrize("limit", [Limit(items=60, bytes=None), NO_LIMIT])
async def test_shares_at_each_level_of_the_tree(limit: Limit) -> None:
    """What a tenant has of the server's limit, those below it share, whatever its own is."""
    place = Place()
    server = place.ledger.open("server", limit=Limit(items=100, bytes=None), shared=True)
    red = place.ledger.open("red", limit=limit, parent=server, shared=True)
    blue = place.ledger.open("blue", limit=limit, parent=server)
    reds = [place.ledger.open(f"red/{i}", limit=NO_LIMIT, parent=red) for i in (1, 2)]
    blues = [place.ledger.open(f"blue/{i}", limit=NO_LIMIT, parent=blue) for i in (1, 2)]
    reds[0].borrow(57, 0)
    reds[1].borrow(3, 0)
    blues[0].borrow(50, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, reds[0], *blues, reds[1])
        # Red's share is 50, of which the first had 47: it waits alone. Blue's is as much.
        assert place.went_on == ["blue/1", "blue/2", "red/2"]
        assert (
            gate_of(red).squeezed,
            is_tight(red),
            gate_of(red).closed,
            gate_of(reds[0]).squeezed,
        ) == (True, True, False, True)
        assert waits(place.ledger) == {"share": 1}
        blues[0].borrow(1, 0)
        await place.come(nursery, *blues)
        # Blue's limit is not shared: both wait where it is squeezed.
        assert waits(place.ledger) == {"share": 3}
        assert (gate_of(blue).squeezed, bool(blue.line), is_tight(blue)) == (True, True, False)
        blues[0].repay(9, 0)
        await wait_all_tasks_blocked()
        assert place.went_on[3:] == ["blue/1", "blue/2"]
        reds[0].repay(15, 0)
        await wait_all_tasks_blocked()
        assert place.went_on[5:] == []
        reds[0].repay(1, 0)
        await wait_all_tasks_blocked()
        assert place.went_on[5:] == ["red/1"]
        # It still wants more: what its children have is parted until it owes half as much.
        reds[0].repay(1, 0)
        assert (gate_of(red).squeezed, wants_more(red), is_tight(red)) == (False, True, True)
        reds[0].repay(18, 0)
        assert (wants_more(red), is_tight(red), red.gated) == (False, False, False)


async def test_a_larger_share_of_a_tenant_is_for_those_below_it() -> None:
    """Though nothing of theirs is repaid: what others owe is."""
    place = Place()
    server = place.ledger.open(
        "server", limit=Limit(items=100, bytes=None, low_items=0), shared=True
    )
    red = place.ledger.open("red", limit=NO_LIMIT, parent=server, shared=True)
    first, second = (place.ledger.open(n, limit=NO_LIMIT, parent=red) for n in ("first", "second"))
    blue = place.ledger.open("blue", limit=NO_LIMIT, parent=server)
    first.borrow(55, 0)
    second.borrow(40, 0)
    blue.borrow(60, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, first, second, blue)
        assert (place.went_on, gate_of(red).squeezed, gate_of(blue).squeezed) == ([], True, True)
        blue.repay(60, 0)
        await wait_all_tasks_blocked()
        # Red is above fifteen sixteenths of all, and stays squeezed; but each of two may owe 46.
        assert sorted(place.went_on) == ["blue", "second"]
        assert gate_of(red).squeezed
        first.repay(15, 0)
    assert place.went_on[2:] == ["first"]


async def test_an_innocent_sibling_never_waits_next_to_a_stuck_one() -> None:
    """And that is all there is to say of it, for as long as nobody else gets stuck."""
    place = Place()
    _, (stuck, innocent) = family(place, [1, 1])
    box, sink = Box(place.ledger, "box"), Box(place.ledger, "sink")
    async with open_nursery() as nursery:
        while stuck.funds_are_clear():
            publish(stuck, [box])
        await place.come(nursery, stuck)
        for _ in range(1000):
            assert innocent.funds_are_clear()
            await innocent.ensure_clear_funds()
            publish(innocent, [sink] * 9)
            sink.work(9)
        assert innocent.waits == 0
        assert place.went_on == []
        box.work(box.items)
    assert place.went_on == ["c0"]


# -- what changes ---------------------------------------------------------------------------------


async def test_a_weight_that_is_set_counts_at_once() -> None:
    place = Place()
    _, (a, b) = family(place, [1, 1])
    a.borrow(40, 0)
    b.borrow(70, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, b)
        a.borrow(10, 0)
        assert place.went_on == []
        b.weight = 9
        await wait_all_tasks_blocked()
        assert place.went_on == ["c1"]
    assert not a.funds_are_clear()
    assert (a.weight, b.weight) == (1, 9)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_is_refused(weight: float) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="weight"):
        ledger.open("a", weight=weight)
    assert not ledger.accounts
    with pytest.raises(ValueError, match="weight"):
        ledger.open("a").weight = weight


async def test_a_limit_that_is_set_counts_at_once() -> None:
    place = Place()
    parent, (a, b) = family(place, [1, 1])
    a.borrow(50, 0)
    b.borrow(70, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, b)
        parent.limit = Limit(items=120, bytes=None)
        await wait_all_tasks_blocked()
        assert place.went_on == []
        parent.limit = Limit(items=150, bytes=None)  # 100 for b; fifteen sixteenths are 93
    assert place.went_on == ["c1"]


async def test_sharing_can_begin_and_end_while_somebody_waits() -> None:
    place = Place()
    ledger = place.ledger
    parent = ledger.open("parent", limit=HUNDRED)
    a, b = (ledger.open(name, limit=NO_LIMIT, parent=parent) for name in "ab")
    a.borrow(101, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, a, b)
        assert place.went_on == []
        parent.shared = True
        await wait_all_tasks_blocked()
        assert place.went_on == ["b"]
        assert gate_of(a).squeezed
        parent.shared = False
        await wait_all_tasks_blocked()
        assert not gate_of(a).squeezed
        await place.come(nursery, b)
        assert place.went_on == ["b"]
        parent.shared = True
        await wait_all_tasks_blocked()
        assert place.went_on == ["b", "b"]
        a.repay(101, 0)
    assert place.went_on == ["b", "b", "a"]
    assert waits(ledger) == {"parent": 3}
    assert not any(account.gated for account in (parent, a, b))


async def test_opening_again_sets_what_is_given_and_leaves_the_rest() -> None:
    ledger = Ledger()
    parent = ledger.open("parent", shared=True, weight=3)
    assert ledger.open("parent") is parent
    assert (parent.shared, parent.weight) == (True, 3)
    ledger.open("parent", shared=False, weight=4)
    assert (parent.shared, parent.weight) == (False, 4)


async def test_accounts_that_go_leave_nothing_behind() -> None:
    place = Place()
    parent, (a, b, c) = family(place, [1, 1, 1])
    a.borrow(90, 0)
    b.borrow(60, 0)
    c.borrow(9, 0)
    async with open_nursery() as nursery:
        await place.come(nursery, a, b)
        nursery.cancel_scope.cancel()
    assert parent.shares is not None
    assert list(parent.shares.wanting) == [a, b]
    for account in (a, b, c):
        account.close()
    a.repay(90, 0)
    assert list(parent.shares.active) == [b, c]
    assert parent.below is not None
    assert list(parent.below) == [b, c]
    assert gate_of(parent).throttled
    c.repay(9, 0)
    b.repay(60, 0)
    assert not parent.below
    assert not gate_of(parent).throttled
    assert not place.ledger.unusual
    assert parent.shares.weight == 0


# -- what is told ---------------------------------------------------------------------------------


async def test_a_recorder_and_statements_say_that_it_was_for_a_share() -> None:
    place = Place()
    recording = place.ledger.recorder = Recording()
    _, (a, b) = family(place, [1, 1])
    reader = place.ledger.open("reader", limit=NO_LIMIT, parent=a)
    box = Box(place.ledger, "box")
    publish(reader, [box], items=60)
    other = Box(place.ledger, "other")
    publish(b, [other], items=50)
    async with open_nursery() as nursery:
        await place.come(nursery, reader)
        await place.pass_(3)
        box.work(30)
    assert waited(reader) == {"share": 3.0}
    assert reader.statistics().blame == {"box": 3.0}
    assert recording.stalls == [("reader", "c0", "box", 3.0, 3.0, "share")]
    box.close()
    other.close()
