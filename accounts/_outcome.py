"""Why a loan ended."""

from __future__ import annotations

import enum
from typing import cast

from ._loop import is_cancellation


class Outcome(enum.IntEnum):
    """Why a loan ended; every loan ends in exactly one of these for each of its items.

    Integers, so that counting an outcome is one list index in the hot path.
    """

    DELIVERED = 0
    """Handed over: the kernel has the bytes, or the worker's block ended well."""
    ACKED = 1
    """The consumer acknowledged it."""
    REJECTED = 2
    """The handler raised."""
    CANCELLED = 3
    """The handler was cancelled, or its connection ended while the loan was under way."""
    EXPIRED = 4
    """It outlived its time to live."""
    DROPPED = 5
    """Its holder was gone, or its holder's policy dropped it."""
    STORED = 6
    """Spilled: safely on disk, or put aside for a lagging holder, and charged to another account
    there."""
    WRITTEN_OFF = 7
    """Discarded: its holder, a slow consumer, made no progress for longer than its patience."""
    LEAKED = 8
    """Nobody finished it: the garbage collector found it outstanding."""

    @property
    def label(self) -> str:
        """The name in metrics, logs and JSON, as `delivered`."""
        return self.name.lower()


def outcome_of(exc: BaseException | None) -> Outcome:
    """Return the outcome of a block left with `exc`: delivered, cancelled or rejected."""
    if exc is None:
        return Outcome.DELIVERED
    if is_cancellation(exc):
        return Outcome.CANCELLED
    if isinstance(exc, BaseExceptionGroup):
        # Nurseries wrap exceptions: it is a cancellation if nothing else is inside.
        group = cast("BaseExceptionGroup[BaseException]", exc)
        if group.split(is_cancellation)[1] is None:
            return Outcome.CANCELLED
    return Outcome.REJECTED
