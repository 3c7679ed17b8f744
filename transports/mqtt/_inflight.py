"""What a subscriber is to acknowledge: a holder of loans that end when it has done so (rule 7).

With QoS 1 that is the PUBACK. With QoS 2 (section 4.3.3) it is the PUBREC: from there on the
publication is the subscriber's, and only its identifier has still to be released: PUBREL, PUBCOMP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ...accounts import (
    DEFAULT_PATIENCE,
    Account,
    Holder,
    Ledger,
    LoanedItem,
    Outcome,
    Recipient,
    StuckPolicy,
)
from ...dataspace import Publication
from .._errors import RemoteProtocolError
from .._outlet import Outlet, nobody
from ._identifiers import PacketIds
from ._packets import encode_publish

DEFAULT_MAX_INFLIGHT = 32
"""Publications on their way to one subscriber and not acknowledged; as EMQX's `max_inflight`
(mosquitto has 20)."""


def check_handshake(packet_id: int, sent: int, answered: int) -> None:
    """See whether a publication sent with one QoS is acknowledged as that QoS is.

    Raises:
        RemoteProtocolError: If not.
    """
    if sent != answered:
        name = "PUBACK" if answered == 1 else "PUBREC"
        msg = (
            f"{name} for packet {packet_id}, which was sent with QoS {sent} "
            f"(section 4.3.{sent + 1})"
        )
        raise RemoteProtocolError(msg)


class AtLeastOnce(Recipient):
    """Stands before who takes QoS 1 and 2, for a subscription that was granted QoS 1 only."""

    __slots__ = ("_holder",)

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    @property
    def last_holder(self) -> Holder | None:
        """See `Recipient.last_holder`."""
        return self._holder.last_holder

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`; `item` is a `Publication`."""
        if item.qos > 1:
            item = Publication(item.topic, item.payload, 1, item.retain)
        self._holder.hold(account, item, items, nbytes, now)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self._holder.ready()


class Inflight(Holder):
    """Publications with QoS 1 and 2 for one subscriber, in order, each with a packet identifier.

    At most `window` are under way, not fully acknowledged; the others wait here. Each is owed for
    until it is acked. The bytes go out through the connection's outlet, which forwards them and
    holds nothing of it.

    Attributes:
        unacked: What was sent and has not been acknowledged, by packet identifier.
        releasing: Identifiers of QoS 2 whose PUBREC has come and whose PUBCOMP has not.
    """

    __slots__ = (
        "_closed", "_ids", "_on_broken", "_outlet", "_waiting", "_window", "releasing", "unacked",
    )  # fmt: skip

    kind = "inflight"

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
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        self._outlet = outlet
        self._window = window
        self._ids = PacketIds()
        self._waiting: deque[LoanedItem[list[Any]]] = deque()
        # The loan, and its QoS.
        self.unacked: dict[int, tuple[LoanedItem[list[Any]], int]] = {}
        self.releasing: set[int] = set()
        self._on_broken = on_broken
        self._closed = False

    def __repr__(self) -> str:
        return f"<Inflight {self.name}: {len(self.unacked)} unacked, {len(self._waiting)} waiting>"

    def __len__(self) -> int:
        """Return how many publications are not acknowledged."""
        return len(self.unacked) + len(self._waiting)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`; `item` is a `Publication`."""
        if self._closed:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if not self.unacked and not self._waiting:
            self.progressed_at = now
        self._waiting.append(LoanedItem(account, [item], items, nbytes, self, now, charged=True))
        self._fill()

    def ready(self) -> None:
        """See `Holder.ready`."""
        self._outlet.ready()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`."""
        for loan, _ in self.unacked.values():
            yield loan
        yield from self._waiting

    def is_unsent(self, packet_id: int) -> bool:
        """Whether nothing of the publication has left, so that it cannot be acknowledged."""
        unacked = self.unacked.get(packet_id)
        return unacked is not None and any(loan is unacked[0] for loan in self._outlet.unbegun())

    def acknowledged(self, packet_id: int) -> None:
        """Settle what a PUBACK is for, if it is here.

        Raises:
            RemoteProtocolError: If it was sent with QoS 2.
        """
        if self._settle(packet_id, 1):
            self._ids.release(packet_id)
            self._fill()

    def received(self, packet_id: int) -> bool:
        """Settle what a PUBREC is for; whether it was here. PUBREL is the answer in any case.

        Raises:
            RemoteProtocolError: If it was sent with QoS 1.
        """
        if not self._settle(packet_id, 2):
            return False
        self.releasing.add(packet_id)
        return True

    def completed(self, packet_id: int) -> None:
        """Note a PUBCOMP: the identifier may be used again."""
        if packet_id in self.releasing:
            self.releasing.remove(packet_id)
            self._ids.release(packet_id)
            self._fill()

    def _settle(self, packet_id: int, qos: int) -> bool:
        unacked = self.unacked.get(packet_id)
        if unacked is None:
            return False
        loan, sent = unacked
        check_handshake(packet_id, sent, qos)
        del self.unacked[packet_id]
        loan.settle(outcome=Outcome.ACKED)
        return True

    def _fill(self) -> None:
        while self._waiting and len(self.unacked) + len(self.releasing) < self._window:
            loan = self._waiting.popleft()
            packet_id = self._ids.allocate()
            publication = loan.item[0]
            loan.item[0] = encode_publish(
                publication.topic,
                publication.payload,
                qos=publication.qos,
                retain=publication.retain,
                packet_id=packet_id,
            )
            self.unacked[packet_id] = loan, publication.qos
            self._outlet.forward(loan)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: the connection is cut."""
        on_broken = self._on_broken
        self.close(Outcome.WRITTEN_OFF)
        on_broken(why)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Take nothing more; what is not acknowledged is settled with `outcome`. Idempotent."""
        self._closed = True
        unacked = list(self.unacked.values())
        self.unacked.clear()
        self.releasing.clear()
        for loan, _ in unacked:
            loan.settle(outcome=outcome)
        while self._waiting:
            self._waiting.popleft().settle(outcome=outcome)
        self.ledger.unregister(self)
        self._on_broken = nobody  # see `Outlet.close`
