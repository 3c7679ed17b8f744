"""A landing: where parcels of another relay come in.

Rules of this file:

1. A parcel is published here on the account of its origin (`via/RELAY/ORIGIN`), when that account's
   funds are clear: shares and weights hold by origin, not by link. Until then it is owed for at the
   other relay alone.
2. It is taken when all holders here have taken responsibility for it, as for a publisher of this
   relay: then its publisher, who may wait for that, gets a confirm.
3. It is settled when all that it has caused here has ended; only then its receipt says so. What is
   stored, dropped or given up has ended.
4. While a reader of its origin waits there, one waits here, too: the patience of the holders here
   goes on, and rings of connections on two relays are rings here.
5. The events of a parcel never go on to another relay: each relay sends to all that have
   subscribers. Events that they cause here may.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ...accounts import (
    Account,
    CountedConfirm,
    Holder,
    Ledger,
    Limit,
    Outcome,
    Recipient,
    Router,
    Turn,
    label_of,
)
from ...accounts._loop import checkpoint
from ...accounts.trace._traced import Tagging
from .._in_hand import InHand
from ._books import LandingBooks
from ._hop import Hop
from ._landed_traces import FollowedLandedTurn, LandedTraces
from ._wire import Held, Identity, Parcel, Path, Ranges, Receipt, Shipment, ranges_of

if TYPE_CHECKING:
    from ...accounts import LoanedItem
    from ...accounts._leaks import Gone
    from ...accounts.trace._trace_notes import TraceNotes

logger = logging.getLogger("clearfunds.dataspace")

HELD_UP: Final = Limit(items=0, bytes=0)
"""The limit of an account while its reader waits at its own relay and no parcel of it waits here:
any debt here is in its way."""

WAITS: Final = "(landing)"
"""The holder of a parcel that waits for clear funds here, where none of its account's own debt is
in the way: the limit of its tenant, say."""

NAMED: Final = 1_000
"""Parcels, at most, for which a receipt looks for the holder."""

MAX_OWNERS: Final = 32
"""Accounts, at most, of which a receipt says what they wait for."""

IDLE_SECONDS: Final = 60.0
"""After so long without a parcel, an origin's account is closed. Sixty scrapes of Prometheus at its
shortest usual interval: a publisher that pauses should not come and go in metrics."""


class Landed:
    """A parcel that has come, and the notes of what becomes of it (`accounts.trace._notes`)."""

    __slots__ = (
        "_landing", "account", "is_open", "is_published", "left", "loans", "parcel", "trace",
    )  # fmt: skip

    def __init__(
        self, landing: Landing, account: Account, parcel: Parcel, trace: TraceNotes | None
    ) -> None:
        self._landing = landing
        self.account = account
        self.parcel = parcel
        self.trace = trace
        self.is_published = False
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

    def crosses(self, relay: str) -> None:
        """See `Notes.crosses`: no trace follows it."""

    def caused_turn(self, account: Account) -> Turn:
        return LandedTurn(account, self)

    def publishing_turn(self) -> Turn:
        """Return the turn that publishes it."""
        parcel, trace = self.parcel, self.trace
        if trace is None:
            return LandingTurn(self.account, self, parcel.items, parcel.nbytes)
        return FollowedLandedTurn(self.account, self, parcel.items, parcel.nbytes, trace=trace)

    @staticmethod
    def keep_here(deliveries: list[tuple[Recipient, Any, int, int, Account | None]]) -> None:
        """Let none of these deliveries go to another relay."""
        deliveries[:] = [each for each in deliveries if not isinstance(each[0].last_holder, Hop)]

    def slowest(self) -> Holder | None:
        """Return the holder of some of it that has made no progress for the longest time."""
        holders = [loan.holder for loan in self.loans if loan.holder is not None]
        return min(holders, key=lambda each: each.progressed_at, default=None)


class LandedConfirm(CountedConfirm):
    """The confirm of a parcel whose publishers wait for one.

    Attributes:
        number: The number of the parcel.
        identity: Its identity.
        then: Called when it is taken.
    """

    __slots__ = ("_landing", "_seen", "identity", "number", "then")

    def __init__(self, landing: Landing, seen: Seen, number: int, identity: Identity) -> None:
        self._landing = landing
        self._seen = seen
        self.number = number
        self.identity = identity
        self.then: list[Callable[[], object]] = []
        self.expected = 1

    def taken(self) -> None:
        self.expected -= 1
        if self.expected:
            return
        self._seen.taken(self)
        for then in self.then:
            then()
        self._landing.taken(self)

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`: the other relay's publisher cannot be told; it is logged."""
        logger.warning("a publication of another relay is refused here: %s", reason)
        self.taken()


class Seen:
    """The parcels of one other relay that ask and have come: in all lives of the two.

    So one that is sent again by the next life of its hop is not published again here. A subclass
    may store the identities of what is stored here, to know them after a restart.

    Args:
        stored: The identities of those that were taken before.
    """

    def __init__(self, stored: Iterable[Identity] = ()) -> None:
        # Until it is taken, its confirm.
        self._known: dict[Identity, LandedConfirm | None] = dict.fromkeys(stored)
        # Those of the other relay's outbox, mostly in order.
        boxed = filter(_is_boxed, self._known)
        self._boxed = dict.fromkeys(sorted(boxed, key=itemgetter(1)))

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, identity: Identity) -> bool:
        return identity in self._known

    def under_way(self, identity: Identity) -> LandedConfirm | None:
        """Return the confirm of one that has come and is not taken."""
        return self._known.get(identity)

    def begin(self, landing: Landing, number: int, identity: Identity) -> LandedConfirm:
        """Return the confirm of a parcel that is published now."""
        confirm = self._known[identity] = self._confirm(landing, number, identity)
        if _is_boxed(identity):
            self._boxed[identity] = None
        return confirm

    def _confirm(self, landing: Landing, number: int, identity: Identity) -> LandedConfirm:
        return LandedConfirm(landing, self, number, identity)

    def taken(self, confirm: LandedConfirm) -> None:
        """Note that a parcel is taken."""
        if confirm.identity in self._known:
            self._known[confirm.identity] = None

    def forget(self, identity: Identity) -> None:
        """Forget one that comes no more."""
        self._known.pop(identity, None)
        self._boxed.pop(identity, None)

    def forget_before(self, epoch: int) -> None:
        """Forget those of earlier lives of the hop: none of them comes any more."""
        for identity in [each for each in self._known if 0 < each[0] < epoch]:
            self.forget(identity)

    def forget_erased(self, first: Identity) -> None:
        """Forget what the other relay's outbox has erased, and what another one had before."""
        while self._boxed:
            identity = next(iter(self._boxed))
            if identity[0] == first[0] and identity[1] >= first[1]:
                return
            self.forget(identity)


def _is_boxed(identity: Identity) -> bool:
    """Return whether an identity is that of an event of an outbox."""
    return identity[0] < 0


class LandedTurn(Turn):
    """A turn that a parcel causes: its loans are tagged."""

    __slots__ = ("_landed",)

    def __init__(self, account: Account, landed: Landed, items: int = 0, nbytes: int = 0) -> None:
        super().__init__(account, items, nbytes)
        self._landed = landed

    def _hand_over(self) -> Iterable[Recipient]:
        tracked: dict[Recipient, Recipient] = {}
        deliveries = self._deliveries
        for number, (recipient, item, items, nbytes, payer) in enumerate(deliveries):
            if payer is None:
                if recipient not in tracked:
                    tracked[recipient] = Tagging(recipient, self._landed)
                deliveries[number] = tracked[recipient], item, items, nbytes, None
        return super()._hand_over()


class LandingTurn(LandedTurn):
    """The turn that publishes a parcel: nothing of it goes to another relay."""

    __slots__ = ()

    def _hand_over(self) -> Iterable[Recipient]:
        self._landed.keep_here(self._deliveries)
        return super()._hand_over()


class Origin:
    """What a landing knows of one account of the other relay.

    Attributes:
        name: Its name there.
        account: Its account here.
        queue: Parcels that wait until its funds are clear.
        unsettled: Parcels that have come and are not settled.
        idle_since: When the last of them was; None: there are some.
        is_served: Whether a task runs for it.
    """

    __slots__ = ("_limit", "account", "idle_since", "is_served", "name", "queue", "unsettled")

    def __init__(self, name: str, account: Account) -> None:
        self.name = name
        self.account = account
        self.queue: deque[Landed] = deque()
        self.unsettled = 0
        self.idle_since: float | None = None
        self.is_served = False
        # Its account's limit, while that is `HELD_UP`.
        self._limit: Limit | None = None

    def hold_up(self) -> None:
        """Let any debt of its account here be in the way of a reader."""
        if self._limit is None:
            self._limit = self.account.limit
            self.account.limit = HELD_UP

    def release(self) -> None:
        """Give its account its limit back, if nobody has set another one meanwhile."""
        if self._limit is not None:
            if self.account.limit is HELD_UP:
                self.account.limit = self._limit
            self._limit = None


class Landing:
    """Where parcels of one other relay come in.

    A transport calls `accept` with each shipment, starts a task with `serve` for each origin that
    it returns, and sends `receipt()` from time to time, at once when `on_settled` is called.

    Args:
        ledger: The books.
        router: The dataspace.
        open_account: Opens the account for an origin, from its name and the names above it.
        life: A greater number than any earlier life of this landing had; from 1 on.
        close_account: Closes such an account, when it is no longer needed.
        on_settled: Called when a parcel is settled.
        seen: What has come from that relay in earlier lives; None: nothing has.
        label: Names an event in a word or two, for traces; must not raise.
        paths_of: Returns the paths on which the reader of an account waits (`WaitPaths.of`).
    """

    def __init__(
        self,
        ledger: Ledger,
        router: Router,
        open_account: Callable[[str, tuple[str, ...]], Account],
        life: int,
        *,
        close_account: Callable[[Account], object] = Account.close,
        on_settled: Callable[[], object] = lambda: None,
        seen: Seen | None = None,
        label: Callable[[object], str] = label_of,
        paths_of: Callable[[Account], tuple[Path, ...]] = lambda _: (),
    ) -> None:
        self._paths_of = paths_of
        self._traces = LandedTraces(label)
        self._seen = Seen() if seen is None else seen
        self._is_news = True
        # Those that ask and may come again, by number, in order.
        self._identities: dict[int, Identity] = {}
        self._ledger = ledger
        self._close_account = close_account
        self._router = router
        self._open = open_account
        self._life = life
        self._on_settled = on_settled
        self._epoch = 0
        self._floor = 0
        self._next = 0
        # Parcels that have come and are not settled, by number, in order. The others between
        # `_floor` and `_next` are.
        self._landed: dict[int, Landed] = {}
        # Those that have been settled since the last receipt.
        self._fresh: list[int] = []
        # The confirms of those that ask and are not settled, until they are taken; then None. Those
        # that have been taken since the last receipt.
        self._confirms: dict[int, LandedConfirm | None] = {}
        self._fresh_taken: list[int] = []
        self._origins: dict[str, Origin] = {}
        self._waiting: frozenset[str] = frozenset()
        self._last_shipment = 0
        self._receipts = 0

    def __len__(self) -> int:
        """Return the number of parcels that have come and are not settled."""
        return len(self._landed)

    def unsettled(self) -> dict[int, Parcel]:
        """Return the parcels that have come and are not settled, by number."""
        return {number: each.parcel for number, each in self._landed.items()}

    def books(self) -> LandingBooks:
        """Return what is here and not settled."""
        unsettled = {number: each.parcel.items for number, each in self._landed.items()}
        return LandingBooks(self._epoch, self._next, unsettled)

    # -- shipments --------------------------------------------------------------------------------

    def accept(self, shipment: Shipment) -> list[str]:
        """Take a shipment; return the origins for which `serve` has to run.

        One of an earlier life of the hop, or for an earlier one of this landing, is ignored, and a
        parcel that has come before is skipped. After a gap the rest is left: it comes again.
        """
        if shipment.epoch > self._epoch:
            self._begin(shipment.epoch)
        if shipment.epoch < self._epoch or shipment.life != self._life:
            return []
        self._next = max(self._next, shipment.first)
        if shipment.floor > self._floor:
            self._floor = shipment.floor
            self._forget_ended()
            if self._traces:
                self._traces.forget_below(self._floor)
        if self._is_news and shipment.floor > shipment.carried:
            self._is_news = False
            self._seen.forget_before(self._epoch)
        if shipment.erased is not None:
            self._seen.forget_erased(shipment.erased)
        touched: set[str] = set()
        for parcel in shipment.parcels:
            if parcel.number == self._next:
                self._next += 1
                if self._take(parcel):
                    touched.add(parcel.origin)
        if shipment.number > self._last_shipment:
            self._last_shipment = shipment.number
            if shipment.waiting is not None:
                self._note_waiting(shipment.waiting)
        touched |= self._waiting
        return [name for name in touched if self._has_to_be_served(name)]

    def _begin(self, epoch: int) -> None:
        """Begin with another life of the hop; what came from the last one goes on unreported."""
        self._epoch = epoch
        self._landed.clear()
        self._fresh.clear()
        self._confirms.clear()
        self._fresh_taken.clear()
        self._identities.clear()
        self._traces.clear()
        self._is_news = True
        self._floor = self._next = 0
        self._last_shipment = self._receipts = 0

    def _forget_ended(self) -> None:
        identities = self._identities
        while identities:
            number = next(iter(identities))
            if number >= self._floor:
                return
            identity = identities.pop(number)
            if not _is_boxed(identity):
                self._seen.forget(identity)

    def _take(self, parcel: Parcel) -> bool:
        """Take a parcel; return whether it waits."""
        name = parcel.origin
        origin = self._origins.get(name)
        if origin is None:
            try:
                origin = self._origins[name] = Origin(name, self._open(name, parcel.above))
            except Exception as exc:  # noqa: BLE001 (whatever it is, the others go on)
                self._ledger.faults.note(None, f"opening an account for {name}", exc)
                return False
        trace = None
        if parcel.steps or origin.account.tracers is not None:
            trace = self._traces.begin(origin.account, parcel)
        landed = Landed(self, origin.account, parcel, trace)
        self._landed[parcel.number] = landed
        origin.unsettled += 1
        origin.idle_since = None
        origin.release()
        if not origin.queue and origin.account.funds_are_clear():
            self._publish(landed)
            return False
        origin.queue.append(landed)
        return True

    def _note_waiting(self, waiting: frozenset[str]) -> None:
        for name in self._waiting - waiting:
            origin = self._origins.get(name)
            if origin is not None:
                origin.release()
        self._waiting = waiting & self._origins.keys()

    def _has_to_be_served(self, name: str) -> bool:
        origin = self._origins.get(name)
        if origin is None or origin.is_served:
            return False
        return bool(origin.queue) or (name in self._waiting and origin.account.debt_items > 0)

    async def serve(self, name: str) -> None:
        """Publish the parcels of an origin when its funds are clear, until none is left.

        While the origin's reader waits at its own relay, this waits here in its place. It returns
        at once where another task does this already, or nothing is known of such an origin.

        Cancellation: the parcels stay; another call goes on.
        """
        origin = self._origins.get(name)
        if origin is None or origin.is_served:
            return
        origin.is_served = True
        account, queue = origin.account, origin.queue
        try:
            while queue or (name in self._waiting and account.debt_items):
                if not queue:
                    origin.hold_up()
                await account.ensure_clear_funds()
                if queue:
                    self._publish(queue.popleft())
                await checkpoint()
        finally:
            origin.is_served = False
            origin.release()

    def _publish(self, landed: Landed) -> None:
        parcel = landed.parcel
        landed.is_published = True
        confirm: LandedConfirm | None = None
        if parcel.asks and self._landed.get(parcel.number) is landed:
            identity = parcel.of or (self._epoch, parcel.number)
            self._identities[parcel.number] = identity
            if identity in self._seen:
                self._has_come_before(landed, identity)
                return
            confirm = self._seen.begin(self, parcel.number, identity)
            self._confirms[parcel.number] = confirm
        try:
            with landed.publishing_turn() as turn:
                turn.confirm = confirm
                for event in parcel.events:
                    turn.publish(self._router, event)
        except Exception as exc:  # noqa: BLE001 (whatever it is, the others go on)
            self._ledger.faults.note(None, f"publishing what {parcel.origin} has sent", exc)
        finally:
            landed.repaid(1, 0, Outcome.DELIVERED, None)
            if confirm is not None:
                confirm.taken()

    def _has_come_before(self, landed: Landed, identity: Identity) -> None:
        """Settle a parcel whose events were published as they came first, once that is taken."""

        def end() -> None:
            landed.repaid(1, 0, Outcome.DELIVERED, None)

        self._traces.forget(landed.parcel.number)
        earlier = self._seen.under_way(identity)
        if earlier is None:
            end()
        else:
            earlier.then.append(end)

    # -- receipts ---------------------------------------------------------------------------------

    def taken(self, confirm: LandedConfirm) -> None:
        """Note that all holders have taken responsibility for a parcel; its confirm calls this."""
        number = confirm.number
        if self._confirms.get(number) is confirm:  # else it is settled, or of an earlier life
            self._confirms[number] = None
            self._fresh_taken.append(number)
            self._ledger.faults.call(None, "telling of a parcel that is taken", self._on_settled)

    def settled(self, landed: Landed) -> None:
        """Note that all that a parcel has caused has ended; its notes call this."""
        number = landed.parcel.number
        if self._landed.get(number) is landed:  # else it came from an earlier life of the hop
            del self._landed[number]
            self._confirms.pop(number, None)
            self._fresh.append(number)
        origin = self._origins.get(landed.parcel.origin)
        if origin is not None and origin.account is landed.account:  # else it has been closed
            origin.unsettled -= 1
            if not origin.unsettled:
                origin.idle_since = self._ledger.clock()
        self._ledger.faults.call(None, "telling of a parcel that is settled", self._on_settled)

    @property
    def has_origins(self) -> bool:
        """Whether accounts of origins are open here."""
        return bool(self._origins)

    def close_idle(self) -> None:
        """Close the accounts of origins that have sent nothing for a while."""
        now = self._ledger.clock()
        for origin in list(self._origins.values()):
            since = origin.idle_since
            if since is not None and now - since >= IDLE_SECONDS and not origin.is_served:
                self._close(origin)

    def _close(self, origin: Origin) -> None:
        del self._origins[origin.name]
        origin.release()
        self._waiting -= {origin.name}
        self._close_account(origin.account)

    def close(self) -> None:
        """Close it: the other relay is no longer one of the cluster.

        What it has published here goes on; parcels that wait are dropped, and end there. End the
        tasks of `serve` before.
        """
        for origin in list(self._origins.values()):
            self._close(origin)
        self._landed.clear()
        self._traces.clear()

    def receipt(self, *, full: bool = True) -> Receipt:
        """Return what is known of the parcels that have come.

        `full`: all that is known, with the holders of what is not settled. That costs CPU for each
        of those, so it is for receipts that are sent from time to time. Others tell of what has
        been settled since the last one.
        """
        self._receipts += 1
        held: tuple[Held, ...] | None = None
        owners: dict[str, Account] = {}
        traces = self._traces.told(None if full else self._fresh) if self._traces else ()
        if full:
            self.close_idle()
            held = tuple(self._held(owners))
            settled = self._settled()
            taken = [number for number, confirm in self._confirms.items() if confirm is None]
        else:
            settled = ranges_of(sorted(each for each in self._fresh if each >= self._floor))
            taken = self._fresh_taken
        self._fresh.clear()
        receipt = Receipt(
            self._epoch,
            self._life,
            self._receipts,
            self._next,
            settled,
            held,
            ranges_of(sorted(taken)),
            self._last_shipment,
            self._waits(owners.values()) if owners else (),
            traces,
        )
        self._fresh_taken.clear()
        return receipt

    def _settled(self) -> Ranges:
        found: list[tuple[int, int]] = []
        at = self._floor
        for number in self._landed:
            if number > at:
                found.append((at, number - 1))
            at = max(at, number + 1)
        if self._next > at:
            found.append((at, self._next - 1))
        return tuple(found)

    def _waits(self, owners: Iterable[Account]) -> tuple[tuple[str, tuple[Path, ...]], ...]:
        paths = [(each.name, self._paths_of(each)) for each in islice(owners, MAX_OWNERS)]
        return tuple([each for each in paths if each[1]])

    def _held(self, owners: dict[str, Account]) -> list[Held]:
        """Return where the parcels are that are not settled; note the owners whose readers wait.

        One that waits here waits for what has come from its origin before it.
        """
        held: list[Held] = []
        last_of: dict[str, tuple[str, str | None]] = {}
        for looks, (number, landed) in enumerate(self._landed.items()):
            name = landed.parcel.origin
            holder = landed.slowest() if landed.is_published and looks < NAMED else None
            if holder is not None:
                owner_of = holder.owner
                last_of[name] = holder.name, None if owner_of is None else owner_of.name
                if owner_of is not None and owner_of.waiting:
                    owners[owner_of.name] = owner_of
            where, owner = last_of.get(name, (WAITS, None))
            last = held[-1] if held else None
            if last is not None and (last.last, last.holder, last.owner) == (
                number - 1, where, owner,
            ):  # fmt: skip
                held[-1] = Held(last.first, number, where, owner)
            else:
                held.append(Held(number, number, where, owner))
        return held
