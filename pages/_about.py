"""Everything about one name, for the drawer of the live page: as a client, an account, a holder.

    {"name": ..., "account": ..., "holder": ..., "client": ..., "timeline": [...]}

The name is the whole one. Each is null, or empty, where there is none of that name. For a holder
the walk is over its loans and over the readers that wait, for an account that owes over all loans.
It goes in steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

from ..accounts.watch._timelines import Happening
from ._holdings import BREATH_EVERY, Everybody, Hands, cells_of
from ._ledger_json import account_row
from ._survey import holder_row_of, is_clipped

if TYPE_CHECKING:
    from ..accounts import Account, Holder, Ledger
    from ._cooperative import Pace
    from ._holdings import Cell

DEBTORS_MAX: Final = 20
"""Accounts whose items a holder has, those with the most first; and holders of an account's."""


class ClientFacts(TypedDict):
    """Who a client is."""

    address: str | None
    """Its address and port; None while it is away."""
    protocol: str
    user: str | None
    since: float | None
    """When it was let in, in Unix time; None: unknown, or it is away."""
    away_since: float | None
    """When it left a persistent session, in Unix time; None: it is connected."""
    subscriptions: list[str]
    subscriptions_more: int
    """Subscriptions that are left out."""


Clients: TypeAlias = Callable[[str], ClientFacts | None]
"""Returns the facts of the client of a name; None if there is no such client."""


async def about(
    ledger: Ledger, name: str, pace: Pace, clients: Clients | None = None
) -> dict[str, Any]:
    """Return everything about one name, as objects of JSON."""
    account = account_of(ledger, name)
    holders = await _holders_of(ledger, name, pace)
    if account is not None:
        name = account.name
    elif holders:
        name = holders[0].name
    now = ledger.clock()
    return {
        "name": name,
        "account": None if account is None else await _account(ledger, account, pace),
        "holder": None if not holders else await _holder(ledger, name, holders, pace),
        "client": None if clients is None else clients(name),
        "timeline": [_row(each, now) for each in ledger.timelines.of(name, now)],
    }


def account_of(ledger: Ledger, name: str) -> Account | None:
    """Return the account of a name, of which the page may know only the beginning."""
    account = ledger.accounts.get(name)
    if account is None and is_clipped(name):
        known = ledger.accounts.items()
        return next((a for full, a in known if full.startswith(name[:-1])), None)
    return account


def is_certain(ledger: Ledger, name: str) -> bool:
    """Whether it is certain whose name it is: the whole one, or the beginning of one only.

    Peers choose names: one may begin as another's, and the wrong one must not be changed.
    """
    if not is_clipped(name) or name in ledger.accounts:
        return True
    every = (*ledger.accounts, *(holder.name for holder in ledger.holders))
    return len({each for each in every if each.startswith(name[:-1])}) < 2


async def _holders_of(ledger: Ledger, name: str, pace: Pace) -> list[Holder]:
    clipped = is_clipped(name)
    found: list[Holder] = []
    for number, holder in enumerate(list(ledger.holders)):
        if not number % BREATH_EVERY:
            await pace.breathe()
        if holder.name == name or (clipped and holder.name.startswith(name[:-1])):
            found.append(holder)
    return found


async def _account(ledger: Ledger, account: Account, pace: Pace) -> dict[str, Any]:
    row = account_row(account.statistics())
    found: list[tuple[str, Cell]] = []
    # What a level owes is the debt of those below it.
    if account.debt_items and not account.below:
        for hands in await Everybody.of(ledger, pace):
            cells = await cells_of(hands, ledger, pace, {account.name})
            found += [(hands.name, cell) for cell in cells.values()]
    found.sort(key=lambda each: -each[1].items)
    row["holders"] = _parts("holder", found, ledger.clock())
    row["holders_more"] = max(0, len(found) - DEBTORS_MAX)
    return row


async def _holder(ledger: Ledger, name: str, holders: list[Holder], pace: Pace) -> dict[str, Any]:
    row: dict[str, Any] = {**await holder_row_of(ledger, name, holders, pace)}
    cells = await cells_of(Hands(name, holders[0].kind, holders), ledger, pace)
    largest = sorted(cells.items(), key=lambda each: -each[1].items)
    row["debtors"] = _parts("account", largest, ledger.clock())
    row["debtors_more"] = max(0, len(largest) - DEBTORS_MAX)
    return row


def _parts(what: str, found: list[tuple[str, Cell]], now: float) -> list[dict[str, Any]]:
    return [
        {
            what: name,
            "items": cell.items,
            "bytes": cell.bytes,
            "oldest_seconds": round(now - cell.opened, 2),
        }
        for name, cell in found[:DEBTORS_MAX]
    ]


def _row(each: Happening, now: float) -> dict[str, Any]:
    return {
        "ago_seconds": round(now - each.at, 2),
        "what": each.what,
        "whom": each.whom,
        "seconds": round(each.seconds, 2),
        "items": each.items,
        "times": each.times,
        "dropped_items": 0 if each.lost is None else each.lost.dropped_items,
        "stored_items": 0 if each.lost is None else each.lost.stored_items,
    }
