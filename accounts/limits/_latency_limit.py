"""A limit in seconds: it bounds the age of debt, whatever the rate of clearing.

By Little's law, debt equals the clearing rate times the time that it is owed for. So the limit is
the clearing rate times the target. The controller measures the rate of the consumers that block
readers, and moves the limit when it matters.

Theory of operation. Repayments while readers do not wait say little: they include the eight of nine
subscribers that take everything at once, and each publication's own input. Repayments while readers
wait are the rest: nothing is borrowed meanwhile. So between the *closing* of the account's gate (a
reader found it above its limit) and its *opening* (the debt is at the lower mark), there is

    cleared = debt at the closing - debt now        in a measured time,

and sums of both give the rate; half of them is forgotten in each target that readers have waited.
The new limit is in force before the first reader goes on. If the debt is above its lower mark by
then, the gate stays closed, and the measurement begins anew from there. Beside that:

1. *Aim.* 7/8 of rate x target, plus a bit for accounts with little: the square root of it, but not
   more than the eighth. So accounts that share one consumer become equal. With the rate alone each
   would keep what it has: every division of a queue looks equally good to an account that knows
   only its own rate.
2. *Growth.* The limit at most doubles in a target. An apparently fast consumer may be a buffer that
   fills, and all that has been borrowed has to be cleared, at whatever rate.
3. *Lumps.* A consumer that takes its work in lumps, further apart than 7/8 of the target, needs as
   much debt as it takes at once. One that has left less than the lower mark, by an eighth of the
   limit, has taken a lump: the limit is at least the amount that was cleared.
4. *Nothing left.* If the consumer left nothing, it may have waited for more, and a lower limit
   would make nothing younger, since no event stood behind another (CoDel: a queue that empties is a
   good one). The limit grows, by an eighth and then by twice as much each time, as long as that is
   of use: as long as the clearing rate grows at least half as much. If it does not, the limit
   itself causes the lumps, and rules 3 and 4 do not hold; if then the limit and the clearing rate
   fall together, they do after all. Each finding stands for 8 times in a row.
5. *Out of the way.* While no reader waits the limit says nothing about the rate, nor the rate about
   the limit. The limit may grow to the amount cleared in an eighth of the target, so that a fast
   publisher's runs are not cut into many pieces. When it has stopped nobody for 8 targets, it
   falls, by half in each 8, to twice the debt, so that an old value does not stay valid for ever
   (as in RFC 7661 for TCP's window). This alone needs `watch_limits`.

All of it is for items and for bytes; readers wait for the tighter one.

Limitation: existing debt cannot be made younger. When the clearing rate suddenly falls to a k-th,
debt borrowed at the old rate takes k targets to clear, under any limit; nothing is borrowed until
then.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._gate import gate_of
from ._limit import Limit
from ._limit_policy import MovingLimit

if TYPE_CHECKING:
    from .._account import Account
    from ._limit_policy import LimitControl

DEFAULT_TARGET: Final = 0.05
"""Seconds: half of what people notice; some round trips within a continent."""

DEFAULT_FLOOR: Final = Limit(items=10, bytes=14_600)
"""Same as TCP's initial window (RFC 6928): 10 segments, 14,600 bytes."""

PART: Final = 8
"""An eighth of the limit, or of the rate, counts as little, here as in shares."""

IDLE_TARGETS: Final = 8
"""Targets without a waiting reader before a limit begins to fall; in as many it falls by half."""

MAX_PRESSES: Final = 3
"""After so many times in a row with nothing left, a limit doubles each time."""

NOTICED: Final = math.log(1.1)
"""Least change of a limit for a comparison: a tenth."""

HOLD: Final = 8
"""Number of times in a row for which a finding stands: that a lower limit is too low, or that a
higher one is of no use."""

AN_INSTANT: Final = 1 / 64
"""Repayments within this fraction of the target count as one instant."""

PROBING: Final = "probing"
TRACKING: Final = "tracking"
DRAINING: Final = "draining"
IDLE: Final = "idle"
AT_FLOOR: Final = "floor"
AT_CEILING: Final = "ceiling"

LIMIT_STATES: Final = (PROBING, TRACKING, DRAINING, IDLE, AT_FLOOR, AT_CEILING)
"""The states of a `LatencyLimit`; see there."""


def _positive(_: object, __: attrs.Attribute[Any], value: float) -> None:
    if not 0 < value < math.inf:
        msg = f"the target of a LatencyLimit must be above 0 s, not {value}"
        raise ValueError(msg)


@attrs.frozen(slots=True)
class LatencyLimit:
    """A limit that moves, so that debt is about as old as `target` when it is cleared.

    For accounts whose readers wait by themselves, not for `shared` ones. It is in one of these
    states (`MovingLimit.state`):

    - `probing`: debt clears faster than necessary. The limit doubles each target; ages are below
      the target. Each new account begins so, at the floor.
    - `tracking`: the limit is the amount cleared in a target. Readers wait about twice a target,
      for half of one each time; ages are between half of the target and the target.
    - `draining`: readers have waited for longer than a target, because debt is cleared more slowly
      than before, or not at all. The age is above the target and grows; nobody borrows. The limit
      comes down as soon as there is something to measure.
    - `idle`: no reader has waited for it for 8 targets. It blocks nobody, and falls slowly, to
      twice the debt.
    - `floor`: less than the floor is cleared in a target. Ages are above the target; a lower limit
      would make consumers wait for work.
    - `ceiling`: more than the ceiling is cleared in a target. Ages are below the target.

    A consumer that by itself takes longer than half of the target, such as one that acknowledges
    from far away, does not suit that target: the limit then goes to the floor.

    Raises:
        ValueError: If the target is not above zero, or the floor above the ceiling.
    """

    target: float = attrs.field(default=DEFAULT_TARGET, validator=_positive)
    """Target age of debt, in seconds."""
    floor: Limit = DEFAULT_FLOOR
    """The lowest limit. Its lower marks do not matter."""
    ceiling: Limit = attrs.field(factory=Limit)
    """The highest limit, which bounds the memory. Its lower marks do not matter either."""

    def __attrs_post_init__(self) -> None:
        for unit, low, high in (
            ("items", self.floor.items, self.ceiling.items),
            ("bytes", self.floor.bytes, self.ceiling.bytes),
        ):
            if high is not None and (low is None or low > high):
                msg = f"a LatencyLimit's floor of {low} {unit} must not be above its ceiling {high}"
                raise ValueError(msg)

    def control(self, account: Account) -> LimitControl | None:
        """See `LimitPolicy.control`.

        Raises:
            ValueError: If the account is shared.
        """
        if account.shared:
            msg = (
                f"{account.name} is shared, so its children go on while it is above its limit, and "
                "how fast that clears cannot be told; give LatencyLimits to its children"
            )
            raise ValueError(msg)
        return LatencyControl(self, account)


@attrs.frozen(slots=True)
class _Then:
    """The values in one unit when a measurement began."""

    debt: int
    borrowed: int
    cleared: float
    limit: float
    low: int


@attrs.frozen(slots=True)
class _Start:
    """The beginning of a measurement."""

    at: float
    seconds: float
    moved: float
    units: tuple[_Then, _Then]


@attrs.frozen(slots=True)
class _Starved:
    """The debt and the clearing rate when nothing was left."""

    owed: int
    speed: float


class _Unit:
    """The limit in items, or in bytes."""

    __slots__ = (
        "aim", "ceiling", "cleared", "floor", "limit", "over", "seen_borrowed", "seen_debt",
        "speed",
    )  # fmt: skip

    def __init__(self, floor: int | None, ceiling: int | None) -> None:
        self.ceiling = math.inf if ceiling is None else ceiling
        self.floor = self.ceiling if floor is None else floor
        self.limit: float = self.floor
        self.aim = math.inf
        # Whether the debt was above this mark when the gate closed.
        self.over = True
        # Cleared while readers waited, with exponential decay.
        self.cleared = 0.0
        # Values at the last tick, and the clearing rate before it, while no reader waits.
        self.seen_borrowed = 0
        self.seen_debt = 0
        self.speed = 0.0

    def limit_to(self, aim: float, highest: float) -> None:
        self.aim = aim
        self.limit = max(self.floor, min(aim, highest, self.ceiling))

    def mark(self) -> int | None:
        return None if math.isinf(self.limit) else int(self.limit)


class LatencyControl:
    """The controller that moves one account's limit by a `LatencyLimit`.

    Attributes:
        policy: The `LatencyLimit`.
    """

    __slots__ = (
        "_account", "_bytes", "_closed_at", "_hold", "_items", "_moved", "_needed", "_next",
        "_opening", "_presses", "_seconds", "_start", "_starved", "_starved_before", "_target",
        "_ticked", "_waited_at", "policy",
    )  # fmt: skip

    def __init__(self, policy: LatencyLimit, account: Account) -> None:
        self.policy = policy
        self._account = account
        self._target = policy.target
        self._items = _Unit(policy.floor.items, policy.ceiling.items)
        self._bytes = _Unit(policy.floor.bytes, policy.ceiling.bytes)
        now = account.ledger.clock()
        # Seconds that readers have waited, with exponential decay.
        self._seconds = 0.0
        # When the limit was moved last.
        self._moved = now
        # Set if nothing was left when the gate opened: this time, and the time before; how often
        # in a row; and whether a higher limit was of use.
        self._starved: _Starved | None = None
        self._starved_before: _Starved | None = None
        self._presses = 0
        self._needed = True
        self._hold = 0
        # Whether the gate has been opened, and not closed since.
        self._opening = False
        self._closed_at = self._waited_at = self._ticked = now
        self._see()
        # The beginning of this measurement; and of the next, if that is not the same instant.
        self._start = self._here(now)
        self._next: _Start | None = None
        account.limit = self._limit()

    def __repr__(self) -> str:
        return f"<LatencyControl of {self._account.name}: {self.statistics()}>"

    # -- called by the account ------------------------------------------------------------------

    def closed(self) -> None:
        """See `LimitControl.closed`."""
        account = self._account
        self._items.over = account.debt_items > account.mark_items
        self._bytes.over = account.debt_bytes > account.mark_bytes
        self._learn()
        self._starved = None
        self._opening = False
        self._closed_at = account.ledger.clock()
        self._start = self._here(self._closed_at)
        self._next = None

    def _learn(self) -> None:
        """Note whether nothing was left, and whether a higher limit was of use."""
        starved = self._starved
        if starved is None:
            self._presses = 0
            return
        needed = self._is_needed()
        self._presses = min(self._presses + 1, MAX_PRESSES) if needed else 0
        self._starved_before = starved
        if needed == self._needed:
            self._hold = max(0, self._hold - 1)
            if not needed and not self._hold:
                self._needed = True
                self._starved_before = None
        else:
            self._needed = needed
            self._hold = HOLD

    def may_open(self) -> bool:
        """See `LimitControl.may_open`."""
        account = self._account
        now = account.ledger.clock()
        if self._next is not None and not self._is_same_instant(self._next.at, now):
            self._start = self._next
        self._measure(now)
        if account.debt_items <= account.low_items and account.debt_bytes <= account.low_bytes:
            self._waited_at = now
            self._opening = True
            self._see()
            return True
        self._next = self._here(now)
        return False

    def repaid(self) -> None:
        """See `LimitControl.repaid`: the rest of the lump that opened the gate.

        Later repayments are not measured: something else may have kept the readers.
        """
        now = self._account.ledger.clock()
        if self._opening and self._is_same_instant(self._waited_at, now):
            self._measure(now)

    def _is_same_instant(self, then: float, now: float) -> bool:
        return now - then <= self._target * AN_INSTANT

    def _units(self) -> tuple[tuple[_Unit, int, int], tuple[_Unit, int, int]]:
        """Return each unit with the debt and the amount ever borrowed in it."""
        account = self._account
        return (
            (self._items, account.debt_items, account.borrowed_items),
            (self._bytes, account.debt_bytes, account.borrowed_bytes),
        )

    def _here(self, now: float) -> _Start:
        """Return the present values, as the beginning of a measurement."""
        account = self._account
        (items, debt_items, in_items), (nbytes, debt_bytes, in_bytes) = self._units()
        return _Start(
            at=now,
            seconds=self._seconds,
            moved=self._moved,
            units=(
                _Then(debt_items, in_items, items.cleared, items.limit, account.low_items),
                _Then(debt_bytes, in_bytes, nbytes.cleared, nbytes.limit, account.low_bytes),
            ),
        )

    def _measure(self, now: float) -> None:
        """Measure what was cleared since the measurement began, and move the limit.

        A second call before the next measurement begins replaces the first.
        """
        start = self._start
        seconds = now - start.at
        kept = self._kept(seconds)
        self._seconds = start.seconds * kept + seconds
        grown = self._growth(now - start.moved)
        self._moved = now
        units = self._units()
        # Whether it was taken in a lump: in the unit that closed the gate, clearly less was left
        # than the lower mark.
        lump = no_mark = False
        if seconds > self._target - self._target / PART:
            for (unit, debt, _), then in zip(units, start.units, strict=True):
                if unit.over:
                    lump = lump or then.low - debt > then.limit / PART
                    no_mark = no_mark or not then.low
        nothing_left = (lump or no_mark) and not units[0][1]
        if nothing_left:
            owed = start.units[0].debt
            self._starved = _Starved(owed, owed / seconds)
        needed = lump and self._is_needed()
        for (unit, debt, borrowed), then in zip(units, start.units, strict=True):
            # Amounts that accounts below borrowed are not in `borrowed`.
            cleared = max(0, then.debt - debt + borrowed - then.borrowed)
            unit.cleared = then.cleared * kept + cleared
            aim = math.inf
            if self._seconds > 0:
                aim = _aim(unit.cleared / self._seconds * self._target)
            if needed:
                aim = max(aim, cleared)
            if nothing_left and self._is_needed():
                more = 2.0**self._presses / PART if unit.over else 0.0
                aim = max(aim, then.limit * (1 + more))
            unit.limit_to(aim, then.limit * grown)
        gate_of(self._account).move_limit(self._limit())

    def _is_needed(self) -> bool:
        """Whether a higher limit is of use to a consumer that leaves nothing."""
        now, before = self._starved, self._starved_before
        if now is None or before is None or (self._needed and self._hold):
            return self._needed
        change = math.log(now.owed / before.owed)
        if abs(change) < NOTICED:
            return self._needed
        return math.log(now.speed / before.speed) / change > 1 / 2

    def _kept(self, seconds: float) -> float:
        """Return the fraction of the earlier measurements that still counts."""
        return math.exp2(-seconds / self._target)

    def _growth(self, seconds: float) -> float:
        """Return the factor by which the limit may grow, `seconds` after it was moved."""
        return math.exp2(min(max(seconds, 0.0), self._target) / self._target)

    def _limit(self) -> Limit:
        return Limit(items=self._items.mark(), bytes=self._bytes.mark())

    # -- called now and then --------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """See `LimitControl.tick`; rule 5 above explains its purpose."""
        account = self._account
        seconds = now - self._ticked
        self._ticked = now
        if (
            account.borrowed_items == self._items.seen_borrowed
            and not account.debt_items
            and not self._items.seen_debt
            and self._items.limit <= self._items.floor
            and self._bytes.limit <= self._bytes.floor
        ):
            # Most accounts are quiet most of the time.
            self._items.speed = self._bytes.speed = 0.0
            return
        if gate_of(account).throttled or seconds <= 0:
            self._see()
            return
        idle = now - self._waited_at > IDLE_TARGETS * self._target
        grown = self._growth(now - self._moved)
        self._moved = now
        for unit, debt, borrowed in self._units():
            cleared = borrowed - unit.seen_borrowed - debt + unit.seen_debt
            unit.speed = cleared / seconds
            at_once = unit.speed * self._target / PART
            if at_once > unit.limit:
                unit.limit_to(at_once, unit.limit * grown)
            elif idle:
                keep = max(at_once, 2.0 * debt)
                fallen = unit.limit * self._kept(seconds / IDLE_TARGETS)
                unit.limit = max(unit.floor, min(unit.limit, max(keep, fallen)))
        self._see()
        account.limit = self._limit()

    def _see(self) -> None:
        for unit, debt, borrowed in self._units():
            unit.seen_debt = debt
            unit.seen_borrowed = borrowed

    # -- looking --------------------------------------------------------------------------------

    def statistics(self) -> MovingLimit:
        """See `LimitControl.statistics`."""
        account = self._account
        now = account.ledger.clock()
        state = self._state(now)
        start = self._start
        passed = now - start.at
        kept = self._kept(passed)
        still = self._still(passed)
        speeds: list[float] = []
        for (unit, debt, _), then in zip(self._units(), start.units, strict=True):
            if state == IDLE:
                speed = max(0.0, unit.speed)
            elif gate_of(account).throttled:
                cleared = then.cleared * kept + max(0, then.debt - debt)
                speed = _speed(cleared, start.seconds * kept + passed)
                speed = max(speed, _speed(then.cleared, start.seconds) * still)
            else:
                speed = _speed(unit.cleared, self._seconds)
            speeds.append(speed)
        age = 0.0
        if account.debt_items:
            # Nothing has been borrowed for so long, or had to be cleared at the last tick.
            age = now - (self._closed_at if gate_of(account).throttled else self._ticked)
            if speeds[0] > 0:
                age = max(age, account.debt_items / speeds[0])
        return MovingLimit(
            state=state,
            target_seconds=self._target,
            age_seconds=age,
            items_per_second=speeds[0],
            bytes_per_second=speeds[1],
        )

    def _still(self, passed: float) -> float:
        """Return the fraction of the earlier rate that cannot be ruled out yet.

        One event may still take all of the time that has passed since. Decay alone would lead to a
        rate of zero, and an infinite age, while a consumer is stuck.
        """
        before = _speed(self._start.units[0].cleared, self._start.seconds)
        return min(1.0, 1 / (before * passed)) if before * passed > 0 else 1.0

    def _state(self, now: float) -> str:
        account = self._account
        if gate_of(account).throttled:
            if now - self._closed_at > self._target:
                return DRAINING
        elif now - self._waited_at > IDLE_TARGETS * self._target:
            return IDLE
        unit = self._items if self._items.over else self._bytes
        if unit.aim >= unit.ceiling <= unit.limit:
            return AT_CEILING
        if unit.aim <= unit.floor:
            return AT_FLOOR
        return PROBING if unit.aim > unit.limit else TRACKING


def _speed(cleared: float, seconds: float) -> float:
    return cleared / seconds if seconds > 0 else 0.0


def _aim(cleared: float) -> float:
    """Return the limit for the amount cleared in a target."""
    return cleared - cleared / PART + min(math.sqrt(cleared), cleared / PART)
