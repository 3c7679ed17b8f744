"""Assertions: state with an owner, a bag by value, that observers see come and go."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs
import pytest

from clearfunds.accounts import Account, Ledger, Quota, QuotaExceededError
from clearfunds.dataspace import (
    ANY,
    Asserted,
    Assertion,
    Dataspace,
    DataspaceError,
    Mailbox,
    NotAssertedError,
    Retracted,
    capture,
    match,
)
from tests.dataspace.conftest import Alarm, Reading, told

ROOF = Reading("roof", 20.5)


def put(dataspace: Dataspace, account: Account, value: Any) -> Assertion:
    with account.turn() as turn:
        return dataspace.assert_(turn, value)


def take(dataspace: Dataspace, account: Account, assertion: Assertion) -> None:
    with account.turn() as turn:
        dataspace.retract(turn, assertion)


def watch(dataspace: Dataspace, account: Account, pattern: object, mailbox: Mailbox) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, pattern, mailbox)


def test_observers_see_it_appear_and_go(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    watch(dataspace, account, Reading, mailbox)
    watch(dataspace, account, Alarm, other)
    assertion = put(dataspace, account, ROOF)
    assert assertion.standing
    assert told(mailbox) == [Asserted(ROOF)]
    assert ROOF in dataspace.assertions()
    take(dataspace, account, assertion)
    assert not assertion.standing
    assert told(mailbox) == [Retracted(ROOF)]
    assert ROOF not in dataspace.assertions()
    assert told(other) == []


def test_a_bag_by_value_shows_the_first_come_and_the_last_go(
    dataspace: Dataspace, ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    watch(dataspace, account, Reading, mailbox)
    somebody_else = ledger.open("somebody else")
    one = put(dataspace, account, ROOF)
    two = put(dataspace, somebody_else, Reading("roof", 20.5))
    three = put(dataspace, account, ROOF)
    assert told(mailbox) == [Asserted(ROOF)]
    assert list(dataspace.assertions()).count(ROOF) == 1
    take(dataspace, account, one)
    take(dataspace, somebody_else, two)
    assert told(mailbox) == []
    take(dataspace, account, three)
    assert told(mailbox) == [Retracted(ROOF)]


def test_it_goes_and_comes_again(dataspace: Dataspace, account: Account, mailbox: Mailbox) -> None:
    watch(dataspace, account, Reading, mailbox)
    for _ in range(2):
        take(dataspace, account, put(dataspace, account, ROOF))
    assert told(mailbox) == [Asserted(ROOF), Retracted(ROOF)] * 2


def test_facts_that_differ_only_where_nobody_looks_are_one(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Captures are merged for each endpoint, not for the dataspace."""
    watch(dataspace, account, match(Reading, sensor=capture()), mailbox)
    watch(dataspace, account, match(Reading, sensor=capture(), celsius=capture()), other)
    warm = put(dataspace, account, Reading("roof", 20.5))
    hot = put(dataspace, account, Reading("roof", 31.0))
    assert told(mailbox) == [Asserted(("roof",))]
    assert told(other) == [Asserted(("roof", 20.5)), Asserted(("roof", 31.0))]
    take(dataspace, account, warm)
    assert told(mailbox) == []
    assert told(other) == [Retracted(("roof", 20.5))]
    take(dataspace, account, hot)
    assert told(mailbox) == [Retracted(("roof",))]
    assert told(other) == [Retracted(("roof", 31.0))]


def test_merged_captures_are_replayed_once(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    pattern = match(Reading, sensor=capture())
    handles = [put(dataspace, account, Reading("roof", float(c))) for c in range(3)]
    watch(dataspace, account, pattern, mailbox)
    assert told(mailbox) == [Asserted(("roof",))]
    take(dataspace, account, handles[1])
    watch(dataspace, account, pattern, other)  # the endpoint knows already
    assert told(other) == [Asserted(("roof",))]
    take(dataspace, account, handles[0])
    take(dataspace, account, handles[2])
    assert told(mailbox) == told(other) == [Retracted(("roof",))]


def test_one_true_and_one_point_zero_are_apart(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """To Python they are equal, to patterns they are not; nor are they to the bag."""
    for number in (1, True, 1.0):
        watch(dataspace, account, ("x", number), mailbox)
    watch(dataspace, account, ("x", capture()), other)
    handles = [put(dataspace, account, ("x", number)) for number in (1, True, 1.0)]
    # repr() tells them apart as well; == does not.
    assert list(map(repr, told(mailbox))) == [
        f"Asserted(value=('x', {number}))" for number in ("1", "True", "1.0")
    ]
    assert list(map(repr, told(other))) == [
        f"Asserted(value=({number},))" for number in ("1", "True", "1.0")
    ]
    for handle in handles:
        take(dataspace, account, handle)
    assert list(map(repr, told(mailbox))) == [
        f"Retracted(value=('x', {number}))" for number in ("1", "True", "1.0")
    ]
    assert list(map(repr, told(other))) == [
        f"Retracted(value=({number},))" for number in ("1", "True", "1.0")
    ]


@attrs.frozen
class Noted:
    name: str
    note: Any = attrs.field(eq=False)


def test_what_appeared_is_what_goes(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Two values may be equal and yet look different to a pattern."""
    watch(dataspace, account, match(Noted, note=1), mailbox)
    watch(dataspace, account, match(Noted, note=2), other)
    one, two = put(dataspace, account, Noted("a", 1)), put(dataspace, account, Noted("a", 2))
    take(dataspace, account, one)
    take(dataspace, account, two)
    (came, went) = told(mailbox)
    assert (type(came), came.value.note, type(went), went.value.note) == (Asserted, 1, Retracted, 1)
    assert told(other) == []


def test_a_stranger_who_captures_what_cannot_be_hashed_does_no_harm(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """The value is hashable, that part of it is not."""
    watch(dataspace, account, match(Noted, note=capture()), mailbox)
    assertion = put(dataspace, account, Noted("a", [1]))
    same = put(dataspace, account, Noted("b", [1]))
    watch(dataspace, account, match(Noted, note=capture()), other)
    assert told(mailbox) == told(other) == [Asserted(([1],))]
    take(dataspace, account, assertion)
    assert told(mailbox) == []
    take(dataspace, account, same)
    assert told(mailbox) == told(other) == [Retracted(([1],))]


class Point(NamedTuple):
    x: int
    y: int


def test_a_named_tuple_is_no_tuple(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    watch(dataspace, account, (ANY, ANY), mailbox)
    put(dataspace, account, Point(1, 2))
    put(dataspace, account, (1, 2))
    (event,) = told(mailbox)
    assert event == Asserted((1, 2))
    assert type(event.value) is tuple


def test_a_retraction_on_leaving(dataspace: Dataspace, account: Account, mailbox: Mailbox) -> None:
    watch(dataspace, account, Reading, mailbox)
    with dataspace.asserted(account, ROOF) as assertion:
        assert assertion.standing
        assert told(mailbox) == [Asserted(ROOF)]
    assert told(mailbox) == [Retracted(ROOF)]


def test_a_retraction_on_leaving_by_an_error(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    watch(dataspace, account, Reading, mailbox)
    with pytest.raises(ZeroDivisionError), dataspace.asserted(account, ROOF):
        _ = 1 / 0
    assert told(mailbox) == [Asserted(ROOF), Retracted(ROOF)]


def test_taking_back_twice_is_refused(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    assertion = put(dataspace, account, ROOF)
    take(dataspace, account, assertion)
    with pytest.raises(NotAssertedError, match="retracted already"):
        take(dataspace, account, assertion)
    assert dataspace.statistics().assertions == 0


def test_another_dataspace_refuses_a_handle_and_changes_nothing(
    dataspace: Dataspace, ledger: Ledger, account: Account
) -> None:
    assertion = put(dataspace, account, ROOF)
    with pytest.raises(KeyError):
        take(Dataspace(ledger), account, assertion)
    assert assertion.standing
    take(dataspace, account, assertion)
    assert dataspace.statistics().assertions == 0
    assert account.standing().items == 0


def test_what_is_not_hashable_cannot_be_asserted(dataspace: Dataspace, account: Account) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        put(dataspace, account, ("x", [1]))
    assert dataspace.statistics().assertions == 0


@pytest.mark.parametrize("event", [Asserted(1), Retracted(1)])
def test_nobody_can_publish_that_something_is_the_case(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, event: object
) -> None:
    watch(dataspace, account, ANY, mailbox)
    told(mailbox)
    with pytest.raises(DataspaceError, match="only a dataspace"), account.turn() as turn:
        turn.publish(dataspace, event)
    assert told(mailbox) == []


@pytest.mark.rule(16)
def test_standing_state_is_a_quota_of_its_owner_and_no_debt() -> None:
    """Rule 16. Equal assertions count each, or the first owner would pay for the others."""
    ledger = Ledger(quota=Quota(items=2, bytes=100))
    dataspace = Dataspace(ledger)
    account = ledger.open("owner")
    one = put(dataspace, account, "a")
    put(dataspace, account, "a")
    assert (account.standing().items, account.standing().bytes) == (2, 2)
    assert account.debt_items == 0
    with pytest.raises(QuotaExceededError, match="owner may keep 2"):
        put(dataspace, account, "b")
    assert list(dataspace.assertions()) == ["a"]
    take(dataspace, account, one)
    put(dataspace, account, "b" * 99)
    with pytest.raises(QuotaExceededError):
        put(dataspace, account, "c")
    other = ledger.open("other")
    with pytest.raises(QuotaExceededError, match="other may keep 100 bytes"):
        put(dataspace, other, "d" * 101)
    put(dataspace, other, "d")
    assert account.standing().items == 2
    ledger.audit()
