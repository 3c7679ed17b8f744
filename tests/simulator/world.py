"""A relay without sockets: real accounts, turns, dataspace and holders, and simulated people.

Publishers read as a connection's reader does: they wait for clear funds, and what comes in is a
turn. Subscribers take what is theirs at their own pace, stall, die, are given up and come back.
Time is a `MockClock`'s; what is left to chance is drawn from the seed, Trio's scheduling as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count, islice
from math import inf
from operator import attrgetter
from random import Random
from typing import Any, TypeVar, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Holder,
    LatencyLimit,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    OverLimitWatch,
    RateLimit,
    StuckPolicy,
    overdue,
    watch_limits,
    watch_patience,
)
from clearfunds.accounts._backlog import LAGGING
from clearfunds.accounts._fair_queue import FairQueue
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.limits._shares import HARD
from clearfunds.accounts.watch._patience import WATCH_SECONDS
from clearfunds.dataspace import (
    Dataspace,
    GivenUpError,
    Mailbox,
    Observation,
    Publication,
    TopicFilter,
)
from clearfunds.dataspace.queues import MemoryShelf, Queue, QueueSettings
from tests.simulator.books import Books, EventLog
from tests.simulator.plans import FLOOR, Plan, PublisherPlan, Session, SubscriberPlan, chance_of

T = TypeVar("T")

GRACE_SECONDS = 120.0
"""How long subscribers may take for what is left when nothing is published any more."""

FLOOR_BYTES = 50_000

ROOMY_BYTES = 1 << 20
"""More than all topics' largest publications."""

DISK_SECONDS = 0.2

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
    time wake tasks of the same batch. Holders that get the same event do so in the order of their
    serial numbers, and not of their places in memory.
    """
    looks = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trio._core._run._r", Random(seed))
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr("clearfunds.accounts._cooperative.perf_counter", lambda: next(looks) * 1e-5)
        patch.setattr("clearfunds.dataspace._routes.id", attrgetter("serial"), raising=False)
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


class Needed(Holder):
    """A holder that is handled by its policy only while readers wait for its debt."""

    __slots__ = ()

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """See `Holder.relieve`."""
        assert blocks_readers(self), self.name
        super().relieve(why, fields)


class Box(Needed, Mailbox):
    """A mailbox of a simulated subscriber.

    The ledger's sets have them in the order of their serial numbers, in every run.
    """

    __slots__ = ("serial",)

    def __init__(self, ledger: Ledger, name: str, serial: int, **options: Any) -> None:
        self.serial = serial
        super().__init__(ledger, name, **options)

    def __hash__(self) -> int:
        return self.serial

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`."""
        assert blocks_readers(self), self.name
        super().give_up(why)


class Wire(Needed, LoanQueue):
    """As an outlet: the oldest first, one at a time, whatever loan it is of.

    What its peer has been offered a part of has to be finished, whatever becomes of the rest. One
    that is fair takes loans in rounds, as a fair outlet that is blocked; `queue` is then the one of
    which some have been offered.
    """

    __slots__ = ("arrivals", "flows", "given_up", "offered", "serial")

    kind = "wire"

    policies = frozenset(StuckPolicy) - {StuckPolicy.SPILL}

    def __init__(
        self, ledger: Ledger, name: str, serial: int, *, fair: bool = False, **options: Any
    ) -> None:
        self.serial = serial
        super().__init__(ledger, name, **options)
        self.flows = FairQueue() if fair else None
        self.arrivals = trio.lowlevel.ParkingLot()
        self.given_up = False
        self.offered = False

    def __hash__(self) -> int:
        return self.serial

    @property
    def begun(self) -> int:
        """See `LoanQueue.begun`."""
        return int(self.offered)

    def key_of(self, entry: Any) -> Hashable:
        """See `LoanQueue.key_of`."""
        return cast("Publication", entry).topic

    def ready(self) -> None:
        """See `Holder.ready`."""
        self.arrivals.unpark_all()

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`."""
        if self.flows is None or self.closed or self.lagging:
            super().hold(account, item, items, nbytes, now)
            return
        if not self.queue and not self.flows:
            self.progressed_at = now
        self.flows.hold(account, item, items, nbytes, now, self)

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`."""
        yield from self.queue
        if self.flows is not None:
            yield from self.flows

    def settle_all(self, outcome: Outcome) -> None:
        """See `LoanQueue.settle_all`."""
        self._take_all()
        super().settle_all(outcome)

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """See `LoanQueue.relieve`."""
        self._take_all()
        super().relieve(why, fields)

    def _take_all(self) -> None:
        if self.flows is not None:
            self.queue.extend(self.flows.clear())

    async def offer(self) -> bool:
        """Wait until the peer has been offered something; false: it is closed."""
        await trio.lowlevel.checkpoint()
        while not self.queue and not self.flows and not self.closed:
            await self.arrivals.park()
        if self.flows and not self.queue:
            self.queue.append(self.flows.pop())
        self.offered = not self.closed
        return self.offered

    def sent(self) -> Publication | None:
        """Note that what was offered has been taken, and return it; None: it was closed."""
        self.offered = False
        if self.closed:
            return None
        loan = self.queue[0]
        event: Publication = loan.item.pop(0)
        loan.settle(1, nbytes=min(size_of(event), loan.bytes))
        if not loan.items:
            self.queue.popleft()
        if self.lagging and not self.queue:
            self.caught_up()
        return event

    def close(self, outcome: Outcome = Outcome.DROPPED) -> None:
        """Take nothing more; what is here ends so."""
        self.closed = True
        self.settle_all(outcome)
        if self.lagging:
            self.caught_up("was closed")
        self.arrivals.unpark_all()

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`."""
        assert blocks_readers(self), self.name
        self.given_up = True
        self.close(Outcome.WRITTEN_OFF)


def blocks_readers(holder: Holder) -> bool:
    """Whether readers wait for debt that a holder has."""
    places = {waiter.at for waiter in holder.ledger.waiters}
    return any(
        at in places and gate_of(at).waits_for_repayment
        for loan in holder.loans()
        for at in loan.account.chain
    )


class Spool(Queue):
    """Where a mailbox spills to; see `Box` for the serial number."""

    __slots__ = ("serial",)

    def __init__(self, ledger: Ledger, name: str, serial: int, **options: Any) -> None:
        self.serial = serial
        super().__init__(ledger, name, **options)

    def __hash__(self) -> int:
        return self.serial


class Disk:
    """Where mailboxes spill to, as slow as a disk is."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.account = ledger.open("disk", limit=NO_LIMIT, at_rest="disk")
        self.spools: dict[Spool, MemoryShelf] = {}

    def spool(self, name: str, serial: int) -> Spool:
        """Make a queue for one mailbox alone."""
        account = self.ledger.open(f"disk/{name}", limit=NO_LIMIT, parent=self.account)
        shelf = MemoryShelf()
        spool = Spool(
            self.ledger, f"spool of {name}", serial, account=account, shelf=shelf,
            settings=QueueSettings(durable=True), persistent=is_kept, wall=self.ledger.clock,
        )  # fmt: skip
        shelf.recover(spool)
        self.spools[spool] = shelf
        return spool

    def throw_away(self, spool: Spool) -> None:
        """End a queue with all that is left in it."""
        spool.delete()
        spool.account.close()
        del self.spools[spool]

    def close(self) -> None:
        """End all."""
        for spool in list(self.spools):
            self.throw_away(spool)
        self.account.close()

    async def turning(self) -> None:
        """Write and read what queues want, a little later than they do."""
        while True:
            await trio.sleep(DISK_SECONDS)
            for spool, shelf in list(self.spools.items()):
                shelf.sync()
                while shelf.answer():
                    pass
                spool.tick(self.ledger.clock())


def event_of(publisher: str, number: int, topic: str, size: int) -> Publication:
    """Return a publication that says whose it is, which of his, and how large it is taken to be."""
    return Publication(topic, f"{publisher} {number} {size}".encode())


def is_kept(_: object) -> bool:
    """Say that an event is to be on the disk."""
    return True


def size_of(event: Publication) -> int:
    """Return how large an event is taken to be."""
    return int(event.payload.rpartition(b" ")[2])


@attrs.define(eq=False)
class Inbox:
    """One connection of a subscriber, and what it ought to have got."""

    plan: SubscriberPlan
    holder: Box | Wire
    topics: frozenset[str]
    spool: Spool | None = None
    items: int = 0
    """Events that were sent to it."""
    done: int = 0
    """Events it has dealt with."""
    places: dict[bytes, int] = attrs.field(factory=dict[bytes, int])
    """The number of each event in its line, those that it has got left out."""
    numbers: Counter[str] = attrs.field(factory=Counter[str])
    """How many were sent to it, by line."""
    latest: dict[str, int] = attrs.field(factory=dict[str, int])
    """The number of the latest it has got, by line."""
    latest_of: dict[str, tuple[str, int]] = attrs.field(factory=dict[str, tuple[str, int]])
    """The latest it has got, by topic: its line, and its number there."""
    sent_of: dict[tuple[str, str], int] = attrs.field(factory=dict[tuple[str, str], int])
    """The number of the latest that was sent to it, by topic and line."""

    @property
    def is_fair(self) -> bool:
        """Whether it gets in order only what is of the same publisher."""
        return isinstance(self.holder, Wire) and self.holder.flows is not None

    def line_of(self, event: Publication) -> str:
        """Return the line in which an event keeps its place: that of all, or its publisher's."""
        return event.payload.partition(b" ")[0].decode() if self.is_fair else ""

    @property
    def is_complete(self) -> bool:
        """Whether it has got the latest that was sent, in each line."""
        return self.latest == {line: number - 1 for line, number in self.numbers.items()}

    def note(self, event: Publication) -> None:
        """Note that it ought to get this."""
        line = self.line_of(event)
        self.places[event.payload] = self.sent_of[event.topic, line] = self.numbers[line]
        self.numbers[line] += 1
        self.items += 1

    def got(self, event: Publication) -> int:
        """Note that it has got this; how many that were sent before it has never got.

        In the order of sending, in its line, or this fails.
        """
        line = self.line_of(event)
        place = self.places.pop(event.payload)
        gap = place - self.latest.get(line, -1) - 1
        assert gap >= 0, (self, event)
        self.latest[line] = place
        self.latest_of[event.topic] = line, place
        return gap


@attrs.define
class CameIn:
    """What has come in on an account since it was new."""

    since: float
    items: int = 0
    bytes: int = 0

    def add(self, rate: RateLimit | None, items: int, nbytes: int, now: float) -> None:
        """Add what comes in now; before it, no more had come than may (but for one turn)."""
        if rate is not None:
            seconds = now - self.since
            for had, per_s, burst in (
                (self.items, rate.items_per_s, rate.burst_items),
                (self.bytes, rate.bytes_per_s, rate.burst_bytes),
            ):
                if per_s is not None:
                    assert had < (burst or max(per_s, 1.0)) + per_s * seconds + 1e-6
        self.items += items
        self.bytes += nbytes


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
        self.disk = Disk(self.ledger)
        self.audience: dict[str, dict[Inbox, None]] = {topic: {} for topic in plan.topics}
        self.copies = 0
        self.highest: dict[str, Limit] = {}
        self.came_in: dict[str, CameIn] = {}
        self.largest: dict[str, tuple[int, int]] = {}
        self.longest_wait = 0.0
        self.refusals = OverLimitWatch(self.ledger)
        self.refused = 0
        # How many have caught up in the end, by policy, of those that lost something on the way.
        self.caught_up: Counter[StuckPolicy] = Counter()
        self.inherited = 0
        self.lagging = 0
        self.left_alone = 0
        # Whose patience was over at the last look, what progress was its last, and since when.
        self.late: dict[tuple[Holder, float], float] = {}
        scale = plan.scale
        self.answers, self.answer_box = self._answers()
        self.server = self.ledger.open(
            "server", limit=Limit(items=scale.server_limit, bytes=None), shared=scale.shared
        )
        self.parents: dict[str, Account] = {}
        limit = Limit(items=scale.tenant_limit, bytes=8 << 20)
        for each in plan.publishers:
            if each.tenant not in self.parents:
                self.parents[each.tenant] = self.ledger.open(
                    each.tenant, limit=limit, parent=self.server,
                    weight=1.0 + len(self.parents) % 3, shared=scale.shared,
                )  # fmt: skip
            if each.user not in self.parents:
                self.parents[each.user] = self.ledger.open(
                    each.user, limit=NO_LIMIT, parent=self.parents[each.tenant]
                )

    def _answers(self) -> tuple[Inbox, Box]:
        """Return where all workers' answers go."""
        plan = SubscriberPlan(
            name="answers", kind="mailbox", filters=(), seconds_per_item=0.0, retain_limit=NO_LIMIT,
            policy=StuckPolicy.WAIT, patience=20.0, sessions=(), stalls=(), returns_after=0.0,
        )  # fmt: skip
        box = Box(self.ledger, plan.name, next(self.serials))
        return Inbox(plan, box, frozenset()), box

    # -- everybody ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let it all happen, and see that nothing is left."""
        async with trio.open_nursery() as watchers:
            watchers.start_soon(watch_patience, self.ledger)
            watchers.start_soon(watch_limits, self.ledger)
            watchers.start_soon(self.read_answers)
            watchers.start_soon(self.disk.turning)
            watchers.start_soon(self.refusals.run, watchers.start_soon)
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
                for inbox in self.inboxes:
                    self.check_latest(inbox)
                subscribers.cancel_scope.cancel()
            watchers.cancel_scope.cancel()
        self.check()
        self.check_inbox(self.answers)
        assert not self.inboxes
        assert not self.refusals
        assert not self.ledger.waiters
        assert not self.server.debt_items
        assert not self.server.debt_bytes
        for parent in reversed(self.parents.values()):
            parent.close()
        self.server.close()
        self.disk.close()
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
            account = self.ledger.open(
                plan.name, limit=None if before else plan.limit, parent=parent
            )
            # No laundering by reconnecting (rule 14).
            assert account.debt_items == owed
            self.inherited += bool(owed)
            self.log.add("opened", plan.name, owed)
            if before is None:
                account.rate = plan.rate
                self.highest[plan.name] = plan.limit
                if plan.latency is not None:
                    floor = Limit(items=FLOOR, bytes=FLOOR_BYTES)
                    account.limit_by(LatencyLimit(plan.latency, floor, plan.limit))
                self.came_in[plan.name] = CameIn(self.ledger.clock())
            with account, trio.move_on_at(session.end):
                await self.publishing(plan, account, chance)
            self.refusals.forget(account)
            self.log.add("closed", plan.name)

    async def publishing(self, plan: PublisherPlan, account: Account, chance: Random) -> None:
        """Publish until cancelled."""
        while True:
            await trio.sleep(chance.expovariate(plan.turns_per_second))
            if not plan.refused:
                await self.clear(account)
            elif account.funds_are_clear():
                self.see_clear(account)
            else:
                self.refusals.note(account)
                assert self.refusals.reason(account)
                self.refused += 1
                self.log.add("refused", account.name, account.debt_items)
                self.step()
                continue
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
        await account.ensure_clear_funds()
        waited = self.ledger.clock() - began
        self.longest_wait = max(self.longest_wait, waited)
        if waited:
            self.log.add("went on", account.name, waited)
        self.see_clear(account)

    def see_clear(self, account: Account) -> None:
        """See that funds are clear."""
        for each in account.chain:
            assert not gate_of(each).closed
            times = HARD if each.shared else 1
            assert each.debt_items <= times * each.mark_items
            assert each.debt_bytes <= times * each.mark_bytes

    def publish(self, account: Account, events: list[Publication]) -> None:
        """Publish in one turn; who gets it is known beforehand, without the dataspace."""
        input_bytes = items = nbytes = 0
        for event in events:
            size = size_of(event)
            audience = self.audience[event.topic]
            for inbox in audience:
                inbox.note(event)
            input_bytes += size
            items += len(audience)
            nbytes += len(audience) * size
        self.copies += items
        self.came_in[account.name].add(account.rate, len(events), input_bytes, self.ledger.clock())
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
        inbox = self.inbox(plan, name)
        holder = inbox.holder
        end = session.end if session.end < self.plan.scale.seconds else inf
        with self.connected(inbox), trio.move_on_at(end if session.fails else inf):
            try:
                if isinstance(holder, Wire):
                    return await self.sending(inbox, holder, end)
                await self.receiving(inbox, holder, end)
            except GivenUpError:
                return True
        return False

    def inbox(self, plan: SubscriberPlan, name: str) -> Inbox:
        """Make the holder of a connection, and where it spills to."""
        spool: Spool | None = None
        holder: Box | Wire
        if plan.kind in {"wire", "fair"}:
            holder = Wire(
                self.ledger, name, next(self.serials), fair=plan.kind == "fair",
                patience=plan.patience, policy=plan.policy, retain_limit=plan.retain_limit,
            )  # fmt: skip
        else:
            if plan.policy is StuckPolicy.SPILL:
                spool = self.disk.spool(name, next(self.serials))
            holder = Box(
                self.ledger, name, next(self.serials),
                patience=plan.patience, policy=plan.policy, retain_limit=plan.retain_limit,
                spill=spool,
            )  # fmt: skip
        return Inbox(plan, holder, self.plan.matching(plan.filters), spool)

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
                self.check_inbox(inbox)
                holder.close()
                assert not list(holder.loans()), holder
                if inbox.spool is not None:
                    self.disk.throw_away(inbox.spool)
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
            assert inbox.got(loan.item[0]) == box.dropped
            for event in loan.item[1:]:
                assert inbox.got(event) == 0
            with suppress(FailedError), loan as events:
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
            loan.settle(1)
            inbox.done += 1

    async def sending(self, inbox: Inbox, wire: Wire, end: float) -> bool:
        """Let a wire's peer take what is there, until the end; whether it was given up."""
        while True:
            await self.stalling(inbox.plan)
            if not await before(end, wire.offer):
                return wire.given_up
            await trio.sleep(inbox.plan.seconds_per_item)
            event = wire.sent()
            if event is not None:
                gap = inbox.got(event)
                assert not gap or wire.relief.dropped_items
                inbox.done += 1
            self.step()

    # -- what has to hold -----------------------------------------------------------------------

    def step(self) -> None:
        """Somebody has done something: look whether all is well, every so often."""
        self.steps += 1
        self.left_alone += len(self.ledger.used_up)
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
            if account.chain[-1] is not self.server:
                continue
            items, nbytes = self.largest.get(account.name, (0, 0))
            # One answer is borrowed before what it answers is repaid (rule 3).
            most_items, most_bytes, _, _ = self.highest.get(account.name, account.limit).marks()
            times = HARD if account.shared else 1
            assert account.peak_items <= times * most_items + items + 1, account
            assert account.peak_bytes <= times * most_bytes + nbytes + ANSWER_BYTES, account
        self.check_patience()

    def check_patience(self) -> None:
        """Look whether everybody is dealt with soon when his patience is over."""
        now = self.ledger.clock()
        late: dict[tuple[Holder, float], float] = {}
        for stuck in overdue(self.ledger, now):
            holder = stuck.holder
            if holder.policy is not StuckPolicy.WAIT:
                spell = holder, holder.progressed_at
                late[spell] = since = self.late.get(spell, now)
                assert now - since <= WATCH_SECONDS, stuck
        self.late = late

    def check_latest(self, inbox: Inbox) -> None:
        """Look whether somebody who has caught up has got what it never should miss."""
        holder = inbox.holder
        policy, retain_limit = holder.policy, holder.retain_limit
        if holder.closed or any(holder.loans()) or (inbox.spool is not None and len(inbox.spool)):
            return
        # All that comes one by one has room, there.
        roomy = (retain_limit.items or 0) >= len(inbox.topics) and (
            retain_limit.bytes or 0
        ) >= ROOMY_BYTES
        if not policy.relieves or policy is StuckPolicy.SPILL:
            self.caught_up[policy] += 1
            assert inbox.is_complete, inbox
        elif policy is StuckPolicy.DROP_OLDEST and roomy:
            self.caught_up[policy] += holder.relief.dropped_items > 0
            # In rounds, the latest of all need not be the last that stands there.
            assert inbox.is_fair or inbox.is_complete, inbox
        elif policy is StuckPolicy.CONFLATE and roomy:
            self.caught_up[policy] += holder.relief.dropped_items > 0
            assert set(inbox.latest_of) == {topic for topic, _ in inbox.sent_of}, inbox
            # In rounds, of one of its publishers it is the latest.
            for topic, (line, place) in inbox.latest_of.items():
                assert inbox.sent_of[topic, line] == place, inbox

    def check_inbox(self, inbox: Inbox) -> None:
        """Look whether all that was ever sent to somebody is accounted for."""
        holder = inbox.holder
        ended = self.books.of_holder[holder.name]
        held = list(holder.loans())
        assert inbox.done == ended[Outcome.DELIVERED], inbox
        # What has been put aside is here still, or in its queue.
        there = sum(loan.items for loan in held)
        if inbox.spool is not None:
            there += len(inbox.spool)
        assert inbox.items == ended.total() - ended[Outcome.STORED] + there, inbox
        if not holder.closed:
            assert ended[Outcome.DROPPED] == holder.relief.dropped_items, inbox
            assert not ended[Outcome.WRITTEN_OFF], inbox
        if holder.lagging:
            self.lagging += 1
            # Nobody waits on it: it owes for what it keeps itself. And that is bounded.
            assert all(loan.account.chain[-1].name == LAGGING for loan in held), inbox
            if inbox.spool is None:
                # What had been begun when it was relieved does not count: it owes for that above.
                rest = islice(holder.queue, holder.begun, None)
                waiting = [loan for loan in rest if loan.account.name != LAGGING]
                assert sum(loan.items for loan in waiting) <= (holder.retain_limit.items or inf), (
                    inbox
                )
                assert sum(loan.bytes for loan in waiting) <= (holder.retain_limit.bytes or inf), (
                    inbox
                )
