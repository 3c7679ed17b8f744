"""A queue against a plain list of what it should hold: a machine for any policy of paging.

    TestSteady = machine_for(SteadyBacking)

What the queue does it tells: deliveries, dead letters and confirms call the model, which checks
that each was the right one at that moment, and moves it. *When* a message is delivered depends on
how late the disk is; that it is not held back for ever is what `settle` checks, where the disk has
answered everything. The audit is done after every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clearfunds.accounts import NO_LIMIT, Ledger, Limit, Turn
from clearfunds.dataspace import Dataspace, Publication, TopicFilter
from clearfunds.dataspace.queues import (
    BackingFactory,
    Channel,
    Consumer,
    DeadLetter,
    DeathReason,
    Delivery,
    MemoryShelf,
    Overflow,
    PrefetchWindow,
    Queue,
    QueueSettings,
    SteadyBacking,
    UnknownTagError,
)

WALL = 1.7e9
SIZES = (0, 1, 10, 300)


@attrs.define(eq=False)
class Entry:
    """One message in the model."""

    number: int
    size: int
    persistent: bool
    expires: float | None
    delivered: bool = False
    recorded: bool = False
    """Whether that may be known after a crash, too."""
    requeued: bool = False
    failures: int = 0
    finished: bool = False
    on_shelf: bool = False
    expected: int = 0
    answers: list[str] = attrs.Factory(list[str])


class Hears:
    """The confirm of one message."""

    def __init__(self, machine: QueueMachine, entry: Entry) -> None:
        self.machine = machine
        self.entry = entry

    def expect(self) -> None:
        self.entry.expected += 1

    def taken(self) -> None:
        self.entry.answers.append("taken")
        entry = self.entry
        with self.machine.watched():
            assert entry.expected == len(entry.answers) == 1
            assert entry.finished or not entry.persistent or self.machine.is_safe(entry), (
                f"{entry} was confirmed, and is neither safe nor dealt with"
            )

    def refused(self, reason: str) -> None:
        self.entry.answers.append(reason)
        with self.machine.watched():
            assert self.entry.expected == len(self.entry.answers) == 1
            self.machine.was_refused(self.entry)


@attrs.define(eq=False)
class Party:
    """A consumer in the model: what it has, by tag."""

    channel: Channel
    window: PrefetchWindow
    consumer: Consumer | None = None
    has: dict[int, Entry] = attrs.Factory(dict[int, Entry])
    deliveries: dict[int, Delivery] = attrs.Factory(dict[int, Delivery])
    no_ack: bool = False

    def has_room(self) -> bool:
        items, nbytes = self.window.items, self.window.nbytes
        used = [entry for tag, entry in self.has.items() if self.deliveries[tag].consumer]
        return (not items or len(used) < items) and (
            not nbytes or sum(entry.size for entry in used) < nbytes
        )


class QueueMachine(RuleBasedStateMachine):
    """See above. Subclasses say which policy of paging it is about, and may `look` into it."""

    factory: ClassVar[BackingFactory] = staticmethod(SteadyBacking)

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.faults: list[BaseException] = []
        self.count = 0
        self.entries: dict[int, Entry] = {}
        self.ready: list[Entry] = []
        self.parties: list[Party] = []
        self.gone: list[Party] = []
        self.refusable: Entry | None = None
        self.settings = QueueSettings()
        self.shelf: MemoryShelf | None = None
        self.rejecting: dict[int, DeathReason] = {}
        self.trouble = False

    # -- a life ---------------------------------------------------------------------------------

    @initialize(
        with_shelf=st.sampled_from([True, True, True, False]),
        durable=st.sampled_from([True, True, False]),
        max_length=st.sampled_from([None, None, 3, 8]),
        max_bytes=st.sampled_from([None, None, None, 700]),
        overflow=st.sampled_from(list(Overflow)),
        ttl=st.sampled_from([None, None, 3.0]),
        delivery_limit=st.sampled_from([None, 1, 2]),
    )
    def begin(
        self,
        with_shelf: bool,
        durable: bool,
        max_length: int | None,
        max_bytes: int | None,
        overflow: Overflow,
        ttl: float | None,
        delivery_limit: int | None,
    ) -> None:
        self.settings = QueueSettings(
            durable=durable,
            max_length=max_length,
            max_bytes=max_bytes,
            overflow=overflow,
            message_ttl=ttl,
            delivery_limit=delivery_limit,
        )
        self.open(MemoryShelf() if with_shelf else None)

    def open(self, shelf: MemoryShelf | None) -> None:
        """Begin a life of the process."""
        self.shelf = shelf
        self.trouble = False
        self.ledger = Ledger(clock=lambda: self.now)
        self.dataspace = Dataspace(self.ledger)
        self.publisher = self.ledger.open("publisher", limit=NO_LIMIT)
        disk = self.ledger.open("disk", limit=NO_LIMIT)
        self.account = self.ledger.open("disk/queue", limit=NO_LIMIT, parent=disk)
        self.queue = Queue(
            self.ledger,
            "queue",
            account=self.account,
            settings=self.settings,
            shelf=shelf,
            backing=type(self).factory,
            dead_letter=self.died,
            wall=lambda: WALL + self.now,
        )
        if shelf is not None:
            shelf.recover(self.queue)
        with self.publisher.turn() as turn:
            self.queue.bind(turn, self.dataspace, TopicFilter("a/#"), tag=2)
            self.queue.bind(turn, self.dataspace, TopicFilter("a/b"), tag=1)

    @property
    def persists(self) -> bool:
        return self.settings.durable and self.shelf is not None

    @property
    def refuses(self) -> bool:
        return self.settings.overflow is not Overflow.DROP_HEAD

    def watched(self) -> Any:
        """Keep what fails in a block: the queue catches what its consumers raise."""
        machine = self

        class Watch:
            def __enter__(self) -> None:
                pass

            def __exit__(self, kind: object, exc: BaseException | None, tb: object) -> bool:
                if exc is not None:
                    machine.faults.append(exc)
                return exc is not None

        return Watch()

    def is_safe(self, entry: Entry) -> bool:
        """Whether a crash now would leave it there."""
        assert self.shelf is not None
        return entry.number in numbers_on(self.shelf.crash())

    # -- what the queue tells -------------------------------------------------------------------

    def delivered(self, party: Party, delivery: Delivery) -> None:
        with self.watched():
            entry = self.entries[number_of(delivery.event)]
            assert self.ready, f"{entry} was delivered out of nowhere"
            # What has expired is passed over, and told of as dead when the deliveries are made.
            before = [each for each in self.ready[: self.ready.index(entry)] if not self.late(each)]
            assert not before, f"{entry} was delivered before {before[0]}"
            assert party.has_room(), f"{entry} was delivered to a full window"
            self.check_delivery(delivery, entry)
            self.ready.remove(entry)
            self.was_delivered(entry)
            if party.no_ack:
                entry.finished = True
            else:
                party.has[delivery.tag] = entry
                party.deliveries[delivery.tag] = delivery

    def was_delivered(self, entry: Entry) -> None:
        entry.delivered = True
        # With the disk in trouble there is no record, and consumers are served all the same.
        entry.recorded = entry.recorded or not self.trouble

    def late(self, entry: Entry) -> bool:
        return entry.expires is not None and entry.expires <= WALL + self.now

    def check_delivery(self, delivery: Delivery, entry: Entry) -> None:
        assert entry.expires is None or entry.expires > WALL + self.now, f"{entry} has expired"
        assert delivery.loan.items == 1
        assert delivery.loan.holder is self.queue
        assert delivery.loan.bytes == entry.size == delivery.message.size
        assert delivery.loan.item == [delivery.event]
        if entry.delivered:
            assert delivery.redelivered, f"{entry} was delivered again, and is said to be new"
        elif not entry.requeued:
            assert not delivery.redelivered, f"{entry} is said to have been delivered"
        assert delivery.message.tag == (2 if delivery.event.qos else None)

    def died(self, turn: Turn, letter: DeadLetter) -> None:
        with self.watched():
            entry = self.entries[number_of(letter.event)]
            reason = letter.reason
            assert not entry.finished
            if reason in (DeathReason.REJECTED, DeathReason.DELIVERY_LIMIT):
                assert self.rejecting.pop(entry.number) is reason
            elif reason is DeathReason.EXPIRED:
                assert self.late(entry)
                assert all(map(self.late, self.ready[: self.ready.index(entry)]))
                self.ready.remove(entry)
            elif not self.refuses:
                assert self.ready[0] is entry
                assert self.over_limits()
                self.ready.pop(0)
            else:
                # Told of after it was refused.
                assert self.settings.overflow is Overflow.REJECT_PUBLISH_DLX
                assert entry not in self.ready
            entry.finished = True

    def over_limits(self) -> bool:
        length, nbytes = self.settings.max_length, self.settings.max_bytes
        return (length is not None and len(self.ready) > length) or (
            nbytes is not None and sum(entry.size for entry in self.ready) > nbytes
        )

    def was_refused(self, entry: Entry) -> None:
        assert self.refuses
        assert self.ready[-1] is entry
        assert self.over_limits() or (self.trouble and entry.persistent)
        self.ready.pop()
        if not (
            self.settings.overflow is Overflow.REJECT_PUBLISH_DLX and self.over_limits_with(entry)
        ):
            entry.finished = True

    def over_limits_with(self, entry: Entry) -> bool:
        self.ready.append(entry)
        over = self.over_limits()
        self.ready.pop()
        return over and not self.trouble

    # -- publishing -----------------------------------------------------------------------------

    def new(self, size: int, qos: int) -> tuple[Entry, Publication]:
        self.count += 1
        event = Publication("a/b", b"%d:" % self.count + b"x" * size, qos=qos)
        ttl = self.settings.message_ttl
        entry = Entry(
            self.count,
            event.nbytes,
            self.persists and qos > 0,
            None if ttl is None else WALL + self.now + ttl,
        )
        self.entries[entry.number] = entry
        return entry, event

    @rule(size=st.sampled_from(SIZES), qos=st.sampled_from([0, 1, 1, 2]))
    def publish(self, size: int, qos: int) -> None:
        entry, event = self.new(size, qos)
        self.ready.append(entry)
        with self.publisher.turn(event, confirm=Hears(self, entry)) as turn:
            turn.publish(self.dataspace, event)
        if not entry.persistent and not self.refuses:
            assert not entry.expected

    @precondition(lambda self: not self.refuses)
    @rule(sizes=st.lists(st.sampled_from(SIZES), min_size=2, max_size=12), qos=st.integers(0, 1))
    def publish_several(self, sizes: list[int], qos: int) -> None:
        made = [self.new(size, qos) for size in sizes]
        self.ready += [entry for entry, _ in made]
        with self.publisher.turn(b"") as turn:
            for _, event in made:
                turn.publish(self.dataspace, event)

    # -- consuming ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.parties) < 3)
    @rule(
        items=st.sampled_from([0, 1, 2, 5]),
        nbytes=st.sampled_from([0, 0, 0, 100]),
        no_ack=st.sampled_from([False, False, False, False, True]),
    )
    def consume(self, items: int, nbytes: int, no_ack: bool) -> None:
        party = Party(Channel("party"), PrefetchWindow(items, nbytes), no_ack=no_ack)
        self.parties.append(party)
        party.consumer = self.queue.consume(
            lambda delivery: self.delivered(party, delivery),
            window=party.window,
            channel=party.channel,
            no_ack=no_ack,
        )

    def party(self, data: st.DataObject) -> Party:
        return data.draw(st.sampled_from(self.parties + self.gone), label="party")

    @precondition(lambda self: self.parties)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        party = data.draw(st.sampled_from(self.parties))
        self.parties.remove(party)
        self.gone.append(party)
        assert party.consumer is not None
        party.consumer.cancel()

    @precondition(lambda self: self.parties or self.gone)
    @rule(data=st.data(), failed=st.booleans())
    def close(self, data: st.DataObject, failed: bool) -> None:
        party = self.party(data)
        for parties in (self.parties, self.gone):
            if party in parties:
                parties.remove(party)
        self.give_back(list(party.has.values()), failed=failed)
        party.has.clear()
        party.channel.close(failed=failed)

    @precondition(lambda self: self.parties)
    @rule(data=st.data(), items=st.sampled_from([0, 1, 2, 5]))
    def resize(self, data: st.DataObject, items: int) -> None:
        data.draw(st.sampled_from(self.parties)).window.resize(items)

    @rule()
    def get(self) -> None:
        channel = Channel("get")
        party = Party(channel, PrefetchWindow())
        first = self.ready[0] if self.ready else None
        delivery = self.queue.get(channel)
        if delivery is None:
            assert not self.ready or self.queue.waiting
            return
        with self.watched():
            entry = self.entries[number_of(delivery.event)]
            # What was before it has expired, and been told of.
            assert first is entry or (first is not None and first.finished)
            assert self.ready[0] is entry
            self.check_delivery(delivery, entry)
            self.ready.remove(entry)
            self.was_delivered(entry)
            party.has[delivery.tag] = entry
            party.deliveries[delivery.tag] = delivery
            self.gone.append(party)

    def give_back(self, entries: list[Entry], *, failed: bool) -> None:
        limit = self.settings.delivery_limit
        for entry in entries:
            entry.requeued = True
            entry.failures += failed
            if failed and limit is not None and entry.failures > limit:
                self.rejecting[entry.number] = DeathReason.DELIVERY_LIMIT
            else:
                self.ready.append(entry)
        self.ready.sort(key=lambda entry: entry.number)

    def choose(self, data: st.DataObject, multiple: bool) -> tuple[Party, int, list[Entry]]:
        parties = [party for party in self.parties + self.gone if party.has]
        party = data.draw(st.sampled_from(parties))
        choices = [*party.has, *([0] if multiple else [])]
        tag: int = data.draw(st.sampled_from(choices), label="tag")
        tags = [t for t in party.has if t == tag or (multiple and (t <= tag or not tag))]
        return party, tag, [party.has.pop(t) for t in tags]

    def anything_unacked(self) -> bool:
        return any(party.has for party in self.parties + self.gone)

    @precondition(anything_unacked)
    @rule(data=st.data(), multiple=st.booleans())
    def ack(self, data: st.DataObject, multiple: bool) -> None:
        party, tag, entries = self.choose(data, multiple)
        for entry in entries:
            entry.finished = True
        party.channel.ack(tag, multiple=multiple)
        for again in {tag, 10_000}:
            if again:
                with pytest.raises(UnknownTagError):
                    party.channel.ack(again, multiple=multiple)

    @precondition(anything_unacked)
    @rule(data=st.data(), multiple=st.booleans(), requeue=st.booleans())
    def nack(self, data: st.DataObject, multiple: bool, requeue: bool) -> None:
        party, tag, entries = self.choose(data, multiple)
        if requeue:
            self.give_back(entries, failed=False)
        else:
            self.rejecting.update((entry.number, DeathReason.REJECTED) for entry in entries)
        party.channel.nack(tag, multiple=multiple, requeue=requeue)

    @precondition(anything_unacked)
    @rule(data=st.data(), requeue=st.booleans())
    def reject(self, data: st.DataObject, requeue: bool) -> None:
        party, tag, entries = self.choose(data, multiple=False)
        if requeue:
            self.give_back(entries, failed=True)
        else:
            self.rejecting.update((entry.number, DeathReason.REJECTED) for entry in entries)
        party.channel.reject(tag, requeue=requeue)

    # -- the disk, time, and the end ------------------------------------------------------------

    @precondition(lambda self: self.shelf is not None)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        assert self.shelf is not None
        unsynced = self.shelf.unsynced
        last = self.shelf.last_ticket
        self.shelf.sync(last - data.draw(st.integers(0, min(unsynced, 3)), label="left out"))

    @precondition(lambda self: self.shelf is not None and self.shelf.wants)
    @rule()
    def answer(self) -> None:
        assert self.shelf is not None
        self.shelf.answer()

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = self.queue.tick(self.now)
        assert due >= self.now or self.queue.waiting

    @precondition(lambda self: self.shelf is not None)
    @rule(items=st.sampled_from([0, 2, 10, None, None]))
    def budget(self, items: int | None) -> None:
        self.account.limit = Limit(items=items, bytes=None) if items is not None else NO_LIMIT

    @precondition(lambda self: self.shelf is not None)
    @rule(trouble=st.sampled_from([True, False, False]))
    def disk_trouble(self, trouble: bool) -> None:
        self.trouble = trouble
        self.queue.shelf_trouble("the disk is on fire" if trouble else None)

    @rule()
    def purge(self) -> None:
        for entry in self.ready:
            entry.finished = True
        count = len(self.ready)
        self.ready.clear()
        assert self.queue.purge() == count

    @precondition(lambda self: self.shelf is not None)
    @rule()
    def crash(self) -> None:
        assert self.shelf is not None
        shelf = self.shelf.crash()
        found = numbers_on(shelf)
        for entry in self.entries.values():
            if entry.persistent and entry.answers == ["taken"] and not entry.finished:
                assert entry.number in found, f"{entry} was accepted, and is lost"
        self.restart(shelf, found)

    @precondition(lambda self: self.shelf is not None)
    @rule()
    def stop(self) -> None:
        """End in order: what was written is there."""
        assert self.shelf is not None
        self.queue.close()
        self.ledger.audit()
        assert not self.publisher.debt_items
        assert not self.account.debt_items
        self.shelf.sync()
        shelf = self.shelf.crash()
        self.restart(shelf, numbers_on(shelf))

    def restart(self, shelf: MemoryShelf, found: list[int]) -> None:
        self.parties.clear()
        self.gone.clear()
        self.rejecting.clear()
        if not self.settings.durable:
            # What has the shelf erases it, with the queue.
            shelf, found = MemoryShelf(), []
        self.ready = [self.entries[number] for number in found]
        for entry in self.ready:
            # It may be one that was acked, if the shelf had not come to know that.
            entry.finished = False
            entry.requeued = True
            entry.delivered = entry.recorded
            entry.failures = 0
        self.open(shelf)

    @rule()
    def settle(self) -> None:
        """Nothing is held back once the disk has answered everything."""
        for _ in range(3):
            self.queue.tick(self.now)
            if self.shelf is not None:
                self.shelf.settle()
        assert not self.queue.waiting
        if self.ready:
            assert not any(party.has_room() for party in self.parties), "somebody is left waiting"
        if not self.refuses:
            assert not self.over_limits()
        if self.ready and self.ready[0].expires is not None:
            assert self.ready[0].expires > WALL + self.now
        if self.shelf is not None and self.account.limit == NO_LIMIT and not self.trouble:
            left = [e for e in self.ready if e.persistent]
            left += [e for p in self.parties + self.gone for e in p.has.values() if e.persistent]
            assert self.account.debt_items >= len(left), "something durable is not at rest"

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if self.faults:
            raise self.faults[0]
        if not hasattr(self, "queue"):
            return
        self.ledger.audit()
        queue = self.queue
        assert not self.rejecting
        assert len(queue) == len(self.ready)
        statistics = queue.statistics()
        unacked = [e for party in self.parties + self.gone for e in party.has.values()]
        assert statistics.unacked == len(unacked)
        assert statistics.unacked_bytes == sum(entry.size for entry in unacked)
        assert statistics.ready_bytes == sum(entry.size for entry in self.ready)
        backing = statistics.backing
        assert backing.ready == len(self.ready)
        assert backing.ready_in_ram + backing.disk_only <= backing.ready
        assert queue.backing.ram_count == backing.ready_in_ram + backing.pending_in_ram
        assert queue.backing.ram_bytes == backing.ram_bytes
        assert statistics.disk_items == self.account.debt_items
        if self.shelf is None:
            assert backing.ready_in_ram == backing.ready
            assert not statistics.disk_items
        for party in self.parties:
            assert party.window.used_items == len(party.has)
        self.look()

    def look(self) -> None:
        """Check what the policy of paging promises. For subclasses."""

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.delete()
            self.ledger.audit()
            assert not self.publisher.debt_items
            assert not self.account.debt_items


def number_of(event: Any) -> int:
    """Return the number that an event was published with."""
    return int(event.payload.split(b":")[0])


def numbers_on(shelf: MemoryShelf) -> list[int]:
    """Return the numbers of what a shelf has, in its order."""
    return [number_of(message.event) for message in shelf.messages]


def machine_for(
    factory: BackingFactory, look: Callable[[QueueMachine], None] | None = None, examples: int = 40
) -> Any:
    """Return a test case that runs the machine with a policy of paging.

    `look(machine)` checks after every step what that policy promises.
    """

    class Machine(QueueMachine):
        def look(self) -> None:
            if look is not None:
                look(self)

    Machine.factory = staticmethod(factory)
    case = Machine.TestCase
    case.settings = settings(
        deadline=None,
        max_examples=examples,
        stateful_step_count=40,
        # Explaining a failure takes longer than finding and shrinking it.
        phases=[phase for phase in Phase if phase is not Phase.explain],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return case
