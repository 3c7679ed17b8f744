"""Stalls that wait to be written: one row for each reader, account waited at, and culprit.

A reader that is throttled a thousand times a second stalls as often. All its stalls within one
second, or until they can be written, become one row with their total length.
"""

from __future__ import annotations

from typing import Any, Final

MAX_KEYS: Final = 1 << 16
"""Most rows that wait; further stalls are only counted."""


class StallRows:
    """The waiting stalls, summed.

    Attributes:
        lost: How many stalls were not kept.
    """

    __slots__ = ("_sums", "lost")

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str, str], tuple[float, float]] = {}
        self.lost = 0

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self._sums)

    def add(
        self, account: str, at: str, culprit: str, seconds: float, ended: float, reason: str
    ) -> None:
        """Add a stall."""
        key = account, at, culprit, reason
        before = self._sums.get(key)
        if before is not None:
            seconds += before[0]
            ended = max(ended, before[1])
        elif len(self._sums) >= MAX_KEYS:
            self.lost += 1
            return
        self._sums[key] = seconds, ended

    def take(self, most: int) -> list[tuple[Any, ...]]:
        """Take up to `most` rows: (began, ended, account, at, culprit, reason)."""
        keys = list(self._sums)[:most]
        rows: list[tuple[Any, ...]] = []
        for key in keys:
            seconds, ended = self._sums.pop(key)
            rows.append((ended - seconds, ended, *key))
        # In the order of time, so that the rows of one hour are together.
        rows.sort(key=lambda row: row[1])
        return rows
