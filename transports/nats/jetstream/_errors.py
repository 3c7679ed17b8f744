"""Errors that JetStream answers with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....sockets import TransportError

NOT_FOUND: Final = 404
WRONG_LAST_SEQUENCE: Final = frozenset({10070, 10071, 10164})
"""nats-server `errors.json`: JSStreamWrongLastMsgIDErrF, JSStreamWrongLastSequenceErrF and
JSStreamWrongLastSequenceConstantErr."""
FULL: Final = frozenset({10077, 10122, 10047, 10023, 10028})
"""The same: store failed (its text has the reason: maximum messages, bytes, messages per subject
exceeded), maximum bytes, insufficient storage, insufficient resources, insufficient memory."""
OVERRUN: Final = 429
"""Too many requests: the stream takes no more just now."""


class JetStreamError(TransportError):
    """JetStream's answer is an error.

    Attributes:
        code: A status as in HTTP: 404.
        error_code: Its number in nats-server's `errors.json`; 0 if there is none.
        description: The server's words.
    """

    def __init__(self, code: int, error_code: int, description: str) -> None:
        super().__init__(f"{description} ({code}, {error_code})")
        self.code = code
        self.error_code = error_code
        self.description = description


class NotFoundError(JetStreamError):
    """There is no such stream, consumer, message or key."""


class WrongSequenceError(JetStreamError):
    """Another message came first: the last sequence is not the expected one."""


class StreamFullError(JetStreamError):
    """The stream has no room, or takes no more just now; publish again later."""


def error_of(found: Mapping[str, Any]) -> JetStreamError:
    """Return the exception for the `error` of an answer."""
    code, number = _number(found, "code"), _number(found, "err_code")
    description = str(found.get("description", "JetStream does not say why"))
    if number in WRONG_LAST_SEQUENCE:
        kind: type[JetStreamError] = WrongSequenceError
    elif code == NOT_FOUND:
        kind = NotFoundError
    elif number in FULL or code == OVERRUN:
        kind = StreamFullError
    else:
        kind = JetStreamError
    return kind(code, number, description)


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name, 0)
    return value if isinstance(value, int) else 0
