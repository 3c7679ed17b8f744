"""Whom each reader in a line has been kept waiting by; only kept while somebody records it.

Theory of operation. A repayment is blamed on one holder, for all who stand in line: adding it up
for each of them would cost a repayment as much as there are readers. So it is added up once, for
the line; each reader remembers what that said when it came, and the difference is its own. Who
comes in the middle of a stretch has not waited all of it, which is taken off when the stretch is
blamed on somebody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ._waiters import Waiter

Culprit: TypeAlias = "tuple[str, int]"
"""A holder's name, or what is blamed in its place; and why they waited, as an index of `REASONS`:
`PLAIN` for both at their own account and at one above."""


class Stalls:
    """Whom the readers in one line wait on."""

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
        """Blame the stretch that ends now on somebody."""
        self._blamed[culprit] = self._blamed.get(culprit, 0.0) + seconds
        for waiter, missed in self._late.items():
            told = self._told[waiter]
            told[culprit] = told.get(culprit, 0.0) + missed
        self._late.clear()

    def cut(self) -> None:
        """A stretch has ended that nobody is blamed for."""
        self._late.clear()

    def tell(self, waiter: Waiter) -> list[tuple[Culprit, float]]:
        """Return (culprit, seconds) for all that has not been told of a reader."""
        told = self._told.get(waiter)
        if told is None:  # it came when nobody recorded anything
            told = self._told[waiter] = {}
        found = [
            (culprit, seconds - told.get(culprit, 0.0)) for culprit, seconds in self._blamed.items()
        ]
        told.update(self._blamed)
        return [(culprit, seconds) for culprit, seconds in found if seconds > 0]

    def left(self, waiter: Waiter) -> None:
        """Note that a reader stands in line no more."""
        self._late.pop(waiter, None)
        self._told.pop(waiter, None)
        if not self._told:
            self._blamed.clear()
