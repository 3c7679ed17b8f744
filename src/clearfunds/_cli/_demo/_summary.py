"""The demo's final summary, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ._flights import SLOW
from ._ledger_view import LedgerView, client_of
from ._progress import PUBLISHER, Progress


@attrs.frozen
class Verdict:
    """The verdict, and the lines that explain it."""

    ok: bool
    """Whether all messages came but those dropped for the slow one, and the books balance."""
    lines: tuple[str, ...]
    """For people."""


def judge(progress: Progress, ledger: LedgerView | None) -> Verdict:
    """Make a verdict from the messages published and delivered, the debt and the waits.

    `ledger` is the relay's at the end, while the publisher is still connected; None if the relay
    did not answer.
    """
    progress.ledger = ledger
    lost, dropped = progress.lost, progress.dropped
    unexpected = sum(each.receipts.unexpected for each in progress.subscribers)
    ok = (
        progress.published == progress.total
        and lost == dropped
        and unexpected == 0
        and ledger is not None
        and ledger.balanced
        and ledger.debt_items == 0
    )
    return Verdict(ok, tuple(_lines(progress, ledger, lost, unexpected, dropped)))


def _lines(
    progress: Progress, ledger: LedgerView | None, lost: int, unexpected: int, dropped: int
) -> Iterator[str]:
    rate = progress.published / progress.seconds if progress.seconds else 0.0
    yield (
        f"published   {progress.published:,} of {progress.total:,} flights"
        f" in {progress.seconds:.1f} s ({rate:,.0f}/s)"
    )
    yield f"delivered   {progress.delivered:,} of {progress.expected:,} to nine subscribers"
    for each in progress.subscribers:
        of = each.receipts
        if of.complete and not of.unexpected:
            continue
        yield (
            f"  {each.name:<16} {each.interest.topic_filter:<15}"
            f" {of.delivered:>7,} of {of.expected:>7,}"
            + (f"   lost {of.lost:,}" if of.lost else "")
            + (f"   {of.unexpected:,} wrong: {of.first_fault}" if of.unexpected else "")
        )
    counted = f", all of them counted by the relay as dropped for {SLOW}" if dropped else ""
    yield f"lost        {lost:,}{counted if lost == dropped else ''}" + (
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
    spilled = ledger.spilled_for(SLOW)
    if spilled:
        yield f"spilled     {spilled:,} messages for {SLOW}, which got them later, in order"
    books = "every message in a queue is owed for by its publisher"
    if not ledger.balanced:
        books = "they do not balance: " + "; ".join(ledger.discrepancies)
    yield f"books       {books}; {ledger.debt_items:,} still owed"


def outcome(progress: Progress) -> str:
    """Return what a run has shown, in one line."""
    ledger = progress.ledger
    publisher = None if ledger is None else ledger.account(PUBLISHER)
    lost = progress.lost
    if ledger is None or publisher is None:
        return "the relay did not show its ledger"
    waited = publisher.waited_seconds
    others = sum(each.receipts.lost for each in progress.subscribers if each.name != SLOW)
    wait = f"the publisher waited {waited:.1f} s for {SLOW}" if waited >= 0.05 else "nobody waited"
    if others:
        return f"{wait}; {lost:,} messages were lost, {others:,} of them by other subscribers"
    loss = f"{SLOW} lost {lost:,} messages" if lost else "nothing was lost"
    return f"{wait}; {loss}"
