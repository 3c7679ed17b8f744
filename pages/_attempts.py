"""A limit on wrong tokens and passwords from one address."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import trio

from ..access._addresses import network

BURST: Final = 10
"""Attempts at once: a browser's tabs, or a person who tries all their passwords."""

PER_SECOND: Final = 0.5
"""Attempts a second after that: eight random letters would take some thousand years."""

ADDRESSES_MAX: Final = 1024
"""Addresses remembered; the ones whose last error is the longest ago are forgotten."""


class Attempts:
    """Counts by address; of IPv6 by /64, the share of one subscriber."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of addresses remembered."""
        return len(self._left)

    def seconds_to_wait(self, address: str) -> int:
        """Return how long an address has to wait, in whole seconds; 0 if it may try now.

        No checkpoint is executed.
        """
        left = self._now(network(address))
        return 0 if left >= 1 else math.ceil((1 - left) / PER_SECOND)

    def failed(self, address: str) -> None:
        """Note a wrong attempt."""
        where = network(address)
        self._left[where] = self._now(where) - 1, trio.current_time()
        self._left.move_to_end(where)
        if len(self._left) > ADDRESSES_MAX:
            self._left.popitem(last=False)

    def _now(self, where: str) -> float:
        left, at = self._left.get(where, (float(BURST), 0.0))
        return min(BURST, left + (trio.current_time() - at) * PER_SECOND)
