"""An account: the outstanding work of one source.

It is its own books: what is owed, here and below (`_books.py` has the postings). Its gates, which
make readers wait, and its line of readers are parts of their own, made when they are needed
(`_gate.py`, `_line.py`).

A closed account that still owes is `closing` until it is paid off; opening its name again takes
over the debt (rule 14).
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from ._books import borrow as post_borrow
from ._books import repay as post_repay
from ._errors import ClosedAccountError
from ._gate import gate_of, lets_through, room_closer, share_of
from ._line import blame_of, readers_of, wait_for_clear_funds, waited_of
from ._loan import LoanedItem
from ._measure import measure
from ._statistics import AccountStatistics
from ._turn import Turn
from ._waiters import NOBODY, waited_by_reason
from .limits._limit import UNLIMITED, Limit, check_limit
from .limits._standing import Standing
from .trace._traced import FollowedTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    from ._confirm import Confirm
    from ._gate import Gate
    from ._ledger import Ledger
    from ._line import Line
    from .limits._limit_policy import LimitControl, LimitPolicy
    from .limits._rate_limit import RateLimit, TokenBucket
    from .limits._shares import Shares
    from .trace._notes import Notes
    from .trace._tracer import Tracer

    T = TypeVar("T")


def check_weight(weight: float) -> None:
    """Check that `weight` can be the weight of an account.

    Raises:
        ValueError: If it is not above zero.
    """
    if not 0 < weight < math.inf:
        msg = f"a weight must be above 0, not {weight}; an account that may owe nothing has a limit"
        raise ValueError(msg)


class Account:
    """A running total of unfinished work done on behalf of one source.

    Made by `Ledger.open`. Treat the amounts as read-only: loans and turns change them through
    `borrow` and `repay`, and sending goes through loans and turns.

    Attributes:
        name: The name that an operator sees.
        parent: The account above it, or None. The debt counts there too (rule 13).
        chain: It and all accounts above it.
        below: Its child accounts; None or empty for none.
        ledger: The ledger that it belongs to.
        debt_items: Outstanding events charged to it and its descendants.
        debt_bytes: Their bytes.
        peak_items: The highest `debt_items` so far.
        peak_bytes: The highest `debt_bytes` so far.
        borrowed_items: Events ever charged to it directly.
        borrowed_bytes: Their bytes.
    """

    __slots__ = (
        "__weakref__", "_weight", "below", "borrowed_bytes", "borrowed_items", "chain", "control",
        "debt_bytes", "debt_items", "gate", "gated", "ledger", "limited", "line", "low_bytes",
        "low_items", "mark_bytes", "mark_items", "name", "opens", "own_limit", "parent", "passed",
        "peak_bytes", "peak_items", "rated", "shares", "sharing", "tracers", "tracing",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, name: str, limit: Limit, parent: Account | None) -> None:
        self.ledger = ledger
        self.name = name
        self.parent = parent
        self.chain: tuple[Account, ...] = (self, *(parent.chain if parent is not None else ()))
        self.below: dict[Account, None] | None = None
        self.debt_items = 0
        self.debt_bytes = 0
        self.peak_items = 0
        self.peak_bytes = 0
        self.borrowed_items = 0
        self.borrowed_bytes = 0
        self.opens = 1
        # Tracers that want to follow its next root turns.
        self.tracers: tuple[Tracer, ...] | None = None
        # The traced loan that a holder takes over at this moment; see `under_trace`.
        self.tracing: Notes | None = None
        # Made at the first need: `gate_of` and `line_of`.
        self.gate: Gate | None = None
        self.line: Line | None = None
        # A reader has to look closer: a gate is closed or may be, or somebody stands in line.
        self.gated = False
        # The ticket of the reader that was let through last and has brought nothing in since; the
        # account's other readers may not use it.
        self.passed = NOBODY
        self._weight = 1.0
        # Set while it is shared.
        self.shares: Shares | None = None
        self.own_limit = limit
        self.mark_items, self.mark_bytes, self.low_items, self.low_bytes = limit.marks()
        # Moves the limit; None: nothing does.
        self.control: LimitControl | None = None
        # See `find_limited`.
        self.limited: tuple[Account, ...] = ()
        self.sharing = False
        self.rated: tuple[TokenBucket, ...] = ()
        self.find_limited()

    def __repr__(self) -> str:
        return (
            f"<Account {self.name}: {self.state}, owes {self.debt_items} items and "
            f"{self.debt_bytes} bytes, {self.waiting} waiting>"
        )

    # -- what it may owe ------------------------------------------------------------------------

    @property
    def limit(self) -> Limit:
        """The high-water mark of its debt. Setting it takes effect at once.

        Readers that wait go on if the debt is at or below the new lower mark. Readers that would
        have to wait now find out at their next check.
        """
        return self.own_limit

    @limit.setter
    def limit(self, limit: Limit) -> None:
        check_limit(limit)
        if limit != self.own_limit:
            gate_of(self).set_limit(limit)

    def limit_by(self, policy: LimitPolicy | None) -> None:
        """Let `policy` set the limit from now on; None: it stays where it is.

        A policy that moves with time needs `watch_limits` running beside it.
        """
        self.control = None
        if policy is not None:
            self.control = policy.control(self)

    @property
    def is_limited(self) -> bool:
        """Whether it has a limit of its own."""
        return self.mark_items < UNLIMITED or self.mark_bytes < UNLIMITED

    def find_limited(self) -> None:
        """Find what of the chain its readers check; for `Ledger.limits_changed`.

        Only accounts with a limit, or a share of one, are `limited`, and so checked before each
        read. An account that has lost its limit is checked until its line is gone: nobody
        overtakes. `sharing`: some are shared. `rated`: all rate limits, which input is charged to.
        """
        limited: list[Account] = []
        rated: list[TokenBucket] = []
        sharing = shared = False  # whether some are shared, and whether the one above is
        for a in reversed(self.chain):
            if shared or a.gated or a.is_limited:
                limited.append(a)
            shared = a.shares is not None
            sharing = sharing or shared
            if a.gate is not None and a.gate.bucket is not None:
                rated.append(a.gate.bucket)
        # Mostly it is all of them: one tuple is enough then.
        all_of_them = len(limited) == len(self.chain)
        self.limited = self.chain if all_of_them else tuple(reversed(limited))
        self.sharing = sharing
        self.rated = tuple(reversed(rated))

    @property
    def shared(self) -> bool:
        """Whether its children have weighted fair shares of its limit; may be set at any time.

        While it is not shared, everything below it waits when it is above its limit, until it is at
        its lower mark. While it is shared, a child goes on as long as its debt is at or below its
        share. A child above its share waits for its own debt to fall to a sixteenth below the
        share, and lower by as much as it was above, up to another sixteenth. The share is at least
        the limit times the child's `weight` over the weights of all children that owe; children
        that want more get what others leave of theirs. Above twice the limit everybody below waits,
        as without shares. So the debt never exceeds twice the limit plus what each reader that was
        let through causes until its next check (rule 9: one packet's fan-out).

        A shared child does not wait itself when it is above its share: its own children have shares
        of that share, and all of them wait at one and a half times it. Readers of the shared
        account itself have no share, and wait only when everybody does.

        Raises:
            ValueError: When it is set for an account with a moving limit; see `limit_by`.
        """
        return self.shares is not None

    @shared.setter
    def shared(self, shared: bool) -> None:
        if shared != (self.shares is not None):
            gate_of(self).set_shared(shared)

    @property
    def weight(self) -> float:
        """Its weight among its siblings, if its parent is shared. Setting it takes effect at once.

        Raises:
            ValueError: When it is set to a number that is not above zero.
        """
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        check_weight(weight)
        if weight == self._weight:
            return
        self._weight = weight
        parent = self.parent
        # An account that owes nothing is not counted, and so affects no sibling.
        if parent is not None and parent.shares is not None and self in parent.shares.active:
            parent.shares.changed()
            gate_of(parent).share_anew(None)

    @property
    def rate(self) -> RateLimit | None:
        """Rate limit of the input of it and all below it. Setting it takes effect at once.

        A new token bucket begins with the tokens left in the one before, or full. The input of root
        turns takes tokens; readers wait when none are left, and go on in their order when there are
        some again.
        """
        bucket = None if self.gate is None else self.gate.bucket
        return None if bucket is None else bucket.limit

    @rate.setter
    def rate(self, rate: RateLimit | None) -> None:
        if rate is not None or self.rate is not None:
            gate_of(self).set_rate(rate)

    @property
    def halted(self) -> tuple[str, ...]:
        """The alarms for which its readers, and its descendants', wait; empty for none."""
        return () if self.gate is None else self.gate.halted

    def halt(self, alarm: str) -> None:
        """Pause its readers and those of its descendants until `resume(alarm)`.

        Several alarms may be up at a time: all have to be over. Borrowing and repaying go on, as do
        readers that check only the debt (`debt_is_clear`). Idempotent for each alarm.
        """
        gate_of(self).halt(alarm)

    def resume(self, alarm: str) -> None:
        """End an alarm. With the last one, readers that wait for nothing else go on, in order.

        Idempotent.
        """
        gate_of(self).resume(alarm)

    # -- looking --------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """`clear`, `owing`, `throttled`, `flow` or `closing`."""
        if self.opens <= 0:
            return "closing"
        gate = self.gate
        if gate is not None:
            if gate.blockers:
                return "flow"
            if gate.throttled or gate.squeezed:
                return "throttled"
        return "owing" if self.debt_items or self.debt_bytes else "clear"

    @property
    def waiting(self) -> int:
        """Number of readers of this account that wait now, here or at an ancestor."""
        return 0 if self.line is None else len(self.line.readers)

    @property
    def waits(self) -> int:
        """How often a reader of this account had to wait."""
        return 0 if self.line is None else self.line.waits

    def room(self) -> tuple[int, int]:
        """Return (items, bytes) that may still be borrowed before its readers have to wait.

        The minimum over the limits of the account and its ancestors, and its shares of them.
        Negative when the debt is above one of them, or there is an alarm, no credit or no token
        left. Rule 9 cuts a run of events with it: `1 + room // price` of them are admitted.
        """
        items = nbytes = UNLIMITED
        for account in self.limited:
            if account.gated:
                return room_closer(self)
            left = account.mark_items - account.debt_items
            if left < items:
                items = left
            left = account.mark_bytes - account.debt_bytes
            if left < nbytes:
                nbytes = left
        return items, nbytes

    def statistics(self) -> AccountStatistics:
        """Return the statement of this account."""
        now = self.ledger.clock()
        gate = self.gate
        bucket = None if gate is None else gate.bucket
        readers = readers_of(self)
        running = [now - w.since for w in readers]
        waited = waited_by_reason(waited_of(self), readers, now)
        standing = self.ledger.standings.get(self.name)
        limit = self.own_limit
        share = share_of(self)
        return AccountStatistics(
            name=self.name,
            parent=None if self.parent is None else self.parent.name,
            at_rest=self.ledger.at_rest.get(self),
            state=self.state,
            alarms=self.halted,
            debt_items=self.debt_items,
            debt_bytes=self.debt_bytes,
            peak_items=self.peak_items,
            peak_bytes=self.peak_bytes,
            limit_items=limit.items,
            limit_bytes=limit.bytes,
            low_items=None if limit.items is None else self.low_items,
            low_bytes=None if limit.bytes is None else self.low_bytes,
            moving=None if self.control is None else self.control.statistics(),
            weight=self._weight,
            shared=self.shares is not None,
            share_items=share[0],
            share_bytes=share[1],
            rate_items=None if bucket is None else bucket.limit.items_per_s,
            rate_bytes=None if bucket is None else bucket.limit.bytes_per_s,
            blockers=() if gate is None else gate.blockers,
            borrowed_items=self.borrowed_items,
            borrowed_bytes=self.borrowed_bytes,
            waiting=len(running),
            waiting_seconds=max(running, default=0.0),
            waits=self.waits,
            waited_seconds=sum(waited.values()),
            waited_by_reason=waited,
            blame=dict(blame_of(self)),
            standing_items=0 if standing is None else standing.items,
            standing_bytes=0 if standing is None else standing.bytes,
        )

    # -- borrowing, repaying, loans and turns ---------------------------------------------------

    def check_open(self) -> None:
        """Check that something may be charged to this account.

        Raises:
            ClosedAccountError: If it was closed and has been paid off.
        """
        if self.opens <= 0 and not self.debt_items and not self.debt_bytes:
            msg = f"account {self.name} is closed; open it again to send on its behalf"
            raise ClosedAccountError(msg)

    borrow = post_borrow
    repay = post_repay

    def lend(self, item: T, *, items: int = 1, nbytes: int | None = None) -> LoanedItem[T]:
        """Return a loan of `item` charged to this account, loose until a holder takes it."""
        self.passed = NOBODY
        return LoanedItem(self, item, items, measure(item) if nbytes is None else nbytes)

    def turn(
        self,
        event: object = None,
        *,
        items: int = 1,
        nbytes: int | None = None,
        confirm: Confirm | None = None,
    ) -> Turn:
        """Return a root turn: the transaction that handles `event`, which has just come in.

        While the turn is open this account owes for its input: `items` items and `nbytes` bytes
        (default: `measure(event)`, 0 for no event), held by the ledger's `router`. `confirm` hears
        when the receiving holders have taken responsibility, if they need time.

        Raises:
            ValueError: If `items` is below 1 or `nbytes` negative (rule 1).
        """
        if nbytes is None:
            nbytes = 0 if event is None else measure(event)
        if items < 1 or nbytes < 0:
            msg = f"a turn handles at least one item and no negative bytes, not {items}, {nbytes}"
            raise ValueError(msg)
        turn = (Turn if self.tracers is None else FollowedTurn)(self, items, nbytes)
        if confirm is not None:
            turn.confirm = confirm
        return turn

    def caused_turn(self, trace: Notes | None) -> Turn:
        """Return a turn for the handling of a loan of this account; for `LoanedItem.turn`."""
        return Turn(self, 0, 0) if trace is None else trace.caused_turn(self)

    def under_trace(
        self, trace: Notes | None, call: Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        """Call `call` while a holder takes over a traced loan of this account.

        What it borrows, lends and repays here meanwhile belongs to `trace`. None: to no trace.
        """
        before, self.tracing = self.tracing, trace
        try:
            return call(*args, **kwargs)
        finally:
            self.tracing = before

    def standing(self) -> Standing:
        """Return this owner's quota of standing state: assertions, retained messages (rule 16)."""
        return self.ledger.standing_of(self.name)

    # -- waiting --------------------------------------------------------------------------------

    def funds_are_clear(self) -> bool:
        """Whether `ensure_clear_funds` would return at once."""
        return self.is_open_wide() or lets_through(self, heed_alarms=True)

    @property
    def has_plain_turns(self) -> bool:
        """Whether turns may be done together: nobody records, traces or rates single ones."""
        return not (
            self.rated
            or self.tracers is not None
            or self.tracing is not None
            or self.ledger.recorder is not None
        )

    def is_open_wide(self) -> bool:
        """Whether no debt here or above is over its limit, and no gate is closed to anybody.

        Fast check. True implies `funds_are_clear()`; False is inconclusive.
        """
        for account in self.limited:
            if (
                account.debt_items > account.mark_items
                or account.debt_bytes > account.mark_bytes
                or account.gated
            ):
                return False
        return True

    async def ensure_clear_funds(self) -> None:
        """Apply backpressure: wait while a gate here or at an ancestor is closed.

        For sources, before they read (rule 5). The gates are the debt limit, shares, rates, alarms
        and credit.

        Returns at once, *without a checkpoint*, when the funds are clear: readers checkpoint once a
        read anyway, and call this more often. (It departs from Trio's habit: 0.1 us against
        3.6 us.) Otherwise it waits until the debt is at or below the lower mark; all waiters go on,
        in the order in which they came, each after checking again (rule 6).

        Cancellation: nothing is owed and no place in the line is kept afterwards.

        Raises:
            SelfWaitError: Inside an open loan or turn whose debt it would wait for.
        """
        ledger = self.ledger
        if ledger.inside:
            ledger.refuse_inside(self)
        for account in self.limited:
            if (
                account.debt_items > account.mark_items
                or account.debt_bytes > account.mark_bytes
                or account.gated
            ):
                break
        else:
            return
        # A throttled account that is not shared stops everybody: no need to look further.
        gate = account.gate
        if (gate is not None and gate.throttled and account.shares is None) or not lets_through(
            self, heed_alarms=True
        ):
            await wait_for_clear_funds(self)

    def debt_is_clear(self) -> bool:
        """Whether `ensure_clear_funds` would return at once if there were no alarm.

        For readers that may, during an alarm, still do things that publish nothing.
        """
        return self.is_open_wide() or lets_through(self, heed_alarms=False)

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close one opening of this account; safe to call for each `Ledger.open` once.

        Its debt stays, under this name, until it is paid off. Then the account is folded into the
        ledger's totals and forgotten.
        """
        if self.opens <= 0:
            return
        self.opens -= 1
        if not self.opens:
            self.ledger.unusual.add(self)
            self.ledger.fold(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextmanager
    def kept_open(self) -> Generator[Self]:
        """Keep this account open during a block that charges it at its end.

        Raises:
            ClosedAccountError: If it was closed and has been paid off.
        """
        self.check_open()
        self.ledger.open(self.name, parent=self.parent)
        try:
            yield self
        finally:
            self.close()
