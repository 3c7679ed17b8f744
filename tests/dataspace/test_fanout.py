"""How many copies are made of each message: a histogram in the ledger, by message."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clearfunds.accounts import Account, Ledger
from clearfunds.dataspace import Batch, Dataspace, Mailbox, Publication
from tests.dataspace.conftest import Alarm, Reading


def copies(ledger: Ledger) -> dict[str, int]:
    """Messages by bucket, without the empty ones."""
    rows = [("", 0), *ledger.fanout_copies.cumulative()]
    return {bound: n - m for (_, m), (bound, n) in pairwise(rows) if n > m}


def observe(dataspace: Dataspace, account: Account, n: int, pattern: object) -> list[Mailbox]:
    mailboxes = [Mailbox(dataspace.ledger, f"mailbox {number}") for number in range(n)]
    with account.turn() as turn:
        for mailbox in mailboxes:
            dataspace.observe(turn, pattern, mailbox)
    return mailboxes


def test_each_message_counts_by_its_copies(
    ledger: Ledger, dataspace: Dataspace, account: Account
) -> None:
    mailboxes = observe(dataspace, account, 9, Reading)
    before = ledger.fanout_copies.count
    assert before == 0  # To observe is to publish nothing.
    with account.turn() as turn:
        turn.publish(dataspace, Reading("roof", 1.0))
        turn.publish(dataspace, Alarm("roof"))
        turn.publish(dataspace, Reading("cellar", 2.0))
    assert copies(ledger) == {"10.0": 2, "0.0": 1}
    assert ledger.fanout_copies.total == 18 == dataspace.statistics().deliveries
    for mailbox in mailboxes:
        mailbox.close()


def test_a_run_counts_for_all_its_messages(
    ledger: Ledger, dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    publication = Publication("t", b"x")
    run = Batch(b"tx" * 5, 5, lambda raw: (publication,) * 5)
    dataspace.route_run(account, run, (mailbox, other))
    dataspace.route_run(account, run, ())
    assert copies(ledger) == {"2.0": 5, "0.0": 5}
    assert ledger.fanout_copies.total == 10
    mailbox.close()
    other.close()


def test_what_is_undone_was_no_message(
    ledger: Ledger, dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, Reading, mailbox)

    def fail(turn: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), account.turn() as turn:  # noqa: PT012
        turn.publish(dataspace, Reading("roof", 1.0))
        turn.act(fail)
    assert copies(ledger) == {}
    assert ledger.fanout_copies.total == 0
