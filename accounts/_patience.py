"""Nobody waits for ever in silence (rule 11).

A holder that makes no progress for its patience, while a reader waits for debt that it holds, is
dealt with by its policy: named, given up, or relieved. Looking is a plain function;
`watch_patience` calls it now and then.

Of a ring of connections that wait on each other (`rings`) only as many are dealt with as let one of
them go on, usually one: the others are stuck because of it, and may all go on after it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from time import perf_counter
from weakref import WeakKeyDictionary

import attrs
import trio

from ._account import Account
from ._following import following
from ._holder import IMPATIENT_SECONDS, Holder, LoanQueue
from ._incidents import NAMED, GivenUp, Relieved
from ._ledger import Ledger
from ._outcome import Outcome
from ._stuck_policy import StuckPolicy
from ._waits_for import MAX_NAMED, Ring, naming, rings_in_steps

logger = logging.getLogger("clearfunds.accounts")

WATCH_SECONDS = IMPATIENT_SECONDS
"""How often holders are looked at: a fortieth of the default patience."""

PAUSE_SECONDS = 0.05
"""How often at most those are looked at again that have little patience, while somebody waits."""

TICK_SECONDS = 0.001
"""So much later it is looked, and not a float's rounding too early."""

STRETCH_SECONDS = 0.002
"""How long rings are looked for before others may go on."""

DEALT_A_STEP = 32
"""How many holders are dealt with before others may go on: a few milliseconds' worth. A number and
no time, so that the same events are the same run."""


@attrs.frozen(slots=True)
class Stuck:
    """A holder whose patience has run out, and who waits on it."""

    holder: Holder
    """Who makes no progress."""
    waiting: tuple[str, ...]
    """The accounts whose readers wait for debt that it holds."""
    items: int
    """Events of theirs that it holds."""
    bytes: int
    """Their bytes."""
    idle_seconds: float
    """For how long it has made no progress while somebody waited on it."""

    def sentence(self) -> str:
        """Say it for the log."""
        return (
            f"{self.holder.kind} {self.holder.name} made no progress for {self.idle_seconds:.1f} s "
            f"(patience {self.holder.patience:g} s) and holds {self.items} items, {self.bytes} "
            f"bytes that {naming(self.waiting)} wait{'s' if len(self.waiting) == 1 else ''} for"
        )

    def fields(self) -> dict[str, object]:
        """Return the same for a log's `extra=`."""
        return {
            "event": "stuck",
            "holder": self.holder.name,
            "kind": self.holder.kind,
            "policy": str(self.holder.policy),
            "patience": self.holder.patience,
            "seconds": round(self.idle_seconds, 3),
            "items": self.items,
            "bytes": self.bytes,
            "waiting": self.waiting[:MAX_NAMED],
            "waiting_more": max(0, len(self.waiting) - MAX_NAMED),
        }


@attrs.frozen(slots=True, eq=False)
class _Line:
    """Who waits at one account, and since when the first of them has."""

    names: frozenset[str]
    since: float


def _lines(ledger: Ledger) -> dict[Account, _Line]:
    names: dict[Account, set[str]] = {}
    since: dict[Account, float] = {}
    for waiter in ledger.waiters:
        at = waiter.at
        # Where an alarm stops them that no repayment ends, they wait on no holder; for credit, on
        # those who block them.
        if at is not None and (at.waits_on_holders or at.blockers):
            names.setdefault(at, set()).add(waiter.account.name)
            since[at] = min(waiter.since, since.get(at, waiter.since))
    return {at: _Line(frozenset(names[at]), since[at]) for at in names}


def overdue(ledger: Ledger, now: float, holders: Iterable[Holder] | None = None) -> list[Stuck]:
    """Return the holders whose patience has run out at `now`.

    Time counts from the holder's last progress, or from when the first of those who now wait on
    it began to, whichever is later: a holder on which nobody waits may take its time.
    """
    lines = _lines(ledger)
    if not lines:
        return []
    blocked: dict[str, set[Account]] = {}
    for at in lines:
        if not at.waits_on_holders:
            for name in at.blockers:
                blocked.setdefault(name, set()).add(at)
    stuck: list[Stuck] = []
    # Ten thousand may wait together for what ten thousand hold: each crowd is sorted once.
    crowds: dict[frozenset[Account], tuple[str, ...]] = {}
    for holder in list(ledger.holders) if holders is None else holders:
        try:
            if now - holder.progressed_at < holder.patience:
                continue
            found = _stuck(holder, now, lines, blocked, crowds)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            # One holder's fault must not leave everybody else's readers waiting.
            ledger.faults.note(holder, "looking at its patience", exc)
            continue
        if found is not None:
            stuck.append(found)
    return stuck


def _stuck(
    holder: Holder,
    now: float,
    lines: dict[Account, _Line],
    blocked: dict[str, set[Account]],
    crowds: dict[frozenset[Account], tuple[str, ...]],
) -> Stuck | None:
    """Say so if somebody waits on a holder, and has for as long as its patience."""
    items = nbytes = 0
    waited_for: set[Account] = set()
    # Also of a queue that the store blocks, and which has others' messages only.
    of_it = blocked.get(holder.name, ())
    has_some = False
    for loan in holder.waited_for():
        has_some = True
        found = [
            account
            for account in loan.account.chain
            if account in lines and (account.waits_on_holders or account in of_it)
        ]
        if found:
            items += loan.items
            nbytes += loan.bytes
            waited_for.update(found)
    if has_some:
        waited_for.update(of_it)
    if not waited_for:
        return None
    idle = now - max(holder.progressed_at, min(lines[at].since for at in waited_for))
    if idle < holder.patience:
        return None
    where = frozenset(waited_for)
    if where not in crowds:
        names = set[str]().union(*(lines[at].names for at in where))
        crowds[where] = tuple(sorted(names))
    return Stuck(holder, crowds[where], items, nbytes, idle)


def _debtors(holder: Holder) -> tuple[str, ...]:
    """Return the accounts that owe for what `holder` has, those with the most first."""
    items: dict[str, int] = {}
    for loan in holder.loans():
        name = loan.account.name
        items[name] = items.get(name, 0) + loan.items
    return tuple(sorted(items, key=lambda name: (-items[name], name)))


def _written_off(ledger: Ledger) -> tuple[int, int]:
    outcome = Outcome.WRITTEN_OFF
    return ledger.repaid_items[outcome], ledger.repaid_bytes[outcome]


class _Watch:
    """What has been said and done about holders whose patience has run out."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        # Who was named last when, of those that are waited for; and who was left over of a ring.
        self.named: dict[int, float] = {}
        self.spared: WeakKeyDictionary[Holder, float] = WeakKeyDictionary()

    async def look(self, holders: Iterable[Holder] | None = None) -> None:
        """Deal with those whose patience has run out now: of all, or of `holders` alone.

        Rings are looked for in between, which with ten thousand that wait takes a while; others go
        on meanwhile, and whoever has made progress by then is let off.
        """
        # Nobody may be left to do so: all who would take the next turn wait for what has leaked.
        self.ledger.drain()
        now = self.ledger.clock()
        stuck = overdue(self.ledger, now, holders)
        if holders is None:
            self.named = {
                id(s.holder): self.named[id(s.holder)] for s in stuck if id(s.holder) in self.named
            }
        on_ring: dict[Holder, Ring] = {}
        found = await self._rings(now) if stuck else ()
        if self.ledger.clock() > now:
            now = self.ledger.clock()
            stuck = overdue(self.ledger, now, [each.holder for each in stuck])
        for ring in found:
            on_ring.update((on.holder, ring) for wait in ring.waits for on in wait.on if on.holder)
        stuck_rings: dict[int, tuple[Ring, list[Stuck]]] = {}
        for number, each in enumerate(stuck, 1):
            if not number % DEALT_A_STEP:
                await trio.lowlevel.checkpoint()
            if each.holder.progressed_at > now or each.holder not in self.ledger.holders:
                continue  # meanwhile it has moved, or ended
            ring_of_it = on_ring.get(each.holder)
            if ring_of_it is not None:
                stuck_rings.setdefault(id(ring_of_it), (ring_of_it, []))[1].append(each)
            elif self._patience_is_over(each.holder, now):
                self._deal_with(each, now)
        for ring, members in stuck_rings.values():
            self._deal_with_ring(ring, members, now)

    def shortest_patience(self, impatient: Iterable[Holder]) -> float:
        """Return the shortest patience of some holders that is not 0."""
        shortest = math.inf
        for holder in impatient:
            try:
                shortest = min(shortest, holder.patience or math.inf)
            except Exception as exc:  # noqa: BLE001 (as in `overdue`)
                self.ledger.faults.note(holder, "looking at its patience", exc)
        return shortest

    async def _rings(self, now: float) -> tuple[Ring, ...]:
        """Return the rings there are, and let others go on once in a while."""
        steps = rings_in_steps(self.ledger, now)
        until = perf_counter() + STRETCH_SECONDS
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: tuple[Ring, ...] = end.value
                return found
            if perf_counter() >= until:
                await trio.lowlevel.checkpoint()
                until = perf_counter() + STRETCH_SECONDS

    def _patience_is_over(self, holder: Holder, now: float) -> bool:
        """Whether it is, also if the holder was left over of a ring: it can move only since."""
        spared = self.spared.get(holder)
        if spared is not None and now - spared < holder.patience:
            return False
        self.spared.pop(holder, None)
        return True

    def _deal_with(self, stuck: Stuck, now: float) -> None:
        if stuck.holder.policy.relieves:
            self._relieve(stuck, stuck.sentence())
        elif stuck.holder.policy is StuckPolicy.DISCONNECT:
            self._give_up(stuck, stuck.sentence())
        else:
            self._name([stuck], stuck.sentence(), now)

    def _deal_with_ring(self, ring: Ring, members: list[Stuck], now: float) -> None:
        """Relieve or give up as many of a ring as let one go on, where the policies allow it.

        Who can be relieved comes first: it stays.
        """
        members.sort(key=lambda s: (-s.idle_seconds, -s.items, -s.bytes, s.holder.name))
        members.sort(key=lambda s: not s.holder.policy.relieves)
        what = f", in a {ring.sentence()}"
        may_go = [each for each in members if each.holder.policy is not StuckPolicy.WAIT]
        if not may_go:
            self._name(members, members[0].sentence() + what, now)
            return
        # What has still to be repaid until who waits there goes on; and who is in whose way.
        over = {wait.at: [wait.over_items, wait.over_bytes] for wait in ring.waits}
        of_owner: dict[str | None, list[tuple[str, int, int]]] = {}
        for wait in ring.waits:
            for on in wait.on:
                of_owner.setdefault(on.owner, []).append((wait.at, on.items, on.bytes))
        gone: set[str] = set()
        enough = False
        for each in may_go:
            owner = "" if each.holder.owner is None else each.holder.owner.name
            # All that one connection holds goes with it.
            if enough and owner not in gone:
                continue
            deal = self._relieve if each.holder.policy.relieves else self._give_up
            if deal(each, each.sentence() + what, len(ring.members)):
                what = ""
                gone.add(owner)
                for at, items, nbytes in of_owner.pop(owner, ()):
                    over[at][0] -= items
                    over[at][1] -= nbytes
                    enough = enough or max(over[at]) <= 0
        for wait in ring.waits:
            for on in wait.on:
                if on.holder is not None:
                    self.spared[on.holder] = now

    def _relieve(self, stuck: Stuck, sentence: str, ring: int = 0) -> bool:
        holder = stuck.holder
        spells = holder.relief.spells
        policy = holder.policy
        debtors = _debtors(holder)
        before = _written_off(self.ledger)
        try:
            holder.relieve(sentence, stuck.fields())
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self._failed(stuck, "relieved", exc)
            return False
        if holder not in self.ledger.holders:
            # It could do nothing by its policy, and has ended itself, and said so.
            self._note_given_up(stuck, debtors, before, ring)
            return True
        if holder.relief.spells > spells:
            backlog = holder.backlog if isinstance(holder, LoanQueue) else None
            what = Relieved(
                kind=holder.kind,
                policy=policy,
                lost=holder.relief if backlog is None else backlog.lost,
                debtors=debtors[:NAMED],
                debtors_more=max(0, len(debtors) - NAMED),
                idle_seconds=stuck.idle_seconds,
                ring=ring,
            )
            self.ledger.incidents.add_relieved(holder, what, self.ledger.clock())
        return holder.behind

    def _give_up(self, stuck: Stuck, sentence: str, ring: int = 0) -> bool:
        holder = stuck.holder
        # A queue lets go of what it may; what it has accepted it keeps, if it can.
        what_now = "it has to make room" if holder.kind == "queue" else "its debt is written off"
        logger.warning("%s; giving it up, %s", sentence, what_now, extra=stuck.fields())
        began = self.ledger.clock()
        debtors = _debtors(holder)
        before = _written_off(self.ledger)
        try:
            holder.give_up(sentence)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self._failed(stuck, "given up", exc)
            return False
        if (
            holder.kind == "queue"
            and holder in self.ledger.holders
            and _written_off(self.ledger)[0] == before[0]
        ):
            # It has put aside what it had, or keeps it: nobody was given up.
            return True
        if holder.kind == "queue" and self.ledger.incidents.has_given_up(holder, began):
            # Who it belongs to has said what became of it.
            return True
        self._note_given_up(stuck, debtors, before, ring)
        return True

    def _failed(self, stuck: Stuck, how: str, exc: Exception) -> None:
        """Note that one could not be dealt with: the others are nevertheless."""
        holder = stuck.holder
        logger.error(
            "%s %s could not be %s", holder.kind, holder.name, how,
            exc_info=exc, extra=stuck.fields(),
        )  # fmt: skip
        if self.ledger.faults.ends:
            self.ledger.faults.note(holder, f"it was to be {how}", exc)

    def _note_given_up(
        self, stuck: Stuck, debtors: tuple[str, ...], before: tuple[int, int], ring: int
    ) -> None:
        """Note what has been written off since `before`."""
        items, nbytes = _written_off(self.ledger)
        what = GivenUp(
            kind=stuck.holder.kind,
            items=items - before[0],
            bytes=nbytes - before[1],
            debtors=debtors[:NAMED],
            debtors_more=max(0, len(debtors) - NAMED),
            idle_seconds=stuck.idle_seconds,
            ring=ring,
        )
        self.ledger.incidents.add_given_up(stuck.holder, what, self.ledger.clock())

    def _name(self, members: list[Stuck], sentence: str, now: float) -> None:
        """Say that these are waited for, once for each time that the patience of one runs out."""
        if any(
            now - self.named.get(id(s.holder), -s.holder.patience) >= s.holder.patience
            for s in members
        ):
            self.named.update((id(each.holder), now) for each in members)
            logger.warning("%s; its policy is to wait", sentence, extra=members[0].fields())


async def watch_patience(ledger: Ledger, *, every: float = WATCH_SECONDS) -> None:
    """Deal with holders whose patience has run out, every `every` seconds, until cancelled.

    With `StuckPolicy.DISCONNECT` the holder is given up, its debt is `written_off`, and those who
    waited go on; with `StuckPolicy.WAIT` it is only named, once for each patience; with the others
    it is relieved, and those who waited go on at once (`Holder.relieve`). All are logged as one
    warning with who waits on whom, for how much, and since when; its fields (`extra=`) are those of
    `Stuck.fields`. Who was given up or relieved lately is in the ledger's `incidents`. What has
    leaked is repaid on the way, so that readers do not wait for debt that nobody has.

    A holder without patience (0 s) is dealt with as soon as a reader begins to wait for it.

    Where holders are on a ring (`rings`), the warning names it with its members, once for all of
    them. Of those whose patience has run out and whose policy is not to wait, one is dealt with:
    rather one that is relieved, since it stays, than one that is given up; of those the one that
    has been idle the longest, of equals the one that holds most; more at once only if that lets
    nobody go on. The others have their patience anew, unless they are on a ring again.
    """
    watch = _Watch(ledger)
    somebody_waits = trio.Event()
    ledger.on_wait = lambda: somebody_waits.set()
    if ledger.waiters:
        somebody_waits.set()  # they have begun to before
    try:
        due = following(trio.current_time(), every)
        soon = math.inf  # when those with little patience are looked at
        while True:
            with trio.move_on_at(min(due, soon)):
                await somebody_waits.wait()
            now = trio.current_time()
            impatient = list(ledger.impatient)
            shortest = watch.shortest_patience(impatient)
            if now >= soon:
                soon = now + max(shortest, PAUSE_SECONDS) if ledger.waiters else math.inf
            if somebody_waits.is_set():
                somebody_waits = trio.Event()
                soon = min(soon, now + shortest + TICK_SECONDS)
            if now >= due:
                due = following(now, every)
                await watch.look()
            else:
                await watch.look(impatient)
    finally:
        ledger.on_wait = None
