"""Exceptions that calls of the NATS client raise."""

from __future__ import annotations

from ....sockets import TransportError


class ConnectionLostError(TransportError):
    """The connection ended. The client connects again; this call is not repeated.

    The server may or may not have done what was asked.
    """


class RefusedError(TransportError):
    """The server does not allow it: a login, or a subject."""


class NoAnswerError(TransportError):
    """No answer came in time."""


class NoRespondersError(NoAnswerError):
    """Nobody subscribes to the subject of a request."""


class LoginError(TransportError, ValueError):
    """A login cannot be used: a file is unreadable, a key is damaged, an extra is not installed."""
