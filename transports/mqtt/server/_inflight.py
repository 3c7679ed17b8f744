"""What a subscriber is to acknowledge: a holder of loans that end when it has done so (rule 7).

With QoS 1 that is the PUBACK. With QoS 2 (section 4.3.3) it is the PUBREC: from there on the
publication is the subscriber's, and only its identifier has still to be released: PUBREL, PUBCOMP.

Nothing of it is ever dropped: if the subscriber is stuck, and is not to be waited for nor cut off,
what it has not been sent is put aside, and comes in order when it acknowledges again. But what has
expired before it was sent is not sent (MQTT 5, section 3.3.2.3.3), and what the subscriber has said
that it does not take neither (MQTT 5, maximum packet size, section 3.1.2.11.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from ....accounts import (
    DEFAULT_PATIENCE,
    Account,
    Ledger,
    LoanedItem,
    LoanQueue,
    Outcome,
    Part,
    StuckPolicy,
    Symptoms,
    UnfitPolicyError,
    lent,
    settle_whole,
)
from ....accounts._fair_queue import FairQueue
from ....dataspace import Publication
from ....dataspace.queues import Delivery, PrefetchWindow
from ....persistence._spool import OpenSpool, Spool
from ..._direct_send import forward_and_send
from ..._flusher import SENDING
from ..._outlet import Outlet, nobody
from ..codec._frames import PUBACK
from ..codec._identifiers import PacketIds
from ..codec._reasons import Reason, ReasonedError
from ._droppable import packets_of
from ._framing import Framing
from ._handed import drop, end, let_on
from ._permissions import Readable

if TYPE_CHECKING:
    from ....access.acl import Rights
    from ..._outlet_backlog import ConsumerPolicy
    from ._framing import Alike

DEFAULT_MAX_INFLIGHT = 32
"""Publications on their way to one subscriber and not acknowledged; as EMQX's `max_inflight`
(mosquitto has 20)."""


def check_answer(
    outlet: Outlet, loan: LoanedItem[Any], packet_id: int, sent: int, answered: int
) -> None:
    """See whether a publication has been sent, and with the QoS that it is acknowledged as.

    Raises:
        RemoteProtocolError: If not.
    """
    # Believed, it would let a peer that never reads have anything kept for it.
    unsent = loan in outlet.unbegun()
    if not unsent and sent == answered:
        return
    name = "PUBACK" if answered == 1 else "PUBREC"
    why = "has not been sent to it yet"
    if not unsent:
        why = f"was sent with QoS {sent} (section 4.3.{sent + 1})"
    raise ReasonedError(f"{name} for packet {packet_id}, which {why}", Reason.PROTOCOL_ERROR)


def awaiting(outlet: Outlet, identifiers: list[int], releasing: int) -> Symptoms:
    """Return the symptoms of a subscriber that has these publications to acknowledge, in order.

    `releasing` is the number of those whose PUBCOMP is missing.
    """
    # Identifiers are given in turn: an acknowledgement changes the first, the last or a number.
    position = (identifiers[:1], identifiers[-1:], len(identifiers), releasing)
    outstanding = len(identifiers) + releasing
    return attrs.evolve(outlet.symptoms(), outstanding=outstanding, position=position)


class _Room(PrefetchWindow):
    """What an `Inflight` has room for, as groups are told."""

    __slots__ = ("_inflight",)

    def __init__(self, inflight: Inflight) -> None:
        super().__init__()
        self._inflight = inflight

    @property
    def has_room(self) -> bool:
        """See `PrefetchWindow.has_room`: what waits here goes first."""
        inflight = self._inflight
        if inflight.closed or inflight.lagging or inflight.queue or inflight.is_backlogged:
            return False
        return inflight.has_room


class Inflight(LoanQueue):
    """Publications with QoS 1 and 2 for one subscriber, in order, each with a packet identifier.

    At most `window` are under way, not fully acknowledged; the others wait here. Each is owed for
    until it is acked. The bytes go out through the connection's outlet, which forwards them and
    holds nothing of it.

    Args:
        ledger: The books.
        outlet: The way out.
        name: What an operator knows the connection by.
        window: See above; also the least of this and what the subscriber allows.
        on_broken: Called with a sentence when the connection must end.
        patience: See `Holder`.
        policy: See `Holder`.
        open_spool: Opens what is put aside in, where it can be.
        framing: Makes the packets of publications; by default as MQTT 3.1.1 has them.

    Attributes:
        fair: Whether publishers' messages that wait for the window go in rounds (`FairQueue`), each
            publisher's in order. They are framed when it is their turn: so topic aliases are in
            order.
        unacked: What was sent and has not been acknowledged, by packet identifier.
        handed: The same of what groups have handed over, and hold.
        releasing: Identifiers of QoS 2 whose PUBREC has come and whose PUBCOMP has not.
    """

    __slots__ = (
        "_flows", "_framing", "_ids", "_on_broken", "_open_spool", "_outlet", "_room", "_spool",
        "_window", "fair", "handed", "releasing", "unacked",
    )  # fmt: skip

    kind = "inflight"

    policies: ClassVar[frozenset[StuckPolicy]] = LoanQueue.policies | {StuckPolicy.SPILL}

    def __init__(
        self,
        ledger: Ledger,
        outlet: Outlet,
        name: str,
        *,
        window: int = DEFAULT_MAX_INFLIGHT,
        on_broken: Callable[[str], object],
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        open_spool: OpenSpool | None = None,
        framing: Framing | None = None,
    ) -> None:
        self._open_spool = open_spool
        super().__init__(ledger, name, patience=patience, policy=policy)
        self._outlet = outlet
        self._window = window
        self._framing = Framing() if framing is None else framing
        self._ids = PacketIds()
        self._spool: Spool | None = None
        self.fair = False
        # What waits to be served in rounds, behind `queue`.
        self._flows: FairQueue | None = None
        # The loan, and its QoS.
        self.unacked: dict[int, tuple[LoanedItem[list[Any]], int]] = {}
        self.releasing: set[int] = set()
        self.handed: dict[int, tuple[Delivery, int]] = {}
        self._room: PrefetchWindow | None = None
        self._on_broken = on_broken

    def __repr__(self) -> str:
        return f"<Inflight {self.name}: {len(self.unacked)} unacked, {self._unsent} waiting>"

    def __len__(self) -> int:
        """Return how many publications are not acknowledged."""
        return len(self.unacked) + len(self.handed) + self._unsent

    @property
    def has_room(self) -> bool:
        """Whether one more may be under way."""
        return self._places > 0

    @property
    def _places(self) -> int:
        """How many more may be under way."""
        return self._window - len(self.unacked) - len(self.releasing) - len(self.handed)

    @property
    def is_backlogged(self) -> bool:
        """Whether publishers' messages wait to be served in rounds."""
        return bool(self._flows)

    @property
    def room(self) -> PrefetchWindow:
        """See `Taker.room`."""
        if self._room is None:
            self._room = _Room(self)
        return self._room

    @property
    def _unsent(self) -> int:
        waiting = len(self.queue) + (0 if self._flows is None else len(self._flows))
        return waiting + (0 if self._spool is None else len(self._spool))

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`; `item` is a `Publication`."""
        if self.closed:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if self.lagging:
            self.hold_lagging(account, item, items, nbytes, now)
            return
        if not (self.unacked or self.queue or self._flows):
            self.progressed_at = now
        loan = lent(account, [item], items, nbytes, self, now)
        if self._flows is None:
            self.queue.append(loan)
        else:
            self._flows.add(loan)
        try:
            self._fill()
        except Exception as exc:  # noqa: BLE001 (whatever it is: it has been taken)
            self.ledger.faults.note(self, SENDING, exc)
        if self.fair and self.queue and self._flows is None:
            self._flows = FairQueue(self.queue)
            self.queue.clear()

    def hold_packets(
        self,
        account: Account,
        packets: Alike,
        nbytes: int,
        now: float,
        at_once: bool,
        selected: bool,
    ) -> int:
        """Hold QoS 1 publications that are packets without properties, as far as the window goes.

        The same as `hold` for each, and `at_once`, for one of them, as `Flusher.flush`, too, at a
        fifth of the cost.

        Args:
            account: Who has borrowed for them.
            packets: The packets.
            nbytes: The size of each publication.
            now: The time.
            at_once: Whether nothing comes that could be sent with it.
            selected: Whether something selects the publications that come here.

        Returns:
            The number of those that are held; the others are for `hold`, which has more to do.
        """
        outlet = self._outlet
        if outlet.diverted or self.queue or self.lagging or self.closed or self._flows:
            return 0
        form = self._framing.alike(packets, selected)
        if form is None:
            return 0
        head, tails = form
        held = min(self._places, len(tails))
        if held <= 0:
            return 0
        unacked = self.unacked
        if not unacked:
            self.progressed_at = now
        for tail in tails[:held]:
            packet_id = self._ids.allocate()
            packet = b"".join((head, packet_id.to_bytes(2, "big"), tail))
            loan = lent(account, [packet], 1, nbytes, self, now)
            unacked[packet_id] = loan, 1
            try:
                if outlet.queue or not at_once:
                    outlet.forward(loan)
                else:
                    forward_and_send(outlet, loan, packet)
            except Exception as exc:  # noqa: BLE001 (as in `hold`)
                self.ledger.faults.note(self, SENDING, exc)
        return held

    def keep_order(self) -> None:
        """Let all that is here go before whatever comes later, also if it is fair."""
        if self._flows is not None:
            self._flows.in_order()

    def settle_all(self, outcome: Outcome) -> None:
        """See `LoanQueue.settle_all`."""
        self._flatten()
        super().settle_all(outcome)

    def _flatten(self) -> None:
        flows, self._flows = self._flows, None
        if flows is not None:
            self.queue.extend(flows.clear())

    def ready(self) -> None:
        """See `Holder.ready`."""
        if self.lagging:
            self._fill()
        if self._spool is not None:
            self._spool.write()
        self._outlet.ready()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`."""
        for loan, _ in self.unacked.values():
            yield loan
        yield from self.queue
        if self._flows is not None:
            yield from self._flows
        if self._spool is not None:
            yield from self._spool.loans()

    def symptoms(self) -> Symptoms:
        """See `Holder.symptoms`."""
        return awaiting(self._outlet, [*self.unacked, *self.handed], len(self.releasing))

    # -- being behind ---------------------------------------------------------------------------

    def deal_by(self, consumer_policy: ConsumerPolicy) -> None:
        """Use these policies from now on; what is behind catches up under those before."""
        self._open_spool = consumer_policy.open_spool
        self.patience = consumer_policy.undroppable_patience
        self.policy = consumer_policy.undroppable_policy

    def check_policy(self, policy: StuckPolicy) -> None:
        """See `Holder.check_policy`: something can be put aside where there is a place for it."""
        super().check_policy(policy)
        if policy is StuckPolicy.SPILL and self._open_spool is None:
            msg = f"{self.kind} {self.name} has nowhere to put aside what is not acknowledged"
            raise UnfitPolicyError(msg)

    def under_way(self) -> Iterator[LoanedItem[list[Any]]]:
        """See `LoanQueue.under_way`: what was sent."""
        for loan, _ in self.unacked.values():
            yield loan

    def apart(self, entries: list[Any], items: int, nbytes: int) -> list[Part]:
        """See `LoanQueue.apart`: each loan is of one publication."""
        return [(entries[0], items, nbytes)]

    def spill(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        """See `LoanQueue.spill`; `entry` is a `Publication`."""
        packet = self._framing.put_aside(entry)
        if not packet:
            account.repay(items, nbytes, self._framing.why_not(entry), self)
            return
        spool = self._spool
        if spool is None:
            assert self._open_spool is not None
            spool = self._spool = self._open_spool(self, self._fill_and_send, self.give_up)
        spool.hold(account, packet, items, nbytes, now)

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """See `LoanQueue.relieve`."""
        if self.policy.relieves:
            self._flatten()
        super().relieve(why, fields)
        if self._spool is not None:
            self._spool.write(now=True)

    def spill_again(self) -> None:
        """See `Holder.spill_again`."""
        if self._spool is not None:
            self._spool.write()

    def caught_up(self, why: str = "has caught up") -> None:
        """See `LoanQueue.caught_up`."""
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()
        super().caught_up(why)

    def _take_back(self) -> bool:
        """Let what was put aside be sent; whether there is some of it now."""
        spool = self._spool
        loan = None if spool is None else spool.take()
        if spool is not None and self.full_patience is not None:
            spool.write()  # There may be room now.
        if loan is None:
            if self.lagging and not self._unsent and not self.closed:
                self.caught_up()
            return False
        packets = packets_of(loan.item[0] if len(loan.item) == 1 else b"".join(loan.item))
        items, nbytes = loan.items, loan.bytes
        loan.items = loan.bytes = 0
        for packet in packets:
            # One by one from here on: as each is acknowledged.
            size = nbytes // items
            items -= 1
            nbytes -= size
            self.queue.append(lent(loan.account, [packet], 1, size, self, loan.opened))
        return True

    def _fill_and_send(self) -> None:
        self._go_on()
        self._outlet.ready()

    def _go_on(self) -> None:
        """Send what there is room for; what groups have for the client after that."""
        if self.queue or self._flows or self.lagging:  # most have nothing that waits
            self._fill()
        if self._room is not None:
            let_on(self._room)

    def take(self, delivery: Delivery, publication: Publication, framing: Framing) -> None:
        """See `Taker.take`."""
        packet_id = self._ids.allocate()
        packet = framing.frame(publication, packet_id)
        if not packet:
            self._ids.release(packet_id)
            drop(delivery, framing.why_not(publication))
            return
        delivery.event = None
        delivery.loan.item[:] = [packet]
        self.handed[packet_id] = delivery, publication.qos
        self._outlet.forward(delivery.loan)

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledged(self, packet_id: int) -> None:
        """Settle what a PUBACK is for, if it is here.

        Raises:
            RemoteProtocolError: If it has not been sent, or with QoS 2.
        """
        if self._settle(packet_id, 1):
            self._ids.release(packet_id)
            self._go_on()

    def acknowledged_all(self, data: bytes) -> bool:
        """Settle what a read of nothing but PUBACKs is for, as `acknowledged` does one by one.

        False if there is more to it: nothing has been done then.
        """
        outlet = self._outlet
        unacked = self.unacked
        if outlet.diverted or len(data) & 3:
            return False
        unsent = set(map(id, outlet.queue)) if outlet.queue else ()
        ids: list[int] = []
        for at in range(0, len(data), 4):
            packet_id = data[at + 2] << 8 | data[at + 3]
            found = unacked.get(packet_id)
            if found is None or found[1] != 1 or data[at] != PUBACK or data[at + 1] != 2:
                return False
            if id(found[0]) in unsent:
                return False
            ids.append(packet_id)
        if len(ids) == 1:
            unacked.pop(ids[0])[0].settle(outcome=Outcome.ACKED)
        elif len(set(ids)) == len(ids):
            settle_whole([unacked.pop(packet_id)[0] for packet_id in ids], Outcome.ACKED)
        else:
            return False
        self._ids.release_all(ids)
        self._go_on()
        return True

    def received(self, packet_id: int) -> bool:
        """Settle what a PUBREC is for; whether it was here. PUBREL is the answer in any case.

        Raises:
            RemoteProtocolError: If it has not been sent, or with QoS 1.
        """
        if not self._settle(packet_id, 2):
            return False
        self.releasing.add(packet_id)
        return True

    def refused(self, packet_id: int) -> bool:
        """Settle what a PUBREC with an error is for; whether it was here.

        For MQTT 5, where a reason code of 0x80 or more ends it: there is no PUBREL, and the
        identifier may be used again (section 4.3.3).

        Raises:
            RemoteProtocolError: If it has not been sent, or with QoS 1.
        """
        if not self._settle(packet_id, 2, Outcome.REJECTED):
            return False
        self._ids.release(packet_id)
        self._go_on()
        return True

    def completed(self, packet_id: int) -> None:
        """Note a PUBCOMP: the identifier may be used again."""
        if packet_id in self.releasing:
            self.releasing.remove(packet_id)
            self._ids.release(packet_id)
            self._go_on()

    def _settle(self, packet_id: int, qos: int, outcome: Outcome = Outcome.ACKED) -> bool:
        unacked = self.unacked.get(packet_id)
        if unacked is None:
            return self._end_handed(packet_id, qos, outcome)
        loan, sent = unacked
        check_answer(self._outlet, loan, packet_id, sent, qos)
        del self.unacked[packet_id]
        loan.settle(outcome=outcome)
        return True

    def _end_handed(self, packet_id: int, qos: int, outcome: Outcome) -> bool:
        handed = self.handed.get(packet_id)
        if handed is None:
            return False
        delivery, sent = handed
        check_answer(self._outlet, delivery.loan, packet_id, sent, qos)
        del self.handed[packet_id]
        if qos > 1 and outcome is Outcome.ACKED:
            self.releasing.add(packet_id)  # or there would seem to be room for another one
        end(delivery, outcome)
        return True

    def _drop(self, loan: LoanedItem[list[Any]]) -> None:
        """End a loan of what is not to be sent."""
        progressed_at = self.progressed_at
        entry: Publication | bytes = loan.item[0]
        framing = self._framing
        why = framing.why_not_back(entry) if isinstance(entry, bytes) else framing.why_not(entry)
        loan.settle(outcome=why)
        # The subscriber has taken nothing by it.
        self.progressed_at = progressed_at

    def look_again(self, rights: Rights) -> None:
        """Send nothing of what waits that a client with these rights may not read."""
        if self._unsent:
            self._framing = Readable.before(self._framing, rights)

    def _fill(self) -> None:
        while self._places > 0:
            if self._flows is not None and not self.queue:
                if self._flows:
                    self.queue.append(self._flows.pop())
                else:
                    self._flows = None
            if not self.queue and not self._take_back():
                return
            loan = self.queue[0]
            packet_id = self._ids.allocate()
            entry: Publication | bytes = loan.item[0]
            if isinstance(entry, bytes):
                packet = self._framing.take_back(entry, packet_id)
            else:
                packet = self._framing.frame(entry, packet_id)
            self.queue.popleft()
            if not packet:
                self._ids.release(packet_id)
                self._drop(loan)
                continue
            loan.item[0] = packet
            self.unacked[packet_id] = loan, packet[0] >> 1 & 3
            self._outlet.forward(loan)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: the connection is cut."""
        on_broken = self._on_broken
        self.close(Outcome.WRITTEN_OFF)
        on_broken(why)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Take nothing more; what is not acknowledged is settled with `outcome`. Idempotent."""
        self.closed = True
        unacked = list(self.unacked.values())
        self.unacked.clear()
        self.releasing.clear()
        # Their groups have taken them back.
        self.handed.clear()
        self._room = None
        for loan, _ in unacked:
            loan.settle(outcome=outcome)
        self.settle_all(outcome)
        if self._spool is not None:
            self._spool.close(outcome)
        if self.lagging:
            self.caught_up("has ended")
        self.ledger.unregister(self)
        self._on_broken = nobody  # see `Outlet.close`
