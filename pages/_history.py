"""The last five minutes: totals each second, and the top accounts and holders every five.

They are kept whether or not anybody watches, so that the page shows what led to a wait to the
person who opens it because of the wait. Limits on the cost for the relay:
1. Nothing is read while nothing is owed and nothing moves.
2. Each of the two walks takes at most `HISTORY_SHARE` of a core. With many accounts or loans the
   points are farther apart, and go back farther.
3. Their number is bounded, and so is the length of names: some hundred kilobytes.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..accounts import Outcome
from ..accounts._loop import now, sleep_until
from ..accounts.watch._core_shares import HISTORY_SHARE
from ..accounts.watch._tops import tops_in_steps
from ._cooperative import Pace, run_paced
from ._json import compact as _encode
from ._survey import CHUNK, clipped, pressure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from ..accounts import Ledger

POINT_SECONDS: Final = 1.0
"""Interval of totals, as that of the live page."""

NAMES_SECONDS: Final = 5.0
"""Interval of the top accounts and holders, which need a walk over all loans."""

SECONDS: Final = 300
"""What is kept: the time that it takes to hear of a problem and to open the page."""

FINISHED: Final = (Outcome.DELIVERED, Outcome.ACKED, Outcome.STORED)

_Rows = tuple[tuple[str, int], ...]


class Point(NamedTuple):
    """The totals at one time."""

    time: float
    """Unix time in seconds."""
    debt_items: int
    waiting: int
    """Readers that wait."""
    finished_items: int
    """Events that have been delivered, acknowledged or stored, since the beginning."""
    waited_seconds: float
    """Total time that readers have waited, since the beginning."""
    headroom: float
    """What may still be owed, as a share of the limit, at the account where that is least."""


class Names(NamedTuple):
    """The largest debtors and the largest holders at one time, the largest first."""

    time: float
    accounts: _Rows
    """Names and debts in items."""
    holders: _Rows
    """Names and items held."""


class History:
    """The last minutes of a ledger.

    Args:
        ledger: The ledger.

    Attributes:
        points: The totals, the latest last.
        names: The top accounts and holders, the latest last.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._moved: tuple[int, int] | None = None
        self.points: deque[Point] = deque(maxlen=int(SECONDS / POINT_SECONDS))
        self.names: deque[Names] = deque(maxlen=int(SECONDS / NAMES_SECONDS))

    async def watch(self) -> None:
        """Keep the history until cancelled; the server of the pages runs it."""
        names_due = now()
        while True:
            began = now()
            pace = Pace()
            point = await self._next_point(pace)
            self.points.append(point)
            next_due = began + max(POINT_SECONDS, pace.busy_seconds / HISTORY_SHARE)
            if began >= names_due:
                pace = Pace()
                self.names.append(await self._look_for_names(point, pace))
                names_due = began + max(NAMES_SECONDS, pace.busy_seconds / HISTORY_SHARE)
            await sleep_until(next_due)

    async def _next_point(self, pace: Pace) -> Point:
        ledger = self._ledger
        before, moved = self._moved, (ledger.borrowed_items, sum(ledger.repaid_items))
        self._moved = moved
        if self.points and before == moved and not ledger.waiters:
            last = self.points[-1]
            if not last.debt_items and not last.waiting:
                return last._replace(time=_now())
        return await point_of(ledger, pace)

    async def _look_for_names(self, point: Point, pace: Pace) -> Names:
        if not point.debt_items:
            return Names(point.time, (), ())
        tops = await run_paced(tops_in_steps(self._ledger), pace)
        return Names(_now(), _clipped(tops.debtors), _clipped(tops.holders))

    def brief(self) -> dict[str, Any]:
        """Return all of it for the live page: each name stands once, rows have its place."""
        places: dict[str, int] = {}

        def rows(found: _Rows) -> list[tuple[int, int]]:
            return [(places.setdefault(name, len(places)), items) for name, items in found]

        tops = [(each.time, rows(each.accounts), rows(each.holders)) for each in self.names]
        return {"points": list(self.points), "tops": tops, "names": list(places)}


async def point_of(ledger: Ledger, pace: Pace) -> Point:
    """Return the totals of now."""
    # A new stretch: the totals must be read in one, however many accounts there are.
    await pace.pause()
    totals = ledger.statistics()
    now = _now()
    at_rest = ledger.at_rest
    accounts = list(ledger.accounts.values())
    most = 0.0
    for start in range(0, len(accounts), CHUNK):
        await pace.breathe()
        here = accounts[start : start + CHUNK]
        # When data at rest reaches its limit, nobody waits yet, but further data counts as debt.
        used = [pressure(each) for each in here if each.debt_items and each not in at_rest]
        most = max(most, *used, 0.0)
    return Point(
        now,
        totals.debt_items,
        totals.waiting,
        # Events that were given up are not finished.
        sum([totals.repaid_items[each.label] for each in FINISHED]),
        round(totals.waited_seconds, 2),
        round(1.0 - most, 4),
    )


async def write_history(history: History, pace: Pace) -> AsyncGenerator[bytes, None]:
    """Write `/history.json`."""
    points, names = list(history.points), list(history.names)
    yield b'{"totals": [\n'
    async for piece in _write([each._asdict() for each in points], pace):
        yield piece
    yield b'], "tops": [\n'
    rows = [
        {
            "time": each.time,
            "accounts": [{"name": name, "debt_items": items} for name, items in each.accounts],
            "holders": [{"name": name, "items": items} for name, items in each.holders],
        }
        for each in names
    ]
    async for piece in _write(rows, pace):
        yield piece
    yield b"]}\n"


async def _write(rows: Iterable[dict[str, Any]], pace: Pace) -> AsyncGenerator[bytes, None]:
    separator = ""
    for row in rows:
        await pace.breathe()
        yield f"{separator}{_encode(row)}".encode("ascii")
        separator = ",\n"


def _clipped(rows: _Rows) -> _Rows:
    return tuple([(clipped(name), items) for name, items in rows])


def _now() -> float:
    return round(time.time(), 3)
