"""An account: the outstanding work of one source.

A small state machine, for each account and its readers:

    open --(a reader looks, and the debt is above the limit)--> throttled
    throttled --(a repayment brings the debt to the lower mark or below)--> open

There are further gates that depend only partly, or not at all, on the account's own debt. Readers
heed them as if the account were throttled:

    halted      by an alarm, until the last alarm is over (`_alarms.py`)
    blocked     by a holder with no credit left for it, until the last one has credit (`block`)
    squeezed    above its share of a shared ancestor's limit (`_shares.py`)
    rated       above its rate limit, until there are tokens again (`_rate_limit.py`)

A *shared* account that is throttled or squeezed does not stop all its children: it squeezes those
above their share. Only far above its limit is it *full*, and everybody waits.

Readers check the account before they read (rule 5); borrowing does not check it. So a fan-out far
above the limit is admitted, and readers wait afterwards. Readers go on when the account and all its
ancestors are open, first come first served; a new reader stands behind those that wait
(`_waiters.py` has the rules of the line).

A closed account that still owes is `closing` until it is paid off; opening its name again takes
over the debt (rule 14).
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

import trio

from ._errors import ClosedAccountError
from ._loan import LoanedItem
from ._measure import measure
from ._outcome import Outcome
from ._statistics import AccountStatistics
from ._turn import Turn
from ._waiters import (
    ALARM,
    CREDIT,
    NOBODY,
    PLAIN,
    RATE,
    REASONS,
    SHARE,
    Waiter,
    WaitQueue,
    waited_by_reason,
)
from .limits._alarms import MEMORY
from .limits._limit import UNLIMITED, Limit
from .limits._rate_limit import RATE_LIMIT, RateLimit, TokenBucket
from .limits._shares import HARD_STEP, Shares
from .limits._standing import Standing
from .trace._traced import FollowedTurn
from .watch._stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator
    from typing import Any, TypeVar

    from ._confirm import Confirm
    from ._holder import Holder
    from ._leaks import Gone
    from ._ledger import Ledger
    from .limits._limit_policy import LimitControl, LimitPolicy
    from .trace._trace_notes import LoanNotes
    from .trace._tracer import Tracer

    T = TypeVar("T")

MAX_BLAMED = 64
"""How many holders an account's statement names; the rest are summed up as `OTHERS`. As many as an
operator reads, and a bound on the memory that peers with ever new names can claim."""

REPAID: Final = (PLAIN, SHARE)
"""The reasons for waiting for which the repaying holder is to blame."""

UNUSUAL: Final = frozenset(("throttled", "flow", "closing"))
"""Account states that the ledger tracks in a separate set."""

OTHERS = "(others)"
"""The name blamed when the statement is full."""


LOOSE: Final = UNLIMITED / 1e6
"""Shares above this count as unlimited."""


def check_weight(weight: float) -> None:
    """Check that `weight` can be the weight of an account.

    Raises:
        ValueError: If it is not above zero.
    """
    if not 0 < weight < math.inf:
        msg = f"a weight must be above 0, not {weight}; an account that may owe nothing has a limit"
        raise ValueError(msg)


def add_blame(blame: dict[str, float], holder: str, seconds: float) -> str:
    """Add `seconds` to the blocked time blamed on `holder`; the record stays bounded.

    Returns:
        The name under which the seconds are recorded.
    """
    if holder not in blame and len(blame) >= MAX_BLAMED:
        holder = OTHERS
    blame[holder] = blame.get(holder, 0.0) + seconds
    return holder


class Account:
    """A running total of unfinished work done on behalf of one source.

    Made by `Ledger.open`. Treat the amounts as read-only: loans and turns change them through
    `borrow` and `repay`, and sending goes through loans and turns.

    Attributes:
        name: The name that an operator sees.
        parent: The account above it, or None. The debt counts there too (rule 13).
        ledger: The ledger that it belongs to.
        debt_items: Outstanding events charged to it and its descendants.
        debt_bytes: Their bytes.
        peak_items: The highest `debt_items` so far.
        peak_bytes: The highest `debt_bytes` so far.
        borrowed_items: Events ever charged to it directly.
        borrowed_bytes: Their bytes.
        below: Its child accounts, or None for none.
        throttled: Whether it has passed its limit (high-water mark) and not yet come down to its
            lower mark.
        full: Whether it is shared, and so far above its limit that everybody below it waits.
        squeezed: Whether it is above its share of its parent's limit, and waits for that.
        halted: The alarms for which its readers, and its descendants', wait; empty for none.
        blockers: Holders with no credit left for them, the longest without credit first.
        waits: How often a reader of this account had to wait.
    """

    __slots__ = (
        "__weakref__", "_weight", "below", "blame", "blame_mark", "blockers", "borrowed_bytes",
        "borrowed_items", "bucket", "cause", "chain", "children", "control", "debt_bytes",
        "debt_items", "full", "gated", "halted", "ledger", "limited", "line", "low_bytes",
        "low_items", "mark_bytes", "mark_items", "name", "opens", "own_limit", "parent", "passed",
        "passer", "peak_bytes", "peak_items", "rate_closed", "rated", "readers", "shares",
        "sharing", "squeezed", "throttled", "tight", "tracers", "tracing", "waited", "waits",
        "wants",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, name: str, limit: Limit, parent: Account | None) -> None:
        self.ledger = ledger
        self.name = name
        self.parent = parent
        self.chain: tuple[Account, ...] = (self, *(parent.chain if parent is not None else ()))
        self.debt_items = 0
        self.debt_bytes = 0
        self.peak_items = 0
        self.peak_bytes = 0
        self.borrowed_items = 0
        self.borrowed_bytes = 0
        self.children = 0
        self.below: dict[Account, None] | None = None
        self.opens = 1
        # Tracers that want to follow its next root turns.
        self.tracers: tuple[Tracer, ...] | None = None
        # The traced loan that a holder takes over at this moment; see `under_trace`.
        self.tracing: LoanNotes | None = None
        self.throttled = False
        self.full = False
        self.squeezed = False
        # `wants`: it wants more than its share of its parent's limit, from when it was squeezed
        # until it owes half as much. `tight`: its children have to keep to their shares, because it
        # is shared and is throttled or `wants`.
        self.wants = False
        self.tight = False
        self.rate_closed = False
        self.halted: tuple[str, ...] = ()
        self.blockers: tuple[str, ...] = ()
        # A reader has to look closer: a gate is closed or may be, or somebody stands in line.
        self.gated = False
        # Why readers wait here, as an index of `REASONS`; see `why`.
        self.cause: int = PLAIN
        self._weight = 1.0
        # Set while it is shared.
        self.shares: Shares | None = None
        # Its own rate limit, and all rate limits of the chain, which input is charged to.
        self.bucket: TokenBucket | None = None
        self.rated: tuple[TokenBucket, ...] = ()
        self.sharing = False
        self.line: WaitQueue | None = None
        self.readers: list[Waiter] | None = None
        # The ticket of the reader that was let through last and has brought nothing in since, and
        # the task of that reader: the account's other readers may not use its ticket.
        self.passed = NOBODY
        self.passer = 0
        self.waits = 0
        # Seconds of ended stretches of waits, by reason; None while there are none.
        self.waited: list[float] | None = None
        self.blame: dict[str, float] | None = None
        self.blame_mark = 0.0
        self.own_limit = limit
        self.mark_items, self.mark_bytes, self.low_items, self.low_bytes = limit.marks()
        # Moves the limit; None: nothing does.
        self.control: LimitControl | None = None
        self.limited: tuple[Account, ...] = ()
        self._find_limited()

    def __repr__(self) -> str:
        return (
            f"<Account {self.name}: {self.state}, owes {self.debt_items} items and "
            f"{self.debt_bytes} bytes, {self.waiting} waiting>"
        )

    # -- the limit ------------------------------------------------------------------------------

    @property
    def limit(self) -> Limit:
        """The high-water mark of its debt. Setting it takes effect at once.

        Readers that wait go on if the debt is at or below the new lower mark. Readers that would
        have to wait now find out at their next check.
        """
        return self.own_limit

    @limit.setter
    def limit(self, limit: Limit) -> None:
        if limit == self.own_limit:
            return
        was_limited = self._is_limited()
        self._take_limit(limit)
        self._reopen_if_clear(None)
        self._share_anew(None)
        self._tell_of_limit(was_limited)

    def limit_by(self, policy: LimitPolicy | None) -> None:
        """Let `policy` set the limit from now on; None: it stays where it is.

        A policy that moves with time needs `watch_limits` running beside it.
        """
        self.control = None
        if policy is not None:
            self.control = policy.control(self)

    def move_limit(self, limit: Limit) -> None:
        """Set the limit, but wake no reader. For a `LimitControl`, which decides that itself."""
        if limit != self.own_limit:
            was_limited = self._is_limited()
            self._take_limit(limit)
            self._tell_of_limit(was_limited)

    def _take_limit(self, limit: Limit) -> None:
        self.own_limit = limit
        self.mark_items, self.mark_bytes, self.low_items, self.low_bytes = limit.marks()
        if self.shares is not None:
            self.shares.changed()

    def _tell_of_limit(self, was_limited: bool) -> None:
        # Accounts below are only concerned when a limit appears or disappears. Moving limits change
        # often, and there may be ten thousand accounts below.
        if self._is_limited() != was_limited:
            self.ledger.limits_changed(self)
        if self.ledger.recorder is not None:
            self.ledger.recorder.limit_changed(self)

    def _is_limited(self) -> bool:
        return self.mark_items < UNLIMITED or self.mark_bytes < UNLIMITED

    def _find_limited(self) -> None:
        # Only accounts with a limit, or a share of one, are checked before each read. An account
        # that has lost its limit is checked until its line is gone: nobody overtakes.
        self.limited = tuple(
            a
            for a in self.chain
            if a._is_limited() or a.gated or (a.parent is not None and a.parent.shares is not None)
        )
        self.sharing = any(a.shares is not None for a in self.chain)
        self.rated = tuple(a.bucket for a in self.chain if a.bucket is not None)

    def refresh_limited(self) -> None:
        """Find again the accounts of the chain that have a limit. For `Ledger.limits_changed`."""
        self._find_limited()

    # -- shares ---------------------------------------------------------------------------------

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
        if shared == (self.shares is not None):
            return
        if shared:
            if self.control is not None:
                msg = (
                    f"{self.name} has a limit that is moved by how fast is cleared while its "
                    "readers wait; those of a shared account go on; limit_by(None) comes first"
                )
                raise ValueError(msg)
            self.shares = Shares(self)
            if self.wants and self.parent is not None and self.parent.shares is not None:
                self.parent.shares.parents[self] = None
            self._settle_tight(None)
            self.full = self.tight and self._is_above(self.shares.hard)
        else:
            shares = self.shares
            assert shares is not None
            self.shares = None
            self._loosen(shares, None)
        self.ledger.limits_changed(self)
        self._settle_gate()

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
            parent._share_anew(None)

    def _share_now(self) -> tuple[int | None, int | None]:
        parent = self.parent
        if parent is None or parent.shares is None or not parent.tight:
            return None, None
        items, nbytes = parent.shares.share(self)
        return (
            None if items >= LOOSE else math.floor(items),
            None if nbytes >= LOOSE else math.floor(nbytes),
        )

    def _is_above(self, times: float) -> bool:
        """Whether it owes more than `times` the debt that its children share."""
        assert self.shares is not None
        items, nbytes = self.shares.marks()
        return self.debt_items > times * items or self.debt_bytes > times * nbytes

    def _share_anew(self, name: str | None) -> None:
        """Let children go on that are at their share by now; `name` is the repaying holder."""
        shares = self.shares
        if shares is None or not self.tight:
            return
        # Runs for each repayment.
        if shares.squeezed:
            for child in shares.due():
                child._released(name)
        if shares.calm:
            for child in shares.calmed():
                child._settle_calm(name)
        if shares.parents:
            for child in shares.told_of_more():
                child._share_anew(name)
        if self.full and not self._is_above(shares.hard - HARD_STEP):
            self.full = False
            self._settle_gate()

    def _settle_tight(self, name: str | None) -> None:
        tight = self.shares is not None and (self.throttled or self.wants)
        if tight == self.tight or self.shares is None:
            return
        if tight:
            self.tight = True
            self.shares.start()
        else:
            self._loosen(self.shares, name)
        self._settle_gate()

    def _loosen(self, shares: Shares, name: str | None) -> None:
        self.tight = self.full = False
        for child in shares.stop():
            child._released(name)
        for child in shares.calmed():
            child._settle_calm(name)

    def _settle_calm(self, name: str | None) -> None:
        self._settle_tight(name)
        # Above its own limit it still shares that out, which is more than its share was.
        self._share_anew(name)

    def _released(self, name: str | None) -> None:
        if name is not None and self.cause == SHARE and self.waited_for:
            self._blame(name, self.ledger.clock())
        self.squeezed = False
        self._settle_gate()
        if self.state not in UNUSUAL:
            self.ledger.unusual.discard(self)
        self._share_anew(name)

    # -- rates ----------------------------------------------------------------------------------

    @property
    def rate(self) -> RateLimit | None:
        """Rate limit of the input of it and all below it. Setting it takes effect at once.

        A new token bucket begins with the tokens left in the one before, or full. The input of root
        turns takes tokens; readers wait when none are left, and go on in their order when there are
        some again.
        """
        return None if self.bucket is None else self.bucket.limit

    @rate.setter
    def rate(self, rate: RateLimit | None) -> None:
        before = self.bucket
        if before is None and rate is None:
            return
        if rate is None:
            self.bucket = None
        else:
            now = self.ledger.clock()
            self.bucket = TokenBucket(rate, now)
            if before is not None:
                self.bucket.take_over(before, now)
        self.rate_closed = False
        # Readers that wait for tokens compute anew how long that takes.
        self._settle_gate()
        self.ledger.limits_changed(self)

    def charge_rates(self, items: int, nbytes: int) -> None:
        """Take tokens for input, here and above. For turns, where there are `rated`."""
        now = self.ledger.clock()
        for bucket in self.rated:
            bucket.fill(now)
            bucket.take(items, nbytes)

    # -- alarms and credit ----------------------------------------------------------------------

    def halt(self, alarm: str) -> None:
        """Pause its readers and those of its descendants until `resume(alarm)`.

        Several alarms may be up at a time: all have to be over. Borrowing and repaying go on, as do
        readers that check only the debt (`debt_is_clear`). Idempotent for each alarm.
        """
        if alarm in self.halted:
            return
        self._cut_stretches()
        self.halted = (*self.halted, alarm)
        self._settle_gate(cut=False)
        if not self._is_limited():
            self.ledger.limits_changed(self)

    def resume(self, alarm: str) -> None:
        """End an alarm. With the last one, readers that wait for nothing else go on, in order.

        Idempotent.
        """
        if alarm not in self.halted:
            return
        self._cut_stretches()
        self.halted = tuple(each for each in self.halted if each != alarm)
        if self.halted:
            return
        self._settle_gate(cut=False)
        if not self._is_limited():
            self.ledger.limits_changed(self)

    def block(self, name: str) -> None:
        """Pause its readers and those of its descendants until `unblock(name)`.

        For credit-based flow control: the holder called `name` has no credit left for their input,
        and is blamed for the time. Several may block at a time: all have to unblock. As for an
        alarm, nothing else is hindered. Idempotent for each name.
        """
        if name in self.blockers:
            return
        if not self.blockers:
            self._cut_stretches()
        self.blockers = (*self.blockers, name)
        if self.opens > 0:
            self.ledger.unusual.add(self)
        self._settle_gate(cut=False)
        if not self._is_limited():
            self.ledger.limits_changed(self)

    def unblock(self, name: str) -> None:
        """End `block(name)`. With the last blocker gone, readers that wait go on, in their order.

        The seconds since the last such end are blamed on `name`. Idempotent.
        """
        if name not in self.blockers:
            return
        if self.cause == CREDIT and self.waited_for:
            self._blame(name, self.ledger.clock())
        left = tuple(each for each in self.blockers if each != name)
        if not left:
            self._cut_stretches()
        self.blockers = left
        if left:
            return
        self._settle_gate(cut=False)
        if self.state not in UNUSUAL:
            self.ledger.unusual.discard(self)
        if not self._is_limited():
            self.ledger.limits_changed(self)

    # -- gates ----------------------------------------------------------------------------------

    @property
    def waited_for(self) -> bool:
        """Whether readers stand in line here."""
        line = self.line
        return line is not None and len(line) > 0

    @property
    def closed(self) -> bool:
        """Whether its readers have to wait for more than the readers before them in line."""
        return bool(
            self.halted
            or self.blockers
            or (self.squeezed and self.shares is None)
            or self.rate_closed
            or (self.throttled if self.shares is None else self.full)
        )

    @property
    def waits_for_repayment(self) -> bool:
        """Whether readers that wait here wait for repayments.

        They do when it is throttled or squeezed, or memory is short. They do not for another alarm,
        for tokens or for credit; nor where readers only stand to be woken.
        """
        return (
            (self.throttled or self.squeezed) if self.shares is None else self.full
        ) or MEMORY in self.halted

    @property
    def waits_on_holders(self) -> bool:
        """Whether the holders of this account's debt are blocking the readers that stand here.

        For the watch over slow consumers. True as `waits_for_repayment` is, and also where readers
        only stand to be woken. On a full disk, say, or above the rate limit, readers wait on no
        holder; with credit, on the `blockers` alone.
        """
        return self.waits_for_repayment or not (self.halted or self.rate_closed or self.blockers)

    def held_to(self) -> tuple[int, int]:
        """Return the debt in (items, bytes) above which readers wait here now.

        Its limit; its share of its parent's while it is squeezed; twice its limit while it is full.
        """
        items: float = self.mark_items
        nbytes: float = self.mark_bytes
        if self.full and self.shares is not None:
            hard = self.shares.hard
            items, nbytes = (min(UNLIMITED, hard * mark) for mark in self.shares.marks())
        elif self.squeezed:
            share = self._share_now()
            items = items if share[0] is None else min(items, share[0])
            nbytes = nbytes if share[1] is None else min(nbytes, share[1])
        return math.floor(items), math.floor(nbytes)

    def goes_on_at(self) -> tuple[int, int]:
        """Return the debt in (items, bytes) at or below which readers that wait here go on."""
        if self.full and self.shares is not None:
            items, nbytes = self.shares.marks()
            release = self.shares.hard - HARD_STEP
            return int(release * items), int(release * nbytes)
        if self.squeezed and self.parent is not None and self.parent.shares is not None:
            items, nbytes = self.parent.shares.goes_on_at(self)
        else:
            return self.low_items, self.low_bytes
        if self.throttled and self.shares is None:
            return min(items, self.low_items), min(nbytes, self.low_bytes)
        return items, nbytes

    def why(self, reader: Account) -> int:
        """Return why a reader of account `reader` waits here, as an index of `REASONS`."""
        return self.cause or (0 if self is reader else 1)

    @property
    def alarm_name(self) -> str:
        """The name blamed, in a holder's place, while it is halted."""
        return f"(alarm: {', '.join(sorted(self.halted))})"

    def debt_is_clear(self) -> bool:
        """Whether `ensure_clear_funds` would return at once if there were no alarm.

        For readers that may, during an alarm, still do things that publish nothing.
        """
        return self.is_open_wide() or self._lets_through(heed_alarms=False)

    def _lets_through(self, *, heed_alarms: bool) -> bool:
        """Whether a reader that comes now, or was let through before, need not wait."""
        ticket = self._ticket()
        if self.sharing:
            self._settle_shares()
        for account in self.chain:
            if not account.shares and (
                account.debt_items > account.mark_items or account.debt_bytes > account.mark_bytes
            ):
                return False
            if account.halted and heed_alarms:
                return False
            if account._is_closed_to(ticket, asks=True, heed_alarms=heed_alarms):
                return False
        return True

    def _settle_gate(self, *, cut: bool = True) -> None:
        """Settle `gated` and `cause`, and wake the first reader in line if it need not wait.

        Call it after any gate has changed. `cut=False`: the caller has already booked the waits so
        far, because the change itself alters who is to blame.
        """
        shut = True
        if self.halted:
            cause = ALARM
        elif self.blockers:
            cause = CREDIT
        elif self.throttled if self.shares is None else self.full:
            cause = PLAIN
        elif self.squeezed and self.shares is None:
            cause = SHARE
        else:
            # The first in line waits for the rate by itself.
            shut = False
            cause = RATE if self.rate_closed else PLAIN
        line = self.line
        waited_for = line is not None and len(line.waiters) > 0
        if cause != self.cause:
            if waited_for and cut:
                self._cut_stretches()
            self.cause = cause
        self.gated = shut or waited_for or self.throttled or self.tight or self.bucket is not None
        if line is not None and not shut:
            line.wake_head()

    def _cut_stretches(self) -> None:
        # The reason why readers wait here changes: book the time so far under the old one.
        line = self.line
        if line is None or not len(line):
            return
        now = self.ledger.clock()
        culprit = self._culprit()
        if culprit is not None:
            self._blame(culprit, now)
        self.blame_mark = now
        line.joined.clear()
        if line.stalls is not None:
            line.stalls.cut()
        for waiter in line.waiters:
            self._book_stretch(waiter, now)

    def _culprit(self) -> str | None:
        """Return who is to blame regardless of repayments: alarm, blocker or rate; or None."""
        if self.cause == ALARM:
            return self.alarm_name
        if self.cause == CREDIT and self.blockers:
            return self.blockers[0]
        return RATE_LIMIT if self.cause == RATE else None

    def _book_stretch(self, waiter: Waiter, now: float) -> None:
        stretch = now - waiter.stretch
        waiter.stretch = now
        why = self.why(waiter.account)
        books = waiter.account
        if books.waited is None:
            books.waited = [0.0] * len(REASONS)
        books.waited[why] += stretch
        self.ledger.waited[why] += stretch

    @property
    def state(self) -> str:
        """`clear`, `owing`, `throttled`, `flow` or `closing`."""
        if self.opens <= 0:
            return "closing"
        if self.blockers:
            return "flow"
        if self.throttled or self.squeezed:
            return "throttled"
        return "owing" if self.debt_items or self.debt_bytes else "clear"

    @property
    def waiting(self) -> int:
        """Number of readers of this account that wait now, here or at an ancestor."""
        return len(self.readers) if self.readers else 0

    def room(self) -> tuple[int, int]:
        """Return (items, bytes) that may still be borrowed before its readers have to wait.

        The minimum over the limits of the account and its ancestors, and its shares of them.
        Negative when the debt is above one of them, or there is an alarm, no credit or no token
        left. Rule 9 cuts a run of events with it: `1 + room // price` of them are admitted.
        """
        items = nbytes = UNLIMITED
        for account in self.limited:
            if account.gated:
                return self._room_closer()
            left = account.mark_items - account.debt_items
            if left < items:
                items = left
            left = account.mark_bytes - account.debt_bytes
            if left < nbytes:
                nbytes = left
        return items, nbytes

    def _room_closer(self) -> tuple[int, int]:
        items: float = UNLIMITED
        nbytes: float = UNLIMITED
        for account in self.chain:
            if account.halted or account.blockers or account.full:
                return -1, -1
            mark_items: float = account.mark_items
            mark_bytes: float = account.mark_bytes
            if account.tight and account.shares is not None:
                hard = account.shares.hard
                mark_items, mark_bytes = (hard * mark for mark in account.shares.marks())
            items = min(items, mark_items - account.debt_items)
            nbytes = min(nbytes, mark_bytes - account.debt_bytes)
            parent = account.parent
            # A shared account's own share is no bound here: its children have shares of it.
            if (
                account.shares is None
                and parent is not None
                and parent.shares is not None
                and parent.tight
            ):
                share_items, share_bytes = parent.shares.share(account)
                items = min(items, share_items - account.debt_items)
                nbytes = min(nbytes, share_bytes - account.debt_bytes)
            if account.bucket is not None:
                in_items, in_bytes = account.bucket.room(account.ledger.clock())
                items = min(items, in_items)
                nbytes = min(nbytes, in_bytes)
        return math.floor(items), math.floor(nbytes)

    # -- borrowing and repaying -----------------------------------------------------------------

    def check_open(self) -> None:
        """Check that something may be charged to this account.

        Raises:
            ClosedAccountError: If it was closed and has been paid off.
        """
        if self.opens <= 0 and not self.debt_items and not self.debt_bytes:
            msg = f"account {self.name} is closed; open it again to send on its behalf"
            raise ClosedAccountError(msg)

    def borrow(self, items: int, nbytes: int) -> None:
        """Raise the debt, here and at every ancestor. Never blocks (rule 5); makes no loan.

        For loans, turns and holders. The next audit reports debt that no holder has a loan for.

        Raises:
            ClosedAccountError: If the account was closed and has been paid off.
        """
        if self.opens <= 0:
            self.check_open()
        self.borrowed_items += items
        self.borrowed_bytes += nbytes
        ledger = self.ledger
        ledger.borrowed_items += items
        ledger.borrowed_bytes += nbytes
        account: Account | None = self
        while account is not None:
            account.debt_items = debt = account.debt_items + items
            if debt > account.peak_items:
                account.peak_items = debt
            account.debt_bytes = debt = account.debt_bytes + nbytes
            if debt > account.peak_bytes:
                account.peak_bytes = debt
            account = account.parent
        if self.tracing is not None:
            self.tracing.borrowed(items, nbytes)

    def borrow_run(self, items: int, nbytes: int, copies: int) -> None:
        """Borrow for a whole root turn in one sum: `copies` of its input, which is repaid.

        For `commit_run` and similar callers. The peak is that of the turn done step by step: the
        input and all its children (rule 3).

        Raises:
            ClosedAccountError: If the account was closed and has been paid off.
        """
        ledger = self.ledger
        if ledger.leaked:
            ledger.drain()  # first: a leak may be all that is left of this account
        if self.opens <= 0:
            self.check_open()
        self.passed = NOBODY
        if self.rated:
            self.charge_rates(items, nbytes)
        # The router has had the input for no time at all.
        ledger.router.ages.counts[0] += items
        all_items = items * copies
        all_bytes = nbytes * copies
        self.borrowed_items += all_items + items
        self.borrowed_bytes += all_bytes + nbytes
        ledger.borrowed_items += all_items + items
        ledger.borrowed_bytes += all_bytes + nbytes
        ledger.repaid_items[0] += items  # 0 is Outcome.DELIVERED
        ledger.repaid_bytes[0] += nbytes
        account: Account | None = self
        while account is not None:
            account.debt_items = debt = account.debt_items + all_items
            if debt + items > account.peak_items:
                account.peak_items = debt + items
            account.debt_bytes = debt = account.debt_bytes + all_bytes
            if debt + nbytes > account.peak_bytes:
                account.peak_bytes = debt + nbytes
            account = account.parent

    def pass_run(self, items: int, nbytes: int, copies: int, holder: Holder | None) -> None:
        """Book a whole root turn that leaves no debt: all copies are already delivered.

        The same as `borrow_run` and the repayment of all that it borrowed, in one walk: the debt is
        the same afterwards. `holder` is one of those that delivered; the copies' ages are counted
        there. None if there is no copy.

        The account has to be open, and no leak be waiting (see `borrow_run`).
        """
        self.passed = NOBODY
        if self.rated:
            self.charge_rates(items, nbytes)
        all_items = items * copies
        all_bytes = nbytes * copies
        ledger = self.ledger
        ledger.router.ages.counts[0] += items
        if holder is not None:
            holder.ages.counts[0] += all_items
        items += all_items
        nbytes += all_bytes
        self.borrowed_items += items
        self.borrowed_bytes += nbytes
        ledger.borrowed_items += items
        ledger.borrowed_bytes += nbytes
        ledger.repaid_items[0] += items  # 0 is Outcome.DELIVERED
        ledger.repaid_bytes[0] += nbytes
        account: Account | None = self
        while account is not None:
            top = account.debt_items + items
            if top > account.peak_items:
                account.peak_items = top
            top = account.debt_bytes + nbytes
            if top > account.peak_bytes:
                account.peak_bytes = top
            if account.gated:
                account._repaid_while_gated(holder, self)
            account = account.parent

    def repay(
        self,
        items: int,
        nbytes: int,
        outcome: Outcome = Outcome.DELIVERED,
        holder: Holder | Gone | None = None,
        opened: float | None = None,
        *,
        lent: bool = False,
    ) -> None:
        """Lower the debt, here and at every ancestor, and let waiting readers go on.

        For loans and holders. `holder` finished the work, and is blamed for readers' waits.
        `opened` is when the debt began, for the ledger's recorder: None for just now. `lent`: it is
        for loans, whose traces the caller tells.
        """
        ledger = self.ledger
        ledger.repaid_items[outcome] += items
        ledger.repaid_bytes[outcome] += nbytes
        # The turn itself reports its input.
        if ledger.recorder is not None and holder is not ledger.router:
            ledger.recorder.settled(self, holder, items, nbytes, outcome, opened)
        account: Account | None = self
        while account is not None:
            account.debt_items = left = account.debt_items - items
            account.debt_bytes -= nbytes
            if account.gated:
                account._repaid_while_gated(holder, self)
            if not left and account.opens <= 0 and not account.debt_bytes:
                ledger.fold(account)
            account = account.parent
        if self.tracing is not None and not lent:
            self.tracing.repaid(items, nbytes, outcome, holder)

    def repay_delivered(self, ended: Collection[tuple[Holder, int, int, float]]) -> None:
        """Repay several delivered loans in one sum, untraced ones; tell the recorder of each.

        `ended` has (holder, items, bytes, opened) for each loan. The first holder is blamed if
        somebody waits.
        """
        ledger = self.ledger
        if ledger.recorder is not None:
            ledger.recorder.delivered(self, ended)
        items = nbytes = 0
        first: Holder | None = None
        for holder, some, size, _ in ended:
            if first is None:
                first = holder
            items += some
            nbytes += size
        ledger.repaid_items[Outcome.DELIVERED] += items
        ledger.repaid_bytes[Outcome.DELIVERED] += nbytes
        for account in self.chain:
            account.debt_items = left = account.debt_items - items
            account.debt_bytes -= nbytes
            if account.gated:
                account._repaid_while_gated(first, self)
            if not left and account.opens <= 0 and not account.debt_bytes:
                ledger.fold(account)

    def _repaid_while_gated(self, holder: Holder | Gone | None, debtor: Account) -> None:
        name = "(no holder)" if holder is None else holder.name
        line = self.line
        # An alarm, a blocker or the rate limit is to blame while there is one, not this holder.
        if line is not None and len(line) and self.cause in REPAID:
            self._blame(name, self.ledger.clock())
        if not self.throttled:
            if self.control is not None:
                self.control.repaid()
            if not self.tight:
                return
        shares = self.shares
        if shares is not None:
            child: Account | None = debtor
            while child is not None and child.parent is not self:
                child = child.parent
            if child is not None:
                shares.repaid(child)
        self._reopen_if_clear(name)
        if shares is not None:
            self._share_anew(name)

    def _blame(self, name: str, now: float) -> None:
        """Blame `name` for the stretch that ends now, for all readers that wait here."""
        line = self.line
        assert line is not None
        if self.blame is None:
            self.blame = {}
        name = add_blame(self.blame, name, now - self.blame_mark)
        if line.stalls is not None:
            line.stalls.blame((name, self.cause), now - self.blame_mark)
        self.blame_mark = now
        for waiter, before in line.joined.items():
            waiter.blame[name] = waiter.blame.get(name, 0.0) - before
        line.joined.clear()

    def _reopen_if_clear(self, name: str | None) -> None:
        if (
            self.throttled
            and self.debt_items <= self.low_items
            and self.debt_bytes <= self.low_bytes
            and (self.control is None or self.control.may_open())
        ):
            self.throttled = False
            if self.opens > 0 and not self.squeezed and not self.blockers:
                self.ledger.unusual.discard(self)
            if self.shares is not None:
                self._settle_tight(name)
            self._settle_gate()

    # -- loans and turns ------------------------------------------------------------------------

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

    def caused_turn(self, trace: LoanNotes | None) -> Turn:
        """Return a turn for the handling of a loan of this account; for `LoanedItem.turn`."""
        return Turn(self, 0, 0) if trace is None else FollowedTurn(self, 0, 0, trace)

    def under_trace(
        self, trace: LoanNotes | None, call: Callable[..., T], *args: Any, **kwargs: Any
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
        return self.is_open_wide() or self._lets_through(heed_alarms=True)

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
        if (account.throttled and account.shares is None) or not self._lets_through(
            heed_alarms=True
        ):
            await self._wait_for_clear_funds()

    async def _wait_for_clear_funds(self) -> None:
        ledger = self.ledger
        if ledger.leaked:
            ledger.drain()
        now = ledger.clock()
        ticket = self._ticket()
        waiter = Waiter(ledger.next_ticket() if ticket == NOBODY else ticket, self, now, now)
        closed = self._closed_to(waiter)
        if closed is None:
            return
        if ticket == self.passed:
            self.passed = NOBODY
        self.waits += 1
        ledger.waits[closed.why(self)] += 1
        if self.readers is None:
            self.readers = []
        self.readers.append(waiter)
        ledger.waiters.add(waiter)
        if ledger.impatient and ledger.on_wait is not None:
            ledger.on_wait()
        if ledger.slow_waits is not None:
            ledger.slow_waits.began(waiter)
        for trace in ledger.traces:
            trace.wait_began(waiter)
        clear = False
        try:
            while closed is not None:
                if waiter.at is not closed:
                    if waiter.at is not None:
                        waiter.at._step_out(waiter)
                    closed._step_in(waiter)
                waiter.event = ledger.new_event()
                if closed.cause == RATE:
                    await closed._until_woken(waiter)
                else:
                    await waiter.event.wait()
                closed = self._closed_to(waiter)
            clear = True
            self.passed, self.passer = waiter.ticket, id(trio.lowlevel.current_task())
        finally:
            if waiter.at is not None:
                waiter.at._step_out(waiter)
            self.readers.remove(waiter)
            ledger.waiters.discard(waiter)
            ledger.wait_seconds.add(waiter.stretch - waiter.since)
            if ledger.slow_waits is not None:
                ledger.slow_waits.ended(waiter, waiter.stretch, clear=clear)
            if waiter.blame:
                if self.blame is None:
                    self.blame = {}
                for name, seconds in waiter.blame.items():
                    add_blame(self.blame, name, seconds)
            for trace in ledger.traces:
                trace.wait_ended(waiter)
            ledger.fold(self)

    def _ticket(self) -> int:
        """Return the ticket of the calling reader, if it has one that is still valid."""
        if self.passed == NOBODY:
            return NOBODY
        try:
            task = trio.lowlevel.current_task()
        except RuntimeError:  # no event loop: nobody has waited
            return NOBODY
        return self.passed if id(task) == self.passer else NOBODY

    async def _until_woken(self, waiter: Waiter) -> None:
        line = self.line
        seconds = math.inf
        # Nothing else wakes readers when there are tokens again, so the first in line uses a
        # timeout, for all that stand here. Another closed gate wakes them when it opens.
        if self.bucket is not None and line is not None and line.waiters[0] is waiter:
            seconds = self.bucket.wait(self.ledger.clock())
        with trio.move_on_after(seconds):
            await waiter.event.wait()

    def _closed_to(self, waiter: Waiter) -> Account | None:
        """Return the first account of the chain that does not let this waiter through."""
        if self.sharing:
            self._settle_shares()
        for account in self.chain:
            if account._is_closed_to(waiter.ticket):
                return account
        return None

    def _is_closed_to(self, ticket: int, *, asks: bool = False, heed_alarms: bool = True) -> bool:
        """Whether a reader with this ticket has to wait here; throttles or squeezes the account.

        `asks`: only look, do not squeeze.
        """
        if self.shares is not None:
            if self.full:
                return True
        else:
            parent = self.parent
            if (
                parent is not None
                and parent.tight
                and parent.shares is not None
                and not self.squeezed
                and not parent.shares.lets(self)
            ):
                if asks:
                    return True
                self._squeeze(parent.shares)
            if not self.throttled and self._is_above_limit():
                self._throttle()
            if self.throttled or self.squeezed:
                return True
        if self.bucket is not None:
            closed = self.bucket.wait(self.ledger.clock()) > 0
            # While more than one reader stands in line, the gate stays closed for the rest:
            # thousands of readers need not be woken for each single token.
            if closed != self.rate_closed and (
                closed or self.line is None or len(self.line.waiters) <= 1
            ):
                self.rate_closed = closed
                self._settle_gate()
            if closed:
                return True
        if self.blockers or (self.halted and heed_alarms):
            return True
        line = self.line
        if line is None or (self.halted and not heed_alarms):
            return False
        return len(line) > 0 if ticket == NOBODY else line.has_before(ticket)

    def _is_above_limit(self) -> bool:
        return self.debt_items > self.mark_items or self.debt_bytes > self.mark_bytes

    def _settle_shares(self) -> None:
        """Throttle, squeeze and fill the shared accounts of the chain, from the highest down."""
        for account in reversed(self.chain):
            if account.shares is None:
                continue
            if not account.throttled and account._is_above_limit():
                account._throttle()
            parent = account.parent
            if (
                parent is not None
                and parent.tight
                and parent.shares is not None
                and not account.squeezed
                and not parent.shares.lets(account)
            ):
                account._squeeze(parent.shares)
            if account.tight and not account.full and account._is_above(account.shares.hard):
                account.full = True
                account._settle_gate()

    def _squeeze(self, shares: Shares) -> None:
        self.squeezed = True
        shares.squeeze(self)
        if self.opens > 0:
            self.ledger.unusual.add(self)
        if self.shares is not None:
            self._settle_tight(None)
        self._settle_gate()

    def _throttle(self) -> None:
        self.throttled = True
        if self.shares is not None:
            self._settle_tight(None)
        self._settle_gate()
        ledger = self.ledger
        ledger.unusual.add(self)
        over = self.debt_items - self.mark_items
        if over > 0:
            ledger.overshoot_items.add(over)
        over = self.debt_bytes - self.mark_bytes
        if over > 0:
            ledger.overshoot_bytes.add(over)
        if self.control is not None:
            self.control.closed()

    def _step_in(self, waiter: Waiter) -> None:
        if self.line is None:
            self.line = WaitQueue()
        now = self.ledger.clock()
        if not len(self.line):
            self.blame_mark = now
        elif self is not waiter.account:
            self.line.joined[waiter] = now - self.blame_mark
        if self.ledger.recorder is not None:
            if self.line.stalls is None:
                self.line.stalls = Stalls()
            self.line.stalls.joined(waiter, now - self.blame_mark)
        self.line.join(waiter)
        self.gated = True
        waiter.at = self
        waiter.blame_before = dict(self.blame or {}) if self is not waiter.account else {}

    def _step_out(self, waiter: Waiter) -> None:
        line = self.line
        assert line is not None
        if self.cause == RATE:
            self._blame(RATE_LIMIT, self.ledger.clock())
        if line.stalls is not None:
            self.tell_stall(waiter)
            line.stalls.left(waiter)
        line.leave(waiter)
        waiter.at = None
        self._book_stretch(waiter, self.ledger.clock())
        if self is not waiter.account and self.blame:
            # The time an ancestor's holders blocked this reader belongs on its statement too: the
            # seconds added there since it came, less those that `line.joined` took off.
            for name, seconds in self.blame.items():
                blamed = seconds - waiter.blame_before.get(name, 0.0)
                if blamed > 0:
                    waiter.blame[name] = waiter.blame.get(name, 0.0) + blamed
        self._settle_gate()

    def tell_stall(self, waiter: Waiter) -> None:
        """Tell the recorder which culprits have blocked a reader that stands here."""
        line = self.line
        recorder = self.ledger.recorder
        if line is None or line.stalls is None or recorder is None:
            return
        account = waiter.account
        here = 0 if self is account else 1
        for (culprit, cause), seconds in line.stalls.tell(waiter):
            reason = REASONS[cause or here]
            recorder.stalled(account, self, culprit, seconds, self.blame_mark, reason)

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

    def statistics(self) -> AccountStatistics:
        """Return the statement of this account."""
        now = self.ledger.clock()
        running = [now - w.since for w in self.readers or ()]
        waited = waited_by_reason(self, self.readers or (), now)
        standing = self.ledger.standings.get(self.name)
        limit = self.own_limit
        share = self._share_now()
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
            rate_items=None if self.bucket is None else self.bucket.limit.items_per_s,
            rate_bytes=None if self.bucket is None else self.bucket.limit.bytes_per_s,
            blockers=self.blockers,
            borrowed_items=self.borrowed_items,
            borrowed_bytes=self.borrowed_bytes,
            waiting=len(running),
            waiting_seconds=max(running, default=0.0),
            waits=self.waits,
            waited_seconds=sum(waited.values()),
            waited_by_reason=waited,
            blame=dict(self.blame or {}),
            standing_items=0 if standing is None else standing.items,
            standing_bytes=0 if standing is None else standing.bytes,
        )
