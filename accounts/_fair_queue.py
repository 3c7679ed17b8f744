"""A queue of loans that serves accounts in turn: deficit round robin, with sparse flows first.

First in first out, a message waits behind everything that others have queued: behind megabytes of
a noisy neighbour's. Here each account's loans are a flow, and a message waits for one round at
most. The scheduler is FQ-CoDel's (RFC 8290, section 4; without its CoDel, since a loan is not
dropped): a flow that begins to have something is *new*, and is served before *old* flows until it
has used its first quantum; so an account that sends little never waits for a round. A new flow that
empties becomes an old one, so that it is not new again with its next message. Deficit round robin
is Shreedhar and Varghese's (SIGCOMM 1995).

Rules of this file:
1. The loans of one account stay in order, whatever else happens. Loans that only another queue may
   reorder (`put`) are one flow, in their order.
2. Weights are the accounts' own (`Account.weight`), at each level of the tree whose parent is
   shared: as `limits/_shares.py` divides a limit, this divides a subscriber.
3. What is `first` goes before all flows, in order.
4. The work for a loan does not depend on the number of flows, but for empty ones, which are each
   looked at once more.
"""

from __future__ import annotations

from collections import deque
from heapq import merge
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ._loan import LoanedItem, lent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ._account import Account
    from ._holder import Holder

QUANTUM: Final = 4096
"""Bytes that the heaviest of some flows may send in each round: a few packets, as RFC 8290 has one
of 1,514 bytes (section 5.2.1). A loan is not taken apart: after a run of 64 KiB a flow is passed
over for sixteen rounds, in which those that send little have sixteen turns. With a quantum of a run
an account with a message now and then would wait for a run of everybody else."""

LEAST_WEIGHT: Final = 1e-6
"""Accounts that weigh less count as this: sums stay finite."""

_opened: Callable[[LoanedItem[Any]], float] = attrgetter("opened")


class _Flow:
    """The loans of one account, in order.

    Attributes:
        account: The account; None: the flow of loans that have been put.
        group: The group that it takes turns in.
        credit: Bytes that it may send in this turn, if it is the heaviest; 0 or less: its turn is
            over.
        listed: Whether its group has it in one of its lines.
        size: The number of loans.
        loans: The loans, of a flow; of a group, none.
    """

    __slots__ = ("account", "credit", "group", "listed", "loans", "size")

    def __init__(self, account: Account | None, group: _Group | None) -> None:
        self.account = account
        self.group = group
        self.credit = 0.0
        self.listed = False
        self.size = 0
        self.loans: deque[LoanedItem[Any]] = deque()

    @property
    def weight(self) -> float:
        """Its weight, beside others of its group."""
        return 1.0 if self.account is None else max(self.account.weight, LEAST_WEIGHT)

    def add(self) -> None:
        """Count one more loan, here and in all groups above."""
        flow = self
        while True:
            flow.size += 1
            group = flow.group
            if group is None:
                return
            if not flow.listed:
                flow.listed = True
                flow.credit = QUANTUM
                group.new.append(flow)
                group.heaviest = max(group.heaviest, flow.weight)
            flow = group

    def charge(self, nbytes: int) -> None:
        """Count a loan of so many bytes as sent, here and in all groups above."""
        flow = self
        while True:
            flow.size -= 1
            group = flow.group
            if group is None:
                return
            flow.credit -= nbytes * group.heaviest / flow.weight
            flow = group


class _Group(_Flow):
    """Flows that take turns.

    Attributes:
        heaviest: The largest weight of those that there have been.
        new: Flows that have just begun, and are served first.
        old: The others, in the order of their turns.
    """

    __slots__ = ("heaviest", "new", "old")

    def __init__(self, account: Account | None, group: _Group | None) -> None:
        super().__init__(account, group)
        self.heaviest = 0.0
        self.new: deque[_Flow] = deque()
        self.old: deque[_Flow] = deque()

    def next(self) -> tuple[_Flow, list[_Flow]]:
        """Return the flow whose turn it is, which has something; and those that have gone."""
        gone: list[_Flow] = []
        passed = 0
        while True:
            line = self.new or self.old
            flow = line[0]
            if not flow.size:
                line.popleft()
                if line is self.new:
                    self.old.append(flow)
                else:
                    flow.listed = False
                    gone.append(flow)
                continue
            if flow.credit > 0:
                return flow, gone
            line.popleft()
            self.old.append(flow)
            flow.credit += QUANTUM
            passed += 1
            if passed > len(self.old) and not self.new:
                self._skip_rounds()
                passed = 0

    def _skip_rounds(self) -> None:
        """Skip rounds in which nobody could send: small weights need many."""
        rounds = min(-flow.credit for flow in self.old if flow.size) // QUANTUM
        if rounds > 0:
            for flow in self.old:
                flow.credit += rounds * QUANTUM


class FairQueue:
    """Loans that wait for one consumer, which serves their accounts in turn.

    Attributes:
        first: Loans that go before all others, in order.
    """

    __slots__ = ("_flows", "_groups", "_root", "first")

    def __init__(self, first: Iterable[LoanedItem[Any]] = ()) -> None:
        self.first: deque[LoanedItem[Any]] = deque(first)
        self._root = _Group(None, None)
        self._flows: dict[Account | None, _Flow] = {}
        self._groups: dict[Account, _Group] = {}

    def __repr__(self) -> str:
        return f"<FairQueue: {len(self)} loans of {len(self._flows)} flows>"

    def __len__(self) -> int:
        """Return the number of loans."""
        return len(self.first) + self._root.size

    def __iter__(self) -> Iterator[LoanedItem[Any]]:
        """Yield the loans, those of one account in order."""
        return chain.from_iterable(self.lines())

    def lines(self) -> Iterator[deque[LoanedItem[Any]]]:
        """Yield lines of loans that are each in order, and grow only at their ends."""
        yield self.first
        for flow in self._flows.values():
            yield flow.loans

    # -- taking in ------------------------------------------------------------------------------

    def hold(
        self, account: Account, entry: Any, items: int, nbytes: int, now: float, holder: Holder
    ) -> None:
        """Take a delivery for `holder`, as `Holder.hold`: it may join the account's last loan."""
        flow = self._flows.get(account)
        if flow is not None and flow.loans:
            tail = flow.loans[-1]
            if tail.bytes < tail.grows_to and account.tracing is None:
                tail.item.append(entry)
                tail.items += items
                tail.bytes += nbytes
                return
        self.add(lent(account, [entry], items, nbytes, holder, now))

    def add(self, loan: LoanedItem[Any]) -> None:
        """Take a loan as the account's last; nothing joins it, as long as `hold` is not called."""
        account = loan.account
        flow = self._flows.get(account)
        if flow is None:
            flow = self._flows[account] = _Flow(account, self._group_of(account))
        flow.loans.append(loan)
        flow.add()

    def put(self, loan: LoanedItem[Any]) -> None:
        """Take a loan that stays in order with all others that are put, whoever's they are."""
        flow = self._flows.get(None)
        if flow is None:
            flow = self._flows[None] = _Flow(None, self._root)
        flow.loans.append(loan)
        flow.add()

    def _group_of(self, account: Account) -> _Group:
        group = self._root
        for above in reversed(account.chain[1:]):
            parent = above.parent
            if parent is None or parent.shares is None:
                continue  # nobody has a share at this level
            known = self._groups.get(above)
            if known is None:
                known = self._groups[above] = _Group(above, group)
            group = known
        return group

    # -- giving out -----------------------------------------------------------------------------

    def pop(self) -> LoanedItem[Any]:
        """Take out the loan whose turn it is.

        Raises:
            IndexError: If there is none.
        """
        if self.first:
            return self.first.popleft()
        flow: _Flow = self._root
        if not flow.size:
            msg = "pop from an empty FairQueue"
            raise IndexError(msg)
        while isinstance(flow, _Group):
            flow, gone = flow.next()
            for each in gone:
                self._forget(each)
        loan = flow.loans.popleft()
        # A loan without bytes costs something, too.
        flow.charge(max(loan.bytes, loan.items))
        return loan

    def take(self, nbytes: int) -> deque[LoanedItem[Any]]:
        """Take out at least one loan, and more until they have so many bytes, or all are taken.

        Raises:
            IndexError: If there is none.
        """
        loan = self.pop()
        loans = deque((loan,))
        nbytes -= loan.bytes
        while nbytes > 0 and len(self):
            loan = self.pop()
            nbytes -= loan.bytes
            loans.append(loan)
        return loans

    def _forget(self, flow: _Flow) -> None:
        if isinstance(flow, _Group):
            for each in chain(flow.new, flow.old):
                self._forget(each)
            assert flow.account is not None
            del self._groups[flow.account]
        else:
            del self._flows[flow.account]

    def in_order(self) -> None:
        """Let all that is here go before whatever comes later.

        It goes about in the order in which it came; the loans of one account, and those that were
        put, in their own.
        """
        lines = [flow.loans for flow in self._flows.values()]
        self.first.extend(merge(*lines, key=_opened))
        self._root = _Group(None, None)
        self._flows.clear()
        self._groups.clear()

    def clear(self) -> deque[LoanedItem[Any]]:
        """Return all loans, as `in_order` has them; nothing is here any more."""
        self.in_order()
        loans = self.first
        self.first = deque()
        return loans
