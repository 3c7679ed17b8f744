"""The books: what is borrowed and repaid, here and at every ancestor (rules 8 and 13).

A posting is one walk up the account chain. At each account it changes the debt and raises the peak
that the debt reaches; where something is repaid, a gate may open, and an account that is closed and
paid off is folded.

The postings stand together, and each writes the walk out, because they are the hot path. One
walk for all of them, which borrows one amount and repays another, was measured in chains of three
and four accounts: it costs a third more CPU time for `borrow` and `repay`, 30 % more for `pass_run`
and 2 to 15 % more for `borrow_run`. A walk in a function of its own costs one more call a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._outcome import Outcome
from ._waiters import NOBODY

if TYPE_CHECKING:
    from ._account import Account
    from ._holder import Holder
    from ._leaks import Gone


def borrow(account: Account, items: int, nbytes: int) -> None:
    """Raise the debt, here and at every ancestor. Never blocks (rule 5); makes no loan.

    For loans, turns and holders. The next audit reports debt that no holder has a loan for.

    Raises:
        ClosedAccountError: If the account was closed and has been paid off.
    """
    if account.opens <= 0:
        account.check_open()
    account.borrowed_items += items
    account.borrowed_bytes += nbytes
    ledger = account.ledger
    ledger.borrowed_items += items
    ledger.borrowed_bytes += nbytes
    each: Account | None = account
    while each is not None:
        each.debt_items = debt = each.debt_items + items
        if debt > each.peak_items:
            each.peak_items = debt
        each.debt_bytes = debt = each.debt_bytes + nbytes
        if debt > each.peak_bytes:
            each.peak_bytes = debt
        each = each.parent
    if account.tracing is not None:
        account.tracing.borrowed(items, nbytes)


def repay(
    account: Account,
    items: int,
    nbytes: int,
    outcome: Outcome = Outcome.DELIVERED,
    holder: Holder | Gone | None = None,
    opened: float | None = None,
    *,
    lent: bool = False,
    recorded: bool = False,
) -> None:
    """Lower the debt, here and at every ancestor, and let waiting readers go on.

    For loans and holders. `holder` finished the work, and is blamed for readers' waits. `opened` is
    when the debt began, for the ledger's recorder: None for just now. `lent`: it is for loans,
    whose traces the caller tells. `recorded`: the caller has told the recorder, of each loan.
    """
    ledger = account.ledger
    ledger.repaid_items[outcome] += items
    ledger.repaid_bytes[outcome] += nbytes
    # The turn itself reports its input.
    if ledger.recorder is not None and not recorded and holder is not ledger.router:
        ledger.recorder.settled(account, holder, items, nbytes, outcome, opened)
    each: Account | None = account
    while each is not None:
        each.debt_items = left = each.debt_items - items
        each.debt_bytes -= nbytes
        if each.gated and each.gate is not None:
            each.gate.repaid(holder, account)
        if not left and each.opens <= 0 and not each.debt_bytes:
            ledger.fold(each)
        each = each.parent
    if account.tracing is not None and not lent:
        account.tracing.repaid(items, nbytes, outcome, holder)


def borrow_run(account: Account, items: int, nbytes: int, copies: int) -> None:
    """Borrow for a whole root turn in one sum: `copies` of its input, which is repaid.

    For `commit_run` and similar callers. The peak is that of the turn done step by step: the input
    and all its children (rule 3).

    Raises:
        ClosedAccountError: If the account was closed and has been paid off.
    """
    ledger = account.ledger
    if ledger.leaked:
        ledger.drain()  # first: a leak may be all that is left of this account
    if account.opens <= 0:
        account.check_open()
    account.passed = NOBODY
    if account.rated:
        charge_rates(account, items, nbytes)
    # The router has had the input for no time at all.
    ledger.router.ages.counts[0] += items
    all_items = items * copies
    all_bytes = nbytes * copies
    account.borrowed_items += all_items + items
    account.borrowed_bytes += all_bytes + nbytes
    ledger.borrowed_items += all_items + items
    ledger.borrowed_bytes += all_bytes + nbytes
    ledger.repaid_items[0] += items  # 0 is Outcome.DELIVERED
    ledger.repaid_bytes[0] += nbytes
    each: Account | None = account
    while each is not None:
        each.debt_items = debt = each.debt_items + all_items
        if debt + items > each.peak_items:
            each.peak_items = debt + items
        each.debt_bytes = debt = each.debt_bytes + all_bytes
        if debt + nbytes > each.peak_bytes:
            each.peak_bytes = debt + nbytes
        each = each.parent


def pass_run(account: Account, items: int, nbytes: int, copies: int, holder: Holder | None) -> None:
    """Book a whole root turn that leaves no debt: all copies are already delivered.

    The same as `borrow_run` and the repayment of all that it borrowed, in one walk: the debt is the
    same afterwards. `holder` is one of those that delivered; the copies' ages are counted there.
    None if there is no copy.

    The account has to be open, and no leak be waiting (see `borrow_run`).
    """
    account.passed = NOBODY
    if account.rated:
        charge_rates(account, items, nbytes)
    all_items = items * copies
    all_bytes = nbytes * copies
    ledger = account.ledger
    ledger.router.ages.counts[0] += items
    if holder is not None:
        holder.ages.counts[0] += all_items
    items += all_items
    nbytes += all_bytes
    account.borrowed_items += items
    account.borrowed_bytes += nbytes
    ledger.borrowed_items += items
    ledger.borrowed_bytes += nbytes
    ledger.repaid_items[0] += items  # 0 is Outcome.DELIVERED
    ledger.repaid_bytes[0] += nbytes
    each: Account | None = account
    while each is not None:
        top = each.debt_items + items
        if top > each.peak_items:
            each.peak_items = top
        top = each.debt_bytes + nbytes
        if top > each.peak_bytes:
            each.peak_bytes = top
        if each.gated and each.gate is not None:
            each.gate.repaid(holder, account)
        each = each.parent


def pass_answers(account: Account, items: int, nbytes: int, holder: Holder) -> None:
    """Book answers that went out at once; the same as `borrow` and then `repay`.

    For callers that have seen that nothing records or traces, and that no gate is closed.
    """
    holder.ages.counts[0] += items
    ledger = account.ledger
    account.borrowed_items += items
    account.borrowed_bytes += nbytes
    ledger.borrowed_items += items
    ledger.borrowed_bytes += nbytes
    ledger.repaid_items[0] += items  # 0 is Outcome.DELIVERED
    ledger.repaid_bytes[0] += nbytes
    each: Account | None = account
    while each is not None:
        top = each.debt_items + items
        if top > each.peak_items:
            each.peak_items = top
        top = each.debt_bytes + nbytes
        if top > each.peak_bytes:
            each.peak_bytes = top
        each = each.parent


def charge_rates(account: Account, items: int, nbytes: int) -> None:
    """Take tokens for input, here and above. For turns, where the account has `rated`."""
    now = account.ledger.clock()
    for bucket in account.rated:
        bucket.fill(now)
        bucket.take(items, nbytes)
