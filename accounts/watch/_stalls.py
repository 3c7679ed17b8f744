"""Blocked time of each reader in a line, by culprit; only kept while there is a recorder.

Theory of operation. A repayment is blamed on one holder, for all readers in line. Adding it up for
each reader would make a repayment linear in readers. So it is added up once, for the line. Each
reader remembers the sums from when it came, and the difference is its own. A reader that comes in
the middle of a stretch has not waited all of it; the missed part is subtracted when the stretch is
blamed on a culprit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .._waiters import Waiter

Culprit: TypeAlias = "tuple[str, int]"
"""The name of a holder, or the name blamed in its place; and the reason, as an index of
`REASONS`: `PLAIN` both for the own account and for one above."""


class Stalls:
    """The culprits on which the readers in one line wait."""

    __slots__ = ("_blamed", "_late", "_told")

    def __init__(self) -> None:
        self._blamed: dict[Culprit, float] = {}
        self._told: dict[Waiter, dict[Culprit, float]] = {}
        self._late: dict[Waiter, float] = {}

    def joined(self, waiter: Waiter, missed: float) -> None:
        """Note that a reader stands in line, `missed` seconds after the stretch has begun."""
        self._told[waiter] = dict(self._blamed)
        if missed:
            self._late[waiter] = missed

    def blame(self, culprit: Culprit, seconds: float) -> None:
        """Blame the stretch that ends now on `culprit`."""
        self._blamed[culprit] = self._blamed.get(culprit, 0.0) + seconds
        for waiter, missed in self._late.items():
            told = self._told[waiter]
            told[culprit] = told.get(culprit, 0.0) + missed
        self._late.clear()

    def cut(self) -> None:
        """Note that a stretch has ended without a culprit."""
        self._late.clear()

    def tell(self, waiter: Waiter) -> list[tuple[Culprit, float]]:
        """Return (culprit, seconds) of a reader, as far as not returned before."""
        told = self._told.get(waiter)
        if told is None:  # it came while there was no recorder
            told = self._told[waiter] = {}
        found = [
            (culprit, seconds - told.get(culprit, 0.0)) for culprit, seconds in self._blamed.items()
        ]
        told.update(self._blamed)
        return [(culprit, seconds) for culprit, seconds in found if seconds > 0]

    def left(self, waiter: Waiter) -> None:
        """Note that a reader has left the line."""
        self._late.pop(waiter, None)
        self._told.pop(waiter, None)
        if not self._told:
            self._blamed.clear()
