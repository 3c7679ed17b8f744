"""Shapes of filters and patterns are standing state: their owner's quota bounds them (rule 16)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from clearfunds.accounts import Account, Ledger, Quota, QuotaExceededError
from clearfunds.dataspace import ANY, Dataspace, Mailbox, TopicFilter
from tests.dataspace.conftest import RefusedError, balance, commit, is_bare, refuse

pytestmark = pytest.mark.rule(16)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger(quota=Quota(shapes=2))
    yield ledger
    balance(ledger)


def observe(dataspace: Dataspace, account: Account, mailbox: Mailbox, *patterns: object) -> None:
    with account.turn() as turn:
        for pattern in patterns:
            dataspace.observe(turn, pattern, mailbox)


@pytest.mark.parametrize(
    ("patterns", "more"),
    [
        ((TopicFilter("a/+"), TopicFilter("a/#")), TopicFilter("+/a")),
        ((TopicFilter("a/+"), ("a",)), ("a", "b")),
        (((ANY, "a"), ("a", ANY)), TopicFilter("#")),
    ],
)
def test_an_owner_has_so_many_shapes(
    dataspace: Dataspace,
    account: Account,
    mailbox: Mailbox,
    patterns: tuple[object, ...],
    more: object,
) -> None:
    observe(dataspace, account, mailbox, *patterns, *patterns)
    with pytest.raises(QuotaExceededError, match="of 2 different shapes"):
        observe(dataspace, account, mailbox, more)
    assert len(account.standing().shapes) == 2
    # What has no wildcards is no shape, and another owner has its own.
    observe(dataspace, account, mailbox, TopicFilter("a/b"))
    other = account.ledger.open("other")
    observe(dataspace, other, mailbox, more)
    other.close()


def test_what_is_taken_back_makes_room(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        first = dataspace.observe(turn, TopicFilter("a/+"), mailbox)
        same = dataspace.observe(turn, TopicFilter("b/+"), mailbox)
        second = dataspace.observe(turn, ("a", ANY), mailbox)
    standing = account.standing()
    with account.turn() as turn:
        dataspace.unobserve(turn, first)
    assert len(standing.shapes) == 2
    with account.turn() as turn:
        # In one turn, too: one subscription in place of another.
        dataspace.unobserve(turn, same)
        third = dataspace.observe(turn, TopicFilter("#"), mailbox)
        dataspace.unobserve(turn, second)
        fourth = dataspace.observe(turn, TopicFilter("+/b/+"), mailbox)
    with account.turn() as turn:
        dataspace.unobserve(turn, third)
        dataspace.unobserve(turn, fourth)
    assert not standing.shapes
    assert not account.ledger.all_standing.owners
    assert is_bare(dataspace)


@pytest.mark.parametrize("pattern", [TopicFilter("a/+"), ("a", ANY)])
def test_a_turn_that_fails_leaves_the_shapes_as_they_were(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, pattern: object
) -> None:
    with account.turn() as turn:
        kept = dataspace.observe(turn, pattern, mailbox)
        dataspace.observe(turn, TopicFilter("#"), mailbox)
    before = dict(account.standing().shapes)
    for more in (TopicFilter("+/b"), TopicFilter("b/+"), ("b", ANY), (ANY,)):
        with pytest.raises(RefusedError):
            commit(
                account,
                lambda turn: dataspace.unobserve(turn, kept),
                partial(dataspace.observe, pattern=more, holder=mailbox),
                lambda turn: turn.act(refuse),
            )
        assert account.standing().shapes == before
