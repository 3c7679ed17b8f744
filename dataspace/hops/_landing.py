"""A landing: where parcels of another relay come in.

Rules of this file:

1. A parcel is published here on the account of its origin (`via/RELAY/ORIGIN`), when that account's
   funds are clear: shares and weights hold by origin, not by link. Until then it is owed for at the
   other relay alone.
2. It is settled when all that it has caused here has ended; only then its receipt says so. What is
   stored, dropped or given up has ended.
3. While a reader of its origin waits there, one waits here, too: the patience of the holders here
   goes on, and rings of connections on two relays are rings here.
4. Parcels never go on to another relay: each relay sends to all that have subscribers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ...accounts import Account, Holder, Ledger, Limit, Outcome, Recipient, Router, Turn
from ...accounts.trace._traced import Tagging
from .._in_hand import InHand
from ._hop import Hop
from ._wire import Held, Parcel, Receipt, Shipment, ranges_of

if TYPE_CHECKING:
    from ...accounts import LoanedItem
    from ...accounts._leaks import Gone

HELD_UP: Final = Limit(items=0, bytes=0)
"""The limit of an account while its reader waits at its own relay: any debt here is in its way."""


IDLE_SECONDS: Final = 60.0
"""After so long without a parcel, an origin's account is closed. Sixty scrapes of Prometheus at its
shortest usual interval: a publisher that pauses should not come and go in metrics."""


class Landed:
    """A parcel that has come, and the notes of what becomes of it (`accounts.trace._notes`)."""

    __slots__ = ("_landing", "account", "is_open", "left", "loans", "parcel")

    def __init__(self, landing: Landing, account: Account, parcel: Parcel) -> None:
        self._landing = landing
        self.account = account
        self.parcel = parcel
        # Whether it has not been published yet, or some of it has not ended.
        self.is_open = True
        # Items that it has caused and that have not ended; one until it has been published.
        self.left = 1
        self.loans = InHand()

    def tag(self, loan: LoanedItem[Any]) -> None:
        loan.trace = self
        loan.grows_to = 0
        self.loans.add(loan)

    def borrowed(self, items: int, nbytes: int) -> None:
        del nbytes
        self.left += items

    def moved(self, before: Holder | None, holder: Holder, items: int) -> None:
        """See `Notes.moved`: its loans know their holders."""

    def repaid(
        self, items: int, nbytes: int, outcome: Outcome, holder: Holder | Gone | None
    ) -> None:
        del nbytes, outcome, holder
        self.left -= items
        if not self.left and self.is_open:
            self.is_open = False
            self._landing.settled(self)

    def caused_turn(self, account: Account) -> Turn:
        return LandedTurn(account, self)

    def slowest(self) -> Holder | None:
        """Return the holder of some of it that has made no progress for the longest time."""
        holders = [loan.holder for loan in self.loans if loan.holder is not None]
        return min(holders, key=lambda each: each.progressed_at, default=None)


class LandedTurn(Turn):
    """A turn that a parcel causes: its loans are tagged, and none goes to another relay."""

    __slots__ = ("_landed",)

    def __init__(self, account: Account, landed: Landed, items: int = 0, nbytes: int = 0) -> None:
        super().__init__(account, items, nbytes)
        self._landed = landed

    def _hand_over(self) -> Iterable[Recipient]:
        tracked: dict[Recipient, Recipient] = {}
        deliveries = self._deliveries
        deliveries[:] = [each for each in deliveries if not isinstance(each[0].last_holder, Hop)]
        for number, (recipient, item, items, nbytes, payer) in enumerate(deliveries):
            if payer is None:
                if recipient not in tracked:
                    tracked[recipient] = Tagging(recipient, self._landed)
                deliveries[number] = tracked[recipient], item, items, nbytes, None
        return super()._hand_over()


class Landing:
    """Where parcels of one other relay come in.

    A transport calls `accept` with each shipment, starts a task with `serve` for each origin that
    it returns, and sends `receipt()` from time to time, at once when `on_settled` is called.

    Args:
        ledger: The books.
        router: The dataspace.
        open_account: Opens the account for an origin, from its name and the names above it.
        life: A text that no earlier life of this landing had.
        on_settled: Called when a parcel is settled.
    """

    def __init__(
        self,
        ledger: Ledger,
        router: Router,
        open_account: Callable[[str, tuple[str, ...]], Account],
        life: str,
        *,
        on_settled: Callable[[], object] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._router = router
        self._open = open_account
        self._life = life
        self._on_settled = on_settled
        self._epoch: str | None = None
        self._floor = 1
        self._next = 1
        # Parcels that have come and are not settled; the numbers of those that are.
        self._landed: dict[int, Landed] = {}
        self._settled: set[int] = set()
        # By origin.
        self._accounts: dict[str, Account] = {}
        self._limits: dict[str, Limit] = {}
        self._queues: dict[str, deque[Landed]] = {}
        self._unsettled: dict[str, int] = {}
        self._idle: dict[str, float] = {}
        self._waiting: frozenset[str] = frozenset()
        self._served: set[str] = set()
        self._receipts = 0

    def __len__(self) -> int:
        """Return the number of parcels that have come and are not settled."""
        return len(self._landed)

    def unsettled(self) -> dict[int, Parcel]:
        """Return the parcels that have come and are not settled, by number."""
        return {number: each.parcel for number, each in self._landed.items()}

    # -- shipments --------------------------------------------------------------------------------

    def accept(self, shipment: Shipment) -> list[str]:
        """Take a shipment; return the origins for which `serve` has to run.

        One that has come before is skipped. After a gap the rest is left: it comes again.
        """
        if shipment.epoch != self._epoch:
            self._begin(shipment)
        if shipment.floor > self._floor:
            self._floor = shipment.floor
            self._settled = {each for each in self._settled if each >= shipment.floor}
            self._next = max(self._next, shipment.floor)
        for parcel in shipment.parcels:
            if parcel.number == self._next:
                self._next += 1
                self._take(parcel)
        self._hold_up(shipment.waiting)
        found = [origin for origin in self._accounts if self._has_to_be_served(origin)]
        self._served.update(found)
        return found

    def _begin(self, shipment: Shipment) -> None:
        """Begin with another life of the hop; what came from the last one goes on unreported."""
        self._epoch = shipment.epoch
        self._landed.clear()
        self._settled.clear()
        self._floor = self._next = shipment.floor
        self._receipts = 0

    def _take(self, parcel: Parcel) -> None:
        origin = parcel.origin
        account = self._accounts.get(origin)
        if account is None:
            account = self._accounts[origin] = self._open(origin, parcel.above)
            self._limits[origin] = account.limit
            self._queues[origin] = deque()
            self._unsettled[origin] = 0
        landed = Landed(self, account, parcel)
        self._landed[parcel.number] = landed
        self._unsettled[origin] += 1
        self._idle.pop(origin, None)
        queue = self._queues[origin]
        if not queue and account.funds_are_clear():
            self._publish(landed)
        else:
            queue.append(landed)

    def _hold_up(self, waiting: frozenset[str]) -> None:
        for origin in waiting ^ self._waiting:
            account = self._accounts.get(origin)
            if account is not None:
                account.limit = HELD_UP if origin in waiting else self._limits[origin]
        self._waiting = frozenset(waiting & self._accounts.keys())

    def _has_to_be_served(self, origin: str) -> bool:
        if origin in self._served:
            return False
        held_up = origin in self._waiting and self._accounts[origin].debt_items > 0
        return held_up or bool(self._queues[origin])

    async def serve(self, origin: str) -> None:
        """Publish the parcels of an origin when its funds are clear, until none is left.

        While the origin's reader waits at its own relay, this waits here in its place.

        Cancellation: the parcels stay; another call goes on.
        """
        account = self._accounts[origin]
        queue = self._queues[origin]
        try:
            while queue or (origin in self._waiting and account.debt_items):
                await account.ensure_clear_funds()
                if queue:
                    self._publish(queue.popleft())
        finally:
            self._served.discard(origin)

    def _publish(self, landed: Landed) -> None:
        parcel = landed.parcel
        try:
            with LandedTurn(landed.account, landed, parcel.items, parcel.nbytes) as turn:
                for event in parcel.events:
                    turn.publish(self._router, event)
        finally:
            landed.repaid(1, 0, Outcome.DELIVERED, None)

    # -- receipts ---------------------------------------------------------------------------------

    def settled(self, landed: Landed) -> None:
        """Note that all that a parcel has caused has ended; its notes call this."""
        number, origin = landed.parcel.number, landed.parcel.origin
        if self._landed.get(number) is landed:  # else it came from an earlier life of the hop
            del self._landed[number]
            self._settled.add(number)
        if origin in self._unsettled:  # else this landing has been closed
            self._unsettled[origin] -= 1
            if not self._unsettled[origin]:
                self._idle[origin] = self._ledger.clock()
        self._ledger.faults.call(None, "telling of a parcel that is settled", self._on_settled)

    def _close_idle(self) -> None:
        now = self._ledger.clock()
        for origin, since in list(self._idle.items()):
            if now - since >= IDLE_SECONDS and origin not in self._served:
                self._close(origin)

    def _close(self, origin: str) -> None:
        account = self._accounts.pop(origin)
        account.limit = self._limits.pop(origin)
        del self._queues[origin], self._unsettled[origin]
        self._idle.pop(origin, None)
        self._waiting -= {origin}
        account.close()

    def close(self) -> None:
        """Close it: the other relay is no longer one of the cluster.

        What it has published here goes on; parcels that wait are dropped, and end there. End the
        tasks of `serve` before.
        """
        for origin in list(self._accounts):
            self._close(origin)
        self._landed.clear()

    def receipt(self) -> Receipt:
        """Return all that is known of the parcels that have come."""
        self._receipts += 1
        self._close_idle()
        held: list[Held] = []
        for number, landed in self._landed.items():
            holder = landed.slowest()
            if holder is None:
                continue
            owner = None if holder.owner is None else holder.owner.name
            last = held[-1] if held else None
            if last is not None and (last.last, last.holder, last.owner) == (
                number - 1, holder.name, owner,
            ):  # fmt: skip
                held[-1] = Held(last.first, number, holder.name, owner)
            else:
                held.append(Held(number, number, holder.name, owner))
        return Receipt(
            self._epoch or "",
            self._life,
            self._receipts,
            self._next,
            ranges_of(sorted(self._settled)),
            tuple(held),
        )
