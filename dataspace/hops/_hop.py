"""A hop: the holder of what goes from this relay to another one.

Rules of this file:

1. A loan stays here until the other relay has settled what it caused there (rule 7 of accounting):
   so its account owes for it, and waits for it, as for any other slow consumer.
2. The other relay says which holder has it. Then the loan is held here by a `RemoteHolder` of that
   name, so that the matrix of debts, blame, rings and the log name it without further ado.
3. What has been sent and has not been received is bounded by a window. What has been received is
   bounded by the limits of the accounts that owe for it: so one that is stuck there is in nobody
   else's way.
4. The hop itself is a slow consumer only of what the other relay has not received: that is given up
   when its patience is over. The other relay relieves its own holders.
5. A publisher that waits for a confirm gets it when the holders there have taken responsibility:
   what is stored there is on disk. What is given up is confirmed, as on one relay.
6. Where the other relay comes back with what it has stored, what asks is kept while it is away,
   and sent to its next life, which recognises what it has.
7. What an outbox has stored is its own: it is sent on behalf of that, and given back to it when
   the other relay goes.
8. Nothing is sent before the landing's life is known. So parcels that an earlier life has received
   never come to a later one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...accounts import (
    DEFAULT_PATIENCE,
    Account,
    Confirm,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    StuckPolicy,
    Trace,
)
from ._books import HopBooks
from ._outbox import Outbox, Sending
from ._remote_holder import RemoteHolder
from ._wire import Held, Identity, Parcel, Path, Ranges, Receipt, Shipment

if TYPE_CHECKING:
    from ...accounts.trace._notes import Crossing

logger = logging.getLogger("clearfunds.dataspace")

WINDOW: Final = Limit(items=10_000, bytes=8 << 20)
"""Sent to one relay and not received: as many bytes as the soft limits of NATS and Redis for one
peer."""

ITEMS_TO_ONE: Final = 100_000
BYTES_TO_ONE: Final = 16 << 20
"""Sent to one relay by all others and not received. NATS cuts off a connection for which 64 MiB are
pending (`max_pending`), or that does not take what is pending within 10 s (`write_deadline`). A
quarter leaves room for forwarded connections and for framing, and a relay that reads 1.6 MB/s takes
it in time."""

PARCEL_EVENTS: Final = 128
"""Events of a parcel at most: the other relay publishes them in one step, for about a millisecond
with a fan-out of nine."""

SHIPMENT_BYTES: Final = 256 << 10
"""A shipment has so much at most, or one parcel: as much as a reader takes at once."""


def share_of_window(senders: int) -> Limit:
    """Return the window of each hop to a relay that so many others send to; from 1 on."""
    most = WINDOW.marks()
    return Limit(
        items=max(1, min(most[0], ITEMS_TO_ONE // senders)),
        bytes=max(1, min(most[1], BYTES_TO_ONE // senders)),
    )


class Hop(LoanQueue):
    """The holder of what goes to another relay.

    A transport sends `shipment()` when `on_ready` is called, until it brings no parcels, and
    `hello()` from time to time; it calls `receipt` with the answers, and sends `again()` when a
    connection has been lost.

    Args:
        ledger: The books.
        relay: The other relay's name.
        epoch: A greater number than any earlier life of this hop had; from 1 on.
        window: The most that has been sent and not received.
        patience: Seconds in which nothing of it is received, while readers wait for it, after which
            that is given up.
        policy: Whether it is: `disconnect`; or `wait`.
        me: The name of this relay.
        on_ready: Called when there is something to send.

    Attributes:
        relay: The other relay's name.
        epoch: As above.
        is_away: Whether the other relay has gone, and may come back.
        given_up_items: Items that are written off here and may still be there.
        outbox: Stores what has to be stored before it goes; None: nothing has.
    """

    __slots__ = (
        "_asking", "_carried", "_confirms", "_crossings", "_identities", "_last_receipt", "_life",
        "_me", "_next", "_out", "_owing", "_received", "_remote", "_resent", "_seen", "_sent_in",
        "_shipment_bytes", "_shipments", "_unreceived", "_unreceived_bytes",
        "_unreceived_items", "_window", "epoch", "given_up_items", "is_away", "on_ready", "outbox",
        "relay",
    )  # fmt: skip

    kind = "hop"
    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(
        {StuckPolicy.WAIT, StuckPolicy.DISCONNECT}
    )

    def __init__(
        self,
        ledger: Ledger,
        relay: str,
        epoch: int,
        *,
        window: Limit = WINDOW,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        me: str = "",
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(ledger, relay, patience=patience, policy=policy)
        self.relay = relay
        self._me = me
        self.epoch = epoch
        self.on_ready = on_ready
        self._window = window.marks()[:2]
        self._shipment_bytes = min(SHIPMENT_BYTES, self._window[1])
        # Loans of the parcels that were sent and have not ended, and how many of them each account
        # has; parcels that have not been received. By number, in order.
        self._out: dict[int, LoanedItem[list[Any]]] = {}
        self._owing: dict[Account, int] = {}
        self._unreceived: dict[int, Parcel] = {}
        # The shipments in which these were sent the last time; the latest one that has come there.
        self._sent_in: dict[int, int] = {}
        self._seen = 0
        # Confirms that wait: for loans that have not been sent, and for parcels that are out.
        self._asking: dict[LoanedItem[list[Any]], list[Confirm]] = {}
        self._confirms: dict[int, list[Confirm]] = {}
        # Parcels of earlier lives: loans that have not been sent again, and those that are out.
        self._resent: dict[LoanedItem[list[Any]], Identity] = {}
        self._identities: dict[int, Identity] = {}
        self._carried = 0
        # Of parcels that a trace follows.
        self._crossings: dict[int, Crossing] = {}
        self.is_away = False
        self.given_up_items = 0
        self.outbox: Outbox | None = None
        self._unreceived_items = 0
        self._unreceived_bytes = 0
        self._remote: dict[str, RemoteHolder] = {}
        self._next = 1
        self._received = 1
        self._shipments = 0
        self._last_receipt = 0
        self._life = 0

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        progressed_at = self.progressed_at
        queue = self.queue
        confirm = self.ledger.confirming
        outbox = self.outbox
        if confirm is None:
            if self.is_away:
                account.repay(items, nbytes, Outcome.DROPPED, self)
                return
        elif outbox is not None and outbox.takes(item, confirm):
            outbox.hold(account, item, items, nbytes, now)
            return
        is_stored = isinstance(confirm, Sending)
        if not queue:
            self.on_ready()  # nobody calls `ready` after a run
        elif (
            is_stored
            or queue[-1].bytes + nbytes > self._shipment_bytes
            or (confirm is not None and len(queue[-1].item) >= PARCEL_EVENTS)
        ):
            queue[-1].grows_to = 0
        super().hold(account, item, items, nbytes, now)
        if confirm is not None and not self.closed:
            confirm.expect()
            self._asking.setdefault(queue[-1], []).append(confirm)
            if isinstance(confirm, Sending):
                queue[-1].grows_to = 0
                self._resent[queue[-1]] = confirm.identity
        if self._asking and len(queue[-1].item) >= PARCEL_EVENTS and queue[-1] in self._asking:
            queue[-1].grows_to = 0  # so it is not split
        if self._unreceived:
            # An empty queue is no progress, as long as what was sent before has not arrived.
            self.progressed_at = progressed_at

    def ready(self) -> None:
        if self.outbox is not None:
            self.outbox.ready()
        self.on_ready()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`: those that have not been received, and those that wait here."""
        for loan in self._out.values():
            if loan.holder is self:
                yield loan
        yield from self.queue

    def __len__(self) -> int:
        """Return the number of parcels that were sent and have not ended."""
        return len(self._out)

    @property
    def is_known(self) -> bool:
        """Whether the landing has answered: before that nothing is sent."""
        return self._life > 0

    @property
    def unreceived_items(self) -> int:
        """The number of items that were sent and have not been received."""
        return self._unreceived_items

    @property
    def unreceived_bytes(self) -> int:
        """Their bytes."""
        return self._unreceived_bytes

    @property
    def is_lost(self) -> bool:
        """Whether some of what was sent will not come, since something later has."""
        first = next(iter(self._unreceived), None)
        return first is not None and self._sent_in[first] <= self._seen

    @property
    def window(self) -> Limit:
        """The most that has been sent and not received."""
        return Limit(items=self._window[0], bytes=self._window[1])

    @window.setter
    def window(self, window: Limit) -> None:
        self._window = window.marks()[:2]
        self._shipment_bytes = min(SHIPMENT_BYTES, self._window[1])
        if self.queue:
            self.on_ready()

    @property
    def remotes(self) -> tuple[RemoteHolder, ...]:
        """The holders of the other relay that have some of what was sent."""
        return tuple(self._remote.values())

    def out(self) -> dict[int, LoanedItem[list[Any]]]:
        """Return the loans of parcels that were sent and have not ended, by number."""
        return dict(self._out)

    def books(self) -> HopBooks:
        """Return what is owed for here, and is there or on its way."""
        out = {number: loan.items for number, loan in self._out.items()}
        return HopBooks(self.epoch, self._next, out, self.given_up_items)

    # -- sending --------------------------------------------------------------------------------

    def shipment(self) -> Shipment:
        """Return what is to be sent now: new parcels, as far as the window allows."""
        parcels: list[Parcel] = []
        queue = self.queue
        size = 0
        while queue and self._life:
            loan = queue[0]
            if not loan.items:
                queue.popleft()
                _confirm(self._asking.pop(loan, ()))
                self._resent.pop(loan, None)
                continue
            is_long = len(loan.item) == loan.items > PARCEL_EVENTS
            items = PARCEL_EVENTS if is_long else loan.items
            nbytes = loan.bytes * items // loan.items
            if not self._has_room(items, nbytes):
                break
            if size and size + nbytes > self._shipment_bytes:
                break
            if is_long:
                loan = loan.split(items)
                loan.held_by(self)
            else:
                queue.popleft()
            parcels.append(self._send(loan))
            size += loan.bytes
        return self._shipment(parcels)

    def _has_room(self, items: int, nbytes: int) -> bool:
        """Whether the window has room for so much; for anything when it is empty."""
        most_items, most_bytes = self._window
        return not self._unreceived or (
            self._unreceived_items + items <= most_items
            and self._unreceived_bytes + nbytes <= most_bytes
        )

    def _send(self, loan: LoanedItem[list[Any]]) -> Parcel:
        number, account = self._next, loan.account
        self._next += 1
        confirms = self._asking.pop(loan, None)
        if confirms is not None:
            self._confirms[number] = confirms
        identity = self._resent.pop(loan, None)
        if identity is not None:
            self._identities[number] = identity
        sending = _sending(confirms)
        crossing = None if loan.trace is None else loan.trace.crosses(self.relay)
        if crossing is not None:
            self._crossings[number] = crossing
        parcel = Parcel(
            number,
            account.name if sending is None else sending.origin,
            above(account) if sending is None else sending.above,
            tuple(loan.item),
            loan.items,
            loan.bytes,
            confirms is not None,
            identity,
            0 if crossing is None else crossing.steps,
        )
        self._out[number] = loan
        self._owing[account] = self._owing.get(account, 0) + 1
        self._unreceived[number] = parcel
        self._unreceived_items += parcel.items
        self._unreceived_bytes += parcel.nbytes
        return parcel

    def hello(self) -> Shipment:
        """Return a shipment without parcels, which says who waits; the other relay answers it."""
        return self._shipment((), self._waiting())

    def again(self) -> Iterator[Shipment]:
        """Yield all that has been sent and not received, to be sent once more."""
        parcels: list[Parcel] = []
        size = 0
        for parcel in list(self._unreceived.values()):
            parcels.append(parcel)
            size += parcel.nbytes
            if size >= self._shipment_bytes:
                yield self._shipment(parcels)
                parcels, size = [], 0
        if parcels:
            yield self._shipment(parcels)

    def _shipment(
        self, parcels: Sequence[Parcel], waiting: frozenset[str] | None = None
    ) -> Shipment:
        self._shipments += 1
        for parcel in parcels:
            self._sent_in[parcel.number] = self._shipments
        return Shipment(
            self.epoch,
            self._shipments,
            self._life,
            next(iter(self._out), self._next),
            self._received,
            tuple(parcels),
            waiting,
            self._carried,
            None if self.outbox is None else self.outbox.erased,
        )

    def _waiting(self) -> frozenset[str]:
        """Return the accounts with parcels out whose debt readers wait for."""
        ledger = self.ledger
        if not ledger.waiters:
            return frozenset()
        places = {each.at for each in ledger.waiters if each.waits_on_holders}
        return frozenset(
            account.name for account in self._owing if any(each in places for each in account.chain)
        )

    # -- receipts ---------------------------------------------------------------------------------

    def receipt(self, receipt: Receipt) -> None:
        """Take an answer of the other relay.

        One for another epoch is ignored, and one of an earlier life of the landing, and one that
        comes when the other relay is known to have gone.
        """
        if receipt.epoch != self.epoch or receipt.life < self._life or self.is_away:
            return
        if receipt.life > self._life:
            self._begin(receipt.life)
        self._seen = max(self._seen, receipt.seen)
        self._note_received(min(receipt.received, self._next))
        if self._crossings:
            self._note_traces(receipt.traces)
        for number, _ in list(self._those_in(receipt.settled)):
            self._end_one(number)
        if self._confirms:
            for number, _ in list(self._those_in(receipt.taken)):
                _confirm(self._confirms.pop(number, ()))
        if receipt.held is not None and receipt.number > self._last_receipt:
            self._last_receipt = receipt.number
            self._note_holders(receipt.held, dict(receipt.waits))
        if self.queue:
            self.on_ready()

    def _begin(self, life: int) -> None:
        """Begin with another life of the landing; write off what the last one has lost."""
        if self._life:
            lost = [number for number in self._out if number < self._received]
            items = sum(self._end_one(number, Outcome.WRITTEN_OFF) for number in lost)
            self.given_up_items += items
            logger.warning(
                "relay %s has restarted: %d items that it had received, and not finished, are "
                "written off",
                self.relay, items,
            )  # fmt: skip
        self._life = life
        self._last_receipt = self._seen = 0
        self.settled()

    def _note_received(self, received: int) -> None:
        if received <= self._received:
            return
        self.settled()
        for number in range(self._received, received):
            self._take_off(number)
        self._received = received

    def _take_off(self, number: int) -> None:
        parcel = self._unreceived.pop(number, None)
        if parcel is not None:
            del self._sent_in[number]
            self._unreceived_items -= parcel.items
            self._unreceived_bytes -= parcel.nbytes

    def _note_traces(self, traces: Iterable[tuple[int, Trace]]) -> None:
        crossings = self._crossings
        for number, trace in traces:
            if number in crossings:
                crossings[number].told(trace)
        for number in [each for each, crossing in crossings.items() if crossing.is_over]:
            del crossings[number]

    def _end_one(self, number: int, outcome: Outcome = Outcome.DELIVERED) -> int:
        """End a parcel that is out; return how many items of it had not ended."""
        loan = self._out.pop(number)
        self._crossings.pop(number, None)
        account, items = loan.account, loan.items
        self._owing[account] -= 1
        if not self._owing[account]:
            del self._owing[account]
        self._taken_from(loan, number)
        if items:
            loan.settle(outcome=outcome)
        self._identities.pop(number, None)
        _confirm(self._confirms.pop(number, ()), is_lost=outcome is Outcome.WRITTEN_OFF)
        return items

    def _those_in(self, ranges: Ranges) -> Iterator[tuple[int, int]]:
        """Yield the numbers that are out, received, and in one of these ranges, and in which."""
        out = self._out
        span = sum(last - first + 1 for first, last in ranges)
        if span <= len(out):
            for at, (first, last) in enumerate(ranges):
                for number in range(first, last + 1):
                    if number in out and number < self._received:
                        yield number, at
            return
        at = 0
        for number in out:
            while at < len(ranges) and number > ranges[at][1]:
                at += 1
            if at == len(ranges) or number >= self._received:
                return
            if number >= ranges[at][0]:
                yield number, at

    def _note_holders(self, held: Iterable[Held], waits: Mapping[str, tuple[Path, ...]]) -> None:
        ledger = self.ledger
        told: set[str] = set()
        held = sorted(held, key=lambda each: each.first)
        for number, at in self._those_in(tuple((each.first, each.last) for each in held)):
            each = held[at]
            name = f"{self.relay}/{each.holder}"
            remote = self._remote.get(name)
            if remote is None:
                remote = self._remote[name] = RemoteHolder(ledger, name, self.relay, self._me)
            if each.owner is not None and name not in told:
                told.add(name)
                remote.waits_for(each.owner, waits.get(each.owner, ()))
            loan = self._out[number]
            if loan.holder is not remote and loan.items:
                self._taken_from(loan, number)
                remote.held[number] = loan
                loan.held_by(remote)
        for name, remote in list(self._remote.items()):
            if not remote.held:
                remote.close()
                del self._remote[name]

    @staticmethod
    def _taken_from(loan: LoanedItem[Any], number: int) -> None:
        holder = loan.holder
        if isinstance(holder, RemoteHolder):
            del holder.held[number]
            holder.settled()

    # -- while the other relay is away ------------------------------------------------------------

    def leave(self) -> None:
        """Note that the other relay has gone, and may come back: end all but what asks.

        Until another hop takes that over, or `close`, it takes only what asks. Idempotent.
        """
        if self.is_away or self.closed:
            return
        self.is_away = True
        self._life = 0
        for number, loan in list(self._out.items()):
            confirms = self._confirms.get(number)
            if confirms is None or _sending(confirms) is not None:
                self._end_one(number, Outcome.WRITTEN_OFF)
            elif loan.holder is not self and loan.items:
                self._taken_from(loan, number)
                loan.held_by(self)
        for number in list(self._unreceived):
            self._take_off(number)
        self._crossings.clear()
        kept: list[LoanedItem[list[Any]]] = []
        for loan in self.queue:
            confirms = self._asking.get(loan)
            if confirms is not None and _sending(confirms) is None:
                kept.append(loan)
                continue
            if loan.items:
                loan.settle(outcome=Outcome.WRITTEN_OFF)
            self._resent.pop(loan, None)
            _confirm(self._asking.pop(loan, ()), is_lost=True)
        self.queue.clear()
        self.queue.extend(kept)
        self._forget_holders()
        self.settled()

    def take_over(self, before: Hop) -> None:
        """Take over what an earlier life of this hop has kept, to be sent first; close that.

        This hop is new.
        """
        for number, loan in list(before._out.items()):
            identity = before._identities.get(number, (before.epoch, number))
            before._taken_from(loan, number)
            self._adopt(loan, before._confirms.pop(number, None), identity)
        before._out.clear()
        for loan in before.queue:
            self._adopt(loan, before._asking.pop(loan, None), before._resent.get(loan))
        before.queue.clear()
        self._carried = len(self._resent)
        before.close()
        if self.queue:
            self.on_ready()

    def _adopt(
        self,
        loan: LoanedItem[list[Any]],
        confirms: list[Confirm] | None,
        identity: Identity | None,
    ) -> None:
        if not loan.items:
            _confirm(confirms or ())
            return
        loan.grows_to = 0
        loan.held_by(self)
        self.append(loan)
        if confirms is not None:
            self._asking[loan] = confirms
        if identity is not None:
            self._resent[loan] = identity

    # -- its end ----------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: what has not been received is written off; what comes goes on."""
        for number in list(self._out if self.is_away else self._unreceived):
            self._take_off(number)
            self.given_up_items += self._end_one(number, Outcome.WRITTEN_OFF)
        self._received = self._next
        self.settle_all(Outcome.WRITTEN_OFF)
        self.settled()

    def settle_all(self, outcome: Outcome) -> None:
        super().settle_all(outcome)
        self._resent.clear()
        asking, self._asking = self._asking, {}
        for confirms in asking.values():
            _confirm(confirms, is_lost=True)

    def close(self) -> None:
        """Close it: the other relay is no longer one of the cluster. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for number in list(self._out):
            self._end_one(number, Outcome.WRITTEN_OFF)
        self._unreceived.clear()
        self._sent_in.clear()
        self.settle_all(Outcome.WRITTEN_OFF)
        self._forget_holders()
        self.ledger.unregister(self)

    def _forget_holders(self) -> None:
        for remote in self._remote.values():
            remote.close()
        self._remote.clear()


def _confirm(confirms: Iterable[Confirm], *, is_lost: bool = False) -> None:
    """Confirm what the other relay has taken, or what is given up (rule 5) but is stored here."""
    for confirm in confirms:
        if is_lost and isinstance(confirm, Sending):
            confirm.lost()
        else:
            confirm.taken()


def _sending(confirms: list[Confirm] | None) -> Sending | None:
    """Return the event of an outbox that a parcel or a loan is, from those that it asks for."""
    first = confirms[0] if confirms else None
    return first if isinstance(first, Sending) else None


def above(account: Account) -> tuple[str, ...]:
    """Return the names of the accounts above one, the root first."""
    names: list[str] = []
    each = account.parent
    while each is not None:
        names.append(each.name)
        each = each.parent
    return tuple(reversed(names))
