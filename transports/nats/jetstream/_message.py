"""A message of a stream, as a consumer or `JetStream.get_message` has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import attrs

from ..._errors import LocalProtocolError, RemoteProtocolError
from ..codec._headers import Headers
from ..codec._messages import Message
from ..codec._numbers import number
from ._config import NANOSECONDS

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
PROGRESS: Final = b"+WPI"
TERM: Final = b"+TERM"
"""Answers to a message of a consumer [NATS ADR-15]."""


@attrs.frozen
class Stored:
    """A message that a stream has.

    Attributes:
        stream: The stream's name.
        sequence: The message's sequence in it.
        time: When the stream took it, in seconds since the epoch.
        subject, payload, headers: The message.
    """

    stream: str
    sequence: int
    time: float
    subject: str
    payload: bytes
    headers: Headers


@attrs.define(eq=False)
class Delivered:
    """A message that a consumer has sent, to be acknowledged if the consumer wants that.

    Attributes:
        stream, consumer: Their names.
        sequence: The message's sequence in the stream.
        consumer_sequence: How many the consumer has sent until then.
        deliveries: How often it has sent this one; 1: for the first time.
        time: When the stream took it, in seconds since the epoch.
        pending: Messages that the consumer had not sent yet then.
    """

    stream: str
    consumer: str
    sequence: int
    consumer_sequence: int
    deliveries: int
    time: float
    pending: int
    _message: Message
    _answer: Callable[[str, bytes], object]
    _answered: bool = False

    @property
    def subject(self) -> str:
        """The subject to which it was published."""
        return self._message.subject

    @property
    def payload(self) -> bytes:
        """The payload."""
        return self._message.payload

    @property
    def headers(self) -> Headers:
        """The headers."""
        return self._message.headers

    def ack_nowait(self) -> None:
        """Acknowledge it: the consumer does not send it again, if the server gets the word.

        Raises:
            trio.WouldBlock: There is no connection, or the send buffer is full.
            LocalProtocolError: It has been answered.
        """
        self._end(ACK)

    def nak_nowait(self, delay: float | None = None) -> None:
        """Have it sent again, after so many seconds or at once.

        Raises:
            trio.WouldBlock, LocalProtocolError: As `ack_nowait`.
        """
        if delay is None:
            self._end(NAK)
        else:
            self._end(NAK + b" " + json.dumps({"delay": round(delay * NANOSECONDS)}).encode())

    def term_nowait(self, reason: str = "") -> None:
        """Never have it sent again, though it was not handled.

        Raises:
            trio.WouldBlock, LocalProtocolError: As `ack_nowait`.
        """
        self._end(TERM + (b" " + reason.encode() if reason else b""))

    def in_progress_nowait(self) -> None:
        """Have `ack_wait` begin anew: it is still being handled.

        Raises:
            trio.WouldBlock, LocalProtocolError: As `ack_nowait`.
        """
        self._check()
        self._answer(self._message.reply, PROGRESS)

    def reply(self) -> str:
        """Return the subject for an answer that is sent in another way; it counts as answered.

        Raises:
            LocalProtocolError: It has been answered.
        """
        self._check()
        self._answered = True
        return self._message.reply

    def _end(self, answer: bytes) -> None:
        self._check()
        self._answer(self._message.reply, answer)
        self._answered = True

    def _check(self) -> None:
        if self._answered:
            raise LocalProtocolError(
                f"message {self.sequence} of stream {self.stream} has been answered"
            )


def delivered(message: Message, answer: Callable[[str, bytes], object]) -> Delivered:
    """Return a consumer's message; what is to be known of it is in the subject for the answer.

    $JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.CONSUMER-SEQUENCE.TIME.PENDING, or with DOMAIN and
    ACCOUNT before STREAM and a token at the end [NATS ADR-15].

    Raises:
        RemoteProtocolError: It is no message of a consumer.
    """
    tokens = message.reply.split(".")
    at = 2 if len(tokens) == 9 else 4
    numbers = tokens[at + 2 : at + 7]
    if tokens[:2] != ["$JS", "ACK"] or len(numbers) < 5:
        raise RemoteProtocolError(f"{message.reply!r} is not how a message is acknowledged")
    deliveries, sequence, consumer_sequence, time, pending = map(number, numbers)
    return Delivered(
        tokens[at],
        tokens[at + 1],
        sequence,
        consumer_sequence,
        deliveries,
        time / NANOSECONDS,
        pending,
        message,
        answer,
    )


def stored(message: Message) -> Stored:
    """Return the message that a direct request was answered with [NATS ADR-31].

    Raises:
        RemoteProtocolError: It is no such answer.
    """
    headers = message.headers
    stream, subject = headers.get("Nats-Stream"), headers.get("Nats-Subject")
    sequence, time = headers.get("Nats-Sequence"), headers.get("Nats-Time-Stamp")
    if None in (stream, subject, sequence, time):
        raise RemoteProtocolError(
            "a stream's message has to have Nats-Stream and its other headers"
        )
    return Stored(
        str(stream), number(str(sequence)), seconds_of(time), str(subject), message.payload, headers
    )


def seconds_of(time: Any) -> float:
    """Return the seconds since the epoch of a time as in RFC 3339.

    Raises:
        RemoteProtocolError: It is no such time.
    """
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError as error:
        raise RemoteProtocolError(f"{time!r} is no time: {error}") from error
