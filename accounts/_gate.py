"""The gates of an account: why its readers, and those of the accounts below it, have to wait.

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
ancestors are open, first come first served; a new reader stands behind those that wait.

An account has no `Gate` until something here happens to it, or a reader of it looks closer. What
every read looks at (`Account.gated`, its debt and its marks) stands in the account.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ._waiters import (
    ALARM,
    BLOCKED,
    NOBODY,
    PLAIN,
    RATE,
    SHARE,
    ticket_of,
)
from .limits._alarms import MEMORY
from .limits._limit import UNLIMITED
from .limits._rate_limit import RATE_LIMIT, TokenBucket
from .limits._shares import HARD_STEP, Shares, wants_more

if TYPE_CHECKING:
    from ._account import Account
    from ._holder import Holder
    from ._leaks import Gone
    from .limits._limit import Limit
    from .limits._rate_limit import RateLimit

REPAID: Final = (PLAIN, SHARE)
"""The reasons for waiting for which the repaying holder is to blame."""

UNUSUAL: Final = frozenset(("throttled", "flow", "closing"))
"""Account states that the ledger tracks in a separate set."""

LOOSE: Final = UNLIMITED / 1e6
"""Shares above this count as unlimited."""


class Gate:
    """The gates of one account; see `gate_of`.

    Attributes:
        account: The account that has them.
        throttled: Whether it has passed its limit (high-water mark) and not yet come down to its
            lower mark.
        squeezed: Whether it is above its share of its parent's limit, and waits for that.
        halted: The alarms for which its readers, and its descendants', wait; empty for none.
        blockers: Holders with no credit left for them, the longest without credit first.
        bucket: The tokens of its own rate limit, or None.
        rate_closed: Whether there were none left at the last look.
        cause: Why readers wait here, as an index of `REASONS`; see `why`.
    """

    __slots__ = (
        "account", "blockers", "bucket", "cause", "halted", "rate_closed", "squeezed", "throttled",
    )  # fmt: skip

    def __init__(self, account: Account) -> None:
        self.account = account
        self.throttled = False
        self.squeezed = False
        self.halted: tuple[str, ...] = ()
        self.blockers: tuple[str, ...] = ()
        self.bucket: TokenBucket | None = None
        self.rate_closed = False
        self.cause: int = PLAIN

    # -- looking --------------------------------------------------------------------------------

    @property
    def holds_all(self) -> bool:
        """Whether everybody below waits for repayments here: it is throttled or, shared, full."""
        shares = self.account.shares
        return self.throttled if shares is None else shares.full

    @property
    def closed(self) -> bool:
        """Whether its readers have to wait for more than the readers before them in line."""
        return bool(
            self.halted
            or self.blockers
            or (self.squeezed and self.account.shares is None)
            or self.rate_closed
            or self.holds_all
        )

    @property
    def waits_for_repayment(self) -> bool:
        """Whether readers that wait here wait for repayments.

        They do when it is throttled or squeezed, or memory is short. They do not for another alarm,
        for tokens or for credit; nor where readers only stand to be woken.
        """
        return (
            self.holds_all
            or (self.squeezed and self.account.shares is None)
            or MEMORY in self.halted
        )

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
        account = self.account
        shares = account.shares
        items: float = account.mark_items
        nbytes: float = account.mark_bytes
        if shares is not None and shares.full:
            items, nbytes = (min(UNLIMITED, shares.hard * mark) for mark in shares.marks())
        elif self.squeezed:
            share = share_of(account)
            items = items if share[0] is None else min(items, share[0])
            nbytes = nbytes if share[1] is None else min(nbytes, share[1])
        return math.floor(items), math.floor(nbytes)

    def goes_on_at(self) -> tuple[int, int]:
        """Return the debt in (items, bytes) at or below which readers that wait here go on."""
        account = self.account
        shares = account.shares
        if shares is not None and shares.full:
            items, nbytes = shares.marks()
            release = shares.hard - HARD_STEP
            return int(release * items), int(release * nbytes)
        if self.squeezed and account.parent is not None and account.parent.shares is not None:
            items, nbytes = account.parent.shares.goes_on_at(account)
        else:
            return account.low_items, account.low_bytes
        if self.throttled and shares is None:
            return min(items, account.low_items), min(nbytes, account.low_bytes)
        return items, nbytes

    def why(self, reader: Account) -> int:
        """Return why a reader of account `reader` waits here, as an index of `REASONS`."""
        return self.cause or (0 if self.account is reader else 1)

    @property
    def alarm_name(self) -> str:
        """The name blamed, in a holder's place, while it is halted."""
        return f"(alarm: {', '.join(sorted(self.halted))})"

    def culprit(self) -> str | None:
        """Return who is to blame regardless of repayments: alarm, blocker or rate; or None."""
        if self.cause == ALARM:
            return self.alarm_name
        if self.cause == BLOCKED and self.blockers:
            return self.blockers[0]
        return RATE_LIMIT if self.cause == RATE else None

    def is_closed_to(self, ticket: int, *, asks: bool = False, heed_alarms: bool = True) -> bool:
        """Whether a reader with this ticket has to wait here; throttles or squeezes the account.

        `asks`: only look, do not squeeze.
        """
        account = self.account
        shares = account.shares
        if shares is not None:
            if shares.full:
                return True
        else:
            parent = account.parent
            above = None if parent is None else parent.shares
            if above is not None and above.tight and not self.squeezed and not above.lets(account):
                if asks:
                    return True
                self.squeeze(above)
            if not self.throttled and is_above_limit(account):
                self.throttle()
            if self.throttled or self.squeezed:
                return True
        line = account.line
        if self.bucket is not None:
            closed = self.bucket.wait(account.ledger.clock()) > 0
            # While more than one reader stands in line, the gate stays closed for the rest:
            # thousands of readers need not be woken for each single token.
            if closed != self.rate_closed and (closed or line is None or len(line.waiters) <= 1):
                self.rate_closed = closed
                self.settle()
            if closed:
                return True
        if self.blockers or (self.halted and heed_alarms):
            return True
        if line is None or (self.halted and not heed_alarms):
            return False
        return len(line) > 0 if ticket == NOBODY else line.has_before(ticket)

    # -- closing and opening --------------------------------------------------------------------

    def settle(self, *, cut: bool = True) -> None:
        """Settle `gated` and `cause`, and wake the first reader in line if it need not wait.

        Call it after any gate has changed. `cut=False`: the caller has already booked the waits so
        far, because the change itself alters who is to blame.
        """
        account = self.account
        shares = account.shares
        shut = True
        if self.halted:
            cause = ALARM
        elif self.blockers:
            cause = BLOCKED
        elif self.holds_all:
            cause = PLAIN
        elif self.squeezed and shares is None:
            cause = SHARE
        else:
            # The first in line waits for the rate by itself.
            shut = False
            cause = RATE if self.rate_closed else PLAIN
        line = account.line
        waited_for = line is not None and len(line.waiters) > 0
        if cause != self.cause:
            if cut and line is not None and waited_for:
                line.cut_stretches(self)
            self.cause = cause
        account.gated = (
            shut
            or waited_for
            or self.throttled
            or (shares is not None and shares.tight)
            or self.bucket is not None
        )
        if line is not None and not shut:
            line.wake_head()

    def _cut_stretches(self) -> None:
        line = self.account.line
        if line is not None and len(line):
            line.cut_stretches(self)

    def throttle(self) -> None:
        """Note that the debt is above the limit; readers wait until it is at the lower mark."""
        account = self.account
        self.throttled = True
        if account.shares is not None:
            self._settle_tight(None)
        self.settle()
        ledger = account.ledger
        ledger.unusual.add(account)
        over = account.debt_items - account.mark_items
        if over > 0:
            ledger.overshoot_items.add(over)
        over = account.debt_bytes - account.mark_bytes
        if over > 0:
            ledger.overshoot_bytes.add(over)
        if account.control is not None:
            account.control.closed()

    def repaid(self, holder: Holder | Gone | None, debtor: Account) -> None:
        """Blame `holder`, and let readers go on: `debtor`, here or below, owes less."""
        account = self.account
        name = "(no holder)" if holder is None else holder.name
        line = account.line
        # An alarm, a blocker or the rate limit is to blame while there is one, not this holder.
        if line is not None and len(line) and self.cause in REPAID:
            line.blame_on(name, account.ledger.clock())
        shares = account.shares
        if not self.throttled:
            if account.control is not None:
                account.control.repaid()
            if shares is None or not shares.tight:
                return
        if shares is not None:
            child: Account | None = debtor
            while child is not None and child.parent is not account:
                child = child.parent
            if child is not None:
                shares.repaid(child)
        self._reopen_if_clear(name)
        if shares is not None:
            self.share_anew(name)

    def _reopen_if_clear(self, name: str | None) -> None:
        account = self.account
        if (
            self.throttled
            and account.debt_items <= account.low_items
            and account.debt_bytes <= account.low_bytes
            and (account.control is None or account.control.may_open())
        ):
            self.throttled = False
            if account.opens > 0 and not self.squeezed and not self.blockers:
                account.ledger.unusual.discard(account)
            if account.shares is not None:
                self._settle_tight(name)
            self.settle()

    # -- the limit ------------------------------------------------------------------------------

    def move_limit(self, limit: Limit) -> None:
        """Set the limit, but wake no reader. For a `LimitControl`, which decides that itself."""
        account = self.account
        if limit != account.own_limit:
            was_limited = account.is_limited
            self._take_limit(limit)
            self._tell_of_limit(was_limited)

    def set_limit(self, limit: Limit) -> None:
        """See `Account.limit`."""
        account = self.account
        if limit != account.own_limit:
            was_limited = account.is_limited
            self._take_limit(limit)
            self._reopen_if_clear(None)
            self.share_anew(None)
            self._tell_of_limit(was_limited)

    def _take_limit(self, limit: Limit) -> None:
        account = self.account
        account.own_limit = limit
        account.mark_items, account.mark_bytes, account.low_items, account.low_bytes = limit.marks()
        if account.shares is not None:
            account.shares.changed()

    def _tell_of_limit(self, was_limited: bool) -> None:
        # Accounts below are only concerned when a limit appears or disappears. Moving limits change
        # often, and there may be ten thousand accounts below.
        account = self.account
        if account.is_limited != was_limited:
            account.ledger.limits_changed(account)
        if account.ledger.recorder is not None:
            account.ledger.recorder.limit_changed(account)

    # -- shares ---------------------------------------------------------------------------------

    def set_shared(self, shared: bool) -> None:
        """See `Account.shared`."""
        account = self.account
        if shared:
            if account.control is not None:
                msg = (
                    f"{account.name} has a limit that is moved by how fast is cleared while its "
                    "readers wait; those of a shared account go on; limit_by(None) comes first"
                )
                raise ValueError(msg)
            shares = account.shares = Shares(account)
            above = None if account.parent is None else account.parent.shares
            if above is not None and account in above.wanting:
                above.parents[account] = None
            self._settle_tight(None)
            shares.full = shares.tight and _is_above(account, shares, shares.hard)
        elif account.shares is not None:
            shares, account.shares = account.shares, None
            _loosen(shares, None)
        account.ledger.limits_changed(account)
        self.settle()

    def share_anew(self, name: str | None) -> None:
        """Let children go on that are at their share by now; `name` is the repaying holder."""
        account = self.account
        shares = account.shares
        if shares is None or not shares.tight:
            return
        # Runs for each repayment.
        if shares.squeezed:
            for child in shares.due():
                gate_of(child).released(name)
        if shares.calm:
            for child in shares.calmed():
                gate_of(child).settle_calm(name)
        if shares.parents:
            for child in shares.told_of_more():
                gate_of(child).share_anew(name)
        if shares.full and not _is_above(account, shares, shares.hard - HARD_STEP):
            shares.full = False
            self.settle()

    def squeeze(self, above: Shares) -> None:
        """Note that it is above its share of `above`: its readers wait until it is at it."""
        account = self.account
        self.squeezed = True
        above.squeeze(account)
        if account.opens > 0:
            account.ledger.unusual.add(account)
        if account.shares is not None:
            self._settle_tight(None)
        self.settle()

    def settle_shares(self, shares: Shares) -> None:
        """Throttle, squeeze and fill a shared account."""
        account = self.account
        if not self.throttled and is_above_limit(account):
            self.throttle()
        parent = account.parent
        above = None if parent is None else parent.shares
        if above is not None and above.tight and not self.squeezed and not above.lets(account):
            self.squeeze(above)
        if shares.tight and not shares.full and _is_above(account, shares, shares.hard):
            shares.full = True
            self.settle()

    def _settle_tight(self, name: str | None) -> None:
        account = self.account
        shares = account.shares
        if shares is None:
            return
        tight = self.throttled or wants_more(account)
        if tight == shares.tight:
            return
        if tight:
            shares.tight = True
            shares.start()
        else:
            _loosen(shares, name)
        self.settle()

    def settle_calm(self, name: str | None) -> None:
        """Settle it, as a shared account that wants no more than its share any longer."""
        self._settle_tight(name)
        # Above its own limit it still shares that out, which is more than its share was.
        self.share_anew(name)

    def released(self, name: str | None) -> None:
        """Note that it is at its share again; `name` is the repaying holder."""
        account = self.account
        line = account.line
        if name is not None and self.cause == SHARE and line is not None and len(line):
            line.blame_on(name, account.ledger.clock())
        self.squeezed = False
        self.settle()
        if account.state not in UNUSUAL:
            account.ledger.unusual.discard(account)
        self.share_anew(name)

    # -- rates, alarms and credit ---------------------------------------------------------------

    def set_rate(self, rate: RateLimit | None) -> None:
        """See `Account.rate`."""
        account = self.account
        before = self.bucket
        if rate is None:
            self.bucket = None
        else:
            now = account.ledger.clock()
            self.bucket = TokenBucket(rate, now)
            if before is not None:
                self.bucket.take_over(before, now)
        self.rate_closed = False
        # Readers that wait for tokens compute anew how long that takes.
        self.settle()
        account.ledger.limits_changed(account)

    def halt(self, alarm: str) -> None:
        """See `Account.halt`."""
        if alarm in self.halted:
            return
        self._cut_stretches()
        self.halted = (*self.halted, alarm)
        self._settle_anyway()

    def resume(self, alarm: str) -> None:
        """See `Account.resume`."""
        if alarm not in self.halted:
            return
        self._cut_stretches()
        self.halted = tuple(each for each in self.halted if each != alarm)
        if not self.halted:
            self._settle_anyway()

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
        if self.account.opens > 0:
            self.account.ledger.unusual.add(self.account)
        self._settle_anyway()

    def unblock(self, name: str) -> None:
        """End `block(name)`. With the last blocker gone, readers that wait go on, in their order.

        The seconds since the last such end are blamed on `name`. Idempotent.
        """
        if name not in self.blockers:
            return
        account = self.account
        line = account.line
        if self.cause == BLOCKED and line is not None and len(line):
            line.blame_on(name, account.ledger.clock())
        left = tuple(each for each in self.blockers if each != name)
        if not left:
            self._cut_stretches()
        self.blockers = left
        if left:
            return
        self._settle_anyway(is_over=True)

    def _settle_anyway(self, *, is_over: bool = False) -> None:
        # An account with no limit is checked only while it is gated.
        account = self.account
        self.settle(cut=False)
        if is_over and account.state not in UNUSUAL:
            account.ledger.unusual.discard(account)
        if not account.is_limited:
            account.ledger.limits_changed(account)


def gate_of(account: Account) -> Gate:
    """Return the gates of `account`, which are made at the first need."""
    gate = account.gate
    if gate is None:
        gate = account.gate = Gate(account)
    return gate


def is_above_limit(account: Account) -> bool:
    """Whether `account` owes more than its own limit."""
    return account.debt_items > account.mark_items or account.debt_bytes > account.mark_bytes


def share_of(account: Account) -> tuple[int | None, int | None]:
    """Return the (items, bytes) that `account` may owe of its parent's limit; None: any number."""
    above = None if account.parent is None else account.parent.shares
    if above is None or not above.tight:
        return None, None
    items, nbytes = above.share(account)
    return (
        None if items >= LOOSE else math.floor(items),
        None if nbytes >= LOOSE else math.floor(nbytes),
    )


def lets_through(account: Account, *, heed_alarms: bool) -> bool:
    """Whether a reader that comes now, or was let through before, need not wait."""
    ticket = ticket_of(account)
    if account.sharing:
        _settle_shares(account)
    for each in account.chain:
        if not each.shares and (
            each.debt_items > each.mark_items or each.debt_bytes > each.mark_bytes
        ):
            return False
        gate = each.gate or gate_of(each)
        if gate.halted and heed_alarms:
            return False
        if gate.is_closed_to(ticket, asks=True, heed_alarms=heed_alarms):
            return False
    return True


def closed_to(account: Account, ticket: int) -> Gate | None:
    """Return the first gate of the chain that does not let this ticket through."""
    if account.sharing:
        _settle_shares(account)
    for each in account.chain:
        gate = each.gate or gate_of(each)
        if gate.is_closed_to(ticket):
            return gate
    return None


def room_closer(account: Account) -> tuple[int, int]:
    """Return `Account.room` where a gate of the chain is closed, or may be."""
    items: float = UNLIMITED
    nbytes: float = UNLIMITED
    for each in account.chain:
        gate, shares = each.gate, each.shares
        if gate is not None and (gate.halted or gate.blockers):
            return -1, -1
        mark_items: float = each.mark_items
        mark_bytes: float = each.mark_bytes
        if shares is None:
            # A shared account's own share is no bound here: its children have shares of it.
            above = None if each.parent is None else each.parent.shares
            if above is not None and above.tight:
                share_items, share_bytes = above.share(each)
                items = min(items, share_items - each.debt_items)
                nbytes = min(nbytes, share_bytes - each.debt_bytes)
        elif shares.full:
            return -1, -1
        elif shares.tight:
            hard = shares.hard
            mark_items, mark_bytes = (hard * mark for mark in shares.marks())
        items = min(items, mark_items - each.debt_items)
        nbytes = min(nbytes, mark_bytes - each.debt_bytes)
        if gate is not None and gate.bucket is not None:
            in_items, in_bytes = gate.bucket.room(each.ledger.clock())
            items = min(items, in_items)
            nbytes = min(nbytes, in_bytes)
    return math.floor(items), math.floor(nbytes)


def _settle_shares(account: Account) -> None:
    """Throttle, squeeze and fill the shared accounts of the chain, from the highest down."""
    for each in reversed(account.chain):
        if each.shares is not None:
            (each.gate or gate_of(each)).settle_shares(each.shares)


def _loosen(shares: Shares, name: str | None) -> None:
    shares.tight = shares.full = False
    for child in shares.stop():
        gate_of(child).released(name)
    for child in shares.calmed():
        gate_of(child).settle_calm(name)


def _is_above(account: Account, shares: Shares, times: float) -> bool:
    """Whether it owes more than `times` the debt that its children share."""
    items, nbytes = shares.marks()
    return account.debt_items > times * items or account.debt_bytes > times * nbytes
