"""A relay without sockets: real accounts, turns, dataspace and holders, and simulated people.

Publishers read as a connection's reader does: they wait for clear funds, and what comes in is a
turn. Subscribers take what is theirs at their own pace, stall, die, are given up and come back.
Time is a `MockClock`'s; what is left to chance is drawn from the seed, Trio's scheduling as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from random import Random
from typing import Any, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    StuckPolicy,
    overdue,
    watch_patience,
)
from clearfunds.accounts._patience import WATCH_SECONDS
from clearfunds.dataspace import (
    Dataspace,
    GivenUpError,
    Mailbox,
    Observation,
    Publication,
    TopicFilter,
)
from tests.simulator.books import Books, EventLog
from tests.simulator.plans import Plan, PublisherPlan, Session, SubscriberPlan, chance_of

T = TypeVar("T")

GRACE_SECONDS = 120.0
"""How long subscribers may take for what is left when nothing is published any more."""

ANSWER_BYTES = 8

FAILS = 0.02
"""How likely it is that a worker fails with an event."""


class FailedError(Exception):
    """What workers raise when they fail."""


@contextmanager
def same_again(seed: int) -> Generator[None]:
    """Let Trio schedule by a seed, and let the watch's own stop-watch go by its looks.

    Trio runs a batch of tasks in a random order; what it shuffles is first brought into the order
    in which the tasks were made, as Hypothesis has it done. Two deadlines that are over at the same
    time wake tasks of the same batch.
    """
    looks = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trio._core._run._r", Random(seed))
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr("clearfunds.accounts._patience.perf_counter", lambda: next(looks) * 1e-5)
        yield


def run(scenario: Callable[[MockClock], Awaitable[Any]], seed: int) -> Any:
    """Run `scenario` with a clock that jumps to whatever happens next, the same for each seed."""
    clock = MockClock(autojump_threshold=0)
    with same_again(seed):
        return trio.run(scenario, clock, clock=clock)


async def before(end: float, waiting: Callable[[], Awaitable[T]]) -> T | None:
    """Wait for something, until the end at most."""
    if end == inf:
        return await waiting()
    with trio.move_on_at(end):
        return await waiting()
    return None


class Box(Mailbox):
    """A mailbox of a simulated subscriber.

    The ledger's sets have them in the order of their serial numbers, in every run.
    """

    __slots__ = ("serial",)

    def __init__(self, ledger: Ledger, name: str, serial: int, **options: Any) -> None:
        self.serial = serial
        super().__init__(ledger, name, **options)

    def __hash__(self) -> int:
        return self.serial


class Wire(LoanQueue):
    """As an outlet: the oldest first, one at a time, whatever loan it is of."""

    __slots__ = ("arrivals", "given_up", "serial")

    kind = "wire"

    def __init__(self, ledger: Ledger, name: str, serial: int, **options: Any) -> None:
        self.serial = serial
        super().__init__(ledger, name, **options)
        self.arrivals = trio.lowlevel.ParkingLot()
        self.given_up = False

    def __hash__(self) -> int:
        return self.serial

    def ready(self) -> None:
        """See `Holder.ready`."""
        self.arrivals.unpark_all()

    async def head(self) -> LoanedItem[list[Any]] | None:
        """Wait for something to send, and return the loan it is of; None: it is closed."""
        await trio.lowlevel.checkpoint()
        while not self.queue and not self.closed:
            await self.arrivals.park()
        return self.queue[0] if self.queue else None

    def sent(self, loan: LoanedItem[list[Any]]) -> Any:
        """Note that the first event of a loan was taken, if it is still here; and return it."""
        if not self.queue or self.queue[0] is not loan:
            return None
        event = loan.item.pop(0)
        loan.settle(1, nbytes=min(size_of(event), loan.bytes))
        if not loan.items:
            self.queue.popleft()
        return event

    def close(self, outcome: Outcome = Outcome.DROPPED) -> None:
        """Take nothing more; what is here ends so."""
        self.closed = True
        self.settle_all(outcome)
        self.arrivals.unpark_all()

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`."""
        self.given_up = True
        self.close(Outcome.WRITTEN_OFF)


def event_of(publisher: str, number: int, topic: str, size: int) -> Publication:
    """Return a publication that says whose it is, which of his, and how large it is taken to be."""
    return Publication(topic, f"{publisher} {number} {size}".encode())


def size_of(event: Publication) -> int:
    """Return how large an event is taken to be."""
    return int(event.payload.rpartition(b" ")[2])


@attrs.define(eq=False)
class Inbox:
    """One connection of a subscriber, and what it ought to have got."""

    plan: SubscriberPlan
    holder: Box | Wire
    topics: frozenset[str]
    items: int = 0
    bytes: int = 0
    done: int = 0
    """Events it has dealt with."""
    last: dict[str, int] = attrs.field(factory=dict[str, int])
    """The latest number it got, by publisher."""


class World:
    """All of it.

    Args:
        plan: What is to happen.
        clock: Whose time it is.
        every: After how many steps of somebody the books are looked at.
    """

    TOLD = 30
    """How many of the latest events are told of when something goes wrong."""

    def __init__(self, plan: Plan, clock: MockClock, every: int = 1) -> None:
        self.plan = plan
        self.every = every
        self.steps = 0
        self.checks = 0
        self.ledger = Ledger(clock=clock.current_time)
        self.dataspace = Dataspace(self.ledger)
        self.log = EventLog(self.ledger)
        self.books = self.ledger.recorder = Books(self.log)
        self.numbers: Counter[str] = Counter()
        self.serials = count()
        self.inboxes: dict[Inbox, None] = {}
        self.audience: dict[str, dict[Inbox, None]] = {topic: {} for topic in plan.topics}
        self.copies = 0
        self.largest: dict[str, tuple[int, int]] = {}
        self.waiting_since: dict[str, float] = {}
        self.longest_wait = 0.0
        self.inherited = 0
        scale = plan.scale
        self.answers, self.answer_box = self._answers()
        self.server = self.ledger.open("server", limit=Limit(items=scale.server_limit, bytes=None))
        self.parents: dict[str, Account] = {}
        limit = Limit(items=scale.tenant_limit, bytes=8 << 20)
        for each in plan.publishers:
            if each.tenant not in self.parents:
                self.parents[each.tenant] = self.ledger.open(
                    each.tenant, limit=limit, parent=self.server
                )
            if each.user not in self.parents:
                self.parents[each.user] = self.ledger.open(
                    each.user, limit=NO_LIMIT, parent=self.parents[each.tenant]
                )

    def _answers(self) -> tuple[Inbox, Box]:
        """Return where all workers' answers go."""
        plan = SubscriberPlan(
            name="answers", kind="mailbox", filters=(), seconds_per_item=0.0,
            policy=StuckPolicy.WAIT, patience=20.0, sessions=(), stalls=(), returns_after=0.0,
        )  # fmt: skip
        box = Box(self.ledger, plan.name, next(self.serials))
        return Inbox(plan, box, frozenset()), box

    # -- everybody ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let it all happen, and see that nothing is left."""
        async with trio.open_nursery() as watchers:
            watchers.start_soon(watch_patience, self.ledger)
            watchers.start_soon(self.read_answers)
            async with trio.open_nursery() as subscribers:
                for subscriber in self.plan.subscribers:
                    subscribers.start_soon(self.subscriber, subscriber)
                async with trio.open_nursery() as publishers:
                    for publisher in self.plan.publishers:
                        publishers.start_soon(self.publisher, publisher)
                self.log.add("published all")
                with trio.move_on_after(GRACE_SECONDS):
                    while self.ledger.statistics().debt_items:
                        await trio.sleep(1.0)
                        self.check()
                self.log.add("received all")
                subscribers.cancel_scope.cancel()
            watchers.cancel_scope.cancel()
        self.check()
        self.check_inbox(self.answers)
        assert not self.inboxes
        assert not self.server.debt_items
        assert not self.server.debt_bytes
        for parent in reversed(self.parents.values()):
            parent.close()
        self.server.close()
        assert not self.ledger.accounts
        assert self.ledger.borrowed_items == sum(self.ledger.repaid_items)
        assert self.ledger.borrowed_bytes == sum(self.ledger.repaid_bytes)
        assert not self.ledger.leaked_loans

    async def read_answers(self) -> None:
        """Read all workers' answers."""
        async for loan in self.answer_box:
            with loan:
                await trio.sleep(0.01)
                self.answers.done += loan.items

    # -- publishers -----------------------------------------------------------------------------

    async def publisher(self, plan: PublisherPlan) -> None:
        """Publish, in each of the sessions."""
        chance = chance_of(self.plan.scale, f"{plan.name} publishes")
        parent = self.parents[plan.user]
        for session in plan.sessions:
            await trio.sleep_until(session.begin)
            before = self.ledger.accounts.get(plan.name)
            owed = 0 if before is None else before.debt_items
            account = self.ledger.open(plan.name, limit=plan.limit, parent=parent)
            # No laundering by reconnecting (rule 14).
            assert account.debt_items == owed
            self.inherited += bool(owed)
            self.log.add("opened", plan.name, owed)
            with account, trio.move_on_at(session.end):
                await self.publishing(plan, account, chance)
            self.waiting_since.pop(plan.name, None)
            self.log.add("closed", plan.name)

    async def publishing(self, plan: PublisherPlan, account: Account, chance: Random) -> None:
        """Publish until cancelled."""
        while True:
            await trio.sleep(chance.expovariate(plan.turns_per_second))
            await self.clear(account)
            events: list[Publication] = []
            for _ in range(chance.randint(1, plan.batch)):
                self.numbers[plan.name] += 1
                topic = self.plan.topic(chance)
                size = chance.randint(*plan.sizes)
                events.append(event_of(plan.name, self.numbers[plan.name], topic, size))
            self.publish(account, events)
            self.step()

    async def clear(self, account: Account) -> None:
        """Wait for clear funds, and see that they are."""
        began = self.ledger.clock()
        self.waiting_since[account.name] = began
        await account.ensure_clear_funds()
        del self.waiting_since[account.name]
        waited = self.ledger.clock() - began
        self.longest_wait = max(self.longest_wait, waited)
        if waited:
            self.log.add("went on", account.name, waited)
        for each in account.chain:
            assert not each.halted
            assert each.debt_items <= each.mark_items
            assert each.debt_bytes <= each.mark_bytes

    def publish(self, account: Account, events: list[Publication]) -> None:
        """Publish in one turn; who gets it is known beforehand, without the dataspace."""
        input_bytes = items = nbytes = 0
        for event in events:
            size = size_of(event)
            audience = self.audience[event.topic]
            for inbox in audience:
                inbox.items += 1
                inbox.bytes += size
            input_bytes += size
            items += len(audience)
            nbytes += len(audience) * size
        self.copies += items
        self.may_owe(account, items + len(events), nbytes + input_bytes)
        with account.turn(items=len(events), nbytes=input_bytes) as turn:
            for event in events:
                turn.publish(self.dataspace, event, nbytes=size_of(event))
        assert self.dataspace.deliveries == self.copies

    def may_owe(self, account: Account, items: int, nbytes: int) -> None:
        """Note what the largest turn was that each account has let through (rule 9)."""
        for each in account.chain:
            most = self.largest.get(each.name, (0, 0))
            self.largest[each.name] = max(most[0], items), max(most[1], nbytes)

    # -- subscribers ----------------------------------------------------------------------------

    async def subscriber(self, plan: SubscriberPlan) -> None:
        """Subscribe, in each of the sessions, and anew when given up."""
        for number, session in enumerate(plan.sessions):
            await trio.sleep_until(session.begin)
            again = 0
            while True:
                name = f"{plan.name} session {number}.{again}"
                if not await self.connection(plan, name, session):
                    break
                again += 1
                await trio.sleep(plan.returns_after)

    async def connection(self, plan: SubscriberPlan, name: str, session: Session) -> bool:
        """Be connected once; whether it was given up."""
        make = Wire if plan.kind == "wire" else Box
        holder = make(
            self.ledger, name, next(self.serials), patience=plan.patience, policy=plan.policy
        )
        inbox = Inbox(plan, holder, self.plan.matching(plan.filters))
        end = session.end if session.end < self.plan.scale.seconds else inf
        with self.connected(inbox), trio.move_on_at(end if session.fails else inf):
            try:
                if isinstance(holder, Wire):
                    return await self.sending(inbox, holder, end)
                await self.receiving(inbox, holder, end)
            except GivenUpError:
                return True
        return False

    @contextmanager
    def connected(self, inbox: Inbox) -> Generator[None]:
        """Have a subscription for the length of a block."""
        plan, holder = inbox.plan, inbox.holder
        with self.ledger.open(plan.name, limit=NO_LIMIT) as account:
            observations: list[Observation] = []
            with account.turn() as turn:
                for each in plan.filters:
                    wanted = TopicFilter(each)
                    observations.append(self.dataspace.observe(turn, wanted, holder))
            self.inboxes[inbox] = None
            for topic in sorted(inbox.topics):
                self.audience[topic][inbox] = None
            self.log.add("subscribed", holder.name)
            try:
                yield
            finally:
                with account.turn() as turn:
                    for observation in observations:
                        self.dataspace.unobserve(turn, observation)
                for topic in inbox.topics:
                    del self.audience[topic][inbox]
                holder.close()
                self.check_inbox(inbox)
                self.ledger.unregister(holder)
                del self.inboxes[inbox]
                self.log.add("unsubscribed", holder.name, inbox.items, inbox.done)

    async def stalling(self, plan: SubscriberPlan) -> None:
        """Do nothing for as long as a stall lasts, if there is one."""
        for begin, seconds in plan.stalls:
            if begin <= trio.current_time() < begin + seconds:
                self.log.add("stalls", plan.name)
                await trio.sleep_until(begin + seconds)

    async def receiving(self, inbox: Inbox, box: Box, end: float) -> None:
        """Deal with what is in a mailbox, until the end of the session.

        Raises:
            GivenUpError: If that came before.
        """
        plan = inbox.plan
        chance = chance_of(self.plan.scale, box.name)
        while True:
            await self.stalling(plan)
            loan = await before(end, box.receive)
            if loan is None:
                return
            with suppress(FailedError), loan as events:
                self.in_order(inbox, events)
                await trio.sleep(plan.seconds_per_item * len(events))
                await self.stalling(plan)
                if plan.kind == "worker":
                    self.answering(inbox, loan, chance)
                inbox.done += loan.items
            self.step()

    def answering(self, inbox: Inbox, loan: LoanedItem[list[Any]], chance: Random) -> None:
        """Answer each event, for whoever caused it; and fail now and then."""
        while loan.items:
            if chance.random() < FAILS:
                raise FailedError
            with loan.turn() as turn:
                turn.send(self.answer_box, b"answer", nbytes=ANSWER_BYTES)
            self.answers.items += 1
            self.answers.bytes += ANSWER_BYTES
            loan.settle(1)
            inbox.done += 1

    async def sending(self, inbox: Inbox, wire: Wire, end: float) -> bool:
        """Let a wire's peer take what is there, until the end; whether it was given up."""
        while True:
            await self.stalling(inbox.plan)
            loan = await before(end, wire.head)
            if loan is None:
                return wire.given_up
            await trio.sleep(inbox.plan.seconds_per_item)
            event = wire.sent(loan)
            if event is not None:
                self.in_order(inbox, [event])
                inbox.done += 1
            self.step()

    def in_order(self, inbox: Inbox, events: Iterable[Publication]) -> None:
        """See that it has got from each publisher what that one sent, in the order of sending."""
        for event in events:
            publisher, number, _ = event.payload.decode().split()
            assert event.topic in inbox.topics
            assert int(number) > inbox.last.get(publisher, 0)
            inbox.last[publisher] = int(number)

    # -- what has to hold -----------------------------------------------------------------------

    def step(self) -> None:
        """Somebody has done something: look whether all is well, every so often."""
        self.steps += 1
        if not self.steps % self.every:
            self.check()

    def check(self) -> None:
        """Look whether all is well."""
        self.checks += 1
        ledger = self.ledger
        ledger.audit()
        self.books.check_totals(ledger)
        for inbox in self.inboxes:
            self.check_inbox(inbox)
        for account in ledger.accounts.values():
            items, nbytes = self.largest.get(account.name, (0, 0))
            # One answer is borrowed before what it answers is repaid (rule 3).
            assert account.peak_items <= account.mark_items + items + 1, account
            assert account.peak_bytes <= account.mark_bytes + nbytes + ANSWER_BYTES, account
        now = ledger.clock()
        for stuck in overdue(ledger, now):
            if stuck.holder.policy is not StuckPolicy.WAIT:
                assert stuck.idle_seconds <= stuck.holder.patience + 2 * WATCH_SECONDS, stuck

    def check_inbox(self, inbox: Inbox) -> None:
        """Look whether all that was ever sent to somebody is accounted for."""
        name = inbox.holder.name
        self.books.check_holder(inbox.holder, inbox.items, inbox.bytes)
        assert inbox.done == self.books.of_holder[name][Outcome.DELIVERED], inbox
