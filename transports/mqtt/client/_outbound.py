"""A client's publications with QoS 1 and 2, until the server has fully acknowledged them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from ..._errors import RemoteProtocolError
from ..._send_buffer import SendBuffer
from ..codec._packets import PubAck, PubComp, PubRec, PubRel
from ..codec._properties import Properties
from ..codec._reasons import Reason
from ._dialects import Dialect
from ._errors import PublicationRefusedError
from ._session import ClientSession, Outgoing


class Outbound:
    """One connection's in-flight window: its publications that the server has not acknowledged.

    Args:
        dialect: Encodes them.
        session: Keeps them.
        send: The client's send buffer.
        window: The size of the window; the server's Receive Maximum may make it smaller.
        is_persistent: Whether the session outlives the connection, so that they are sent again.
        check: Raises if the client can no longer publish.
    """

    __slots__ = (
        "_check", "_dialect", "_held_back", "_is_persistent", "_places", "_refused", "_send",
        "_session", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        dialect: Dialect,
        session: ClientSession,
        send: SendBuffer,
        window: int,
        *,
        is_persistent: bool,
        check: Callable[[], object],
    ) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} publications lets none of QoS 1 or 2 go")
        self._dialect = dialect
        self._session = session
        self._send = send
        self._is_persistent = is_persistent
        self._check = check
        # A free place in the window goes straight to the first task that waits for one.
        self._places = min(window, dialect.granted.receive_maximum)
        self._waiting = trio.lowlevel.ParkingLot()
        self._held_back: deque[int] = deque()
        # For the first refused publication that no task waited for.
        self._refused: PublicationRefusedError | None = None

    def __len__(self) -> int:
        """Return the number of publications that are not fully acknowledged."""
        return len(self._session.outgoing)

    @property
    def has_place(self) -> bool:
        """Whether the window has a free place."""
        return self._places > 0

    def unfinished(self) -> list[Outgoing]:
        """Return the publications that are not fully acknowledged."""
        return list(self._session.outgoing.values())

    def resume(self, *, session_present: bool) -> None:
        """Send again the publications that the last connection left unfinished [MQTT-4.4.0-1].

        Each PUBREL is sent again regardless of the window: the server has a place for it.
        """
        session = self._session
        if not session_present:
            # The server would not release these any more; it uses their identifiers anew.
            session.received.clear()
        for packet_id in session.released:
            self._send.put(self._dialect.encode(PubRel(packet_id)))
            session.outgoing[packet_id].on_its_way = True
            self._places -= 1
        self._held_back.extend(
            packet_id for packet_id, each in session.outgoing.items() if not each.released
        )
        while self._places > 0 and self._send_held_back():
            self._places -= 1

    async def take_place(self) -> None:
        """Wait for a place in the window."""
        self._check()
        if self._places > 0:
            self._places -= 1
            return
        await self._waiting.park()
        self._check()

    def take_place_nowait(self) -> None:
        """Take a free place in the window."""
        self._places -= 1

    def give_place(self) -> None:
        """Give a place back."""
        # Below zero while the session has more unfinished publications than this window holds.
        if self._places < 0:
            self._places += 1
        elif self._held_back and self._send_held_back():
            pass
        elif self._waiting:
            self._waiting.unpark()
        else:
            self._places += 1

    def wake(self) -> None:
        """Wake the tasks that wait for a place; they check again whether the client can publish."""
        self._waiting.unpark_all()

    def begin(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties
    ) -> Outgoing:
        """Send a publication for which the caller has taken a place in the window.

        Raises:
            LocalProtocolError: see `Dialect.publish`; the place has been given back.
        """
        packet_id = None
        dialect, ids = self._dialect, self._session.ids
        try:
            packet_id = ids.allocate()
            frame = dialect.publish(topic, payload, qos, retain, packet_id, properties)
        except BaseException:
            if packet_id is not None:
                ids.release(packet_id)
            self.give_place()
            raise
        self._send.put(frame)
        again = b""
        if self._is_persistent:
            again = dialect.publish_again(frame, topic, payload, retain, properties)
        outgoing = Outgoing(qos, again, topic)
        self._session.begin(packet_id, outgoing)
        return outgoing

    # -- acknowledgements -----------------------------------------------------------------------

    def received(self, packet: PubRec) -> None:
        """Handle a PUBREC.

        Raises:
            RemoteProtocolError: it is for a publication of QoS 1.
        """
        outgoing = self._session.outgoing.get(packet.packet_id)
        if outgoing is not None:
            if outgoing.qos != 2:
                raise _mismatch(packet, outgoing)
            if packet.reason >= Reason.UNSPECIFIED_ERROR:
                self._finished(packet, outgoing)  # no PUBREL follows (MQTT 5, section 4.3.3)
                return
            self._session.release(packet.packet_id, outgoing)
        if packet.reason < Reason.UNSPECIFIED_ERROR:
            # Also for an unknown one: the server waits for it [MQTT-4.3.3-1].
            self._send.put(self._dialect.encode(PubRel(packet.packet_id)))

    def finish(self, packet: PubAck | PubComp) -> None:
        """Handle a PUBACK or a PUBCOMP.

        Raises:
            RemoteProtocolError: it is out of turn.
        """
        outgoing = self._session.outgoing.get(packet.packet_id)
        if outgoing is None:
            return
        if (outgoing.qos == 1) is not isinstance(packet, PubAck) or (
            outgoing.qos == 2 and not outgoing.released
        ):
            raise _mismatch(packet, outgoing)
        self._finished(packet, outgoing)

    def _finished(self, packet: PubAck | PubRec | PubComp, outgoing: Outgoing) -> None:
        # A PUBCOMP with "packet identifier not found" means that it was acknowledged before.
        if packet.reason >= Reason.UNSPECIFIED_ERROR and not isinstance(packet, PubComp):
            words = packet.properties.reason_string
            outgoing.refused = PublicationRefusedError(outgoing.topic, packet.reason, words)
            if not outgoing.awaited and self._refused is None:
                self._refused = outgoing.refused
        self._session.finish(packet.packet_id)
        outgoing.finished = True
        if outgoing.waiter is not None:
            outgoing.waiter.set()
        if outgoing.on_its_way:
            self.give_place()

    def raise_refused(self) -> None:
        """Raise, once, the error of the first refused publication that no task waited for.

        Raises:
            PublicationRefusedError: the server refused such a publication.
        """
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _send_held_back(self) -> bool:
        """Send the next held-back publication again; False if there is none."""
        while self._held_back:
            outgoing = self._session.outgoing.get(self._held_back.popleft())
            if outgoing is not None and not outgoing.released:
                outgoing.on_its_way = True
                self._send.put(outgoing.again())
                return True
        return False


def _mismatch(packet: PubAck | PubRec | PubComp, outgoing: Outgoing) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the server answered a publication of QoS {outgoing.qos} with "
        f"{type(packet).__name__.upper()} out of turn (section 4.3)"
    )
