"""Turns at something of which there is little."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from clearfunds.access._fair_turns import FairTurns, QueueFullError


@asynccontextmanager
async def waiting(
    turns: FairTurns, *whose: tuple[str, bool]
) -> AsyncGenerator[tuple[list[str], Callable[[], None]]]:
    """Have some wait in this order while one has the only turn; yields who had one, as it goes."""
    had: list[str] = []

    async def wait(who: str, first: bool) -> None:
        await turns.take(who[0], first=first)
        had.append(who)
        turns.leave()

    await turns.take("begin")
    async with trio.open_nursery() as nursery:
        for who, first in whose:
            nursery.start_soon(wait, who, first)
            await wait_all_tasks_blocked()
        yield had, nursery.cancel_scope.cancel


async def test_one_of_each_after_the_other() -> None:
    turns = FairTurns(1)
    crowd = [(f"m{n}", False) for n in range(50)]
    async with waiting(turns, *crowd, ("a1", False), ("b1", False), ("a2", False)) as (had, _):
        assert turns.waiting == 53
        turns.leave()
    assert had[:6] == ["m0", "a1", "b1", "m1", "a2", "m2"]
    assert len(had) == 53
    assert turns.waiting == 0


async def test_those_who_come_first_have_every_other_turn() -> None:
    turns = FairTurns(1)
    crowd = [(f"m{n}", False) for n in range(3)] + [(f"t{n}", True) for n in range(3)]
    async with waiting(turns, *crowd) as (had, _):
        turns.leave()
    assert sorted(had[:2]) == ["m0", "t0"]
    assert sorted(had[2:4]) == ["m1", "t1"]


async def test_who_is_cancelled_leaves_its_place() -> None:
    turns = FairTurns(1)
    async with waiting(turns, ("m0", False), ("m1", False), ("a0", True)) as (had, cancel):
        cancel()
    assert turns.waiting == 0
    assert not had
    turns.leave()
    await turns.take("a")  # nobody waits: at once


async def test_a_turn_that_comes_to_who_is_cancelled_is_passed_on() -> None:
    turns = FairTurns(1)
    async with waiting(turns, ("m0", False), ("a0", False)) as (_, cancel):
        turns.leave()
        cancel()
    # m0 had its turn already, and was cancelled all the same, as was who had it next.
    assert turns.waiting == 0
    with trio.fail_after(1):
        await turns.take("b")


async def test_nobody_waits_for_too_many() -> None:
    turns = FairTurns(1, queue=2)
    async with waiting(turns, ("m0", False), ("m1", False)):
        with pytest.raises(QueueFullError):
            await turns.take("m")
        with trio.move_on_after(0.01) as scope:
            await turns.take("a")
        assert scope.cancelled_caught
        turns.leave()
    assert turns.waiting == 0


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3)), max_size=30),
)
def test_never_more_than_there_are_and_none_is_lost(
    at_once: int, wanted: list[tuple[str, bool, int]]
) -> None:
    """Some are cancelled while they wait or have their turn."""
    turns = FairTurns(at_once)
    now = most = 0

    async def one(who: str, first: bool, patience: int) -> None:
        nonlocal now, most
        with trio.CancelScope() as scope:
            if not patience:
                trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
            await turns.take(who, first=first)
            now += 1
            most = max(most, now)
            try:
                for _ in range(patience):
                    await trio.lowlevel.checkpoint()
            finally:
                now -= 1
                turns.leave()

    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for each in wanted:
                    nursery.start_soon(one, *each)
        assert now == turns.waiting == 0
        for _ in range(at_once):
            await turns.take("z")  # all are free again
        with trio.move_on_after(0) as scope:
            await turns.take("z")
        assert scope.cancelled_caught

    trio.run(main)
    assert most <= at_once
