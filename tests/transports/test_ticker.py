"""Who looks at something now and then is woken with the others who do."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from clearfunds.transports._ticker import next_tick


@pytest.mark.parametrize(("begun", "seconds"), [(0.0, 0.5), (0.3, 0.5), (0.5, 0.5), (7.9, 2.0)])
async def test_a_tick_is_a_multiple(
    begun: float, seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    await trio.sleep(begun)
    for tick in range(1, 4):
        await next_tick(seconds)
        assert trio.current_time() == (begun // seconds + tick) * seconds


async def test_those_who_began_apart_are_woken_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    woken: list[float] = []

    async def look(late: float) -> None:
        await trio.sleep(late)
        await next_tick(0.5)
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for late in (0.01, 0.2, 0.49):
            nursery.start_soon(look, late)
    assert woken == [0.5] * 3


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1 / 3, 0.01])
async def test_time_goes_on_where_a_float_is_no_multiple(
    seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    for tick in range(1, 300):
        await next_tick(seconds)
        assert trio.current_time() == pytest.approx(tick * seconds)
