"""How long work on pages goes on before others may: by a clock that only work moves."""

from __future__ import annotations

from random import Random

import pytest
import trio

from clearfunds.pages import _cooperative
from clearfunds.pages._cooperative import STRETCH_SECONDS, STRETCH_SECONDS_MAX, Pace

STEP = 0.0001


class Work:
    """Work that takes as long as it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.others = 0.0
        self.pages = 0.0
        self.longest = 0.0
        # In which order Trio runs what is due at once is left to chance.
        monkeypatch.setattr("trio._core._run._r", Random(7))
        for name in ("perf_counter", "thread_time"):
            monkeypatch.setattr(_cooperative, name, lambda: self.now)

    async def page(self, seconds: float) -> Pace:
        """Work on a page."""
        pace = Pace()
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.pages += STEP
            await pace.breathe()
        return pace

    async def other(self, seconds: float) -> None:
        """Be busy for so long in each turn of the loop."""
        while True:
            self.longest = max(self.longest, self.pages)
            self.pages = 0.0
            self.now += seconds
            self.others += seconds
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("turn", "most"),
    [
        # By itself, or with little else: a turn of others waits for a millisecond.
        (0.0, 0.26),
        (0.0002, 0.31),
        # The more there is else to do in a turn, the fewer turns; up to ten milliseconds in each.
        # With a millisecond in each it would be 1.5, 5.2 and 12.7 s.
        (0.005, 0.65),
        (0.02, 1.0),
        (0.05, 2.0),
    ],
)
async def test_a_page_takes_as_long_as_others_do(
    turn: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    began = work.now
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.other, turn)
        pace = await work.page(0.25)
        nursery.cancel_scope.cancel()
    assert work.now - began <= most
    assert pace.busy_seconds == pytest.approx(0.25)
    # Twice, as what is due in a turn is run in any order.
    assert work.longest <= 2 * max(STRETCH_SECONDS, min(2 * turn, STRETCH_SECONDS_MAX)) + 4 * STEP


async def test_pages_do_not_make_each_other_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    for turn, longest in ((0.0, 4 * STRETCH_SECONDS), (0.05, STRETCH_SECONDS_MAX)):
        work = Work(monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work.other, turn)
            async with trio.open_nursery() as pages:
                for _ in range(4):
                    pages.start_soon(work.page, 0.25)
            nursery.cancel_scope.cancel()
        assert work.longest <= 2 * (longest + 5 * STRETCH_SECONDS + 4 * STEP)
