"""What is handed on with a publication: MQTT 5's properties, expiry, how it was published."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from clearfunds.accounts import Account, Holder, Ledger, Recipient, measure
from clearfunds.dataspace import (
    Batch,
    Dataspace,
    Mailbox,
    Publication,
    TopicFilter,
    compile_pattern,
    match,
)
from clearfunds.dataspace._bag import identity
from tests.dataspace.conftest import told

FULL = Publication("t", b"12", 1, properties=b"\x03\x00\x01x", expires=5.0, was_retained=True)


def test_it_is_charged_for_its_properties() -> None:
    assert FULL.nbytes == measure(FULL) == 1 + 2 + 4
    assert Publication("t", b"12").nbytes == 3


def test_what_most_do_not_have_is_not_shown_of_them() -> None:
    assert repr(Publication("t", b"1")) == (
        "Publication(topic='t', payload=b'1', qos=0, retain=False)"
    )
    assert repr(FULL) == (
        "Publication(topic='t', payload=b'12', qos=1, retain=False, "
        "properties=b'\\x03\\x00\\x01x', expires=5.0, was_retained=True)"
    )


def test_it_expires_at_its_time() -> None:
    assert not FULL.has_expired(4.9)
    assert FULL.has_expired(5.0)
    assert not Publication("t", b"").has_expired(1e12)


def test_how_it_was_published_does_not_tell_equal_ones_apart() -> None:
    assert attrs.evolve(FULL, was_retained=False) == FULL
    assert identity(attrs.evolve(FULL, was_retained=False)) == identity(FULL)
    assert attrs.evolve(FULL, properties=b"") != FULL


def test_a_publication_as_a_pattern_looks_at_four_fields() -> None:
    same = match(Publication, topic="t", payload=b"12", qos=1, retain=False)
    assert compile_pattern(FULL) == compile_pattern(Publication("t", b"12", 1)) == same


def test_observers_by_pattern_see_it_whatever_is_handed_on(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, Publication("t", b"12", 1), mailbox)
        turn.publish(dataspace, FULL)
        turn.publish(dataspace, Publication("t", b"12", 1))
    assert [each.properties for each in told(mailbox)] == [FULL.properties, b""]


@pytest.mark.parametrize("qos", [0, 1])
def test_it_is_handed_on_to_subscribers(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox, qos: int
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, TopicFilter("t"), mailbox)
        dataspace.observe(turn, TopicFilter("#"), other, acked=other)
    published = attrs.evolve(FULL, qos=qos, expires=4e9, retain=True, was_retained=False)
    with account.turn() as turn:
        turn.publish(dataspace, published)
    for box, granted in ((mailbox, 0), (other, qos)):
        (got,) = told(box)
        assert (got.properties, got.expires) == (FULL.properties, 4e9)
        assert (got.qos, got.retain, got.was_retained) == (granted, False, True)
    kept = dataspace.retained.get("t")
    assert kept == published


def test_what_was_not_to_be_retained_does_not_say_so(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, TopicFilter("t"), mailbox)
        turn.publish(dataspace, Publication("t", b"1"))
    assert [each.was_retained for each in told(mailbox)] == [False]


class Before(Recipient):
    """Stands before a holder."""

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.seen: list[Any] = []

    @property
    def last_holder(self) -> Holder:
        return self.holder

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        self.seen.append(item)
        self.holder.hold(account, item, items, nbytes, now)

    def ready(self) -> None:
        self.holder.ready()


def test_what_stands_before_a_holder_may_subscribe_for_a_consumer(
    dataspace: Dataspace, ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    consumer = object()
    first, second = Before(mailbox), Before(mailbox)
    with account.turn() as turn:
        one = dataspace.observe(turn, TopicFilter("t"), first, consumer=consumer)
        two = dataspace.observe(turn, TopicFilter("#"), second, consumer=consumer)
    with account.turn() as turn:
        turn.publish(dataspace, Publication("t", b"1"))
    # Once, by one of them: they are one consumer's.
    assert len(told(mailbox)) == len(first.seen + second.seen) == 1
    run = dataspace.route_of("t").run
    assert run is not None
    batch = Batch(b"raw", 1, lambda _: [Publication("t", b"")])
    dataspace.route_run(account, batch, run.holders)
    for holder in run.holders:
        holder.ready()
    ledger.audit()
    assert (first.seen + second.seen)[-1] is batch
    assert len(told(mailbox)) == 1
    with account.turn() as turn:
        dataspace.unobserve(turn, one)
        dataspace.unobserve(turn, two)


def test_without_a_consumer_it_may_not(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    with pytest.raises(AssertionError), account.turn() as turn:
        dataspace.observe(turn, TopicFilter("t"), Before(mailbox))
