"""What goes from a kept session's queue to its client, and comes back acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ...accounts import LoanedItem, Outcome
from ...dataspace import Publication
from ...dataspace.queues import Channel, Consumer, Delivery, PrefetchWindow
from .._outlet import Outlet
from ._framing import Framing
from ._handed import drop, end
from ._identifiers import MAX_PACKET_ID, PacketIds
from ._inflight import check_handshake
from ._permissions import Readable
from ._persistent_sessions import PersistentSession

if TYPE_CHECKING:
    from ..acl import Rights

APART: Final = MAX_PACKET_ID // 4
"""How many identifiers there are for what groups hand over: the quarter that is the farthest ahead
of those that the session's own messages have by their numbers. If one of these were in use, its
message would have another one, and after a crash that one: it would seem to be a new message."""


def _stays() -> bool:
    return False


class PersistentInflight:
    """What is under way to the client of a kept session, while it is connected.

    The same face as `Inflight`, but that nothing is held here: the queue does. What is not
    acknowledged when the connection ends goes back to its place there.

    Args:
        session: Whose.
        outlet: The way out.
        window: How much may be under way, not fully acknowledged.
        framing: Makes the packets of publications; by default as MQTT 3.1.1 has them.
        leaves: Tells whether the client has said DISCONNECT.
    """

    __slots__ = (
        "_channel", "_consumer", "_framing", "_ids", "_leaves", "_outlet", "_session", "_turn",
        "_unacked", "_window",
    )  # fmt: skip

    def __init__(
        self,
        session: PersistentSession,
        outlet: Outlet,
        window: int,
        *,
        framing: Framing | None = None,
        leaves: Callable[[], bool] = _stays,
    ) -> None:
        self._leaves = leaves
        self._session = session
        self._outlet = outlet
        self._framing = Framing() if framing is None else framing
        self._ids = PacketIds()
        # Each with the QoS that it was sent with: its message may be on disk only by now.
        self._unacked: dict[int, tuple[Delivery, int]] = {}
        self._window = PrefetchWindow(window)
        self._channel = Channel(session.name)
        self._consumer: Consumer | None = None
        self._turn = 0
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

    def look_again(self, rights: Rights) -> None:
        """Send nothing of what waits that a client with these rights may not read."""
        if len(self._session.queue):
            self._framing = Readable.before(self._framing, rights)

    def pause(self) -> None:
        """Take nothing more from the queue; what is under way may still be acknowledged."""
        if self._consumer is not None:
            self._consumer.cancel()

    def leave(self) -> None:
        """Send nothing more: the client has said DISCONNECT.

        What has not been sent goes back to its place as if it had never been taken from there.
        """
        self.pause()
        unsent = {id(loan) for loan in self._outlet.withdraw(self._session.queue)}
        for packet_id, (delivery, _) in list(self._unacked.items()):
            if id(delivery.loan) in unsent:
                del self._unacked[packet_id]
                self._put_back(delivery)

    def _put_back(self, delivery: Delivery) -> None:
        """Give back what the client has not been sent: it is no redelivery the next time."""
        message, redelivered = delivery.message, delivery.redelivered
        delivery.nack()
        message.redelivered = redelivered

    def _deliver(self, delivery: Delivery) -> None:
        message = delivery.message
        if self._leaves():
            self.pause()
            self._put_back(delivery)
            return
        # Of its number, so that it is the same when it is sent again. Another one only if that is
        # still in use: of a message that has not been acknowledged while 65,534 others were.
        packet_id = message.seq % MAX_PACKET_ID + 1
        if not self._ids.take(packet_id):
            packet_id = self._ids.allocate()
        publication: Publication = delivery.event
        packet = self._framing.frame(publication, packet_id, delivery.redelivered)
        self._send(delivery, publication, packet_id, packet, self._framing)

    @property
    def room(self) -> PrefetchWindow:
        """See `Taker.room`."""
        return self._window

    def take(self, delivery: Delivery, publication: Publication, framing: Framing) -> None:
        """See `Taker.take`."""
        packet_id = self._allocate_apart()
        packet = framing.frame(publication, packet_id)
        self._send(delivery, publication, packet_id, packet, framing)

    def _allocate_apart(self) -> int:
        """Draw an identifier that none of the session's own messages has before long."""
        first = self._session.queue.next_seq + MAX_PACKET_ID // 2
        for _ in range(APART):
            self._turn = (self._turn + 1) % APART
            packet_id = (first + self._turn) % MAX_PACKET_ID + 1
            if self._ids.take(packet_id):
                return packet_id
        return self._ids.allocate()

    def _send(
        self,
        delivery: Delivery,
        publication: Publication,
        packet_id: int,
        packet: bytes,
        framing: Framing,
    ) -> None:
        delivery.event = None
        if not packet:  # it may have expired since the queue has looked at its clock
            self._ids.release(packet_id)
            drop(delivery, framing.why_not(publication))
            return
        delivery.loan.item[:] = [packet]
        self._unacked[packet_id] = delivery, publication.qos
        self._outlet.forward(delivery.loan)

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
            end(delivery)

    def received(self, packet_id: int) -> bool:
        """See `Inflight.received`; `PersistentSession.received` is to follow, in the same batch."""
        delivery = self._take(packet_id, 2)
        if delivery is None:
            return False
        # Its place in the window is kept until the PUBCOMP.
        self._window.take(0)
        end(delivery)
        return True

    def refused(self, packet_id: int) -> bool:
        """See `Inflight.refused`."""
        delivery = self._take(packet_id, 2)
        if delivery is None:
            return False
        self._ids.release(packet_id)
        end(delivery, Outcome.REJECTED)
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
        if not delivery.channel.is_outstanding(delivery.tag):
            return None  # the queue has taken it back, and the connection ends for that
        check_handshake(packet_id, sent, qos)
        del self._unacked[packet_id]
        return delivery

    def close(self) -> None:
        """Put back what is not acknowledged. Idempotent."""
        self._unacked.clear()
        self._channel.close()
        self._consumer = None
