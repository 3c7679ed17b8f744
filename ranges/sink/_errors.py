"""Errors for batch writers."""

from __future__ import annotations

from ...dataspace._errors import DataspaceError


class SinkError(DataspaceError):
    """A request that a sink cannot serve; the message has the reason."""


class RefusedError(SinkError):
    """It is not allowed, or not known: a limit, a name, a topic, the order of requests."""


class NotStagedError(RefusedError):
    """A part to be committed is not staged here, or not any more."""


class FencedError(SinkError):
    """Another writer has taken the name over; this one is fenced off."""


class OtherIncarnationError(FencedError):
    """The writer belongs to an earlier incarnation of the sink, which was forgotten."""
