"""Which slow consumer to handle first: the one that frees most waiting readers per item lost.

Several holders may block the same readers at once, and each that is given up, or relieved, loses
items. Cancel culprits and not victims, by what that frees: so does Atropos (SOSP 2025). Rules of
this file:

1. A holder *frees* the readers at a place (an account at which readers wait) if it holds all of the
   debt that has to be repaid there before they go on. The one that frees most readers per item lost
   goes first.
2. Where no holder frees anybody by itself, each counts for the part of that debt that it holds, as
   in the greedy algorithm for submodular cover (Wolsey, "An analysis of the greedy algorithm for
   the submodular set covering problem", 1982): of two that free ten readers together, for five.
3. Each choice takes into account who was handled before: what they held is repaid.

It is bounded: some `n log n` steps for all choices together, `n` being the number of shares. The
number of readers that a holder frees grows only when the debt left at one of its places falls below
its share; what it counts for in part never grows, and is computed anew only when it is first in
line (Minoux, "Accelerated greedy algorithms", 1978).
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

import attrs

from .._cooperative import STEP, run_to_end

PlaceT = TypeVar("PlaceT", bound=Hashable)
WhatT = TypeVar("WhatT")

Key = tuple[float, float, tuple[Any, ...], int]
"""Readers freed per item lost, the same of those freed in part, both negative; tie; number."""


@attrs.frozen(slots=True)
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


class _Place:
    """A place, the debt left there, and the holders that have some of it."""

    __slots__ = ("free", "holding", "left", "met", "passed", "readers", "whole")

    def __init__(self, blocked: Blocked) -> None:
        self.readers = blocked.readers
        self.left = [blocked.items, blocked.bytes]
        self.whole = max(0, blocked.items), max(0, blocked.bytes)
        # Holders as (share, number), the largest share first, in items and in bytes; how many of
        # them have a share that is enough; and how many times each one has: twice, it frees.
        self.holding: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []
        self.passed = [0, 0]
        self.met: dict[int, int] = {}
        self.free = False

    def freeing(self) -> Generator[int | None]:
        """Yield the numbers of holders that free the readers from now on; None: a pause."""
        self.free = max(self.left) <= 0
        for which, holding in enumerate(self.holding):
            passed = self.passed[which]
            while passed < len(holding) and holding[passed][0] >= self.left[which]:
                number = holding[passed][1]
                passed = self.passed[which] = passed + 1
                self.met[number] = self.met.get(number, 0) + 1
                yield number if self.met[number] == 2 and not self.free else None

    def part(self, items: int, nbytes: int) -> float:
        """Return how much of what had to be repaid a share would repay now, from 0 to 1."""
        parts = [
            max(0, min(share, left)) / whole
            for share, left, whole in zip((items, nbytes), self.left, self.whole, strict=True)
            if whole
        ]
        return sum(parts) / len(parts) if parts else 0.0


class ReliefOrder(Generic[PlaceT, WhatT]):
    """The candidates, the best first. Block all places, add all candidates, then take them out."""

    def __init__(self) -> None:
        self._places: dict[PlaceT, _Place] = {}
        self._candidates: dict[int, Candidate[PlaceT, WhatT]] = {}
        self._heap: list[Key] = []
        # The valid entry of each candidate in the heap; others are left over.
        self._queued: dict[int, Key] = {}
        self._ready = False

    def __contains__(self, at: PlaceT) -> bool:
        """Whether readers are known to wait at a place."""
        return at in self._places

    def block(self, at: PlaceT, blocked: Blocked) -> None:
        """Note that readers wait at a place."""
        self._places[at] = _Place(blocked)

    def add(self, candidate: Candidate[PlaceT, WhatT]) -> None:
        """Add a holder."""
        number = len(self._candidates)
        self._candidates[number] = candidate
        for at, share in candidate.shares.items():
            place = self._places.get(at)
            if place is not None:
                for holding, amount in zip(place.holding, share, strict=True):
                    holding.append((amount, number))

    def pop(self) -> Candidate[PlaceT, WhatT] | None:
        """Take out the best candidate; None: none is left. The last ones may free nobody."""
        return run_to_end(self.pop_in_steps())

    def pop_in_steps(self) -> Generator[None, None, Candidate[PlaceT, WhatT] | None]:
        """Do the same; other tasks may run in between, but may not call anything here."""
        if not self._ready:
            yield from self._begin()
        looked = 0
        while self._heap:
            before = heappop(self._heap)
            number = before[-1]
            if self._queued.get(number) != before:
                continue
            if self._queue(number) == before:
                heappop(self._heap)
                del self._queued[number]
                return self._candidates[number]
            looked += 1
            if not looked % STEP:
                yield
        return None

    def took(self, candidate: Candidate[PlaceT, WhatT]) -> None:
        """Note that a candidate was handled: the debt that it held is repaid."""
        run_to_end(self.took_in_steps(candidate))

    def took_in_steps(self, candidate: Candidate[PlaceT, WhatT]) -> Generator[None]:
        """Do the same; other tasks may run in between, but may not call anything here."""
        for at, share in candidate.shares.items():
            yield
            place = self._places.get(at)
            if place is not None:
                for which, amount in enumerate(share):
                    place.left[which] -= amount
                for number in place.freeing():
                    if number in self._queued:
                        self._queue(number)
                    yield

    def _begin(self) -> Generator[None]:
        self._ready = True
        for place in self._places.values():
            for holding in place.holding:
                yield
                holding.sort(key=lambda each: -each[0])
            for _ in place.freeing():
                yield
        for number in self._candidates:
            yield
            self._queue(number)

    def _queue(self, number: int) -> Key:
        """Put a candidate in line with its present key."""
        candidate = self._candidates[number]
        freed, part = 0, 0.0
        for at, share in candidate.shares.items():
            place = self._places.get(at)
            if place is not None and not place.free:
                freed += place.readers * (place.met.get(number) == 2)
                part += place.readers * place.part(*share)
        lost = candidate.lost
        key = -_per_item(freed, lost), -_per_item(part, lost), candidate.tie, number
        heappush(self._heap, key)
        self._queued[number] = key
        return key


def _per_item(readers: float, lost: int) -> float:
    if readers and not lost:
        return float("inf")
    # Equals must not differ by an error of rounding.
    return float(f"{readers / (lost or 1):.6g}")
