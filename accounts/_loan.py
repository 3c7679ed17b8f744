"""A loan: one or more events on their way to one holder, charged to one account."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from ._errors import SettledError
from ._leaks import Gone
from ._outcome import Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._account import Account
    from ._holder import Holder
    from ._turn import Turn
    from .trace._notes import Notes

JOIN_BYTES = 64 << 10
"""Deliveries do not join a loan that has grown to this many bytes. Whole loans are settled, so this
is the granularity in which a backlog is repaid while it drains. One read's worth."""

LOOSE = "(loose)"
"""The holder's name, in the matrix, of loans that no holder has taken yet."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LoanedItem(Generic[T_co]):
    """One or more events charged to the account that caused them, until their holder is done.

    Making one borrows; `settle` repays, as does the end of a `with` block::

        with loan as events:
            for event in events:
                with loan.turn() as turn:  # charged to loan.account: the ultimate cause
                    turn.publish(dataspace, answer(event))

    Leaving the block normally ends the loan as `delivered`; an exception ends it as `rejected`, a
    cancellation as `cancelled`. A loan that is garbage-collected while it is outstanding is repaid
    as `leaked`, with a `ResourceWarning` (rule 12).

    It covers `items` events. If `item` is a list, they are a contiguous range of its account's
    publications in order, and `settle(n)` and `split(n)` mean its first n. A list may have fewer
    entries than `items` while its entries stand for several events each (see `Holder`).

    Attributes:
        account: The account that owes for it: the ultimate cause, however many steps back.
        item: The event, or list of events, that was lent.
        items: Events not yet repaid; 0 when the loan has ended.
        bytes: Bytes not yet repaid.
        holder: Its holder, or None while only its maker has it.
        opened: When it was made, on the ledger's clock, in seconds.
        grows_to: Deliveries may join it while it has fewer bytes: `JOIN_BYTES`, or 0 for none.
        trace: The notes of the trace that follows it, or None. Nothing joins it then, and whatever
            repays past `settle` and `transfer` tells the trace.
    """

    __slots__ = (
        "__weakref__", "_entered", "account", "bytes", "grows_to", "holder", "item", "items",
        "opened", "trace",
    )  # fmt: skip

    _entered: tuple[Account, object | None]
    trace: Notes | None

    def __init__(
        self,
        account: Account,
        item: T_co,
        items: int = 1,
        nbytes: int = 0,
        holder: Holder | None = None,
        opened: float | None = None,
    ) -> None:
        self.items = 0
        if not (items >= 1 and nbytes >= 0):
            msg = f"a loan covers at least one item and no negative bytes, not {items}, {nbytes}"
            raise ValueError(msg)
        account.borrow(items, nbytes)
        if holder is None:
            account.ledger.loose.add(self)
        self.account = account
        self.item = item
        self.items = items
        self.bytes = nbytes
        self.holder = holder
        self.opened = account.ledger.clock() if opened is None else opened
        self.grows_to = JOIN_BYTES
        self.trace = None
        if account.tracing is not None:
            account.tracing.tag(self)

    def __repr__(self) -> str:
        where = "nobody else" if self.holder is None else self.holder.name
        state = f"{self.items} items, {self.bytes} bytes" if self.items else "settled"
        return f"<LoanedItem of {self.account.name} at {where}: {state}>"

    def __del__(self) -> None:
        # This may run at any point, in any thread: only append; the next turn or audit drains.
        if self.items:
            # An empty holder may be false, hence `is None`. It may be on its way out, too.
            holder = self.holder
            gone = None if holder is None else Gone(holder.name, holder.kind)
            self.account.ledger.leaked.append(
                (self.account, self.items, self.bytes, gone, self.opened, self.trace)
            )

    def held_by(self, holder: Holder) -> None:
        """Note that `holder` has the loan from now on."""
        self.account.ledger.loose.discard(self)
        if self.trace is not None:
            self.trace.moved(self.holder, holder, self.items)
        self.holder = holder

    def settle(
        self, n: int | None = None, outcome: Outcome = Outcome.DELIVERED, nbytes: int | None = None
    ) -> None:
        """Repay the first `n` items (None: all that is left) with `outcome`.

        Bytes are repaid in proportion unless `nbytes` gives the size of these items; the rounding
        remainder is repaid with the last item. `item` stays as it is: the caller tracks its own
        progress.

        Raises:
            SettledError: If fewer than `n` items (or `nbytes` bytes) are outstanding.
            TypeError: If `outcome` is not an `Outcome`.
        """
        items = self.items
        if (n is None or n == items) and items and outcome.__class__ is Outcome:
            n = items
            nbytes = self.bytes
            self.items = self.bytes = 0
        else:
            n, nbytes = self._take_off(n, outcome, nbytes)
        holder = self.holder
        if holder is not None:
            holder.progressed_at = now = holder.ledger.clock()
            # The age of joined deliveries is that of the first of them.
            holder.ages.add(now - self.opened, n)
        self.account.repay(n, nbytes, outcome, holder, self.opened, lent=True)
        if self.trace is not None:
            self.trace.repaid(n, nbytes, outcome, holder)

    def _take_off(self, n: int | None, outcome: Outcome, nbytes: int | None) -> tuple[int, int]:
        items = self.items
        if n is None:
            n = items
            if not n:
                msg = f"{self!r} has ended; it cannot be settled again"
                raise SettledError(msg)
        if outcome.__class__ is not Outcome:
            msg = f"an outcome is one of Outcome's (Outcome.DELIVERED), not {outcome!r}"
            raise TypeError(msg)
        if n < 1 or n > items:
            msg = f"cannot settle {n} of {items} outstanding items of a loan of {self.account.name}"
            raise SettledError(msg)
        if nbytes is None:
            nbytes = self.bytes * n // items
        elif not 0 <= nbytes <= self.bytes:
            msg = f"cannot settle {nbytes} of {self.bytes} outstanding bytes"
            raise SettledError(msg)
        self.items = items - n
        self.bytes -= nbytes
        return n, nbytes

    def split(self, n: int, nbytes: int | None = None) -> LoanedItem[list[Any]]:
        """Split off the first `n` items as a separate loan; the debt stays the same.

        The part has `nbytes` of the bytes (default: its share). It is loose until a holder takes
        it (`LoanQueue.put`, `held_by`), even if this loan has a holder; finishing it counts as
        that holder's progress.

        Raises:
            SettledError: If it does not cover more than `n` items, or not `nbytes` bytes.
            TypeError: If `item` is not a list with an entry for each item.
        """
        items = self.items
        if not 0 < n < items:
            msg = f"cannot split {n} items off a loan of {items}"
            raise SettledError(msg)
        entries = cast("list[Any]", self.item)
        if not isinstance(cast("object", entries), list) or len(entries) != items:
            msg = "only a loan of a list with one entry for each item can be split"
            raise TypeError(msg)
        if nbytes is None:
            nbytes = self.bytes * n // items
        elif not 0 <= nbytes <= self.bytes:
            msg = f"cannot split {nbytes} bytes off a loan of {self.bytes}"
            raise SettledError(msg)
        first = entries[:n]
        del entries[:n]
        self.items = items - n
        self.bytes -= nbytes
        part = self.continued(lent, self.account, first, n, nbytes, self.holder, self.opened)
        self.account.ledger.loose.add(part)
        return part

    def continued(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `call`, which makes or repays for this loan's account what was this loan's."""
        return self.account.under_trace(self.trace, call, *args, **kwargs)

    def transfer(self, account: Account, outcome: Outcome = Outcome.STORED) -> None:
        """Charge the outstanding rest of the loan to `account` from now on; for its holder.

        For the previous account the loan ends with `outcome`. Work that the loan causes is charged
        to `account` from now on, too.

        Raises:
            SettledError: If nothing is left.
            TypeError: If `outcome` is not an `Outcome`.
            ValueError: If `account` belongs to another ledger.
        """
        if outcome.__class__ is not Outcome:
            msg = f"an outcome is one of Outcome's (Outcome.STORED), not {outcome!r}"
            raise TypeError(msg)
        if account.ledger is not self.account.ledger:
            msg = f"{account!r} is of another ledger"
            raise ValueError(msg)
        items, nbytes = self.items, self.bytes
        if not items:
            msg = f"{self!r} has ended; nobody owes for it"
            raise SettledError(msg)
        before, opened, trace = self.account, self.opened, self.trace
        account.borrow(items, nbytes)
        self.account = account
        self.trace = None
        self.opened = now = account.ledger.clock()
        holder = self.holder
        if holder is not None:
            holder.ages.add(now - opened, items)
        before.repay(items, nbytes, outcome, holder, opened, lent=True)
        if trace is not None:
            trace.repaid(items, nbytes, outcome, holder)

    def turn(self) -> Turn:
        """Return a turn of this loan's account: the ultimate cause pays for its output (rule 2).

        It borrows nothing for its input, which this loan covers.
        """
        if not self.items:
            msg = f"{self!r} has ended; nothing more can be caused by it"
            raise SettledError(msg)
        return self.account.caused_turn(self.trace)

    def __enter__(self) -> T_co:
        if not self.items:
            msg = f"{self!r} has ended"
            raise SettledError(msg)
        account = self.account
        self._entered = account, account.ledger.enter(account)
        return self.item

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # `transfer` may have charged it to another account by now.
        account, task = self._entered
        account.ledger.leave(account, task)
        if self.items:  # else it was settled in the block
            self.settle(outcome=outcome_of(exc))


_new: Final = object.__new__
_ANY_LOAN: Final[type[LoanedItem[Any]]] = LoanedItem


def lent(
    account: Account,
    item: T,
    items: int,
    nbytes: int,
    holder: Holder | None,
    opened: float | None,
) -> LoanedItem[T]:
    """Return a loan of what `account` has borrowed already.

    A commit borrows for all its deliveries at once. There may be a loan for each of them, and this
    takes two thirds of the CPU of `LoanedItem(...)`.
    """
    loan: LoanedItem[T] = _new(_ANY_LOAN)
    loan.account = account
    loan.item = item
    loan.items = items
    loan.bytes = nbytes
    loan.holder = holder
    loan.opened = account.ledger.clock() if opened is None else opened
    loan.grows_to = JOIN_BYTES
    loan.trace = None
    if account.tracing is not None:
        account.tracing.tag(loan)
    return loan


def settle_whole(loans: Sequence[LoanedItem[Any]], outcome: Outcome) -> None:
    """Repay all that is left of each loan; as `LoanedItem.settle`, with one posting for many.

    None of them may have ended.
    """
    items = nbytes = same = 0
    last: LoanedItem[Any] | None = None
    for loan in loans:
        account = loan.account
        if loan.trace is not None or account.ledger.recorder is not None:
            loan.settle(outcome=outcome)
            continue
        if last is not None and not (account is last.account and loan.holder is last.holder):
            _repay_some(last, items, nbytes, same, outcome)
            items = nbytes = same = 0
        elif last is not None and loan.opened != last.opened:
            _grow_old(last, same)
            same = 0
        last = loan
        items += loan.items
        same += loan.items
        nbytes += loan.bytes
        loan.items = loan.bytes = 0
    if last is not None:
        _repay_some(last, items, nbytes, same, outcome)


def _grow_old(loan: LoanedItem[Any], items: int) -> None:
    """Count the age of items that were opened together with a loan."""
    holder = loan.holder
    if holder is not None:
        holder.progressed_at = now = holder.ledger.clock()
        holder.ages.add(now - loan.opened, items)


def _repay_some(
    loan: LoanedItem[Any], items: int, nbytes: int, same: int, outcome: Outcome
) -> None:
    """Repay items of a loan's account and holder, of which the last `same` were opened with it."""
    _grow_old(loan, same)
    loan.account.repay(items, nbytes, outcome, loan.holder, loan.opened, lent=True)
