"""Watch over sources that are read on above their limits: whom they would wait for, and how long.

A publisher whose work is refused or shed (`OverLimitPolicy`) waits for nothing, and yet a holder is
in its way: without a waiting reader no slow consumer would ever be found (rule 11). So it *stands*
in line as a reader that waits, from its first refused message until its funds are clear, and all
that looks at waits sees it: patience, rings, the log, the pages, the metrics.

Rules of this file:
1. At most one wait stands for each account, and it is told of nothing: who refuses looks at the
   account itself.
2. The largest holder of each account that stands is looked for once a second at most, in one walk
   over the loans for all of them, in steps, with no more than `SLOW_WAITS_SHARE` of a core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from .._cooperative import with_pauses
from .._gate import gate_of
from .._line import readers_of
from .._waiters import ALARM, BLOCKED, RATE, SHARE
from ._core_shares import SLOW_WAITS_SHARE
from ._slow_waits import Held, add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .._account import Account
    from .._ledger import Ledger

STRETCH_SECONDS: Final = 0.002
"""Longest walk before other tasks may run."""

LOOK_SECONDS: Final = 1.0
"""Least interval between two searches for holders; as the live page's."""

NOT_DONE: Final = {
    "outlet": "unread",
    "inflight": "unacknowledged",
    "subscription": "unacknowledged",
    "credited": "unacknowledged",
    "queue": "undelivered",
    "mailbox": "unreceived",
}
"""What a holder's consumer has not done with what it holds, by the kind of holder."""


@attrs.define(slots=True, eq=False)
class _Stand:
    """An account that stands in line."""

    account: Account
    since: float
    scope: trio.CancelScope
    largest: Held | None = None
    """The largest holder of its debt when last looked for."""


class OverLimitWatch:
    """Stands in line for accounts whose work is refused, and says what is in their way.

    Args:
        ledger: The ledger of the accounts.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stands: dict[Account, _Stand] = {}
        self._start_soon: Callable[..., object] | None = None
        self._more = trio.Event()

    def __len__(self) -> int:
        """Return the number of accounts that stand."""
        return len(self._stands)

    def __contains__(self, account: Account) -> bool:
        """Whether an account stands."""
        return account in self._stands

    async def run(self, start_soon: Callable[..., object]) -> None:
        """Watch until cancelled; nothing stands before and after that.

        Args:
            start_soon: Starts a task, as `trio.Nursery.start_soon`: one for each account that
                stands.
        """
        self._start_soon = start_soon
        try:
            while True:
                if not self._stands:
                    self._more = trio.Event()
                    await self._more.wait()
                _, took = await with_pauses(self._look_in_steps(), STRETCH_SECONDS)
                await trio.sleep(max(LOOK_SECONDS, took / SLOW_WAITS_SHARE))
        finally:
            self._start_soon = None
            for account in list(self._stands):
                self.forget(account)

    def note(self, account: Account) -> None:
        """Note that work of `account` is refused, or shed, because its funds are not clear.

        From now on the account counts as a reader that waits, until its funds are clear. Without
        `run` nothing is noted.
        """
        if account in self._stands or self._start_soon is None:
            return
        stand = _Stand(account, self._ledger.clock(), trio.CancelScope())
        self._stands[account] = stand
        self._start_soon(self._wait, stand)
        self._more.set()

    def forget(self, account: Account) -> None:
        """End its wait: whose account it is has gone. Idempotent."""
        stand = self._stands.pop(account, None)
        if stand is not None:
            stand.scope.cancel()

    async def _wait(self, stand: _Stand) -> None:
        try:
            with stand.scope:
                await stand.account.ensure_clear_funds()
        finally:
            if self._stands.get(stand.account) is stand:
                del self._stands[stand.account]

    def _look_in_steps(self) -> Generator[None]:
        """Find the largest holder of each."""
        held: dict[Account, dict[str, Held]] = {account: {} for account in self._stands}
        yield from add_up(self._ledger, held)
        for account, there in held.items():
            stand = self._stands.get(account)
            if stand is not None:
                stand.largest = max(there.values(), key=lambda each: each.bytes, default=None)

    def seconds(self, account: Account) -> float:
        """Return for how long an account has stood, in seconds; 0 if it does not."""
        stand = self._stands.get(account)
        return 0.0 if stand is None else self._ledger.clock() - stand.since

    def largest(self, account: Account) -> Held | None:
        """Return the largest holder of its debt, as last looked for; None: not known yet."""
        stand = self._stands.get(account)
        return None if stand is None else stand.largest

    def reason(self, account: Account) -> str:
        """Say to the owner of an account why its work is refused.

        It names no holder but one of the account's own debt.
        """
        held = self.largest(account)
        holder = ""
        if held is not None and held.items:
            word = NOT_DONE.get(held.kind, "outstanding")
            holder = f"{held.holder} has {held.bytes:,} bytes of yours {word}"
        gate = _gate(account)
        text = "; ".join(filter(None, (gate, holder)))
        if not text:
            text = (
                f"{account.debt_items:,} messages ({account.debt_bytes:,} bytes) of yours are "
                "outstanding, which is above your limit"
            )
        return f"{text}, for {self.seconds(account):.0f} s"


def _gate(account: Account) -> str:
    """Say what keeps the readers of `account`, if it is not its own limit."""
    at = next((reader.at for reader in readers_of(account) if reader.at is not None), None)
    if at is None:
        return ""
    gate = gate_of(at)
    why = gate.why(account)
    if why == ALARM:
        return f"there is an alarm ({', '.join(sorted(gate.halted))})"
    if why == BLOCKED:
        return f"{gate.blockers[0]} grants no credit"
    if why == RATE:
        return "your rate limit" + ("" if at is account else f" ({at.name})") + " is reached"
    if why == SHARE:
        above = at if at.parent is None else at.parent
        return f"you are above your share of the limit of {above.name}"
    return "" if at is account else f"{at.name} is above its limit"
