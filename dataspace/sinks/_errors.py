"""What a writer of batches is told when it cannot have what it asks for."""

from __future__ import annotations

from .._errors import DataspaceError


class SinkError(DataspaceError):
    """A request that a sink cannot follow; the message says why."""


class RefusedError(SinkError):
    """It is not allowed, or not known: a limit, a name, a topic, an order of things."""


class NotStagedError(RefusedError):
    """What is to be committed is not staged here, or not any more."""


class FencedError(SinkError):
    """Another writer has taken the name over; this one has nothing to say any more."""


class OtherIncarnationError(FencedError):
    """The writer is one of another life of the sink, which is not remembered."""
