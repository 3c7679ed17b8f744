"""Publisher confirms: a publication is acknowledged once a holder is responsible for it (rule 7).

PUBACK and PUBREC are publisher confirms. Most publications are acknowledged at once; one that a
queue has to write is acknowledged when it is on disk. Acknowledgements go out in the order in which
the publications came [MQTT-4.6.0-2] [MQTT-4.6.0-3].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ....accounts import Confirm
from ....persistence._writes import Writes, nowhere
from ..._errors import RemoteProtocolError
from ..._outlet import nobody
from ..codec._packets import PubAck, PubRec
from ..codec._reasons import Reason

MAX_UNANSWERED = 65_535
"""Most unacknowledged publications of one client: it has no identifiers for more."""


ANSWERING: Final = "sending what is due to it"


def _raise(exc: Exception) -> None:
    raise exc


class Identifier(Protocol):
    """The packet identifier of a QoS 2 publication, in a persistent session."""

    def keep(self, kept: Callable[[], object]) -> None:
        """Store it, in the current batch; call `kept` when the batch is durable."""
        ...

    def forget(self) -> None:
        """Forget it: its publication was refused."""
        ...


class PublisherAck(Writes):
    """The acknowledgement of one publication (`clearfunds.accounts.Confirm`).

    Args:
        answers: The acknowledgements of the publication's connection.
        packet: The packet to send.
        identifier: The identifier to store together with the publication, if any.
    """

    __slots__ = (
        "_answers", "_expected", "_handed_over", "_identifier", "_kept", "_unwritten", "packet",
    )  # fmt: skip

    def __init__(
        self, answers: PublisherAcks, packet: PubAck | PubRec, identifier: Identifier | None = None
    ) -> None:
        self.packet = packet
        self._answers: PublisherAcks | None = answers
        self._expected = 0
        # The number of expected holders that have written nothing yet, and still may.
        self._unwritten = 0
        self._handed_over = False
        self._identifier = identifier
        self._kept = identifier is None

    def __repr__(self) -> str:
        return f"<PublisherAck {self.packet}: {self._expected} expected>"

    @property
    def is_due(self) -> bool:
        """Whether all expected holders are responsible, and its identifier is stored."""
        return self._handed_over and self._kept and not self._expected

    def expect(self) -> None:
        self._expected += 1
        self._unwritten += 1

    def taken(self) -> None:
        """Note that a holder is responsible, as `Confirm.taken`; it has written nothing."""
        self._unwritten -= 1
        if self._identifier is not None:
            self._keep_identifier(self._identifier)
        self.written_is_taken()

    def written(self, where: str = "", keep: Callable[[str, bytes], object] = nowhere) -> Confirm:
        self._unwritten -= 1
        if self._identifier is not None:
            self._keep_identifier(self._identifier)
        return _WrittenAnswer(self)

    def refused(self, reason: str) -> None:
        """Note a refusal, as `Confirm.refused`. MQTT 3.1.1 cannot tell it, so the connection ends.

        In MQTT 5 the acknowledgement carries it, once no holder is expected any more.
        """
        answers = self._answers
        refusal = None if answers is None else answers.refused(self.packet, reason)
        if refusal is not None:
            self.refuse_with(refusal)
            self.written_is_taken()
            return
        self._forget_identifier()
        if answers is not None:
            answers.refuse(self, reason)

    def note_reached(self, anybody: bool) -> None:
        """Note whether there were subscribers; MQTT 5 reports that (section 3.4.2.1)."""
        packet = self.packet
        if not (anybody or packet.reason):
            self.packet = type(packet)(packet.packet_id, Reason.NO_MATCHING_SUBSCRIBERS)

    def refuse_with(self, packet: PubAck | PubRec) -> None:
        """Send this acknowledgement instead, which refuses the publication."""
        self.packet = packet
        self._forget_identifier()
        self._kept = True

    def _forget_identifier(self) -> None:
        if self._identifier is not None:
            self._identifier.forget()
            self._identifier = None

    def handed_over(self) -> None:
        """Note that its turn is over, and send it if no holder is expected."""
        self._handed_over = True
        if self._identifier is not None:
            self._keep_identifier(self._identifier)
        if self._answers is not None:
            self._answers.add(self)

    def moved_to(self, answers: PublisherAcks | None) -> None:
        """Send it on another connection of the same session, or on none.

        The client may now speak 3.1.1, which has no reasons, after it spoke 5.
        """
        if answers is self._answers:
            return
        packet = self.packet
        if answers is None or answers.refusal is not None or not packet.reason:
            self._answers = answers
        elif packet.reason < Reason.UNSPECIFIED_ERROR:
            self._answers = answers
            self.packet = type(packet)(packet.packet_id)
        else:
            self._answers = None
            answers.refuse(self, f"reason {packet.reason:#04x} of MQTT 5")
        if self._answers is not None:
            self._answers.add(self)

    def written_is_taken(self) -> None:
        """Note that a holder that has written its message is responsible."""
        self._expected -= 1
        self._say_if_due()

    def _say_if_due(self) -> None:
        if self.is_due and self._answers is not None:
            self._answers.say_due()

    def _keep_identifier(self, identifier: Identifier) -> None:
        # With the last write, so that after a crash all of it is there, or nothing. Not earlier, or
        # the message that the client then sends again would be taken for a duplicate.
        if self._handed_over and not self._unwritten:
            self._identifier = None
            identifier.keep(self._identifier_kept)

    def _identifier_kept(self) -> None:
        self._kept = True
        self._say_if_due()


class _WrittenAnswer:
    """The confirm of a holder that has written its message, for a `PublisherAck`."""

    __slots__ = ("_answer",)

    def __init__(self, answer: PublisherAck) -> None:
        self._answer = answer

    def expect(self) -> None:
        self._answer.expect()

    def taken(self) -> None:
        self._answer.written_is_taken()

    def refused(self, reason: str) -> None:
        self._answer.refused(reason)


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
        pending_pubacks: The number of outstanding acknowledgements of QoS 1.
    """

    __slots__ = ("_on_fault", "_pending", "_refuse", "_send", "pending_pubacks", "refusal")

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
        self._pending: deque[PublisherAck] = deque()

    def __len__(self) -> int:
        """Return the number of unacknowledged publications."""
        return len(self._pending)

    def begin(self, packet: PubAck | PubRec, identifier: Identifier | None = None) -> PublisherAck:
        """Begin an acknowledgement; `PublisherAck.handed_over` gives it its place in the order.

        Raises:
            RemoteProtocolError: If too many are outstanding.
        """
        if len(self._pending) >= MAX_UNANSWERED:
            msg = (
                f"{MAX_UNANSWERED} publications are unacknowledged and another one came: "
                "all identifiers are in use [MQTT-2.3.1-2]"
            )
            raise RemoteProtocolError(msg)
        return PublisherAck(self, packet, identifier)

    def add(self, answer: PublisherAck) -> None:
        """Send it, or put it behind those that are not due."""
        if self._pending or not answer.is_due:
            self._pending.append(answer)
            self.pending_pubacks += isinstance(answer.packet, PubAck)
        elif self._send is not None:
            self._say(self._send, answer.packet)

    def say_due(self) -> None:
        """Send those that are due, up to the first that is not."""
        pending = self._pending
        while pending and pending[0].is_due and self._send is not None:
            packet = pending.popleft().packet
            self.pending_pubacks -= isinstance(packet, PubAck)
            self._say(self._send, packet)

    def _say(self, send: Callable[[PubAck | PubRec], object], packet: PubAck | PubRec) -> None:
        try:
            send(packet)
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

    def refuse(self, answer: PublisherAck, reason: str) -> None:
        """End the connection, because no holder is responsible for a publication."""
        answer.moved_to(None)
        self._refuse(
            f"packet {answer.packet.packet_id} was refused: {reason} (3.1.1 can only tell this by "
            "closing the connection)"
        )

    def close(self) -> None:
        """Forget them: the client has gone, and will send unacknowledged publications again."""
        for answer in self._pending:
            answer.moved_to(None)
        self._pending.clear()
        # Breaks a reference cycle with the connection.
        self._send = None
        self._refuse = nobody
        self.refusal = None
        self._on_fault = _raise
        self.pending_pubacks = 0
