"""The publisher's window: who waits, who goes on, and what a confirm for many frees."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
import trio
from anyio import wait_all_tasks_blocked
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.dataspace import DataspaceError
from clearfunds.dataspace.queues._confirms import Confirms, PublicationConfirm
from clearfunds.dataspace.queues._window import DEFAULT_WINDOW, InflightWindow
from tests.loops import open_nursery


def filled(size: int) -> InflightWindow:
    window = InflightWindow(size)
    assert [window.acquire_nowait() for _ in range(size)] == list(range(1, size + 1))
    return window


async def test_a_full_window_makes_publishers_wait_and_a_confirm_lets_one_go() -> None:
    window = filled(5)
    numbers: list[int] = []

    async def publish() -> None:
        numbers.append(await window.acquire())

    async with open_nursery() as nursery:
        nursery.start_soon(publish)
        await wait_all_tasks_blocked()
        nursery.start_soon(publish)
        await wait_all_tasks_blocked()
        assert numbers == []
        assert "5/5 unconfirmed, 2 waiting" in repr(window)
        with pytest.raises(trio.WouldBlock):
            window.acquire_nowait()
        assert window.answered(3) == [3]
        # The place is handed over: who comes now cannot take it, though nobody has run yet.
        with pytest.raises(trio.WouldBlock):
            window.acquire_nowait()
        await wait_all_tasks_blocked()
        assert numbers == [6]
        assert window.answered(1) == [1]
        await wait_all_tasks_blocked()
        assert numbers == [6, 7]
        assert len(window) == 5
        nursery.cancel_scope.cancel()


async def test_a_confirm_for_many_frees_many() -> None:
    window = filled(10)
    through = 0

    async def publish() -> None:
        nonlocal through
        while True:
            await window.acquire()
            through += 1

    async with open_nursery() as nursery:
        nursery.start_soon(publish)
        await wait_all_tasks_blocked()
        assert window.answered(4) == [4]
        assert window.answered(7, multiple=True) == [1, 2, 3, 5, 6, 7]
        await wait_all_tasks_blocked()
        assert through == 7
        assert window.answered(0, multiple=True) == [8, 9, 10, *range(11, 18)]
        assert window.last == 17
        nursery.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def test_there_is_no_checkpoint_while_there_is_room() -> None:
    window = InflightWindow(3)
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert [await window.acquire() for _ in range(3)] == [1, 2, 3]
        await window.acquire()
    assert scope.cancelled_caught
    assert (window.last, len(window)) == (3, 3)


async def publish_cancelled_after(steps: int, window: InflightWindow, sent: list[int]) -> None:
    async def publish() -> None:
        sent.append(await window.acquire())

    async with open_nursery() as nursery:
        nursery.start_soon(publish)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("answered_after", range(4))
async def test_cancellation_at_every_step_owes_nothing(steps: int, answered_after: int) -> None:
    window = filled(2)
    sent: list[int] = []
    async with open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(publish_cancelled_after, steps, window, sent)
        for _ in range(answered_after):
            await anyio.lowlevel.checkpoint()
        window.answered(1)
    # Whoever took a number has used it; otherwise the place is there for the next one.
    assert len(sent) <= 1
    assert window.last == 2 + len(sent)
    assert len(window) == 1 + len(sent)
    if not sent:
        assert window.acquire_nowait() == 3
    with pytest.raises(trio.WouldBlock):
        window.acquire_nowait()


async def test_what_was_not_sent_is_given_back() -> None:
    window = filled(2)
    waiting: list[int] = []

    async def publish() -> None:
        waiting.append(await window.acquire())

    async with open_nursery() as nursery:
        nursery.start_soon(publish)
        await wait_all_tasks_blocked()
        with pytest.raises(DataspaceError, match="the last one is 2"):
            window.give_back(1)
        window.give_back(2)
        await wait_all_tasks_blocked()
        assert waiting == [2]
        window.answered(2, multiple=True)
        with pytest.raises(DataspaceError):
            window.give_back(2)
        await window.wait_answered()
        assert window.acquire_nowait() == 3
        nursery.cancel_scope.cancel()


async def test_waiting_for_what_was_published_so_far() -> None:
    window = InflightWindow(10)
    done: list[str] = []

    async def wait(name: str) -> None:
        await window.wait_answered()
        done.append(name)

    await window.wait_answered()
    for _ in range(3):
        window.acquire_nowait()
    async with open_nursery() as nursery:
        nursery.start_soon(wait, "first three")
        await wait_all_tasks_blocked()
        window.acquire_nowait()
        nursery.start_soon(wait, "all")
        await wait_all_tasks_blocked()
        window.answered(1)
        window.answered(3)
        await wait_all_tasks_blocked()
        assert done == []
        window.answered(2)
        await wait_all_tasks_blocked()
        assert done == ["first three"]
        window.answered(4)
        await wait_all_tasks_blocked()
        assert done == ["first three", "all"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("number", "multiple"), [(0, False), (1, False), (1, True), (4, False), (4, True)]
)
def test_answers_for_what_is_not_on_its_way(number: int, multiple: bool) -> None:
    window = InflightWindow(5)
    for _ in range(3):
        window.acquire_nowait()
    window.answered(1)
    with pytest.raises(DataspaceError, match=f"publication {number}, which is not on its way"):
        window.answered(number, multiple)
    assert window.answered(3, multiple=True) == [2, 3]


async def test_closing_wakes_all_and_says_what_is_unconfirmed() -> None:
    window = filled(3)
    window.answered(2)
    window.acquire_nowait()
    ended: list[str] = []

    async def publish() -> None:
        with pytest.raises(trio.ClosedResourceError, match="its channel has ended"):
            await window.acquire()
        ended.append("publish")

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await window.wait_answered()
        ended.append("wait")

    async with open_nursery() as nursery:
        nursery.start_soon(publish)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert window.close() == [1, 3, 4]
        await wait_all_tasks_blocked()
        assert sorted(ended) == ["publish", "wait"]
        with pytest.raises(trio.ClosedResourceError):
            window.acquire_nowait()
        assert window.close() == [1, 3, 4]
        nursery.cancel_scope.cancel()


def test_a_window_without_a_place() -> None:
    with pytest.raises(ValueError, match="0 publications"):
        InflightWindow(0)
    window = InflightWindow()
    assert window.size == DEFAULT_WINDOW
    assert window  # one with nothing in it is one


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 20), st.none()), max_size=80))
def test_it_understands_a_confirm_channel(script: list[int | None]) -> None:
    """Whatever the broker's side makes of it, each publication is answered exactly once."""
    confirms = Confirms()
    window = InflightWindow(6)
    open_: list[PublicationConfirm] = []
    answered: dict[int, bool] = {}
    meant: dict[int, bool] = {}
    for step in [*script, None]:
        if step is None:
            for answer in confirms.flush():
                for number in window.answered(answer.number, answer.multiple):
                    assert number not in answered
                    answered[number] = answer.refused
            assert answered == meant
            assert len(window) == len(open_)
        elif step % 2 and open_:
            confirm = open_.pop(step % len(open_))
            meant[confirm.number] = refuse = step % 3 == 0
            if refuse:
                confirm.refused("no")
            else:
                confirm.taken()
        else:
            try:
                number = window.acquire_nowait()
            except trio.WouldBlock:
                assert len(window) == 6
                continue
            with confirms.begin() as confirm:
                confirm.expect()
            assert confirm.number == number
            open_.append(confirm)


async def test_what_is_given_back_is_not_waited_for() -> None:
    window = filled(2)
    answered = anyio.Event()

    async def wait() -> None:
        await window.wait_answered()
        answered.set()

    async with open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        window.answered(1)
        await wait_all_tasks_blocked()
        assert not answered.is_set()
        window.give_back(2)
        await wait_all_tasks_blocked()
        assert answered.is_set()
        # Whoever has the number next is not one of those that were waited for.
        assert window.acquire_nowait() == 2
        nursery.cancel_scope.cancel()
