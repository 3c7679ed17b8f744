"""What goes from a kept session's queue to its client, and comes back acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...accounts import LoanedItem, Outcome
from ...dataspace import Publication
from ...dataspace.queues import Channel, Consumer, Delivery, PrefetchWindow
from .._outlet import Outlet
from ._framing import Framing
from ._identifiers import MAX_PACKET_ID, PacketIds
from ._inflight import check_handshake
from ._kept import KeptSession


class KeptInflight:
    """What is under way to the client of a kept session, while it is connected.

    The same face as `Inflight`, but that nothing is held here: the queue does. What is not
    acknowledged when the connection ends goes back to its place there.

    Args:
        session: Whose.
        outlet: The way out.
        window: How much may be under way, not fully acknowledged.
        framing: Makes the packets of publications; by default as MQTT 3.1.1 has them.
    """

    __slots__ = (
        "_channel", "_consumer", "_framing", "_ids", "_outlet", "_session", "_unacked", "_window",
    )  # fmt: skip

    def __init__(
        self,
        session: KeptSession,
        outlet: Outlet,
        window: int,
        *,
        framing: Framing | None = None,
    ) -> None:
        self._session = session
        self._outlet = outlet
        self._framing = Framing() if framing is None else framing
        self._ids = PacketIds()
        # Each with the QoS that it was sent with: its message may be on disk only by now.
        self._unacked: dict[int, tuple[Delivery, int]] = {}
        self._window = PrefetchWindow(window)
        self._channel = Channel(session.name)
        self._consumer: Consumer | None = None
        # What waits for its PUBCOMP is under way, too.
        for packet_id in session.releasing:
            self._ids.take(packet_id)
            self._window.take(0)

    def __repr__(self) -> str:
        return f"<KeptInflight {self._session.name}: {len(self._unacked)} unacked>"

    def __len__(self) -> int:
        """Return how many publications are under way and not acknowledged."""
        return len(self._unacked)

    def __bool__(self) -> bool:
        return bool(self._unacked)

    def begin(self, on_cancelled: Callable[[str], object]) -> None:
        """Take from the queue what there is and what comes, until `close`."""
        self._consumer = self._session.queue.consume(
            self._deliver, channel=self._channel, window=self._window, on_cancelled=on_cancelled
        )

    def pause(self) -> None:
        """Take nothing more from the queue; what is under way may still be acknowledged."""
        if self._consumer is not None:
            self._consumer.cancel()

    def _deliver(self, delivery: Delivery) -> None:
        message = delivery.message
        # Of its number, so that it is the same when it is sent again. Another one only if that is
        # still in use: of a message that has not been acknowledged while 65,534 others were.
        packet_id = message.seq % MAX_PACKET_ID + 1
        if not self._ids.take(packet_id):
            packet_id = self._ids.allocate()
        publication: Publication = delivery.event
        delivery.event = None
        packet = self._framing.frame(publication, packet_id, delivery.redelivered)
        if not packet:  # it may have expired since the queue has looked at its clock
            self._ids.release(packet_id)
            self._drop(delivery, self._framing.why_not(publication))
            return
        delivery.loan.item[:] = [packet]
        self._unacked[packet_id] = delivery, publication.qos
        self._outlet.forward(delivery.loan)

    def _drop(self, delivery: Delivery, outcome: Outcome) -> None:
        """End a delivery that is not to be sent: for the queue it is acknowledged."""
        counters = self._session.queue.counters
        if outcome is Outcome.EXPIRED:
            counters.expired += 1
        else:
            counters.dropped += 1
        # It is not the client who has done so.
        delivery.loan.settle(outcome=outcome)
        delivery.ack()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield what is under way; the queue holds it."""
        for delivery, _ in self._unacked.values():
            yield delivery.loan

    def is_unsent(self, packet_id: int) -> bool:
        """See `Inflight.is_unsent`."""
        unacked = self._unacked.get(packet_id)
        return unacked is not None and any(
            loan is unacked[0].loan for loan in self._outlet.unbegun()
        )

    def acknowledged(self, packet_id: int) -> None:
        """See `Inflight.acknowledged`."""
        delivery = self._take(packet_id, 1)
        if delivery is not None:
            self._ids.release(packet_id)
            delivery.ack()

    def received(self, packet_id: int) -> bool:
        """See `Inflight.received`; `KeptSession.received` is to follow, in the same batch."""
        delivery = self._take(packet_id, 2)
        if delivery is None:
            return False
        # Its place in the window is kept until the PUBCOMP.
        self._window.take(0)
        delivery.ack()
        return True

    def refused(self, packet_id: int) -> bool:
        """See `Inflight.refused`."""
        delivery = self._take(packet_id, 2)
        if delivery is None:
            return False
        self._ids.release(packet_id)
        if delivery.loan.items:  # else it went with the session
            delivery.loan.settle(outcome=Outcome.REJECTED)
        delivery.ack()
        return True

    def completed(self, packet_id: int) -> None:
        """See `Inflight.completed`."""
        if self._session.completed(packet_id):
            self._ids.release(packet_id)
            self._window.release(0)
            self._window.resize(self._window.items)

    def _take(self, packet_id: int, qos: int) -> Delivery | None:
        unacked = self._unacked.get(packet_id)
        if unacked is None:
            return None
        delivery, sent = unacked
        if not self._channel.is_outstanding(delivery.tag):
            return None  # the queue has taken it back, and the connection ends for that
        check_handshake(packet_id, sent, qos)
        del self._unacked[packet_id]
        return delivery

    def close(self) -> None:
        """Put back what is not acknowledged. Idempotent."""
        self._unacked.clear()
        self._channel.close()
        self._consumer = None
