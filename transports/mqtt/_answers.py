"""When a publication is acknowledged: once somebody has taken responsibility for it (rule 7).

PUBACK and PUBREC say what a publisher confirm says. Most publications are dealt with at once; one
that a queue has to write to disk first is acknowledged when it is there. They go out in the order
in which the publications came [MQTT-4.6.0-2] [MQTT-4.6.0-3].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .._outlet import nobody
from ._packets import PubAck, PubRec


class Answer:
    """The acknowledgement of one publication (`clearfunds.accounts.Confirm`)."""

    __slots__ = ("_answers", "_expected", "_handed_over", "packet")

    def __init__(self, answers: Answers, packet: PubAck | PubRec) -> None:
        self.packet = packet
        self._answers: Answers | None = answers
        self._expected = 0
        self._handed_over = False

    def __repr__(self) -> str:
        return f"<Answer {self.packet}: {self._expected} expected>"

    @property
    def is_due(self) -> bool:
        """Whether all who were expected have taken responsibility."""
        return self._handed_over and not self._expected

    def expect(self) -> None:
        """See `Confirm.expect`."""
        self._expected += 1

    def taken(self) -> None:
        """See `Confirm.taken`."""
        self._expected -= 1
        if self.is_due and self._answers is not None:
            self._answers.say_due()

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`: MQTT 3.1.1 has no word for it, so the connection ends."""
        answers = self._answers
        if answers is not None:
            answers.refuse(self, reason)

    def handed_over(self) -> None:
        """Note that its turn is over, and say it if nobody is expected."""
        self._handed_over = True
        if self._answers is not None:
            self._answers.add(self)

    def moved_to(self, answers: Answers | None) -> None:
        """Say it on another connection of the same session, or on none."""
        self._answers = answers
        if answers is not None:
            answers.add(self)


class Answers:
    """The acknowledgements that one connection owes its client, in order.

    Args:
        send: Sends one.
        refuse: Called with a sentence when a publication was refused.
    """

    __slots__ = ("_pending", "_refuse", "_send")

    def __init__(
        self, send: Callable[[PubAck | PubRec], object], refuse: Callable[[str], object]
    ) -> None:
        self._send: Callable[[PubAck | PubRec], object] | None = send
        self._refuse = refuse
        self._pending: deque[Answer] = deque()

    def __len__(self) -> int:
        """How many publications are not acknowledged."""
        return len(self._pending)

    def begin(self, packet: PubAck | PubRec) -> Answer:
        """Begin one; `Answer.handed_over` puts it in its place."""
        return Answer(self, packet)

    def add(self, answer: Answer) -> None:
        """Say it, or note it behind those that are not due."""
        if self._pending or not answer.is_due:
            self._pending.append(answer)
        elif self._send is not None:
            self._send(answer.packet)

    def say_due(self) -> None:
        """Say those that are due, up to the first that is not."""
        pending = self._pending
        while pending and pending[0].is_due and self._send is not None:
            self._send(pending.popleft().packet)

    def refuse(self, answer: Answer, reason: str) -> None:
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
