"""How much memory the package holds of what it allocated."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager

import clearfunds


@contextmanager
def tracing() -> Generator[None]:
    """Have it noted who allocates what."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def held(*more: str) -> list[int]:
    """Return the sizes, in bytes, of what the package holds of what it allocated.

    Other threads, of the test runner or of a JVM's gateway, may allocate at the same time.

    Args:
        more: Patterns of further files whose allocations count.
    """
    gc.collect()
    (package,) = clearfunds.__path__
    filters = [tracemalloc.Filter(True, pattern) for pattern in (f"{package}/*", *more)]
    return [trace.size for trace in tracemalloc.take_snapshot().filter_traces(filters).traces]
