"""A listener accepts no faster than it may, and nothing while it is closed."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from clearfunds.transports._accept_pace import AcceptPace
from clearfunds.transports._link import Link
from clearfunds.transports._listener import ListenURL, open_listeners


@given(st.integers(1, 50), st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.5, 2.0]), max_size=200))
def test_no_second_has_more_than_twice_the_rate(rate: int, pauses: list[float]) -> None:
    """A burst of a second's worth, and what the rate allows from then on."""
    now = 0.0
    pace = AcceptPace(rate, lambda: now)
    accepted: list[float] = []
    for pause in pauses:
        now += pause
        accepted.append(now)
        now += pace.accepted()
    for first in accepted:
        assert len([at for at in accepted if first <= at < first + 1]) <= 2 * rate + 1


def test_below_the_rate_nothing_waits() -> None:
    now = 0.0
    pace = AcceptPace(10, lambda: now)
    for _ in range(100):
        assert pace.accepted() == 0.0
        now += 0.1
    assert pace.paused == 0


def test_without_a_rate_nothing_ever_waits() -> None:
    pace = AcceptPace(None, lambda: 0.0)
    assert not any(pace.accepted() for _ in range(10_000))


async def test_those_above_the_rate_are_accepted_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    autojump_clock.autojump_threshold = 0.02  # sockets take their time
    (listener,) = await open_listeners(ListenURL.parse("mqtt+tcp://127.0.0.1:0", ("mqtt",)))
    accepted: list[float] = []
    all_are = trio.Event()
    pace = AcceptPace(4)

    async def handler(link: Link) -> None:
        accepted.append(trio.current_time())
        if len(accepted) == 8:
            all_are.set()
        link.close()

    began = trio.current_time()
    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept_into, nursery, handler, Link, pace)
            streams = [await trio.open_tcp_stream("127.0.0.1", listener.url.port) for _ in range(8)]
            with trio.fail_after(60):
                await all_are.wait()
            nursery.cancel_scope.cancel()
    for stream in streams:
        await stream.aclose()
    # A second's worth at once, and one each quarter of a second; the first pause follows the fifth.
    assert accepted[7] - began >= 0.5
    assert pace.paused >= 2


async def test_closed_it_accepts_nothing_and_nobody_is_turned_away() -> None:
    (listener,) = await open_listeners(ListenURL.parse("mqtt+tcp://127.0.0.1:0", ("mqtt",)))
    pace = AcceptPace()
    accepted = trio.Event()

    async def handler(link: Link) -> None:
        accepted.set()
        link.close()

    with listener:
        async with trio.open_nursery() as nursery:
            pace.close()
            pace.close()
            nursery.start_soon(listener.accept_into, nursery, handler, Link, pace)
            async with await trio.open_tcp_stream("127.0.0.1", listener.url.port) as stream:
                await wait_all_tasks_blocked(0.05)
                assert pace.is_closed
                assert not accepted.is_set()
                pace.open()
                pace.open()
                with trio.fail_after(10):
                    await accepted.wait()
                    assert await stream.receive_some() == b""
            nursery.cancel_scope.cancel()
