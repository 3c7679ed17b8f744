"""Errors for range readers."""

from __future__ import annotations

from ...dataspace._errors import DataspaceError


class SubscriptionError(DataspaceError):
    """A request that a subscription cannot serve; the message has the reason."""


class RefusedError(SubscriptionError):
    """It is not allowed, or not known: a limit, a name, other filters than the subscription's."""


class OutOfRangeError(RefusedError):
    """A range, or an acknowledgement, that goes beyond the last message."""


class FencedError(SubscriptionError):
    """A newer reader has attached; this one is fenced off."""


class DataLossError(SubscriptionError):
    """The messages are gone: acknowledged, given up, or lost."""


class OtherIncarnationError(DataLossError):
    """The numbers belong to an earlier incarnation of the subscription, and mean nothing now."""
