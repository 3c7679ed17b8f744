"""When a publication is acknowledged: once somebody has taken responsibility for it (rule 7).

PUBACK and PUBREC say what a publisher confirm says. Most publications are dealt with at once; one
that a queue has to write to disk first is acknowledged when it is there. They go out in the order
in which the publications came [MQTT-4.6.0-2] [MQTT-4.6.0-3].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ...accounts import Confirm
from .._errors import RemoteProtocolError
from .._outlet import nobody
from .._writes import Writes, nowhere
from ._packets import PubAck, PubRec
from ._reasons import Reason

MAX_UNANSWERED = 65_535
"""Publications of one client that are not acknowledged: it has no identifiers for more."""


ANSWERING: Final = "sending what is due to it"


def _raise(exc: Exception) -> None:
    raise exc


class Identifier(Protocol):
    """The packet identifier of a QoS 2 publication, in a session that is kept."""

    def keep(self, kept: Callable[[], object]) -> None:
        """Keep it, in the batch that is being put together; call `kept` when that is durable."""
        ...

    def forget(self) -> None:
        """Forget it: its publication has been refused."""
        ...


class PublisherAck(Writes):
    """The acknowledgement of one publication (`clearfunds.accounts.Confirm`).

    Args:
        answers: Those of the connection that it came on.
        packet: What is to be sent.
        identifier: What has to be kept together with the publication, if something has.
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
        # How many of those who are expected have written nothing, and may do so yet.
        self._unwritten = 0
        self._handed_over = False
        self._identifier = identifier
        self._kept = identifier is None

    def __repr__(self) -> str:
        return f"<Answer {self.packet}: {self._expected} expected>"

    @property
    def is_due(self) -> bool:
        """Whether all who were expected have taken responsibility, and its identifier is kept."""
        return self._handed_over and self._kept and not self._expected

    def expect(self) -> None:
        """See `Confirm.expect`."""
        self._expected += 1
        self._unwritten += 1

    def taken(self) -> None:
        """See `Confirm.taken`: by one who has written nothing."""
        self._unwritten -= 1
        self._keep_identifier()
        self.written_is_taken()

    def written(self, where: str = "", keep: Callable[[str, bytes], object] = nowhere) -> Confirm:
        """See `Writes.written`."""
        self._unwritten -= 1
        self._keep_identifier()
        return _WrittenAnswer(self)

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`: MQTT 3.1.1 has no word for it, so the connection ends.

        In MQTT 5 the acknowledgement says so, when nobody is expected any more.
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
        """Note whether the publication concerned anybody; MQTT 5 can say so (section 3.4.2.1)."""
        packet = self.packet
        if not (anybody or packet.reason):
            self.packet = type(packet)(packet.packet_id, Reason.NO_MATCHING_SUBSCRIBERS)

    def refuse_with(self, packet: PubAck | PubRec) -> None:
        """Let it be this acknowledgement, which says that the publication was not taken."""
        self.packet = packet
        self._forget_identifier()
        self._kept = True

    def _forget_identifier(self) -> None:
        if self._identifier is not None:
            self._identifier.forget()
            self._identifier = None

    def handed_over(self) -> None:
        """Note that its turn is over, and say it if nobody is expected."""
        self._handed_over = True
        self._keep_identifier()
        if self._answers is not None:
            self._answers.add(self)

    def moved_to(self, answers: PublisherAcks | None) -> None:
        """Say it on another connection of the same session, or on none.

        The client may speak 3.1.1 there, and have spoken 5 before: that has no reasons.
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
        """Note that one who has written its message has taken responsibility."""
        self._expected -= 1
        self._say_if_due()

    def _say_if_due(self) -> None:
        if self.is_due and self._answers is not None:
            self._answers.say_due()

    def _keep_identifier(self) -> None:
        # With the last of what is written, so that all of it is there after a crash, or nothing;
        # not before, or what the client would send again then would be taken for a duplicate.
        if self._handed_over and not self._unwritten and self._identifier is not None:
            identifier, self._identifier = self._identifier, None
            identifier.keep(self._identifier_kept)

    def _identifier_kept(self) -> None:
        self._kept = True
        self._say_if_due()


class _WrittenAnswer:
    """What one who has written its message tells an `PublisherAck`."""

    __slots__ = ("_answer",)

    def __init__(self, answer: PublisherAck) -> None:
        self._answer = answer

    def expect(self) -> None:
        """See `Confirm.expect`."""
        self._answer.expect()

    def taken(self) -> None:
        """See `Confirm.taken`."""
        self._answer.written_is_taken()

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`."""
        self._answer.refused(reason)


class PublisherAcks:
    """The acknowledgements that one connection owes its client, in order.

    Args:
        send: Sends one.
        refuse: Called with a sentence when a publication was refused, and there is no `refusal`.
        refusal: Makes of an acknowledgement one that says why the publication was not taken, where
            the protocol has that.
        on_fault: Called with what one of these has raised; None: it is raised. They are called when
            others, a queue or the disk, have taken responsibility, who must not hear of it.

    Attributes:
        refusal: See above.
        pending_pubacks: How many of QoS 1 are owed.
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
        """How many publications are not acknowledged."""
        return len(self._pending)

    def begin(self, packet: PubAck | PubRec, identifier: Identifier | None = None) -> PublisherAck:
        """Begin one; `PublisherAck.handed_over` puts it in its place.

        Raises:
            RemoteProtocolError: If there are too many.
        """
        if len(self._pending) >= MAX_UNANSWERED:
            msg = (
                f"{MAX_UNANSWERED} publications have not been acknowledged and another one came: "
                "all identifiers are in use [MQTT-2.3.1-2]"
            )
            raise RemoteProtocolError(msg)
        return PublisherAck(self, packet, identifier)

    def add(self, answer: PublisherAck) -> None:
        """Say it, or note it behind those that are not due."""
        if self._pending or not answer.is_due:
            self._pending.append(answer)
            self.pending_pubacks += isinstance(answer.packet, PubAck)
        elif self._send is not None:
            self._say(self._send, answer.packet)

    def say_due(self) -> None:
        """Say those that are due, up to the first that is not."""
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
        """Return the acknowledgement that says why; None: the protocol has none."""
        if self.refusal is None:
            return None
        try:
            return self.refusal(packet, reason)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self._on_fault(exc)
            return type(packet)(packet.packet_id, Reason.UNSPECIFIED_ERROR)

    def refuse(self, answer: PublisherAck, reason: str) -> None:
        """End the connection: nobody has taken responsibility for a publication."""
        answer.moved_to(None)
        self._refuse(
            f"packet {answer.packet.packet_id} was refused: {reason} (3.1.1 cannot say so but by "
            "closing the connection)"
        )

    def close(self) -> None:
        """Forget them: the client has gone, and will send what was not acknowledged again."""
        for answer in self._pending:
            answer.moved_to(None)
        self._pending.clear()
        # The connection has these, and these had the connection.
        self._send = None
        self._refuse = nobody
        self.refusal = None
        self._on_fault = _raise
        self.pending_pubacks = 0
