"""Early warning: a slow consumer is named before publishers have to wait for it.

Theory of operation. A holder that takes nothing keeps what it has, and its part of each account's
debt only grows. So from the pace at which that part has grown lately, and from the room that the
account still has, follows when the account's readers will wait, if nothing changes. Rules of this
file:

1. Only holders that have made no progress for a while are looked at, and only accounts near their
   limits. Nothing is counted when messages are borrowed or repaid.
2. Both numbers of holders and accounts are bounded. The walk takes no more than `SLOW_WAITS_SHARE`
   of a core, and lets other tasks run in between.
3. Each holder is named once for each time that it stands still, in one line of the log; all
   forecasts of the latest look are in `ledger.forecasts`.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from heapq import nlargest, nsmallest
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import attrs

from .._cooperative import SHORT_SECONDS, STEP, with_pauses
from .._gate import gate_of
from .._loop import now as loop_now
from .._loop import sleep_until
from .._ticker import following
from ..limits._limit import UNLIMITED
from ._causes import short_name
from ._core_shares import SLOW_WAITS_SHARE
from ._durations import about

if TYPE_CHECKING:
    from collections.abc import Generator

    from .._account import Account
    from .._holder import Holder
    from .._ledger import Ledger

logger = logging.getLogger("clearfunds.accounts")

HORIZON_SECONDS: Final = 60.0
"""A wait that begins later than this is not forecast: load changes within a minute."""

LOOK_SECONDS: Final = 2.0
"""Interval between two looks."""

STILL_SECONDS: Final = 4.0
"""A holder without progress for so long, two intervals, stands still."""

PACE_SECONDS: Final = 20.0
"""Duration that the pace is measured over: ten intervals."""

NEAR: Final = 0.1
"""Part of an account's limit that it must owe: below it a pace is the noise of an idle account."""

PATIENCE_MIN: Final = 2.0
"""A holder that is relieved sooner makes nobody wait for as long as this is worth a warning."""

HOLDERS_MAX: Final = 64
"""Holders looked at, those without progress for longest first."""

ACCOUNTS_MAX: Final = 16
"""Accounts looked at for each of them, the largest parts first."""

LOANS_MAX: Final = 10_000
"""Loans looked at for each of them."""

NAMED_MAX: Final = 5
"""Lines in the log for one look; the others stay on the pages."""


@attrs.frozen(slots=True)
class Forecast:
    """A holder that takes nothing, and the account whose readers will wait for it first."""

    holder: str
    kind: str
    idle_seconds: float
    """How long it has made no progress."""
    account: str
    shared: bool
    """Whether other accounts are below that one: then their readers wait, too."""
    seconds: float
    """Until the account reaches its limit, at the present pace."""

    def sentence(self) -> str:
        """Return it as a sentence, without a full stop."""
        who = short_name(self.account)
        if self.shared:
            who = f"everybody at {who}"
        return (
            f"{short_name(self.holder)} has taken nothing for {about(self.idle_seconds)}; "
            f"{who} will wait in about {about(_rough(self.seconds))}"
        )


def _rough(seconds: float) -> float:
    return max(1.0, round(seconds)) if seconds < 10 else 5.0 * round(seconds / 5)


@attrs.define(slots=True)
class _Part:
    """A holder's part of one account's debt."""

    items: int = 0
    bytes: int = 0


_Point = tuple[float, int, int]
"""A time, and the items and bytes of a part then."""

_Pace = tuple[float, float]
"""Items and bytes a second."""


class Forecasts:
    """The growth of what holders hold that stand still.

    Attributes:
        latest: The forecasts of the latest look, the nearest first.
    """

    __slots__ = ("_named", "_points", "latest")

    def __init__(self) -> None:
        self.latest: tuple[Forecast, ...] = ()
        self._points: WeakKeyDictionary[Holder, dict[Account, deque[_Point]]] = WeakKeyDictionary()
        # The holders named, and the progress that they had made then.
        self._named: WeakKeyDictionary[Holder, float] = WeakKeyDictionary()

    def look_in_steps(self, ledger: Ledger) -> Generator[None, None, list[tuple[Holder, Forecast]]]:
        """Look once; return the new forecasts, the nearest first."""
        if ledger.borrowed_items == sum(ledger.repaid_items):
            # Nobody holds anything; a walk over 5,000 holders takes 2 ms (measured).
            self._points.clear()
            self.latest = ()
            return []
        still: list[Holder] = []
        before = ledger.clock() - STILL_SECONDS
        for number, holder in enumerate(list(ledger.holders)):
            if not number % STEP:
                yield
            if holder.progressed_at > before or holder.lagging:
                continue
            try:
                if _matters(holder):
                    still.append(holder)
            except Exception as exc:  # noqa: BLE001 (one holder's fault is not the others')
                ledger.faults.note(holder, "looking at what it holds", exc)
        paces: dict[Holder, dict[Account, _Pace]] = {}
        for holder in nsmallest(HOLDERS_MAX, still, key=attrgetter("progressed_at")):
            parts = yield from _parts(holder)
            paces[holder] = self._paces(holder, parts, ledger.clock())
        for holder in [each for each in self._points if each not in paces]:
            del self._points[holder]
        # What several hold grows together.
        sums: dict[Account, _Pace] = {}
        for each in paces.values():
            for account, (items, nbytes) in each.items():
                before_items, before_bytes = sums.get(account, (0.0, 0.0))
                sums[account] = before_items + items, before_bytes + nbytes
        until = {account: _until_full(account, pace) for account, pace in sums.items()}
        found: list[tuple[Holder, Forecast]] = []
        for holder, each in paces.items():
            first = min(each, key=lambda account: (until[account], account.name), default=None)
            if first is not None and until[first] <= HORIZON_SECONDS:
                found.append((holder, _forecast(holder, first, until[first])))
        found.sort(key=lambda each: (each[1].seconds, -each[1].idle_seconds, each[1].holder))
        self.latest = tuple([forecast for _, forecast in found])
        new = [(h, each) for h, each in found if self._named.get(h, -math.inf) < h.progressed_at]
        for holder, _ in new:
            self._named[holder] = holder.progressed_at
        return new

    def _paces(
        self, holder: Holder, parts: dict[Account, _Part], now: float
    ) -> dict[Account, _Pace]:
        """Return the pace in items and bytes a second at which the largest parts have grown."""
        before = self._points.get(holder, {})
        kept = self._points[holder] = {}
        paces: dict[Account, _Pace] = {}
        largest = nlargest(ACCOUNTS_MAX, parts, key=lambda each: (parts[each].items, each.name))
        for account in largest:
            part = parts[account]
            points = kept[account] = before.get(account) or deque()
            if points and (part.items < points[-1][1] or part.bytes < points[-1][2]):
                points.clear()  # it has taken some
            points.append((now, part.items, part.bytes))
            while points[0][0] < now - PACE_SECONDS:
                points.popleft()
            began, items, nbytes = points[0]
            seconds = now - began
            if seconds > 0 and (part.items > items or part.bytes > nbytes):
                paces[account] = (part.items - items) / seconds, (part.bytes - nbytes) / seconds
        return paces


def _matters(holder: Holder) -> bool:
    """Whether readers may have to wait for it: most holders without progress hold nothing."""
    if next(iter(holder.waited_for()), None) is None:
        return False
    return not holder.policy.relieves or holder.patience >= PATIENCE_MIN


def _parts(holder: Holder) -> Generator[None, None, dict[Account, _Part]]:
    """Return the holder's part of the debt of accounts, and of those above them."""
    parts: dict[Account, _Part] = {}
    # Copied, because a holder's loans may change between steps.
    for number, loan in enumerate(list(islice(holder.waited_for(), LOANS_MAX)), 1):
        if not number % STEP:
            yield
        for account in loan.account.chain:
            part = parts.setdefault(account, _Part())
            part.items += loan.items
            part.bytes += loan.bytes
    return parts


def _forecast(holder: Holder, account: Account, seconds: float) -> Forecast:
    return Forecast(
        holder=holder.name,
        kind=holder.kind,
        idle_seconds=holder.ledger.clock() - holder.progressed_at,
        account=account.name,
        shared=bool(account.below),
        seconds=seconds,
    )


def _until_full(account: Account, pace: _Pace) -> float:
    """Return the seconds until an account reaches its limit at a pace."""
    gate = gate_of(account)
    if gate.closed or account in account.ledger.at_rest:
        return math.inf  # the pages and the log name those who wait already
    limit_items, limit_bytes = gate.held_to()
    return min(
        _when(account.debt_items, limit_items, pace[0]),
        _when(account.debt_bytes, limit_bytes, pace[1]),
    )


def _when(debt: int, limit: int, pace: float) -> float:
    if limit >= UNLIMITED or debt < NEAR * limit or pace <= 0:
        return math.inf
    return max(0, limit - debt) / pace


async def watch_forecasts(ledger: Ledger, *, every: float = LOOK_SECONDS) -> None:
    """Name slow consumers before publishers have to wait for them, until cancelled.

    To the logger `clearfunds.accounts`, at level INFO: a line for a holder that has taken nothing
    for a while, when an account whose debt it holds will reach its limit within a minute at the
    present pace. Its fields (`extra=`): `event` (`early_warning`), `holder`, `kind`,
    `idle_seconds`, `account`, `seconds`. `ledger.forecasts.latest` has the present ones.

    Args:
        ledger: The ledger.
        every: Seconds between two looks; longer if they take more than 2 % of a core.
    """
    forecasts = ledger.forecasts
    pause = every
    try:
        while True:
            await sleep_until(following(loop_now(), pause))
            new, busy = await with_pauses(forecasts.look_in_steps(ledger), SHORT_SECONDS)
            pause = max(every, busy / SLOW_WAITS_SHARE)
            for _, forecast in new[:NAMED_MAX]:
                _tell(forecast)
    finally:
        forecasts.latest = ()


def _tell(forecast: Forecast) -> None:
    logger.info(
        "%s",
        forecast.sentence(),
        extra={
            "event": "early_warning",
            "holder": forecast.holder,
            "kind": forecast.kind,
            "idle_seconds": round(forecast.idle_seconds, 3),
            "account": forecast.account,
            "seconds": round(forecast.seconds, 3),
        },
    )
