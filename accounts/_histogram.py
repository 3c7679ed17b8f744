"""Histograms of durations and sizes, in a fixed number of plain integers.

Buckets never change and counts never fall, whatever becomes of the accounts that they came from:
Prometheus takes a falling count for a restart.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

AGE_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0,
)  # fmt: skip
"""Seconds. prometheus_client's default buckets, from a millisecond on; then the default patience
of holders, after which one is given up, and a minute for those with longer patience."""

COUNT_BUCKETS: Final = (
    0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000,
)  # fmt: skip
"""Events or copies: three to a decade, like coins and the scales of oscilloscopes. The default
limit of an account and its lower mark are among them."""

BYTE_BUCKETS: Final = (
    100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000,
)  # fmt: skip
"""Bytes. The same as in RabbitMQ's histogram of message sizes."""


_FEW: Final = tuple(bisect_left(COUNT_BUCKETS, n) for n in range(101))


class Histogram:
    """Counts of observations, by the first of `bounds` that is not below them.

    Attributes:
        bounds: The upper bounds of all buckets but the last, which has none; each is in its bucket.
        counts: Observations by bucket, one more than there are bounds.
        total: The sum of all observations.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def __repr__(self) -> str:
        return f"<Histogram of {self.count} observations, {self.total} in all>"

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def add(self, value: float, n: int = 1) -> None:
        """Count `n` observations of `value`; a negative `n` takes back what was just counted."""
        self.counts[bisect_left(self.bounds, value)] += n
        self.total += value * n

    def add_copies(self, copies: int, n: int) -> None:
        """Same as `add`, for the copies of every message, with `COUNT_BUCKETS` for bounds."""
        self.counts[_FEW[copies] if copies <= 100 else bisect_left(COUNT_BUCKETS, copies)] += n
        self.total += copies * n

    def cumulative(self) -> list[tuple[str, int]]:
        """Return (upper bound, observations up to it), as in Prometheus: the last is `+Inf`."""
        seen = 0
        rows: list[tuple[str, int]] = []
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            seen += count
            rows.append(("+Inf" if bound is None else repr(float(bound)), seen))
        return rows
