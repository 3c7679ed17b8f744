"""A group: each message goes to exactly one member, and comes to another if that one leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clearfunds.accounts import Outcome, Recipient
from clearfunds.dataspace import Batch, Publication, TopicFilter
from clearfunds.dataspace.queues import (
    Delivery,
    Group,
    Member,
    MemoryShelf,
    PrefetchWindow,
    QueueSettings,
)
from clearfunds.testing import Box
from tests.dataspace.queues.conftest import WALL, Bench


class Someone(Member):
    """A member that keeps what it gets."""

    def __init__(self, bench: Bench, name: str, window: int = 0) -> None:
        super().__init__(name, PrefetchWindow(window))
        self.box = Box(bench.ledger, name)
        self.open = True
        self.got: list[Delivery] = []
        self.names: list[str] = []
        self.ended: list[str] = []
        self.spends = 3
        """From which QoS on what it has is for nobody else."""

    @property
    def way(self) -> Recipient:
        return self.box

    @property
    def flows(self) -> bool:
        return self.open

    @property
    def debt(self) -> tuple[int, int]:
        loans = list(self.box.loans())
        return (
            len(self.got) + sum(loan.items for loan in loans),
            self.window.used_bytes + sum(loan.bytes for loan in loans),
        )

    def take(self, delivery: Delivery) -> None:
        self.got.append(delivery)
        self.names.append(delivery.event.payload.decode())

    def is_spent(self, delivery: Delivery) -> bool:
        return bool(delivery.message.event.qos >= self.spends)

    def cut(self, why: str) -> None:
        self.ended.append(why)

    def ack(self, place: int = 0) -> None:
        self.got.pop(place).ack()

    @property
    def plain(self) -> list[str]:
        """What it has of what nobody acknowledges."""
        found: list[str] = []
        for loan in self.box.loans():
            for item in loan.item:
                events = item.events() if isinstance(item, Batch) else [item]
                found += [event.payload.decode() for event in events]
        return found


def explode(raw: bytes) -> Iterator[Publication]:
    return (Publication("t", raw[at : at + 1]) for at in range(len(raw)))


def part(batch: Batch, most: int) -> Sequence[Batch]:
    size, more = divmod(batch.count, most)
    found: list[Batch] = []
    at = 0
    for number in range(min(most, batch.count)):
        end = at + size + (number < more)
        found.append(Batch(batch.raw[at:end], end - at, explode))
        at = end
    return found


def make_group(bench: Bench, *, shelf: MemoryShelf | None = None, persists: bool = False) -> Group:
    group = Group(
        bench.ledger,
        "$share/g/#",
        account=bench.ledger.open("group", parent=bench.disk),
        settings=QueueSettings(durable=shelf is not None, delivery_limit=None),
        shelf=shelf,
        wall=lambda: WALL + bench.now,
        part=part,
    )
    group.persists = persists
    bench.queues.append(group)
    if shelf is not None:
        shelf.recover(group)
    with group.account.turn() as turn:
        group.bind(turn, bench.dataspace, TopicFilter("#"))
    return group


def run(bench: Bench, names: str) -> None:
    """Publish a run of QoS 0."""
    batch = Batch(names.encode(), len(names), explode)
    destinations = bench.dataspace.route_of("t").run
    assert destinations is not None
    bench.dataspace.route_run(bench.publisher, batch, destinations.holders)
    bench.ledger.audit()


@pytest.fixture
def bench(bench: Bench) -> Iterator[Bench]:
    """Return a bench where what members hold at the end has been sent."""
    yield bench
    for holder in list(bench.ledger.holders):
        if isinstance(holder, Box):
            holder.settle_all(Outcome.DELIVERED)


@pytest.fixture
def group(bench: Bench) -> Group:
    return make_group(bench)


def members_of(bench: Bench, group: Group, count: int, window: int = 0) -> list[Someone]:
    found = [Someone(bench, name, window) for name in "abcdefgh"[:count]]
    for member in found:
        group.join(member)
    return found


# -- whom it goes to ------------------------------------------------------------------------------


def test_each_message_goes_to_one_member_in_turn(bench: Bench, group: Group) -> None:
    one, two, three = members_of(bench, group, 3)
    bench.publish(*"abcdef")
    assert [one.names, two.names, three.names] == [["a", "d"], ["b", "e"], ["c", "f"]]
    assert bench.publisher.debt_items == 6  # once each, however many members there are


def test_the_one_with_the_least_debt_is_next(bench: Bench, group: Group) -> None:
    one, two = members_of(bench, group, 2)
    bench.publish(*"abcd")
    two.ack()
    two.ack()
    bench.publish(*"ef")
    assert one.names == ["a", "c"]
    assert two.names == ["b", "d", "e", "f"]


def test_who_is_stuck_is_passed_over(bench: Bench, group: Group) -> None:
    one, two = members_of(bench, group, 2)
    one.open = False
    bench.publish(*"abc")
    run(bench, "de")
    assert not one.names
    assert not one.plain
    assert two.names == [*"abc"]
    assert two.plain == [*"de"]
    one.open = True
    group.go_on(one)
    bench.publish("f")
    assert one.names == ["f"]


def test_if_all_are_stuck_it_waits_in_the_group_in_order(bench: Bench, group: Group) -> None:
    one, two = members_of(bench, group, 2, window=2)
    bench.publish(*"abcd")
    one.open = two.open = False
    run(bench, "ef")
    bench.publish("g", qos=2)
    assert len(group) == 3
    assert bench.publisher.debt_items == 7
    assert not any(loan.items for member in (one, two) for loan in member.box.loans())
    one.open = two.open = True
    group.go_on(one)
    group.go_on(two)
    one.ack()
    assert one.names == ["a", "c", "e"]  # as all that waits: e is taken one by one
    two.ack()
    two.ack()
    assert two.names == ["b", "d", "f", "g"]
    assert not len(group)


def test_a_run_is_parted_evenly(bench: Bench, group: Group) -> None:
    one, two, three = members_of(bench, group, 3)
    run(bench, "abcdefgh")
    assert [one.plain, two.plain, three.plain] == [[*"abc"], [*"def"], [*"gh"]]
    for member in (one, two, three):
        assert len(list(member.box.loans())) == 1  # a run still
    assert bench.publisher.debt_items == 8
    assert group.counters.passed == 8
    run(bench, "i")
    assert three.plain == [*"ghi"]


def test_single_messages_that_nobody_acknowledges_take_turns(bench: Bench, group: Group) -> None:
    members = members_of(bench, group, 3)
    for name in "abcdef":
        bench.publish(name, qos=0)
        for member in members:
            member.box.settle_all(Outcome.DELIVERED)
    assert [member.delivered for member in members] == [2, 2, 2]


def test_what_nobody_acknowledges_does_not_overtake(bench: Bench, group: Group) -> None:
    (one,) = members_of(bench, group, 1, window=1)
    bench.publish(*"ab")
    run(bench, "c")
    bench.publish("d")
    one.ack()
    one.ack()
    one.ack()
    assert one.names == [*"abcd"]


def test_many_members_that_are_stuck_do_not_hide_one_that_is_not(
    bench: Bench, group: Group
) -> None:
    members = [Someone(bench, f"m{n}") for n in range(100)]
    for member in members:
        group.join(member)
        member.open = False
    members[77].open = True
    run(bench, "ab")
    bench.publish(*"cd")
    assert members[77].plain == [*"ab"]
    assert members[77].names == [*"cd"]


# -- who comes and goes ---------------------------------------------------------------------------


def test_what_a_member_did_not_acknowledge_goes_to_another_first(
    bench: Bench, group: Group
) -> None:
    one, two = members_of(bench, group, 2, window=2)
    bench.publish(*"abcdefg")
    assert one.names == ["a", "c"]
    one.ack()  # c stays, and gets e
    group.leave(one)
    bench.ledger.audit()
    for _ in range(5):
        two.ack()
        bench.ledger.audit()
    assert two.names == ["b", "d", "c", "e", "f", "g"]
    two.ack()
    assert bench.publisher.debt_items == 0
    assert group.counters.redelivered == 2
    group.leave(one)  # once more does nothing


def test_what_a_member_may_have_had_once_is_for_nobody_else(bench: Bench, group: Group) -> None:
    one, two = members_of(bench, group, 2)
    one.spends = 2
    bench.publish(*"ab", qos=2)
    group.leave(one)
    assert two.names == ["b"]
    assert group.counters.spent == 1
    assert bench.repaid(Outcome.CANCELLED) == 1
    assert bench.publisher.debt_items == 1


def test_a_member_that_was_stopped_acknowledges_what_it_has(bench: Bench, group: Group) -> None:
    one, two = members_of(bench, group, 2)
    bench.publish(*"abcd")
    channel = group.stop(one)
    assert channel is not None
    bench.publish("e")
    assert two.names == ["b", "d", "e"]
    one.ack()
    group.release(one, channel)
    assert two.names == ["b", "d", "e", "c"]
    bench.ledger.audit()


def test_with_nobody_there_only_what_is_kept_waits(bench: Bench, group: Group) -> None:
    bench.publish(*"ab")
    run(bench, "c")
    assert bench.repaid(Outcome.DROPPED) == 3
    group.persists = True
    bench.publish("d")
    run(bench, "e")
    (one,) = members_of(bench, group, 1)
    assert one.names == ["d"]
    assert bench.repaid(Outcome.DROPPED) == 4


def test_a_group_that_keeps_is_durable_and_one_that_does_not_writes_nothing(bench: Bench) -> None:
    shelf = MemoryShelf()
    group = make_group(bench, shelf=shelf)
    (one,) = members_of(bench, group, 1, window=1)
    bench.publish(*"ab")
    assert not shelf.messages
    group.persists = True
    heard = bench.publish("c")
    assert heard.expected == 1
    assert not heard.answers
    shelf.sync()
    assert heard.answers == ["taken"]
    for _ in range(3):
        one.ack()
        shelf.settle()
    assert one.names == [*"abc"]
    bench.ledger.audit()


def test_those_who_hold_it_up_are_cut_off_and_others_get_it(bench: Bench, group: Group) -> None:
    """Whoever waits, waits on the group; the group knows who of its members is to blame."""
    one, two = members_of(bench, group, 2, window=1)
    bench.publish(*"ab")
    two.ack()
    bench.publish("c")
    group.give_up("the group made no progress")
    assert one.ended
    assert two.ended
    assert not group.members
    bench.ledger.audit()


def test_a_member_that_fails_is_passed_over(bench: Bench, group: Group) -> None:
    one, two = members_of(bench, group, 2)

    def fail(delivery: Delivery) -> None:
        raise RuntimeError("no")

    one.take = fail  # type: ignore[method-assign]
    bench.publish(*"ab")
    assert sorted(two.names) == ["a", "b"]
    assert one.ended
    bench.ledger.audit()


def test_deleted_with_all_that_it_has(bench: Bench, group: Group) -> None:
    (one,) = members_of(bench, group, 1, window=1)
    bench.publish(*"abc")
    group.delete()
    assert bench.publisher.debt_items == 0
    assert one.ended
    bench.publish("d")
    assert bench.publisher.debt_items == 0


# -- all of it together ---------------------------------------------------------------------------


class Groups(RuleBasedStateMachine):
    """Members come, go, stop and go on, and each message ends up with exactly one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.shelf = MemoryShelf()
        self.group = make_group(self.bench, shelf=self.shelf, persists=True)
        self.members: list[Someone] = []
        self.published: list[str] = []
        self.done: list[str] = []
        self.dropped = 0
        self.spent: list[str] = []
        self.number = 0

    def names(self, count: int) -> list[str]:
        found = [f"{self.number + n:04}" for n in range(count)]
        self.number += count
        return found

    @rule(window=st.integers(0, 3), spends=st.sampled_from([2, 3]))
    def join(self, window: int, spends: int) -> None:
        if len(self.members) < 5:
            member = Someone(self.bench, f"m{self.number}", window)
            member.spends = spends
            self.members.append(member)
            self.group.join(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.integers(0, len(self.members) - 1)))
        self.take_plain(member)
        held = [delivery.message for delivery in member.got]
        self.spent += [
            m.event.payload.decode()
            for m in held
            if m.event is not None and m.event.qos >= member.spends
        ]
        self.group.leave(member)

    @rule(count=st.integers(1, 4), qos=st.integers(0, 2))
    def publish(self, count: int, qos: int) -> None:
        names = self.names(count)
        if qos == 0 and not self.group.members:
            self.dropped += count
        else:
            self.published += names
        self.bench.publish(*names, qos=qos)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.take_plain(member)
        if member.got:
            place = data.draw(st.integers(0, len(member.got) - 1))
            delivery = member.got.pop(place)
            self.done.append(delivery.loan.item[0].payload.decode())
            delivery.ack()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), open_=st.booleans())
    def flow(self, data: st.DataObject, open_: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.open = open_
        if open_:
            self.group.go_on(member)

    @rule()
    def sync(self) -> None:
        self.shelf.sync()

    @rule()
    def give_up(self) -> None:
        for member in self.members:
            self.take_plain(member)
            self.spent += [
                d.message.event.payload.decode()
                for d in member.got
                if d.message.event is not None and d.message.event.qos >= member.spends
            ]
        stuck = [member for member in self.members if member.got]
        if stuck:
            self.group.give_up("stuck")
            self.members = [member for member in self.members if member not in stuck]

    def take_plain(self, member: Someone) -> None:
        self.done += member.plain
        member.box.settle_all(Outcome.DELIVERED)

    @invariant()
    def conserved(self) -> None:
        self.bench.ledger.audit()
        # Each is in one place.
        self.bench.ledger.drain()
        held = [d.loan.item[0].payload.decode() for m in self.members for d in m.got]
        plain = [name for m in self.members for name in m.plain]
        ready = len(self.group)
        known = self.done + held + plain + self.spent
        assert len(known) == len(set(known))
        assert len(known) + ready == len(self.published)
        assert set(known) <= set(self.published)

    @invariant()
    def nobody_waits_who_could_have_it(self) -> None:
        if len(self.group) and not self.group.waiting:
            assert not any(member.open and member.window.has_room for member in self.members), (
                self.members
            )


Groups.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_groups = Groups.TestCase
