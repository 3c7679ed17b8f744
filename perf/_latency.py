"""Latencies as HDR histograms, in microseconds, that processes can hand to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final

import attrs

from ._errors import PerfError

HIGHEST: Final = 3_600_000_000
"""Microseconds; what takes longer than an hour counts as an hour."""

DIGITS: Final = 3
"""Significant ones: no value is off by more than one in a thousand."""

PERCENTILES: Final = (50.0, 75.0, 95.0, 99.0, 99.9)


def check_histogram() -> None:
    """See that the library is there.

    Raises:
        PerfError: It is not.
    """
    try:
        import_module("hdrh.histogram")
    except ImportError as error:
        msg = "clearfunds perf needs hdrhistogram: pip install 'clearfunds[perf]'"
        raise PerfError(msg) from error


class Latencies:
    """Latencies of some messages."""

    def __init__(self, encoded: str | None = None, microseconds: int | None = None) -> None:
        """Begin with none, or with what another process has encoded.

        Args:
            encoded: That.
            microseconds: What all of them are together, if that is known; the mean is exact then.
        """
        made: Any = import_module("hdrh.histogram").HdrHistogram
        if encoded is None:
            self._histogram: Any = made(1, HIGHEST, DIGITS)
            self._sum: int | None = 0
        else:
            self._histogram = made.decode(encoded)
            self._sum = microseconds

    @classmethod
    def told(cls, told: tuple[str, int | None]) -> Latencies:
        """Return what `tell` has been told of."""
        return cls(*told)

    def tell(self) -> tuple[str, int | None]:
        """Return all there is to say to another process."""
        return self.encode(), self._sum

    def __len__(self) -> int:
        """Return how many there are."""
        count: int = self._histogram.get_total_count()
        return count

    def add(self, microseconds: Iterable[int]) -> None:
        """Add some, in microseconds."""
        record = self._histogram.record_value
        values = [1 if value < 1 else min(value, HIGHEST) for value in microseconds]
        for value in values:
            record(value)
        if self._sum is not None:
            self._sum += sum(values)

    def merge(self, other: Latencies) -> None:
        """Add all that another has."""
        self._histogram.add(other._histogram)
        self._sum = None if self._sum is None or other._sum is None else self._sum + other._sum

    def encode(self) -> str:
        """Return them in HdrHistogram's own form, compressed, as text."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode("ascii")

    def clear(self) -> None:
        """Begin anew."""
        self._histogram.reset()
        self._sum = 0

    def percentile(self, percent: float) -> float | None:
        """Return in seconds what so many percent are at or below; None if there are none."""
        if not len(self):
            return None
        return float(self._histogram.get_value_at_percentile(percent)) / 1e6

    def mean(self) -> float | None:
        """Return their mean in seconds; None if there are none.

        Of some that were only encoded it is the histogram's, which takes a tenth of a second.
        """
        count = len(self)
        if not count:
            return None
        if self._sum is None:
            return float(self._histogram.get_mean_value()) / 1e6
        return self._sum / count / 1e6

    def least(self) -> float | None:
        """Return the least in seconds; None if there are none."""
        return float(self._histogram.get_min_value()) / 1e6 if len(self) else None

    def most(self) -> float | None:
        """Return the most in seconds; None if there are none."""
        return float(self._histogram.get_max_value()) / 1e6 if len(self) else None

    def marks(self) -> dict[str, float | None]:
        """Return the least, the percentiles and the most, in seconds. Costs about a millisecond."""
        found = {"min": self.least()}
        found.update({f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES})
        found["max"] = self.most()
        return found

    def summary(self) -> dict[str, float | int | None]:
        """Return what a file says of them, in seconds."""
        return {"count": len(self), **self.marks(), "mean": self.mean()}


@attrs.frozen
class Marks:
    """What latencies come to, without them: a run has one for each of its seconds, for hours."""

    count: int
    values: Mapping[str, float | None]
    """As `Latencies.marks` has them."""

    @classmethod
    def of(cls, latencies: Latencies) -> Marks:
        """Return those of some latencies."""
        return cls(len(latencies), latencies.marks())

    def __len__(self) -> int:
        """Return how many latencies there are."""
        return self.count

    def percentile(self, percent: float) -> float | None:
        """Return in seconds what so many percent are at or below; None if there are none.

        Args:
            percent: One of `PERCENTILES`.
        """
        return self.values[f"p{percent:g}"]

    def most(self) -> float | None:
        """Return the most in seconds; None if there are none."""
        return self.values["max"]
