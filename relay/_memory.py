"""Memory use of this process, and returning freed memory.

The alarm is about resident memory, because the machine has too little of that. But glibc keeps much
of freed memory, 40 to 60 % of a peak, and an alarm that measured just that would last until a
restart. So before an alarm goes up, and while it is up, free memory is given back (`malloc_trim`):
memory that is resident after that is in use. Where there is no `malloc_trim` (musl), its allocator
gives memory back by itself.

Source: glibc, malloc_trim(3) and mallopt(3). Redis (`MEMORY PURGE`) and MariaDB do the same.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

TRIM_SECONDS: Final = 5.0
"""The least interval between trims: a GB of free memory takes some 50 ms of a core, in a thread
beside the loop."""

TRIM_OFTEN_SECONDS: Final = 30.0
TRIM_BYTES: Final = 32 << 20
"""Also far from an alarm, twice a minute, memory is given back if so much more is resident than at
the start: what a burst took need not stay for ever."""

MMAP_THRESHOLD: Final = 128 << 10
"""Bytes from which on each object has pages of its own, which go back when it does. It is glibc's
own initial value; but glibc raises it to 32 MiB as larger objects are freed, unless it is set."""

CLUSTER_MMAP_THRESHOLD: Final = 4 << 20
"""The same for a relay of a cluster. Its messages to others are about as large as the usual
threshold; with pages of their own, those cost a third of its CPU (measured, pipelined)."""

_M_MMAP_THRESHOLD: Final = -3
_M_TRIM_THRESHOLD: Final = -1

_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")


def memory_used(proc: Path = Path("/proc")) -> int:
    """Return the bytes that this process has in RAM (RSS)."""
    with open(f"{proc}/self/statm", "rb", buffering=0) as file:  # a third of the time of text
        return int(file.read().split()[1]) * _PAGE_SIZE


def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:
        return None


def give_back() -> None:
    """Give free memory back to the system, where the allocator does not by itself. May take long.

    It holds no lock of Python's; another thread that allocates a large object may wait for it.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def let_go_of_large(threshold: int = MMAP_THRESHOLD) -> None:
    """Let the pages of objects of so many bytes go back as soon as these are freed.

    For the whole process.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, threshold)
        mallopt(_M_TRIM_THRESHOLD, threshold)


class MemoryInUse:
    """Measures resident memory; gives free memory back where that decides about an alarm.

    Args:
        enough: At so many bytes, or below, nothing needs to be given back.
        used: Measures resident memory.
        trim: Gives free memory back; called in a thread. None: nothing does.
        clock: Seconds.
    """

    def __init__(
        self,
        enough: int,
        *,
        used: Callable[[], int] = memory_used,
        trim: Callable[[], object] | None = give_back,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.enough = enough
        self._used = used
        self._trim = trim
        self._clock = clock
        self._trimmed_at = -TRIM_SECONDS
        self._at_start = math.inf

    async def measure(self) -> int:
        """Return the bytes in use.

        Cancellation: the thread ends on its own.

        Raises:
            OSError: If that cannot be found out.
        """
        found = self._used()
        trim = self._trim
        if trim is None:
            return found
        self._at_start = min(self._at_start, found)
        idle = self._clock() - self._trimmed_at
        if (found > self.enough and idle >= TRIM_SECONDS) or (
            found > self._at_start + TRIM_BYTES and idle >= TRIM_OFTEN_SECONDS
        ):
            await trio.to_thread.run_sync(trim, abandon_on_cancel=True)
            self._trimmed_at = self._clock()
            found = self._used()
        return found
