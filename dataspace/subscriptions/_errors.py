"""What a reader of ranges is told when it cannot have what it asks for."""

from __future__ import annotations

from .._errors import DataspaceError


class SubscriptionError(DataspaceError):
    """A request that a subscription cannot follow; the message says why."""


class RefusedError(SubscriptionError):
    """It is not allowed, or not known: a limit, a name, other filters than it has."""


class OutOfRangeError(RefusedError):
    """A range, or an acknowledgement, that goes beyond what there is."""


class FencedError(SubscriptionError):
    """A newer reader has attached; this one has nothing to say any more."""


class DataLossError(SubscriptionError):
    """What is asked for is not there any more: acknowledged, given up, or lost."""


class OtherIncarnationError(DataLossError):
    """The numbers are those of another life of the subscription: they mean nothing in this one."""
