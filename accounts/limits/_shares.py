"""Weighted fair shares: which accounts wait first when siblings together owe too much.

A shared account above its limit does not stop everybody below it. Its limit is divided among its
children. A child above its part waits for its own debt to fall, while children below theirs go on.
This is weighted max-min fairness (Bertsekas and Gallager, section 6.5.2; Linux's `tc-htb` and
cgroup `cpu.weight` share by such weights, too): no child gets less than its weight's part of the
limit, and children that want more get what others leave over.

Theory of operation. Debt is counted as the fraction of the limit that it takes, in items or bytes,
whichever fraction is larger (the dominant share of Ghodsi et al., 2011). The *need* of a child is
that fraction for each unit of its weight. The *level* is the need that each may have:

    level = max(1 / W,  (1 - u) / w)

where `W` is the weight of all children that owe, `w` the weight of those that *want* more than
their part, and `u` the debt of all others. So children that want more share what the others leave,
and have at least their weight's part of everything, whatever others owe: a sibling stuck above its
part takes nothing away from the others. A child goes on while its need is at or below the level.
Above it, it wants more and is *squeezed*: it waits until it is a sixteenth below the level, and
lower by as much as it was above, up to another sixteenth. It still wants more then, until it is at
half of the level: between the two it is about to fill its part again, and that must not look like
something left over.

Rules of this file:
1. No state is kept until the account is *tight*: throttled, or itself wanting more than its part of
   the limit of a shared account above it. Then its children are scanned once. From then on each
   check and each repayment costs as much with ten thousand siblings as with ten, but for the
   logarithm of the number of squeezed ones.
2. The children that owe are known from that scan, from their readers' checks, and from repayments,
   all of which come by here while the account is tight. A child that has just begun to owe and has
   not been checked yet is missing in `W` until then; its debt is in `u`.
3. Of the squeezed, the child with the least need goes on first, and so the one furthest over its
   share last. Children that one repayment lets go on do so together; each checks again.
4. A squeezed child that is shared stops nobody: its own children share its part, by the same rules.
   They learn of a larger part when some of their debt is repaid, or when it is an eighth larger.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._account import Account

RELEASE: Final = 15 / 16
"""The fraction of the level at which a squeezed child goes on. It is below 1, so that the child is
not woken for each single repayment. It is not lower for two reasons. The debt has to stay above the
lower mark while several want more, since shares apply only until that is reached. And children that
come back first stand first at a consumer that they share: with an eighth that was up to 7 %."""

HARD: Final = 2
"""How many times its limit a shared account may owe before it stops everybody below it."""

HARD_INSIDE: Final = 3 / 2
"""The same for an account below a shared one. Less, or a child whose own children get stuck one
after the other would bring its parent to the hard bound, and stop its unaffected siblings."""

HARD_STEP: Final = 1 / 8
"""So far below the hard bound, in limits, everybody below goes on again."""

OVER: Final = 1 / 16
"""A child's excess over the level, up to this fraction of the level, lowers the point at which it
goes on. As in deficit round robin, the excess of a child with large packets is taken off what it
gets next."""

WANTS: Final = 1 / 2
"""The fraction of the level below which a child does not want more."""

RISE: Final = 9 / 8
"""The level has to rise by this factor before children that share their part hear of it."""

_ROUNDING: Final = 1 + 1e-9
"""A child exactly at its share goes on: thirds of three are one, whatever floats say."""

_STALE: Final = 64

_Entry = tuple[float, int, "Account"]


@attrs.define(slots=True)
class _Want:
    """The last seen debt of a child that wants more than its part."""

    items: int = 0
    bytes: int = 0
    over: float = 0.0
    """The excess of its need over the level when it was squeezed."""
    entry: _Entry | None = None
    """Its entry in the heap while it is squeezed."""


class Shares:
    """The division of a shared account's limit among its children while it is throttled.

    Attributes:
        account: The shared account.
        tight: Whether the children have to keep to their shares: the account is throttled, or
            itself `wants_more`.
        full: Whether it is so far above its limit that everybody below it waits.
        active: The children that owe.
        weight: The sum of their weights.
        wanting: The children that want more than their part.
        squeezed: How many of them wait for it.
        parents: Those of them that share their part among children of their own.
        calm: Former `parents` that do not want more any longer; see `calmed`.
    """

    __slots__ = (
        "_bytes", "_heap", "_items", "_numbers", "_told", "_weight",
        "account", "active", "calm", "full", "parents", "squeezed", "tight", "wanting", "weight",
    )  # fmt: skip

    def __init__(self, account: Account) -> None:
        self.account = account
        self.tight = False
        self.full = False
        self.active: dict[Account, None] = {}
        self.weight = 0.0
        self.wanting: dict[Account, _Want] = {}
        self.squeezed = 0
        # The debt of all wanting children together, and their weight.
        self._items = 0
        self._bytes = 0
        self._weight = 0.0
        # The squeezed children, the least need first; and stale entries.
        self._heap: list[_Entry] = []
        self._numbers = count()
        self.parents: dict[Account, None] = {}
        self._told = 0.0
        self.calm: list[Account] = []

    @property
    def hard(self) -> float:
        """How many times the shared amount may be owed before everybody below waits."""
        parent = self.account.parent
        return HARD if parent is None or parent.shares is None else HARD_INSIDE

    def start(self) -> None:
        """Find the children that owe: the account is throttled from now on."""
        self.active = {a: None for a in self.account.below or () if a.debt_items or a.debt_bytes}
        self.weight = sum([account.weight for account in self.active], 0.0)

    def stop(self) -> list[Account]:
        """Forget everything; return those that were squeezed, the one with the least need first."""
        entries = [want.entry for want in self.wanting.values() if want.entry is not None]
        for child in self.wanting:
            if child.shares is not None:
                self.calm.append(child)
        self.active.clear()
        self.weight = 0.0
        self._forget_wants()
        return [child for _, _, child in sorted(entries)]

    def _forget_wants(self) -> None:
        self.wanting.clear()
        self.parents.clear()
        self._told = 0.0
        self._items = self._bytes = self.squeezed = 0
        self._weight = 0.0
        self._heap.clear()

    def marks(self) -> tuple[float, float]:
        """Return the (items, bytes) to share: the account's limit, or its own share of one."""
        account = self.account
        parent = account.parent
        if parent is None or parent.shares is None or account not in parent.shares.wanting:
            return account.mark_items, account.mark_bytes
        items, nbytes = parent.shares.share(account)
        return min(items, account.mark_items), min(nbytes, account.mark_bytes)

    def _divisors(self) -> tuple[float, float]:
        items, nbytes = self.marks()
        return items or 1, nbytes or 1

    # -- looking --------------------------------------------------------------------------------

    def share(self, child: Account) -> tuple[float, float]:
        """Return the (items, bytes) up to which a child goes on, in units that have a limit."""
        if child not in self.active and (child.debt_items or child.debt_bytes):
            self.active[child] = None
            self.weight += child.weight
        want = self.wanting.get(child)
        if want is not None:
            self._see(child, want)
        level = self._level(child) * child.weight * _ROUNDING
        mark_items, mark_bytes = self.marks()
        return mark_items * level, mark_bytes * level

    def lets(self, child: Account) -> bool:
        """Whether a child that is not squeezed is at its share or below."""
        items, nbytes = child.debt_items, child.debt_bytes
        if not items and not nbytes:
            return True
        share_items, share_bytes = self.share(child)
        return items <= share_items and nbytes <= share_bytes

    def goes_on_at(self, child: Account) -> tuple[int, int]:
        """Return the (items, bytes) at or below which a squeezed child goes on now."""
        level = (self._level(child) * RELEASE * _ROUNDING - self.over(child)) * child.weight
        level = max(0.0, level)
        mark_items, mark_bytes = self.marks()
        return int(mark_items * level), int(mark_bytes * level)

    def over(self, child: Account) -> float:
        """Return the excess of a squeezed child over the level, as far as it counts (`OVER`)."""
        want = self.wanting.get(child)
        return 0.0 if want is None else want.over

    def _level(self, child: Account | None = None) -> float:
        """Return the level; if `child` is given, as if it wanted more."""
        account = self.account
        mark_items, mark_bytes = self._divisors()
        items, nbytes, weight, all_weights = self._items, self._bytes, self._weight, self.weight
        if child is not None:
            if child not in self.wanting:
                items += child.debt_items
                nbytes += child.debt_bytes
                weight += child.weight
            if child not in self.active:
                all_weights += child.weight
        level = 1 / all_weights if all_weights > 0 else 1.0
        if weight > 0:
            used = max(
                (account.debt_items - items) / mark_items,
                (account.debt_bytes - nbytes) / mark_bytes,
            )
            level = max(level, (1 - used) / weight)
        return level

    # -- changes --------------------------------------------------------------------------------

    def _see(self, child: Account, want: _Want) -> None:
        self._items += child.debt_items - want.items
        self._bytes += child.debt_bytes - want.bytes
        want.items = child.debt_items
        want.bytes = child.debt_bytes

    def squeeze(self, child: Account) -> None:
        """Note that a child waits for its share."""
        want = self.wanting.get(child)
        if want is None:
            want = self.wanting[child] = _Want()
            self._weight += child.weight
            if child.shares is not None:
                self.parents[child] = None
        self.squeezed += 1
        self._see(child, want)
        level = self._level()
        want.over = min(OVER * level, max(0.0, self._need(child) - level))
        self._queue(child, want)

    def repaid(self, child: Account) -> None:
        """Note that a child owes less."""
        want = self.wanting.get(child)
        if want is not None:
            self._see(child, want)
            if want.entry is not None:
                self._queue(child, want)
            elif self._need(child) <= self._level() * WANTS:
                self._want_no_more(child, want)
        if not child.debt_items and not child.debt_bytes and child in self.active:
            self._owe_no_more(child)

    def _need(self, child: Account, over: float = 0.0) -> float:
        mark_items, mark_bytes = self._divisors()
        need = max(child.debt_items / mark_items, child.debt_bytes / mark_bytes) / child.weight
        # A child that owes nothing goes on, whatever its excess was.
        return need + over if need else 0.0

    def _queue(self, child: Account, want: _Want) -> None:
        entry = want.entry = self._need(child, want.over), next(self._numbers), child
        heap = self._heap
        if len(heap) > _STALE + 4 * self.squeezed:
            heap[:] = [each.entry for each in self.wanting.values() if each.entry is not None]
            heapify(heap)
        else:
            heappush(heap, entry)

    def due(self) -> Iterator[Account]:
        """Yield the squeezed children that go on now; they are no longer squeezed."""
        heap = self._heap
        while heap:
            child = heap[0][2]
            want = self.wanting.get(child)
            if want is None or want.entry is not heap[0]:
                heappop(heap)  # it has been repaid since, or has gone on
                continue
            need = self._need(child, want.over)
            if need > self._level() * RELEASE * _ROUNDING:
                return
            heappop(heap)
            want.entry = None
            self.squeezed -= 1
            if need <= self._level() * WANTS:
                self._want_no_more(child, want)
            yield child

    def calmed(self) -> list[Account]:
        """Return, once, children with children of their own that do not want more any longer."""
        calmed, self.calm = self.calm, []
        return calmed

    def told_of_more(self) -> list[Account]:
        """Return children with children of their own, if the level has risen enough (`RISE`).

        Repayments below such a child make it share anew anyway; this is for when only others repay.
        """
        level = self._level()
        if level <= self._told * RISE:
            self._told = min(level, self._told)
            return []
        self._told = level
        return list(self.parents)

    # Running sums of floats drift: the sum of none is set to 0.

    def _want_no_more(self, child: Account, want: _Want) -> None:
        del self.wanting[child]
        if child.shares is not None:
            self.calm.append(child)
        self.parents.pop(child, None)
        self._items -= want.items
        self._bytes -= want.bytes
        self._weight = self._weight - child.weight if self.wanting else 0.0

    def _owe_no_more(self, child: Account) -> None:
        del self.active[child]
        self.weight = self.weight - child.weight if self.active else 0.0

    def forget(self, child: Account) -> None:
        """Forget a child account that has been folded."""
        want = self.wanting.get(child)
        if want is not None:
            self.squeezed -= want.entry is not None
            self._want_no_more(child, want)
        if child in self.active:
            self._owe_no_more(child)

    def changed(self) -> None:
        """Count anew: a weight or the limit has changed."""
        self.weight = sum([account.weight for account in self.active], 0.0)
        wanting = self.wanting.copy()
        self._forget_wants()
        for child, want in wanting.items():
            if want.entry is not None:
                self.squeeze(child)
            elif child.shares is not None:
                self.calm.append(child)


def wants_more(account: Account) -> bool:
    """Whether `account` wants more than its share of its parent's limit.

    It does from when it is squeezed until it owes half as much.
    """
    parent = account.parent
    return parent is not None and parent.shares is not None and account in parent.shares.wanting
