"""The watch over slow consumers: no silent stalls (rule 11).

A holder that makes no progress for its patience (slow-consumer timeout), while a reader waits for
debt that it holds, is handled by its policy: named, given up, or relieved. The check is a plain
function; `watch_patience` calls it periodically.

Of several, the one that frees most waiting readers per item lost is handled first
(`_relief_order.py`), and the next only if readers still wait on it. One that is left alone has used
up its patience: if readers wait on it again before it makes progress, it is handled at the next
check.

In a ring of connections that block each other (`rings`), a flow-control deadlock, only as many are
handled as let one member go on, usually one: the others are stuck because of it, and may all go on
after it.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import attrs

from .._account import Account
from .._cooperative import STEP, run_to_end, with_pauses
from .._gate import closed_to, gate_of
from .._holder import IMPATIENT_SECONDS, Holder, LoanQueue
from .._ledger import Ledger
from .._loop import checkpoint
from .._outcome import Outcome
from .._ticker import following
from ._clearing_rate import ClearingRates, Slow
from ._core_shares import PATIENCE_SHARE
from ._incidents import NAMED, GivenUp, Relieved
from ._relief_order import Blocked, Candidate, ReliefOrder
from ._stuck_policy import StuckPolicy
from ._used_up import UsedUp, idle_seconds
from ._waits_for import MAX_NAMED, Ring, is_held_up_by, naming, rings_in_steps

if TYPE_CHECKING:
    from .._waiters import Waiter

logger = logging.getLogger("clearfunds.accounts")

T = TypeVar("T")

WATCH_SECONDS = IMPATIENT_SECONDS
"""Interval between checks of all holders: a fortieth of the default patience."""

EASE_SECONDS = 1.0
"""The same while nobody waits: what is left to do then is to repay leaked loans."""

PAUSE_SECONDS = 0.05
"""Least interval between checks of holders with little patience, while a reader waits."""

TICK_SECONDS = 0.001
"""Added to a deadline, so that float rounding does not make the check too early."""

STRETCH_SECONDS = 0.002
"""Longest search for slow consumers, or rings, before other tasks may run."""

DEALT_A_STEP = 32
"""Holders handled before other tasks may run: a few milliseconds' worth. A number and not a time,
so that the same events give the same run."""


@attrs.frozen(slots=True)
class Stuck:
    """A slow consumer: a holder whose patience has run out, and the accounts that wait on it."""

    holder: Holder
    """The holder that makes no progress."""
    waiting: tuple[str, ...]
    """The accounts whose readers wait for debt that it holds."""
    items: int
    """Events of theirs that it holds."""
    bytes: int
    """Their bytes."""
    idle_seconds: float
    """Seconds without progress, or with too little, while a reader waited on it."""
    slow: Slow | None = None
    """Its pace, if it makes some progress."""
    held: int = 0
    """All events that it holds for which readers might wait, those of others included."""
    places: Mapping[Account, tuple[int, int]] = attrs.field(
        factory=dict[Account, tuple[int, int]], repr=False
    )
    """The accounts at which these readers wait, and how much of their debt it holds, as (items,
    bytes)."""

    def sentence(self) -> str:
        """Return the sentence for the log."""
        what = "made no progress"
        if self.slow is not None:
            what = f"cleared only {self.slow.cleared} of {self.slow.ahead} items"
        return (
            f"{self.holder.kind} {self.holder.name} {what} for {self.idle_seconds:.1f} s "
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
            "cleared": 0 if self.slow is None else self.slow.cleared,
            "items": self.items,
            "bytes": self.bytes,
            "waiting": self.waiting[:MAX_NAMED],
            "waiting_more": max(0, len(self.waiting) - MAX_NAMED),
            **self.why(),
        }

    def why(self) -> dict[str, str | None]:
        """Return why it is slow, as a word and as a sentence; None: unknown."""
        cause = self.holder.ledger.causes.of(self.holder)
        if cause is None:
            return {"cause": None, "why": None}
        return {"cause": str(cause.kind), "why": cause.about(self.holder.name)}


@attrs.frozen(slots=True, eq=False)
class _Line:
    """The accounts whose readers wait at one account, and since when the first reader has."""

    names: frozenset[str]
    since: float


def _lines(ledger: Ledger) -> dict[Account, _Line]:
    names: dict[Account, set[str]] = {}
    since: dict[Account, float] = {}
    for waiter in ledger.waiters:
        at = waiter.at
        # Readers stopped by an alarm that no repayment ends wait on no holder. Readers without
        # credit wait on the blockers.
        if at is not None and (gate_of(at).waits_on_holders or gate_of(at).blockers):
            names.setdefault(at, set()).add(waiter.account.name)
            since[at] = min(waiter.since, since.get(at, waiter.since))
    return {at: _Line(frozenset(names[at]), since[at]) for at in names}


def too_slow_in_steps(
    ledger: Ledger, now: float, clearing_rates: ClearingRates
) -> Generator[None, None, list[Stuck]]:
    """Return the holders that have been too slow for their patience at `now`, once each.

    `clearing_rates` keeps the history between calls: always pass the same one.
    """
    waiting: dict[Account, Account] = {
        each.account: each.at
        for each in ledger.waiters
        if each.at is not None and each.waits_on_holders
    }
    found: dict[Holder, Stuck] = {}
    debts: dict[Holder, dict[Account, tuple[int, int]]] = {}
    for slow in (yield from clearing_rates.look_in_steps(waiting, ledger.holders, now)):
        items = nbytes = held = 0
        for loan in slow.holder.waited_for():
            held += loan.items
            if loan.account is slow.account:
                items += loan.items
                nbytes += loan.bytes
        names: tuple[str, ...] = (slow.account.name,)
        at = waiting[slow.account]
        places = debts.setdefault(slow.holder, {})
        there = places.get(at, (0, 0))
        places[at] = there[0] + items, there[1] + nbytes
        before = found.get(slow.holder)
        if before is not None:
            names = tuple(sorted({*before.waiting, *names}))
            items, nbytes = before.items + items, before.bytes + nbytes
        found[slow.holder] = Stuck(
            slow.holder, names, items, nbytes, slow.seconds, slow, held, places
        )
    return list(found.values())


def overdue(ledger: Ledger, now: float, holders: Iterable[Holder] | None = None) -> list[Stuck]:
    """Return the holders whose patience has run out at `now`.

    Time counts from the holder's last progress, or from when the first reader now waiting on it
    began to wait, whichever is later: a holder that blocks nobody may take its time. (See `UsedUp`
    for one whose patience was over before.)
    """
    return run_to_end(overdue_in_steps(ledger, now, holders))


def overdue_in_steps(
    ledger: Ledger, now: float, holders: Iterable[Holder] | None = None
) -> Generator[None, None, list[Stuck]]:
    """Return the same as `overdue`; it yields between holders, where other tasks may run."""
    lines = _lines(ledger)
    if not lines:
        return []
    blocked: dict[str, set[Account]] = {}
    for at in lines:
        if not gate_of(at).waits_on_holders:
            for name in gate_of(at).blockers:
                blocked.setdefault(name, set()).add(at)
    stuck: list[Stuck] = []
    # Ten thousand readers may wait together for ten thousand holders: sort each crowd only once.
    crowds: dict[frozenset[Account], tuple[str, ...]] = {}
    for holder in list(ledger.holders) if holders is None else holders:
        yield
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


def _spill_again_in_steps(ledger: Ledger) -> Generator[None]:
    """Have spilled what readers wait for, where there is room by now: others may have made some."""
    for holder in list(ledger.holders) if ledger.waiters else ():
        yield
        if holder.full_patience is not None:
            ledger.faults.call(holder, "spilling its messages", holder.spill_again)


def _stuck(
    holder: Holder,
    now: float,
    lines: dict[Account, _Line],
    blocked: dict[str, set[Account]],
    crowds: dict[frozenset[Account], tuple[str, ...]],
) -> Stuck | None:
    """Return a `Stuck` if a reader has waited on the holder for as long as its patience."""
    items = nbytes = held = 0
    waited_for: dict[Account, tuple[int, int]] = {}
    # This includes a queue that the store blocks, and that has only other accounts' messages.
    of_it = blocked.get(holder.name, ())
    for loan in holder.waited_for():
        held += loan.items
        found = [
            account
            for account in loan.account.chain
            if account in lines and (gate_of(account).waits_on_holders or account in of_it)
        ]
        if found:
            items += loan.items
            nbytes += loan.bytes
            for at in found:
                some = waited_for.get(at, (0, 0))
                waited_for[at] = some[0] + loan.items, some[1] + loan.bytes
    if held:
        for at in of_it:
            waited_for.setdefault(at, (0, 0))
    if not waited_for:
        return None
    idle = idle_seconds(holder, min(lines[at].since for at in waited_for), now)
    if idle < holder.patience:
        return None
    where = frozenset(waited_for)
    if where not in crowds:
        names = set[str]().union(*(lines[at].names for at in where))
        crowds[where] = tuple(sorted(names))
    return Stuck(holder, crowds[where], items, nbytes, idle, None, held, waited_for)


def _lost_items(stuck: Stuck) -> int:
    """Return about how many items are lost if a holder is handled by its policy."""
    holder = stuck.holder
    if holder.policy is StuckPolicy.SPILL:
        return 0
    if holder.policy.relieves and isinstance(holder, LoanQueue):
        kept = holder.retain_limit.items
        return 0 if kept is None else max(0, stuck.held - kept)
    return stuck.held


def _order_in_steps(
    stuck: Iterable[Stuck], readers: Mapping[Account, int]
) -> Generator[None, None, ReliefOrder[Account, Stuck]]:
    """Return some holders in the order in which they are to be handled."""
    order: ReliefOrder[Account, Stuck] = ReliefOrder()
    for each in stuck:
        yield
        shares = dict(each.places)
        for at in shares:
            gate = gate_of(at)
            over = len(gate.blockers), 0
            if gate.waits_for_repayment:
                items, nbytes = gate.goes_on_at()
                over = at.debt_items - items, at.debt_bytes - nbytes
            else:
                shares[at] = 1, 0  # all of the blockers have to unblock it
            if at not in order:
                order.block(at, Blocked(readers.get(at, 0), *over))
        order.add(Candidate(each, shares, _lost_items(each), _tie(each)))
    return order


def _tie(stuck: Stuck) -> tuple[float, int, int, str]:
    """Return a key by which the longest idle goes first, of equals the one that holds most."""
    return -stuck.idle_seconds, -stuck.items, -stuck.bytes, stuck.holder.name


def _still_blocks(stuck: Stuck) -> bool:
    """Whether readers still wait on a holder, after others were handled."""
    return any(
        at.line is not None and len(at.line) > 0 and is_held_up_by(at, stuck.holder)
        for at in stuck.places
    )


def _debtors(holder: Holder) -> tuple[str, ...]:
    """Return the accounts that owe for the loans of `holder`, the largest debt first."""
    items: dict[str, int] = {}
    for loan in holder.loans():
        name = loan.account.name
        items[name] = items.get(name, 0) + loan.items
    return tuple(sorted(items, key=lambda name: (-items[name], name)))


def _written_off(ledger: Ledger) -> tuple[int, int]:
    outcome = Outcome.WRITTEN_OFF
    return ledger.repaid_items[outcome], ledger.repaid_bytes[outcome]


class _Freed:
    """The readers that go on because slow consumers were handled in one check.

    Attributes:
        readers: The number of readers that wait at each account.
        by: The slow consumers that were handled.
        spared: How many others were left alone, since nobody waits on them any more.
    """

    def __init__(self) -> None:
        self.readers: Counter[Account] = Counter()
        self.by: list[Stuck] = []
        self.spared = 0
        self._heads: dict[Account, Waiter] = {}

    def look_in_steps(self, ledger: Ledger, stuck: Iterable[Stuck]) -> Generator[None]:
        """Note the readers that wait on these."""
        for each in stuck:
            yield
            for at in each.places:
                if at not in self._heads and at.line is not None and at.line.waiters:
                    self._heads[at] = at.line.waiters[0]
                    self.readers[at] = len(at.line.waiters)

    def tell_in_steps(self) -> Generator[None]:
        """Log how many of them go on."""
        freed = 0
        places = {at: None for each in self.by for at in each.places}
        for number, at in enumerate(places, 1):
            if not number % STEP:
                yield
            head = self._heads.get(at)
            if head is not None and _goes_on(at, head):
                freed += self.readers[at]
        if not freed:
            return
        names = [f"{each.holder.kind} {each.holder.name}" for each in self.by]
        left = ""
        if self.spared:
            consumers = _plural(self.spared, "consumer is", "consumers are")
            left = f"; {self.spared} other slow {consumers} left alone"
        logger.info(
            "%d %s on now that %s no longer %s %s%s",
            freed, _plural(freed, "reader goes", "readers go"), naming(names, MAX_NAMED),
            _plural(len(names), "blocks", "block"), _plural(freed, "it", "them"), left,
            extra={"event": "freed", "readers": freed,
                   "holders": tuple(each.holder.name for each in self.by[:MAX_NAMED]),
                   "holders_more": max(0, len(names) - MAX_NAMED), "left_alone": self.spared},
        )  # fmt: skip


def _rank(ring: Ring) -> int:
    """Return the number of other processes that are to open a ring first."""
    holders = (on.holder for wait in ring.waits for on in wait.on)
    return max((0 if holder is None else holder.ring_rank for holder in holders), default=0)


def _plural(number: int, one: str, many: str) -> str:
    return one if number == 1 else many


def _goes_on(at: Account, head: Waiter) -> bool:
    """Whether the first reader that waited at an account has gone on, or may go on now."""
    if at.line is None or not at.line.waiters or at.line.waiters[0] is not head:
        return True
    return closed_to(head.account, head.ticket) is None


class _Watch:
    """The record of slow consumers that were named or handled."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        # `named`: when a blocking holder was last named. `spared`: ring members left alone.
        self.named: dict[int, float] = {}
        self.spared: WeakKeyDictionary[Holder, float] = WeakKeyDictionary()
        self.clearing_rates = ClearingRates()
        self.busy_seconds = 0.0

    async def look(self, holders: Iterable[Holder] | None = None) -> None:
        """Handle slow consumers whose patience has run out: of all, or of `holders` alone.

        The search for rings in between takes a while with ten thousand waiting readers. Other tasks
        run meanwhile, and a holder that has made progress by then is let off.
        """
        # Drain here: all readers that would take the next turn may be waiting for leaked debt.
        self.ledger.drain()
        if holders is None:
            ledger = self.ledger
            before = ledger.at_ease
            ledger.at_ease = not (ledger.waiters or ledger.ranked or len(ledger.causes))
            if before and ledger.at_ease:
                return  # there is nothing to handle, and nothing to forget
            await self._with_pauses(_spill_again_in_steps(self.ledger))
            await self._with_pauses(self.ledger.causes.look_in_steps(self.ledger))
        now = self.ledger.clock()
        stuck = await self._with_pauses(overdue_in_steps(self.ledger, now, holders))
        slow: list[Stuck] = []
        if holders is None:
            idle = {each.holder for each in stuck}
            slow = await self._with_pauses(too_slow_in_steps(self.ledger, now, self.clearing_rates))
            slow = [s for s in slow if s.holder not in idle]
            who = {id(each.holder) for each in (*stuck, *slow)}
            self.named = {each: when for each, when in self.named.items() if each in who}
        on_ring: dict[Holder, Ring] = {}
        # Whoever is on a ring that another process opens has its patience anew after that, and so
        # such rings are looked at before the patience of their members is over.
        looks = stuck or self.ledger.ranked
        found = await self._with_pauses(rings_in_steps(self.ledger, now)) if looks else ()
        if self.ledger.clock() > now:
            now = self.ledger.clock()
            stuck = await self._with_pauses(
                overdue_in_steps(self.ledger, now, [each.holder for each in stuck])
            )
        for ring in found:
            members_of = {on.holder: ring for wait in ring.waits for on in wait.on if on.holder}
            on_ring.update(members_of)
            if _rank(ring):
                self.spared.update(dict.fromkeys(members_of, now))
        stuck_rings: dict[int, tuple[Ring, list[Stuck]]] = {}
        alone: list[Stuck] = []
        for each in stuck:
            if each.holder.progressed_at > now or each.holder not in self.ledger.holders:
                continue  # meanwhile it has made progress, or ended
            ring_of_it = on_ring.get(each.holder)
            if ring_of_it is not None:
                rank = _rank(ring_of_it)
                if rank and each.idle_seconds < (1 + rank) * each.holder.patience:
                    continue  # another process opens it first
                stuck_rings.setdefault(id(ring_of_it), (ring_of_it, []))[1].append(each)
            elif self._patience_is_over(each.holder, now):
                alone.append(each)
        if not (alone or slow or stuck_rings):
            return
        freed = _Freed()
        members = [each for _, some in stuck_rings.values() for each in some]
        await self._with_pauses(freed.look_in_steps(self.ledger, (*alone, *slow, *members)))
        await self._deal_with_best_first([*alone, *slow], freed, now)
        for ring, some in stuck_rings.values():
            freed.by.extend(self._deal_with_ring(ring, some, now))
        await self._with_pauses(freed.tell_in_steps())

    async def _deal_with_best_first(self, stuck: list[Stuck], freed: _Freed, now: float) -> None:
        """Handle holders, the best first (`ReliefOrder`), as long as readers wait on them."""
        waits = StuckPolicy.WAIT
        may_go = [each for each in stuck if each.holder.policy is not waits]
        order = await self._with_pauses(_order_in_steps(may_go, freed.readers))
        number = 0
        while (best := await self._with_pauses(order.pop_in_steps())) is not None:
            number += 1
            if not number % DEALT_A_STEP:
                await checkpoint()
            each = best.what
            holder = each.holder
            if holder not in self.ledger.holders or (
                each.slow is None and holder.progressed_at > now
            ):
                continue  # meanwhile it has made progress, or ended
            if not _still_blocks(each):
                freed.spared += 1
                if each.slow is None:
                    UsedUp.note(holder, each.idle_seconds, now)
            elif self._deal_with(each):
                await self._with_pauses(order.took_in_steps(best))
                freed.by.append(each)
        for each in sorted((each for each in stuck if each.holder.policy is waits), key=_tie):
            if each.holder in self.ledger.holders and _still_blocks(each):
                self._name([each], self._sentence(each), now)

    async def _with_pauses(self, steps: Generator[None, None, T]) -> T:
        found, seconds = await with_pauses(steps, STRETCH_SECONDS)
        self.busy_seconds += seconds
        return found

    def shortest_patience(self, impatient: Iterable[Holder]) -> float:
        """Return the shortest patience of some holders that is not 0."""
        shortest = math.inf
        for holder in impatient:
            try:
                shortest = min(shortest, holder.patience or math.inf)
            except Exception as exc:  # noqa: BLE001 (as in `overdue`)
                self.ledger.faults.note(holder, "looking at its patience", exc)
        return shortest

    def _patience_is_over(self, holder: Holder, now: float) -> bool:
        """Whether the patience of a holder is over, counted from when a ring spared it, if so."""
        spared = self.spared.get(holder)
        if spared is not None and now - spared < holder.patience:
            return False
        self.spared.pop(holder, None)
        return True

    def _deal_with(self, stuck: Stuck) -> bool:
        deal = self._relieve if stuck.holder.policy.relieves else self._give_up
        return deal(stuck, self._sentence(stuck))

    def _sentence(self, stuck: Stuck) -> str:
        """Return who waits on whom, and why that is slow, if it is known."""
        why = self.ledger.causes.sentence(stuck.holder)
        return stuck.sentence() if why is None else f"{stuck.sentence()}: {why}"

    def _deal_with_ring(self, ring: Ring, members: list[Stuck], now: float) -> list[Stuck]:
        """Relieve or give up as many members as let one go on, where the policies allow it.

        Members that can be relieved come first: they stay.

        Returns:
            Those that were handled.
        """
        dealt: list[Stuck] = []
        members.sort(key=_tie)
        members.sort(key=lambda s: not s.holder.policy.relieves)
        what = f", in a {ring.sentence()}"
        may_go = [each for each in members if each.holder.policy is not StuckPolicy.WAIT]
        if not may_go:
            self._name(members, members[0].sentence() + what, now)
            return dealt
        # `over`: the debt still to be repaid before readers at an account go on. `of_owner`: the
        # accounts that each connection blocks, and how much of their debt it holds.
        over = {wait.at: [wait.over_items, wait.over_bytes] for wait in ring.waits}
        of_owner: dict[str | None, list[tuple[str, int, int]]] = {}
        for wait in ring.waits:
            for on in wait.on:
                of_owner.setdefault(on.owner, []).append((wait.at, on.items, on.bytes))
        gone: set[str] = set()
        enough = False
        for each in may_go:
            owner = "" if each.holder.owner is None else each.holder.owner.name
            # All holders of one connection go together.
            if enough and owner not in gone:
                continue
            deal = self._relieve if each.holder.policy.relieves else self._give_up
            if deal(each, each.sentence() + what, len(ring.members)):
                what = ""
                dealt.append(each)
                gone.add(owner)
                for at, items, nbytes in of_owner.pop(owner, ()):
                    over[at][0] -= items
                    over[at][1] -= nbytes
                    enough = enough or max(over[at]) <= 0
        for wait in ring.waits:
            for on in wait.on:
                if on.holder is not None:
                    self.spared[on.holder] = now
        return dealt

    def _relieve(self, stuck: Stuck, sentence: str, ring: int = 0) -> bool:
        holder = stuck.holder
        spells = holder.relief.spells
        policy = holder.policy
        debtors = _debtors(holder)
        why = self.ledger.causes.sentence(holder)
        before = _written_off(self.ledger)
        try:
            holder.relieve(sentence, stuck.fields())
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self._failed(stuck, "relieved", exc)
            return False
        if holder not in self.ledger.holders:
            # Its policy was not applicable: it has ended itself, and logged that.
            self._note_given_up(stuck, debtors, before, ring, why)
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
                why=why,
            )
            self.ledger.incidents.add_relieved(holder, what, self.ledger.clock())
        return holder.lagging

    def _give_up(self, stuck: Stuck, sentence: str, ring: int = 0) -> bool:
        holder = stuck.holder
        # A queue discards what it may, and keeps accepted messages if it can.
        what_now = "it has to make room" if holder.makes_room else "its debt is written off"
        logger.warning("%s; giving it up, %s", sentence, what_now, extra=stuck.fields())
        began = self.ledger.clock()
        debtors = _debtors(holder)
        why = self.ledger.causes.sentence(holder)
        before = _written_off(self.ledger)
        try:
            holder.give_up(sentence)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self._failed(stuck, "given up", exc)
            return False
        if (
            holder.makes_room
            and holder in self.ledger.holders
            and _written_off(self.ledger)[0] == before[0]
        ):
            # It has spilled its messages, or keeps them: nothing was given up.
            return True
        if holder.makes_room and self.ledger.incidents.has_given_up(holder, began):
            # Its owner has already reported the outcome.
            return True
        self._note_given_up(stuck, debtors, before, ring, why)
        return True

    def _failed(self, stuck: Stuck, how: str, exc: Exception) -> None:
        """Note that a policy failed for one holder: the others are handled nevertheless."""
        holder = stuck.holder
        logger.error(
            "%s %s could not be %s", holder.kind, holder.name, how,
            exc_info=exc, extra=stuck.fields(),
        )  # fmt: skip
        if self.ledger.faults.ends:
            self.ledger.faults.note(holder, f"it was to be {how}", exc)

    def _note_given_up(
        self,
        stuck: Stuck,
        debtors: tuple[str, ...],
        before: tuple[int, int],
        ring: int,
        why: str | None,
    ) -> None:
        """Note the items and bytes written off since `before`."""
        items, nbytes = _written_off(self.ledger)
        what = GivenUp(
            kind=stuck.holder.kind,
            items=items - before[0],
            bytes=nbytes - before[1],
            debtors=debtors[:NAMED],
            debtors_more=max(0, len(debtors) - NAMED),
            idle_seconds=stuck.idle_seconds,
            ring=ring,
            why=why,
        )
        self.ledger.incidents.add_given_up(stuck.holder, what, self.ledger.clock())

    def _name(self, members: list[Stuck], sentence: str, now: float) -> None:
        """Log that readers wait on these, once each time that the patience of one runs out."""
        if any(
            now - self.named.get(id(s.holder), -s.holder.patience) >= s.holder.patience
            for s in members
        ):
            self.named.update((id(each.holder), now) for each in members)
            logger.warning("%s; its policy is to wait", sentence, extra=members[0].fields())


async def watch_patience(ledger: Ledger, *, every: float = WATCH_SECONDS) -> None:
    """Handle slow consumers whose patience has run out, every `every` seconds, until cancelled.

    While nobody waits it looks every `EASE_SECONDS`; the first who waits wakes it.

    `StuckPolicy.DISCONNECT` gives the holder up: its debt is `written_off`, and the readers that
    waited go on. `StuckPolicy.WAIT` only names it, once for each patience. The other policies
    relieve it, and the readers that waited go on at once (`Holder.relieve`). Each case is logged as
    one warning that says who waits on whom, for how much, and since when; its fields (`extra=`) are
    those of `Stuck.fields`. The ledger's `incidents` keep recent cases. The watch also repays
    leaked loans, so that readers do not wait for debt that nobody has.

    A holder without patience (0 s) is handled as soon as a reader begins to wait for it.

    For holders on a ring (`rings`), the warning names it with its members, once for all of them. Of
    those whose patience has run out and whose policy is not to wait, one is handled: preferably one
    that is relieved, since it stays; then the one idle the longest, of equals the one that holds
    most. More are handled at once only if one lets nobody go on. The others have their patience
    anew, unless they are on a ring again.
    """
    watch = _Watch(ledger)
    loop = ledger.loop()
    somebody_waits = loop.event()
    ledger.on_wait = lambda: somebody_waits.set()
    if ledger.waiters:
        somebody_waits.set()  # readers were waiting before the watch began
    try:
        due = following(loop.now(), every)
        soon = math.inf  # next check of holders with little patience
        while True:
            await loop.wait_until(somebody_waits, min(due, soon))
            now = loop.now()
            impatient = list(ledger.impatient)
            shortest = watch.shortest_patience(impatient)
            if now >= soon:
                soon = now + max(shortest, PAUSE_SECONDS) if ledger.waiters else math.inf
            if somebody_waits.is_set():
                somebody_waits = loop.event()
                ledger.at_ease = False
                due = min(due, following(now, every))
                soon = min(soon, now + shortest + TICK_SECONDS)
            if now >= due:
                watch.busy_seconds = 0.0
                await watch.look()
                pause = watch.busy_seconds / PATIENCE_SHARE
                interval = max(every, EASE_SECONDS) if ledger.at_ease else every
                due = following(now + max(0.0, pause - every), interval)
            else:
                await watch.look(impatient)
    finally:
        ledger.on_wait = None
        ledger.at_ease = False
