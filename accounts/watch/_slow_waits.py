"""Log of long waits: which reader waits, on which holders, for how long, for how much debt.

Backpressure is the purpose of accounts, so this is no warning; `watch_patience` warns when a slow
consumer is about to be given up. Rules of this file:

1. A wait gets one line when it has gone on for the threshold, and one with its total when it ends.
   One that ends before it could be examined gets only the second.
2. The log is bounded, however many wait: it names `MAX_NAMED_WAITS` of the waits that become slow
   in a stretch of `STRETCH_SECONDS`, the earliest first, and counts the rest in one line. All of
   them are among the ledger's incidents (`Incidents`) when they end.
3. Nothing is examined until a wait reaches the threshold: waits are kept in the order in which they
   began. Then one walk over holders and their loans serves all waits that have reached it, in
   steps, and so seldom that it takes no more than `SLOW_WAITS_SHARE` of a core.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._errors import AccountError
from .._gate import gate_of
from .._line import blame_of
from .._loan import LOOSE, LoanedItem
from .._loop import checkpoint, sleep
from .._loop import now as loop_now
from .._ticker import following
from .._waiters import REASONS
from ..limits._limit import UNLIMITED
from ..limits._rate_limit import RATE_LIMIT
from ._core_shares import SLOW_WAITS_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .._account import Account
    from .._ledger import Ledger
    from .._waiters import Waiter

logger = logging.getLogger("clearfunds.accounts")

DEFAULT_SLOW_WAIT: Final = 1.0
"""Seconds. A publisher blocked for so long notices; PostgreSQL's `deadlock_timeout`, after which
`log_lock_waits` logs a wait, is the same."""

STRETCH_SECONDS: Final = 10.0

MAX_NAMED_WAITS: Final = 20
"""Waits named in each stretch: four lines a second at most, with the lines for their ends."""

MAX_NAMED_HOLDERS: Final = 5
"""Holders named for each of them; the rest are counted."""

LOOK_SECONDS: Final = 0.05
"""Least interval between two checks."""

LOANS_A_STEP: Final = 1000
"""Loans examined before other tasks may run: half a millisecond."""


@attrs.define(slots=True)
class Held:
    """Debt that blocks readers at one account, in the holders of one name."""

    holder: str
    kind: str
    progressed_at: float
    items: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        # The router and loose loans have their kind as their name.
        kind = "" if self.holder.strip("()") == self.kind else f"{self.kind} "
        return f"{kind}{self.holder} ({self.items} items, {self.bytes} bytes)"


class SlowWaits:
    """The current waits in one ledger, and which of them were logged.

    The accounts call `began` and `ended`.
    """

    def __init__(self, ledger: Ledger, seconds: float) -> None:
        self.ledger = ledger
        self.seconds = seconds
        # Waits in the order in which they began, with the blame on their accounts' statements then.
        self.fresh: dict[Waiter, dict[str, float]] = {}
        self.told: dict[Waiter, dict[str, float]] = {}
        self.counted: dict[Waiter, dict[str, float]] = {}
        # The largest holder when examined: a holder that repays nothing is on no statement.
        self.suspects: dict[Waiter, str] = {}
        self.stretch_ends = 0.0
        self.named = 0
        self.unnamed = 0

    def began(self, waiter: Waiter) -> None:
        """Note that a reader waits from now on."""
        self.fresh[waiter] = dict(blame_of(waiter.account))

    def ended(self, waiter: Waiter, now: float, *, clear: bool) -> None:
        """Note that a reader waits no longer: its funds are `clear`, or it was cancelled."""
        suspect = self.suspects.pop(waiter, None)
        named = True
        before = self.told.pop(waiter, None)
        if before is None:
            before = self.counted.pop(waiter, None)
            if before is not None:
                named = False
            else:
                before = self.fresh.pop(waiter, None)
                if before is None or now - waiter.since < self.seconds:
                    return
                named = self._may_name(now)
        blame = blamed(waiter, before)
        worst = max(blame, key=lambda name: (blame[name], name), default=suspect)
        seconds = now - waiter.since
        incidents = self.ledger.incidents
        incidents.add_wait(waiter.account.name, worst, seconds, now, clear=clear)
        if named:
            self._tell_end(waiter, blame, now, clear=clear)

    def pause(self, now: float, tick: float) -> float:
        """Return the seconds until the next check is due.

        Args:
            now: The time on the ledger's clock.
            tick: Seconds until the next common tick: a wait that begins now is slow after that, or
                just then.
        """
        until = now + tick
        for waiter in self.fresh:
            until = min(until, waiter.since + self.seconds)
            break
        if self.unnamed:
            until = min(until, self.stretch_ends)
        return max(LOOK_SECONDS, until - now)

    async def look(self) -> float:
        """Log the waits that are slow by now; return the seconds of CPU time that it took.

        Cancellation: waits not logged yet are left as they are.
        """
        began = time.thread_time()
        away = 0.0
        now = self.ledger.clock()
        if self.unnamed and now >= self.stretch_ends:
            self._tell_rest()
        due: list[Waiter] = []
        for waiter in list(self.fresh):
            if now - waiter.since < self.seconds:
                break
            if self._may_name(now):
                due.append(waiter)
            else:
                self.counted[waiter] = self.fresh.pop(waiter)
                self.unnamed += 1
        if due:
            places = {waiter.at for waiter in due if waiter.at is not None}
            held: dict[Account, dict[str, Held]] = {at: {} for at in places}
            for _ in add_up(self.ledger, held):
                left = time.thread_time()
                await checkpoint()
                away += time.thread_time() - left
            now = self.ledger.clock()
            for waiter in due:
                before = self.fresh.pop(waiter, None)
                if before is not None and waiter.at is not None:
                    self.told[waiter] = before
                    self._tell(waiter, waiter.at, held.get(waiter.at, {}), before, now)
        return time.thread_time() - began - away

    def _may_name(self, now: float) -> bool:
        if now >= self.stretch_ends:
            if self.unnamed:
                self._tell_rest()
            self.stretch_ends = now + STRETCH_SECONDS
            self.named = 0
        if self.named >= MAX_NAMED_WAITS:
            return False
        self.named += 1
        return True

    # -- the lines ------------------------------------------------------------------------------

    def _tell(
        self,
        waiter: Waiter,
        at: Account,
        held: dict[str, Held],
        before: dict[str, float],
        now: float,
    ) -> None:
        name = waiter.account.name
        seconds = now - waiter.since
        holders = sorted(held.values(), key=lambda h: (-h.items, -h.bytes, h.holder))
        shown = holders[:MAX_NAMED_HOLDERS]
        more = len(holders) - len(shown)
        whom = " and ".join(map(str, shown)) or "nobody any more"
        if more:
            whom += f" and {more} more"
        all_items = sum(each.items for each in holders)
        blame = blamed(waiter, before)
        gate = gate_of(at)
        reason = REASONS[gate.why(waiter.account)]
        limit_items, limit_bytes = gate.held_to()
        if gate.halted:
            self.suspects[waiter] = gate.alarm_name
        elif gate.blockers:
            self.suspects[waiter] = gate.blockers[0]
        elif reason == "rate":
            self.suspects[waiter] = RATE_LIMIT
        elif holders:
            self.suspects[waiter] = holders[0].holder
        causes = {each.holder: self.ledger.causes.named(each.holder) for each in shown}
        # Of the largest holder: the others may be slow because of something else.
        why = causes[shown[0].holder] if shown else None
        owes = "it owes" if at is waiter.account else f"{at.name} owes"
        how_much = (
            f"{owes} {at.debt_items} items{_of(limit_items)} and "
            f"{at.debt_bytes} bytes{_of(limit_bytes)}, held by {whom}{f'; {why}' if why else ''}"
        )
        logger.info(
            "%s waits, for %.1f s so far%s%s",
            name,
            seconds,
            _what_for(at, reason),
            # For a rate limit, holders do not matter.
            "" if reason == "rate" else f": {how_much}",
            extra={
                "event": "slow_wait",
                "account": name,
                "at": at.name,
                "seconds": round(seconds, 3),
                "items": at.debt_items,
                "bytes": at.debt_bytes,
                "limit_items": _limit(limit_items),
                "limit_bytes": _limit(limit_bytes),
                "reason": reason,
                "alarms": list(gate.halted),
                "blockers": list(gate.blockers),
                "holders": [
                    {
                        "holder": each.holder,
                        "kind": each.kind,
                        "items": each.items,
                        "bytes": each.bytes,
                        "share": round(each.items / all_items, 3) if all_items else 0.0,
                        "idle_seconds": round(max(0.0, now - each.progressed_at), 3),
                        "blamed_seconds": round(blame.get(each.holder, 0.0), 3),
                        "why": causes[each.holder],
                    }
                    for each in shown
                ],
                "holders_more": more,
            },
        )

    def _tell_end(
        self, waiter: Waiter, blame: dict[str, float], now: float, *, clear: bool
    ) -> None:
        account = waiter.account
        seconds = now - waiter.since
        all_seconds = sum(blame.values())
        worst = sorted(blame.items(), key=lambda each: (-each[1], each[0]))
        shown = worst[:MAX_NAMED_HOLDERS]
        more = len(worst) - len(shown)
        shares = [(name, each, each / all_seconds) for name, each in shown]
        whom = " and ".join(f"{name} ({each:.1f} s, {part:.0%})" for name, each, part in shares)
        if more:
            whom += f" and {more} more"
        logger.info(
            "%s %s %.1f s%s; it owes %d items and %d bytes",
            account.name,
            "goes on after" if clear else "waits no more, cancelled after",
            seconds,
            f", for which it waited on {whom}" if whom else "",
            account.debt_items,
            account.debt_bytes,
            extra={
                "event": "slow_wait_ended",
                "account": account.name,
                "clear": clear,
                "seconds": round(seconds, 3),
                "items": account.debt_items,
                "bytes": account.debt_bytes,
                "holders": [
                    {"holder": name, "blamed_seconds": round(each, 3), "share": round(part, 3)}
                    for name, each, part in shares
                ],
                "holders_more": more,
            },
        )

    def _tell_rest(self) -> None:
        logger.info(
            "%d more wait or waited for longer than %g s; of those of %g s, the first %d are named",
            self.unnamed,
            self.seconds,
            STRETCH_SECONDS,
            MAX_NAMED_WAITS,
            extra={"event": "slow_waits_unnamed", "waits": self.unnamed, "seconds": self.seconds},
        )
        self.unnamed = 0


def add_up(ledger: Ledger, held: dict[Account, dict[str, Held]]) -> Iterable[None]:
    """Add up the debt of the accounts in `held` by holder, with breaks in between."""
    looked = 0
    for holder in list(ledger.holders):
        # A holder's list of loans may not change while it is walked, hence the copies.
        if holder is ledger.router:
            parts: list[Any] = list(ledger.turns)
        else:
            parts = list(holder.loans())
        for part in parts:
            looked += 1
            if not looked % LOANS_A_STEP:
                yield
            if holder is ledger.router:
                amount = part.input_items, part.input_bytes
            elif isinstance(part, LoanedItem):
                amount = part.items, part.bytes
            else:
                continue  # the audit reports things that are no loans (rule 15)
            note(held, part.account, holder.name, holder.kind, holder.progressed_at, *amount)
    now = ledger.clock()
    for loan in list(ledger.loose):
        note(held, loan.account, LOOSE, "loose", now, loan.items, loan.bytes)


def note(
    held: dict[Account, dict[str, Held]],
    debtor: Account,
    holder: str,
    kind: str,
    progressed_at: float,
    items: int,
    nbytes: int,
) -> None:
    """Add debt at a holder to each account of `held` that owes it: the debtor or an ancestor."""
    if not items:
        return
    for at in debtor.chain:
        there = held.get(at)
        if there is not None:
            each = there.get(holder)
            if each is None:
                each = there[holder] = Held(holder, kind, progressed_at)
            each.items += items
            each.bytes += nbytes
            each.progressed_at = min(each.progressed_at, progressed_at)


def blamed(waiter: Waiter, before: dict[str, float]) -> dict[str, float]:
    """Return the seconds of this wait by holder, in the stretches that have ended.

    `before` is the blame on the account's statement when the wait began.
    """
    found = dict(waiter.blame)
    _add_new(found, blame_of(waiter.account), before)
    at = waiter.at
    if at is not None and at is not waiter.account:
        _add_new(found, blame_of(at), waiter.blame_before)
    return found


def _add_new(found: dict[str, float], blame: Mapping[str, float], before: dict[str, float]) -> None:
    for name, seconds in blame.items():
        new = seconds - before.get(name, 0.0)
        if new > 0:
            found[name] = found.get(name, 0.0) + new


def _what_for(at: Account, reason: str) -> str:
    gate = gate_of(at)
    if gate.halted:
        return f", for an alarm ({', '.join(gate.halted)})"
    if gate.blockers:
        names = ", ".join(gate.blockers[:MAX_NAMED_HOLDERS])
        more = len(gate.blockers) - MAX_NAMED_HOLDERS
        return f", blocked by {names}{f' and {more} more' if more > 0 else ''}"
    if reason == "rate":
        return f", for the rate of {at.name}: {at.rate}"
    if reason == "share" and at.parent is not None:
        return f", for its share of what {at.parent.name} may owe"
    return ""


def _limit(mark: int) -> int | None:
    return None if mark >= UNLIMITED else mark


def _of(mark: int) -> str:
    return "" if mark >= UNLIMITED else f" (limit {mark})"


async def watch_slow_waits(ledger: Ledger, *, seconds: float = DEFAULT_SLOW_WAIT) -> None:
    """Log every wait for clear funds that is longer than `seconds`, until cancelled.

    To the logger `clearfunds.accounts`, at level INFO: one line when a wait has gone on for that
    long, and one when it ends. Their fields (`extra=`, attributes of the record):

    - `event`: `slow_wait`, `slow_wait_ended`.
    - `account`: the reader's account; `seconds`: the duration so far, or in all.
    - `at`: the account that owes too much: the reader's own, or one above it. (`slow_wait`)
    - `items`, `bytes`: the debt of that account; at the end, of the reader's account.
    - `limit_items`, `limit_bytes`: its limit, or its share if it waits for that. (`slow_wait`)
    - `reason`: why it waits: `account`, `parent`, `alarm`, `share`, `rate`, `blocked`.
      (`slow_wait`)
    - `alarms`: the alarms up there; if any, it waits for these. (`slow_wait`)
    - `blockers`: holders that block it; if any, it waits for these. (`slow_wait`)
    - `clear`: whether it went on; false when it was cancelled. (`slow_wait_ended`)
    - `holders`: the five that matter most, each with `holder`, `blamed_seconds` (in the stretches
      of this wait that a repayment ended) and `share`: of the items owed at `at`, or, at the end,
      of the seconds; before the end also `kind`, `items`, `bytes`, `idle_seconds` and `why` it is
      slow (None: unknown).
    - `holders_more`: the number of others.

    The ledger's `incidents` keep ended waits, by the holder that was waited on.

    If more waits become slow than a log can take (20 in 10 s), the rest are counted in one line
    (`slow_waits_unnamed`, with `waits`).

    Raises:
        AccountError: If this ledger's slow waits are watched already.
    """
    if ledger.slow_waits is not None:
        msg = (
            "the slow waits of this ledger are watched already; one task for each ledger is enough"
        )
        raise AccountError(msg)
    slow_waits = ledger.slow_waits = SlowWaits(ledger, seconds)
    try:
        for waiter in sorted(ledger.waiters, key=lambda each: each.ticket):
            slow_waits.began(waiter)
        pause = 0.0
        while True:
            now = loop_now()
            tick = following(now, seconds) - now
            await sleep(max(pause, slow_waits.pause(ledger.clock(), tick)))
            pause = await slow_waits.look() / SLOW_WAITS_SHARE
    finally:
        ledger.slow_waits = None
