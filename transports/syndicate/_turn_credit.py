"""Credit for turns, an experimental extension, for peers whose transport hides backpressure.

    <do <credit-flow-control 202506>>      the sender of turns asks for it
    <will <credit-flow-control 202506>>    the receiver agrees; silence refuses
    <C n>                                  n more of the turns since then have been handled

Credit is advice: a peer need not stop without it. Here it follows the accounts. `CreditGiven`:
credit for a turn is given when its effects are no longer owed, not when the turn was parsed.
`Credited`: output to a peer that gives credit is owed until the peer has given it, beyond the
kernel's buffers and whatever else lies between.

Source: syndicate-protocols, protocol.prs of June 2025.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from ...accounts import (
    DEFAULT_PATIENCE,
    Account,
    Holder,
    Ledger,
    LoanedItem,
    Outcome,
    StuckPolicy,
    Symptoms,
    lent,
)
from .._outlet import Outlet, nobody
from ._packets import Extension
from ._preserves import Record, Symbol

MAX_APART = 1_000
"""Packets of a peer without credit that are counted separately; more are credited together."""

FEATURE = Record(Symbol("credit-flow-control"), (202506,))
DO = Extension(Symbol("do"), (FEATURE,))
WILL = Extension(Symbol("will"), (FEATURE,))

_CREDIT = Symbol("C")


def credit(turns: int) -> Extension:
    """Return the packet that gives credit."""
    return Extension(_CREDIT, (turns,))


def credit_of(packet: Extension) -> int | None:
    """Return the amount of credit in a packet; None if it is another extension, or malformed."""
    if packet.label == _CREDIT and len(packet.fields) == 1:
        turns = packet.fields[0]
        if type(turns) is int and turns > 0:
            return turns
    return None


class CreditGiven:
    """The turns of a peer that are still owed for.

    Exact for the loans of holders: a turn is done when everything of its account that is held
    anywhere was caused later. Deliveries that share one loan are done together.
    """

    __slots__ = ("_turns", "_waiting")

    def __init__(self) -> None:
        # (time of the commit, number of turns), the oldest first.
        self._waiting: deque[tuple[float, int]] = deque()
        self._turns = 0

    def __len__(self) -> int:
        """Return the number of turns without credit."""
        return self._turns

    def took(self, turns: int, now: float) -> None:
        """Note that turns were received, and are committed by now."""
        self._turns += turns
        waiting = self._waiting
        if len(waiting) >= MAX_APART:
            # Merge with earlier ones: credit comes a little later, and never for what is owed.
            turns += waiting.pop()[1]
        waiting.append((now, turns))

    def due(self, oldest: float) -> int:
        """Return the number of turns that are due credit, and count them as credited.

        Args:
            oldest: when the oldest event was held that the peer still owes for; `inf` if none is.
        """
        turns = 0
        waiting = self._waiting
        while waiting and waiting[0][0] < oldest:
            turns += waiting.popleft()[1]
        self._turns -= turns
        return turns


class Credited(Holder):
    """Turns sent to a peer that gives credit, in order, until it gives credit for them.

    The bytes leave through the connection's outlet, which forwards them and holds none of them. The
    peer also credits turns that were under way when it agreed, and that were not counted here: its
    credit may be that many turns ahead. Turns that it cannot have yet stay owed nevertheless:
    otherwise a peer that does not read would make the relay keep turns that nobody pays for.
    """

    __slots__ = ("_closed", "_loans", "_on_broken", "_outlet", "_turns")

    kind = "credited"

    def __init__(
        self,
        ledger: Ledger,
        outlet: Outlet,
        name: str,
        *,
        on_broken: Callable[[str], object],
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        self._outlet = outlet
        self._on_broken = on_broken
        self._closed = False
        self._loans: deque[LoanedItem[list[Any]]] = deque()
        # The number of turns in each loan.
        self._turns: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<Credited {self.name}: {sum(self._turns)} turns without credit>"

    def __len__(self) -> int:
        """Return the number of loans that are not settled."""
        return len(self._loans)

    def put(
        self, account: Account, packets: bytes, turns: int, items: int, nbytes: int, now: float
    ) -> None:
        """Send turns, for which `account` has been charged."""
        if self._closed:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if not self._loans:
            self.progressed_at = now
        loan = lent(account, [packets], items, nbytes, self, now)
        self._loans.append(loan)
        self._turns.append(turns)
        self._outlet.forward(loan)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`; `item` is the bytes of one turn."""
        self.put(account, item, 1, items, nbytes, now)

    def ready(self) -> None:
        self._outlet.ready()

    def symptoms(self) -> Symptoms:
        # Credit is given from the front.
        first = (self._loans[0].opened, self._turns[0]) if self._loans else None
        return attrs.evolve(
            self._outlet.symptoms(),
            outstanding=sum(self._turns),
            position=(len(self._loans), first),
        )

    def loans(self) -> Iterator[LoanedItem[Any]]:
        yield from self._loans

    def credit(self, turns: int) -> None:
        """Settle the oldest `turns` turns; fewer, if the peer cannot have that many yet."""
        unbegun = next((loan for loan in self._outlet.unbegun() if loan.holder is self), None)
        while turns > 0 and self._loans and self._loans[0] is not unbegun:
            loan, count = self._loans[0], self._turns[0]
            if count <= turns:
                self._loans.popleft()
                self._turns.popleft()
                loan.settle(outcome=Outcome.ACKED)
            else:
                # A run: each of its turns is one item.
                self._turns[0] = count - turns
                loan.settle(turns, outcome=Outcome.ACKED)
            turns -= count

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: the connection is cut."""
        on_broken = self._on_broken
        self.close(Outcome.WRITTEN_OFF)
        on_broken(why)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Take nothing more; settle turns without credit with `outcome`. Idempotent."""
        self._closed = True
        self._turns.clear()
        while self._loans:
            self._loans.popleft().settle(outcome=outcome)
        self.ledger.unregister(self)
        self._on_broken = nobody  # see `Outlet.close`
