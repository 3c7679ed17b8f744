"""Tracing: it follows an account's next event and everything that it causes (`Trace`).

A tracer is armed for some accounts. It follows each root turn that one of them does next, up to the
wanted number. Accounts that are not traced pay only for a look at `Account.tracers` for each root
turn, and at the tag of each loan (`_traced.py`).
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from .._cooperative import run_to_end
from .._loop import checkpoint, running
from ._label import label_of
from ._trace_notes import TraceNotes
from ._traced import trace_run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from .._account import Account
    from .._holder import Recipient
    from .._ledger import Ledger
    from .._loop import Event
    from ._trace import Trace

DEFAULT_TRACED_LOANS: Final = 5_000
"""Most loans, and most turns, followed for one event: half a kilobyte each."""

DEFAULT_SHOWN_LOANS: Final = 100
"""Most loans shown one by one: more than anybody reads."""

STEP: Final = 256
"""Accounts armed before other tasks may run, where they may."""


def anybody(name: str) -> bool:
    """Match every name."""
    return True


class Tracer:
    """Follows the next root turns of some accounts. A context manager::

        with Tracer(ledger, "mqtt:1883/-/pub".__eq__) as tracer:
            trace = None
            with trio.move_on_after(10):
                trace = await tracer.next()
            if trace is None:
                unfinished = tracer.rest()

    Turns that neither publish nor send anything are passed over, unless they fail. Leaving the
    block disarms it; outstanding loans then no longer refer to it.

    Args:
        ledger: The ledger.
        matches: Whether an account of that name is followed; those opened later count, too.
        events: How many root turns are followed.
        holders: Whether loans to a holder of that name are followed.
        label: Names an event in a word or two; must not raise.
        max_loans: How many loans of one event are followed.
        shown: How many of them a trace shows.

    Attributes:
        armed: How many accounts matched so far.
    """

    def __init__(
        self,
        ledger: Ledger,
        matches: Callable[[str], bool] = anybody,
        *,
        events: int = 1,
        holders: Callable[[str], bool] = anybody,
        label: Callable[[object], str] = label_of,
        max_loans: int = DEFAULT_TRACED_LOANS,
        shown: int = DEFAULT_SHOWN_LOANS,
    ) -> None:
        self._ledger = ledger
        self._matches = matches
        self._holders = holders
        self._label = label
        self._max_loans = max_loans
        self._shown = shown
        self._wanted = events
        self._going: list[TraceNotes] = []
        self._ended: deque[TraceNotes] = deque()
        self._arrived: Event | None = None
        self.armed = 0

    def __repr__(self) -> str:
        return f"<Tracer: {self._wanted} to come, {len(self._going)} under way>"

    # -- arming ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        run_to_end(self.arming())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def arming(self) -> Generator[None]:
        """Arm it, in steps; `close` disarms it, however far this has come."""
        ledger = self._ledger
        ledger.tracers.append(self)
        for number, account in enumerate(list(ledger.accounts.values()), 1):
            self.opened(account)
            if not number % STEP:
                yield

    def opened(self, account: Account) -> None:
        """Arm it for an account, if it matches; for `Ledger.open`."""
        if self._matches(account.name):
            mine = account.tracers or ()
            if self not in mine and self._ledger.accounts.get(account.name) is account:
                account.tracers = (*mine, self)
                self.armed += 1

    def close(self) -> None:
        """Disarm it and stop following. Idempotent."""
        self._wanted = 0
        ledger = self._ledger
        if self in ledger.tracers:
            ledger.tracers.remove(self)
            for account in ledger.accounts.values():
                if account.tracers is not None and self in account.tracers:
                    account.tracers = tuple(t for t in account.tracers if t is not self) or None
        going, self._going = self._going, []
        for notes in going:
            notes.let_go()
        self._ended.clear()

    # -- for accounts ---------------------------------------------------------------------------

    def run(
        self,
        account: Account,
        holders: Collection[Recipient],
        item: object,
        items: int,
        nbytes: int,
    ) -> Collection[Recipient]:
        """Return the recipients that take a run in place of `holders`; for `commit_run`."""
        return trace_run(account, holders, item, items, nbytes)

    def begin(self, account: Account, opened: float, items: int, nbytes: int) -> TraceNotes | None:
        """Begin a trace, if another one is wanted."""
        if self._wanted <= 0:
            return None
        self._wanted -= 1
        notes = TraceNotes(
            account,
            opened,
            items,
            nbytes,
            label=self._label,
            wants=self._holders,
            max_loans=self._max_loans,
            at_end=self._at_end,
            is_nothing=self._is_nothing,
        )
        self._going.append(notes)
        return notes

    def _at_end(self, notes: TraceNotes) -> None:
        self._going.remove(notes)
        self._ended.append(notes)
        if self._arrived is not None:
            self._arrived.set()

    def _is_nothing(self, notes: TraceNotes) -> None:
        self._going.remove(notes)
        self._wanted += 1

    # -- results --------------------------------------------------------------------------------

    async def next(self) -> Trace:
        """Wait for the next event to come and for everything that it caused to end.

        It waits for ever once there have been as many as were wanted.

        Cancellation: always a checkpoint, before anything is taken, so no trace is lost.
        """
        trace = await self.next_until(math.inf)
        assert trace is not None
        return trace

    async def next_until(self, deadline: float) -> Trace | None:
        """Wait as `next`, but not longer than until `deadline` on the loop's clock: then None.

        Cancellation: always a checkpoint, before anything is taken, so no trace is lost.
        """
        await checkpoint()
        loop = running()
        while not self._ended:
            if loop.now() >= deadline:
                return None
            self._arrived = loop.event()
            await loop.wait_until(self._arrived, deadline)
        return self._ended.popleft().told(self._shown)

    def rest(self) -> tuple[Trace, ...]:
        """Stop following; return the traces so far of events still under way, oldest first."""
        found = [*self._ended, *self._going]
        self.close()
        return tuple([notes.told(self._shown) for notes in found])
