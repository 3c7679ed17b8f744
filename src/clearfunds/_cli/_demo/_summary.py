"""The demo's final summary, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ._ledger_view import LedgerView, client_of
from ._progress import PUBLISHER, Progress


@attrs.frozen
class Verdict:
    """The verdict, and the lines that explain it."""

    ok: bool
    """Whether nothing was lost, no wrong message came, and the audit balances."""
    lines: tuple[str, ...]
    """For people."""


def judge(progress: Progress, ledger: LedgerView | None) -> Verdict:
    """Make a verdict from the messages published and delivered, the debt and the waits.

    `ledger` is the relay's at the end, while the publisher is still connected; None if the relay
    did not answer.
    """
    lost = sum(each.receipts.lost for each in progress.subscribers)
    unexpected = sum(each.receipts.unexpected for each in progress.subscribers)
    ok = (
        progress.published == progress.total
        and lost == 0
        and unexpected == 0
        and ledger is not None
        and ledger.balanced
        and ledger.debt_items == 0
    )
    return Verdict(ok, tuple(_lines(progress, ledger, lost, unexpected)))


def _lines(
    progress: Progress, ledger: LedgerView | None, lost: int, unexpected: int
) -> Iterator[str]:
    rate = progress.published / progress.seconds if progress.seconds else 0.0
    yield (
        f"published   {progress.published:,} of {progress.total:,} flights"
        f" in {progress.seconds:.1f} s ({rate:,.0f}/s)"
    )
    yield "delivered"
    for each in progress.subscribers:
        of = each.receipts
        yield (
            f"  {each.name:<16} {each.interest.topic_filter:<15}"
            f" {of.delivered:>7,} of {of.expected:>7,}"
            + (f"   lost {of.lost:,}" if of.lost else "")
            + (f"   {of.unexpected:,} wrong: {of.first_fault}" if of.unexpected else "")
        )
    yield f"  {'all':<32} {progress.delivered:>7,} of {progress.expected:>7,}"
    yield f"lost        {lost:,}" + (
        f", and {unexpected:,} that should not have come" if unexpected else ""
    )
    if ledger is None:
        yield f"ledger      the relay does not show it: {progress.fault}"
        return
    publisher = ledger.account(PUBLISHER)
    if publisher is not None:
        yield (
            f"peak debt   {publisher.peak_items:,} messages, with a limit of"
            f" {progress.limit_items:,} and one packet's fan-out"
        )
        yield f"waited      {publisher.waited_seconds:.1f} s in which the publisher was not read"
        for holder, seconds in sorted(publisher.blame.items(), key=lambda each: -each[1]):
            if seconds >= 0.05:
                yield f"  {seconds:>5.1f} s on {client_of(holder)}"
    balance = (
        "balances" if ledger.balanced else "does not balance: " + "; ".join(ledger.discrepancies)
    )
    yield f"audit       {balance}; {ledger.debt_items:,} messages still owed"
