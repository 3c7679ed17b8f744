"""A mailbox under each policy, against a list: what it keeps and loses, and who owes for it."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from clearfunds.accounts import Ledger, Limit, LoanedItem, Outcome, StuckPolicy
from clearfunds.dataspace import Batch, Dataspace, Mailbox, Publication, TopicFilter
from clearfunds.dataspace.queues import MemoryShelf, Queue, QueueSettings

TOPICS = "abc"


def numbered(topic: str, number: int) -> Publication:
    return Publication(topic, b"%d" % number)


def number_of(event: Publication) -> int:
    return int(event.payload)


@attrs.define
class Pending:
    """One event that has been sent and not received."""

    number: int
    topic: str


class Machine(RuleBasedStateMachine):
    """Publishers, one mailbox that may be stuck, and a consumer with some loans in hand."""

    policy: StuckPolicy
    #: Whether it spills to memory, within its own limit, and not to a queue.
    memory = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.dataspace = Dataspace(self.ledger)
        self.publishers = [self.ledger.open(f"p{n}", limit=Limit(items=3)) for n in range(2)]
        self.sent = 0
        self.pending: list[Pending] = []
        self.received: list[int] = []
        self.last = -1  # the number received last
        self.lost = 0
        # Loans in hand, and which of them the bound counts.
        self.in_hand: list[tuple[LoanedItem[Any], bool]] = []
        self.shelf = MemoryShelf()

    @initialize(keep=st.sampled_from([1, 2, 3, 5, 100]))
    def begin(self, keep: int) -> None:
        self.keep = keep
        spill = None
        if self.policy is StuckPolicy.SPILL and not self.memory:
            disk = self.ledger.open("disk", limit=Limit(items=None, bytes=None), at_rest="disk")
            spill = Queue(
                self.ledger,
                "spill",
                account=disk,
                shelf=self.shelf,
                settings=QueueSettings(durable=True),
                persistent=lambda _: True,
                wall=lambda: self.now,
            )
            self.shelf.recover(spill)
        self.mailbox = Mailbox(
            self.ledger,
            "m",
            policy=self.policy,
            retain_limit=Limit(items=keep, bytes=None),
            spill=spill,
        )
        owner = self.ledger.open("owner")
        with owner.turn() as turn:
            self.dataspace.observe(turn, TopicFilter("#"), self.mailbox)

    def spills(self) -> bool:
        return self.policy is StuckPolicy.SPILL

    # -- what happens ---------------------------------------------------------------------------

    @rule(
        who=st.integers(0, 1),
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3),
        as_batch=st.booleans(),
    )
    def publish(self, who: int, topics: list[str], as_batch: bool) -> None:
        events = [numbered(topic, self.sent + n) for n, topic in enumerate(topics)]
        self.sent += len(events)
        account = self.publishers[who]
        if as_batch:
            batch = Batch(b"x" * (7 * len(events)), len(events), lambda _: events)
            with account.turn(items=len(events)) as turn:
                turn.send(self.mailbox, batch, items=len(events), nbytes=batch.nbytes)
        else:
            with account.turn() as turn:
                for event in events:
                    turn.publish(self.dataspace, event)
        for event in events:
            self.arrives(Pending(number_of(event), event.topic))

    def room(self) -> int:
        return self.keep - sum(loan.items for loan, counts in self.in_hand if counts)

    def arrives(self, one: Pending) -> None:
        lagging = self.mailbox.lagging
        if not lagging or self.spills():
            self.pending.append(one)
            return
        if self.policy is StuckPolicy.CONFLATE:
            self.pending = [each for each in self.pending if each.topic != one.topic]
        if self.policy is StuckPolicy.DROP_NEWEST:
            if len(self.pending) < self.room():
                self.pending.append(one)
        else:
            self.pending.append(one)
            room = self.room()
            self.pending = self.pending[-room:] if room > 0 else []

    @rule()
    def receive(self) -> None:
        mailbox = self.mailbox
        if not mailbox.queue:
            return
        was_lagging = mailbox.lagging
        loan = mailbox.receive_nowait()
        events = list(loan.item)
        expected, self.pending = self.pending[: len(events)], self.pending[len(events) :]
        numbers = [number_of(event) for event in events]
        assert numbers == [each.number for each in expected]
        assert mailbox.dropped == numbers[0] - self.last - 1
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        self.last = numbers[-1]
        self.lost += mailbox.dropped
        self.received += numbers
        self.in_hand.append((loan, was_lagging))
        if was_lagging and not mailbox.lagging:
            assert not self.pending
            self.in_hand = [(each, False) for each, _ in self.in_hand]

    @rule(which=st.integers(0, 3), outcome=st.sampled_from([Outcome.DELIVERED, Outcome.REJECTED]))
    def finish(self, which: int, outcome: Outcome) -> None:
        if which < len(self.in_hand):
            loan, _ = self.in_hand.pop(which)
            loan.settle(outcome=outcome)

    @rule()
    def is_stuck(self) -> None:
        """Its patience is over while somebody waits: what `watch_patience` does then."""
        if not self.mailbox.policy.relieves:
            return  # its memory is used up: it would be given up
        began = not self.mailbox.lagging
        self.mailbox.relieve("m is stuck")
        if not began or self.spills():
            return
        if self.policy is StuckPolicy.DROP_NEWEST:
            self.pending = self.pending[: self.keep]
        elif self.policy is StuckPolicy.DROP_OLDEST:
            self.pending = self.pending[-self.keep :]
        else:
            latest = {each.topic: each for each in self.pending}
            kept = sorted(latest.values(), key=lambda each: each.number)
            self.pending = kept[-self.keep :]

    @rule()
    def disk_syncs(self) -> None:
        self.shelf.sync()

    @rule()
    def disk_answers(self) -> None:
        while self.shelf.wants:
            self.shelf.answer()

    @rule(seconds=st.sampled_from([0.1, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # -- what holds -----------------------------------------------------------------------------

    @invariant()
    def the_books_balance(self) -> None:
        self.ledger.audit()

    @invariant()
    def nobody_waits_on_who_is_behind(self) -> None:
        if not self.sent or not self.mailbox.lagging:
            return
        backlog = self.mailbox.backlog
        assert backlog is not None
        assert self.mailbox in self.ledger.lagging
        owed = {id(loan) for loan in self.mailbox.waited_for()}
        assert all(
            backlog.owes_for(loan) is (id(loan) not in owed) for loan in self.mailbox.loans()
        )
        assert not owed or self.memory
        if self.memory:
            assert backlog.account.debt_items <= self.keep
            assert (self.mailbox.full_patience is None) is not bool(owed)
            assert sum(each.debt_items for each in self.publishers) == sum(
                loan.items for loan in self.mailbox.waited_for()
            )
        if not self.spills():
            assert all(not account.debt_items for account in self.publishers)
            assert backlog.account.debt_items <= self.keep

    @invariant()
    def what_is_kept_is_what_the_policy_says(self) -> None:
        if not self.sent or self.spills():
            return
        kept = [
            number_of(event)
            for loan in self.mailbox.queue
            for entry in loan.item
            for event in (entry.events() if isinstance(entry, Batch) else [entry])
        ]
        assert kept == [each.number for each in self.pending]

    @invariant()
    def what_was_sent_is_received_or_kept_or_lost(self) -> None:
        if not self.sent:
            return
        assert self.received == sorted(set(self.received))
        dropped = self.mailbox.relief.dropped_items
        assert len(self.received) + len(self.pending) + dropped == self.sent
        assert self.ledger.relief[self.policy].dropped_items == dropped
        if self.spills():
            assert dropped == 0

    def teardown(self) -> None:
        if not self.sent:
            return
        # The consumer is back: it gets all that is left, in order, and has caught up.
        for loan, _ in self.in_hand:
            loan.settle()
        self.in_hand.clear()
        for _ in range(3 * self.sent + 3):
            self.disk_syncs()
            self.disk_answers()
            while self.mailbox.queue:
                self.receive()
                self.finish(0, Outcome.DELIVERED)
        with pytest.raises(trio.WouldBlock):
            self.mailbox.receive_nowait()
        assert not self.pending
        assert not self.mailbox.lagging
        assert self.lost + self.mailbox._trailing_gap == self.mailbox.relief.dropped_items  # pyright: ignore[reportPrivateUsage]
        self.mailbox.close()
        self.shelf.sync()
        self.ledger.audit()
        assert all(not account.debt_items for account in self.ledger.accounts.values())
        assert not any(name.startswith("behind") for name in self.ledger.accounts)


def explore(of: StuckPolicy, examples: int, *, to_memory: bool = False) -> None:
    class Each(Machine):
        policy = of
        memory = to_memory

    run_state_machine_as_test(
        Each, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )


RELIEVING = [each for each in StuckPolicy if each.relieves]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "clearfunds.accounts")


@pytest.mark.parametrize("policy", RELIEVING)
def test_what_is_kept_and_lost(policy: StuckPolicy) -> None:
    explore(policy, 15)


def test_what_is_spilled_to_memory() -> None:
    explore(StuckPolicy.SPILL, 25, to_memory=True)


@pytest.mark.long
@pytest.mark.parametrize("policy", RELIEVING)
def test_what_is_kept_and_lost_for_longer(policy: StuckPolicy) -> None:
    explore(policy, 500)


@pytest.mark.long
def test_what_is_spilled_to_memory_for_longer() -> None:
    explore(StuckPolicy.SPILL, 500, to_memory=True)
