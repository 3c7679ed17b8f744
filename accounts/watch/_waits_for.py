"""The wait-for graph, and its rings: flow-control deadlocks (rule 11).

A reader waits at one account, its own or one above it, which is throttled. There it waits on every
holder that has some of that account's debt. A holder waits on its peer. We know one thing about
peers: a peer that writes to us and is not read may well not read from us either. So a holder whose
`owner` has a waiting reader counts as waiting on that reader, as long as it makes no progress,
which would prove the contrary. Without this watch, two relays that echo each other's messages stop
for ever in this way, each with its output stuck behind the other's.

How rings are found:
1. A reader does not wait on each of its holders but on enough of them: it goes on at the lower
   mark. So a circle of arrows is not yet a ring. A ring is a strongly connected set of waiting
   readers, none of which can go on unless another of them does: even if all other holders repaid
   everything, each reader would still be above its lower mark.
2. First set aside every reader that could go on if all holders outside made progress, then the
   readers that could go on because of these, until there are no more. Part the rest into its
   strongly connected components (Tarjan), and try each again by itself: it may have been waiting on
   another.
3. A squeezed account waits for its own debt to fall, and for what its siblings might leave it: they
   wait on each other, too. When all others have repaid, those that are left share the limit above
   them (`_shares.py`), and as long as none of them goes on, none leaves its part to the rest.
4. Linear in holders, and in the loans of those without progress; nothing recurses. While all
   holders make progress no loan is examined.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs

from .._cooperative import STEP, in_steps, run_to_end, sorted_in_steps
from .._gate import gate_of
from .._line import readers_of
from .._loan import LOOSE, LoanedItem
from ..limits._limit import UNLIMITED
from ..limits._shares import RELEASE, WANTS, wants_more

if TYPE_CHECKING:
    from .._account import Account
    from .._holder import Holder
    from .._ledger import Ledger

RING_SECONDS = 1.0
"""Seconds without progress before a ring counts as one; a holder's patience, if that is less.
Retransmission over a lossy line makes for pauses of half a second."""

MAX_NAMED = 20
"""Names in a log line; the rest are counted."""

MAX_WAITED_ON = 3
"""Holders in a log line for each of them."""

ROUNDS = 8
"""How often connected groups are taken apart: there are rings that wait on rings. A group still
connected after that is named as one."""


def naming(names: Iterable[str], most: int = MAX_NAMED, between: str = ", ") -> str:
    """Put names into a sentence; those beyond `most` are counted."""
    every = list(names)
    if len(every) > most:
        return f"{', '.join(every[:most])} and {len(every) - most} more"
    return between.join(every)


@attrs.frozen(slots=True)
class WaitedOn:
    """A holder, and its part of the debt that readers wait for."""

    holder: Holder | None
    """The holder; None for loans that only their maker has."""
    items: int
    """Events of that debt."""
    bytes: int
    """Their bytes."""
    idle_seconds: float
    """Seconds since the holder made progress."""
    owner: str | None
    """The account whose reader the holder waits on in turn, if it has one that waits."""

    @property
    def name(self) -> str:
        """The holder's name."""
        return LOOSE if self.holder is None else self.holder.name

    @property
    def kind(self) -> str:
        """The holder's kind."""
        return "loose" if self.holder is None else self.holder.kind

    def sentence(self) -> str:
        """Say it for the log."""
        return f"{self.kind} {self.name} ({self.items} items, {self.bytes} bytes)"


@attrs.frozen(slots=True)
class Wait:
    """Readers that wait at one account, and the holders that they wait on."""

    at: str
    """The account that is throttled: the readers' own, or one above theirs."""
    waiting: tuple[str, ...]
    """The accounts whose readers wait there."""
    seconds: float
    """Seconds that the first of them has waited."""
    over_items: int
    """Events that have to be repaid before they go on."""
    over_bytes: int
    """The same in bytes; they go on when both are 0."""
    on: tuple[WaitedOn, ...]
    """The holders of that account's debt, the largest first."""

    def sentence(self) -> str:
        """Say it for the log."""
        waits = "waits" if len(self.waiting) == 1 else "wait"
        where = "" if self.waiting == (self.at,) else f" at {self.at}"
        on = naming((each.sentence() for each in self.on), MAX_WAITED_ON, " and ")
        return f"{naming(self.waiting)} {waits}{where} on {on}"


@attrs.frozen(slots=True)
class Ring:
    """Readers none of which can go on unless another of them does."""

    members: tuple[str, ...]
    """The accounts of these readers; each owns a holder on which another of them waits, or it
    itself."""
    waits: tuple[Wait, ...]
    """Where they wait and on which of each other's holders, in the order of the ring."""
    seconds: float
    """Seconds without progress in it."""

    def sentence(self) -> str:
        """Say it for the log."""
        if len(self.members) == 1:
            # No two wait on each other here.
            on = naming((on.sentence() for each in self.waits for on in each.on), MAX_WAITED_ON)
            return f"ring of one: {self.members[0]} waits on what its own peer does not take: {on}"
        shown = ", ".join(each.sentence() for each in self.waits[:MAX_NAMED])
        if len(self.waits) > MAX_NAMED:
            shown += f" and so on: {len(self.members)} accounts wait on each other"
        return f"ring: {shown}"


def is_held_up_by(at: Account, holder: Holder | None) -> bool:
    """Whether readers that stand at an account wait on a holder, if it has some of its debt.

    For credit they wait only on the blockers.
    """
    if gate_of(at).waits_for_repayment:
        return True
    return holder is not None and holder.name in gate_of(at).blockers


def wait_for_graph(ledger: Ledger, now: float | None = None) -> tuple[Wait, ...]:
    """Return who waits on whom at `now` (default: the ledger's clock), by name of account.

    Computed from the loans that holders physically have (rule 15): linear in outstanding loans,
    unless nobody waits. There is one entry for each account at which readers wait, and not for each
    reader: ten thousand may wait on the same ten thousand holders.
    """
    when = ledger.clock() if now is None else now
    readers = run_to_end(_readers(ledger))
    if not readers:
        return ()
    on: dict[Account, list[WaitedOn]] = {at: [] for at in readers}
    waiting = {account for there in readers.values() for account in there}
    for holder in list(ledger.holders):
        owner = holder.owner.name if holder.owner in waiting else None
        for at, (items, nbytes) in _shares(readers, _amounts(holder.loans())).items():
            if is_held_up_by(at, holder):
                on[at].append(WaitedOn(holder, items, nbytes, when - holder.progressed_at, owner))
    turns = ((turn.account, turn.input_items, turn.input_bytes) for turn in ledger.turns)
    for at, (items, nbytes) in _shares(readers, turns).items():
        if is_held_up_by(at, None):
            on[at].append(WaitedOn(ledger.router, items, nbytes, 0.0, None))
    for at, (items, nbytes) in _shares(readers, _amounts(list(ledger.loose))).items():
        if is_held_up_by(at, None):
            on[at].append(WaitedOn(None, items, nbytes, 0.0, None))
    return tuple(
        _wait(at, readers[at], when, sorted(on[at], key=_most_first))
        for at in sorted(readers, key=lambda account: account.name)
    )


def rings(
    ledger: Ledger, now: float | None = None, *, still: float = RING_SECONDS
) -> tuple[Ring, ...]:
    """Return the rings without progress for `still` seconds, by name of member.

    A holder whose patience is less than `still` counts when it has been idle for its patience. A
    holder that makes progress is on no ring, nor is one without an `owner`. A ring of one is an
    account that waits on messages that its own peer does not take. `now` is by the ledger's clock.
    """
    return run_to_end(rings_in_steps(ledger, now, still=still))


def rings_in_steps(
    ledger: Ledger, now: float | None = None, *, still: float = RING_SECONDS
) -> Generator[None, None, tuple[Ring, ...]]:
    """Return the `rings` there are; other tasks may run in between.

    A ring with any progress meanwhile is left out: the returned ones stood still all the time. A
    ring that has formed meanwhile may be missed.
    """
    graph = Standstill(ledger, ledger.clock() if now is None else now, still)
    yield from graph.look()
    found = yield from graph.rings()
    told: list[Ring] = []
    for group in found:
        ring = yield from graph.ring(group)
        if ring is not None:
            told.append(ring)
    yield from graph.forget()
    told = yield from sorted_in_steps(told, lambda ring: ring.members)
    return tuple(told)


def count_rings_in_steps(
    ledger: Ledger, *, still: float = RING_SECONDS
) -> Generator[None, None, int]:
    """Return the number of `rings`; other tasks may run in between.

    With progress meanwhile, it may count a ring that is none, or miss one.
    """
    graph = Standstill(ledger, ledger.clock(), still)
    yield from graph.look()
    found = yield from graph.rings()
    yield from graph.forget()
    return len(found)


# -- what both are made of ------------------------------------------------------------------------

Readers = dict["Account", tuple[float, float]]
"""Accounts whose readers wait at one account, and when the first and the last of these began."""


def _readers(ledger: Ledger) -> Generator[None, None, dict[Account, Readers]]:
    """Return who waits where. (At an account that is open, readers only stand to be woken.)"""
    readers: dict[Account, Readers] = {}
    for number, waiter in enumerate(list(ledger.waiters), 1):
        if not number % STEP:
            yield
        at = waiter.at
        if at is not None and (gate_of(at).waits_for_repayment or gate_of(at).blockers):
            there = readers.setdefault(at, {})
            first, last = there.get(waiter.account, (waiter.since, waiter.since))
            there[waiter.account] = min(first, waiter.since), max(last, waiter.since)
    return readers


def _amounts(loans: Iterable[LoanedItem[Any]]) -> Iterator[tuple[Account, int, int]]:
    for loan in loans:
        # The audit reports things that are no loans; one taken out of a queue may be settled.
        if isinstance(loan, LoanedItem) and loan.items:  # pyright: ignore[reportUnnecessaryIsInstance]
            yield loan.account, loan.items, loan.bytes


def _shares(
    readers: dict[Account, Readers],
    amounts: Iterable[tuple[Account, int, int]],
    shares: dict[Account, list[int]] | None = None,
) -> dict[Account, list[int]]:
    """Sum up the debt, as [items, bytes], of each account at which readers wait."""
    shares = {} if shares is None else shares
    for debtor, items, nbytes in amounts:
        for account in debtor.chain:
            if account in readers:
                share = shares.setdefault(account, [0, 0])
                share[0] += items
                share[1] += nbytes
    return shares


def _most_first(each: WaitedOn) -> tuple[int, int, str]:
    return -each.items, -each.bytes, each.name


def _wait(at: Account, there: Readers, now: float, on: Iterable[WaitedOn]) -> Wait:
    marks = gate_of(at).goes_on_at()
    return Wait(
        at.name,
        tuple(sorted(account.name for account in there)),
        now - min(first for first, _ in there.values()),
        max(0, at.debt_items - marks[0]),
        max(0, at.debt_bytes - marks[1]),
        tuple(on),
    )


@attrs.frozen(slots=True)
class _Arrow:
    """From an account at which readers wait to one whose reader they wait on in turn."""

    owner: Account
    still_for: float
    on: WaitedOn


class Standstill:
    """Readers that wait, and the holders with an owner among them that make no progress.

    Its nodes are the accounts at which readers wait. One leads to another if a holder has some of
    the debt of the first and an owner that waits at the second.
    """

    def __init__(self, ledger: Ledger, now: float, still: float) -> None:
        self.ledger = ledger
        self.now = now
        self.still = still
        self.readers: dict[Account, Readers] = {}
        self.stands: dict[Account, list[Account]] = {}
        self.arrows: dict[Account, list[_Arrow]] = {}

    def look(self) -> Generator[None]:
        """Find out who waits, and on whom, in steps."""
        ledger, now, still = self.ledger, self.now, self.still
        # The cheapest first: mostly there is nobody.
        idle: list[tuple[Holder, Account, float]] = []
        for number, holder in enumerate(list(ledger.holders if ledger.waiters else ()), 1):
            if not number % STEP:
                yield
            seconds = now - holder.progressed_at
            if (
                holder.owner is not None
                and holder.owner.waiting
                and seconds >= min(still, holder.patience)
            ):
                idle.append((holder, holder.owner, seconds))
        if idle:
            self.readers = yield from _readers(ledger)
        since: dict[Account, float] = {}
        for at, there in self.readers.items():
            yield
            for number, (account, (_, last)) in enumerate(there.items(), 1):
                if not number % STEP:
                    yield
                self.stands.setdefault(account, []).append(at)
                since[account] = max(last, since.get(account, last))
        for number, at in enumerate(self.readers, 1):
            if not number % STEP:
                yield
            self.arrows[at] = []
        for holder, owner, seconds in idle:
            yield
            # Its owner's reader blocks it, and only since that reader waits.
            still_for = min(seconds, now - since.get(owner, now))
            if owner in since and still_for >= min(still, holder.patience):
                shares = yield from self.held_up_by(holder)
                for at, (items, nbytes) in shares.items():
                    on = WaitedOn(holder, items, nbytes, seconds, owner.name)
                    self.arrows[at].append(_Arrow(owner, still_for, on))
        for at, arrows in self.arrows.items():
            yield
            self.arrows[at] = yield from sorted_in_steps(
                arrows, lambda arrow: _most_first(arrow.on)
            )

    def held_up_by(self, holder: Holder) -> Generator[None, None, dict[Account, list[int]]]:
        """Return the accounts at which readers wait for a holder, and the [items, bytes] it has."""
        shares: dict[Account, list[int]] = {}
        # A holder's loans may not change while they are walked, hence the copy.
        loans = list(holder.loans())
        for start in range(0, len(loans), STEP):
            if start:
                yield
            _shares(self.readers, _amounts(loans[start : start + STEP]), shares)
        return {at: share for at, share in shares.items() if is_held_up_by(at, holder)}

    def stays(self, at: Account, items: int, nbytes: int) -> bool:
        """Whether readers at an account still wait if no more than this is owed there.

        A squeezed account may wait for the shares of others, too: then they are said to.
        """
        return bool(gate_of(at).squeezed) or not _is_clear(at, [items, nbytes])

    def rings(self) -> Generator[None, None, list[set[Account]]]:
        """Return, for each ring, the accounts at which its readers wait; in steps, too."""
        found: list[set[Account]] = []
        groups = [set(self.arrows)]
        for _ in range(ROUNDS):
            parts: list[set[Account]] = []
            for group in groups:
                closed = yield from self._closed(group)
                beside = yield from in_steps(_beside(closed))
                following = partial(self._following, group=closed, beside=dict(beside))
                components = yield from _components(closed, following)
                if len(components) == 1:
                    found.append(closed)
                else:
                    parts += components
            groups = parts
        for group in groups:
            closed = yield from self._closed(group)
            if closed:
                found.append(closed)
        return found

    def _within(self, at: Account, group: set[Account]) -> Iterator[_Arrow]:
        """Yield the arrows from `at` to readers that stand in `group` and nowhere else."""
        for arrow in self.arrows[at]:
            if all(where in group for where in self.stands[arrow.owner]):
                yield arrow

    def _next(self, at: Account, group: set[Account]) -> Iterator[Account]:
        for arrow in self._within(at, group):
            yield from self.stands[arrow.owner]

    def _following(
        self, at: Account, group: set[Account], beside: dict[Account, Account]
    ) -> Iterator[Account]:
        yield from self._next(at, group)
        if at in beside:
            yield beside[at]

    def _closed(self, group: set[Account]) -> Generator[None, None, set[Account]]:
        """Return the members of `group` that stay throttled even if all holders outside repay."""
        kept: dict[Account, list[int]] = {}
        keeping: dict[Account, list[tuple[Account, WaitedOn]]] = {}
        for at in group:
            yield
            total = kept[at] = [0, 0]
            for number, arrow in enumerate(self._within(at, group), 1):
                if not number % STEP:
                    yield
                total[0] += arrow.on.items
                total[1] += arrow.on.bytes
                keeping.setdefault(arrow.owner, []).append((at, arrow.on))
        left = set(group)
        free: list[Account] = []
        squeezed: dict[Account, _Squeezed] = {}
        for number, at in enumerate(group, 1):
            if not number % STEP:
                yield
            if gate_of(at).squeezed and at.parent is not None:
                there = squeezed.get(at.parent)
                if there is None:
                    there = squeezed[at.parent] = _Squeezed(at.parent, kept)
                there.add(at)
            elif _is_clear(at, kept[at]):
                free.append(at)
        for there in squeezed.values():
            yield
            free += yield from in_steps(there.go_on())
        left.difference_update(free)
        while free:
            yield
            for number, reader in enumerate(self.readers[free.pop()], 1):
                if not number % STEP:
                    yield
                # It goes on, and so does its peer, which then takes its messages.
                for at, on in keeping.pop(reader, ()):
                    there = squeezed.get(at.parent) if gate_of(at).squeezed and at.parent else None
                    if there is not None and at in left:
                        there.repaid(at, on.items, on.bytes)
                        gone = yield from in_steps(there.go_on())
                        left.difference_update(gone)
                        free += gone
                        continue
                    kept[at][0] -= on.items
                    kept[at][1] -= on.bytes
                    if at in left and _is_clear(at, kept[at]):
                        left.discard(at)
                        free.append(at)
        return left

    def ring(self, group: set[Account]) -> Generator[None, None, Ring | None]:
        """Make the report of a ring; None if there was progress since the search began."""
        arrows: dict[Account, list[_Arrow]] = {}
        for at in (yield from self._around(group)):
            yield
            arrows[at] = yield from in_steps(self._within(at, group))
        owners: set[Account] = set()
        still_for = float("inf")
        waits: list[Wait] = []
        members: dict[str, None] = {}
        for on in arrows.values():
            yield
            owners.update(arrow.owner for arrow in on)
            still_for = min([still_for, *(arrow.still_for for arrow in on)])
        for at, on in arrows.items():
            yield
            among = yield from in_steps(
                each for each in self.readers[at].items() if each[0] in owners
            )
            if not among:
                continue  # squeezed with the others, and no reader waits on its peer
            waits.append(_wait(at, dict(among), self.now, (arrow.on for arrow in on)))
            members.update(dict.fromkeys(waits[-1].waiting))
        ring = Ring(tuple(members), tuple(waits), still_for)
        for number, arrow in enumerate(arrow for on in arrows.values() for arrow in on):
            if not number % STEP:
                yield
            if self._has_moved(arrow):
                return None
        return ring

    def forget(self) -> Generator[None]:
        """Free the graph in steps; freeing that of ten thousand at once would take long, too."""
        while self.arrows:
            yield
            for _ in range(min(STEP, len(self.arrows))):
                at, _arrows = self.arrows.popitem()
                self.readers.pop(at, None)
        while self.stands:
            yield
            for _ in range(min(STEP, len(self.stands))):
                self.stands.popitem()

    def _has_moved(self, arrow: _Arrow) -> bool:
        """Whether its holder or its owner's reader made progress since the search began."""
        holder = arrow.on.holder
        readers = readers_of(arrow.owner)
        return (
            (holder is not None and holder.progressed_at > self.now)
            or not readers
            or all(waiter.since > self.now for waiter in readers)
        )

    def _around(self, group: set[Account]) -> Generator[None, None, list[Account]]:
        """Order a ring so that each waits on the next, as far as possible."""
        order: dict[Account, None] = {}
        for start in (yield from sorted_in_steps(group, lambda account: account.name)):
            at: Account | None = start
            while at is not None and at not in order:
                yield
                order[at] = None
                at = next((each for each in self._next(at, group) if each not in order), None)
        return list(order)


def _beside(group: Iterable[Account]) -> Iterator[tuple[Account, Account]]:
    """Yield pairs of squeezed siblings, each of which waits for the other's share.

    The share that one squeezed sibling would leave is for the others. The pairs form a circle,
    which connects all siblings as well as arrows from each to each would.
    """
    first: dict[Account, Account] = {}
    last: dict[Account, Account] = {}
    for at in group:
        if gate_of(at).squeezed and at.parent is not None:
            before = last.get(at.parent)
            if before is None:
                first[at.parent] = at
            else:
                yield before, at
            last[at.parent] = at
    for parent, at in last.items():
        if first[parent] is not at:
            yield at, first[parent]


class _Squeezed:
    """Children of a shared account that wait for their share: each that goes on leaves its own.

    It answers which of them go on when all others have repaid. Then the children that are left
    share the limit among themselves, by their weights; and all go on when the account is at its
    lower mark.
    """

    def __init__(self, parent: Account, kept: dict[Account, list[int]]) -> None:
        self.parent = parent
        self.kept = kept
        # The amount to share, and the debt at which all go on: the best case, if only these owe.
        self.mark_items, self.mark_bytes = parent.mark_items, parent.mark_bytes
        self.low_items = parent.low_items if gate_of(parent).throttled else UNLIMITED
        self.low_bytes = parent.low_bytes if gate_of(parent).throttled else UNLIMITED
        at = parent
        while wants_more(at) and at.parent is not None:
            at = at.parent
            self.mark_items = min(self.mark_items, at.mark_items)
            self.mark_bytes = min(self.mark_bytes, at.mark_bytes)
            half_items, half_bytes = int(WANTS * at.mark_items), int(WANTS * at.mark_bytes)
            self.low_items = min(self.low_items, max(at.low_items, half_items))
            self.low_bytes = min(self.low_bytes, max(at.low_bytes, half_bytes))
        self.left: dict[Account, float] = {}
        self.weight = 0.0
        self.items = 0
        self.bytes = 0
        # The children by need, the least first; and stale entries.
        self.needs: list[tuple[float, int, Account]] = []
        self.numbers = count()

    def add(self, child: Account) -> None:
        """Count a child."""
        self.weight += child.weight
        self.items += self.kept[child][0]
        self.bytes += self.kept[child][1]
        self._queue(child)

    def _queue(self, child: Account) -> None:
        items, nbytes = self.kept[child]
        need = max(items / (self.mark_items or 1), nbytes / (self.mark_bytes or 1)) / child.weight
        if need and self.parent.shares is not None:
            need += self.parent.shares.over(child)
        self.left[child] = need
        heappush(self.needs, (need, next(self.numbers), child))

    def repaid(self, child: Account, items: int, nbytes: int) -> None:
        """Take off debt that a child would have repaid."""
        self.kept[child][0] -= items
        self.kept[child][1] -= nbytes
        self.items -= items
        self.bytes -= nbytes
        self._queue(child)

    def go_on(self) -> Iterator[Account]:
        """Yield the children that would go on now, and remove them from those left."""
        while self.needs:
            need, _, child = self.needs[0]
            if self.left.get(child) != need:
                heappop(self.needs)
                continue
            is_clear = self.items <= self.low_items and self.bytes <= self.low_bytes
            if not is_clear and need * self.weight > RELEASE:
                return
            heappop(self.needs)
            items, nbytes = self.kept[child]
            if (
                gate_of(child).throttled
                and child.shares is None
                and not _is_low(child, items, nbytes)
            ):
                continue  # it waits for its own limit; checked again after a repayment
            del self.left[child]
            self.weight -= child.weight
            self.items -= items
            self.bytes -= nbytes
            yield child


def _is_low(account: Account, items: int, nbytes: int) -> bool:
    return items <= account.low_items and nbytes <= account.low_bytes


def _is_clear(account: Account, kept: list[int]) -> bool:
    if not gate_of(account).waits_for_repayment:
        # It waits for credit: its blockers have some of its debt.
        return not kept[0] and not kept[1]
    items, nbytes = gate_of(account).goes_on_at()
    return kept[0] <= items and kept[1] <= nbytes


def _components(
    nodes: Iterable[Account], following: Callable[[Account], Iterator[Account]]
) -> Generator[None, None, list[set[Account]]]:
    """Part a graph into its strongly connected components (Tarjan, 1972), without recursion."""
    components: list[set[Account]] = []
    number: dict[Account, int] = {}
    low: dict[Account, int] = {}  # the earliest of `stack` that is known to be reached
    stack: list[Account] = []
    on_stack: set[Account] = set()
    path: list[tuple[Account, Iterator[Account]]] = []

    def enter(node: Account) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        on_stack.add(node)
        path.append((node, following(node)))

    for root in nodes:
        if root not in number:
            enter(root)
        while path:
            yield
            node, others = path[-1]
            for seen, other in enumerate(others, 1):
                if other not in number:
                    enter(other)
                    break
                if not seen % STEP:
                    yield
                if other in on_stack:
                    low[node] = min(low[node], number[other])
            else:
                path.pop()
                if path:
                    before = path[-1][0]
                    low[before] = min(low[before], low[node])
                if low[node] == number[node]:
                    component: set[Account] = set()
                    while node not in component:
                        if not len(component) % STEP:
                            yield
                        member = stack.pop()
                        component.add(member)
                        on_stack.discard(member)
                    components.append(component)
    return components
