"""The last hour: five minutes of totals each second, and before that the worst of each ten seconds.

They are kept whether or not anybody watches, so that the page shows what led to a wait to the
person who opens it because of an alert. The top accounts and holders are looked for every five
seconds; while readers wait, also those that wait and the holders that they wait on. Limits on the
cost for the relay:
1. Nothing is read while nothing is owed and nothing moves.
2. Each of the two walks takes at most `HISTORY_SHARE` of a core. With many accounts or loans the
   points are farther apart, and go back farther.
3. Their number is bounded, and so is the length of names: 1.6 MiB with names of 24 characters of
   which none comes twice, 2.9 MiB with the longest.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..accounts import Outcome
from ..accounts._loop import now, sleep_until
from ..accounts._ticker import following
from ..accounts.watch._core_shares import HISTORY_SHARE
from ..accounts.watch._tops import tops_in_steps
from ._cooperative import Pace, run_paced
from ._json import compact as _encode
from ._survey import CHUNK, Most, clipped, pressure, survey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from ..accounts import Ledger

POINT_SECONDS: Final = 1.0
"""Interval of totals, as that of the live page."""

NAMES_SECONDS: Final = 5.0
"""Interval of the top accounts and holders, which need a walk over all loans."""

SECONDS: Final = 300
"""The time for which each second is kept: that of the live page's small curves."""

STEP_SECONDS: Final = 10.0
"""Interval of what is kept for longer; an alert fires after more than that."""

HOUR_SECONDS: Final = 3600
"""The time for which it is kept: an alert may go unheard for a while."""

BLOCKERS: Final = 5
"""Names of each kind at one time in the last hour, and of blockers: as many as the page shows."""

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
    blockers: _Rows = ()
    """The holders that readers waited on, those that stood still first, and the items that they
    waited for."""
    waiters: _Rows = ()
    """The accounts whose readers waited, and for how many seconds, the longest first."""


class Step(NamedTuple):
    """The worst of `STEP_SECONDS`, for the last hour."""

    time: float
    """When it began: Unix time in seconds, a multiple of `STEP_SECONDS`."""
    debt_items: int
    """The most."""
    waiting: int
    """The most."""
    finished_items: int
    """At its end."""
    waited_seconds: float
    """At its end."""
    headroom: float
    """The least."""
    accounts: _Rows = ()
    """Of the time at which most waited, or else of the last time that names were looked for; so are
    the others."""
    holders: _Rows = ()
    blockers: _Rows = ()
    waiters: _Rows = ()

    def with_point(self, point: Point) -> Step:
        """Return the step with one more point in it."""
        return self._replace(
            debt_items=max(self.debt_items, point.debt_items),
            waiting=max(self.waiting, point.waiting),
            finished_items=point.finished_items,
            waited_seconds=point.waited_seconds,
            headroom=min(self.headroom, point.headroom),
        )

    def with_names(self, names: Names) -> Step:
        """Return the step with the names, unless those that it has are of a worse time."""
        if self.blockers and sum_of(names.blockers) < sum_of(self.blockers):
            return self
        return self._replace(
            accounts=names.accounts[:BLOCKERS],
            holders=names.holders[:BLOCKERS],
            blockers=names.blockers[:BLOCKERS],
            waiters=names.waiters[:BLOCKERS],
        )


def step_at(point: Point) -> Step:
    """Return the step that begins with a point."""
    began = point.time // STEP_SECONDS * STEP_SECONDS
    return Step(began, *point[1:])


def sum_of(rows: _Rows) -> int:
    """Return the items of all rows."""
    return sum([items for _, items in rows])


class History:
    """The last hour of a ledger.

    Args:
        ledger: The ledger.

    Attributes:
        points: The totals, the latest last.
        names: The top accounts and holders, the latest last.
        hour: The last hour in steps, the latest last; that one still grows.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._moved: tuple[int, int] | None = None
        self.points: deque[Point] = deque(maxlen=int(SECONDS / POINT_SECONDS))
        self.names: deque[Names] = deque(maxlen=int(SECONDS / NAMES_SECONDS))
        self.hour: deque[Step] = deque(maxlen=int(HOUR_SECONDS / STEP_SECONDS))

    async def watch(self) -> None:
        """Keep the history until cancelled; the server of the pages runs it."""
        names_due = earliest = now()
        waited = 0
        while True:
            began = now()
            pace = Pace()
            point = await self._next_point(pace)
            self.keep(point)
            pause = pace.busy_seconds / HISTORY_SHARE
            next_due = following(began + max(0.0, pause - POINT_SECONDS), POINT_SECONDS)
            # Who is waited on when a wait begins is not left to chance.
            if began >= names_due or (began >= earliest and point.waiting and not waited):
                pace = Pace()
                self.keep_names(await self._look_for_names(point, pace))
                earliest = began + pace.busy_seconds / HISTORY_SHARE
                names_due = max(began + NAMES_SECONDS, earliest)
            waited = point.waiting
            await sleep_until(next_due)

    def keep(self, point: Point) -> None:
        """Add a point, to the last minutes and to its step of the hour."""
        self.points.append(point)
        step = step_at(point)
        if self.hour and self.hour[-1].time >= step.time:
            self.hour[-1] = self.hour[-1].with_point(point)
        else:
            self.hour.append(step)

    def keep_names(self, names: Names) -> None:
        """Add the largest of the moment of the last point."""
        self.names.append(names)
        self.hour[-1] = self.hour[-1].with_names(names)

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
        blockers: _Rows = ()
        waiters: _Rows = ()
        if point.waiting:
            seen = await survey(self._ledger, pace, Most(BLOCKERS, BLOCKERS))
            held = [row for row in seen["holders"] if row["waited_items"]]
            blockers = tuple([(row["name"], row["waited_items"]) for row in held])
            wait = [row for row in seen["accounts"] if row["waiting"]]
            waiters = tuple([(row["name"], round(row["waiting_seconds"])) for row in wait])
        return Names(_now(), _clipped(tops.debtors), _clipped(tops.holders), blockers, waiters)

    def brief(self) -> dict[str, Any]:
        """Return all of it for the live page: each name stands once, rows have its place."""
        places: dict[str, int] = {}

        def rows(found: _Rows) -> list[tuple[int, int]]:
            return [(places.setdefault(name, len(places)), items) for name, items in found]

        def lists(each: Names | Step) -> list[list[tuple[int, int]]]:
            found = (each.accounts, each.holders, each.blockers, each.waiters)
            return [rows(every) for every in found]

        tops = [(each.time, *lists(each)) for each in self.names]
        hour = [(*each[:6], *lists(each)) for each in self.hour]
        return {"points": list(self.points), "tops": tops, "hour": hour, "names": list(places)}


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
    points, names, hour = list(history.points), list(history.names), list(history.hour)
    yield b'{"totals": [\n'
    async for piece in _write([each._asdict() for each in points], pace):
        yield piece
    yield b'], "tops": [\n'
    rows = [
        {
            "time": each.time,
            **_named(each),
        }
        for each in names
    ]
    async for piece in _write(rows, pace):
        yield piece
    yield b'], "hour": [\n'
    async for piece in _write([{**each._asdict(), **_named(each)} for each in hour], pace):
        yield piece
    yield b"]}\n"


def _named(each: Names | Step) -> dict[str, list[dict[str, Any]]]:
    return {
        "accounts": [{"name": name, "debt_items": items} for name, items in each.accounts],
        "holders": [{"name": name, "items": items} for name, items in each.holders],
        "blockers": [{"name": name, "waited_items": items} for name, items in each.blockers],
        "waiters": [{"name": name, "waiting_seconds": time} for name, time in each.waiters],
    }


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
