"""Which slow consumer to handle first: the one that frees most waiting readers per item lost.

Several holders may block the same readers at once. Each that is given up, or relieved, loses items;
so the search is for a cheap set of holders that lets all readers go on. A holder's *gain* is the
sum, over the accounts at which readers wait, of the number of these readers times the part of the
debt still to be repaid there that it holds. The gain of one that frees ten readers by itself is 10,
of one that frees them together with an equal 5. The holder with the highest gain per item lost goes
first; then the gains of the others are less, or nothing, and whoever blocks nobody any more is left
alone.

Source: the greedy algorithm for submodular cover (Wolsey, "An analysis of the greedy algorithm for
the submodular set covering problem", 1982), whose loss is within a logarithm of the least. Gains
never grow, so they are computed again only for the holder that is first in line (Minoux,
"Accelerated greedy algorithms", 1978). To cancel culprits and not victims, by what that frees, is
from Atropos (SOSP 2025).
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, Generic, TypeVar

import attrs

from .._cooperative import STEP, run_to_end

PlaceT = TypeVar("PlaceT", bound=Hashable)
WhatT = TypeVar("WhatT")


@attrs.define(slots=True)
class Blocked:
    """Readers that wait at one place, and the debt to be repaid before they go on."""

    readers: int
    """Their number."""
    items: int
    """Items to be repaid; 0 or less: enough are."""
    bytes: int
    """Bytes to be repaid, likewise."""


@attrs.frozen(slots=True, eq=False)
class Candidate(Generic[PlaceT, WhatT]):
    """A holder that blocks readers."""

    what: WhatT
    """The holder, or whatever stands for it."""
    shares: Mapping[PlaceT, tuple[int, int]]
    """The debt that it holds, as (items, bytes), of each place."""
    lost: int
    """Items lost if it is handled; 0: nothing is lost."""
    tie: tuple[Any, ...] = ()
    """Decides between equals; the lowest goes first."""


_Entry = tuple[float, float, tuple[Any, ...], int, Candidate[PlaceT, WhatT]]
"""The best comes first: its gain per item lost and its gain, both negative, and its tie."""


class ReliefOrder(Generic[PlaceT, WhatT]):
    """The candidates, the best first; each choice takes into account who was handled before.

    Block the places first, then add the candidates.
    """

    def __init__(self) -> None:
        self._blocked: dict[PlaceT, tuple[Blocked, int, int]] = {}
        self._heap: list[_Entry[PlaceT, WhatT]] = []
        self._numbers = count()

    def __contains__(self, at: PlaceT) -> bool:
        """Whether readers are known to wait at a place."""
        return at in self._blocked

    def block(self, at: PlaceT, blocked: Blocked) -> None:
        """Note that readers wait at a place. The object is changed here: do not share it."""
        # What has to be repaid at the beginning is the measure, so that gains never grow.
        self._blocked[at] = blocked, max(blocked.items, 0), max(blocked.bytes, 0)

    def add(self, candidate: Candidate[PlaceT, WhatT]) -> None:
        """Add a holder."""
        heappush(self._heap, (*self._key(candidate), next(self._numbers), candidate))

    def gain(self, candidate: Candidate[PlaceT, WhatT]) -> float:
        """Return the readers that a candidate frees, those freed in part counted in part."""
        gain = 0.0
        for at, (items, nbytes) in candidate.shares.items():
            here = self._blocked.get(at)
            if here is None:
                continue
            left, all_items, all_bytes = here
            freed = 0.0
            if left.items > 0:
                freed += min(items, left.items) / all_items
            if left.bytes > 0:
                freed += min(nbytes, left.bytes) / all_bytes
            gain += left.readers * freed / ((all_items > 0) + (all_bytes > 0) or 1)
        return gain

    def _key(self, candidate: Candidate[PlaceT, WhatT]) -> tuple[float, float, tuple[Any, ...]]:
        gain = self.gain(candidate)
        per_item = gain
        if gain > 0:
            per_item = gain / candidate.lost if candidate.lost > 0 else float("inf")
        # Equals must not differ by an error of rounding.
        return -float(f"{per_item:.6g}"), -float(f"{gain:.6g}"), candidate.tie

    def pop(self) -> Candidate[PlaceT, WhatT] | None:
        """Take out the best candidate; None: none is left. One with a gain of 0 may still come."""
        return run_to_end(self.pop_in_steps())

    def pop_in_steps(self) -> Generator[None, None, Candidate[PlaceT, WhatT] | None]:
        """Do the same; other tasks may run in between, but may not call anything here."""
        heap, looked = self._heap, 0
        while heap:
            per_item, gain, tie, number, best = heap[0]
            key = self._key(best)
            if (per_item, gain, tie) == key:
                heappop(heap)
                return best
            heapreplace(heap, (*key, number, best))
            looked += 1
            if not looked % STEP:
                yield
        return None

    def took(self, candidate: Candidate[PlaceT, WhatT]) -> None:
        """Note that a candidate was handled: the debt that it held is repaid."""
        for at, (items, nbytes) in candidate.shares.items():
            if at in self._blocked:
                left = self._blocked[at][0]
                left.items -= items
                left.bytes -= nbytes
