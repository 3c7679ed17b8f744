"""The in-flight window of a persistent session: from its queue to its client and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ....accounts import LoanedItem, Outcome, Symptoms
from ....dataspace import Publication
from ....dataspace.queues import Channel, Consumer, Delivery, PrefetchWindow
from ..._outlet import Outlet
from ..codec._identifiers import MAX_PACKET_ID, PacketIds
from ._framing import Framing
from ._handed import drop, end
from ._inflight import awaiting, check_answer
from ._permissions import Readable
from ._persistent_session import PersistentSession

if TYPE_CHECKING:
    from ....access.acl import Rights

APART: Final = MAX_PACKET_ID // 4
"""Identifiers for messages from groups: the quarter that is farthest ahead of the session's own.
The session derives a message's identifier from its number. If that identifier were in use, the
message would get another one now and the derived one after a crash: it would seem to be a new
message."""


def _stays() -> bool:
    return False


class PersistentInflight:
    """The in-flight messages of a persistent session's client, while it is connected.

    It has the interface of `Inflight`, but it holds nothing: the queue does. Messages not
    acknowledged when the connection ends go back to their places in the queue.

    Args:
        session: The session.
        outlet: The connection's outlet.
        window: The most messages in flight, not fully acknowledged.
        framing: Encodes publications; by default as MQTT 3.1.1.
        leaves: Tells whether the client has sent DISCONNECT.
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
        # Each with the QoS that it was sent with, because its message may now be only on disk.
        self._unacked: dict[int, tuple[Delivery, int]] = {}
        self._window = PrefetchWindow(window)
        self._channel = Channel(session.name)
        self._consumer: Consumer | None = None
        self._turn = 0
        # Messages that wait for their PUBCOMP are in flight, too.
        for packet_id in session.releasing:
            self._ids.take(packet_id)
            self._window.take(0)

    def __repr__(self) -> str:
        return f"<PersistentInflight {self._session.name}: {len(self._unacked)} unacked>"

    def __len__(self) -> int:
        """Return the number of unacknowledged publications."""
        return len(self._unacked)

    def __bool__(self) -> bool:
        return bool(self._unacked)

    def begin(self, on_cancelled: Callable[[str], object]) -> None:
        """Consume from the queue until `close`."""
        self._consumer = self._session.queue.consume(
            self._deliver, channel=self._channel, window=self._window, on_cancelled=on_cancelled
        )

        self._session.queue.consumer_symptoms = self.symptoms

    def symptoms(self) -> Symptoms:
        """Return why the queue's messages may stay: see `Holder.symptoms`."""
        return awaiting(self._outlet, list(self._unacked), len(self._session.releasing))

    def look_again(self, rights: Rights) -> None:
        """From now on send no queued message that a client with these rights may not read."""
        if len(self._session.queue):
            self._framing = Readable.before(self._framing, rights)

    def pause(self) -> None:
        """Stop consuming from the queue; messages in flight may still be acknowledged."""
        if self._consumer is not None:
            self._consumer.cancel()

    def leave(self) -> None:
        """Send nothing more: the client has sent DISCONNECT.

        Unsent messages go back to their places in the queue, as if never taken.
        """
        self.pause()
        unsent = {id(loan) for loan in self._outlet.withdraw(self._session.queue)}
        for packet_id, (delivery, _) in list(self._unacked.items()):
            if id(delivery.loan) in unsent:
                del self._unacked[packet_id]
                self._put_back(delivery)

    def _put_back(self, delivery: Delivery) -> None:
        """Put back a message that was not sent: the next delivery is no redelivery."""
        message, redelivered = delivery.message, delivery.redelivered
        delivery.nack()
        message.redelivered = redelivered

    def _deliver(self, delivery: Delivery) -> None:
        message = delivery.message
        if self._leaves():
            self.pause()
            self._put_back(delivery)
            return
        # Derived from its number, so that it is the same when it is sent again. Another one only if
        # a message still uses it that was not acknowledged while 65,534 others were.
        packet_id = message.seq % MAX_PACKET_ID + 1
        if not self._ids.take(packet_id):
            packet_id = self._ids.allocate()
        publication: Publication = delivery.event
        packet = self._framing.frame(publication, packet_id, delivery.redelivered)
        self._send(delivery, publication, packet_id, packet, self._framing)

    @property
    def room(self) -> PrefetchWindow:
        return self._window

    def take(self, delivery: Delivery, publication: Publication, framing: Framing) -> None:
        packet_id = self._allocate_apart()
        packet = framing.frame(publication, packet_id)
        self._send(delivery, publication, packet_id, packet, framing)

    def _allocate_apart(self) -> int:
        """Allocate an identifier that none of the session's own messages will need soon."""
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
        if not packet:  # it may have expired since the queue looked at its clock
            self._ids.release(packet_id)
            drop(delivery, framing.why_not(publication))
            return
        delivery.loan.item[:] = [packet]
        self._unacked[packet_id] = delivery, publication.qos
        self._outlet.forward(delivery.loan)

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield the loans in flight; the queue holds them."""
        for delivery, _ in self._unacked.values():
            yield delivery.loan

    def acknowledged(self, packet_id: int) -> None:
        delivery = self._take(packet_id, 1)
        if delivery is not None:
            self._ids.release(packet_id)
            end(delivery)

    def received(self, packet_id: int) -> bool:
        """Note a PUBREC, as `Inflight.received`.

        The caller must call `PersistentSession.received` next, in the same batch.
        """
        delivery = self._take(packet_id, 2)
        if delivery is None or delivery.tag not in delivery.channel.unacked:
            return False  # or the queue has taken it back, and that ends the connection
        # It keeps its place in the window until the PUBCOMP.
        self._window.take(0)
        end(delivery)
        return True

    def refused(self, packet_id: int) -> bool:
        delivery = self._take(packet_id, 2)
        if delivery is None:
            return False
        self._ids.release(packet_id)
        end(delivery, Outcome.REJECTED)
        return True

    def completed(self, packet_id: int) -> None:
        if self._session.completed(packet_id):
            self._ids.release(packet_id)
            self._window.release(0)
            self._window.resize(self._window.items)

    def _take(self, packet_id: int, qos: int) -> Delivery | None:
        unacked = self._unacked.get(packet_id)
        if unacked is None:
            return None
        delivery, sent = unacked
        check_answer(self._outlet, delivery.loan, packet_id, sent, qos)
        del self._unacked[packet_id]
        return delivery

    def close(self) -> None:
        """Put unacknowledged messages back into the queue. Idempotent."""
        self._unacked.clear()
        self._channel.close()
        self._consumer = None
        queue = self._session.queue
        if queue.consumer_symptoms == self.symptoms:
            queue.consumer_symptoms = None
