"""The demo's live table, and plain lines for use without a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .._tables import bar, table
from ._ledger_view import AccountView, LedgerView, client_of
from ._progress import PUBLISHER, Progress, Subscriber

_ACCOUNTS_SHOWN = 5
_BAR = 8


def screen(progress: Progress) -> RenderableType:
    """Return accounts, debts, holders and waits as tables."""
    heading = Text.assemble(
        (f"{progress.published:,}", "bold"),
        f" of {progress.total:,} flights published, ",
        (f"{progress.delivered:,}", "bold"),
        f" of {progress.expected:,} deliveries made, {progress.seconds:.1f} s",
    )
    return Group(heading, "", _accounts(progress.ledger), "", _subscribers(progress))


def _accounts(ledger: LedgerView | None) -> Table:
    rows = table(
        "Who owes, and who waits",
        *(("account", 15), ("owes", -6), ("of", -6), ("", _BAR), ("bytes", -9), ("peak", -6)),
        *(("state", 9), ("waits", -6), ("in all", -6)),
    )
    for account in _debtors(ledger):
        throttled = account.state == "throttled"
        rows.add_row(
            client_of(account.name),
            f"{account.debt_items:,}",
            "-" if account.limit_items is None else f"{account.limit_items:,}",
            bar(account.debt_items, account.limit_items, _BAR),
            f"{account.debt_bytes:,}",
            f"{account.peak_items:,}",
            Text(account.state, "bold red" if throttled else "green"),
            f"{account.waiting_seconds:.1f} s" if throttled else "",
            f"{account.waited_seconds:.1f} s",
        )
    return rows


def _debtors(ledger: LedgerView | None) -> list[AccountView]:
    """Return accounts that owe or have waited, the largest debt first; the publisher always."""
    if ledger is None:
        return []
    shown = [
        account
        for account in ledger.accounts
        if account.debt_items or account.waited_seconds or client_of(account.name) == PUBLISHER
    ]
    return sorted(shown, key=lambda a: (-a.debt_items, a.name))[:_ACCOUNTS_SHOWN]


def _subscribers(progress: Progress) -> Table:
    rows = table(
        "Who holds it",
        *(("subscriber", 15), ("topics", 14), ("delivered", -13), ("holds", -6), ("bytes", -9)),
        *(("since", -6), ("", 7)),
    )
    for each in progress.subscribers:
        held = [] if progress.ledger is None else progress.ledger.held_by(each.name)
        items = sum(h.items for h in held)
        rows.add_row(
            each.name,
            each.interest.topic_filter,
            f"{each.receipts.delivered:,}/{each.receipts.expected:,}",
            f"{items:,}" if items else "",
            f"{sum(h.bytes for h in held):,}" if items else "",
            f"{max(h.oldest_seconds for h in held):.1f} s" if items else "",
            _doing(each),
        )
    return rows


def _doing(subscriber: Subscriber) -> Text:
    if subscriber.pausing:
        return Text("pauses", "bold red")
    if subscriber.receipts.complete:
        return Text("has all", "green")
    return Text("reads")


def line(progress: Progress) -> str:
    """Return the same in one line."""
    parts = [
        f"{progress.seconds:5.1f} s  published {progress.published:,} of {progress.total:,}",
        f"delivered {progress.delivered:,} of {progress.expected:,}",
    ]
    publisher = progress.ledger and progress.ledger.account(PUBLISHER)
    if progress.ledger and publisher:
        parts.append(f"publisher owes {publisher.debt_items:,} of {progress.limit_items:,}")
        held = progress.ledger.holders_of(publisher.name)[:2]
        if held:
            parts.append(
                "held by " + " and ".join(f"{client_of(h.holder)} {h.items:,}" for h in held)
            )
        if publisher.state == "throttled":
            parts.append(f"publisher waits for {publisher.waiting_seconds:.1f} s")
    idle = [each.name for each in progress.subscribers if each.pausing]
    if idle:
        parts.append(f"{', '.join(idle)} reads nothing")
    return ", ".join(parts)
