"""Messages: routed once to each matching observation, never kept."""

from __future__ import annotations

from typing import Any

import pytest

from clearfunds.accounts import Account, Ledger
from clearfunds.dataspace import (
    ANY,
    Batch,
    Dataspace,
    Mailbox,
    Publication,
    TopicFilter,
    capture,
    match,
)
from tests.dataspace.conftest import Alarm, Reading, told

ROOF = Reading("roof", 20.5)


def publish(dataspace: Dataspace, account: Account, *events: Any) -> None:
    with account.turn() as turn:
        for event in events:
            turn.publish(dataspace, event)


def watch(dataspace: Dataspace, account: Account, mailbox: Mailbox, *patterns: object) -> None:
    with account.turn() as turn:
        for pattern in patterns:
            dataspace.observe(turn, pattern, mailbox)


def batch(*publications: Publication) -> Batch:
    return Batch(
        b"".join(p.topic.encode() + p.payload for p in publications),
        len(publications),
        lambda raw: publications,
    )


def numbers(dataspace: Dataspace) -> tuple[int, int, int]:
    seen = dataspace.statistics()
    return seen.published, seen.deliveries, seen.unrouted


def test_once_to_each_observation_that_matches(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    watch(dataspace, account, mailbox, Reading, match(Reading, sensor="roof"), Alarm)
    watch(dataspace, account, other, match(Reading, sensor="cellar"), match(Reading, unit="C"))
    publish(dataspace, account, ROOF)
    assert told(mailbox) == [ROOF, ROOF]
    assert told(other) == [ROOF]
    assert numbers(dataspace) == (1, 3, 0)


def test_observers_of_the_same_get_one_each(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    watch(dataspace, account, mailbox, Reading, Reading)
    watch(dataspace, account, other, Reading)
    publish(dataspace, account, ROOF)
    assert (told(mailbox), told(other)) == ([ROOF, ROOF], [ROOF])


def test_what_is_captured_is_shown_and_not_merged(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """Unlike what assertions show: two messages are two."""
    watch(dataspace, account, mailbox, match(Reading, sensor=capture()))
    watch(dataspace, account, other, match(Reading, sensor=capture(), celsius=capture()))
    publish(dataspace, account, ROOF, Reading("roof", 31.0))
    assert told(mailbox) == [("roof",), ("roof",)]
    assert told(other) == [("roof", 20.5), ("roof", 31.0)]


def test_what_concerns_nobody_vanishes_and_is_counted(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    watch(dataspace, account, mailbox, Alarm)
    publish(dataspace, account, ROOF, ROOF, Alarm("roof"), Publication("a", b""))
    assert numbers(dataspace) == (4, 1, 3)
    watch(dataspace, account, mailbox, Reading)  # nothing was kept for it
    assert told(mailbox) == [Alarm("roof")]


def test_it_need_not_be_hashable(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    watch(dataspace, account, mailbox, {"kind": "alarm"}, {"kind": ANY, "where": capture()})
    watch(dataspace, account, other, ANY)
    told(other)  # of the observers, itself among them
    alarm = {"kind": "alarm", "where": ["roof", "cellar"]}
    publish(dataspace, account, alarm, [1])
    assert sorted(told(mailbox), key=str) == [(["roof", "cellar"],), alarm]
    assert told(other) == [alarm, [1]]


def test_it_costs_each_holder_one_item_and_its_bytes(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    watch(dataspace, account, mailbox, (ANY,), (ANY,))
    watch(dataspace, account, other, Publication)
    with account.turn() as turn:
        turn.publish(dataspace, (b"1234",))  # 8 for the tuple, as `measure` has it
        turn.publish(dataspace, (b"1234",), nbytes=100)
        turn.publish(dataspace, Publication("ä", b"123"))  # the topic's bytes, not its letters
        turn.publish(dataspace, Publication("ä", b"123"), nbytes=1000)
    assert (account.debt_items, account.debt_bytes) == (6, 2 * (12 + 100) + 5 + 1000)
    told(mailbox)
    assert (account.debt_items, account.debt_bytes) == (2, 1005)
    told(other)


# -- publications on topics -----------------------------------------------------------------------


def subscribe(
    dataspace: Dataspace,
    account: Account,
    text: str,
    mailbox: Mailbox,
    acked: Mailbox | None = None,
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, TopicFilter(text), mailbox, acked=acked)


def test_once_to_each_holder_however_many_of_its_filters_match(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    for text in ("a/+", "a/#", "#", "b"):
        subscribe(dataspace, account, text, mailbox)
    subscribe(dataspace, account, "a/b", other)
    event = Publication("a/b", b"1")
    publish(dataspace, account, event)
    assert (told(mailbox), told(other)) == ([event], [event])
    assert numbers(dataspace) == (1, 2, 0)


def test_a_pattern_may_look_into_publications(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """By topic and as a value: these are two observations."""
    watch(dataspace, account, mailbox, match(Publication, topic="a", payload=capture()))
    subscribe(dataspace, account, "a", mailbox)
    subscribe(dataspace, account, "#", other)
    publish(dataspace, account, Publication("a", b"1"), Publication("b", b"2"))
    assert told(mailbox) == [Publication("a", b"1"), (b"1",)]
    assert told(other) == [Publication("a", b"1"), Publication("b", b"2")]
    assert numbers(dataspace) == (2, 4, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledged_where_that_was_granted(
    dataspace: Dataspace,
    ledger: Ledger,
    account: Account,
    mailbox: Mailbox,
    other: Mailbox,
    qos: int,
) -> None:
    inflight = Mailbox(ledger, "in flight")
    subscribe(dataspace, account, "a", mailbox, inflight)
    subscribe(dataspace, account, "#", mailbox)  # the higher counts [MQTT-3.3.5-1]
    subscribe(dataspace, account, "+", other)
    publish(dataspace, account, Publication("a", b"1", qos), Publication("a", b"2"))
    assert told(inflight) == [Publication("a", b"1", qos)]
    assert told(mailbox) == [Publication("a", b"2")]
    assert told(other) == [Publication("a", b"1"), Publication("a", b"2")]
    assert numbers(dataspace) == (2, 4, 0)


def test_a_batch_is_routed_as_its_publications(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    subscribe(dataspace, account, "a", mailbox)
    watch(dataspace, account, other, match(Publication, payload=b"2"))
    events = [Publication("a", b"1"), Publication("a", b"2"), Publication("b", b"2")]
    publish(dataspace, account, batch(*events))
    assert told(mailbox) == events[:2]
    assert told(other) == events[1:]
    assert numbers(dataspace) == (3, 4, 0)


def test_a_run_goes_to_holders_who_are_known(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """One step for a whole run; its holders are told by the caller, once for each read."""
    subscribe(dataspace, account, "a", mailbox)
    subscribe(dataspace, account, "a", other)
    before = account.borrowed_items
    events = [Publication("a", b"1"), Publication("a", b"2")]
    run = batch(*events)
    dataspace.route_run(account, run, dataspace.route_of("a").plain.holders)
    assert (account.debt_items, account.debt_bytes) == (4, 8)
    assert account.borrowed_items - before == 6  # the run itself, while it was routed
    assert mailbox.queue[0].item == [run]
    assert (told(mailbox), told(other)) == (events, events)
    assert numbers(dataspace) == (2, 4, 0)
    dataspace.route_run(account, run, dataspace.route_of("b").plain.holders)
    assert numbers(dataspace) == (4, 4, 2)
    assert account.debt_items == 0


def test_whether_some_pattern_looks_into_publications(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    """While none does, routing goes by topic alone, which is much quicker."""
    subscribe(dataspace, account, "#", mailbox)
    watch(dataspace, account, mailbox, Reading, ("a", ANY), {"a": 1}, "a", 1)
    assert not dataspace.looks_into_publications
    for pattern in (Publication, match(Publication, topic="a"), ANY, capture()):
        with dataspace.observed(account, pattern, mailbox):
            assert dataspace.looks_into_publications
        assert not dataspace.looks_into_publications
    told(mailbox)
