"""The live page's view of the books: the top of everything, found in steps.

Everything here is bounded, however many accounts, holders and loans there are: the rows by the
constants below, each name by `NAME_CHARACTERS`; the page counts rows left out. Intermediate data is
bounded, too: numbers by name of holder, and no objects by loan.

1. Accounts are read once, holders and their loans once; then the few holders shown are read once
   more, for the matrix. Each row is read at one instant, the survey as a whole is not.
2. Waits and remaining patience are as in `accounts._patience`: time counts from the holder's last
   progress, or from when the first reader that waits on it began to, whichever is later.
3. An account with others below it owes their debt and is a level, not a cause of debt. The same
   holds for an account of data at rest; its parent is a level while there is such data.
4. With thousands of accounts those come first that somebody has to do something about: readers that
   wait, the longest first, and the holders that they wait on; then the largest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict, TypeVar

import attrs

from ..accounts import LoanedItem, LoanQueue, rings
from ..accounts._gate import gate_of
from ..accounts._line import readers_of, waited_of
from ..accounts._loan import LOOSE
from ..accounts._waiters import RATE, REASONS, waited_by_reason
from ..accounts.limits._limit import UNLIMITED
from ..accounts.watch._used_up import idle_seconds
from ..dataspace.queues import Group
from ._holdings import BREATH_EVERY, Hands, cells_of, why_of
from ._tenant_rows import tenants_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..access._patterns import Patterns
    from ..accounts import Account, Holder, Ledger
    from ..accounts.watch._incidents import Incident
    from ._cooperative import Pace
    from ._tenant_rows import TenantSums

ACCOUNTS_MAX: Final = 40
TIGHTEST_MAX: Final = 6
LEVELS_MAX: Final = 8
HOLDERS_MAX: Final = 16
WAITS_MAX: Final = 12
WAITED_ON_MAX: Final = 6
NAMED_MAX: Final = 4
MEMBERS_MAX: Final = 4
RINGS_MAX: Final = 3
FORECASTS_MAX: Final = 3
MATRIX_ACCOUNTS_MAX: Final = 16
# As much as fits on one screen; /ledger.json has everything.

NAME_CHARACTERS: Final = 200
# A client identifier may have a thousand bytes, which the peer chooses.

STILL_SECONDS: Final = 1.0
# Without progress for this time, a holder counts as standing still (as `accounts.RING_SECONDS`).

RING_WAITERS_MAX: Final = 1000
# Rings must be sought at one instant, or they may not be real; beyond this number that takes too
# long, and the survey says that it did not look.

INNOCENT: Final = (False, 0, 0.0)
# The guilt of a holder that no reader waits on.

CHUNK: Final = 1024
# Accounts ranked between two checks of the clock: a fifth of a millisecond.

T = TypeVar("T")

By = Literal["debt", "waited", "held", "waiting"]
"""The order of rows: the largest debt; the longest wait, now or in all; the largest holding; those
that wait now, the longest first, and then the largest debt."""


@attrs.frozen
class Most:
    """Limits on the rows, and their order."""

    accounts: int = ACCOUNTS_MAX
    holders: int = HOLDERS_MAX
    by: By = "waiting"
    """The order of the accounts. The holders are those that stand still while readers wait on them,
    or for `held` the fullest."""
    names: Patterns | None = None
    """Selects the accounts and holders by their names in lower case; None: all. Waits, totals and
    levels are shown whatever it is."""


MOST: Final = Most()


class AccountRow(TypedDict):
    """An account and its headroom."""

    name: str
    parent: str | None
    at_rest: str | None
    """Where a level's data is at rest; None: it is not at rest."""
    state: str
    debt_items: int
    debt_bytes: int
    limit_items: int | None
    limit_bytes: int | None
    waiting: int
    """Readers that wait now: its own; of a tenant, all below it; of another level, those that wait
    at it."""
    waiting_seconds: float
    waited_seconds: float
    """The total time that its own readers have waited."""
    oldest_seconds: float | None
    """The age of its oldest loan; None for levels, for which it is not known."""


class LevelRow(AccountRow):
    """An account above others."""

    weight: float
    """The weight of its share among its siblings."""
    share_items: int | None
    """Its share in events, while the account above owes too much; None: nothing is shared now."""
    share_bytes: int | None
    """The same in bytes."""


class MemberRow(TypedDict):
    """A member of a group."""

    name: str
    delivered: int
    unacked: int
    flows: bool
    """Whether it takes anything at the moment."""


class HolderRow(TypedDict):
    """The holders of one name that hold debt, and their state."""

    name: str
    kind: str
    items: int
    bytes: int
    loans: int
    oldest_seconds: float
    idle_seconds: float
    waited_items: int
    """The items that readers wait for."""
    waiting: int
    """The accounts that wait for them. One that waits at two levels counts twice."""
    waiting_first: str | None
    """The one of these that has waited the longest."""
    waiting_seconds: float
    policy: str | None
    patience: float | None
    left_seconds: float | None
    """Until its policy applies; None if nobody waits on it, or it has no patience limit."""
    owner: str | None
    """The account whose reader it waits on in turn, if that waits."""
    away: bool
    """Whether it is a queue whose client is away: then its policy ends the session."""
    behind_seconds: float | None
    """How long it has been behind: relieved by its policy, so that nobody waits on it; None if
    it is not."""
    dropped_items: int
    """Messages dropped by that so far."""
    stored_items: int
    """Messages spilled for it so far."""
    cause: str | None
    """Why it is slow (`accounts.CauseKind`), while readers wait on it; None: unknown."""
    why: str | None
    """The same as a sentence."""
    members: NotRequired[list[MemberRow]]
    """The members of a group, the fullest first."""
    members_more: NotRequired[int]
    """Members left out."""


class WaitedOnRow(HolderRow):
    """A holder, and its part of the debt at one account where readers wait."""

    here_items: int
    here_bytes: int
    enough: bool
    """Whether the readers go on when it has cleared that part, or is given up."""


class WaitRow(TypedDict):
    """Readers that wait at one account, and the holders that they wait on."""

    at: str
    alarms: list[str]
    """Alarms raised there: then readers wait for those, and for holders to free memory."""
    reason: str
    """`debt`, or `alarm`, `share`, `rate`, `blocked`."""
    rate: str | None
    """The rate limit, if it was exceeded: then readers wait on no holder."""
    blockers: list[str]
    """Stations without credit for them, the longest first; then readers wait for these."""
    waiting: list[str]
    """The accounts whose readers wait there, the longest wait first."""
    count: int
    seconds: float
    debt_items: int
    debt_bytes: int
    limit_items: int | None
    limit_bytes: int | None
    low_items: int | None
    low_bytes: int | None
    on: list[WaitedOnRow]
    on_more: int


class RingRow(TypedDict):
    """Readers that block each other: none can go on unless another does."""

    members: list[str]
    count: int
    seconds: float


class ForecastRow(TypedDict):
    """A holder that takes nothing, and who will wait for it: see `accounts.Forecast`."""

    holder: str
    kind: str
    idle_seconds: float
    account: str
    seconds: float
    """Until its readers wait, at the present pace."""
    sentence: str


class IncidentRow(TypedDict):
    """A recent event: see `accounts._incidents`."""

    ago_seconds: float
    holder: str | None
    given_up: bool
    relieved: bool
    """Whether it stayed, and its messages were dropped or spilled."""
    kind: str | None
    policy: str | None
    """The policy that relieved it, if any."""
    items: int
    """Items written off, if it was given up; if it was relieved, dropped and spilled so far."""
    bytes: int
    debtors: list[str]
    debtors_more: int
    idle_seconds: float
    ring: int
    why: str | None
    """Why the holder was slow, as a sentence; None: unknown, or it was left alone."""
    waits: int
    """Slow waits for it that are over."""
    cancelled: int
    seconds: float
    """The length of the longest of them."""
    accounts: list[str]
    accounts_more: bool


class Survey(TypedDict):
    """Everything that the page shows."""

    time: float
    totals: dict[str, Any]
    alarms: list[str]
    """Raised alarms: no publisher is read."""
    troubles: list[str]
    """Faults beside the books, in sentences."""
    levels: list[LevelRow]
    """The server, the tenants, and the accounts of data at rest."""
    levels_owing: int
    """Accounts that owe for others below them."""
    tightest: list[AccountRow]
    """The accounts with the least headroom, of those that do not wait."""
    accounts: list[AccountRow]
    holders: list[HolderRow]
    cells: list[tuple[int, int, int, int, float]]
    """The matrix: places in `accounts` and `holders`, items, bytes, age of the oldest loan."""
    waits: list[WaitRow]
    rings: list[RingRow]
    rings_sought: bool
    """Whether rings were sought: not if more than `RING_WAITERS_MAX` readers wait."""
    forecasts: list[ForecastRow]
    """Holders that readers will have to wait for soon, the nearest first."""
    incidents: list[IncidentRow]
    """The latest first."""
    more: dict[str, int]
    """Rows of each kind that are left out."""


@attrs.define(eq=False)
class _Crowd:
    """Readers that wait at one account."""

    since: float
    count: int = 0
    longest: dict[str, float] = attrs.field(factory=dict[str, float])
    """Since when readers wait, by account; for the longest waits."""
    items: dict[str, int] | None = None
    """Each holder's part of the debt waited for, if this crowd is shown."""
    bytes: dict[str, int] = attrs.field(factory=dict[str, int])
    only: frozenset[str] | None = None
    """The holders to wait on, if not all: stations without credit for them."""


@attrs.define
class _Holdings:
    """The holders' loans, by name. Plain numbers, to spare the garbage collector."""

    crowds: dict[Account, _Crowd]
    shown: dict[Account, float]
    """The accounts shown, and when the oldest of their loans was made."""
    items: dict[str, int] = attrs.field(factory=dict[str, int])
    bytes: dict[str, int] = attrs.field(factory=dict[str, int])
    loans: dict[str, int] = attrs.field(factory=dict[str, int])
    opened: dict[str, float] = attrs.field(factory=dict[str, float])
    waited: dict[str, int] = attrs.field(factory=dict[str, int])
    longest: dict[str, _Crowd] = attrs.field(factory=dict[str, "_Crowd"])
    """By holder, the crowd that waits on it and has waited the longest."""
    waiting: dict[str, int] = attrs.field(factory=dict[str, int])
    """By holder, the accounts that wait on it."""
    here: set[Account] = attrs.field(factory=set["Account"])
    """Where readers wait on the holder of the present step."""
    first: dict[str, Holder] = attrs.field(factory=dict[str, "Holder"])
    more: dict[str, list[Holder]] = attrs.field(factory=dict[str, "list[Holder]"])

    def add(self, name: str, items: int, nbytes: int, loans: int, opened: float) -> None:
        """Add the loans of one holder."""
        self.items[name] = self.items.get(name, 0) + items
        self.bytes[name] = self.bytes.get(name, 0) + nbytes
        self.loans[name] = self.loans.get(name, 0) + loans
        self.opened[name] = min(opened, self.opened.get(name, opened))

    def concerns(self, account: Account) -> bool:
        """Whether an account's loans matter: it is shown, or a reader waits for it."""
        return account in self.shown or not self.crowds.keys().isdisjoint(account.chain)

    def charge(self, name: str, account: Account, items: int, nbytes: int, opened: float) -> None:
        """Note a holder's part of an account's debt."""
        if account in self.shown:
            self.shown[account] = min(opened, self.shown[account])
        waited_for = False
        for at in account.chain:
            crowd = self.crowds.get(at)
            if crowd is None or (crowd.only is not None and name not in crowd.only):
                continue
            waited_for = True
            self.here.add(at)
            if crowd.items is not None:
                crowd.items[name] = crowd.items.get(name, 0) + items
                crowd.bytes[name] = crowd.bytes.get(name, 0) + nbytes
        if waited_for:
            self.waited[name] = self.waited.get(name, 0) + items

    def count_waiting(self, name: str) -> None:
        """Note who waits on the holder whose last loan has been charged."""
        if not self.here:
            return
        crowds = [self.crowds[at] for at in self.here]
        self.here.clear()
        self.waiting[name] = self.waiting.get(name, 0) + sum([each.count for each in crowds])
        if name in self.longest:
            crowds.append(self.longest[name])
        self.longest[name] = min(crowds, key=attrgetter("since"))

    def guilt(self, name: str, now: float) -> tuple[bool, int, float]:
        """Return whether it stands still while readers wait on it, for how many items, how long."""
        waited = self.waited.get(name, 0)
        if not waited:
            return INNOCENT
        still = any(now - each.progressed_at >= STILL_SECONDS for each in self.named(name))
        return still, waited, now - self.longest[name].since

    def named(self, name: str) -> list[Holder]:
        """Return the holders of that name that hold something."""
        first = self.first.get(name)
        return [] if first is None else [first, *self.more.get(name, ())]


async def survey(ledger: Ledger, pace: Pace, most: Most = MOST) -> Survey:
    """Read the books, in steps, and return the page's view of them."""
    # A new stretch: the totals must be read in one, however many accounts there are.
    await pace.pause()
    totals = _totals(ledger)
    await pace.breathe()
    crowds = await _crowds(ledger, pace)
    waits, waits_left_out = await _top(
        list(crowds), WAITS_MAX, lambda at: (-crowds[at].since, at.name), pace
    )
    for at in waits:
        crowds[at].items = {}
    owing, tightest, count, levels_owing = await _top_accounts(ledger, pace, most)
    now = ledger.clock()
    holdings = _Holdings(_that_wait_on_holders(crowds), dict.fromkeys([*owing, *tightest], now))
    await _walk(ledger, holdings, pace)
    found_names = list(holdings.items)
    if most.names is not None:
        found_names = [each async for each in _matching(found_names, most.names, pace)]
    names, holders_left_out = await _top(
        found_names,
        most.holders,
        lambda name: (*_guilt(name, holdings, now, most), holdings.items[name]),
        pace,
    )
    now = ledger.clock()
    cells = await _cells(ledger, holdings, owing[:MATRIX_ACCOUNTS_MAX], names, pace)
    wait_rows: list[WaitRow] = []
    for at in waits:
        wait_rows.append(await _wait_row(at, crowds[at], holdings, now, pace))
    at_rest = ledger.at_rest
    levels = [a for a in ledger.roots if (a.debt_items if a in at_rest else a.below or a.shared)]
    levels.sort(key=lambda a: (a in at_rest, a.name))
    sums = {each.account: each for each in await tenants_of(ledger, pace)}
    tenants = sorted(sums, key=pressure, reverse=True)
    # After the server, before the accounts of data at rest.
    place = sum(a not in at_rest for a in levels)
    levels[place:place] = tenants
    await pace.pause()
    sought = len(ledger.waiters) <= RING_WAITERS_MAX
    found = rings(ledger) if sought else ()
    await pace.breathe()
    return {
        "time": round(time.time(), 3),
        "totals": totals,
        "alarms": sorted(kind for kind, up in ledger.alarms.items() if up),
        "troubles": list(ledger.troubles.values()),
        "levels": [
            _level_row(account, crowds.get(account), sums.get(account), now)
            for account in levels[:LEVELS_MAX]
        ],
        "tightest": [_account_row(a, holdings.shown[a], now) for a in tightest],
        "accounts": [_account_row(a, holdings.shown[a], now) for a in owing],
        "holders": [_holder_row(name, holdings, now) for name in names],
        "cells": cells,
        "waits": wait_rows,
        "rings": [
            {
                "members": [clipped(name) for name in ring.members[:NAMED_MAX]],
                "count": len(ring.members),
                "seconds": _seconds(ring.seconds),
            }
            for ring in found[:RINGS_MAX]
        ],
        "levels_owing": levels_owing,
        "rings_sought": sought,
        "forecasts": forecast_rows(ledger, FORECASTS_MAX),
        "incidents": [_incident_row(each, now) for each in ledger.incidents.latest()],
        "more": {
            "accounts": count - len(owing),
            "holders": holders_left_out,
            "waits": waits_left_out,
            "rings": max(0, len(found) - RINGS_MAX),
            "forecasts": max(0, len(ledger.forecasts.latest) - FORECASTS_MAX),
            "levels": max(0, len(levels) - LEVELS_MAX),
        },
    }


async def holder_row_of(ledger: Ledger, name: str, holders: list[Holder], pace: Pace) -> HolderRow:
    """Return the row of the holders of one name, of which there is at least one."""
    crowds = await _crowds(ledger, pace)
    holdings = _Holdings(_that_wait_on_holders(crowds), {})
    for holder in holders:
        await _walk_loans(holder, list(holder.loans()), holdings, pace)
    now = ledger.clock()
    if name not in holdings.items:
        holdings.add(name, 0, 0, 0, now)
    return _holder_row(name, holdings, now)


def _guilt(name: str, holdings: _Holdings, now: float, most: Most) -> tuple[bool, int, float]:
    return INNOCENT if most.by == "held" else holdings.guilt(name, now)


def clipped(name: str) -> str:
    """Return a name in the form shown, cut if it is very long."""
    return name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "\u2026"


def is_clipped(name: str) -> bool:
    """Whether a name may be the beginning of a longer one."""
    return len(name) == NAME_CHARACTERS and name.endswith("\u2026")


def _totals(ledger: Ledger) -> dict[str, Any]:
    totals = ledger.statistics()
    return {
        "accounts": totals.accounts,
        "debt_items": totals.debt_items,
        "debt_bytes": totals.debt_bytes,
        "at_rest_items": totals.at_rest_items,
        "at_rest_bytes": totals.at_rest_bytes,
        "waiting": totals.waiting,
        "waits": totals.waits,
        "waited_seconds": _seconds(totals.waited_seconds),
        "repaid_items": totals.repaid_items,
        "leaked_loans": totals.leaked_loans,
        "holders": totals.holders,
    }


async def _crowds(ledger: Ledger, pace: Pace) -> dict[Account, _Crowd]:
    """Return the readers by where they wait. (At an open account, they are about to wake up.)"""
    crowds: dict[Account, _Crowd] = {}
    for number, waiter in enumerate(sorted(ledger.waiters, key=attrgetter("ticket"))):
        if not number % BREATH_EVERY:
            await pace.breathe()
        at = waiter.at
        if at is None or not gate_of(at).closed:
            continue
        crowd = crowds.get(at)
        if crowd is None:
            crowd = crowds[at] = _Crowd(waiter.since)
        crowd.since = min(crowd.since, waiter.since)
        name = waiter.account.name
        if name not in crowd.longest:
            crowd.count += 1
            if len(crowd.longest) < NAMED_MAX:
                crowd.longest[name] = waiter.since
    return crowds


def _that_wait_on_holders(crowds: dict[Account, _Crowd]) -> dict[Account, _Crowd]:
    """Return the crowds that wait on holders: not those that an alarm stops."""
    found: dict[Account, _Crowd] = {}
    for at, crowd in crowds.items():
        gate = gate_of(at)
        if gate.waits_on_holders:
            found[at] = crowd
        elif gate.blockers:
            crowd.only = frozenset(gate.blockers)
            found[at] = crowd
    return found


async def _top(
    rows: list[T], most: int, key: Callable[[T], Any], pace: Pace
) -> tuple[list[T], int]:
    """Return the `most` largest, and the number of others."""
    best: list[T] = []
    for start in range(0, len(rows), CHUNK):
        await pace.breathe()
        best = nlargest(most, [*best, *rows[start : start + CHUNK]], key)
    return best, max(0, len(rows) - most)


async def _matching(names: list[str], wanted: Patterns, pace: Pace) -> AsyncGenerator[str, None]:
    for name in names:
        await pace.breathe()
        if wanted.matches(name.lower()):
            yield name


async def _top_accounts(
    ledger: Ledger, pace: Pace, most: Most
) -> tuple[list[Account], list[Account], int, int]:
    """Return the first accounts, those with the least headroom, and the number of all.

    And the number of levels above that owe for them.
    """
    now = ledger.clock()
    key: Callable[[Account], tuple[float, ...]] = _debt
    if most.by in ("waited", "waiting"):
        key = partial(_waited if most.by == "waited" else _waiting, now=now)
    accounts = list(ledger.accounts.values())
    at_rest = ledger.at_rest
    owing: list[Account] = []
    tightest: list[Account] = []
    count = levels = 0
    for start in range(0, len(accounts), CHUNK):
        await pace.breathe()
        here = [a for a in accounts[start : start + CHUNK] if a not in at_rest]
        # A tenant may have no accounts below it at the moment.
        below = [a for a in here if not a.below and not a.shared]
        levels += sum([a.debt_items > 0 for a in here]) - sum([a.debt_items > 0 for a in below])
        near = [a for a in below if a.debt_items and not a.waiting]
        tightest = nlargest(TIGHTEST_MAX, tightest + near, pressure)
        if most.names is not None:
            wanted = most.names
            below = [a for a in below if wanted.matches(a.name.lower())]
        count += len(below)
        owing = nlargest(most.accounts, owing + below, key)
    return owing, tightest, count, levels


def _debt(account: Account) -> tuple[float, float]:
    return account.debt_items, account.debt_bytes


def _waited(account: Account, now: float) -> tuple[float, float]:
    """Return how long the first of its readers has waited now, and the total of all waits."""
    readers = readers_of(account)
    in_all = waited_by_reason(waited_of(account), readers, now)
    return _waited_now(account, now), sum(in_all.values())


def _waiting(account: Account, now: float) -> tuple[float, float, float]:
    """Return how long the first of its readers has waited now (-1: none waits), and its debt."""
    waiting = _waited_now(account, now) if account.waiting else -1.0
    return waiting, account.debt_items, account.debt_bytes


def _waited_now(account: Account, now: float) -> float:
    return max([now - waiter.since for waiter in readers_of(account)], default=0.0)


def pressure(account: Account) -> float:
    """Return the debt as a share of the account's limit, in the unit that is nearer to it."""
    # A limit of 0 is reached with the first item.
    return max(
        account.debt_items / (account.mark_items or 1),
        account.debt_bytes / (account.mark_bytes or 1),
    )


async def _walk(ledger: Ledger, holdings: _Holdings, pace: Pace) -> None:
    """Walk through all loans that are physically held (rule 15)."""
    for number, holder in enumerate(list(ledger.holders)):
        if not number % BREATH_EVERY:
            await pace.breathe()
        # Copied, because a holder's loans must not change during the walk. The audit reports
        # entries that are not loans; a loan settled meanwhile has nothing outstanding.
        loans: list[Any] = list(holder.loans())
        if loans:
            await _walk_loans(holder, loans, holdings, pace)
    router = ledger.router
    for turn in list(ledger.turns):
        if turn.input_items:
            name = router.name
            holdings.first[name] = router
            holdings.add(name, turn.input_items, turn.input_bytes, 1, turn.opened)
            holdings.charge(name, turn.account, turn.input_items, turn.input_bytes, turn.opened)
    holdings.count_waiting(router.name)
    for loan in list(ledger.loose):
        if loan.items:
            holdings.add(LOOSE, loan.items, loan.bytes, 1, loan.opened)
            holdings.charge(LOOSE, loan.account, loan.items, loan.bytes, loan.opened)
    holdings.count_waiting(LOOSE)


async def _walk_loans(holder: Holder, loans: list[Any], holdings: _Holdings, pace: Pace) -> None:
    name = holder.name
    if holdings.first.setdefault(name, holder) is not holder:
        holdings.more.setdefault(name, []).append(holder)
    account: Account | None = None
    concerned = False
    items = nbytes = count = 0
    opened = math.inf
    for number, loan in enumerate(loans, 1):
        if not number % BREATH_EVERY:
            await pace.breathe()
        if not isinstance(loan, LoanedItem) or not loan.items:
            continue
        items += loan.items
        nbytes += loan.bytes
        count += 1
        if loan.opened < opened:
            opened = loan.opened
        if loan.account is not account:
            account = loan.account
            concerned = holdings.concerns(loan.account)
        if concerned:
            holdings.charge(name, loan.account, loan.items, loan.bytes, loan.opened)
    holdings.count_waiting(name)
    if count:
        holdings.add(name, items, nbytes, count, opened)


async def _cells(
    ledger: Ledger, holdings: _Holdings, accounts: list[Account], names: list[str], pace: Pace
) -> list[tuple[int, int, int, int, float]]:
    """Return the parts of the debt of `accounts` that holders in `names` hold."""
    place = {account.name: number for number, account in enumerate(accounts)}
    rows: list[tuple[int, int, int, int, float]] = []
    for column, name in enumerate(names):
        cells = await cells_of(Hands(name, "", holdings.named(name)), ledger, pace, place)
        now = ledger.clock()
        rows += sorted(
            (place[account], column, cell.items, cell.bytes, _seconds(now - cell.opened))
            for account, cell in cells.items()
        )
    return rows


async def _wait_row(
    at: Account, crowd: _Crowd, holdings: _Holdings, now: float, pace: Pace
) -> WaitRow:
    share = crowd.items or {}
    gate = gate_of(at)
    low_items, low_bytes = gate.goes_on_at()
    limit_items, limit_bytes = gate.held_to()
    names, left_out = await _top(
        list(share),
        WAITED_ON_MAX,
        lambda name: (holdings.guilt(name, now)[0], share[name], crowd.bytes[name]),
        pace,
    )
    on: list[WaitedOnRow] = [
        {
            **_holder_row(name, holdings, now),
            "here_items": share[name],
            "here_bytes": crowd.bytes[name],
            "enough": len(crowd.only) == 1
            if crowd.only is not None
            else at.debt_items - share[name] <= low_items
            and at.debt_bytes - crowd.bytes[name] <= low_bytes,
        }
        for name in names
    ]
    return {
        "at": clipped(at.name),
        "alarms": list(gate.halted),
        "reason": REASONS[gate.cause] if gate.cause else "debt",
        "rate": str(at.rate) if gate.cause == RATE else None,
        "blockers": [clipped(name) for name in gate.blockers[:WAITED_ON_MAX]],
        "waiting": [clipped(name) for name in crowd.longest],
        "count": crowd.count,
        "seconds": _seconds(now - crowd.since),
        "debt_items": at.debt_items,
        "debt_bytes": at.debt_bytes,
        "limit_items": _limit(limit_items),
        "limit_bytes": _limit(limit_bytes),
        "low_items": None if limit_items >= UNLIMITED else low_items,
        "low_bytes": None if limit_bytes >= UNLIMITED else low_bytes,
        "on": on,
        "on_more": left_out,
    }


def _level_row(
    account: Account, crowd: _Crowd | None, tenant: TenantSums | None, now: float
) -> LevelRow:
    seen = account.statistics()
    row: LevelRow = {
        **_account_row(account, None, now),
        "weight": seen.weight,
        "share_items": seen.share_items,
        "share_bytes": seen.share_bytes,
    }
    if tenant is not None:
        row["waiting"] = tenant.waiting
        row["waiting_seconds"] = _seconds(tenant.waiting_seconds)
    elif crowd is not None:
        row["waiting"] = crowd.count
        row["waiting_seconds"] = _seconds(now - crowd.since)
    return row


def _account_row(account: Account, opened: float | None, now: float) -> AccountRow:
    waiting_seconds, waited_seconds = _waited(account, now)
    return {
        "name": clipped(account.name),
        "parent": None if account.parent is None else clipped(account.parent.name),
        "at_rest": account.ledger.at_rest.get(account),
        "state": account.state,
        "debt_items": account.debt_items,
        "debt_bytes": account.debt_bytes,
        "limit_items": _limit(account.mark_items),
        "limit_bytes": _limit(account.mark_bytes),
        "waiting": account.waiting,
        "waiting_seconds": _seconds(waiting_seconds),
        "waited_seconds": _seconds(waited_seconds),
        "oldest_seconds": None if opened is None else _seconds(now - opened),
    }


def _holder_row(name: str, holdings: _Holdings, now: float) -> HolderRow:
    here = holdings.named(name)
    crowd = holdings.longest.get(name)
    # Report the one that has stood still the longest.
    holder = min(here, key=lambda each: each.progressed_at, default=None)
    left: float | None = None
    for_ever = holder is None or math.isinf(holder.patience)
    backlogs = [each.backlog for each in here if isinstance(each, LoanQueue)]
    lagging_since = min(
        [backlog.since for backlog in backlogs if backlog is not None], default=None
    )
    if getattr(holder, "waits_for_disk", False):
        for_ever = True
    if holder is not None and crowd is not None and not for_ever:
        left = holder.patience - idle_seconds(holder, crowd.since, now)
    why = why_of(here)
    row: HolderRow = {
        "name": clipped(name),
        "kind": "loose" if holder is None else holder.kind,
        "items": holdings.items[name],
        "bytes": holdings.bytes[name],
        "loans": holdings.loans[name],
        "oldest_seconds": _seconds(now - holdings.opened[name]),
        "idle_seconds": _seconds(0.0 if holder is None else now - holder.progressed_at),
        "waited_items": holdings.waited.get(name, 0),
        "waiting": holdings.waiting.get(name, 0),
        "waiting_first": None if crowd is None else clipped(next(iter(crowd.longest))),
        "waiting_seconds": 0.0 if crowd is None else _seconds(now - crowd.since),
        "policy": None if holder is None else str(holder.policy),
        "patience": None if holder is None or math.isinf(holder.patience) else holder.patience,
        "left_seconds": None if left is None else _seconds(left),
        "away": bool(getattr(holder, "is_away", False)),
        "owner": next((clipped(h.owner.name) for h in here if h.owner and h.owner.waiting), None),
        "behind_seconds": None if lagging_since is None else _seconds(now - lagging_since),
        "dropped_items": sum([each.relief.dropped_items for each in here]),
        "stored_items": sum([each.relief.stored_items for each in here]),
        "cause": why["cause"],
        "why": why["why"],
    }
    if isinstance(holder, Group):
        members = holder.member_statistics(MEMBERS_MAX)
        row["members"] = [
            {
                "name": clipped(each.name),
                "delivered": each.delivered,
                "unacked": each.unacked,
                "flows": each.flows,
            }
            for each in members
        ]
        row["members_more"] = len(holder.members) - len(members)
    return row


def forecast_rows(ledger: Ledger, most: int) -> list[ForecastRow]:
    """Return the first `most` forecasts."""
    return [
        {
            "holder": clipped(each.holder),
            "kind": each.kind,
            "idle_seconds": _seconds(each.idle_seconds),
            "account": clipped(each.account),
            "seconds": _seconds(each.seconds),
            "sentence": each.sentence(),
        }
        for each in ledger.forecasts.latest[:most]
    ]


def _incident_row(incident: Incident, now: float) -> IncidentRow:
    relieved = incident.relieved
    end = incident.given_up or relieved
    lost = incident.given_up if relieved is None else relieved.lost
    return {
        "ago_seconds": _seconds(now - incident.at),
        "holder": None if incident.holder is None else clipped(incident.holder),
        "given_up": incident.given_up is not None,
        "relieved": relieved is not None,
        "kind": None if end is None else end.kind,
        "policy": None if relieved is None else str(relieved.policy),
        "items": 0 if lost is None else lost.items,
        "bytes": 0 if lost is None else lost.bytes,
        "debtors": [] if end is None else [clipped(name) for name in end.debtors],
        "debtors_more": 0 if end is None else end.debtors_more,
        "idle_seconds": 0.0 if end is None else _seconds(end.idle_seconds),
        "ring": 0 if end is None else end.ring,
        "why": None if end is None else end.why,
        "waits": incident.waits,
        "cancelled": incident.cancelled,
        "seconds": _seconds(incident.seconds),
        "accounts": [clipped(name) for name in incident.accounts],
        "accounts_more": incident.accounts_more,
    }


def _limit(mark: int) -> int | None:
    return None if mark >= UNLIMITED else mark


def _seconds(value: float) -> float:
    return round(max(0.0, value), 2)
