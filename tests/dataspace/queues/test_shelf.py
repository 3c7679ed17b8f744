"""A queue with a disk: what is confirmed, what is at rest, what is in RAM, what a restart finds."""

from __future__ import annotations

import logging
import weakref

import pytest

from clearfunds.accounts import NO_LIMIT, Limit, Outcome, Turn
from clearfunds.accounts._loan import JOIN_BYTES
from clearfunds.dataspace import Publication, TopicFilter
from clearfunds.dataspace.queues import (
    Channel,
    DeadLetter,
    DeathReason,
    Marks,
    MemoryShelf,
    Message,
    Overflow,
    Queue,
    QueueSettings,
    SteadyBacking,
)
from tests.accounts.conftest import Settled
from tests.dataspace.queues.conftest import Bench, Worker

# -- rest, and confirms ---------------------------------------------------------------------------


def test_at_rest_it_is_repaid_as_stored_and_confirmed(bench: Bench) -> None:
    queue, shelf = bench.durable()
    heard = bench.publish("a")
    assert (heard.expected, heard.answers) == (1, [])
    assert bench.publisher.debt_items == 1
    shelf.sync()
    bench.ledger.audit()
    assert heard.answers == ["taken"]
    assert bench.repaid(Outcome.STORED) == 1
    assert not bench.publisher.debt_items
    assert (bench.disk.debt_items, bench.disk.debt_bytes) == (1, 2)
    numbers = queue.statistics()
    assert (numbers.disk_items, numbers.disk_bytes) == (1, 2)


def test_what_comes_to_rest_together_is_owed_for_twice_in_parts_only(bench: Bench) -> None:
    top = bench.ledger.open("top", limit=NO_LIMIT)
    publisher = bench.ledger.open("top/publisher", limit=NO_LIMIT, parent=top)
    disk = bench.ledger.open("top/disk", limit=NO_LIMIT, parent=top)
    shelf = MemoryShelf()
    queue = Queue(
        bench.ledger, "all", account=disk, settings=QueueSettings(durable=True), shelf=shelf
    )
    shelf.recover(queue)
    for _ in range(1_000):
        with publisher.turn(b"") as turn:
            turn.send(queue, Publication("t", bytes(999), qos=1))
    owed = top.debt_bytes
    assert top.debt_items == 1_000
    top.peak_bytes = 0
    shelf.sync()
    assert (publisher.debt_items, disk.debt_items, disk.debt_bytes) == (0, 1_000, owed)
    assert owed < top.peak_bytes < owed + 2 * JOIN_BYTES
    bench.ledger.audit()


@pytest.mark.rule(3)
def test_the_queue_borrows_before_the_publisher_is_repaid(bench: Bench) -> None:
    """Children before parent (rule 3): what both owe never dips."""
    _, shelf = bench.durable()
    bench.publish("a")
    lowest: list[int] = []
    repay = type(bench.publisher).repay

    class Watching(type(bench.publisher)):  # type: ignore[misc]
        __slots__ = ()

        def repay(self, *args: object, **more: object) -> None:
            repay(self, *args, **more)  # type: ignore[arg-type] # pyright: ignore
            lowest.append(bench.publisher.debt_items + bench.disk.debt_items)

    bench.publisher.__class__ = Watching
    shelf.sync()
    assert lowest == [1]


def test_one_loan_covers_all_that_is_at_rest(bench: Bench) -> None:
    queue, shelf = bench.durable()
    bench.publish(*"abcdef")
    shelf.sync()
    (loan,) = queue.loans()
    assert (loan.items, loan.bytes, loan.account) == (6, 12, queue.account)
    worker = Worker(queue, 2)
    shelf.settle()
    assert [(loan.items, loan.bytes) for loan in queue.loans()] == [(4, 8), (1, 2), (1, 2)]
    assert all(delivery.loan.account is queue.account for delivery in worker.got)
    worker.channel.close()
    (loan,) = queue.loans()
    assert loan.items == 6


def test_a_delivery_that_comes_to_rest_changes_accounts_where_it_is(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue)
    heard = bench.publish("a")
    loan = worker.got[0].loan
    assert loan.account is bench.publisher
    shelf.sync()
    assert worker.got[0].loan is loan
    assert loan.account is queue.account
    assert loan.items == 1
    assert heard.answers == ["taken"]
    assert bench.repaid(Outcome.STORED) == 1
    worker.channel.nack(1)
    assert worker.got[1].loan.account is queue.account
    worker.channel.ack(2)
    assert not bench.disk.debt_items
    assert not len(shelf)


def test_where_a_loan_changes_accounts_one_ends_and_another_begins(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue)
    bench.publish("a")
    bench.now = 3.0
    shelf.sync()
    bench.now = 7.0
    worker.channel.ack(1)
    stored, acked = [each for each in bench.recording.settlements if each.holder == queue.name]
    kind, account = queue.kind, queue.account.name
    assert stored == Settled("publisher", queue.name, kind, 1, 2, Outcome.STORED, 0.0)
    assert acked == Settled(account, queue.name, kind, 1, 2, Outcome.ACKED, 3.0)


def test_what_came_to_rest_before_it_was_delivered_is_recorded_twice_too(bench: Bench) -> None:
    queue, shelf = bench.durable()
    bench.publish("a")
    bench.now = 3.0
    shelf.sync()
    worker = Worker(queue)
    bench.now = 5.0
    shelf.settle()
    worker.channel.ack(1)
    stored, acked = [each for each in bench.recording.settlements if each.holder == queue.name]
    kind, account = queue.kind, queue.account.name
    assert stored == Settled("publisher", queue.name, kind, 1, 2, Outcome.STORED, 0.0)
    # It is taken out of what is at rest when it is delivered.
    assert acked == Settled(account, queue.name, kind, 1, 2, Outcome.ACKED, 5.0)


def test_what_is_acked_before_it_is_durable_is_confirmed_at_once(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue)
    heard = bench.publish("a")
    worker.channel.ack(1)
    assert heard.answers == ["taken"]
    assert not len(shelf)
    shelf.sync()
    assert bench.repaid(Outcome.STORED) == 0
    assert heard.answers == ["taken"]
    assert not len(queue)


def test_what_nobody_acknowledges_is_not_written_at_all(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue, no_ack=True)
    written = shelf.last_ticket
    heard = bench.publish(*"ab")
    assert worker.names == [*"ab"]
    assert heard.answers == ["taken", "taken"]
    assert shelf.last_ticket == written


def test_what_need_not_be_stored_is_confirmed_at_once(bench: Bench) -> None:
    bench.durable()
    assert bench.publish("a", qos=0).expected == 0
    bench.queue("other", topic="other")
    assert bench.publish("a", topic="other").expected == 1  # of the durable one, bound to all


@pytest.mark.parametrize("durable", [True, False])
def test_purged_and_deleted_counts_as_taken(bench: Bench, durable: bool) -> None:
    queue, shelf = bench.durable()
    heard = [bench.publish(name) for name in "ab"]
    if durable:
        shelf.sync()
    queue.purge()
    assert [h.answers for h in heard] == [["taken"]] * 2
    late = bench.publish("c")
    queue.delete()
    assert late.answers == ["taken"]
    assert not len(shelf)
    assert not bench.disk.debt_items


def test_a_queue_that_is_not_durable_only_pages(bench: Bench) -> None:
    shelf = MemoryShelf()
    queue = bench.queue(shelf=shelf)
    assert bench.publish("a").expected == 0
    assert not len(shelf)
    bench.publish(*"bc")
    assert len(shelf) == 2
    shelf.sync()
    # Whoever may be let go of is, and who is paged out is at rest.
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (1, 2)
    worker = Worker(queue)
    shelf.settle()
    assert worker.names == [*"abc"]


# -- the disk budget ------------------------------------------------------------------------------


def test_when_the_budget_is_spent_publishers_pay_again(bench: Bench) -> None:
    queue, shelf = bench.durable(budget=Limit(items=2, bytes=None))
    heard = [bench.publish(name) for name in "abcd"]
    shelf.settle()
    assert [h.answers for h in heard] == [["taken"], ["taken"], [], []]
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (2, 2)
    assert queue.statistics().unwritten == 2
    worker = Worker(queue, 1)
    shelf.settle()
    assert worker.names == ["a"]
    worker.channel.ack(1)
    shelf.settle()
    assert heard[2].answers == ["taken"]
    assert heard[3].answers == []
    assert worker.names == [*"ab"]
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (1, 2)
    queue.account.limit = Limit(items=3, bytes=None)
    bench.wait(0)
    shelf.settle()
    assert heard[3].answers == ["taken"]
    worker.channel.ack(2)
    shelf.settle()
    worker.channel.ack(3)
    shelf.settle()
    assert worker.names == [*"abcd"]


def test_the_budget_in_bytes_counts_what_is_on_its_way(bench: Bench) -> None:
    _, shelf = bench.durable(budget=Limit(items=None, bytes=5))
    bench.publish(*"abc")
    assert len(shelf) == 2  # of 2 bytes each
    shelf.settle()
    assert bench.disk.debt_bytes == 4


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("overflow", [Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH])
def test_what_is_more_than_the_whole_budget_holds_up_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture, overflow: Overflow, above: bool
) -> None:
    budget = Limit(items=None, bytes=100)
    if above:
        bench.disk.limit = budget
    died: list[DeadLetter] = []

    def bury(_: Turn, letter: DeadLetter) -> None:
        died.append(letter)

    queue, shelf = bench.durable(
        budget=NO_LIMIT if above else budget, overflow=overflow, dead_letter=bury
    )
    heard = [bench.publish(name) for name in ("a", "x" * 100, "x" * 100, "b")]
    shelf.settle()
    sentence = (
        "a message of 101 bytes is more than queue queue may have on disk at all, 100: "
        "publish smaller ones, or raise its disk budget"
    )
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == [sentence]
    if overflow is Overflow.DROP_HEAD:
        assert [each.answers for each in heard] == [["taken"]] * 4
        assert [letter.reason for letter in died] == [DeathReason.MAX_LENGTH] * 2
        assert queue.counters.dropped == 2
    else:
        assert [each.answers for each in heard] == [["taken"], [sentence], [sentence], ["taken"]]
        assert not died
        assert queue.counters.refused == 2
    assert bench.publisher.debt_items == 0
    worker = Worker(queue)
    shelf.settle()
    assert worker.names == [*"ab"]
    assert [message.event.payload for message in shelf.messages] == [b"a", b"b"]


def test_what_is_more_than_the_whole_budget_is_delivered_if_somebody_has_room(
    bench: Bench,
) -> None:
    queue, shelf = bench.durable(budget=Limit(items=None, bytes=100))
    worker = Worker(queue, 2)
    shelf.settle()
    large, small = bench.publish("x" * 100), bench.publish("a")
    shelf.settle()
    # It does not wait for room, and so neither does what comes after it.
    assert worker.names == ["x" * 100, "a"]
    assert (large.answers, small.answers) == ([], ["taken"])
    assert bench.publisher.debt_bytes == 101
    worker.got[0].ack()
    assert large.answers == ["taken"]
    assert bench.publisher.debt_bytes == 0


def test_what_is_more_than_a_budget_that_was_cut_holds_up_nobody(bench: Bench) -> None:
    queue, shelf = bench.durable(budget=Limit(items=1, bytes=None))
    bench.publish("a")
    large, small = bench.publish("x" * 100), bench.publish("b")
    shelf.settle()
    queue.account.limit = Limit(items=None, bytes=100)
    worker = Worker(queue, 1)
    shelf.settle()
    worker.got[0].ack()
    shelf.settle()
    assert worker.names == ["a", "x" * 100]
    assert (large.answers, small.answers) == ([], ["taken"])
    assert [message.event.payload for message in shelf.messages] == [b"b"]
    worker.got[1].ack()
    assert worker.names == ["a", "x" * 100, "b"]
    assert large.answers == ["taken"]


def test_nobody_overtakes_those_who_wait_for_room(bench: Bench) -> None:
    _, shelf = bench.durable(budget=Limit(items=None, bytes=5))
    bench.publish("a", "bbbb", "c")
    assert [message.seq for message in shelf.messages] == [1]


def test_what_could_not_be_written_keeps_its_place(bench: Bench) -> None:
    queue, shelf = bench.durable(budget=Limit(items=2, bytes=None))
    bench.publish(*"abcd", qos=0)
    assert queue.backing.statistics().ready_in_ram == 2  # the first, and one that found no room
    queue.account.limit = Limit(items=10, bytes=None)
    bench.publish("e", qos=0)
    worker = Worker(queue)
    shelf.settle()
    assert worker.names == [*"abcde"]


def test_what_was_dealt_with_before_there_was_room_is_not_written(bench: Bench) -> None:
    queue, shelf = bench.durable(budget=Limit(items=0, bytes=None))
    worker = Worker(queue)
    bench.publish(*"ab")
    worker.channel.ack(1)
    queue.account.limit = Limit(items=10, bytes=None)
    bench.wait(0)
    assert [message.seq for message in shelf.messages] == [2]


def test_what_is_done_with_is_not_kept_because_another_waits_for_room(bench: Bench) -> None:
    queue, _ = bench.durable(budget=Limit(items=0, bytes=None))
    worker = Worker(queue)
    bench.publish("waits")
    kept: list[weakref.ref[object]] = []
    for _ in range(1000):
        bench.publish("x")
        kept.append(weakref.ref(worker.got[-1].message))
        worker.got.pop().ack()
    assert sum(ref() is not None for ref in kept) < 200
    assert queue.statistics().unwritten == 1


def test_the_disk_in_trouble(bench: Bench) -> None:
    queue, shelf = bench.durable()
    queue.shelf_trouble("no space left on the device")
    heard = bench.publish("a")
    assert queue.statistics().trouble == "no space left on the device"
    assert not len(shelf)
    assert Worker(queue, 1).names == ["a"]
    queue.shelf_trouble(None)
    shelf.settle()
    assert heard.answers == ["taken"]
    assert bench.disk.debt_items == 1


def test_the_disk_in_trouble_and_a_queue_that_refuses(bench: Bench) -> None:
    queue, _ = bench.durable(overflow=Overflow.REJECT_PUBLISH)
    queue.shelf_trouble("no space left on the device")
    assert bench.publish("a").answers == ["no space left on the device"]
    assert bench.publish("b", qos=0).answers == ["taken"]
    assert queue.counters.refused == 1


def test_what_has_no_form_as_bytes_stays_in_ram(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Choosy(MemoryShelf):
        def put(self, message: Message) -> int:
            if not message.event.payload.islower():
                msg = f"{message.event.payload!r} cannot be stored"
                raise ValueError(msg)
            return super().put(message)

    shelf = Choosy()
    queue = bench.queue(shelf=shelf, durable=True)
    with caplog.at_level(logging.WARNING):
        heard = [bench.publish(name) for name in "aBCd"]
    assert "b'B' cannot be stored" in caplog.text
    assert [h.answers for h in heard] == [[], ["taken"], ["taken"], []]
    shelf.settle()
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (2, 2)
    worker = Worker(queue)
    shelf.settle()
    assert worker.names == [*"aBCd"]
    # Also if it is found out only when there is room.
    queue.account.limit = Limit(items=0, bytes=None)
    late = bench.publish("E")
    assert late.answers == []
    queue.account.limit = NO_LIMIT
    bench.wait(0)
    assert late.answers == ["taken"]


def test_a_shelf_that_fails_holds_up_nobody(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryShelf):
        def put(self, message: Message) -> int:
            if message.event.payload == b"b":
                raise KeyError("b")
            return super().put(message)

    shelf = Broken()
    queue = bench.queue(shelf=shelf, durable=True)
    heard = [bench.publish(name) for name in "abc"]
    assert [h.answers for h in heard] == [[], ["it could not be written: KeyError('b')"], []]
    assert "disk/queue: a message could not be written" in caplog.text
    worker = Worker(queue)
    shelf.settle()
    assert worker.names == [*"abc"]
    assert [h.answers for h in heard][::2] == [["taken"]] * 2
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (1, 2)


# -- in RAM and on disk ---------------------------------------------------------------------------


def steady(queue: Queue) -> SteadyBacking:
    assert isinstance(queue.backing, SteadyBacking)
    return queue.backing


def test_ram_follows_the_consumers_rate(bench: Bench) -> None:
    """min(1 + floor(2 * egress rate), 2048), as classic queues v2."""
    queue, shelf = bench.durable()
    backing = steady(queue)
    for egress, target in ((0.0, 1), (0.4, 1), (0.5, 2), (10.0, 21), (1e6, 2048)):
        queue.rates.egress = egress
        assert backing.target == target
    queue.rates.egress = 2.0
    bench.publish(*"abcdefghij")
    assert backing.statistics().ready_in_ram == 5
    assert backing.statistics().disk_only == 5
    assert backing.ram_bytes == 10
    shelf.sync()
    assert not shelf.wants  # nobody has asked


def test_the_tail_is_read_in_batches_ahead_of_need(bench: Bench) -> None:
    queue, shelf = bench.durable()
    queue.rates.egress = 2.0
    bench.publish(*"abcdefghijkl")
    shelf.sync()
    worker = Worker(queue, 2)
    shelf.sync()
    assert not shelf.wants
    worker.channel.ack(1)
    assert list(shelf.wants) == [(6, 3, 8 << 20)]
    worker.channel.ack(0, multiple=True)
    worker.channel.ack(0, multiple=True)
    assert worker.names == [*"abcde"]
    assert queue.waiting
    shelf.answer()
    assert worker.names == [*"abcdefg"]
    assert queue.backing.statistics().reads == 2
    for _ in range(9):
        shelf.settle()
        worker.channel.ack(0, multiple=True)
    assert worker.names == [*"abcdefghijkl"]
    assert queue.backing.statistics().paged_in == 7
    # What was read is never written back.
    assert queue.backing.statistics().paged_out == 7


def test_large_messages_fill_the_head_sooner(bench: Bench) -> None:
    queue, shelf = bench.durable()
    queue.rates.egress = 1e6
    bench.publish("x" * (9 << 20), "b", "c")
    assert queue.backing.statistics().disk_only == 2
    worker = Worker(queue)
    shelf.settle()
    assert len(worker.got) == 3


def test_what_is_read_before_it_is_durable_is_the_same_message(bench: Bench) -> None:
    queue, shelf = bench.durable()
    heard = [bench.publish(name) for name in "abc"]
    worker = Worker(queue)
    shelf.sync(shelf.last_ticket)
    del heard[0]
    late = bench.publish("d")
    while shelf.answer():
        pass
    assert worker.names == [*"abcd"]
    assert worker.got[-1].loan.account is bench.publisher
    shelf.sync()
    assert late.answers == ["taken"]


def test_what_comes_back_in_crowds_is_let_go_of(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue)
    bench.publish(*"abcdefgh")
    shelf.settle()
    assert queue.backing.ram_count == 8
    worker.channel.close()
    assert queue.backing.ram_count == 1
    assert queue.backing.statistics().paged_out == 7
    other = Worker(queue)
    shelf.settle()
    assert other.names == [*"abcdefgh"]
    assert all(delivery.redelivered for delivery in other.got)
    assert all(delivery.event is not None for delivery in other.got)


def test_an_answer_that_comes_after_a_purge(bench: Bench) -> None:
    queue, shelf = bench.durable()
    bench.publish(*"abc")
    shelf.sync()
    worker = Worker(queue, 1)
    shelf.sync()
    assert worker.names == ["a"]
    worker.channel.ack(1)
    assert shelf.wants
    queue.purge()
    bench.publish(*"xyz")
    shelf.settle()
    worker.channel.ack(0, multiple=True)
    shelf.settle()
    assert queue.counters.lost == 0
    assert worker.names == [*"axy"]


def test_what_the_disk_has_lost_is_counted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    queue, shelf = bench.durable()
    bench.publish(*"abcd")
    shelf.sync()
    shelf.done(range(2, 5))
    with caplog.at_level(logging.ERROR):
        worker = Worker(queue)
        shelf.settle()
    assert "3 messages are not to be found" in caplog.text
    assert worker.names == ["a"]
    assert queue.counters.lost == 3
    assert not len(queue)
    assert bench.disk.debt_items == 1
    bench.publish("e")
    assert worker.names == [*"ae"]


def test_what_came_back_and_was_lost(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue)
    bench.publish(*"abc")
    shelf.settle()
    worker.channel.close()
    shelf.done([3])
    other = Worker(queue)
    shelf.settle()
    assert other.names == [*"ab"]
    assert queue.counters.lost == 1


def test_a_queue_without_a_shelf_keeps_all_in_ram(bench: Bench) -> None:
    queue = bench.queue()
    bench.publish(*"abcdef")
    assert queue.backing.statistics().ready_in_ram == 6
    assert queue.backing.statistics().ram_target is None


# -- limits and time, when the head is on disk ----------------------------------------------------


def test_the_oldest_are_dropped_once_they_are_read(bench: Bench) -> None:
    queue, shelf = bench.durable(max_length=1)
    bench.publish(*"abc")
    shelf.settle()
    assert len(queue) == 1
    worker = Worker(queue)
    shelf.settle()
    assert worker.names == ["c"]


def test_expiry_reads_ahead(bench: Bench) -> None:
    queue, shelf = bench.durable(message_ttl=5)
    bench.publish(*"abc")
    shelf.settle()
    bench.wait(5)
    shelf.settle()
    assert queue.counters.expired == 3


# -- marks, and restarts --------------------------------------------------------------------------


def restart(bench: Bench, shelf: MemoryShelf) -> tuple[Bench, Queue, MemoryShelf]:
    """Return what the next process finds after this one was killed."""
    after = Bench()
    found = shelf.crash()
    return after, after.queue(shelf=found, durable=True), found


def test_what_was_confirmed_is_there_again(bench: Bench) -> None:
    _, shelf = bench.durable()
    bench.publish(*"abc")
    shelf.sync()
    bench.publish("lost")
    after, queue, found = restart(bench, shelf)
    assert len(queue) == 3
    assert queue.counters.recovered == 3
    assert queue.statistics().ready_bytes == 6
    assert (after.disk.debt_items, after.disk.debt_bytes) == (3, 6)
    after.ledger.audit()
    assert not found.wants  # nothing is read until it is wanted
    after.publish("d")
    worker = Worker(queue)
    found.settle()
    after.ledger.audit()
    assert worker.names == [*"abcd"]
    assert not any(delivery.redelivered for delivery in worker.got)
    worker.channel.ack(0, multiple=True)
    assert not after.disk.debt_items
    assert not len(found)


def test_a_consumer_was_there_so_anything_may_have_been_delivered(bench: Bench) -> None:
    queue, shelf = bench.durable()
    Worker(queue, 1)
    bench.publish(*"abc")
    shelf.sync()
    after, again, found = restart(bench, shelf)
    after.publish("new")
    worker = Worker(again)
    found.settle()
    assert worker.names == ["a", "b", "c", "new"]
    assert [delivery.redelivered for delivery in worker.got] == [True, True, True, False]


def test_nobody_was_there_any_more(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue, 2)
    bench.publish(*"abcd")
    shelf.settle()
    worker.channel.close()
    shelf.settle()
    _, again, found = restart(bench, shelf)
    other = Worker(again)
    found.settle()
    assert [delivery.redelivered for delivery in other.got] == [True, True, False, False]


def test_two_restarts(bench: Bench) -> None:
    """What came between them, when nobody was there, is not suspected."""
    queue, shelf = bench.durable()
    Worker(queue, 1)
    bench.publish("a")
    shelf.sync()
    after, _, found = restart(bench, shelf)
    after.publish("b")
    found.sync()
    _, last, found = restart(after, found)
    worker = Worker(last)
    found.settle()
    assert [(d.event.payload, d.redelivered) for d in worker.got] == [(b"a", True), (b"b", False)]


def test_nothing_is_delivered_before_it_is_on_record_that_it_may_be(bench: Bench) -> None:
    queue, shelf = bench.durable()
    bench.publish(*"ab")
    shelf.sync()
    worker = Worker(queue, 1)
    assert not worker.got
    assert queue.waiting
    channel = Channel()
    assert queue.get(channel) is None
    shelf.sync()
    assert worker.names == ["a"]
    # What comes later is durable later than the record.
    worker.consumer.cancel()
    queue.purge()
    shelf.sync()
    other = Worker(queue)
    bench.publish("c")
    assert other.names == ["c"]


def test_consumers_are_served_though_the_disk_is_in_trouble(bench: Bench) -> None:
    queue, shelf = bench.durable()
    bench.publish("a")
    shelf.sync()
    worker = Worker(queue)
    assert not worker.got
    queue.shelf_trouble("the disk is read-only")
    assert worker.names == ["a"]


def test_get_is_on_record_too(bench: Bench) -> None:
    queue, shelf = bench.durable()
    bench.publish("a")
    shelf.sync()
    channel = Channel()
    assert queue.get(channel) is None
    shelf.sync()
    delivery = queue.get(channel)
    assert delivery is not None
    _, again, found = restart(bench, shelf)
    worker = Worker(again)
    found.settle()
    assert worker.got[0].redelivered
    delivery.nack()
    bench.wait(0)
    shelf.sync()
    _, again, found = restart(bench, shelf)
    bench.publish("b")
    worker = Worker(again)
    found.settle()
    assert [d.redelivered for d in worker.got] == [True]


def test_numbers_are_not_used_twice(bench: Bench) -> None:
    """Though all that had the highest numbers is gone."""
    queue, shelf = bench.durable()
    worker = Worker(queue)
    bench.publish(*"abc")
    worker.channel.ack(0, multiple=True)
    worker.channel.close()
    shelf.sync()
    after, again, found = restart(bench, shelf)
    assert len(again) == 0
    after.publish("d")
    assert [message.seq for message in found.messages] == [4]


def test_numbers_of_what_was_never_written_are_not_used_twice(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue)
    bench.publish("a")
    bench.publish(*"bc", qos=0)
    assert len(worker.got) == 3
    worker.consumer.cancel()
    shelf.sync()
    after, again, found = restart(bench, shelf)
    after.publish(*"de")
    assert [message.seq for message in found.messages] == [1, 4, 5]
    other = Worker(again)
    found.settle()
    assert [delivery.redelivered for delivery in other.got] == [True, False, False]


def test_an_orderly_end(bench: Bench) -> None:
    queue, shelf = bench.durable()
    worker = Worker(queue, 1)
    bench.publish(*"ab")
    shelf.settle()
    bench.publish("c", qos=0)
    late = bench.publish("d")
    queue.close()
    queue.close()
    bench.ledger.audit()
    assert not bench.publisher.debt_items
    assert not bench.disk.debt_items
    assert worker.ends == ["queue queue is closed"]
    assert late.answers == []
    shelf.sync()
    assert late.answers == []
    _, again, found = restart(bench, shelf)
    other = Worker(again)
    found.settle()
    assert [name for name in other.names if name != "c"] == [*"abd"]
    assert other.got[0].redelivered
    assert not other.got[-1].redelivered


def test_the_books_balance_whatever_the_shelf_says_of_its_bytes(bench: Bench) -> None:
    shelf = MemoryShelf()
    queue = bench.queue(shelf=shelf, durable=True)
    bench.publish(*"abc")
    shelf.sync()
    after = Bench()
    found = shelf.crash()
    account = after.ledger.open("disk/queue", parent=after.disk)
    again = Queue(after.ledger, "queue", account=account, settings=queue.settings, shelf=found)
    after.queues.append(again)
    found.queue = again
    again.recovered(1, 4, 3, 5, Marks())
    worker = Worker(again)
    found.settle()
    after.ledger.audit()
    assert sum(delivery.loan.bytes for delivery in worker.got) == 5
    worker.channel.close()
    Worker(again).channel.close()
    after.ledger.audit()
    again.delete()
    assert not account.debt_bytes


def test_a_transient_message_that_was_paged_out_waits_for_nobody(bench: Bench) -> None:
    """It is repaid when it is durable, as what is persistent is."""
    _, shelf = bench.durable()
    bench.publish(*"abc", qos=0)
    assert bench.publisher.debt_items == 3
    shelf.sync()
    assert (bench.publisher.debt_items, bench.disk.debt_items) == (1, 2)


def test_a_binding_that_comes_back_after_a_restart_is_the_owners_business(bench: Bench) -> None:
    _, shelf = bench.durable()
    bench.publish("a")
    shelf.sync()
    after = Bench()
    found = shelf.crash()
    queue = after.queue(shelf=found, durable=True, topic=None)
    after.publish("b")
    assert len(queue) == 1
    with after.publisher.turn() as turn:
        queue.bind(turn, after.dataspace, TopicFilter("t"))
    after.publish("c")
    assert len(queue) == 2
