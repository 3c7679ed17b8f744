"""What a subscription says to its readers, and what it does when they are away."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import (
    Account,
    Ledger,
    Limit,
    Outcome,
    Quota,
    QuotaExceededError,
    StuckPolicy,
    Tracer,
    overdue,
)
from clearfunds.dataspace import Dataspace, Publication, capture
from clearfunds.ranges.log import (
    AtRest,
    RangeSubscription,
    Row,
    SubscriptionLimits,
    SubscriptionOptions,
    Subscriptions,
    as_row,
    merge_blocks,
)
from clearfunds.ranges.log._chunk import ROW_BYTES
from clearfunds.ranges.wire import (
    AfterGrace,
    DataLossError,
    FencedError,
    OpenBlock,
    OtherIncarnationError,
    OutOfRangeError,
    RefusedError,
    Start,
)
from clearfunds.testing import Clock
from tests.dataspace.conftest import STEADY, inside
from tests.ranges.log.confirms import Told
from tests.ranges.log.conftest import publish, publish_run, rows
from tests.ranges.log.memory_log import MemoryDisk

A = Publication("a", b"1")
DURABLE = SubscriptionOptions(durable=True)


@pytest.fixture
def subscriptions(dataspace: Dataspace, server: Account) -> Subscriptions:
    """Subscriptions that stay in RAM."""
    return Subscriptions(dataspace, server, wall=lambda: 77)


def durable(
    dataspace: Dataspace, server: Account, disk: MemoryDisk, **limits: Any
) -> Subscriptions:
    """Subscriptions that may go to disk."""
    root = dataspace.ledger.open("disk")
    return Subscriptions(
        dataspace, server, disk=root, open_log=disk.open, limits=SubscriptionLimits(**limits)
    )


# -- reading -------------------------------------------------------------------------------------


def test_rows_have_numbers_accounts_topics_payloads_and_times(
    dataspace: Dataspace, server: Account, publisher: Account, subscriptions: Subscriptions
) -> None:
    subscription = subscriptions.open("s", ["a/+", "b"])
    other = dataspace.ledger.open("\udc80other", parent=server)  # from a name that is not UTF-8
    publish(dataspace, publisher, Publication("a/ü", b"\xff", 2), Publication("x", b"nobody's"))
    publish_run(dataspace, other, [Publication("b", b""), Publication("b", b"22")])
    publish(dataspace, publisher, Publication("b", b"3", retain=True))
    blocks = subscription.fetch(1, 100)
    assert isinstance(blocks, list)
    assert [(r.number, r.account, r.key, r.value, r.time) for r in rows(blocks)] == [
        (1, "publisher", "a/ü".encode(), b"\xff", 77),
        (2, "\\udc80other", b"b", b"", 77),
        (3, "\\udc80other", b"b", b"22", 77),
        (4, "publisher", b"b", b"3", 77),
    ]
    assert [loan.account for loan in subscription.loans()] == [publisher, other]
    subscription.ack(4)
    # As old as the first of its account's.
    assert [(loan.account, loan.items) for loan in subscription.loans()] == [(publisher, 1)]
    subscription.ack(5)
    assert publisher.debt_items == publisher.debt_bytes == server.debt_items == 0
    assert dataspace.ledger.repaid_items[Outcome.ACKED] == 4


def test_what_is_traced_is_a_loan_of_its_own(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions
) -> None:
    subscription = subscriptions.open("s", ["a"])
    publish(dataspace, publisher, A)
    with Tracer(dataspace.ledger, "publisher".__eq__, events=2) as tracer:
        publish(dataspace, publisher, *[A] * 4)
        assert [loan.items for loan in subscription.loans()] == [3, 1, 1]
        blocks = subscription.fetch(1, 100)
        assert isinstance(blocks, list)
        found = [(row.number, row.account) for row in rows(blocks)]
        assert found == [(number, "publisher") for number in range(1, 6)]
        subscription.ack(3)
        assert [notes.complete for notes in dataspace.ledger.traces] == [False]
        subscription.ack(6)
        assert [trace.outcomes for trace in tracer.rest()] == 2 * [{Outcome.ACKED: 1}]
    subscriptions.close()
    subscriptions.close()
    assert dataspace.statistics().subscriptions == 0


def test_a_range_has_to_be_one(subscriptions: Subscriptions) -> None:
    subscription = subscriptions.open("s", ["a"])
    with pytest.raises(OutOfRangeError, match="not at 1 before 2"):
        subscription.fetch(2, 1)
    assert subscription.head() == (1, 1)
    assert subscription.fetch(1, 1) == subscription.fetch(1, 5) == []


def test_an_answer_has_at_least_one_block_and_not_many_more_bytes_than_asked_for(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions
) -> None:
    subscription = subscriptions.open("s", ["a"])
    for _ in range(6):
        publish(dataspace, publisher, Publication("a", bytes(40_000)))
    blocks = subscription.fetch(1, 7, 0)
    assert isinstance(blocks, list)
    assert [row.number for row in rows(blocks)] == [1, 2]
    blocks = subscription.fetch(2, 7, 130_000)
    assert isinstance(blocks, list)
    assert [row.number for row in rows(blocks)] == [2, 3, 4]


def test_patterns_are_observed_as_rows(dataspace: Dataspace, publisher: Account) -> None:
    # Bound by hand: `Subscriptions` binds to topic filters.
    subscriptions = Subscriptions(dataspace, publisher, row=lambda e: Row(b"k", str(e).encode()))
    subscription = subscriptions.open("s", ["nothing"])
    with dataspace.observed(publisher, ("x", capture()), subscription):
        with publisher.turn() as turn:
            turn.publish(dataspace, ("x", 5))
            turn.send(subscription, "by hand", items=3)
        dataspace.ledger.audit()
        blocks = subscription.fetch(1, 9)
    assert isinstance(blocks, list)
    assert [(r.key, r.value) for r in rows(blocks)] == [(b"k", b"(5,)"), (b"k", b"by hand")]
    assert subscription.unpaid_items == publisher.debt_items == 2
    subscriptions.close()


@pytest.mark.parametrize(
    ("event", "row"),
    [
        (Publication("a/b", b"\0"), Row(b"a/b", b"\0")),
        (b"raw", Row(b"", b"raw")),
        ("text", Row(b"", b"text")),
        (5, Row(b"int", b"5")),
        (SubscriptionOptions, Row(b"type", repr(SubscriptionOptions).encode())),
    ],
)
def test_what_becomes_of_an_event(event: object, row: Row) -> None:
    assert as_row(event) == row


def test_a_block_that_is_cut_short_is_refused(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions
) -> None:
    subscription = subscriptions.open("s", ["a"])
    publish(dataspace, publisher, A)
    blocks = subscription.fetch(1, 2)
    assert isinstance(blocks, list)
    assert len(blocks[0]) % 8 == 0
    with pytest.raises(ValueError, match="shorter than it says"):
        OpenBlock(blocks[0][:40])
    subscriptions.close()


# -- generations and pins ------------------------------------------------------------------------


def test_the_newest_attachment_wins(subscriptions: Subscriptions) -> None:
    subscription = subscriptions.open("s", ["a"])
    first = subscription.attach()
    second = subscription.attach()
    assert (first, second) == (1, 2)
    with pytest.raises(FencedError, match="generation 1 has ended, 2 has it now"):
        subscription.check(first)
    with pytest.raises(FencedError):
        subscription.resume(first, subscription.incarnation)
    subscription.check(second, subscription.incarnation)
    subscription.detach(first)  # by an older one it means nothing
    assert subscription.attached
    subscription.resume(second, subscription.incarnation)
    subscription.detach(second)
    assert subscription.attached  # by its other connection
    subscription.detach(second)
    assert not subscription.attached
    with pytest.raises(OtherIncarnationError, match="made anew"):
        subscription.resume(second, b"another")
    with pytest.raises(OutOfRangeError, match="no generation 3"):
        subscription.resume(3, subscription.incarnation)
    assert subscription.statistics().fenced == 3


def test_made_anew_it_is_another(subscriptions: Subscriptions) -> None:
    before = subscriptions.open("s", ["a"]).incarnation
    subscriptions.drop("s")
    assert subscriptions.open("s", ["a"]).incarnation != before


def test_where_to_begin_is_pinned(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions
) -> None:
    subscription = subscriptions.open("s", ["a"])
    publish(dataspace, publisher, A, A, A)
    assert subscription.start(Start.LATEST) == 4
    publish(dataspace, publisher, A, A)
    assert subscription.start(Start.LATEST) == 4
    subscription.ack(5)
    assert subscription.start(Start.LATEST) == 5
    assert subscription.start(Start.EARLIEST) == 5
    publish(dataspace, publisher, A)
    assert subscription.start(Start.EARLIEST) == 5
    assert subscription.start(Start.LATEST) == 7  # asked for anew
    subscriptions.close()


# -- making and finding --------------------------------------------------------------------------


def test_what_is_there_is_not_changed(subscriptions: Subscriptions) -> None:
    subscription = subscriptions.open("s", ["a", "b"], SubscriptionOptions(grace=1))
    assert subscriptions.open("s") is subscription
    assert subscriptions.open("s", ["b", "a"], SubscriptionOptions(grace=2)) is subscription
    assert subscription.options.grace == 2
    with pytest.raises(RefusedError, match=r"bound to a, b, not to a; choose another name"):
        subscriptions.open("s", ["a"])
    with pytest.raises(RefusedError, match=r"is not durable, and was asked for as durable"):
        subscriptions.open("s", options=DURABLE)


@pytest.mark.parametrize(
    ("name", "filters", "options", "why"),
    [
        ("s", (), None, "no subscription 's' here; attach with topic filters"),
        ("", ("a",), None, "cannot be a subscription's name"),
        ("s\n", ("a",), None, "has to be printable"),
        ("s" * 9, ("a",), None, r"not longer than 8 bytes \(max_name\)"),
        ("s", ("a", "b", "c"), None, r"2 are the limit \(max_filters\)"),
        ("s", ("a/#/b",), None, "MQTT-4.7.1-2"),
        ("s", ("a",), DURABLE, "this relay has no store"),
        ("s", ("a",), SubscriptionOptions(grace=-1), "its grace cannot be -1"),
        ("s", ("a",), SubscriptionOptions(grace=float("nan")), "its grace cannot be nan"),
    ],
)
def test_what_cannot_be_made_is_refused(
    dataspace: Dataspace,
    server: Account,
    name: str,
    filters: tuple[str, ...],
    options: SubscriptionOptions | None,
    why: str,
) -> None:
    subscriptions = Subscriptions(
        dataspace, server, limits=SubscriptionLimits(max_name=8, max_filters=2)
    )
    with pytest.raises(RefusedError, match=why):
        subscriptions.open(name, filters, options)
    assert len(subscriptions) == 0
    assert set(dataspace.ledger.accounts) == {"server"}


def test_there_may_be_so_many(dataspace: Dataspace, server: Account) -> None:
    limits = SubscriptionLimits(max_subscriptions=1)
    subscriptions = Subscriptions(dataspace, server, limits=limits)
    subscriptions.open("s", ["a"])
    with pytest.raises(RefusedError, match=r"1 subscriptions are the limit"):
        subscriptions.open("t", ["a"])
    subscriptions.drop("s")
    subscriptions.open("t", ["a"])
    assert [each.subscription for each in subscriptions] == ["t"]


def test_what_cannot_be_bound_leaves_nothing() -> None:
    ledger = Ledger(quota=Quota(items=1))
    dataspace = Dataspace(ledger)
    disk = MemoryDisk()
    subscriptions = durable(dataspace, ledger.open("server"), disk)
    with pytest.raises(QuotaExceededError):
        subscriptions.open("s", ["a", "b"], DURABLE)
    disk.logs["s"].sync()
    assert not disk.logs
    assert set(ledger.accounts) == {"server", "disk"}
    assert len(subscriptions) == dataspace.statistics().subscriptions == 0
    ledger.audit()


# -- nobody there --------------------------------------------------------------------------------


def test_within_its_grace_nothing_happens(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions, clock: Clock
) -> None:
    options = SubscriptionOptions(grace=10, after_grace=AfterGrace.DROP)
    subscription = subscriptions.open("s", ["a"], options)
    generation = subscription.attach()
    publish(dataspace, publisher, A)
    clock.now += 100
    assert subscriptions.look_for_the_lost() == []  # one that is attached may take its time
    subscription.detach(generation)
    clock.now += 9
    subscription.check(generation)  # somebody who shares it asks: it is not forgotten
    clock.now += 9
    assert subscriptions.look_for_the_lost() == []
    assert subscription.statistics().away_seconds == 9
    clock.now += 2
    assert subscriptions.look_for_the_lost() == [subscription]
    assert len(subscriptions) == publisher.debt_items == 0
    assert dataspace.ledger.repaid_items[Outcome.DROPPED] == 1
    assert repr(subscription) == "<RangeSubscription s: closed, 2..2>"
    publish(dataspace, publisher, A)  # it concerns nobody now
    assert dataspace.unrouted == 1


def test_held_debt_is_held(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions, clock: Clock
) -> None:
    subscription = subscriptions.open("s", ["a"], SubscriptionOptions(grace=10))
    publish(dataspace, publisher, A)
    clock.now += 1000
    assert subscriptions.look_for_the_lost() == []
    assert publisher.debt_items == 1
    subscription.attach()
    assert isinstance(blocks := subscription.fetch(1, 2), list)
    assert len(blocks) == 1
    subscriptions.close()
    assert dataspace.ledger.repaid_items[Outcome.CANCELLED] == 1


def test_what_is_written_off_is_a_loss_that_is_seen(
    dataspace: Dataspace, publisher: Account, server: Account, clock: Clock
) -> None:
    disk = MemoryDisk()
    subscriptions = durable(dataspace, server, disk)
    options = attrs.evolve(DURABLE, grace=10, after_grace=AfterGrace.WRITE_OFF)
    subscription = subscriptions.open("s", ["a"], options)
    publish(dataspace, publisher, A, A)
    clock.now += 11
    assert subscriptions.look_for_the_lost() == [subscription]
    assert dataspace.ledger.repaid_items[Outcome.WRITTEN_OFF] == 2
    log = disk.logs["s"]
    log.sync()
    publish(dataspace, publisher, A)
    # A reader that had got up to there finds out, should the process end now.
    log.sync()
    assert log.low == subscription.low == 4
    publish(dataspace, publisher, A)
    assert not log.pending  # once is enough
    assert dataspace.ledger.repaid_items[Outcome.DROPPED] == 2
    assert subscriptions.look_for_the_lost() == []
    subscription.attach()
    publish(dataspace, publisher, A)
    assert subscription.statistics().lost == 4
    with pytest.raises(DataLossError, match="messages 1 to 4"):
        subscription.fetch(1, 5)
    log.sync()
    assert log.low == subscription.low == 5
    subscriptions.close()


def test_who_publishes_is_told_of_in_the_log_and_not_cut_off(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions, clock: Clock
) -> None:
    subscription = subscriptions.open("s", ["a"])
    publish(dataspace, publisher, A)
    assert subscription.policy == "wait"
    assert overdue(dataspace.ledger, clock.now + 100) == []  # nobody waits
    subscriptions.close()


def blocks_of(subscription: RangeSubscription, start: int, end: int) -> list[bytes]:
    """Return what is in RAM of a range."""
    found = subscription.fetch(start, end)
    assert not isinstance(found, AtRest)
    return found


def kept_by(dataspace: Dataspace) -> int:
    """Return how many messages are owed for by who is behind."""
    lagging = dataspace.ledger.accounts.get("behind")
    return 0 if lagging is None else lagging.debt_items


def test_behind_it_owes_itself_for_the_latest_and_drops_the_oldest(
    dataspace: Dataspace, server: Account, publisher: Account
) -> None:
    limits = SubscriptionLimits(
        retain_limit=Limit(items=8, bytes=None), stuck=StuckPolicy.DROP_OLDEST
    )
    subscriptions = Subscriptions(dataspace, server, limits=limits)
    subscription = subscriptions.open("s", ["a"])
    publish(dataspace, publisher, *[A] * 20)
    assert publisher.debt_items == 20
    subscription.relieve("it acknowledges nothing")
    assert (publisher.debt_items, kept_by(dataspace)) == (0, 7)
    assert subscription.head() == (14, 21)
    publish(dataspace, publisher, A)
    publish_run(dataspace, publisher, [A, A, A])
    assert publisher.debt_items == 0
    assert subscription.head() == (18, 25)
    with pytest.raises(DataLossError):
        subscription.fetch(1, 2)
    assert [row.number for row in rows(blocks_of(subscription, 18, 25))] == [*range(18, 25)]
    dataspace.ledger.audit()
    # One acknowledgement now and then is no catching up.
    subscription.ack(19)
    assert subscription.lagging
    publish(dataspace, publisher, A)
    assert publisher.debt_items == 0
    subscription.ack(24)
    assert not subscription.lagging
    publish(dataspace, publisher, A)
    assert (publisher.debt_items, kept_by(dataspace)) == (1, 2)
    subscription.ack(27)
    assert subscription.relief.dropped_items == 17
    assert subscription.relief.spells == 1
    assert "behind" not in dataspace.ledger.accounts
    dataspace.ledger.audit()
    subscription.relieve("again")
    subscription.shut()
    assert not subscription.lagging
    subscriptions.close()
    assert "behind" not in dataspace.ledger.accounts


def test_behind_on_disk_the_oldest_makes_room(
    dataspace: Dataspace, server: Account, publisher: Account
) -> None:
    disk = MemoryDisk()
    large = Publication("a", bytes(1_000))
    policy = StuckPolicy.DISCONNECT
    subscriptions = durable(dataspace, server, disk, max_disk_bytes=22_000, stuck=policy)
    subscription = subscriptions.open("s", ["a"], DURABLE)
    log = disk.logs["s"]

    def publish_and_write(count: int) -> None:
        for _ in range(count):
            publish(dataspace, publisher, large)
            subscription.write()
            subscription.durable(log.sync())

    publish_and_write(25)
    waiting = publisher.debt_items
    assert waiting > 0, "its publishers wait for its reader"
    subscription.give_up("it acknowledges nothing")
    subscription.durable(log.sync())
    assert publisher.debt_items == 0
    assert subscription.low >= waiting
    publish_and_write(50)
    assert publisher.debt_items == 0
    assert subscription.next == 76
    assert subscription.low > 50
    assert subscription.account.debt_bytes <= 22_000
    dataspace.ledger.audit()
    subscription.ack(subscription.low + 1)
    assert subscription.lagging
    subscription.ack(70)
    assert not subscription.lagging
    # What was acknowledged, or dropped, is not on the disk any more.
    log.sync()
    assert (min(log.records), log.low) == (70, 70)
    subscriptions.close()
    dataspace.ledger.audit()


def test_given_up_its_readers_are_cut_off(
    dataspace: Dataspace, publisher: Account, subscriptions: Subscriptions
) -> None:
    said: list[tuple[RangeSubscription, str]] = []

    def hear(given_up: RangeSubscription, why: str) -> None:
        said.append((given_up, why))

    subscriptions.on_given_up = hear
    subscription = subscriptions.open("s", ["a"])
    publish(dataspace, publisher, A)
    subscription.give_up("because")
    assert said == [(subscription, "because")]
    assert (publisher.debt_items, kept_by(dataspace)) == (0, 1)
    subscriptions.close()
    assert "behind" not in dataspace.ledger.accounts
    dataspace.ledger.audit()


def test_beyond_its_limit_the_oldest_are_written_off(
    dataspace: Dataspace, server: Account, publisher: Account
) -> None:
    limits = SubscriptionLimits(max_items=4, max_bytes=200_000)
    subscriptions = Subscriptions(dataspace, server, limits=limits)
    subscription = subscriptions.open("s", ["a"])
    publish(dataspace, publisher, *(Publication("a", bytes(70_000)) for _ in range(3)))
    assert subscription.head() == (2, 4)
    publish_run(dataspace, publisher, [A, A, A])
    assert subscription.head() == (3, 7)
    assert subscription.unpaid_items == publisher.debt_items == 4
    assert subscription.statistics().lost == 2
    subscriptions.close()


# -- the disk ------------------------------------------------------------------------------------


def test_at_rest_its_own_account_owes(
    dataspace: Dataspace, server: Account, publisher: Account
) -> None:
    ledger = dataspace.ledger
    disk = MemoryDisk()
    subscriptions = durable(dataspace, server, disk, cache_bytes=0)
    subscription = subscriptions.open("s", ["a"], DURABLE)
    log = disk.logs["s"]
    publish(dataspace, publisher, A, A)
    assert log.called_dirty == 1
    assert subscription.head() == (1, 1)
    subscription.write()
    assert publisher.debt_items == 2
    assert subscription.head() == (1, 1)  # it might not be there after a restart
    subscription.durable(log.sync())
    assert (publisher.debt_items, server.debt_items) == (0, 0)
    assert ledger.repaid_items[Outcome.STORED] == 2
    disk_account = ledger.accounts["disk"]
    assert disk_account.debt_items == subscription.account.debt_items == 2
    assert disk_account.debt_bytes == log.nbytes
    assert subscription.head() == (1, 3)
    wanted = subscription.fetch(2, 3)
    assert wanted == AtRest(2, 3)
    assert [row.number for row in rows(log.read(AtRest(2, 3)))] == [2]
    subscription.ack(2)
    assert disk_account.debt_items == 1
    subscription.ack(3)
    assert disk_account.debt_bytes == 0
    log.sync()
    assert log.records == {}
    subscriptions.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_comes_exactly_once_is_written_before_anything_else_is(
    dataspace: Dataspace, server: Account, publisher: Account, qos: int
) -> None:
    disk = MemoryDisk()
    subscription = durable(dataspace, server, disk).open("s", ["a"], DURABLE)
    log = disk.logs["s"]
    log.sync()
    confirm = Told()
    with publisher.turn(A, confirm=confirm) as turn:
        turn.publish(dataspace, Publication("a", b"1", qos))
    # Whoever notes, after the turn, which packet it was, does so behind it.
    assert len(log.pending) == (qos == 2)
    subscription.write()
    assert (confirm.expected, confirm.was_taken) == (1, 0)
    subscription.durable(log.sync())
    assert confirm.was_taken == 1
    subscription.ack(2)


def test_what_is_known_of_the_disk_is_little(
    dataspace: Dataspace, server: Account, publisher: Account
) -> None:
    disk = MemoryDisk()
    subscriptions = durable(dataspace, server, disk, cache_bytes=200)
    subscription = subscriptions.open("s", ["a"], DURABLE)
    log = disk.logs["s"]
    for number in range(100):
        publish(dataspace, publisher, Publication("a", b"%d" % number))
        subscription.write()
        subscription.durable(log.sync())
    assert len(log.records) == 100
    chunks = inside(subscription, "_buffer").chunks
    assert len(chunks) == 3  # two of which are in RAM as well
    wanted = subscription.fetch(50, 101)
    assert wanted == AtRest(50, 101)
    subscription.ack(60)
    dataspace.ledger.audit()
    assert [row.number for row in rows(log.read(AtRest(60, 63)))] == [60, 61, 62]
    subscription.ack(101)
    assert dataspace.ledger.accounts["disk"].debt_bytes == 0
    subscriptions.close()


def reached(values: list[bytes], start: int, most: int) -> int:
    """Count: before which number messages on topic `a`, from 1 on, have that many bytes."""
    end = start
    while end <= len(values) and (most := most - len(values[end - 1]) - 1 - ROW_BYTES) >= 0:
        end += 1
    return min(max(end, start + 1), len(values) + 1)


@settings(STEADY, max_examples=30)
@given(
    st.lists(st.integers(0, 30_000), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(0, 200_000),
    st.booleans(),
)
def test_how_far_so_many_bytes_reach(sizes: list[int], start: int, most: int, seal: bool) -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    publisher = ledger.open("publisher")
    subscription = Subscriptions(dataspace, ledger.open("server")).open("s", ["a"])
    values = [bytes(size) for size in sizes]
    for value in values:
        publish(dataspace, publisher, Publication("a", value))
        if seal:
            subscription.seal_tail()
    start = 1 + start % (len(values) + 1)
    found = subscription.reach(start, most)
    wanted = reached(values, start, most)
    if found != wanted:
        # A sealed chunk counts with its header and the names of its accounts: less is found.
        blocks = inside(subscription, "_buffer").chunks
        assert start < found < wanted
        assert wanted == reached(values, start, most)
        assert found >= reached(values, start, most - 100 * len(blocks))
    subscription.ack(start)
    assert subscription.reach(start, most) == found
    if start > 1:
        with pytest.raises(DataLossError):
            subscription.reach(start - 1, most)
    with pytest.raises(OutOfRangeError):
        subscription.reach(len(values) + 2, most)


def test_how_far_bytes_reach_on_disk_goes_by_the_average(
    dataspace: Dataspace, server: Account, publisher: Account
) -> None:
    disk = MemoryDisk()
    subscriptions = durable(dataspace, server, disk, cache_bytes=0)
    subscription = subscriptions.open("s", ["a"], DURABLE)
    log = disk.logs["s"]
    for number in range(100):
        publish(dataspace, publisher, Publication("a", bytes(80)))
        if number % 10 == 9:
            subscription.write()
            subscription.durable(log.sync())
    each = log.nbytes / 100
    for start in (1, 50, 55, 100):
        for wanted in (1, 7, 30, 200):
            found = subscription.reach(start, int(each * (wanted + 0.5)))
            assert abs(found - min(start + wanted, 101)) <= 1
    # As much as it is known of after a restart.
    subscriptions.close()
    again = durable(dataspace, server, disk, cache_bytes=0).restore(
        "s", log.state, low=1, following=101, nbytes=log.nbytes
    )
    assert again.reach(11, int(each * 20.5)) == 31
    assert again.reach(101, 5) == 101
    again.close()


def test_small_blocks_are_put_together(
    dataspace: Dataspace, server: Account, publisher: Account, subscriptions: Subscriptions
) -> None:
    subscription = subscriptions.open("s", ["a"])
    others = [dataspace.ledger.open(f"p{n}", parent=server) for n in range(3)]
    blocks: list[bytes] = []
    for number in range(40):
        account = others[number // 3 % 3]
        publish(dataspace, account, Publication("a", b"%d" % number * number))
        found = subscription.fetch(number + 1, number + 2)
        assert isinstance(found, list)
        blocks += found
    for size in (1, 300, 1 << 16):
        merged = merge_blocks(blocks, size)
        assert list(rows(merged)) == list(rows(blocks))
        assert max(map(len, merged)) <= max(size, max(map(len, blocks)))
        assert len(merged) == {1: 40, 1 << 16: 1}.get(size, len(merged))
    assert merge_blocks([]) == []
    subscriptions.close()


def test_what_it_keeps_of_itself_comes_back(
    dataspace: Dataspace, server: Account, publisher: Account
) -> None:
    disk = MemoryDisk()
    subscriptions = durable(dataspace, server, disk)
    options = attrs.evolve(DURABLE, grace=5.5, after_grace=AfterGrace.WRITE_OFF)
    subscription = subscriptions.open("s", ["a", "b/#"], options)
    subscription.attach()
    subscription.start(Start.LATEST)
    publish(dataspace, publisher, A, A, A)
    subscription.write()
    log = disk.logs["s"]
    subscription.durable(log.sync())
    subscription.ack(2)
    log.sync()
    incarnation = subscription.incarnation
    subscriptions.close()
    assert dataspace.ledger.statistics().debt_items == 0
    found = subscriptions.restore(
        "s", log.state, low=log.low, following=log.following, nbytes=log.nbytes
    )
    assert (found.filters, found.options) == (("a", "b/#"), options)
    assert (found.generation, found.incarnation) == (1, incarnation)
    assert found.start(Start.LATEST) == 2
    assert found.head() == (2, 4)
    statistics = found.statistics()
    assert (statistics.recovered, statistics.rest_items, statistics.durable) == (2, 2, True)
    assert statistics.rest_bytes == log.nbytes
    dataspace.ledger.audit()
    publish(dataspace, publisher, A)
    found.write()
    found.durable(log.sync())
    assert found.head() == (2, 5)
    subscriptions.drop("s")
    log.sync()
    assert not disk.logs
    assert dataspace.ledger.statistics().debt_items == 0


@pytest.mark.parametrize(
    "state", [b"", b"[]", b"{}", b'{"incarnation": "00", "generation": null}', b"\xff"]
)
def test_what_is_no_state_is_refused(dataspace: Dataspace, server: Account, state: bytes) -> None:
    subscriptions = durable(dataspace, server, MemoryDisk())
    with pytest.raises(ValueError, match=r"is not one|Expecting|decode|codec"):
        subscriptions.restore("s", state, low=1, following=3, nbytes=10)
    assert len(subscriptions) == 0
    assert set(dataspace.ledger.accounts) == {"server", "disk"}
