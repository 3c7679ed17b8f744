"""Errors of a virtual host: requests that it refuses, with the reason and the text for the client.

Source: AMQP 0-9-1, section 1.6 (reply codes); the texts are worded as RabbitMQ 3.10 words them,
since clients compare them.
"""

from __future__ import annotations

import enum

from .._errors import DataspaceError


class Reason(enum.Enum):
    """Reasons for a refusal, by AMQP's name; the value is AMQP's reply code."""

    ACCESS_REFUSED = 403
    """The client may not do this, to this object."""
    NOT_FOUND = 404
    """There is no object of that name."""
    RESOURCE_LOCKED = 405
    """A queue is exclusive to another connection."""
    PRECONDITION_FAILED = 406
    """The request contradicts the state of the object, or an argument is invalid."""
    COMMAND_INVALID = 503
    """The request makes no sense; in AMQP it ends the connection."""
    RESOURCE_ERROR = 506
    """The server has no room for it; in AMQP it ends the connection."""
    NOT_ALLOWED = 530
    """The request is never allowed; in AMQP it ends the connection."""
    NOT_IMPLEMENTED = 540
    """The server cannot do it; in AMQP it ends the connection."""


class HostError(DataspaceError):
    """A virtual host refuses a request of a client.

    Attributes:
        reason: The reason; a protocol has a code for each.
        text: The sentence for the client, without the reason's name.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def not_found(what: str) -> HostError:
    """Return the error for an object that is not there."""
    return HostError(Reason.NOT_FOUND, f"no {what}")


def precondition_failed(text: str) -> HostError:
    """Return the error for a request that contradicts the state of an object."""
    return HostError(Reason.PRECONDITION_FAILED, text)


def access_refused(text: str) -> HostError:
    """Return the error for a request that this client must not make."""
    return HostError(Reason.ACCESS_REFUSED, text)
