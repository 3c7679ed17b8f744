"""An account: what one source owes.

A small state machine, for each account and its readers:

    open --(a reader looks, and the debt is above the limit)--> throttled
    throttled --(a repayment brings the debt to the lower mark or below)--> open

Beside that it may be *halted*, by an alarm and until the last alarm is over (`_alarms.py`), which
readers heed as if it were throttled; debt has nothing to do with it.

It is looked at by those who bring work in, before they read (rule 5), not by those who borrow: a
fan-out far above the limit is admitted, and then waited for. Readers go on when the account and all
its ancestors are open, first come first served; who comes new stands behind those who wait
(`_waiters.py` has the rules of the line).

A closed account that still owes is `closing` until it is paid off; opening its name again takes
over the debt (rule 14).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from ._alarms import MEMORY
from ._errors import ClosedAccountError
from ._limit import UNLIMITED, Limit
from ._loan import LoanedItem
from ._measure import measure
from ._outcome import Outcome
from ._stalls import Stalls
from ._standing import Standing
from ._statistics import AccountStatistics
from ._turn import Turn
from ._waiters import REASONS, Waiter, WaitQueue, waited_by_reason

if TYPE_CHECKING:
    from collections.abc import Collection, Generator
    from typing import TypeVar

    from ._confirm import Confirm
    from ._holder import Holder
    from ._leaks import Gone
    from ._ledger import Ledger
    from ._tracer import Tracer

    T = TypeVar("T")

MAX_BLAMED = 64
"""How many holders an account's statement names; the rest are summed up as `OTHERS`. As many as an
operator reads, and a bound on what peers with ever new names can make grow."""

OTHERS = "(others)"
"""Who is blamed when the statement is full."""


def add_blame(blame: dict[str, float], holder: str, seconds: float) -> str:
    """Add `seconds` to what `holder` is blamed for; the record stays bounded.

    Returns:
        The name that it is recorded under.
    """
    if holder not in blame and len(blame) >= MAX_BLAMED:
        holder = OTHERS
    blame[holder] = blame.get(holder, 0.0) + seconds
    return holder


class Account:
    """A running total of unfinished work done on behalf of one source.

    Made by `Ledger.open`. The amounts are for reading only; they change by `borrow` and `repay`,
    which loans and turns call: sending goes through those.

    Attributes:
        name: What an operator knows it by.
        parent: The account above it, or None. Its debt counts there too (rule 13).
        ledger: The books it is in.
        debt_items: Events unfinished on its behalf, its descendants' included.
        debt_bytes: Their bytes.
        peak_items: The highest `debt_items` so far.
        peak_bytes: The highest `debt_bytes` so far.
        borrowed_items: Events ever charged to it directly.
        borrowed_bytes: Their bytes.
        throttled: Whether it is above its limit and has not yet come down to its lower mark.
        halted: The alarms for which its readers, and its descendants', wait; empty for none.
        waits: How often a reader of this account had to wait.
    """

    __slots__ = (
        "__weakref__", "blame", "blame_mark", "borrowed_bytes", "borrowed_items", "chain",
        "children", "debt_bytes", "debt_items", "gated", "halted", "ledger", "limited", "line",
        "low_bytes", "low_items", "mark_bytes", "mark_items", "name", "opens", "own_limit",
        "parent", "peak_bytes", "peak_items", "readers", "throttled", "tracers", "waited_above",
        "waited_alarm", "waited_here", "waits",
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
        self.opens = 1
        # Who wants to follow what its next root turns cause.
        self.tracers: tuple[Tracer, ...] | None = None
        self.throttled = False
        self.halted: tuple[str, ...] = ()
        # Whether a reader has to look closer: throttled or halted, or somebody stands in line.
        self.gated = False
        self.line: WaitQueue | None = None
        self.readers: list[Waiter] | None = None
        self.waits = 0
        # Seconds of the waits' stretches that are over: at this account, at those above it, and for
        # an alarm at either.
        self.waited_here = 0.0
        self.waited_above = 0.0
        self.waited_alarm = 0.0
        self.blame: dict[str, float] | None = None
        self.blame_mark = 0.0
        self.own_limit = limit
        self.mark_items, self.mark_bytes, self.low_items, self.low_bytes = limit.marks()
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
        """What its readers may owe. Setting it takes effect at once.

        Readers that wait go on if the debt is at or below the new lower mark; those that would
        have to wait now find out when they look next.
        """
        return self.own_limit

    @limit.setter
    def limit(self, limit: Limit) -> None:
        if limit == self.own_limit:
            return
        was_limited = self._is_limited()
        self.own_limit = limit
        self.mark_items, self.mark_bytes, self.low_items, self.low_bytes = limit.marks()
        self._reopen_if_clear()
        # Only a limit that is new, or no more, concerns the accounts below: what moves limits does
        # so often, and there may be ten thousand of them.
        if self._is_limited() != was_limited:
            self.ledger.limits_changed(self)
        if self.ledger.recorder is not None:
            self.ledger.recorder.limit_changed(self)

    def _is_limited(self) -> bool:
        return self.mark_items < UNLIMITED or self.mark_bytes < UNLIMITED

    def _find_limited(self) -> None:
        # Only accounts with a limit are looked at before each read; and one that has lost it, while
        # its line is let go: nobody overtakes.
        self.limited = tuple(a for a in self.chain if a._is_limited() or a.gated)

    def refresh_limited(self) -> None:
        """Look again which accounts of the chain have a limit. For `Ledger.limits_changed`."""
        self._find_limited()

    # -- alarms ---------------------------------------------------------------------------------

    def halt(self, alarm: str) -> None:
        """Let its readers and those of its descendants wait until `resume(alarm)`.

        Several alarms may be up at a time: all have to be over. What is borrowed and repaid is not
        hindered, nor are those who only look at what they are owed. Idempotent for each alarm.
        """
        if alarm in self.halted:
            return
        self._cut_stretches()
        self.halted = (*self.halted, alarm)
        self.gated = True
        if not self._is_limited():
            self.ledger.limits_changed(self)

    def resume(self, alarm: str) -> None:
        """End an alarm; with the last one, those who wait for nothing else go on, in their order.

        Idempotent.
        """
        if alarm not in self.halted:
            return
        self._cut_stretches()
        self.halted = tuple(each for each in self.halted if each != alarm)
        if self.halted:
            return
        line = self.line
        self.gated = self.throttled or (line is not None and len(line) > 0)
        if line is not None and not self.throttled:
            line.wake_head()
        if not self._is_limited():
            self.ledger.limits_changed(self)

    @property
    def waits_for_repayment(self) -> bool:
        """Whether repayments are what readers that wait here wait for.

        They are when it is throttled, or memory is short. They are not for another alarm; nor where
        readers only stand to be woken.
        """
        return self.throttled or MEMORY in self.halted

    @property
    def alarm_name(self) -> str:
        """What is blamed, in a holder's place, while it is halted."""
        return f"(alarm: {', '.join(sorted(self.halted))})"

    def debt_is_clear(self) -> bool:
        """Whether `ensure_clear_funds` would return at once if there were no alarm.

        For readers that may do what publishes nothing while there is one.
        """
        for account in self.limited:
            if (
                account.debt_items > account.mark_items
                or account.debt_bytes > account.mark_bytes
                or account.throttled
                or (account.gated and not account.halted)
            ):
                return False
        return True

    def _cut_stretches(self) -> None:
        # What those who stand here wait for changes: until now it was one thing, from now on it is
        # another.
        line = self.line
        if line is None or not len(line):
            return
        now = self.ledger.clock()
        if self.halted:
            self._blame(self.alarm_name, now)
        self.blame_mark = now
        line.joined.clear()
        if line.stalls is not None:
            line.stalls.cut()
        for waiter in line.waiters:
            self._book_stretch(waiter, now)

    def _book_stretch(self, waiter: Waiter, now: float) -> None:
        stretch = now - waiter.stretch
        waiter.stretch = now
        ledger = self.ledger
        if self.halted:
            waiter.account.waited_alarm += stretch
            ledger.waited_alarm += stretch
        elif self is waiter.account:
            self.waited_here += stretch
            ledger.waited_here += stretch
        else:
            waiter.account.waited_above += stretch
            ledger.waited_above += stretch

    @property
    def state(self) -> str:
        """`clear`, `owing`, `throttled` or `closing`."""
        if self.opens <= 0:
            return "closing"
        if self.throttled:
            return "throttled"
        return "owing" if self.debt_items or self.debt_bytes else "clear"

    @property
    def waiting(self) -> int:
        """How many readers of this account wait now, here or at an ancestor."""
        return len(self.readers) if self.readers else 0

    def room(self) -> tuple[int, int]:
        """Return (items, bytes) that may still be borrowed before its readers have to wait.

        The least over the account and its ancestors; negative when the debt is above the limit, or
        there is an alarm.
        Rule 9 cuts a run of events with it: `1 + room // price` of them are admitted.
        """
        items = nbytes = UNLIMITED
        for account in self.limited:
            if account.halted:
                return -1, -1
            left = account.mark_items - account.debt_items
            if left < items:
                items = left
            left = account.mark_bytes - account.debt_bytes
            if left < nbytes:
                nbytes = left
        return items, nbytes

    # -- borrowing and repaying -----------------------------------------------------------------

    def check_open(self) -> None:
        """See whether something may be charged to this account.

        Raises:
            ClosedAccountError: If it was closed and has been paid off.
        """
        if self.opens <= 0 and not self.debt_items and not self.debt_bytes:
            msg = f"account {self.name} is closed; open it again to send on its behalf"
            raise ClosedAccountError(msg)

    def borrow(self, items: int, nbytes: int) -> None:
        """Raise the debt, here and at every ancestor. Never blocks (rule 5); makes no loan.

        For loans, turns and holders; what is borrowed without a loan in a holder's hands is found
        by the next audit.

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

    def borrow_run(self, items: int, nbytes: int, copies: int) -> None:
        """Borrow for a whole root turn in one sum: `copies` of its input, which is repaid.

        For `commit_run`. The peak is that of the turn done step by step: the input and all its
        children (rule 3).

        Raises:
            ClosedAccountError: If the account was closed and has been paid off.
        """
        if self.opens <= 0:
            self.check_open()
        all_items = items * copies
        all_bytes = nbytes * copies
        self.borrowed_items += all_items + items
        self.borrowed_bytes += all_bytes + nbytes
        ledger = self.ledger
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

    def repay(
        self,
        items: int,
        nbytes: int,
        outcome: Outcome = Outcome.DELIVERED,
        holder: Holder | Gone | None = None,
        opened: float | None = None,
    ) -> None:
        """Lower the debt, here and at every ancestor, and let waiting readers go on.

        For loans and holders. `holder` is who finished it, for the record of who was waited on;
        `opened` is since when it was owed, for the ledger's recorder: None for what was borrowed
        just now.
        """
        ledger = self.ledger
        ledger.repaid_items[outcome] += items
        ledger.repaid_bytes[outcome] += nbytes
        # What a turn handled, the turn tells of.
        if ledger.recorder is not None and holder is not ledger.router:
            ledger.recorder.settled(self, holder, items, nbytes, outcome, opened)
        account: Account | None = self
        while account is not None:
            account.debt_items = left = account.debt_items - items
            account.debt_bytes -= nbytes
            if account.gated:
                account._repaid_while_waited_for(holder)
            if not left and account.opens <= 0 and not account.debt_bytes:
                ledger.fold(account)
            account = account.parent

    def repay_delivered(self, ended: Collection[tuple[Holder, int, int, float]]) -> None:
        """Repay several loans that have been delivered, in one sum, and tell the recorder of each.

        For who has several at once. `ended` has the holder, items, bytes and since when, of each;
        the first of the holders is to blame if somebody waits.
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
                account._repaid_while_waited_for(first)
            if not left and account.opens <= 0 and not account.debt_bytes:
                ledger.fold(account)

    def _repaid_while_waited_for(self, holder: Holder | Gone | None) -> None:
        line = self.line
        # While there is an alarm, that is to blame.
        if line is not None and len(line) and not self.halted:
            name = "(no holder)" if holder is None else holder.name
            self._blame(name, self.ledger.clock())
        self._reopen_if_clear()

    def _blame(self, name: str, now: float) -> None:
        """Blame the stretch that ends now on `name`, for those who wait here."""
        line = self.line
        assert line is not None
        if self.blame is None:
            self.blame = {}
        name = add_blame(self.blame, name, now - self.blame_mark)
        if line.stalls is not None:
            line.stalls.blame((name, bool(self.halted)), now - self.blame_mark)
        self.blame_mark = now
        for waiter, before in line.joined.items():
            waiter.blame[name] = waiter.blame.get(name, 0.0) - before
        line.joined.clear()

    def _reopen_if_clear(self) -> None:
        if (
            self.throttled
            and self.debt_items <= self.low_items
            and self.debt_bytes <= self.low_bytes
        ):
            self.throttled = False
            if self.opens > 0:
                self.ledger.unusual.discard(self)
            line = self.line
            self.gated = bool(self.halted) or (line is not None and len(line) > 0)
            if line is not None and not self.halted:
                line.wake_head()

    # -- loans and turns ------------------------------------------------------------------------

    def lend(self, item: T, *, items: int = 1, nbytes: int | None = None) -> LoanedItem[T]:
        """Return a loan of `item` charged to this account; until a holder takes it, it is loose."""
        return LoanedItem(self, item, items, measure(item) if nbytes is None else nbytes)

    def turn(
        self,
        event: object = None,
        *,
        items: int = 1,
        nbytes: int | None = None,
        confirm: Confirm | None = None,
    ) -> Turn:
        """Return a root turn: what handling `event`, which has just come in, causes.

        While the turn is open this account owes for its input: `items` items and `nbytes` bytes
        (default: what `measure(event)` says, 0 for no event), held by the ledger's `router`.
        `confirm` hears when those to whom it sends have taken responsibility, if they need time.

        Raises:
            ValueError: If that is not at least one item and no negative bytes (rule 1).
        """
        if nbytes is None:
            nbytes = 0 if event is None else measure(event)
        if items < 1 or nbytes < 0:
            msg = f"a turn handles at least one item and no negative bytes, not {items}, {nbytes}"
            raise ValueError(msg)
        if self.tracers is None:
            turn = Turn(self, items, nbytes)
        else:
            turn = self.tracers[0].turn(self, items, nbytes)
        if confirm is not None:
            turn.confirm = confirm
        return turn

    def caused_turn(self) -> Turn:
        """Return a turn for what handling a loan of this account causes; for `LoanedItem.turn`."""
        return Turn(self, 0, 0)

    def moved(self, before: Holder | None, holder: Holder, items: int) -> None:
        """Do nothing: whose hands a loan is in makes no difference here. For `LoanedItem`."""

    def standing(self) -> Standing:
        """Return this owner's quota of standing state: assertions, retained messages (rule 16)."""
        return self.ledger.standing_of(self.name)

    # -- waiting --------------------------------------------------------------------------------

    def funds_are_clear(self) -> bool:
        """Whether `ensure_clear_funds` would return at once."""
        for account in self.limited:
            if (
                account.debt_items > account.mark_items
                or account.debt_bytes > account.mark_bytes
                or account.gated
            ):
                return False
        return True

    async def ensure_clear_funds(self) -> None:
        """Wait while this account, or an ancestor, is above its limit or halted; before reading.

        Returns at once, *without a checkpoint*, when the funds are clear: readers checkpoint once a
        read anyway, and this is called more often. (It departs from Trio's habit: 0.1 us against
        3.6 us.) Otherwise it waits until the debt is at or below the lower mark; all waiters go on,
        in the order in which they came, each after looking again (rule 6).

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
        await self._wait_for_clear_funds()

    async def _wait_for_clear_funds(self) -> None:
        ledger = self.ledger
        if ledger.leaked:
            ledger.drain()
        now = ledger.clock()
        waiter = Waiter(ledger.next_ticket(), self, now, now)
        closed = self._closed_to(waiter)
        if closed is None:
            return
        self.waits += 1
        if closed.halted:
            ledger.waits_alarm += 1
        elif closed is self:
            ledger.waits_here += 1
        else:
            ledger.waits_above += 1
        if self.readers is None:
            self.readers = []
        self.readers.append(waiter)
        ledger.waiters.add(waiter)
        if ledger.slow_waits is not None:
            ledger.slow_waits.began(waiter)
        for trace in ledger.traces:
            trace.wait_began(waiter)
        clear = False
        try:
            while True:
                closed = self._closed_to(waiter)
                if closed is None:
                    clear = True
                    return
                if waiter.at is not closed:
                    if waiter.at is not None:
                        waiter.at._step_out(waiter)
                    closed._step_in(waiter)
                waiter.event = ledger.new_event()
                await waiter.event.wait()
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

    def _closed_to(self, waiter: Waiter) -> Account | None:
        """Return the first account of the chain that does not let this waiter through."""
        for account in self.chain:
            if (
                account.debt_items > account.mark_items or account.debt_bytes > account.mark_bytes
            ) and not account.throttled:
                account._throttle()
            if (
                account.throttled
                or account.halted
                or (account.line is not None and account.line.has_before(waiter.ticket))
            ):
                return account
        return None

    def _throttle(self) -> None:
        self.throttled = self.gated = True
        ledger = self.ledger
        ledger.unusual.add(self)
        over = self.debt_items - self.mark_items
        if over > 0:
            ledger.overshoot_items.add(over)
        over = self.debt_bytes - self.mark_bytes
        if over > 0:
            ledger.overshoot_bytes.add(over)

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
        if line.stalls is not None:
            self.tell_stall(waiter)
            line.stalls.left(waiter)
        line.leave(waiter)
        waiter.at = None
        self._book_stretch(waiter, self.ledger.clock())
        if self is not waiter.account and self.blame:
            # What an ancestor's holders kept this reader waiting for belongs on its statement too:
            # what has been added there since it came, but for what `line.joined` took off.
            for name, seconds in self.blame.items():
                blamed = seconds - waiter.blame_before.get(name, 0.0)
                if blamed > 0:
                    waiter.blame[name] = waiter.blame.get(name, 0.0) + blamed
        closed = self.throttled or bool(self.halted)
        self.gated = closed or len(line) > 0
        if not closed:
            line.wake_head()

    def tell_stall(self, waiter: Waiter) -> None:
        """Tell the recorder whom a reader that stands here has been kept waiting by."""
        line = self.line
        recorder = self.ledger.recorder
        if line is None or line.stalls is None or recorder is None:
            return
        account = waiter.account
        here = REASONS[0] if self is account else REASONS[1]
        for (culprit, alarm), seconds in line.stalls.tell(waiter):
            reason = REASONS[2] if alarm else here
            recorder.stalled(account, self, culprit, seconds, self.blame_mark, reason)

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close one opening of this account; safe to call for each `Ledger.open` once.

        What it owes stays owed, by this name, until it is paid off; then the account is folded
        into the ledger's totals and forgotten.
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
        """Keep this account open for the length of a block that has to pay at its end.

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
