"""Weighted shares: who waits first when an account and its siblings owe too much together.

A shared account above its limit does not stop everybody below it. What it may owe is parted among
its children, and each of them that is above its part waits for its own debt to fall, while those
that are below theirs go on. It is max-min fairness by weights (Bertsekas and Gallager, section
6.5.2; Linux's `tc-htb` and cgroup `cpu.weight` share by such weights, too): nobody gets less than
its weight's part of the limit, and what some leave over is for those who want more.

Theory of operation. Everything is counted in the part of the limit that it takes, of that unit of
which it takes more (the dominant share of Ghodsi et al., 2011). A child *needs* so much for each
unit of its weight. The *level* is how much each may have:

    level = max(1 / W,  (1 - u) / w)

where `W` is the weight of all children that owe, `w` that of those which are squeezed, that is,
wait for their part, and `u` what all others owe. So the squeezed ones share what the others leave,
and have at least their weight's part of everything, whatever others owe: a sibling that is stuck
above its part takes nothing away from anybody else's. A child goes on while its need is at or below
the level; once squeezed, when it is an eighth below it.

Rules of this file:
1. Nothing is kept while the account is not throttled. Then its children are looked through once;
   from then on each look and each repayment costs as much with ten thousand siblings as with ten,
   but for the logarithm of how many are squeezed.
2. Who owes is known from that look, from looks of their readers, and from repayments, all of which
   come by here while the account is throttled. Who has just begun to owe and has not looked yet is
   missing in `W` until then; what it owes is in `u`.
3. Of the squeezed, the one that needs least goes on first, and so the one furthest over its share
   last. Those that one repayment lets go on do so together; each looks again.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._account import Account

RELEASE: Final = 7 / 8
"""The part of the level at which a squeezed child goes on. An eighth below it, so that it is not
woken for each single repayment, and no more, so that what is owed stays above the lower mark while
several want more: shares rule only until that is reached."""

HARD: Final = 2
"""How many times its limit a shared account may owe before it stops everybody below it."""

HARD_RELEASE: Final = HARD - (1 - RELEASE)
"""At how many times it lets them go on."""

_ROUNDING: Final = 1 + 1e-9
"""Who is at its share goes on: thirds of three are one, whatever floats say."""

_STALE: Final = 64

_Entry = tuple[float, int, "Account"]


def needs(account: Account, mark_items: int, mark_bytes: int) -> float:
    """Return how much of such a limit an account takes, for each unit of its weight."""
    return (
        max(account.debt_items / (mark_items or 1), account.debt_bytes / (mark_bytes or 1))
        / account.weight
    )


class Shares:
    """How a shared account's limit is parted among its children while it is throttled.

    Attributes:
        account: Whose limit it is.
        active: Those that owe.
        weight: The sum of their weights.
        squeezed: Those that wait for their share, with what they owe of it.
    """

    __slots__ = (
        "_heap", "_numbers", "_squeezed_bytes", "_squeezed_items", "_squeezed_weight",
        "account", "active", "squeezed", "weight",
    )  # fmt: skip

    def __init__(self, account: Account) -> None:
        self.account = account
        self.active: dict[Account, None] = {}
        self.weight = 0.0
        self.squeezed: dict[Account, tuple[int, int, _Entry]] = {}
        self._squeezed_items = 0
        self._squeezed_bytes = 0
        self._squeezed_weight = 0.0
        # Those squeezed by what they need, the least first; and what is not true any more.
        self._heap: list[_Entry] = []
        self._numbers = count()

    def start(self) -> None:
        """Find out who owes: the account is throttled from now on."""
        self.active = {a: None for a in self.account.below or () if a.debt_items or a.debt_bytes}
        self.weight = sum([account.weight for account in self.active], 0.0)

    def stop(self) -> list[Account]:
        """Forget everything; return those that were squeezed, the one with the least need first."""
        released = sorted(self.squeezed, key=lambda account: self.squeezed[account][2])
        self.active.clear()
        self.weight = 0.0
        self.squeezed.clear()
        self._squeezed_items = self._squeezed_bytes = 0
        self._squeezed_weight = 0.0
        self._heap.clear()
        return released

    # -- looking --------------------------------------------------------------------------------

    def share(self, child: Account) -> tuple[float, float]:
        """Return (items, bytes) that a child may owe and go on, in units that have a limit."""
        self._note(child)
        level = self._level(child) * child.weight * _ROUNDING
        return self.account.mark_items * level, self.account.mark_bytes * level

    def lets(self, child: Account) -> bool:
        """Whether a child is at its share or below; a squeezed one has to be further below."""
        if child in self.squeezed:
            return False
        items, nbytes = child.debt_items, child.debt_bytes
        if not items and not nbytes:
            return True
        share_items, share_bytes = self.share(child)
        return items <= share_items and nbytes <= share_bytes

    def goes_on_at(self, child: Account) -> tuple[int, int]:
        """Return the (items, bytes) at or below which a squeezed child goes on, as it stands."""
        level = self._level(child) * child.weight * RELEASE * _ROUNDING
        return int(self.account.mark_items * level), int(self.account.mark_bytes * level)

    def _level(self, child: Account | None = None) -> float:
        """Return what each may need; as if `child` were among the squeezed, if one is given."""
        account = self.account
        items, nbytes, weight = self._squeezed_items, self._squeezed_bytes, self._squeezed_weight
        if child is not None and child not in self.squeezed:
            items += child.debt_items
            nbytes += child.debt_bytes
            weight += child.weight
        all_weights = self.weight
        if child is not None and child not in self.active:
            all_weights += child.weight
        level = 1 / all_weights if all_weights > 0 else 1.0
        if weight > 0:
            free = 1 - max(
                (account.debt_items - items) / (account.mark_items or 1),
                (account.debt_bytes - nbytes) / (account.mark_bytes or 1),
            )
            level = max(level, free / weight)
        return level

    # -- changes --------------------------------------------------------------------------------

    def _note(self, child: Account) -> None:
        if child not in self.active and (child.debt_items or child.debt_bytes):
            self.active[child] = None
            self.weight += child.weight

    def squeeze(self, child: Account) -> None:
        """Note that a child waits for its share."""
        self._note(child)
        self._squeezed_weight += child.weight
        self._set(child, 0, 0)

    def repaid(self, child: Account) -> None:
        """Note that a child owes less."""
        before = self.squeezed.get(child)
        if before is not None:
            self._set(child, before[0], before[1])
        if not child.debt_items and not child.debt_bytes and child in self.active:
            self._leave(child)

    def _leave(self, child: Account) -> None:
        del self.active[child]
        # Sums of floats that come and go drift; an empty one is known.
        self.weight = self.weight - child.weight if self.active else 0.0

    def _set(self, child: Account, items_before: int, bytes_before: int) -> None:
        account = self.account
        items, nbytes = child.debt_items, child.debt_bytes
        self._squeezed_items += items - items_before
        self._squeezed_bytes += nbytes - bytes_before
        need = needs(child, account.mark_items, account.mark_bytes)
        entry = need, next(self._numbers), child
        self.squeezed[child] = items, nbytes, entry
        heap = self._heap
        if len(heap) > _STALE + 4 * len(self.squeezed):
            heap[:] = [each for _, _, each in self.squeezed.values()]
            heapify(heap)
        else:
            heappush(heap, entry)

    def due(self) -> Iterator[Account]:
        """Yield the squeezed children that go on now, which are squeezed no more."""
        heap = self._heap
        while heap:
            need, _, child = heap[0]
            squeezed = self.squeezed.get(child)
            if squeezed is None or squeezed[2] is not heap[0]:
                heappop(heap)  # it has been repaid since, or has gone on
            elif need <= self._level() * RELEASE * _ROUNDING:
                heappop(heap)
                self._forget_squeezed(child)
                yield child
            else:
                return

    def _forget_squeezed(self, child: Account) -> None:
        items, nbytes, _ = self.squeezed.pop(child)
        self._squeezed_items -= items
        self._squeezed_bytes -= nbytes
        weight = self._squeezed_weight - child.weight
        self._squeezed_weight = weight if self.squeezed else 0.0

    def forget(self, child: Account) -> None:
        """Forget a child that is no more."""
        if child in self.squeezed:
            self._forget_squeezed(child)
        if child in self.active:
            self._leave(child)

    def changed(self) -> None:
        """Count anew: a weight or the limit has changed."""
        self.weight = sum([account.weight for account in self.active], 0.0)
        squeezed = list(self.squeezed)
        self.squeezed.clear()
        self._heap.clear()
        self._squeezed_items = self._squeezed_bytes = 0
        self._squeezed_weight = 0.0
        for child in squeezed:
            self.squeeze(child)
