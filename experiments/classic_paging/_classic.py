"""The paging policy of RabbitMQ 3.8: alphas, betas, gammas and deltas, with a target for RAM.

As in rabbit_variable_queue.erl of RabbitMQ 3.8, the last that paged by memory. A message is

    alpha   in RAM,
    beta    written, with only its place in RAM,
    gamma   the same, with its place written as well,
    delta   written, with nothing of it in RAM: a range of places is all that is known,

and a queue is, from its head, where messages are taken, to its tail:

    q4 (alphas) | q3 (betas, gammas) | delta | q2 (betas, gammas) | q1 (alphas)

While memory is short, a monitor (`_memory_monitor.py`) says for how many seconds the messages in
RAM should last. That, times the rates at which messages and acks come and go, is the number that
may be in RAM: the *target*. When it falls, and every `reduce_every` messages, `_reduce_memory_use`
pushes. First it unloads unacked deliveries (largest number first) and turns alphas into betas, the
faster growing kind first and both out of one quota; then it turns betas into deltas, if there are
enough for it to be worth while.

Differences from RabbitMQ, and the reasons:

1. A shelf writes a message with its place, in one record. So each beta is a gamma, and pushing to
   delta writes nothing; all that is left of the batch size is that objects are dropped in batches.
2. Reading is asynchronous: `fetch` asks for what it lacks, and says so (`waiting`). A read does not
   fetch one index segment of places and then one body at a time, which here would be reading all
   bodies twice. It fetches bodies: as many as consumers take in two seconds, and of delta, while
   memory is not short, up to the end of a segment, or 8 MiB. They stay in q3, where they are taken
   from, and are pushed out again only for a requeued message before them.
3. Between the last message of q3 and the answer to a read of delta, q3 is empty though delta is
   not. Hence the invariant there (`check`) has an `or waiting`.
4. A message that was delivered before is never in delta: the shelf has no record of its deliveries.
   Requeued messages have the lowest numbers, so they are ahead of it, in q4 or q3. In q3 they are
   not written for that alone; messages that were unloaded while pending go there.
5. Messages at rest are on the queue's own account, others on their publisher's; that is the queue's
   business. When messages cannot be written for want of disk budget, pushing stops, as for want of
   credit, until `relieve`.
6. Credit is given back for durable messages. Messages that the queue itself writes late, because
   the budget had been spent, take none.
7. An Erlang process would send itself a message to go on when one push was not enough. Here the
   next event in the queue goes on with it, or `tick`.
"""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from clearfunds.dataspace.queues._backing import Backing, BackingFactory, BackingStatistics, Pager
from clearfunds.dataspace.queues._message import Message

from ._classic_parts import ClassicSettings, Delta, StoreCredit
from ._memory_monitor import REPORT_SECONDS, MemoryMonitor

READ_AHEAD_MAX = 2048
"""Most messages read at a time, while memory is short: as many as classic queues v2."""

READ_SECONDS = 2
"""Seconds' worth of messages that one read takes, within its limits; as classic queues v2."""

READ_BYTES = 8 << 20
"""Most bytes of one read, as in the steady policy."""

IDLE_RATE = 0.01
"""Messages a second below which nothing moves, as in rabbit_variable_queue.erl."""

FEW = 16
"""If at most this many messages come back together, each is inserted on its own."""

GO_ON_SECONDS = 0.02
"""Seconds after which an unfinished push goes on, if nothing happens before."""


class ClassicBacking(Backing):
    """RabbitMQ's paging before classic queues v2: by memory, with a target.

    Args:
        pager: The queue.
        monitor: The memory monitor; None: there is always enough.
        settings: The parameters.
        clock: Returns seconds that never go back, the monitor's by default.

    Attributes:
        target: Most messages in RAM, ready and pending; None for any number.
        credit: Limit on the messages on their way to the shelf.
    """

    __slots__ = (
        "__weakref__", "_acks", "_acks_before", "_acks_bytes", "_asked", "_asked_count",
        "_asked_end", "_delta", "_dormant", "_durable", "_loaded", "_missing", "_monitor", "_ops",
        "_paged_in", "_paged_out", "_q1", "_q2", "_q3", "_q4", "_ram_before", "_ram_bytes",
        "_reads", "_report_due", "_settings", "_stale", "_ticket", "_unfinished", "credit",
        "target",
    )  # fmt: skip

    policy = "classic"

    def __init__(
        self,
        pager: Pager,
        *,
        monitor: MemoryMonitor | None = None,
        settings: ClassicSettings | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(pager)
        self._settings = settings = ClassicSettings() if settings is None else settings
        self._monitor = monitor
        if clock is None:
            clock = time.monotonic if monitor is None else monitor.clock
        self.credit = StoreCredit(settings, clock)
        self.target: int | None = None
        self._q1: deque[Message] = deque()
        self._q2: deque[Message] = deque()
        self._q3: deque[Message] = deque()
        self._q4: deque[Message] = deque()
        self._delta = Delta()
        # Of q3: messages whose event has to be read, by number, and the number of others.
        self._missing: dict[int, Message] = {}
        self._loaded = 0
        # Bytes of ready messages in RAM.
        self._ram_bytes = 0
        # Pending messages with their event in RAM.
        self._acks: dict[int, Message] = {}
        self._acks_bytes = 0
        # Both, at the last report.
        self._ram_before = self._acks_before = 0
        self._report_due = -math.inf
        # The highest ticket that credit was taken for, and the highest that is durable.
        self._ticket = self._durable = 0
        # The read under way: its first number; of delta, how many up to which (0 for one of q3).
        self._asked = self._asked_end = self._asked_count = 0
        self._stale = False
        # Whether nothing has been wanted since a restart.
        self._dormant = False
        self._ops = 0
        # Whether a push was not enough, and should go on.
        self._unfinished = False
        self._paged_out = self._paged_in = self._reads = 0
        if monitor is not None:
            monitor.register(self)

    def __repr__(self) -> str:
        return (
            f"<ClassicBacking: q4 {len(self._q4)}, q3 {len(self._q3)} ({self._loaded} loaded), "
            f"{self._delta}, q2 {len(self._q2)}, q1 {len(self._q1)}, target {self.target}>"
        )

    # -- messages come and go -------------------------------------------------------------------

    def publish(self, message: Message) -> None:
        self._note_written(message)
        # While q3 waits for messages of delta, those come before.
        if self._q3 or self._delta.count:
            self._q1.append(message)
        else:
            self._q4.append(message)
        self.ready += 1
        self._ram_bytes += message.size
        self._done(1)

    def fetch(self) -> Message | None:
        q3 = self._q3
        if self._q4:
            message = self._q4.popleft()
        else:
            self._dormant = False
            if not q3 or q3[0].event is None:
                self._read()
                return None
            message = q3.popleft()
            self._loaded -= 1
            if not q3 and not self._delta.count:
                self._q4, self._q1 = self._q1, self._q4
        self.ready -= 1
        self._ram_bytes -= message.size
        if len(self._q4) + self._loaded <= self._read_ahead // 2:
            self._read()
        return message

    def peek(self) -> Message | None:
        if self._q4:
            return self._q4[0]
        self._dormant = False
        if self._q3:
            message = self._q3[0]
            if message.event is None:
                self._read()
            return message
        self._read()
        return None

    def requeue(self, messages: Sequence[Message]) -> None:
        back = sorted(messages, key=lambda message: message.seq)
        for message in back:
            self._drop_ack(message)
        # Alphas before the first beta: a message that has to be read makes betas of those behind
        # it.
        limit = self._q3[0].seq if self._q3 else math.inf
        missing = next((m.seq for m in back if m.event is None), None)
        if missing is not None and missing < limit:
            limit = missing
            while self._q4 and self._q4[-1].seq > limit:
                self._q3.appendleft(self._q4.pop())
                self._loaded += 1
        alphas = [message for message in back if message.seq < limit]
        betas = back[len(alphas) :]
        self._ram_bytes += sum(message.size for message in back if message.event is not None)
        _merge(self._q4, alphas)
        _merge(self._q3, betas)
        for message in betas:
            if message.event is None:
                self._missing[message.seq] = message
            else:
                self._loaded += 1
        self.ready += len(back)
        self._done(len(back))

    def pending(self, message: Message) -> None:
        self._note_written(message)
        self._acks[message.seq] = message
        self._acks_bytes += message.size
        self._done(0)

    def forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._drop_ack(message)

    def _drop_ack(self, message: Message) -> None:
        if self._acks.pop(message.seq, None) is not None:
            self._acks_bytes -= message.size

    def purge(self) -> tuple[list[Message], Sequence[int]]:
        here = list(self)
        delta = self._delta
        on_disk = range(delta.start, delta.end) if delta.count else range(0)
        for queue in (self._q1, self._q2, self._q3, self._q4):
            queue.clear()
        delta.clear()
        self._missing.clear()
        self.ready = self._loaded = self._ram_bytes = 0
        self._dormant = False
        self._stale = self.waiting
        return here, on_disk

    def recovered(self, first_seq: int, next_seq: int, count: int) -> None:
        self._delta = Delta(first_seq, count, next_seq)
        self.ready = count
        self._dormant = count > 0

    def _note_written(self, message: Message) -> None:
        """Take credit for a message that the queue has just written itself."""
        ticket = message.ticket
        if ticket is not None and ticket > self._ticket:
            self._ticket = ticket
            if ticket > self._durable:
                self.credit.wrote(message)

    def _done(self, messages: int) -> None:
        """Check every `reduce_every` messages whether there are too many in RAM."""
        self._ops += messages
        if self._ops >= self._settings.reduce_every:
            self._ops = 0
            self._reduce_memory_use()
        elif self._unfinished:
            self._reduce_memory_use()

    # -- reading --------------------------------------------------------------------------------

    @property
    def _read_ahead(self) -> int:
        """The number of messages to read at a time."""
        ahead = 1 + int(READ_SECONDS * self.pager.rates.egress)
        return max(min(ahead, READ_AHEAD_MAX), self._settings.read_ahead)

    def _read(self) -> None:
        """Ask for the first missing messages, unless a read is under way, or nothing is missing."""
        shelf = self.pager.shelf
        if self.waiting or shelf is None:
            return
        if self._missing:
            first = next(message.seq for message in self._q3 if message.event is None)
            count = min(self._read_ahead, len(self._missing))
            self._asked_count = 0
        elif self._delta.count:
            delta = self._delta
            first = delta.start
            in_segment = self._segment_end(first) - first
            count = in_segment if self.target is None else self._read_ahead
            count = min(count, delta.count)
            self._asked_count = delta.count
            self._asked_end = delta.end
        else:
            return
        self.waiting = True
        self._asked = first
        self._reads += 1
        shelf.want(first, count, READ_BYTES)

    def _segment_end(self, seq: int) -> int:
        segment = self._settings.segment
        return (seq // segment + 1) * segment

    def paged_in(self, messages: Sequence[Message]) -> None:
        self.waiting = False
        if self._stale:
            self._stale = False
        elif self._asked_count:
            self._delta_to_betas(messages)
        else:
            self._load(messages)
        if not self._q3 and self._delta.count and not self._dormant:
            self._read()

    def _load(self, messages: Sequence[Message]) -> None:
        """Take the events of messages that are in q3."""
        for message in messages:
            known = self._missing.pop(message.seq, None)
            if known is not None:
                known.event = message.event
                self._loaded += 1
                self._ram_bytes += known.size
                self._paged_in += 1
        lost = self._missing.pop(self._asked, None)
        if lost is not None:
            # It was asked for first, and is missing.
            lost.finished = True
            self._q3.remove(lost)
            self.ready -= 1
            self.pager.lost(1)
            self._q3_may_be_empty()

    def _delta_to_betas(self, messages: Sequence[Message]) -> None:
        """Take the first messages of delta into q3. Nothing was put before them meanwhile."""
        delta = self._delta
        end, left = self._asked_end, self._asked_count
        taken = 0
        start = delta.start
        for message in messages:
            # Behind that, messages that were not yet there may be in between.
            if message.seq >= end or taken == left:
                break
            known = self.pager.unsynced(message.seq)
            if known is not None:
                known.event = message.event
            else:
                known = message
            self._q3.append(known)
            self._ram_bytes += known.size
            start = known.seq + 1
            taken += 1
        self._loaded += taken
        self._paged_in += taken
        exhausted = not messages or messages[-1].seq >= end or start >= end
        if taken < left and exhausted:
            self.ready -= left - taken
            self.pager.lost(left - taken)
            taken, start = left, end
        delta.shrink(start, taken)
        self._q3_may_be_empty()

    def _q3_may_be_empty(self) -> None:
        """Join the parts that nothing is between any more."""
        if not self._delta.count and self._q2:
            for message in self._q2:
                self._missing[message.seq] = message
            self._q3.extend(self._q2)
            self._q2.clear()
        if not self._q3 and not self._delta.count and self._q1:
            self._q4.extend(self._q1)
            self._q1.clear()

    # -- the target -----------------------------------------------------------------------------

    def tick(self, now: float) -> float | None:
        """See `Backing.tick`. Reports to the monitor every five seconds."""
        if self._unfinished:
            self._reduce_memory_use()
        monitor = self._monitor
        if monitor is not None and now >= self._report_due:
            self._report_due = now + REPORT_SECONDS
            self.set_duration_target(monitor.report(self, self.duration()))
        if self._unfinished and not self.credit.blocked:
            return now + GO_ON_SECONDS
        return None if monitor is None else self._report_due

    @property
    def _moving(self) -> float:
        rates = self.pager.rates
        return rates.ingress + rates.egress + rates.ack_ingress + rates.ack_egress

    def duration(self) -> float:
        """Return for how many seconds the messages in RAM last, by their numbers now and before.

        Infinite if nothing moves. Call it once for each report.
        """
        ram, acks = self._ready_in_ram, len(self._acks)
        amount = self._ram_before + ram + acks + self._acks_before
        self._ram_before, self._acks_before = ram, acks
        rates = self.pager.rates
        if max(rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress) < IDLE_RATE:
            return math.inf
        return amount / (4 * self._moving)

    def set_duration_target(self, seconds: float) -> None:
        """Keep in RAM what lasts for so long; page out if that is less now. Infinite: any number.

        If it is more, messages on disk are not read for it.
        """
        before = self.target
        self.target = None if seconds == math.inf else int(seconds * self._moving)
        if self.target is None:
            self._unfinished = False
        elif before is None or self.target < before:
            self._reduce_memory_use()

    # -- paging out -----------------------------------------------------------------------------

    def durable(self, ticket: int) -> None:
        """See `Backing.durable`. Paging goes on when the shelf gives credit."""
        self._durable = ticket
        was_blocked = self.credit.blocked
        self.credit.durable(ticket)
        if was_blocked and not self.credit.blocked:
            self._reduce_memory_use()

    def relieve(self) -> None:
        self._reduce_memory_use()

    def _reduce_memory_use(self) -> None:
        """Page out until RAM is within the target, for one quota at most, or until credit ends."""
        self._unfinished = False
        target = self.target
        if target is None or self.pager.shelf is None:
            return
        most = 2 * self._settings.credit.initial
        quota = left = 0
        need = self._ready_in_ram + len(self._acks) - target
        if need > 0:
            quota = left = min(need, most)
            rates = self.pager.rates
            if rates.ack_ingress - rates.ack_egress > rates.ingress - rates.egress:
                left = self._push_acks(left)
                left = self._push_alphas(left, target)
            else:
                left = self._push_alphas(left, target)
                left = self._push_acks(left)
            left = self._push_loaded(left, target)
        again = need > quota and not left
        known = len(self._q2) + len(self._q3)
        too_many = known - self._permitted(target)
        if too_many >= self._settings.io_batch_size:
            self._push_betas(min(too_many, most))
            again = again or too_many > most
        self._unfinished = again and not self.credit.blocked

    def _write(self, message: Message) -> bool:
        """Make sure that `message` can be unloaded; return whether it can."""
        if message.ticket is None:
            if not self.pager.write(message):
                return False
            assert message.ticket is not None
            self._ticket = message.ticket
            self.credit.wrote(message)
        return True

    def _push_acks(self, quota: int) -> int:
        """Unload pending messages, the largest number first, whatever the credit."""
        acks = self._acks
        for seq in heapq.nlargest(quota, acks):
            message = acks[seq]
            if not self._write(message):
                break
            del acks[seq]
            self._acks_bytes -= message.size
            message.unload()
            self._paged_out += 1
            quota -= 1
        return quota

    def _push_alphas(self, quota: int, target: int) -> int:
        """Turn alphas into betas: of q1 from its front, then of q4 from its rear."""
        q1, q4 = self._q1, self._q4
        behind = self._q2 if self._delta.count else self._q3
        while q1 and self._may_push(quota, target) and self._write(q1[0]):
            message = q1.popleft()
            self._unload(message)
            behind.append(message)
            if behind is self._q3:
                self._missing[message.seq] = message
            quota -= 1
        while q4 and not q1 and self._may_push(quota, target) and self._write(q4[-1]):
            message = q4.pop()
            self._unload(message)
            self._q3.appendleft(message)
            self._missing[message.seq] = message
            quota -= 1
        return quota

    def _may_push(self, quota: int, target: int) -> bool:
        return quota > 0 and self._ready_in_ram > target and not self.credit.blocked

    def _unload(self, message: Message) -> None:
        message.unload()
        self._ram_bytes -= message.size
        self._paged_out += 1

    def _push_loaded(self, quota: int, target: int) -> int:
        """Unload messages of q3 with their event, from its rear; not those that were read ahead."""
        keep = max(self._read_ahead, target - len(self._q4) - len(self._q1))
        if not quota or self._loaded <= keep:
            return quota
        for message in reversed(self._q3):
            if not quota or self._loaded <= keep or self.credit.blocked:
                break
            if message.event is None:
                continue
            if not self._write(message):
                break
            self._unload(message)
            self._loaded -= 1
            self._missing[message.seq] = message
            quota -= 1
        return quota

    def _permitted(self, target: int) -> int:
        """Most betas that there may be: fewer, the more there are and the lower the target."""
        if not self.ready:
            return len(self._q2) + len(self._q3)
        segment = self._settings.segment
        if not target:
            return min(len(self._q3), segment)
        behind = self.ready - len(self._q1) - len(self._q4)
        return max(segment, behind - behind * behind // (behind + target))

    def _push_betas(self, quota: int) -> None:
        """Turn betas into deltas: of q3 from its rear to a segment's end; of q2 from its front.

        So as much as one segment stays at the head.
        """
        q2, q3, delta = self._q2, self._q3, self._delta
        # Nothing is put before messages that are being read.
        if not (self.waiting and self._asked_count):
            limit = self._segment_end(q3[0].seq) if q3 else 0
            while quota and q3 and q3[-1].seq >= limit and _is_as_written(q3[-1]):
                message = q3.pop()
                if message.event is None:
                    del self._missing[message.seq]
                else:
                    self._unload(message)
                    self._loaded -= 1
                delta.expand(message.seq)
                quota -= 1
        while quota and q2:
            delta.expand(q2.popleft().seq)
            quota -= 1

    # -- looking --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        yield from self._q4
        yield from self._q3
        yield from self._q2
        yield from self._q1

    @property
    def _ready_in_ram(self) -> int:
        return len(self._q1) + self._loaded + len(self._q4)

    @property
    def ram_count(self) -> int:
        return self._ready_in_ram + len(self._acks)

    @property
    def ram_bytes(self) -> int:
        return self._ram_bytes + self._acks_bytes

    @property
    def lengths(self) -> tuple[int, int, int, int, int]:
        """The lengths of q4, q3, delta, q2 and q1: from the head to the tail."""
        return (
            len(self._q4), len(self._q3), self._delta.count, len(self._q2), len(self._q1)
        )  # fmt: skip

    def statistics(self) -> BackingStatistics:
        return BackingStatistics(
            policy=self.policy,
            ready=self.ready,
            ready_in_ram=self._ready_in_ram,
            pending_in_ram=len(self._acks),
            ram_bytes=self.ram_bytes,
            disk_only=self._delta.count,
            ram_target=self.target,
            paged_out=self._paged_out,
            paged_in=self._paged_in,
            reads=self._reads,
        )

    def check(self) -> None:
        """Assert the invariants between any two calls. For tests: looks at every message here.

        The first four are RabbitMQ's own (`a/1`); see difference 3 above.
        """
        q4, q3, delta, q2, q1 = self.lengths
        reading = delta > 0 and (self.waiting or self._dormant)
        assert not q1 or q3 or reading
        assert not q2 or delta
        assert not delta or q3 or reading
        assert self.ready == sum(self.lengths)
        assert (self.ready == 0) == (not q3 and not q4 and not reading)
        assert self._ready_in_ram <= self.ready
        # Order, and the place of each message.
        seqs = [message.seq for message in self]
        ahead = [message.seq for queue in (self._q4, self._q3) for message in queue]
        assert seqs == sorted(set(seqs))
        if delta:
            assert delta <= self._delta.end - self._delta.start
            assert not ahead or ahead[-1] < self._delta.start
            assert not seqs[len(ahead) :] or seqs[len(ahead)] >= self._delta.end
        assert all(message.event is not None for queue in (self._q4, self._q1) for message in queue)
        assert all(message.event is None and message.written for message in self._q2)
        assert all(message.event is not None or message.written for message in self._q3)
        # Counts.
        missing = {message.seq: message for message in self._q3 if message.event is None}
        assert missing == self._missing
        assert self._loaded == len(self._q3) - len(missing)
        in_ram = [message for message in self if message.event is not None]
        assert len(in_ram) == self._ready_in_ram
        assert sum(message.size for message in in_ram) == self._ram_bytes
        assert sum(message.size for message in self._acks.values()) == self._acks_bytes
        assert all(message.event is not None for message in self._acks.values())


def _is_as_written(message: Message) -> bool:
    """Whether the shelf has all that is known of it."""
    return message.written and not (message.redelivered or message.deliveries or message.failures)


def _seq_of(message: Message) -> int:
    return message.seq


def _merge(queue: deque[Message], messages: Sequence[Message]) -> None:
    """Put messages, in order, to their places in a queue; they are near its front."""
    if len(messages) <= FEW:
        # If thousands came back one by one, a linear search would pass all earlier ones for each.
        for message in messages:
            seq, near = message.seq, 1
            while near < len(queue) and queue[near - 1].seq < seq:
                near *= 2
            until = min(near, len(queue))
            queue.insert(bisect_left(queue, seq, near // 2, until, key=_seq_of), message)
        return
    passed: list[Message] = []
    for message in messages:
        while queue and queue[0].seq < message.seq:
            passed.append(queue.popleft())
        passed.append(message)
    queue.extendleft(reversed(passed))


def classic(
    *, monitor: MemoryMonitor | None = None, settings: ClassicSettings | None = None
) -> BackingFactory:
    """Return a factory of backings with the classic policy, under one memory monitor.

    Without a monitor nothing is ever paged out, except that reads after a restart stay as small.
    """

    def make(pager: Pager) -> Backing:
        return ClassicBacking(pager, monitor=monitor, settings=settings)

    return make
