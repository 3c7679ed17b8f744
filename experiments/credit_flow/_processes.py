"""Senders and receivers of messages, as in RabbitMQ: each is a process with its own credit.

    reader --> outlet            (or messages that a client has not acknowledged)
    reader --> queue --> store

Rules of this file:
1. A reader is its account: a client that comes back under the same name before all of its messages
   are handled has the credit that it had left, not the initial one (rule 14 of the accounts). In
   RabbitMQ it would be another process.
2. An outlet has handled a message when its debt is repaid, whatever the outcome: the kernel has it,
   it was acknowledged, or dropped. A queue has handled it when it has taken it in; the rest is
   between the queue and the store. So it is in RabbitMQ.
3. The store has handled a message when that is durable. RabbitMQ's has when it is written to its
   file; our store reports durability only.
4. A process that goes down is forgotten by all others at once (`CreditFlow.peer_down`), and forgets
   them; its counts stay in the totals.
"""

from __future__ import annotations

import abc
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from clearfunds.accounts import Account, Holder
from clearfunds.accounts._gate import gate_of

from ._credit_flow import Credit, CreditFlow

if TYPE_CHECKING:
    from ._scheme import CreditScheme


class Process(abc.ABC):
    """A sender or receiver of messages.

    Attributes:
        scheme: The scheme that has all processes.
        flow: Its credit; gone when the process is down.
        down: Whether it has ended.
    """

    __slots__ = ("down", "flow", "scheme")

    kind: ClassVar[str]

    def __init__(self, scheme: CreditScheme) -> None:
        self.scheme = scheme
        self.down = False
        self.flow = self._make_flow()

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Its name, as an operator knows it."""

    def _make_flow(self) -> CreditFlow[Process]:
        return CreditFlow(self, self.grant, clock=self.scheme.ledger.clock)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: down>" if self.down else repr(self.flow)

    def grant(self, to: Process, quantity: int) -> None:
        """Give a peer credit, if it still exists. For its flow."""
        if not to.down:
            to.flow.handle_bump(self, quantity)

    def go_down(self) -> None:
        """End. Idempotent."""
        if self.down:
            return
        self.down = True
        self._forgotten()
        self.scheme.has_gone(self)
        # It and its flow refer to each other: otherwise only the garbage collector frees them.
        del self.flow

    def _forgotten(self) -> None:  # noqa: B027 (some processes are known to no other)
        """Have all others forget it."""


class ReaderFlow(CreditFlow[Process]):
    """The credit of a reader: while a station blocks it, its account's readers wait."""

    __slots__ = ("_account", "_told")

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader, reader.grant, clock=reader.scheme.ledger.clock)
        self._account = reader.account
        # The names under which its account knows the blockers: a blocker's name may change
        # meanwhile, and two of them may have the same.
        self._told: dict[Process, str] = {}

    def block(self, peer: Process) -> None:
        super().block(peer)
        if peer not in self._told:
            self._told[peer] = name = peer.name
            gate_of(self._account).block(name)

    def unblock(self, peer: Process) -> None:
        super().unblock(peer)
        if peer in self._told and peer not in self.blockers:
            name = self._told.pop(peer)
            if name not in self._told.values():
                gate_of(self._account).unblock(name)


class Reader(Process):
    """Brings messages in, on one account.

    Attributes:
        account: The account.
        leaving: Whether its connection has ended; it goes down when nothing is owed any more.
    """

    __slots__ = ("account", "leaving")

    kind = "reader"

    def __init__(self, scheme: CreditScheme, account: Account) -> None:
        self.account = account
        self.leaving = False
        super().__init__(scheme)

    def _make_flow(self) -> CreditFlow[Process]:
        return ReaderFlow(self)

    @property
    def name(self) -> str:
        return self.account.name

    def send(self, to: Station, n: int) -> None:
        """Send `n` messages to a station."""
        self.leaving = False
        flow = self.flow
        if to not in flow.credit_from:
            to.senders.add(self)
        flow.send(to, to.credit, n)

    def _forgotten(self) -> None:
        flow = self.flow
        for station in list(flow.credit_from):
            if isinstance(station, Station) and not station.down:
                station.senders.discard(self)
                station.flow.peer_down(self)
        for peer in flow.blockers[:]:
            flow.unblock(peer)


class Station(Process):
    """Takes messages from readers, for a holder.

    Attributes:
        holder: The holder.
        credit: The credit that readers begin with here.
        senders: The processes that have sent it messages.
        received: The number of messages ever sent to it.
    """

    __slots__ = ("credit", "holder", "received", "senders")

    def __init__(self, scheme: CreditScheme, holder: Holder, credit: Credit) -> None:
        super().__init__(scheme)
        self.holder = holder
        self.credit = credit
        self.senders: set[Reader] = set()
        self.received = 0

    @property
    def name(self) -> str:
        return self.holder.name

    def arrived(self, account: Account, n: int) -> None:
        """Note that `n` messages have arrived for its holder, on behalf of `account`."""
        if not self.down:
            self.received += n
            self.scheme.reader_of(account).send(self, n)

    def _forgotten(self) -> None:
        senders, self.senders = self.senders, set()
        for reader in senders:
            reader.flow.peer_down(self)


class OutletStation(Station):
    """The station of an outlet: messages are handled when they have left."""

    __slots__ = ()

    kind = "outlet"

    def handled(self, reader: Reader, n: int) -> None:
        """Note that it is done with `n` messages of a reader, which arrived earlier."""
        # A reader that has sent nothing would know this station without being known to it.
        if not self.down and reader in self.senders:
            self.flow.ack(reader, self.credit, n)


class InflightStation(OutletStation):
    """The station of unacknowledged messages: they are handled when the client acknowledges."""

    __slots__ = ()

    kind = "inflight"


class LogStation(OutletStation):
    """The station of messages that readers of ranges have not acknowledged."""

    __slots__ = ()

    kind = "subscription"


class QueueStation(Station):
    """The station of a queue: messages are handled once taken in, unless the store blocks it.

    Attributes:
        short: Whether it is blocked because the store takes nothing, rather than for want of
            credit: there is no space, or the disk is in trouble.
    """

    __slots__ = ("_under_way", "short")

    kind = "queue"

    def __init__(self, scheme: CreditScheme, holder: Holder, credit: Credit) -> None:
        super().__init__(scheme, holder, credit)
        # The tickets of messages that are written and not durable.
        self._under_way: deque[int] = deque()
        self.short = False

    def arrived(self, account: Account, n: int) -> None:
        """See `Station.arrived`; the messages are handled at once, one by one."""
        if self.down:
            return
        self.received += n
        reader = self.scheme.reader_of(account)
        credit = self.credit
        while n:
            # Nothing changes before it has handled enough of them to grant more.
            some = min(n, max(1, self.flow.credit_to.get(reader, credit.more_after)))
            reader.send(self, some)
            self.flow.ack(reader, credit, some)
            n -= some

    def wrote(self, ticket: int) -> None:
        """Note that a message was handed to the store."""
        if not self.down:
            scheme = self.scheme
            self.flow.send(scheme.store, scheme.settings.queue_store)
            scheme.store.received += 1
            self._under_way.append(ticket)

    def durable(self, ticket: int) -> None:
        """Note that the store is done with everything written up to this ticket."""
        under_way = self._under_way
        n = 0
        while under_way and under_way[0] <= ticket:
            under_way.popleft()
            n += 1
        if n and not self.down:
            self.scheme.store.flow.ack(self, self.scheme.settings.queue_store, n)

    def note_room(self, has_room: bool) -> None:
        """Note whether the store takes messages. RabbitMQ's queues block in this way, too, for
        other reasons than credit.
        """  # noqa: D205
        if self.short is has_room and not self.down:
            self.short = not has_room
            if self.short:
                self.flow.block(self.scheme.store)
            else:
                self.flow.unblock(self.scheme.store)

    def _forgotten(self) -> None:
        super()._forgotten()
        self.scheme.store.flow.peer_down(self)


class StoreProcess(Process):
    """The store, to which all queues write.

    Attributes:
        received: The number of messages ever sent to it.
    """

    __slots__ = ("received",)

    kind = "store"

    def __init__(self, scheme: CreditScheme) -> None:
        super().__init__(scheme)
        self.received = 0

    @property
    def name(self) -> str:
        return "(store)"
