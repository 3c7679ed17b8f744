"""The line of an account: the readers that wait there, and the waits of its own readers.

It books how long they wait, for which reason, and which holder is to blame. `_waiters.py` has the
rules of the line. An account has no `Line` until a reader waits.
"""

from __future__ import annotations

import math
import weakref
from bisect import insort
from typing import TYPE_CHECKING

from ._gate import closed_to, gate_of
from ._waiters import NOBODY, RATE, REASONS, Waiter, ticket_of
from .limits._rate_limit import RATE_LIMIT
from .watch._profile import DEFAULT_PATIENCE
from .watch._stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ._account import Account
    from ._gate import Gate
    from ._loop import Loop

MAX_BLAMED = 64
"""How many holders an account's statement names; the rest are summed up as `OTHERS`. As many as an
operator reads, and a bound on the memory that peers with ever new names can claim."""

OTHERS = "(others)"
"""The name blamed when the statement is full."""


def add_blame(blame: dict[str, float], holder: str, seconds: float) -> str:
    """Add `seconds` to the blocked time blamed on `holder`; the record stays bounded.

    Returns:
        The name under which the seconds are recorded.
    """
    if holder not in blame and len(blame) >= MAX_BLAMED:
        holder = OTHERS
    blame[holder] = blame.get(holder, 0.0) + seconds
    return holder


class Line:
    """The readers that wait at one account, and the waits of the account's own readers.

    Attributes:
        account: The account that has it.
        waiters: Those that stand in line here, in the order of their tickets.
        joined: Those of them that joined in the middle of a stretch, with the seconds of it that
            were over by then, for which the next repayment's holder is not to blame.
        stalls: The blocked time of each, for the ledger's recorder; None while there is none.
        mark: When the stretch began that is blamed on the next repayment's holder.
        blame: Seconds blamed on each holder: for those that stand here, and for the account's own
            readers wherever they stood.
        readers: The account's own readers that wait now, here or at an ancestor.
        passer: The task of the reader that was let through last; see `Account.passed`.
        waits: How often a reader of the account had to wait.
        waited: Seconds of ended stretches of their waits, by reason.
    """

    __slots__ = (
        "account", "blame", "joined", "mark", "passer", "readers", "stalls", "waited", "waiters",
        "waits",
    )  # fmt: skip

    def __init__(self, account: Account) -> None:
        self.account = account
        self.waiters: list[Waiter] = []
        self.joined: dict[Waiter, float] = {}
        self.stalls: Stalls | None = None
        self.mark = 0.0
        self.blame: dict[str, float] = {}
        self.readers: list[Waiter] = []
        self.passer: weakref.ref[object] | None = None
        self.waits = 0
        self.waited = [0.0] * len(REASONS)

    def __len__(self) -> int:
        return len(self.waiters)

    def has_before(self, ticket: int) -> bool:
        """Whether somebody with an earlier ticket stands here."""
        return bool(self.waiters) and self.waiters[0].ticket < ticket

    def wake_head(self) -> None:
        """Wake the first reader in line, which then checks again."""
        if self.waiters:
            self.waiters[0].wake()

    # -- standing in line -----------------------------------------------------------------------

    def step_in(self, waiter: Waiter) -> None:
        """Put `waiter` in line, at the place of its ticket."""
        account = self.account
        now = account.ledger.clock()
        own = account is waiter.account
        if not self.waiters:
            self.mark = now
        elif not own:
            self.joined[waiter] = now - self.mark
        if account.ledger.recorder is not None:
            if self.stalls is None:
                self.stalls = Stalls()
            self.stalls.joined(waiter, now - self.mark)
        insort(self.waiters, waiter, key=lambda w: w.ticket)
        account.gated = True
        waiter.at = account
        waiter.blame_before = {} if own else dict(self.blame)

    def step_out(self, waiter: Waiter) -> None:
        """Take `waiter` out of the line, and book its wait here."""
        account = self.account
        gate = gate_of(account)
        if gate.cause == RATE:
            self.blame_on(RATE_LIMIT, account.ledger.clock())
        if self.stalls is not None:
            self.tell_stall(waiter)
            self.stalls.left(waiter)
        self.waiters.remove(waiter)
        self.joined.pop(waiter, None)
        waiter.at = None
        self._book_stretch(waiter, gate, account.ledger.clock())
        if account is not waiter.account:
            # The time an ancestor's holders blocked this reader belongs on its statement too: the
            # seconds added there since it came, less those that `joined` took off.
            for name, seconds in self.blame.items():
                blamed = seconds - waiter.blame_before.get(name, 0.0)
                if blamed > 0:
                    waiter.blame[name] = waiter.blame.get(name, 0.0) + blamed
        gate.settle()

    async def until_woken(self, waiter: Waiter, gate: Gate, loop: Loop) -> None:
        """Wait until `waiter` has to check again."""
        seconds = math.inf
        # Nothing else wakes readers when there are tokens again, so the first in line uses a
        # timeout, for all that stand here. Another closed gate wakes them when it opens.
        if gate.cause == RATE and gate.bucket is not None and self.waiters[0] is waiter:
            seconds = gate.bucket.wait(self.account.ledger.clock())
        event = waiter.event = loop.event()
        ledger = self.account.ledger
        unwatched = gate.cause != RATE and ledger.is_unwatched()
        if unwatched:
            seconds = min(seconds, DEFAULT_PATIENCE)
        if seconds == math.inf:
            await event.wait()
            return
        await loop.wait_until(event, loop.now() + seconds)
        if (
            unwatched
            and ledger.is_unwatched()  # still
            and ledger.clock() - waiter.since >= DEFAULT_PATIENCE
        ):
            ledger.warn_unwatched(waiter.account)

    # -- who is to blame ------------------------------------------------------------------------

    def blame_on(self, name: str, now: float) -> None:
        """Blame `name` for the stretch that ends now, for all readers that wait here."""
        seconds = now - self.mark
        name = add_blame(self.blame, name, seconds)
        if self.stalls is not None:
            self.stalls.blame((name, gate_of(self.account).cause), seconds)
        self.mark = now
        for waiter, before in self.joined.items():
            waiter.blame[name] = waiter.blame.get(name, 0.0) - before
        self.joined.clear()

    def cut_stretches(self, gate: Gate) -> None:
        """Book the time so far: the reason why readers wait here changes."""
        now = self.account.ledger.clock()
        culprit = gate.culprit()
        if culprit is not None:
            self.blame_on(culprit, now)
        self.mark = now
        self.joined.clear()
        if self.stalls is not None:
            self.stalls.cut()
        for waiter in self.waiters:
            self._book_stretch(waiter, gate, now)

    def _book_stretch(self, waiter: Waiter, gate: Gate, now: float) -> None:
        stretch = now - waiter.stretch
        waiter.stretch = now
        why = gate.why(waiter.account)
        line_of(waiter.account).waited[why] += stretch
        self.account.ledger.waited[why] += stretch

    def tell_stall(self, waiter: Waiter) -> None:
        """Tell the recorder which culprits have blocked a reader that stands here."""
        here = self.account
        recorder = here.ledger.recorder
        if self.stalls is None or recorder is None:
            return
        account = waiter.account
        otherwise = 0 if here is account else 1
        for (culprit, cause), seconds in self.stalls.tell(waiter):
            recorder.stalled(
                account, here, culprit, seconds, self.mark, REASONS[cause or otherwise]
            )


def line_of(account: Account) -> Line:
    """Return the line of `account`, which is made at the first need."""
    line = account.line
    if line is None:
        line = account.line = Line(account)
    return line


def readers_of(account: Account) -> Sequence[Waiter]:
    """Return the readers of `account` that wait now, wherever they stand."""
    return () if account.line is None else account.line.readers


def waited_of(account: Account) -> Sequence[float]:
    """Return the seconds of the ended stretches of their waits, by reason."""
    return [0.0] * len(REASONS) if account.line is None else account.line.waited


def blame_of(account: Account) -> Mapping[str, float]:
    """Return the seconds blamed on each holder; see `Line.blame`."""
    return {} if account.line is None else account.line.blame


async def wait_for_clear_funds(account: Account) -> None:
    """Wait until every gate of the chain lets a reader of `account` through, in its turn."""
    ledger = account.ledger
    if ledger.leaked:
        ledger.drain()
    now = ledger.clock()
    loop = ledger.loop()
    ticket = ticket_of(account)
    waiter = Waiter(ledger.next_ticket() if ticket == NOBODY else ticket, account, now, now)
    gate = closed_to(account, waiter.ticket)
    if gate is None:
        return
    if ticket == account.passed:
        account.passed = NOBODY
    own = line_of(account)
    own.waits += 1
    ledger.waits[gate.why(account)] += 1
    own.readers.append(waiter)
    ledger.waiters.add(waiter)
    if (ledger.at_ease or ledger.impatient) and ledger.on_wait is not None:
        ledger.on_wait()
    if ledger.slow_waits is not None:
        ledger.slow_waits.began(waiter)
    for trace in ledger.traces:
        trace.wait_began(waiter)
    clear = False
    try:
        while gate is not None:
            line = line_of(gate.account)
            if waiter.at is not gate.account:
                if waiter.at is not None:
                    line_of(waiter.at).step_out(waiter)
                line.step_in(waiter)
            await line.until_woken(waiter, gate, loop)
            gate = closed_to(account, waiter.ticket)
        clear = True
        account.passed, own.passer = waiter.ticket, weakref.ref(ledger.task())
    finally:
        if waiter.at is not None:
            line_of(waiter.at).step_out(waiter)
        own.readers.remove(waiter)
        ledger.waiters.discard(waiter)
        ledger.wait_seconds.add(waiter.stretch - waiter.since)
        if ledger.slow_waits is not None:
            ledger.slow_waits.ended(waiter, waiter.stretch, clear=clear)
        for name, seconds in waiter.blame.items():
            add_blame(own.blame, name, seconds)
        for trace in ledger.traces:
            trace.wait_ended(waiter)
        ledger.fold(account)
