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

where `W` is the weight of all children that owe, `w` that of those which *want* more than their
part, and `u` what all others owe. So those who want more share what the others leave, and have at
least their weight's part of everything, whatever others owe: a sibling that is stuck above its part
takes nothing away from anybody else's. A child goes on while its need is at or below the level;
above it, it wants more and is *squeezed*: it waits, until it is a sixteenth below, and as
much besides as it was above, up to another one. It still wants more then, until it is at half of
the level: between the two it is about to fill up its part again, and that must not look like
something left over.

Rules of this file:
1. Nothing is kept until the account is *tight*: throttled, or itself wanting more than its part of
   what a shared account above it may owe. Then its children are looked through once; from then on
   each look and each repayment costs as much with ten thousand siblings as with ten,
   but for the logarithm of how many are squeezed.
2. Who owes is known from that look, from looks of their readers, and from repayments, all of which
   come by here while the account is tight. Who has just begun to owe and has not looked yet is
   missing in `W` until then; what it owes is in `u`.
3. Of the squeezed, the one that needs least goes on first, and so the one furthest over its share
   last. Those that one repayment lets go on do so together; each looks again.
4. A child that is shared and squeezed stops nobody: its own children share its part, by the same
   rules. They hear of a larger part when something of theirs is repaid, or when it is an eighth
   larger.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._account import Account

RELEASE: Final = 15 / 16
"""The part of the level at which a squeezed child goes on. Somewhat below it, so that it is not
woken for each single repayment; and no more, so that what is owed stays above the lower mark while
several want more (shares rule only until that is reached), and since those who come back first
stand first at a consumer that they share: with an eighth that was up to 7 %."""

HARD: Final = 2
"""How many times its limit a shared account may owe before it stops everybody below it."""

HARD_INSIDE: Final = 3 / 2
"""The same of one below a shared account. Less, or one child whose own children get stuck one after
the other would bring the account above it to its bound, and stop its innocent siblings."""

HARD_STEP: Final = 1 / 8
"""So many times it below that it lets them go on."""

OVER: Final = 1 / 16
"""How much of what a child was above the level it has to be below besides, before it goes on: so
much of the level at the most. As in deficit round robin, what one with large packets has had too
much of is taken off what it gets next."""

WANTS: Final = 1 / 2
"""The part of the level below which a child does not want more."""

RISE: Final = 9 / 8
"""How much larger the level has to be for those to hear of it that share their part further on."""

_ROUNDING: Final = 1 + 1e-9
"""Who is at its share goes on: thirds of three are one, whatever floats say."""

_STALE: Final = 64

_Entry = tuple[float, int, "Account"]


@attrs.define(slots=True)
class _Want:
    """What a child owes that wants more than its part, as far as it has been seen."""

    items: int = 0
    bytes: int = 0
    over: float = 0.0
    """What it needed more than the level when it was squeezed."""
    entry: _Entry | None = None
    """If it is squeezed, where it stands among those."""


class Shares:
    """How a shared account's limit is parted among its children while it is throttled.

    Attributes:
        account: Whose limit it is.
        active: Those that owe.
        weight: The sum of their weights.
        wanting: Those that want more than their part.
        squeezed: How many of them wait for it.
        parents: Those of them that share their part among children of their own.
        calm: Those that did so, and do not want more any more; see `calmed`.
    """

    __slots__ = (
        "_bytes", "_heap", "_items", "_numbers", "_told", "_weight",
        "account", "active", "calm", "parents", "squeezed", "wanting", "weight",
    )  # fmt: skip

    def __init__(self, account: Account) -> None:
        self.account = account
        self.active: dict[Account, None] = {}
        self.weight = 0.0
        self.wanting: dict[Account, _Want] = {}
        self.squeezed = 0
        # What those that want more owe together, and their weight.
        self._items = 0
        self._bytes = 0
        self._weight = 0.0
        # The squeezed by what they need, the least first; and what is not true any more.
        self._heap: list[_Entry] = []
        self._numbers = count()
        self.parents: dict[Account, None] = {}
        self._told = 0.0
        self.calm: list[Account] = []

    @property
    def hard(self) -> float:
        """How many times what there is to share may be owed before everybody below waits."""
        parent = self.account.parent
        return HARD if parent is None or parent.shares is None else HARD_INSIDE

    def start(self) -> None:
        """Find out who owes: the account is throttled from now on."""
        self.active = {a: None for a in self.account.below or () if a.debt_items or a.debt_bytes}
        self.weight = sum([account.weight for account in self.active], 0.0)

    def stop(self) -> list[Account]:
        """Forget everything; return those that were squeezed, the one with the least need first."""
        entries = [want.entry for want in self.wanting.values() if want.entry is not None]
        for child in self.wanting:
            child.wants = False
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
        """Return (items, bytes) that there are to share: the limit, or its own share of one."""
        account = self.account
        parent = account.parent
        if not account.wants or parent is None or parent.shares is None:
            return account.mark_items, account.mark_bytes
        items, nbytes = parent.shares.share(account)
        return min(items, account.mark_items), min(nbytes, account.mark_bytes)

    def _divisors(self) -> tuple[float, float]:
        items, nbytes = self.marks()
        return items or 1, nbytes or 1

    # -- looking --------------------------------------------------------------------------------

    def share(self, child: Account) -> tuple[float, float]:
        """Return (items, bytes) that a child may owe and go on, in units that have a limit."""
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
        """Return the (items, bytes) at or below which a squeezed child goes on, as it stands."""
        level = (self._level(child) * RELEASE * _ROUNDING - self.over(child)) * child.weight
        level = max(0.0, level)
        mark_items, mark_bytes = self.marks()
        return int(mark_items * level), int(mark_bytes * level)

    def over(self, child: Account) -> float:
        """Return by how much a squeezed child was above the level, as far as it has to be below."""
        want = self.wanting.get(child)
        return 0.0 if want is None else want.over

    def _level(self, child: Account | None = None) -> float:
        """Return what each may need; as if `child` wanted more, if one is given."""
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
            child.wants = True
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
        # Who owes nothing goes on, whatever it was above.
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
        """Yield the squeezed children that go on now, which are squeezed no more."""
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
        """Return those with children that do not want more any more, once."""
        calmed, self.calm = self.calm, []
        return calmed

    def told_of_more(self) -> list[Account]:
        """Return those that have children and a larger part now, when it is worth while.

        What is owed below them is looked at with each of their repayments, as it is here; this is
        for when only others repay.
        """
        level = self._level()
        if level <= self._told * RISE:
            self._told = min(level, self._told)
            return []
        self._told = level
        return list(self.parents)

    # Sums of floats that come and go drift; that of none is known.

    def _want_no_more(self, child: Account, want: _Want) -> None:
        del self.wanting[child]
        child.wants = False
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
        """Forget a child that is no more."""
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
            else:
                child.wants = False
                if child.shares is not None:
                    self.calm.append(child)
