"""Publisher confirms: a publication is acknowledged once a holder is responsible for it (rule 7).

PUBACK and PUBREC are publisher confirms. Most publications are acknowledged at once; one that a
queue has to write is acknowledged when it is on disk. Acknowledgements go out in the order in which
the publications came [MQTT-4.6.0-2] [MQTT-4.6.0-3].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ....accounts import Confirm, CountedConfirm
from ....persistence._writes import Writes, Written, nowhere
from ..._errors import RemoteProtocolError
from ..._outlet import nobody
from ..codec._packets import PubAck, PubRec
from ..codec._reasons import Reason

MAX_UNACKED = 65_535
"""Most unacknowledged publications of one client: it has no identifiers for more."""


ACKNOWLEDGING: Final = "sending what is due to it"


def _raise(exc: Exception) -> None:
    raise exc


class Identifier(Protocol):
    """The packet identifier of a QoS 2 publication, in a persistent session."""

    def persist(self, on_durable: Callable[[], object]) -> None:
        """Store it, in the current batch; call `on_durable` when the batch is durable."""
        ...

    def forget(self) -> None:
        """Forget it: its publication was refused."""
        ...


class PublisherAck(CountedConfirm):
    """The acknowledgement of one publication (`clearfunds.accounts.Confirm`).

    Args:
        acks: The acknowledgements of the publication's connection.
        packet: The packet to send.

    Attributes:
        packet: See above.
    """

    __slots__ = ("_acks", "packet")

    def __init__(self, acks: PublisherAcks, packet: PubAck | PubRec) -> None:
        self.packet = packet
        self._acks: PublisherAcks | None = acks
        self.expected = 1

    def __repr__(self) -> str:
        return f"<PublisherAck {self.packet}: {self.expected} expected>"

    def taken(self) -> None:
        self.expected -= 1
        if not self.expected and self._acks is not None:
            self._acks.say_due()

    def refused(self, reason: str) -> None:
        """Note a refusal, as `Confirm.refused`. MQTT 3.1.1 cannot tell it, so the connection ends.

        In MQTT 5 the acknowledgement carries it, once no holder is expected any more.
        """
        acks = self._acks
        refusal = None if acks is None else acks.refused(self.packet, reason)
        if refusal is not None:
            self.refuse_with(refusal)
            self.taken()
        elif acks is not None:
            acks.refuse(self, reason)

    def note_reached(self, anybody: bool) -> None:
        """Note whether there were subscribers; MQTT 5 reports that (section 3.4.2.1)."""
        packet = self.packet
        if not (anybody or packet.reason):
            self.packet = type(packet)(packet.packet_id, Reason.NO_MATCHING_SUBSCRIBERS)

    def refuse_with(self, packet: PubAck | PubRec) -> None:
        """Send this acknowledgement instead, which refuses the publication."""
        self.packet = packet

    def handed_over(self) -> None:
        """Note that its turn is over, and send it if no holder is expected."""
        self.expected -= 1
        if self._acks is not None:
            self._acks.add(self)

    def moved_to(self, acks: PublisherAcks | None) -> None:
        """Send it on another connection of the same session, or on none.

        The client may now speak 3.1.1, which has no reasons, after it spoke 5.
        """
        if acks is self._acks:
            return
        packet = self.packet
        if acks is None or acks.refusal is not None or not packet.reason:
            self._acks = acks
        elif packet.reason < Reason.UNSPECIFIED_ERROR:
            self._acks = acks
            self.packet = type(packet)(packet.packet_id)
        else:
            self._acks = None
            acks.refuse(self, f"reason {packet.reason:#04x} of MQTT 5")
        if self._acks is not None:
            self._acks.add(self)


class IdentifierAck(PublisherAck, Writes):
    """The acknowledgement of a publication whose packet identifier has to be stored, too.

    Args:
        acks: See `PublisherAck`.
        packet: See `PublisherAck`.
        identifier: The identifier to store together with the publication.
    """

    __slots__ = ("_identifier", "_identifier_durable", "_unwritten")

    def __init__(
        self, acks: PublisherAcks, packet: PubAck | PubRec, identifier: Identifier
    ) -> None:
        super().__init__(acks, packet)
        self.expected += 1
        # What may still come: the end of its turn, and expected holders that have written nothing.
        self._unwritten = 1
        self._identifier: Identifier | None = identifier
        self._identifier_durable = False

    def expect(self) -> None:
        self._unwritten += 1
        super().expect()

    def taken(self) -> None:
        """Note that a holder is responsible, as `Confirm.taken`; it has written nothing."""
        self._has_come()
        super().taken()

    def written(self, where: str = "", put: Callable[[str, bytes], object] = nowhere) -> Confirm:
        self._has_come()
        return Written(self)

    def written_is_taken(self) -> None:
        """Note that a holder that has written its message is responsible."""
        super().taken()

    def refused(self, reason: str) -> None:
        self._forget()
        super().refused(reason)

    def refuse_with(self, packet: PubAck | PubRec) -> None:
        super().refuse_with(packet)
        self._forget()

    def handed_over(self) -> None:
        self._has_come()
        super().handed_over()

    def _has_come(self) -> None:
        # With the last write, so that after a crash all of it is there, or nothing. Not earlier, or
        # the message that the client then sends again would be taken for a duplicate.
        self._unwritten -= 1
        identifier = self._identifier
        if identifier is not None and not self._unwritten:
            self._identifier = None
            identifier.persist(self._note_identifier_durable)

    def _note_identifier_durable(self) -> None:
        if not self._identifier_durable:
            self._identifier_durable = True
            super().taken()

    def _forget(self) -> None:
        if self._identifier is not None:
            self._identifier.forget()
            self._identifier = None
        if not self._identifier_durable:
            self._identifier_durable = True
            self.expected -= 1


class PublisherAcks:
    """The acknowledgements that one connection owes its client, in order.

    Args:
        send: Sends an acknowledgement.
        refuse: Called with a sentence when a publication was refused, and there is no `refusal`.
        refusal: Makes an acknowledgement with the reason of a refusal, if the protocol has reasons.
        on_fault: Called with an exception of one of these; None: it is raised. A queue or the disk
            calls them when it becomes responsible, and must not get the exception.

    Attributes:
        refusal: See above.
        pending: Those that are outstanding, in order.
        pending_pubacks: The number of outstanding acknowledgements of QoS 1.
    """

    __slots__ = (
        "_by_id", "_on_fault", "_refuse", "_send", "pending", "pending_pubacks", "refusal",
    )  # fmt: skip

    def __init__(
        self,
        send: Callable[[PubAck | PubRec], object],
        refuse: Callable[[str], object],
        refusal: Callable[[PubAck | PubRec, str], PubAck | PubRec] | None = None,
        on_fault: Callable[[Exception], object] | None = None,
    ) -> None:
        self._on_fault = _raise if on_fault is None else on_fault
        self.refusal = refusal
        self.pending_pubacks = 0
        self._send: Callable[[PubAck | PubRec], object] | None = send
        self._refuse = refuse
        self.pending: deque[PublisherAck] = deque()
        # Those of QoS 1, by packet identifier.
        self._by_id: dict[int, PublisherAck] = {}

    def __len__(self) -> int:
        """Return the number of unacknowledged publications."""
        return len(self.pending)

    def begin(self, packet: PubAck | PubRec, identifier: Identifier | None = None) -> PublisherAck:
        """Begin an acknowledgement; `PublisherAck.handed_over` gives it its place in the order.

        Raises:
            RemoteProtocolError: If too many are outstanding.
        """
        if len(self.pending) >= MAX_UNACKED:
            msg = (
                f"{MAX_UNACKED} publications are unacknowledged and another one came: "
                "all identifiers are in use [MQTT-2.3.1-2]"
            )
            raise RemoteProtocolError(msg)
        if identifier is None:
            return PublisherAck(self, packet)
        return IdentifierAck(self, packet, identifier)

    def add(self, ack: PublisherAck) -> None:
        """Send it, or put it behind those that are not due."""
        if self._send is None:
            return
        self.pending.append(ack)
        self.pending_pubacks += isinstance(ack.packet, PubAck)
        if not ack.expected:
            self.say_due()
        # Most are sent at once, and need not be known.
        if self.pending and self.pending[-1] is ack and isinstance(ack.packet, PubAck):
            self._by_id[ack.packet.packet_id] = ack

    def awaits(self, packet_id: int) -> bool:
        """Whether a QoS 1 publication with that identifier is not acknowledged yet."""
        return packet_id in self._by_id

    def say_due(self) -> None:
        """Send those that are due, up to the first that is not."""
        pending = self.pending
        while pending and not pending[0].expected and self._send is not None:
            packet = pending.popleft().packet
            if isinstance(packet, PubAck):
                self.pending_pubacks -= 1
                self._by_id.pop(packet.packet_id, None)
            try:
                self._send(packet)
            except Exception as exc:  # noqa: BLE001 (whatever it is)
                self._on_fault(exc)

    def refused(self, packet: PubAck | PubRec, reason: str) -> PubAck | PubRec | None:
        """Return the acknowledgement with the reason; None: the protocol has none."""
        if self.refusal is None:
            return None
        try:
            return self.refusal(packet, reason)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self._on_fault(exc)
            return type(packet)(packet.packet_id, Reason.UNSPECIFIED_ERROR)

    def refuse(self, ack: PublisherAck, reason: str) -> None:
        """End the connection, because no holder is responsible for a publication."""
        ack.moved_to(None)
        self._refuse(
            f"packet {ack.packet.packet_id} was refused: {reason} (3.1.1 can only tell this by "
            "closing the connection)"
        )

    def close(self) -> dict[int, PublisherAck]:
        """Forget them: the client has gone, and will send unacknowledged publications again.

        Returns:
            Those of QoS 1, by packet identifier, for a session that outlives the connection.
        """
        left, self._by_id = self._by_id, {}
        for ack in self.pending:
            ack.moved_to(None)
        self.pending.clear()
        # Breaks a reference cycle with the connection.
        self._send = None
        self._refuse = nobody
        self.refusal = None
        self._on_fault = _raise
        self.pending_pubacks = 0
        return left
