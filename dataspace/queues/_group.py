"""A group: several members share what comes, and each message goes to exactly one of them.

A group is a queue whose consumers are its members. Rules of this file:

1. A message goes to the member with the least debt among those that take something at the moment;
   between equals they take turns. A member that is stuck is passed over.
2. What is to be acknowledged stays in the group's hands until its member has done so: those who
   wait for it wait on the group, whose progress is that of any member. When a member leaves, what
   it has not acknowledged goes to another one, in order, before what came later.
3. What nobody acknowledges is a member's as soon as it is handed over. While nothing waits in the
   group it goes straight through, a run as runs: parted evenly among the members, so that a burst
   is shared and each member still gets one piece of it.
4. Only if no member takes anything does it wait here, on its publisher's account.

Sources: MQTT 5, section 4.8.2; `Queue` for the rest.
"""

from __future__ import annotations

import abc
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Any, Final, cast

import attrs

from ...accounts import Account, Outcome, Recipient
from .._events import Batch, Publication
from ._binding import Binding
from ._channel import Channel, Delivery
from ._consumer import Consumer
from ._message import Message
from ._prefetch import PrefetchWindow
from ._queue import Queue, is_persistent
from ._writer import Writer

logger = logging.getLogger("clearfunds.dataspace")

LOOKED_AT: Final = 32
"""Members that are compared for one message; of a larger group the others have their turn next. A
comparison costs 0.3 us, so this bounds a message to 10 us. (The power of two choices would do with
two of them; Mitzenmacher 2001.)"""

Part = Callable[[Batch, int], Sequence[Batch]]
"""Parts a run into at most so many runs, in order, of as many publications each as can be."""


class Member(abc.ABC):
    """Somebody who takes messages of a group.

    Whoever makes one calls `Group.go_on` when it takes something again.

    Args:
        name: What an operator knows it by.
        window: How much it may have that it has not acknowledged: its own, or one that it shares
            with other consumers.

    Attributes:
        name: See above.
        window: See above.
        delivered: How many messages it was given.
    """

    __slots__ = ("delivered", "name", "window")

    def __init__(self, name: str, window: PrefetchWindow) -> None:
        self.name = name
        self.window = window
        self.delivered = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.delivered} delivered>"

    @property
    @abc.abstractmethod
    def way(self) -> Recipient:
        """Who takes for it what nobody acknowledges: publications, and runs of them."""

    @property
    def whose(self) -> object:
        """Whose fault it is if it fails; see `clearfunds.accounts.Faults.note`."""
        return self

    @property
    @abc.abstractmethod
    def flows(self) -> bool:
        """Whether it takes anything at the moment: it is neither stuck nor behind."""

    @property
    @abc.abstractmethod
    def debt(self) -> tuple[int, int]:
        """What it has in its hands, in items and in bytes; from wherever it has come."""

    @abc.abstractmethod
    def take(self, delivery: Delivery) -> None:
        """Take a message, and acknowledge it when it is done with. Must not raise."""

    @abc.abstractmethod
    def is_spent(self, delivery: Delivery) -> bool:
        """Whether nobody else may have what it has not acknowledged, as it may have had it."""

    @abc.abstractmethod
    def cut(self, why: str) -> None:
        """End it: the group has given it up, and it is a member no more."""


@attrs.frozen(slots=True)
class MemberStatistics:
    """One member of a group in numbers."""

    name: str
    """What an operator knows it by."""
    delivered: int
    """How many messages it was given."""
    unacked: int
    """How many of them it has not acknowledged, of those that it has to."""
    flows: bool
    """Whether it takes anything at the moment."""


class _Flow(PrefetchWindow):
    """The window of a member's channel: open while the member flows."""

    __slots__ = ("member",)

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member

    @property
    def has_room(self) -> bool:
        """See `PrefetchWindow.has_room`."""
        return self.member.flows


class _Keeper(Writer):
    """Writes what is to survive, and pages out nothing else: its publishers wait for members.

    Attributes:
        pages: Whether all is written nevertheless: nobody has made progress for too long.
    """

    __slots__ = ("pages",)

    pages: bool

    def write(self, message: Message) -> bool:
        """See `Keeper.write`."""
        if not message.persistent and message.ticket is None and not self.pages:
            return False
        return super().write(message)


class Group(Queue):
    """Messages that several members share, each of which goes to exactly one of them.

    Args:
        part: Parts runs; None: a run goes to one member as it is.
        more: As `Queue`.

    Attributes:
        members: Those that are there, with the consumer that each is to the queue.
        keeps: Whether what is to be acknowledged is kept while no member is there: one that is away
            is to have it. Only then is it persistent.
    """

    __slots__ = ("_line", "_part", "_stopped", "_touched", "keeps", "members")

    kind = "group"

    writer = _Keeper

    def __init__(self, *args: Any, part: Part | None = None, **more: Any) -> None:
        self.members: dict[Member, Consumer] = {}
        self.keeps = False
        self._part = part
        # Those that flow, as far as is known, in the order of their turns; and those that do not.
        self._line: OrderedDict[Member, None] = OrderedDict()
        self._stopped: dict[Member, None] = {}
        self._touched: dict[Recipient, None] = {}
        super().__init__(*args, persistent=self._is_kept, **more)
        cast("_Keeper", self._writer).pages = False

    def __repr__(self) -> str:
        return f"<Group {self.name}: {len(self)} ready, {len(self.members)} members>"

    def _is_kept(self, event: Any) -> bool:
        return self.keeps and is_persistent(event)

    # -- members --------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Let a member have its part of what waits, and of what comes.

        Raises:
            QueueDeletedError: If the group is no more.
        """
        self.check_exists()
        self._line[member] = None
        channel = Channel(f"{member.name} of {self.name}", window=_Flow(member))
        try:
            # What it is handed at once comes before this returns.
            self.members[member] = self.consume(
                self._hand_over, channel=channel, window=member.window, on_cancelled=member.cut
            )
        except BaseException:
            self._line.pop(member, None)
            raise

    def stop(self, member: Member) -> Channel | None:
        """Let a member have nothing more; return where what it has can still be acknowledged.

        None if it is no member. What it has goes to others when that channel is closed (`release`).
        """
        consumer = self.members.pop(member, None)
        if consumer is None:
            return None
        self._line.pop(member, None)
        self._stopped.pop(member, None)
        self._touched.pop(member.way, None)
        self.retire(consumer)
        self.consumer_gone()
        return consumer.channel

    def leave(self, member: Member) -> None:
        """Let a member go; what it has not acknowledged goes to another one. Idempotent."""
        channel = self.stop(member)
        if channel is not None:
            self.release(member, channel)

    def release(self, member: Member, channel: Channel) -> None:
        """Give away what a member that was stopped has not acknowledged."""
        for delivery in channel.outstanding():
            if member.is_spent(delivery):
                self.counters.spent += 1
                if delivery.loan.items:
                    delivery.loan.settle(outcome=Outcome.CANCELLED)
                delivery.ack()
        channel.close()
        self._tell_touched()

    def go_on(self, member: Member) -> None:
        """Note that a member takes something again."""
        consumer = self.members.get(member)
        if consumer is None:
            return
        if member in self._stopped:
            del self._stopped[member]
            self._line[member] = None
        window = consumer.channel.window
        if window is not None:
            window.let_on()
        self.work()
        self._tell_touched()

    def member_statistics(self, most: int) -> list[MemberStatistics]:
        """Return so many members in numbers, those first that have most in their hands."""
        found = [
            MemberStatistics(member.name, member.delivered, consumer.outstanding, member.flows)
            for member, consumer in self.members.items()
        ]
        return nlargest(most, found, key=attrgetter("unacked", "delivered"))

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: those who have something and do not acknowledge it are cut off."""
        stuck = [member for member, consumer in self.members.items() if consumer.outstanding]
        # All of them first: what one has had is not for another one that is stuck.
        channels = [self.stop(member) for member in stuck]
        for member, channel in zip(stuck, channels, strict=True):
            if channel is not None:
                self.release(member, channel)
            member.cut(why)
        if not stuck:
            keeper = cast("_Keeper", self._writer)
            keeper.pages = True
            super().give_up(why)
            keeper.pages = False

    # -- what comes in --------------------------------------------------------------------------

    @property
    def last_holder(self) -> None:
        """See `Recipient.last_holder`: it depends on what it is, and on who has room."""
        return None

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`."""
        is_run = type(item) is Batch
        if self.deleted or not (is_run or (isinstance(item, Publication) and not item.qos)):
            self.take_in(account, item, items, nbytes, now, None)
            return
        if not self.members:
            # As for anybody who is away: what need not be acknowledged is not kept.
            self.drop(account, items, nbytes)
            return
        if not (self._arrived or self._returned or self._dying or len(self.backing)):
            members = self._flowing(items if is_run and self._part is not None else 1)
            if members:
                self._pass(members, account, item, items, nbytes, now)
                return
        super().hold(account, item, items, nbytes, now)

    def take_in(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        by: Binding | None,
    ) -> None:
        """See `Queue.take_in`; with nobody there, and nobody to come back, it is for nobody."""
        if self.members or self.keeps or self.deleted:
            super().take_in(account, item, items, nbytes, now, by)
        else:
            self.drop(account, items, nbytes)

    def drop(self, account: Account, items: int, nbytes: int) -> None:
        """Drop what is for nobody."""
        self.counters.published += items
        self.counters.dropped += items
        account.repay(items, nbytes, Outcome.DROPPED, self)

    def _flowing(self, most: int) -> list[Member]:
        """Return at most so many members that flow, the one with the least debt first.

        Their turn is over with that.
        """
        line = self._line
        found: list[tuple[tuple[int, int], Member]] = []
        stopped: list[Member] = []
        for member in line:
            if not member.flows:
                stopped.append(member)
                continue
            debt = member.debt
            if most == 1 and not debt[0]:
                found = [(debt, member)]
                break
            found.append((debt, member))
            if len(found) == LOOKED_AT:
                break
        for member in stopped:
            del line[member]
            self._stopped[member] = None
        if len(found) > 1:
            found.sort(key=_by_debt)
        chosen = [member for _, member in islice(found, most)]
        for member in chosen:
            line.move_to_end(member)
        return chosen

    def _pass(
        self,
        members: list[Member],
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
    ) -> None:
        """Let members have what nobody acknowledges."""
        self.counters.passed += items
        self.counters.published += items
        self.counters.delivered += items
        self.progressed_at = now
        parts: tuple[Any, ...] = (item,)
        if len(members) > 1:
            assert self._part is not None
            parts = tuple(self._part(item, len(members)))
        for member, part in zip(members, parts, strict=False):
            if len(parts) > 1:
                items, nbytes = part.count, part.nbytes
            member.delivered += items
            way = member.way
            self._touched[way] = None
            try:
                way.hold(account, part, items, nbytes, now)
            except Exception as exc:  # (whatever it is: the others have theirs)
                account.repay(items, nbytes, Outcome.REJECTED, self)
                logger.exception("a member of %s could not take what was its part", self.name)
                if self.ledger.faults.ends:
                    self.ledger.faults.note(member.whose, "delivering to it", exc)

    def ready(self) -> None:
        """See `Holder.ready`."""
        super().ready()
        self._tell_touched()

    def _tell_touched(self) -> None:
        """Let those send who have been handed something."""
        while self._touched:
            touched, self._touched = self._touched, {}
            for way in touched:
                way.ready()

    # -- serving --------------------------------------------------------------------------------

    def _hand_over(self, delivery: Delivery) -> None:
        consumer = delivery.consumer
        assert consumer is not None
        member = _member_of(consumer)
        member.delivered += 1
        self._touched[member.way] = None
        member.take(delivery)

    def _whose(self, consumer: Consumer) -> object:
        return _member_of(consumer).whose

    def _next_consumer(self) -> Consumer | None:
        """Return the one with the least debt that has room, in the front of the line."""
        active = self._active
        best: int | None = None
        least = (0, 0)
        place = 0
        while place < min(len(active), LOOKED_AT):
            consumer = active[place]
            full = consumer.full_window()
            if full is not None:
                del active[place]
                full.waiting[consumer] = None
                continue
            debt = _member_of(consumer).debt
            if best is None or debt < least:
                best, least = place, debt
                if not debt[0]:
                    break
            place += 1
        if best is None:
            return None
        if best:
            consumer = active[best]
            del active[best]
            active.appendleft(consumer)
        return active[0]


def _by_debt(found: tuple[tuple[int, int], Member]) -> tuple[int, int]:
    return found[0]


def _member_of(consumer: Consumer) -> Member:
    return cast("_Flow", consumer.channel.window).member
