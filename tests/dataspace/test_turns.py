"""Turns are whole or nothing, and keep the order of what was noted in them (rule 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clearfunds.accounts import Account, Ledger, Turn
from clearfunds.dataspace import (
    ANY,
    Asserted,
    Assertion,
    Dataspace,
    Mailbox,
    NotAssertedError,
    Observation,
    Observe,
    Publication,
    Retracted,
    TopicFilter,
    capture,
    compile_pattern,
)
from tests.dataspace.conftest import RefusedError, commit, is_bare, refuse, told

pytestmark = pytest.mark.rule(4)


PATTERN = ("x", capture())


def fails(account: Account, *notes: Callable[[Turn], Any]) -> None:
    """Do a turn that notes these things and then cannot be committed."""
    with pytest.raises(RefusedError):
        commit(account, *notes, lambda turn: turn.act(refuse))


def standing(dataspace: Dataspace, account: Account, pattern: object) -> list[Any]:
    """Return what a new observer is told of, in an order of its own."""
    mailbox = Mailbox(account.ledger, "newcomer")
    with account.turn() as turn:
        observation = dataspace.observe(turn, pattern, mailbox)
    with account.turn() as turn:
        dataspace.unobserve(turn, observation)
    return sorted(told(mailbox), key=repr)


# -- the order in a turn --------------------------------------------------------------------------


def test_an_observer_hears_what_the_same_turn_publishes_after_it(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        turn.publish(dataspace, ("x", 1))
        dataspace.observe(turn, PATTERN, mailbox)
        turn.publish(dataspace, ("x", 2))
    assert told(mailbox) == [(2,)]
    with account.turn() as turn:
        turn.publish(dataspace, Publication("a", b"1"))
        dataspace.observe(turn, TopicFilter("a"), mailbox)
        turn.publish(dataspace, Publication("a", b"2"))
    assert told(mailbox) == [Publication("a", b"2")]


def test_an_observer_hears_what_the_same_turn_published_before_it_left(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        observation = dataspace.observe(turn, PATTERN, mailbox)
    with account.turn() as turn:
        turn.publish(dataspace, ("x", 1))
        dataspace.unobserve(turn, observation)
        turn.publish(dataspace, ("x", 2))
    assert told(mailbox) == [(1,)]


def test_assertions_and_messages_arrive_in_the_order_of_the_turn(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, PATTERN, mailbox)
        turn.publish(dataspace, ("x", 1))
        assertion = dataspace.assert_(turn, ("x", 2))
        turn.publish(dataspace, ("x", 3))
        dataspace.retract(turn, assertion)
        turn.publish(dataspace, ("x", 4))
    assert told(mailbox) == [(1,), Asserted((2,)), (3,), Retracted((2,)), (4,)]


def test_a_new_observer_is_told_of_what_the_same_turn_asserted_once(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.assert_(turn, ("x", 1))
        dataspace.observe(turn, PATTERN, mailbox)
        dataspace.assert_(turn, ("x", 2))
        dataspace.observe(turn, PATTERN, other)
    assert told(mailbox) == [Asserted((1,)), Asserted((2,))]
    assert told(other) == [Asserted((1,)), Asserted((2,))]


def test_nothing_is_told_before_the_commit(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, PATTERN, mailbox)
        assertion = dataspace.assert_(turn, ("x", 1))
        turn.publish(dataspace, ("x", 2))
        assert not assertion.standing
        assert dataspace.statistics().observations == 0
        assert told(mailbox) == []
    assert len(told(mailbox)) == 2


# -- whole or nothing -----------------------------------------------------------------------------


def test_a_turn_that_raises_before_its_commit_leaves_nothing(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with pytest.raises(ZeroDivisionError):
        commit(
            account,
            lambda turn: dataspace.observe(turn, ANY, mailbox),
            lambda turn: dataspace.assert_(turn, ("x", 1)),
            lambda turn: turn.publish(dataspace, Publication("a", b"1", retain=True)),
            lambda _: 1 / 0,
        )
    assert told(mailbox) == []
    assert is_bare(dataspace)
    assert len(dataspace.retained) == 0


def test_a_turn_that_fails_in_its_commit_undoes_all_of_it(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, ANY, other)
        dataspace.observe(turn, TopicFilter("#"), other)
    told(other)
    before = dataspace.statistics()
    quota = account.standing().items, account.standing().bytes
    borrowed = account.borrowed_items
    fails(
        account,
        lambda turn: dataspace.observe(turn, PATTERN, mailbox),
        lambda turn: dataspace.observe(turn, TopicFilter("a/+"), mailbox),
        lambda turn: dataspace.assert_(turn, ("x", 1)),
        lambda turn: turn.publish(dataspace, ("x", 2)),
        lambda turn: turn.publish(dataspace, Publication("a/b", b"1", retain=True)),
        lambda turn: turn.publish(dataspace, Publication("c", b"1", 1, retain=True)),
    )
    assert told(mailbox) == told(other) == []
    # A route that was looked up meanwhile may stay cached.
    after = dataspace.statistics()
    assert [after.assertions, after.observations, after.shapes, after.subscriptions] == [
        before.assertions, before.observations, before.shapes, before.subscriptions
    ]  # fmt: skip
    assert (after.retained, after.retained_bytes) == (0, 0)
    assert (after.published, after.deliveries, after.unrouted) == (0, 0, 0)
    assert (account.standing().items, account.standing().bytes) == quota
    assert account.debt_items == 0
    assert account.borrowed_items == borrowed + 1  # the turn's own input
    with account.turn() as turn:
        turn.publish(dataspace, Publication("a/b", b"2"))
    assert told(mailbox) == []
    assert told(other) == [Publication("a/b", b"2")] * 2


def test_a_failing_turn_takes_nothing_back(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        pattern = dataspace.observe(turn, PATTERN, mailbox)
        topics = dataspace.observe(turn, TopicFilter("a"), mailbox)
        one = dataspace.assert_(turn, ("x", 1))
        two = dataspace.assert_(turn, ("x", 1))
        turn.publish(dataspace, Publication("kept", b"1", retain=True))
    told(mailbox)
    quota = account.standing().items, account.standing().bytes
    fails(
        account,
        lambda turn: dataspace.retract(turn, two),
        lambda turn: dataspace.retract(turn, one),
        lambda turn: dataspace.unobserve(turn, pattern),
        lambda turn: dataspace.unobserve(turn, topics),
        lambda turn: turn.publish(dataspace, Publication("kept", b"", retain=True)),
    )
    assert told(mailbox) == []
    assert one.standing
    assert two.standing
    assert (account.standing().items, account.standing().bytes) == quota
    assert dataspace.retained.get("kept") == Publication("kept", b"1", retain=True)
    assert standing(dataspace, account, PATTERN) == [Asserted((1,))]
    with account.turn() as turn:
        turn.publish(dataspace, Publication("a", b"1"))
        dataspace.retract(turn, one)
        dataspace.retract(turn, two)
    assert told(mailbox) == [Publication("a", b"1"), Retracted((1,))]


def test_what_a_failing_turn_showed_to_an_observer_who_left_in_it_is_forgotten(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    """The last observer takes its endpoint along; undoing brings back that very endpoint."""
    with account.turn() as turn:
        observation = dataspace.observe(turn, PATTERN, mailbox)
        kept = dataspace.assert_(turn, ("x", 1))
    told(mailbox)
    fails(
        account,
        lambda turn: dataspace.assert_(turn, ("x", 2)),
        lambda turn: dataspace.retract(turn, kept),
        lambda turn: dataspace.unobserve(turn, observation),
        lambda turn: dataspace.observe(turn, PATTERN, mailbox),
        lambda turn: dataspace.assert_(turn, ("x", 3)),
    )
    assert told(mailbox) == []
    assert standing(dataspace, account, PATTERN) == [Asserted((1,))]
    with account.turn() as turn:
        dataspace.retract(turn, kept)
    assert told(mailbox) == [Retracted((1,))]


def test_handles_of_a_failed_turn_are_void(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    handles: list[Assertion] = []
    observations: list[Observation] = []
    fails(
        account,
        lambda turn: handles.append(dataspace.assert_(turn, ("x", 1))),
        lambda turn: observations.append(dataspace.observe(turn, PATTERN, mailbox)),
        lambda turn: observations.append(dataspace.observe(turn, TopicFilter("a"), mailbox)),
    )
    with pytest.raises(NotAssertedError, match="its turn failed"), account.turn() as turn:
        dataspace.retract(turn, handles[0])
    for observation in observations:
        with pytest.raises(NotAssertedError), account.turn() as turn:
            dataspace.unobserve(turn, observation)
    assert is_bare(dataspace)


def test_a_refused_retraction_undoes_the_turn_that_it_is_in(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, PATTERN, mailbox)
        one = dataspace.assert_(turn, ("x", 1))
    told(mailbox)
    with pytest.raises(NotAssertedError):
        commit(
            account,
            lambda turn: turn.publish(dataspace, ("x", 9)),
            lambda turn: dataspace.retract(turn, one),
            lambda turn: dataspace.retract(turn, one),
        )
    assert one.standing
    assert told(mailbox) == []


def test_observe_notices_are_undone_as_well(
    dataspace: Dataspace, ledger: Ledger, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, Observe, other)
        kept = dataspace.observe(turn, PATTERN, mailbox)
    told(other)
    fails(account, lambda turn: dataspace.unobserve(turn, kept))
    fails(account, lambda turn: dataspace.observe(turn, ("y",), mailbox))
    assert told(other) == []
    seen = [event.value.pattern for event in standing(dataspace, account, Observe)]
    assert seen.count(compile_pattern(PATTERN)) == 1
    assert compile_pattern(("y",)) not in seen
