"""The process's use of the machine, under the names of Prometheus's client libraries.

As in `prometheus_client.ProcessCollector`, except for counting open descriptors: that class lists
them, which holds up the loop for 10 ms with 10,000 connections.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ._cooperative import Pace
from ._holdings import BREATH_EVERY
from ._walked import WalkedCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

_SELF: Final = Path("/proc/self")
# Places in /proc/self/stat after the name of the program; proc(5) numbers them from 3 on.
_UTIME, _STIME, _STARTTIME, _VSIZE, _RSS = (number - 3 for number in (14, 15, 22, 23, 24))


class ProcessFigures(WalkedCollector):
    """Serves CPU time, memory and descriptors of this process; nothing where there is no `/proc`.

    The number of open descriptors is from the last `look`.
    """

    def __init__(self) -> None:
        self._booted = _boot_time()
        self._open_fds: int | None = None

    async def look(self) -> None:
        """Count the open descriptors, in steps if the kernel does not know their number.

        On cancellation, the earlier count stays.
        """
        folder = _SELF / "fd"
        try:
            # Linux tells since 6.2, and 0 before; listing them opens a descriptor itself.
            count = folder.stat().st_size or await _count(folder, Pace()) - 1
        except OSError:
            return
        self._open_fds = count

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the kernel's figures and yield them."""
        try:
            text = (_SELF / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        said = text.rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        yield GaugeMetricFamily(
            "process_virtual_memory_bytes", "Virtual memory size in bytes.", int(said[_VSIZE])
        )
        yield GaugeMetricFamily(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            int(said[_RSS]) * os.sysconf("SC_PAGE_SIZE"),
        )
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            self._booted + int(said[_STARTTIME]) / ticks,
        )
        yield CounterMetricFamily(
            "process_cpu_seconds",
            "Total user and system CPU time spent in seconds.",
            (int(said[_UTIME]) + int(said[_STIME])) / ticks,
        )
        yield GaugeMetricFamily(
            "process_open_fds", "Number of open file descriptors.", self._open_fds
        )
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield GaugeMetricFamily(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            float("inf") if limit == resource.RLIM_INFINITY else limit,
        )


async def _count(folder: Path, pace: Pace) -> int:
    count = 0
    with os.scandir(folder) as listed:
        for count, _ in enumerate(listed, 1):
            if not count % BREATH_EVERY:
                await pace.breathe()
    return count


def _boot_time() -> float:
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
