"""Observing: what a new observer is told, observing the observers, and leaving."""

from __future__ import annotations

import anyio
import pytest

from clearfunds.accounts import Account, Ledger, Limit, TooManyDeliveriesError
from clearfunds.dataspace import (
    ANY,
    Asserted,
    Dataspace,
    Mailbox,
    NotAssertedError,
    Observe,
    Pattern,
    PatternError,
    Publication,
    Retracted,
    TopicFilter,
    capture,
    compile_pattern,
    match,
)
from clearfunds.dataspace._index import matches
from clearfunds.dataspace._pattern import Skeleton
from tests.dataspace.conftest import Alarm, Reading, RefusedError, commit, is_bare, refuse, told
from tests.loops import open_nursery

ROOF = Reading("roof", 20.5)


def test_a_new_observer_is_told_what_stands_in_the_same_turn(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    with dataspace.asserted(account, ROOF), dataspace.asserted(account, Alarm("roof")):
        with account.turn() as turn:
            dataspace.observe(turn, match(Reading, sensor="roof"), mailbox)
            dataspace.observe(turn, match(Reading, sensor="roof"), other)  # an endpoint there is
            turn.publish(dataspace, Reading("roof", 1.0))
        assert told(mailbox) == told(other) == [Asserted(ROOF), Reading("roof", 1.0)]
    assert told(mailbox) == told(other) == [Retracted(ROOF)]


def test_observers_can_be_observed(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Each observation is an assertion like any other: the first comes, the last goes."""
    notice = Observe(compile_pattern(Reading))
    with account.turn() as turn:
        one = dataspace.observe(turn, Reading, mailbox)
    with account.turn() as turn:
        dataspace.observe(turn, match(Observe, pattern=capture()), other)
    seen = told(other)
    assert Asserted((notice.pattern,)) in seen
    assert len(seen) == 2  # the other is its own
    with account.turn() as turn:
        two = dataspace.observe(turn, Reading, mailbox)
    with account.turn() as turn:
        dataspace.unobserve(turn, one)
    assert told(other) == []
    with account.turn() as turn:
        dataspace.unobserve(turn, two)
    assert told(other) == [Retracted((notice.pattern,))]
    assert told(mailbox) == []


def test_who_subscribes_to_topics_can_be_observed(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Work is done only while somebody wants it: this is what it is for."""
    with dataspace.observed(account, match(Observe, pattern=TopicFilter), other):
        with dataspace.observed(account, TopicFilter("a/+"), mailbox):
            assert told(other) == [Asserted(Observe(TopicFilter("a/+")))]
        assert told(other) == [Retracted(Observe(TopicFilter("a/+")))]
    with dataspace.observed(account, match(Observe, pattern=TopicFilter("b")), other):
        with dataspace.observed(account, TopicFilter("a/+"), mailbox):
            assert told(other) == []
        with dataspace.observed(account, TopicFilter("b"), mailbox):
            assert told(other) == [Asserted(Observe(TopicFilter("b")))]
        told(other)


def test_an_observer_of_observers_observes_itself(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    itself = Observe(compile_pattern(Observe))
    with dataspace.observed(account, Observe, mailbox):
        assert told(mailbox) == [Asserted(itself)]
    assert told(mailbox) == [Retracted(itself)]


def test_after_the_end_nothing_more_is_told(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    """Nor that what it was told of has gone: it is the observer who goes."""
    with dataspace.asserted(account, ROOF):
        for pattern in (Reading, TopicFilter("a")):
            with dataspace.observed(account, pattern, mailbox):
                told(mailbox)
        assert told(mailbox) == []
        with account.turn() as turn:
            turn.publish(dataspace, ROOF)
            turn.publish(dataspace, Publication("a", b""))
    assert told(mailbox) == []
    assert is_bare(dataspace)


def test_one_of_several_observations_of_the_same_may_end(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    for pattern in (Reading, TopicFilter("a")):
        with dataspace.observed(account, pattern, mailbox):
            with dataspace.observed(account, pattern, mailbox):
                pass
            with account.turn() as turn:
                turn.publish(dataspace, ROOF)
                turn.publish(dataspace, Publication("a", b""))
            assert len(told(mailbox)) == 1
    assert is_bare(dataspace)


class Curious(Mailbox):
    """One that wants to hear that what it was shown has gone."""

    __slots__ = ()

    @property
    def hears_of_its_end(self) -> bool:
        return True


def test_who_wants_to_is_told_at_the_end_that_what_it_was_shown_has_gone(
    dataspace: Dataspace, ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    curious = Curious(ledger, "curious")
    pattern = match(Reading, sensor=capture())
    with account.turn() as turn:
        gone = dataspace.assert_(turn, Reading("gone", 1.0))
        dataspace.assert_(turn, Reading("twice", 1.0))
        dataspace.assert_(turn, Reading("twice", 2.0))
        observation = dataspace.observe(turn, pattern, curious)
        dataspace.observe(turn, pattern, mailbox)
    with account.turn() as turn:
        dataspace.retract(turn, gone)
        dataspace.assert_(turn, Reading("new", 1.0))
    shown = told(curious)
    assert shown == told(mailbox)
    assert shown[2:] == [Retracted(("gone",)), Asserted(("new",))]

    def fail() -> None:
        with account.turn() as turn:
            dataspace.unobserve(turn, observation)
            turn.act(refuse)

    with pytest.raises(RefusedError):
        fail()
    assert told(curious) == told(mailbox) == []
    with account.turn() as turn:
        dataspace.assert_(turn, Reading("last", 1.0))
        dataspace.unobserve(turn, observation)
        dataspace.assert_(turn, Reading("later", 1.0))
    ending = told(curious)
    assert ending[0] == Asserted(("last",))
    # The very objects that it was shown: that is how a transport knows them again.
    assert sorted(ending[1:], key=repr) == [Retracted((what,)) for what in ("last", "new", "twice")]
    values = [event.value for event in [*shown, ending[0]]]
    assert all(any(event.value is value for value in values) for event in ending[1:])
    assert told(mailbox) == [Asserted(("last",)), Asserted(("later",))]
    assert account.debt_items == 0


def test_a_turn_that_would_cause_too_many_deliveries_has_not_happened(
    dataspace: Dataspace, ledger: Ledger, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    with account.turn() as turn:
        for n in range(4):
            dataspace.assert_(turn, Reading("roof", float(n)))
        dataspace.observe(turn, match(Reading, sensor="roof"), other)
    assert len(told(other)) == 4

    def observe(most: int) -> None:
        with account.turn() as turn:
            turn.max_deliveries = most
            dataspace.assert_(turn, Alarm("roof"))
            dataspace.assert_(turn, ROOF)
            dataspace.observe(turn, Reading, mailbox)

    with pytest.raises(TooManyDeliveriesError, match="5 deliveries"):
        observe(5)
    assert told(mailbox) == told(other) == []
    assert (dataspace.statistics().assertions, dataspace.statistics().observations) == (5, 1)
    assert account.debt_items == 0
    ledger.audit()
    observe(6)
    assert (len(told(mailbox)), len(told(other))) == (5, 1)


@pytest.mark.parametrize("pattern", [Reading, TopicFilter("a")])
def test_ending_it_twice_is_refused(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, pattern: object
) -> None:
    with account.turn() as turn:
        observation = dataspace.observe(turn, pattern, mailbox)
    commit(account, lambda turn: dataspace.unobserve(turn, observation))
    with pytest.raises(NotAssertedError):
        commit(account, lambda turn: dataspace.unobserve(turn, observation))
    assert is_bare(dataspace)


def test_what_cannot_be_a_pattern_is_refused_at_once(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    """Not at the commit: the turn may go on without it."""
    with account.turn() as turn:
        with pytest.raises(PatternError):
            dataspace.observe(turn, [1], mailbox)
        with pytest.raises(TypeError, match="holds no loans"):
            dataspace.observe(turn, Reading, print)  # type: ignore[arg-type]
        dataspace.observe(turn, Reading, mailbox)
    assert dataspace.statistics().observations == 1


def test_the_block_ends_it_by_an_error_too(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with pytest.raises(ZeroDivisionError), dataspace.observed(account, ANY, mailbox):
        _ = 1 / 0
    told(mailbox)
    assert is_bare(dataspace)


async def test_the_block_ends_it_by_a_cancellation_too(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    with dataspace.observed(account, Reading, other):
        with (
            anyio.CancelScope() as scope,
            dataspace.observed(account, ANY, mailbox),
            dataspace.asserted(account, ROOF),
        ):
            scope.cancel()
            await anyio.sleep_forever()
        assert told(other) == [Asserted(ROOF), Retracted(ROOF)]
    told(mailbox)
    assert is_bare(dataspace)


def test_an_observer_whose_mailbox_is_closed_does_no_harm(
    dataspace: Dataspace, ledger: Ledger, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Whoever sends to it is not told off; what it would have got is counted as dropped."""
    with account.turn() as turn:
        closed = dataspace.observe(turn, Reading, mailbox)
        subscribed = dataspace.observe(turn, TopicFilter("a"), mailbox)
        dataspace.observe(turn, Reading, other)
    mailbox.close()
    with account.turn() as turn:
        dataspace.assert_(turn, ROOF)
        turn.publish(dataspace, ROOF)
        turn.publish(dataspace, Publication("a", b""))
    assert ledger.statistics().repaid_items["dropped"] == 3
    assert told(other) == [Asserted(ROOF), ROOF]
    with account.turn() as turn:
        dataspace.unobserve(turn, closed)
        dataspace.unobserve(turn, subscribed)
        turn.publish(dataspace, ROOF)
    assert ledger.statistics().repaid_items["dropped"] == 3
    assert told(other) == [ROOF]
    assert account.debt_items == 0


def test_a_new_observer_is_compared_with_what_is_of_its_type(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with other observers, who stand there too, or n of them would cost n * n."""
    compared: list[object] = []

    def noting(skeleton: Skeleton, value: object) -> bool:
        compared.append(value)
        return matches(skeleton, value)

    monkeypatch.setattr("clearfunds.dataspace._dataspace.matches", noting)
    with account.turn() as turn:
        dataspace.assert_(turn, ROOF)
        dataspace.assert_(turn, Alarm("roof"))
        for n in range(50):
            dataspace.observe(turn, match(Reading, sensor=str(n)), mailbox)
            dataspace.observe(turn, (n,), mailbox)
            dataspace.observe(turn, n, mailbox)
    assert compared == [ROOF] * 50


@pytest.mark.rule(5)
async def test_ten_thousand_observers_and_a_limit_of_a_hundred(
    dataspace: Dataspace, ledger: Ledger
) -> None:
    """Rule 5: a fan-out far above the limit is admitted, waited for and drained, never stuck."""
    publisher = ledger.open("publisher", limit=Limit(items=100))
    observer = ledger.open("observer")
    mailboxes = [Mailbox(ledger, f"mailbox {n}") for n in range(10_000)]
    with observer.turn() as turn:
        for mailbox in mailboxes:
            dataspace.observe(turn, Reading, mailbox)
    debts: list[int] = []

    async def publish() -> None:
        for n in range(2):
            await publisher.ensure_clear_funds()
            debts.append(publisher.debt_items)
            with publisher.turn(ROOF) as turn:
                turn.publish(dataspace, Reading("roof", n))
        await publisher.ensure_clear_funds()
        debts.append(publisher.debt_items)

    async with open_nursery() as nursery:
        nursery.start_soon(publish)
        await anyio.wait_all_tasks_blocked()
        assert (publisher.debt_items, publisher.statistics().waiting) == (10_000, 1)
        ledger.audit()
        for mailbox in mailboxes[:-50]:  # down to the lower mark
            told(mailbox)
        await anyio.wait_all_tasks_blocked()
        assert (publisher.debt_items, publisher.statistics().waiting) == (10_050, 1)
        for mailbox in mailboxes:
            told(mailbox)
    assert debts == [0, 50, 0]
    assert publisher.waits == 2
    assert publisher.peak_items == 10_051
    assert (publisher.debt_items, observer.debt_items) == (0, 0)


def test_what_is_observed_stays_a_value(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        observation = dataspace.observe(turn, {"b": 1, "a": capture()}, mailbox)
        same = dataspace.observe(turn, {"a": capture(), "b": 1}, mailbox)
    assert isinstance(observation.pattern, Pattern)
    assert observation.pattern == same.pattern
    assert dataspace.statistics().shapes == 1


def test_an_account_closed_within_the_block_still_pays_for_its_end() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    account = ledger.open("a")
    with Mailbox(ledger, "m") as mailbox:
        with dataspace.observed(account, ANY, mailbox), dataspace.asserted(account, "here"):
            account.close()
        assert not dataspace.assertions()
        ledger.audit()
    assert "a" not in ledger.accounts
