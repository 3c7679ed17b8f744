"""A group: several members share its messages, and each message goes to exactly one of them.

A group is a queue whose consumers are its members. Rules of this file:

1. A message goes to the member with the least debt among those that can take something at the
   moment; members with equal debt take turns. A member that is stuck is passed over.
2. A message that needs an acknowledgement stays in the group's hands until its member has
   acknowledged it: accounts that wait for it wait on the group, whose progress is that of any
   member. When a member leaves, its unacknowledged messages go to another one, in order, before
   later ones.
3. A message without acknowledgement is a member's as soon as it is handed over. While nothing waits
   in the group it goes straight through, and runs stay runs: a run is parted evenly among the
   members, so that a burst is shared and each member still gets one piece of it.
4. Only if no member takes anything do messages wait here, on their publisher's account.

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
"""Parts a run into at most a given number of runs, in order, as even as possible."""


class Member(abc.ABC):
    """A receiver of a group's messages.

    The code that makes one calls `Group.go_on` when it can take something again.

    Args:
        name: Its name for operators.
        window: Limit on its unacknowledged messages: its own window, or one that it shares with
            other consumers.

    Attributes:
        name: See above.
        window: See above.
        delivered: The number of messages that it was given.
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
        """The recipient for messages without acknowledgement: publications, and runs of them."""

    @property
    def whose(self) -> object:
        """The party at fault if it fails; see `clearfunds.accounts.Faults.note`."""
        return self

    @property
    @abc.abstractmethod
    def flows(self) -> bool:
        """Whether it takes anything at the moment: it is neither stuck nor behind."""

    @property
    @abc.abstractmethod
    def debt(self) -> tuple[int, int]:
        """The debt that it holds, in items and in bytes; from any source."""

    @abc.abstractmethod
    def take(self, delivery: Delivery) -> None:
        """Take a message, and acknowledge it after processing. Must not raise."""

    @abc.abstractmethod
    def is_spent(self, delivery: Delivery) -> bool:
        """Whether no other member may get its unacknowledged message, as it may have had it."""

    @abc.abstractmethod
    def cut(self, why: str) -> None:
        """End it: the group has given it up, and it is a member no more."""


@attrs.frozen(slots=True)
class MemberStatistics:
    """Statistics of one member of a group."""

    name: str
    """Its name for operators."""
    delivered: int
    """The number of messages that it was given."""
    unacked: int
    """The number of them that it has not acknowledged, of those that need it."""
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
        return self.member.flows


class _GroupWriter(Writer):
    """Writes messages that must survive; pages out no others, whose publishers wait for members.

    Attributes:
        pages: Whether all is written nevertheless: no member has made progress for too long.
    """

    __slots__ = ("pages",)

    pages: bool

    def write(self, message: Message) -> bool:
        if not message.persistent and message.ticket is None and not self.pages:
            return False
        return super().write(message)


class Group(Queue):
    """Messages that several members share, each of which goes to exactly one of them.

    Args:
        part: Parts runs; None: a run goes to one member as it is.
        more: As `Queue`.

    Attributes:
        members: The current members, each with its consumer of the queue.
        persists: Whether messages that need acknowledgement are kept while no member is there: one
            that is away will get them. Only then are they persistent.
    """

    __slots__ = ("_line", "_part", "_stopped", "_touched", "members", "persists")

    kind = "group"

    writer = _GroupWriter

    def __init__(self, *args: Any, part: Part | None = None, **more: Any) -> None:
        self.members: dict[Member, Consumer] = {}
        self.persists = False
        self._part = part
        # Members that flow, as far as is known, in the order of their turns; and those that do not.
        self._line: OrderedDict[Member, None] = OrderedDict()
        self._stopped: dict[Member, None] = {}
        self._touched: dict[Recipient, None] = {}
        super().__init__(*args, persistent=self._is_persistent, **more)
        cast("_GroupWriter", self._writer).pages = False

    def __repr__(self) -> str:
        return f"<Group {self.name}: {len(self)} ready, {len(self.members)} members>"

    def _is_persistent(self, event: Any) -> bool:
        return self.persists and is_persistent(event)

    # -- members --------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Add a member: it gets its part of waiting and new messages.

        Raises:
            QueueDeletedError: If the group is deleted.
        """
        self.check_exists()
        self._line[member] = None
        channel = Channel(f"{member.name} of {self.name}", window=_Flow(member))
        try:
            # Messages that it gets at once come before this returns.
            self.members[member] = self.consume(
                self._hand_over, channel=channel, window=member.window, on_cancelled=member.cut
            )
        except BaseException:
            self._line.pop(member, None)
            raise

    def stop(self, member: Member) -> Channel | None:
        """Stop deliveries to a member; return the channel on which it can still acknowledge.

        None if it is no member. Its messages go to others when that channel is closed (`release`).
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
        """Remove a member; its unacknowledged messages go to another one. Idempotent."""
        channel = self.stop(member)
        if channel is not None:
            self.release(member, channel)

    def release(self, member: Member, channel: Channel) -> None:
        """Give the unacknowledged messages of a stopped member to others."""
        for delivery in channel.outstanding():
            if member.is_spent(delivery):
                self.counters.spent += 1
                if delivery.loan.items:
                    delivery.loan.settle(outcome=Outcome.CANCELLED)
                delivery.ack()
        channel.close()
        self._tell_touched()

    def go_on(self, member: Member) -> None:
        """Note that a member can take something again."""
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
        """Return statistics of up to `most` members, the most loaded first."""
        found = [
            MemberStatistics(member.name, member.delivered, consumer.outstanding, member.flows)
            for member, consumer in self.members.items()
        ]
        return nlargest(most, found, key=attrgetter("unacked", "delivered"))

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: members that have messages and do not acknowledge are cut off."""
        stuck = [member for member, consumer in self.members.items() if consumer.outstanding]
        # All of them first: messages of one must not go to another one that is stuck.
        channels = [self.stop(member) for member in stuck]
        for member, channel in zip(stuck, channels, strict=True):
            if channel is not None:
                self.release(member, channel)
            member.cut(why)
        if not stuck:
            writer = cast("_GroupWriter", self._writer)
            writer.pages = True
            super().give_up(why)
            writer.pages = False

    # -- input ----------------------------------------------------------------------------------

    @property
    def last_holder(self) -> None:
        """See `Recipient.last_holder`: depends on the message, and on which members have room."""
        return None

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        is_run = type(item) is Batch
        if self.deleted or not (is_run or (isinstance(item, Publication) and not item.qos)):
            self.take_in(account, item, items, nbytes, now, None)
            return
        if not self.members:
            # As for any client that is away: a message without acknowledgement is not kept.
            self.drop(account, items, nbytes)
            return
        if not (self._arrived or self._returned or self._dying or self.backing.ready):
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
        """See `Queue.take_in`; without members, and none that will come back, it is dropped."""
        if self.members or self.persists or self.deleted:
            super().take_in(account, item, items, nbytes, now, by)
        else:
            self.drop(account, items, nbytes)

    def drop(self, account: Account, items: int, nbytes: int) -> None:
        """Drop a message without recipients."""
        self.counters.published += items
        self.counters.dropped += items
        account.repay(items, nbytes, Outcome.DROPPED, self)

    def _flowing(self, most: int) -> list[Member]:
        """Return up to `most` members that flow, the one with the least debt first.

        That uses up their turn.
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
        """Give members a message without acknowledgement."""
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
            except Exception as exc:  # (whatever it is: the other members get theirs)
                account.repay(items, nbytes, Outcome.REJECTED, self)
                logger.exception("a member of %s could not take its messages", self.name)
                if self.ledger.faults.ends:
                    self.ledger.faults.note(member.whose, "delivering to it", exc)

    def ready(self) -> None:
        super().ready()
        self._tell_touched()

    def _tell_touched(self) -> None:
        """Let members send that have been given something."""
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
        """Put the consumer with the least debt and with room at the front, and return it."""
        active = self._active
        if not active:
            return None
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
