"""Latencies as HDR histograms, in microseconds, that processes can hand to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final

import attrs

from ._errors import PerfError

HIGHEST: Final = 3_600_000_000
"""Microseconds; a longer time counts as an hour."""

DIGITS: Final = 3
"""Significant digits: no value is off by more than one in a thousand."""

PERCENTILES: Final = (50.0, 75.0, 95.0, 99.0, 99.9)


def check_histogram() -> None:
    """Check that the library is installed.

    Raises:
        PerfError: It is not.
    """
    try:
        import_module("hdrh.histogram")
    except ImportError as error:
        msg = "clearfunds perf needs hdrhistogram: pip install 'clearfunds[perf]'"
        raise PerfError(msg) from error


class Latencies:
    """The latencies of messages."""

    def __init__(self, encoded: str | None = None, microseconds: int | None = None) -> None:
        """Begin empty, or with the latencies that another process has encoded.

        Args:
            encoded: Those.
            microseconds: Their sum, if known; the mean is exact then.
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
        """Make latencies from the result of `tell`."""
        return cls(*told)

    def tell(self) -> tuple[str, int | None]:
        """Return everything that another process needs, for `told`."""
        return self.encode(), self._sum

    def __len__(self) -> int:
        """Return their number."""
        count: int = self._histogram.get_total_count()
        return count

    def add(self, microseconds: Iterable[int]) -> None:
        """Add latencies, in microseconds."""
        record = self._histogram.record_value
        values = [1 if value < 1 else min(value, HIGHEST) for value in microseconds]
        for value in values:
            record(value)
        if self._sum is not None:
            self._sum += sum(values)

    def merge(self, other: Latencies) -> None:
        """Add all latencies of another."""
        self._histogram.add(other._histogram)
        self._sum = None if self._sum is None or other._sum is None else self._sum + other._sum

    def encode(self) -> str:
        """Return them in HdrHistogram's own format, compressed, as text."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode("ascii")

    def clear(self) -> None:
        """Remove all."""
        self._histogram.reset()
        self._sum = 0

    def percentile(self, percent: float) -> float | None:
        """Return a percentile in seconds; None if there are none."""
        if not len(self):
            return None
        return float(self._histogram.get_value_at_percentile(percent)) / 1e6

    def mean(self) -> float | None:
        """Return their mean in seconds; None if there are none.

        Without their sum it is the histogram's mean, which takes a tenth of a second.
        """
        count = len(self)
        if not count:
            return None
        if self._sum is None:
            return float(self._histogram.get_mean_value()) / 1e6
        return self._sum / count / 1e6

    def least(self) -> float | None:
        """Return the minimum in seconds; None if there are none."""
        return float(self._histogram.get_min_value()) / 1e6 if len(self) else None

    def most(self) -> float | None:
        """Return the maximum in seconds; None if there are none."""
        return float(self._histogram.get_max_value()) / 1e6 if len(self) else None

    def marks(self) -> dict[str, float | None]:
        """Return minimum, percentiles and maximum, in seconds. Takes about a millisecond."""
        found = {"min": self.least()}
        found.update({f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES})
        found["max"] = self.most()
        return found

    def summary(self) -> dict[str, float | int | None]:
        """Return the figures for a file, in seconds."""
        return {"count": len(self), **self.marks(), "mean": self.mean()}


@attrs.frozen
class Marks:
    """The percentiles of latencies, without these: a run keeps one for each second, for hours."""

    count: int
    values: Mapping[str, float | None]
    """As returned by `Latencies.marks`."""

    @classmethod
    def of(cls, latencies: Latencies) -> Marks:
        """Return the percentiles of some latencies."""
        return cls(len(latencies), latencies.marks())

    def __len__(self) -> int:
        """Return the number of latencies."""
        return self.count

    def percentile(self, percent: float) -> float | None:
        """Return a percentile in seconds; None if there are none.

        Args:
            percent: One of `PERCENTILES`.
        """
        return self.values[f"p{percent:g}"]

    def most(self) -> float | None:
        """Return the maximum in seconds; None if there are none."""
        return self.values["max"]
