"""`/ledger.json`: everything the ledger knows, for people and programs.

One object, written in pieces, a line for each row. Each row is read at one instant; the page as a
whole is read at one instant only while the ledger is small.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..accounts.watch._audit import audit_in_steps
from ..accounts.watch._waits_for import rings_in_steps
from ..dataspace.queues import Group
from ._cooperative import run_paced
from ._holdings import BREATH_EVERY, Cell, Everybody, Hands, cells_of, why_of
from ._json import readable as _encode
from ._survey import forecast_rows
from ._tenant_rows import tenants_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..accounts import AccountStatistics, Holder, Ledger, MovingLimit, Wait
    from ._cooperative import Pace

CONTENT_TYPE: Final = "application/json"

PIECE_CHARACTERS: Final = 32768

CELLS_MAX: Final = 50_000
"""Cells of the matrix kept while walking the holders: ten megabytes."""

GROUP_MEMBERS_MAX: Final = 100
"""Members of one group on the page, the fullest first."""

FORECASTS_MAX: Final = 64
"""As many as there can be: `accounts.watch._forecasts.HOLDERS_MAX`."""

DISCREPANCIES_MAX: Final = 100
"""Sentences of the audit; a broken relay has one for each account."""


@attrs.define
class _Page:
    """Text to be sent."""

    text: list[str] = attrs.field(factory=list[str])
    characters: int = 0
    rows: int = 0

    def write(self, text: str) -> None:
        self.text.append(text)
        self.characters += len(text)

    def row(self, row: Any) -> None:
        """Write an element of a list."""
        self.separate()
        self.write(_encode(row))

    def separate(self) -> None:
        """Begin an element of a list."""
        self.write("\n  " if not self.rows else ",\n  ")
        self.rows += 1

    def begin(self, name: str) -> None:
        """Begin a list."""
        self.write(f",\n{_encode(name)}: [")
        self.rows = 0

    def end(self) -> None:
        """End a list."""
        self.write("\n]" if self.rows else "]")

    @property
    def full(self) -> bool:
        """Whether there is enough text for a piece."""
        return self.characters >= PIECE_CHARACTERS

    def take(self) -> bytes:
        """Take out the text."""
        data = "".join(self.text).encode("ascii")
        self.text.clear()
        self.characters = 0
        return data


async def write_ledger(ledger: Ledger, pace: Pace) -> AsyncGenerator[bytes, None]:
    """Write the page, in pieces."""
    page = _Page()
    # A new stretch: the totals must be read in one, however many accounts there are.
    await pace.pause()
    page.write(f'{{"time": {_encode(datetime.now(UTC).isoformat(timespec="milliseconds"))}')
    page.write(f',\n"totals": {_encode(_totals(ledger))}')
    page.begin("accounts")
    for number, account in enumerate(list(ledger.accounts.values())):
        if not number % BREATH_EVERY:
            await pace.breathe()
        page.row(account_row(account.statistics()))
        if page.full:
            yield page.take()
    page.end()
    page.begin("tenants")
    for tenant in await tenants_of(ledger, pace):
        await pace.breathe()
        page.row(tenant.row())
    page.end()
    everybody = await Everybody.of(ledger, pace)
    page.begin("holders")
    # Holdings are computed once, for the holder's row and for the matrix; but they are not kept
    # for all holders, if there are too many.
    found: list[tuple[Hands, dict[str, Cell] | None]] = []
    kept = 0
    for hands in everybody:
        cells = await cells_of(hands, ledger, pace)
        page.row(_holder_row(hands, cells, ledger.clock()))
        if page.full:
            yield page.take()
        if cells:
            kept += len(cells)
            found.append((hands, cells if kept <= CELLS_MAX else None))
    page.end()
    page.begin("matrix")
    for hands, seen in found:
        await pace.breathe()
        cells = await cells_of(hands, ledger, pace) if seen is None else seen
        now = ledger.clock()
        for debtor, cell in cells.items():
            await pace.breathe()
            page.row(
                {
                    "account": debtor,
                    "holder": hands.name,
                    "items": cell.items,
                    "bytes": cell.bytes,
                    "oldest_seconds": round(now - cell.opened, 6),
                }
            )
            if page.full:
                yield page.take()
    page.end()
    rings = await run_paced(rings_in_steps(ledger), pace)
    page.begin("rings")
    for ring in rings:
        await pace.breathe()
        # A row for each member that waits: ten thousand may be on one ring.
        page.separate()
        page.write(
            f'{{"members": {_encode(ring.members)}, "seconds": {_encode(round(ring.seconds, 6))}, '
            '"waits": ['
        )
        for number, wait in enumerate(ring.waits):
            await pace.breathe()
            page.write(("," if number else "") + "\n    " + _encode(_wait_row(wait)))
            if page.full:
                yield page.take()
        page.write("]}")
    page.end()
    page.begin("forecasts")
    for row in forecast_rows(ledger, FORECASTS_MAX):
        page.row(row)
    page.end()
    # A new stretch, for the same reason.
    await pace.pause()
    result = await run_paced(audit_in_steps(ledger), pace)
    discrepancies = result.discrepancies[:DISCREPANCIES_MAX]
    more = len(result.discrepancies) - len(discrepancies)
    if more:
        discrepancies += (f"and {more} discrepancies more",)
    page.write(
        ',\n"audit": '
        + _encode(
            {
                "balanced": result.balanced,
                "discrepancies": discrepancies,
                "accounts_judged": result.judged,
                "accounts_moving": result.moving,
            }
        )
        + "}\n"
    )
    yield page.take()


def _totals(ledger: Ledger) -> dict[str, Any]:
    totals = ledger.statistics()
    return {
        "accounts": totals.accounts,
        "holders": totals.holders,
        "debt": _amount(totals.debt_items, totals.debt_bytes),
        "at_rest": {
            place: _amount(items, totals.at_rest_bytes[place])
            for place, items in totals.at_rest_items.items()
        },
        "top_debt_items": totals.top_debt_items,
        "borrowed": _amount(totals.borrowed_items, totals.borrowed_bytes),
        "repaid": {
            outcome: _amount(items, totals.repaid_bytes[outcome])
            for outcome, items in totals.repaid_items.items()
        },
        "waiting_readers": totals.waiting,
        "alarms": dict(ledger.alarms),
        "troubles": dict(ledger.troubles),
        "waits": totals.waits,
        "waited_seconds": round(totals.waited_seconds, 6),
        "leaked_loans": totals.leaked_loans,
        "standing": _amount(totals.standing_items, totals.standing_bytes),
    }


def account_row(statement: AccountStatistics) -> dict[str, Any]:
    """Return the page's form of an account's statement."""
    return {
        "name": statement.name,
        "parent": statement.parent,
        "at_rest": statement.at_rest,
        "state": statement.state,
        "alarms": statement.alarms,
        "blockers": statement.blockers,
        "debt": _amount(statement.debt_items, statement.debt_bytes),
        "peak": _amount(statement.peak_items, statement.peak_bytes),
        "limit": _amount(statement.limit_items, statement.limit_bytes),
        "low": _amount(statement.low_items, statement.low_bytes),
        "weight": statement.weight,
        "shared": statement.shared,
        "share": _amount(statement.share_items, statement.share_bytes),
        "rate": {"items": statement.rate_items, "bytes": statement.rate_bytes},
        "moving": _moving(statement.moving),
        "borrowed": _amount(statement.borrowed_items, statement.borrowed_bytes),
        "waiting_readers": statement.waiting,
        "waiting_seconds": round(statement.waiting_seconds, 6),
        "waits": statement.waits,
        "waited_seconds": round(statement.waited_seconds, 6),
        "waited_by_reason": {
            reason: round(seconds, 6) for reason, seconds in statement.waited_by_reason.items()
        },
        "blame": {name: round(seconds, 6) for name, seconds in statement.blame.items()},
        "standing": _amount(statement.standing_items, statement.standing_bytes),
    }


def _holder_row(hands: Hands, cells: dict[str, Cell], now: float) -> dict[str, Any]:
    held = cells.values()
    holders = hands.holders
    return {
        "name": hands.name,
        "kind": hands.kind,
        "held": _amount(sum([cell.items for cell in held]), sum([cell.bytes for cell in held])),
        "loans": sum([cell.loans for cell in held]),
        "oldest_seconds": round(max([now - cell.opened for cell in held], default=0.0), 6),
        # A holder without loans does not fail to make progress.
        "idle_seconds": round(
            max([now - h.progressed_at for h in holders], default=0.0) if held else 0.0, 6
        ),
        "patience": _finite(min([h.patience for h in holders], default=None)),
        "policy": str(holders[0].policy) if holders else None,
        "behind": any(h.lagging for h in holders),
        "dropped": _amount(
            sum([h.relief.dropped_items for h in holders]),
            sum([h.relief.dropped_bytes for h in holders]),
        ),
        "stored": _amount(
            sum([h.relief.stored_items for h in holders]),
            sum([h.relief.stored_bytes for h in holders]),
        ),
        **why_of(holders),
        **_group(holders),
    }


def _group(holders: list[Holder]) -> dict[str, Any]:
    """Return the extra fields of a group; none for other holders."""
    group = next((holder for holder in holders if isinstance(holder, Group)), None)
    if group is None:
        return {}
    counters = group.counters
    members = group.member_statistics(GROUP_MEMBERS_MAX)
    return {
        "group": {
            "ready": len(group),
            "unacked": group.unacked,
            "published": counters.published,
            "delivered": counters.delivered,
            "redelivered": counters.redelivered,
            "dropped": counters.dropped,
            "members": [attrs.asdict(member) for member in members],
            "members_more": len(group.members) - len(members),
        }
    }


def _wait_row(wait: Wait) -> dict[str, Any]:
    return {
        "at": wait.at,
        "waiting": wait.waiting,
        "seconds": round(wait.seconds, 6),
        "over": _amount(wait.over_items, wait.over_bytes),
        "on": [
            {
                "holder": on.name,
                "kind": on.kind,
                "held": _amount(on.items, on.bytes),
                "idle_seconds": round(on.idle_seconds, 6),
                "owner": on.owner,
            }
            for on in wait.on
        ],
    }


def _amount(items: int | None, nbytes: int | None) -> dict[str, int | None]:
    return {"items": items, "bytes": nbytes}


def _moving(limit: MovingLimit | None) -> dict[str, Any] | None:
    if limit is None:
        return None
    return {
        "state": limit.state,
        "target_seconds": limit.target_seconds,
        "age_seconds": round(limit.age_seconds, 6),
        "items_per_second": round(limit.items_per_second, 3),
        "bytes_per_second": round(limit.bytes_per_second, 3),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
