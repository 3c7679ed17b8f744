"""Reply codes of AMQP 0-9-1, and the errors that carry them.

Source: AMQP 0-9-1, section 1.2 (constants); which of them end a channel and which a connection: the
same, "soft" and "hard" errors.
"""

from __future__ import annotations

import enum
from typing import Final

from .._errors import RemoteProtocolError

MAX_TEXT_BYTES: Final = 255
"""A reply text is a short string (section 4.2.5.3)."""

Method = tuple[int, int]
"""A class and a method of it, by their numbers."""

NO_METHOD: Final[Method] = (0, 0)
"""An error that no method has caused."""


class Code(enum.IntEnum):
    """Reply codes; the names are those that texts begin with, as RabbitMQ writes them."""

    NO_ROUTE = 312
    """A mandatory message that reaches no queue is returned."""
    CONNECTION_FORCED = 320
    """An operator closes the connection: the relay stops."""
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def is_hard(self) -> bool:
        """Whether it ends the connection, and not only one channel."""
        return self is Code.CONNECTION_FORCED or self >= Code.FRAME_ERROR


class AmqpError(RemoteProtocolError):
    """The peer is told why its channel, or its connection, is closed.

    Attributes:
        code: The reply code.
        text: The reply text, which begins with the name of the code.
        method: The method at fault; `NO_METHOD` if there is none.
        channel: The channel that it is about; 0: the connection, or whichever is being handled.
        ends_connection: Whether the connection ends, and not only the channel.
    """

    def __init__(self, code: Code, text: str, method: Method = NO_METHOD, channel: int = 0) -> None:
        self.code = code
        self.text = f"{code.name} - {text}"
        self.method = method
        self.channel = channel
        self.ends_connection = code.is_hard
        super().__init__(self.text)


def shortened(text: str) -> bytes:
    """Return a text as a short string of UTF-8; the end of a long one is left out."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded
    return encoded[: MAX_TEXT_BYTES - 3].decode(errors="ignore").encode() + b"..."
