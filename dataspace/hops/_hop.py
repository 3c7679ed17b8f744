"""A hop: the holder of what goes from this relay to another one.

Rules of this file:

1. A loan stays here until the other relay has settled what it caused there (rule 7 of accounting):
   so its account owes for it, and waits for it, as for any other slow consumer.
2. The other relay says which holder has it. Then the loan is held here by a `RemoteHolder` of that
   name, so that the matrix of debts, blame, rings and the log name it without further ado.
3. What has been sent and has not been received is bounded by a window. What has been received is
   bounded by the limits of the accounts that owe for it: so one that is stuck there is in nobody
   else's way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final

from ...accounts import (
    DEFAULT_PATIENCE,
    Account,
    Holder,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    StuckPolicy,
)
from ._wire import Parcel, Ranges, Receipt, Shipment

logger = logging.getLogger("clearfunds.dataspace")

WINDOW: Final = Limit(items=10_000, bytes=8 << 20)
"""Sent and not received: as many bytes as the soft limits of NATS and Redis for one peer."""

PREFIX: Final = "via"
"""The beginning of the name of an account whose events have come from another relay."""


def via(relay: str, origin: str) -> str:
    """Return the name of the account here of an account of another relay."""
    return f"{PREFIX}/{relay}/{origin}"


class RemoteHolder(Holder):
    """A holder of another relay, with the loans that it holds there; `Hop` makes it."""

    __slots__ = ("held",)

    kind = "remote"
    policies: ClassVar[frozenset[StuckPolicy]] = frozenset({StuckPolicy.WAIT})

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger, name, policy=StuckPolicy.WAIT)
        self.held: dict[int, LoanedItem[Any]] = {}

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """Take nothing: deliveries go to the hop."""
        account.repay(items, nbytes, Outcome.DROPPED, self)

    def ready(self) -> None:
        """See `Recipient.ready`."""

    def loans(self) -> Iterator[LoanedItem[Any]]:
        yield from self.held.values()

    def give_up(self, why: str) -> None:
        """Do nothing: the other relay gives it up, by its policy."""


class Hop(LoanQueue):
    """The holder of what goes to another relay.

    A transport sends `shipment()` when `on_ready` is called, and again from time to time; it calls
    `receipt` with the answers, and sends `again()` when a connection has been lost.

    Args:
        ledger: The books.
        relay: The other relay's name.
        epoch: A text that no earlier life of this hop had.
        window: The most that has been sent and not received.
        patience: Seconds without progress, while readers wait for it, after which it is given up.
        policy: Whether it is: `disconnect`; or `wait`.
        on_ready: Called when there is something to send.

    Attributes:
        relay: The other relay's name.
        epoch: As above.
    """

    __slots__ = (
        "_last_receipt", "_life", "_next", "_out", "_received", "_remote", "_unreceived",
        "_window", "epoch", "on_ready", "relay",
    )  # fmt: skip

    kind = "hop"
    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(
        {StuckPolicy.WAIT, StuckPolicy.DISCONNECT}
    )

    def __init__(
        self,
        ledger: Ledger,
        relay: str,
        epoch: str,
        *,
        window: Limit = WINDOW,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(ledger, relay, patience=patience, policy=policy)
        self.relay = relay
        self.epoch = epoch
        self.on_ready = on_ready
        self._window = window.marks()
        # Parcels that were sent and have not ended, with their loans, by number.
        self._out: dict[int, tuple[Parcel, LoanedItem[list[Any]]]] = {}
        self._remote: dict[str, RemoteHolder] = {}
        self._next = 1
        self._received = 1
        self._unreceived = [0, 0]
        self._last_receipt = 0
        self._life: str | None = None

    def ready(self) -> None:
        self.on_ready()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`: those that nobody has received, and those that wait there."""
        for _, loan in self._out.values():
            if loan.holder is self:
                yield loan
        yield from self.queue

    def __len__(self) -> int:
        """Return the number of parcels that were sent and have not ended."""
        return len(self._out)

    def parcels(self) -> dict[int, Parcel]:
        """Return the parcels that were sent and have not ended, by number."""
        return {number: parcel for number, (parcel, _) in self._out.items()}

    # -- sending --------------------------------------------------------------------------------

    def shipment(self) -> Shipment:
        """Return what is to be sent now: new parcels, as far as the window allows."""
        parcels: list[Parcel] = []
        items, nbytes = self._window[:2]
        while self.queue and self._unreceived[0] < items and self._unreceived[1] < nbytes:
            loan = self.queue.popleft()
            if not loan.items:
                continue
            account = loan.account
            parcel = Parcel(
                self._next, account.name, above(account), tuple(loan.item), loan.items, loan.bytes
            )
            self._next += 1
            self._out[parcel.number] = parcel, loan
            self._unreceived[0] += parcel.items
            self._unreceived[1] += parcel.nbytes
            parcels.append(parcel)
        return self._shipment(parcels)

    def again(self) -> Shipment:
        """Return all that has been sent and not received, to be sent once more."""
        return self._shipment(
            parcel for number, (parcel, _) in self._out.items() if number >= self._received
        )

    def _shipment(self, parcels: Iterable[Parcel]) -> Shipment:
        owing = {loan.account for _, loan in self._out.values()}
        waiting = frozenset(
            each.account.name for each in self.ledger.waiters if each.account in owing
        )
        floor = next(iter(self._out), self._next)
        return Shipment(self.epoch, floor, tuple(parcels), waiting)

    # -- receipts ---------------------------------------------------------------------------------

    def receipt(self, receipt: Receipt) -> None:
        """Take an answer of the other relay; one of an earlier epoch is ignored."""
        if receipt.epoch != self.epoch:
            return
        if receipt.life != self._life:
            self._begin(receipt.life)
        self._note_received(min(receipt.received, self._next))
        for number, _ in list(self._those_in(receipt.settled)):
            parcel, loan = self._out.pop(number)
            if number >= self._received:
                self._take_off(parcel)
            self._taken_from(loan, number)
            if loan.items:
                loan.settle()
        if receipt.number > self._last_receipt:
            self._last_receipt = receipt.number
            self._note_holders(receipt)
        if self.queue:
            self.on_ready()

    def _begin(self, life: str) -> None:
        """Begin with another life of the landing; write off what the last one has lost."""
        if self._life is not None:
            lost = [number for number in self._out if number < self._received]
            items = 0
            for number in lost:
                _, loan = self._out.pop(number)
                self._taken_from(loan, number)
                if loan.items:
                    items += loan.items
                    loan.settle(outcome=Outcome.WRITTEN_OFF)
            logger.warning(
                "relay %s has restarted: %d items that it had received, and not finished, are "
                "written off",
                self.relay, items,
            )  # fmt: skip
        self._life = life
        self._last_receipt = 0

    def _note_received(self, received: int) -> None:
        if received <= self._received:
            return
        self.settled()
        for number in range(self._received, received):
            sent = self._out.get(number)
            if sent is not None:
                self._take_off(sent[0])
        self._received = received

    def _take_off(self, parcel: Parcel) -> None:
        self._unreceived[0] -= parcel.items
        self._unreceived[1] -= parcel.nbytes

    def _those_in(self, ranges: Ranges) -> Iterator[tuple[int, int]]:
        """Yield the numbers that are out and in one of these ranges, and which it is."""
        at = 0
        for number in self._out:
            while at < len(ranges) and number > ranges[at][1]:
                at += 1
            if at == len(ranges):
                return
            if number >= ranges[at][0]:
                yield number, at

    def _note_holders(self, receipt: Receipt) -> None:
        ledger = self.ledger
        held = sorted(receipt.held, key=lambda each: each.first)
        for number, at in self._those_in(tuple((each.first, each.last) for each in held)):
            each = held[at]
            name = f"{self.relay}/{each.holder}"
            remote = self._remote.get(name)
            if remote is None:
                remote = self._remote[name] = RemoteHolder(ledger, name)
            if each.owner is not None:
                remote.owner = ledger.accounts.get(via(self.relay, each.owner))
            loan = self._out[number][1]
            if loan.holder is not remote and loan.items:
                self._taken_from(loan, number)
                remote.held[number] = loan
                loan.held_by(remote)
        for name, remote in list(self._remote.items()):
            if not remote.held:
                ledger.unregister(remote)
                del self._remote[name]

    def _taken_from(self, loan: LoanedItem[Any], number: int) -> None:
        holder = loan.holder
        if isinstance(holder, RemoteHolder):
            del holder.held[number]
            holder.settled()

    # -- its end ----------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: what has not ended there is written off; what comes goes on."""
        self._end(Outcome.WRITTEN_OFF)

    def close(self) -> None:
        """Close it: the other relay is no longer one of the cluster. Idempotent."""
        if not self.closed:
            self.closed = True
            self._end(Outcome.CANCELLED)
            self.ledger.unregister(self)

    def _end(self, outcome: Outcome) -> None:
        for number, (_, loan) in list(self._out.items()):
            self._taken_from(loan, number)
            if loan.items:
                loan.settle(outcome=outcome)
        self._out.clear()
        self._received = self._next
        self._unreceived = [0, 0]
        self.settle_all(outcome)
        for remote in self._remote.values():
            self.ledger.unregister(remote)
        self._remote.clear()


def above(account: Account) -> tuple[str, ...]:
    """Return the names of the accounts above one, the root first."""
    names: list[str] = []
    each = account.parent
    while each is not None:
        names.append(each.name)
        each = each.parent
    return tuple(reversed(names))
