"""The classic policy in detail: who goes where, how many, and when it stops."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from clearfunds.accounts import NO_LIMIT, Ledger
from clearfunds.dataspace import Dataspace, Publication, TopicFilter
from clearfunds.dataspace.queues import MemoryShelf, Queue
from experiments.classic_paging import ClassicBacking, ClassicSettings, MemoryMonitor, classic
from experiments.credit_flow import Credit
from tests.dataspace.queues.paging import Desk

BIG = 4096
SMALL = 4095


class Place:
    """A desk with a classic backing, and its shelf, clock and memory."""

    def __init__(
        self,
        settings: ClassicSettings | None = None,
        *,
        shelf: MemoryShelf | None = None,
        monitored: bool = False,
    ) -> None:
        self.now = 0.0
        self.used = 0
        self.monitor = None
        if monitored:
            self.monitor = MemoryMonitor(clock=lambda: self.now, used=lambda: self.used, limit=1000)
        self.shelf = MemoryShelf() if shelf is None else shelf
        self.desk = Desk(
            lambda desk: ClassicBacking(
                desk, monitor=self.monitor, settings=settings, clock=lambda: self.now
            ),
            self.shelf,
        )
        backing = self.desk.backing
        assert isinstance(backing, ClassicBacking)
        self.backing = backing

    def have(self, target: int) -> None:
        """Have the target come down to so many messages, at a rate of one a second."""
        self.desk.rates.ingress = 1.0
        self.desk.rates.egress = self.desk.rates.ack_ingress = self.desk.rates.ack_egress = 0.0
        self.backing.set_duration_target(float(target))
        assert self.backing.target == target

    @property
    def lengths(self) -> tuple[int, int, int, int, int]:
        self.backing.check()
        return self.backing.lengths

    @property
    def in_ram(self) -> int:
        self.backing.check()
        return self.backing.ram_count


# -- the seed's example -------------------------------------------------------------------------


def test_the_seeds_example_stops_for_want_of_credit_and_goes_on_with_each_grant() -> None:
    """20,000 in RAM and a target of 8,000: 12,000 are to go, and 2,000 may be under way."""
    place = Place()
    place.desk.publish(20_000, BIG)
    assert place.lengths == (20_000, 0, 0, 0, 0)
    place.have(8_000)
    assert place.in_ram == 18_000
    assert place.backing.credit.blocked
    assert place.shelf.last_ticket == 2_000
    # "It will receive more credit once 500 messages are processed."
    place.shelf.sync(499)
    assert place.in_ram == 18_000
    for granted in range(1, 21):
        place.shelf.sync(500 * granted)
        assert place.in_ram == 18_000 - 500 * granted
        # On the way there are never more than it began with.
        assert place.shelf.last_ticket - 500 * granted == 2_000
        assert place.backing.credit.blocked
    assert place.in_ram == 8_000
    place.shelf.sync()
    assert place.in_ram == 8_000
    assert not place.backing.credit.blocked
    assert place.shelf.last_ticket == 12_000
    assert place.desk.take(20_000) == list(range(1, 20_001))


def test_small_messages_take_no_credit_and_go_in_batches_of_twice_what_it_would_be() -> None:
    """Bodies below 4,096 B stand in the index: nothing stops them but the quota of one go."""
    place = Place()
    place.desk.publish(20_000, SMALL)
    place.have(8_000)
    assert place.in_ram == 16_000
    assert not place.backing.credit.blocked
    assert place.backing.tick(1.0) == pytest.approx(1.02)
    assert place.in_ram == 12_000
    place.desk.publish(1, SMALL)  # whatever happens next goes on with it
    assert place.in_ram == 8_001
    assert place.backing.tick(2.0) is None
    place.backing.relieve()
    assert place.in_ram == 8_000
    assert place.shelf.last_ticket == 12_001


def test_acks_are_pushed_whatever_the_credit_and_the_largest_first() -> None:
    place = Place()
    place.desk.publish(20_000, BIG)
    place.desk.take(15_000)
    assert place.in_ram == 20_000
    rates = place.desk.rates
    rates.ack_ingress, rates.ingress, rates.egress = 3.0, 1.0, 2.0  # 3 - 0 > 1 - 2
    place.backing.set_duration_target(8_000 / 6)
    # The whole quota of one go; credit is negative then.
    assert place.in_ram == 16_000
    assert place.backing.credit.queue.credit_from == {"store": -2_000}
    unloaded = [m.seq for m in place.desk.pending.values() if m.event is None]
    assert unloaded == list(range(11_001, 15_001))
    assert place.lengths == (5_000, 0, 0, 0, 0)
    place.shelf.sync(2_000)
    assert place.in_ram == 16_000
    place.shelf.sync(2_500)
    assert place.in_ram == 12_000


def test_alphas_are_pushed_first_where_they_grow_faster_and_acks_get_what_is_left() -> None:
    place = Place()
    place.desk.publish(3_000, SMALL)
    place.desk.take(1_000)
    rates = place.desk.rates
    rates.ack_ingress, rates.ack_egress = 2.0, 1.0
    rates.ingress, rates.egress = 3.0, 1.0  # 3 - 1 > 2 - 1
    place.backing.set_duration_target(1_500 / 7)
    assert place.backing.target == 1_500
    # 1,500 are to go: of 2,000 alphas as many as are above the target, the rest are acks.
    assert place.lengths == (1_500, 500, 0, 0, 0)
    assert place.backing.statistics().pending_in_ram == 0
    assert place.in_ram == 1_500


# -- who goes where -----------------------------------------------------------------------------

NUMBERS = ClassicSettings(
    credit=Credit(1000, 500), io_batch_size=10, segment=8, reduce_every=10_000, read_ahead=2
)


def test_new_ones_are_alphas_at_the_head_until_there_are_betas() -> None:
    place = Place(NUMBERS)
    place.desk.publish(5)
    assert place.lengths == (5, 0, 0, 0, 0)
    place.have(3)
    assert place.lengths == (3, 2, 0, 0, 0)  # of q4 the rear
    place.desk.publish(2)
    assert place.lengths == (3, 2, 0, 0, 2)
    place.have(2)
    assert place.lengths == (2, 5, 0, 0, 0)  # first q1 from its front, to q3: there is no delta
    assert [m.event is None for m in place.backing] == [False] * 2 + [True] * 5


def test_betas_become_deltas_down_to_a_segments_end_if_there_are_enough_of_them() -> None:
    place = Place(NUMBERS)
    place.desk.publish(17)
    place.have(0)
    # All are betas, 1..17; permitted is one segment of 8; 9 too many is less than a batch.
    assert place.lengths == (0, 17, 0, 0, 0)
    place.desk.publish(1)
    place.backing.relieve()
    # As many as are too many.
    assert place.lengths == (0, 8, 10, 0, 0)
    place.desk.publish(9)
    assert place.lengths == (0, 8, 10, 0, 9)
    place.backing.relieve()
    # Behind a delta, alphas go to q2; 8 + 9 - 8 permitted is less than a batch.
    assert place.lengths == (0, 8, 10, 9, 0)
    place.desk.publish(1)
    place.backing.relieve()
    # The segment of the first, up to 7, stays in q3; the rest of the 10 are of q2.
    assert place.lengths == (0, 7, 20, 1, 0)
    assert place.desk.take(100) == list(range(1, 29))


@pytest.mark.parametrize(
    ("messages", "target", "delta"),
    [
        # BD = 100, permitted = max(8, 100 - 100 * 100 // 150) = 34 of 100
        (150, 50, 66),
        # BD = 20, permitted = max(8, 20 - 20 * 20 // 220) = 19 of 20: less than a batch
        (220, 200, 0),
        # BD = 210, permitted = max(8, 210 - 210 * 210 // 220) = 10 of 210
        (220, 10, 200),
    ],
)
def test_the_fewer_betas_are_permitted_the_more_there_are_behind(
    messages: int, target: int, delta: int
) -> None:
    place = Place(NUMBERS)
    place.desk.publish(messages)
    place.have(target)
    assert place.lengths == (target, messages - target - delta, delta, 0, 0)


def test_persistent_ones_are_written_at_once_and_pushed_without_writing_again() -> None:
    place = Place(NUMBERS)
    place.desk.publish(20, persistent=True)
    assert place.shelf.last_ticket == 20
    place.have(5)
    assert place.in_ram == 5
    assert place.shelf.last_ticket == 20


def test_persistent_ones_take_credit_when_they_come() -> None:
    place = Place(ClassicSettings(credit=Credit(4, 2)))
    place.desk.publish(4, SMALL, persistent=True)
    assert not place.backing.credit.blocked
    place.desk.publish(3, BIG, persistent=True)
    assert not place.backing.credit.blocked
    place.desk.deliver(place.desk.new(BIG, persistent=True))
    assert place.backing.credit.blocked
    blocked = place.backing.credit.queue.statistics().blockers
    assert [each.peer for each in blocked] == ["store"]
    place.have(0)
    assert place.in_ram == 8 - 1  # the pending one is written, and needs no credit
    place.shelf.sync(6)
    assert place.in_ram == 0


def test_reads_of_delta_stop_at_a_segments_end_while_memory_is_not_short() -> None:
    place = Place(NUMBERS)
    place.desk.publish(40)
    place.have(0)
    assert place.lengths == (0, 8, 32, 0, 0)
    place.backing.set_duration_target(math.inf)
    assert place.desk.take(8) == list(range(1, 9))
    # The last of q3 is gone, so delta is being read.
    assert place.shelf.wants[0][:2] == (9, 7)
    place.desk.publish(1)
    assert place.lengths == (0, 0, 32, 0, 1)
    place.shelf.answer()
    assert place.lengths == (0, 7, 25, 0, 1)
    assert place.in_ram == 8 + 8  # with those that are pending
    assert place.desk.take(100) == list(range(9, 42))
    assert place.backing.statistics().paged_in == 40


def test_while_memory_is_short_no_more_is_read_than_consumers_take_in_two_seconds() -> None:
    place = Place(NUMBERS)
    place.desk.publish(100)
    place.have(0)
    place.desk.take(8)
    place.shelf.answer()
    place.desk.rates.egress = 2.5
    place.desk.take(1)
    while place.shelf.wants[0][1] == 2:  # asked for when the rate was lower
        place.desk.take(1)
    assert place.shelf.wants[0][1] == 6


def test_the_last_of_delta_lets_q2_join_q3_and_the_last_of_q3_q1_be_q4() -> None:
    place = Place(NUMBERS)
    place.desk.publish(18)
    place.have(0)
    place.desk.publish(2)
    place.backing.relieve()
    place.desk.publish(3)
    assert place.lengths == (0, 8, 10, 2, 3)
    place.backing.set_duration_target(math.inf)
    taken: list[int] = []
    while place.lengths[2]:
        assert place.lengths[3:] == (2, 3)
        taken += place.desk.take(1)
    assert place.lengths[3:] == (0, 3)
    while place.lengths[1]:
        taken += place.desk.take(1)
    assert taken == list(range(1, 21))
    assert place.lengths == (3, 0, 0, 0, 0)
    assert place.desk.take(9) == [21, 22, 23]


def test_nothing_leaves_ram_without_a_shelf() -> None:
    backings: list[ClassicBacking] = []

    def make(desk: Desk) -> ClassicBacking:
        backings.append(ClassicBacking(desk, settings=NUMBERS, clock=lambda: 0.0))
        return backings[0]

    desk = Desk(make)
    desk.publish(100)
    desk.take(10)
    backings[0].set_duration_target(0.0)
    assert backings[0].ram_count == 100
    assert backings[0].lengths == (90, 0, 0, 0, 0)


def test_what_the_budget_has_no_room_for_stays_in_ram_until_there_is_some() -> None:
    place = Place(NUMBERS)
    place.desk.full = True
    place.desk.publish(30)
    place.desk.take(5)
    place.have(3)
    assert place.in_ram == 30
    place.desk.full = False
    place.backing.relieve()
    assert place.in_ram == 3


# -- what comes back ----------------------------------------------------------------------------


def test_what_comes_back_loaded_is_an_alpha_before_the_betas_and_a_beta_among_them() -> None:
    place = Place(NUMBERS)
    place.desk.publish(10)
    place.have(2)
    assert place.lengths == (2, 8, 0, 0, 0)
    assert place.desk.take(5) == [1, 2, 3, 4, 5]
    place.desk.requeue([5])
    assert place.lengths == (1, 5, 0, 0, 0)
    place.desk.requeue([2, 1, 4])
    assert place.lengths == (4, 5, 0, 0, 0)
    assert place.desk.take(20) == [1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_what_comes_back_unloaded_makes_betas_of_those_behind_it() -> None:
    place = Place(NUMBERS)
    place.desk.publish(10)
    place.desk.take(4)
    place.desk.rates.ack_ingress = 5.0  # acks first
    place.backing.set_duration_target(6.0 / 5.0)
    assert place.backing.target == 6
    assert [m.seq for m in place.desk.pending.values() if m.event is None] == [1, 2, 3, 4]
    place.desk.publish(1)
    place.desk.requeue([3])
    assert place.lengths == (0, 8, 0, 0, 0)
    assert place.in_ram == 7
    place.desk.requeue([1, 2])
    assert place.lengths == (0, 10, 0, 0, 0)
    # One read for all that lack their event; those of which it is there are not touched.
    assert place.desk.take(20) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]


def test_what_was_delivered_before_is_not_forgotten_in_delta() -> None:
    """A delta knows nothing of deliveries."""
    place = Place(NUMBERS)
    place.desk.publish(40)
    place.desk.take(20)
    place.desk.requeue(list(range(1, 21)))
    place.have(0)
    q4, q3, delta, q2, q1 = place.lengths
    assert (q4, q2, q1) == (0, 0, 0)
    assert (q3, delta) == (20, 20)
    again = [place.desk.fetch() for _ in range(40)]
    assert [m.redelivered for m in again if m is not None] == [True] * 20 + [False] * 20


def test_a_purge_leaves_what_is_pending_and_ignores_what_is_being_read() -> None:
    place = Place(NUMBERS)
    place.desk.publish(40)
    place.desk.take(1)
    place.have(0)
    place.desk.take(8)
    assert place.backing.waiting
    here, on_shelf = place.backing.purge()
    assert not here
    assert list(on_shelf) == list(range(10, 41))
    place.desk.finish(here)
    place.shelf.done(on_shelf)
    assert place.lengths == (0, 0, 0, 0, 0)
    place.desk.publish(3)
    place.shelf.answer()
    assert not place.backing.waiting
    assert place.lengths == (3, 0, 0, 0, 0)
    place.desk.requeue([7])
    assert place.desk.take(9) == [7, 41, 42, 43]


# -- a restart, and what is not there -----------------------------------------------------------


def stopped(n: int) -> MemoryShelf:
    """A shelf with so many messages, from before a restart."""
    before = Place()
    before.desk.publish(n, persistent=True)
    before.shelf.sync()
    return before.shelf.crash()


def test_after_a_restart_all_is_delta_and_nothing_is_read_until_it_is_wanted() -> None:
    place = Place(NUMBERS, shelf=stopped(30))
    assert place.lengths == (0, 0, 30, 0, 0)
    place.desk.publish(2)
    assert place.lengths == (0, 0, 30, 0, 2)
    assert not place.backing.waiting
    assert place.desk.fetch_now() is None
    assert place.backing.waiting
    assert place.desk.take(40) == list(range(1, 33))


def test_what_is_gone_from_the_shelf_is_told_of_and_passed_over() -> None:
    place = Place(NUMBERS, shelf=stopped(30))
    place.shelf.done(range(1, 9))
    place.shelf.done([30])
    assert place.desk.take(40) == list(range(9, 30))
    assert place.desk.lost_count == 9
    assert place.lengths == (0, 0, 0, 0, 0)
    place.desk.publish(1)
    assert place.desk.take(9) == [31]


def test_what_was_put_behind_delta_is_not_taken_for_what_is_gone_from_it() -> None:
    place = Place(NUMBERS, shelf=stopped(10))
    place.desk.publish(10, persistent=True)
    place.shelf.done([9, 10])
    assert place.desk.take(40) == [*range(1, 9), *range(11, 21)]
    assert place.desk.lost_count == 2


def test_what_is_read_back_before_it_is_durable_is_the_message_that_was_written() -> None:
    """It has its publisher's loan, and whoever waits for its confirm."""
    place = Place(NUMBERS)
    place.desk.publish(40)
    written = list(place.backing)
    place.have(0)
    assert place.lengths == (0, 8, 32, 0, 0)
    assert [place.desk.fetch() for _ in range(40)] == written


def test_betas_that_are_gone_are_told_of_one_by_one() -> None:
    place = Place(NUMBERS)
    place.desk.publish(10)
    place.have(0)
    place.shelf.done([1, 4, 10])
    assert place.desk.take(20) == [2, 3, 5, 6, 7, 8, 9]
    assert place.desk.lost_count == 3
    assert place.lengths == (0, 0, 0, 0, 0)


# -- the target ---------------------------------------------------------------------------------


def test_the_duration_is_what_there_was_and_is_over_four_times_the_rates() -> None:
    place = Place()
    place.desk.publish(30, SMALL)
    place.desk.take(10)
    assert place.backing.duration() == math.inf  # nothing moves
    rates = place.desk.rates
    rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress = 1.0, 2.0, 3.0, 4.0
    place.desk.publish(20, SMALL)
    place.desk.ack([1, 2, 3, 4])
    assert place.backing.duration() == (20 + 40 + 6 + 10) / (4 * 10.0)
    assert place.backing.duration() == (40 + 40 + 6 + 6) / (4 * 10.0)
    rates.ingress = rates.egress = rates.ack_ingress = rates.ack_egress = 0.009
    assert place.backing.duration() == math.inf
    rates.ack_egress = 0.01
    assert place.backing.duration() == pytest.approx(92 / (4 * 0.037))


def test_the_target_is_what_the_rates_bring_in_that_time() -> None:
    place = Place()
    rates = place.desk.rates
    rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress = 1.0, 2.0, 3.0, 4.5
    place.backing.set_duration_target(1.99)
    assert place.backing.target == 20
    place.backing.set_duration_target(math.inf)
    assert place.backing.target is None


def test_nothing_is_read_back_for_a_target_that_rises() -> None:
    place = Place(NUMBERS)
    place.desk.publish(20)
    place.have(5)
    place.have(10)
    assert place.in_ram == 5
    place.have(8)  # less than before, and more than there are
    assert place.in_ram == 5


def test_it_reports_every_five_seconds_and_does_as_it_is_told() -> None:
    place = Place(NUMBERS, monitored=True)
    place.desk.publish(100, SMALL)
    rates = place.desk.rates
    rates.ingress = 10.0
    assert place.backing.tick(0.0) == 5.0
    place.used = 800
    place.now = 3.0
    assert place.backing.tick(3.0) == 5.0
    assert place.backing.target is None
    place.now = 5.0
    assert place.backing.tick(5.0) == 10.0
    # (100 + 100) / 40 s is what there is; 1 s more, over 0.8, at 10 a second.
    assert place.backing.target == int((5.0 + 1.0) / 0.8 * 10.0)
    assert place.in_ram == 75
    place.used = 2000
    place.now = 8.0
    assert place.monitor is not None
    place.monitor.update()  # it falls: that is pushed
    assert place.backing.target == 25
    assert place.in_ram == 25
    place.used = 0
    place.now = 10.5
    assert place.backing.tick(10.5) == 15.5
    assert place.backing.target is None


def test_the_look_at_memory_comes_after_so_many_messages() -> None:
    place = Place(ClassicSettings(reduce_every=10))
    place.have(3)
    place.desk.publish(9, SMALL)
    assert place.in_ram == 9
    place.desk.publish(1, SMALL)
    assert place.in_ram == 3


def test_memory_stays_flat_however_many_come_and_all_come_out_in_order() -> None:
    """The seed's backlog, small: what is known by itself stays few, and so does what is in RAM."""
    chance = random.Random(2011)
    place = Place(
        ClassicSettings(
            credit=Credit(200, 50), io_batch_size=64, segment=128, reduce_every=20, read_ahead=16
        )
    )
    place.have(100)
    most = objects = 0
    expected = 1
    for _ in range(600):
        place.desk.publish(20, chance.choice([SMALL, BIG]), persistent=chance.random() < 0.3)
        if chance.random() < 0.7:
            place.shelf.sync()
        taken = place.desk.take(chance.randrange(4))
        assert taken == list(range(expected, expected + len(taken)))
        expected += len(taken)
        place.desk.ack(taken)
        most = max(most, place.in_ram)
        objects = max(objects, len(list(place.backing)))
    assert place.backing.ready > 10_000
    assert most < 1000
    assert objects < 1000
    rest = place.desk.take(20_000)
    assert rest == list(range(expected, 12_001))


@pytest.mark.parametrize("name", ["io_batch_size", "segment", "embed_below", "reduce_every"])
def test_numbers_that_make_no_sense_are_refused(name: str) -> None:
    numbers: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        ClassicSettings(**numbers)


def test_a_factory_makes_backings_under_one_monitor() -> None:
    monitor = MemoryMonitor(clock=lambda: 0.0, used=lambda: 0, limit=1)
    factory = classic(monitor=monitor)
    made = [Desk(factory).backing for _ in range(3)]
    assert {backing.policy for backing in made} == {"classic"}
    assert monitor.statistics().queues == 3


# -- in a queue ---------------------------------------------------------------------------------


def test_a_queue_pages_out_what_the_monitor_asks_for_and_the_books_balance() -> None:
    """Its rates, its ticks, its accounts: transient messages at rest are the queue's own debt."""
    now, used = [0.0], [0]
    ledger = Ledger(clock=lambda: now[0])
    monitor = MemoryMonitor(clock=lambda: now[0], used=lambda: used[0], limit=1000)
    publisher = ledger.open("publisher", limit=NO_LIMIT)
    shelf = MemoryShelf()
    queue = Queue(
        ledger,
        "queue",
        account=ledger.open("disk/queue", limit=NO_LIMIT, parent=ledger.open("disk")),
        shelf=shelf,
        backing=classic(monitor=monitor),
        wall=lambda: now[0],
    )
    shelf.recover(queue)
    dataspace = Dataspace(ledger)
    with publisher.turn() as turn:
        queue.bind(turn, dataspace, TopicFilter("#"))
    event = Publication("t", bytes(5000))
    due = queue.tick(now[0])
    for _ in range(4):
        for _ in range(500):
            with publisher.turn(event) as turn:
                turn.publish(dataspace, event)
        assert due <= now[0] + 5.0
        now[0] = due
        used[0] = 900
        due = queue.tick(now[0])
        ledger.audit()
    backing = queue.statistics().backing
    assert backing.policy == "classic"
    assert backing.ram_target is not None
    assert backing.ready == 2000
    assert 0 < backing.ready_in_ram <= backing.ram_target < 1500
    # Written, and not yet safe: still its publisher's.
    assert publisher.debt_items == 2000
    shelf.sync()
    ledger.audit()
    assert publisher.debt_items == backing.ready_in_ram
    assert queue.statistics().disk_items == 2000 - backing.ready_in_ram
    queue.delete()
    ledger.audit()
    assert publisher.debt_items == 0


def test_what_comes_back_one_by_one_finds_its_place_among_the_others() -> None:
    place = Place()
    place.desk.publish(50)
    out = place.desk.take(40)
    random.Random(1).shuffle(out)
    for seq in out:
        place.desk.requeue([seq])
        place.backing.check()
    assert place.desk.take(50) == list(range(1, 51))
