"""How often one address may be wrong about a token or a password."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import trio

from .._addresses import network

BURST: Final = 10
"""So many times at once: a browser's tabs, or a person who tries all passwords that he has."""

PER_SECOND: Final = 0.5
"""Afterwards so often. With a password of eight random letters that takes some thousand years."""

ADDRESSES_MAX: Final = 1024
"""Of the addresses that were wrong lately; those that have not been for longest are forgotten."""


class Attempts:
    """Counts by address; of IPv6 by /64, which is what one subscriber has."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return of how many addresses something is known."""
        return len(self._left)

    def seconds_to_wait(self, address: str) -> int:
        """Return for how long an address has had its attempts, in whole seconds; 0 if it has not.

        A checkpoint is not executed.
        """
        left = self._now(network(address))
        return 0 if left >= 1 else math.ceil((1 - left) / PER_SECOND)

    def failed(self, address: str) -> None:
        """Note that it was wrong once more."""
        where = network(address)
        self._left[where] = self._now(where) - 1, trio.current_time()
        self._left.move_to_end(where)
        if len(self._left) > ADDRESSES_MAX:
            self._left.popitem(last=False)

    def _now(self, where: str) -> float:
        left, at = self._left.get(where, (float(BURST), 0.0))
        return min(BURST, left + (trio.current_time() - at) * PER_SECOND)
