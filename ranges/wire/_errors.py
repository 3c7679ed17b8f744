"""The errors of the protocol: the relay sends them as ERROR, and its clients raise them again."""

from __future__ import annotations

import enum
from typing import ClassVar


class ErrorCode(enum.IntEnum):
    """The reason of an ERROR, for programs; its sentence is for people."""

    PROTOCOL = 1
    """The peer broke the protocol; the connection is closed."""
    REFUSED = 2
    """The request is not allowed, or names something unknown."""
    FENCED = 3
    """A newer reader has attached."""
    DATA_LOSS = 4
    """The messages no longer exist."""
    OTHER_INCARNATION = 5
    """The subscription was made anew: numbers have another meaning."""
    STORE = 6
    """The disk does not do its work; it may later."""
    NOT_STAGED = 7
    """The parts that a writer wants to commit are not staged here."""
    NOT_AUTHORIZED = 8
    """The relay does not let this peer in; the connection is closed."""


class RangeError(Exception):
    """A request to a relay that failed; the message has the reason. Base of the others."""

    code: ClassVar = ErrorCode.REFUSED


class WrongAnswerError(RangeError):
    """The answer does not follow the protocol; or this client's request did not."""

    code = ErrorCode.PROTOCOL


class RefusedError(RangeError):
    """It is not allowed, or not known: a limit, a name, a topic, the order of requests."""


class OutOfRangeError(RefusedError):
    """A range, or an acknowledgement, that goes beyond the last message."""


class NotStagedError(RefusedError):
    """A part to be committed is not staged at the relay, or not any more; stage it again."""

    code = ErrorCode.NOT_STAGED


class NotAuthorizedError(RefusedError):
    """The relay does not admit this user, or does not prove its own identity; see the message."""

    code = ErrorCode.NOT_AUTHORIZED


class FencedError(RangeError):
    """A newer reader has attached, or a newer writer has taken the name over; this one is out."""

    code = ErrorCode.FENCED


class ForgottenError(FencedError):
    """The writer belongs to an earlier incarnation of the sink, which was forgotten."""

    code = ErrorCode.OTHER_INCARNATION


class DataLossError(RangeError):
    """The messages are gone: acknowledged, given up, or lost."""

    code = ErrorCode.DATA_LOSS


class OtherIncarnationError(DataLossError):
    """The numbers belong to an earlier incarnation of the subscription, and mean nothing now."""

    code = ErrorCode.OTHER_INCARNATION


class DiskError(RangeError):
    """The relay's disk does not do its work. Try again later."""

    code = ErrorCode.STORE


READERS_ERRORS: dict[int, type[RangeError]] = {
    each.code: each
    for each in (
        *(WrongAnswerError, RefusedError, NotStagedError, NotAuthorizedError),
        *(FencedError, DataLossError, OtherIncarnationError, DiskError),
    )
}
WRITERS_ERRORS = {**READERS_ERRORS, ForgottenError.code: ForgottenError}
"""The exceptions for the codes: that of another incarnation says what it is for the reader, or for
the writer."""
