"""A turn: the transaction that handles one event, committed whole or not at all (rule 4).

Theory of operation. Inside its block a turn only takes notes. The commit, which does not await,
has two phases. First it applies every noted action in order: an action resolves the recipients, may
change state, and registers how to undo that. If one raises, the applied ones are undone in reverse
and nothing has been sent. The second phase cannot fail: every delivery is charged and handed over.
Only then is the turn's own input repaid (rule 3: children before parent, so debt never touches zero
in the middle of a chain), and at last the holders are told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ._books import borrow_run, charge_rates
from ._errors import SettledError, TooManyDeliveriesError
from ._holder import Holder, Recipient
from ._measure import measure
from ._outcome import Outcome, outcome_of
from ._waiters import NOBODY
from .limits._limit import UNLIMITED

if TYPE_CHECKING:
    from ._account import Account
    from ._confirm import Confirm
    from ._ledger import Ledger
    from ._recorder import Recorder


class Router(Protocol):
    """The destination of `Turn.publish`: a dataspace."""

    def route(self, turn: Turn, event: Any, nbytes: int | None) -> None:
        """Call `turn.deliver` for each holder that `event` concerns. Called at the commit."""
        ...


class Turn:
    """A transaction that handles one event, charged to `account`. A context manager, one use only::

        with account.turn(event) as turn:
            turn.publish(dataspace, event)

    Leaving the block commits. Leaving it by an exception discards all notes, and the turn's input
    is repaid as `rejected`, or `cancelled`. Avoid `await` in the block: the noted actions would
    wait for it.

    Attributes:
        account: The account that pays.
        input_items: Events this turn handles, charged to `account` while it is open; the holder
            is the ledger's `router`. 0 where a loan covers the input.
        input_bytes: Their bytes.
        opened: When it began, on the ledger's clock.
        max_deliveries: Most deliveries that its actions may cause, for input from peers. The last
            action is exempt: a publisher does not choose how many observe one event.
        confirm: Hears when holders have taken responsibility for its deliveries, or None.
    """

    __slots__ = (
        "__weakref__", "_about", "_actions", "_after", "_deliveries", "_failed", "_state", "_task",
        "_undo", "account", "confirm", "input_bytes", "input_items", "max_deliveries", "opened",
    )  # fmt: skip

    def __init__(self, account: Account, items: int, nbytes: int) -> None:
        self.account = account
        self.input_items = items
        self.input_bytes = nbytes
        self.opened = 0.0
        self.max_deliveries = UNLIMITED
        self.confirm: Confirm | None = None
        self._actions: list[Callable[[Turn], None]] = []
        # (recipient, item, items, bytes, payer if it is not the turn's account)
        self._deliveries: list[tuple[Recipient, Any, int, int, Account | None]] = []
        self._after: list[Callable[[], object]] | None = None
        self._undo: list[Callable[[], object]] = []
        # Exceptions of holders that failed to take their deliveries.
        self._failed: list[Exception] | None = None
        # The first event that it publishes; for the ledger's recorder.
        self._about: object = None
        self._state = "new"

    def __repr__(self) -> str:
        return f"<Turn of {self.account.name}: {self._state}, {len(self._actions)} actions>"

    def __enter__(self) -> Self:
        if self._state != "new":
            msg = f"{self!r} cannot be entered again; make another one"
            raise SettledError(msg)
        account = self.account
        if account.tracing is not None:
            account.under_trace(None, Turn.__enter__, self)
            return self
        ledger = account.ledger
        if ledger.leaked:
            ledger.drain()
        if self.input_items:
            account.borrow(self.input_items, self.input_bytes)
            account.passed = NOBODY
            if account.rated:
                charge_rates(account, self.input_items, self.input_bytes)
        self._task = ledger.enter(account)
        ledger.turns.add(self)
        self.opened = ledger.clock()
        self._state = "open"
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.account.tracing is not None:
            # It is made while a holder takes over a traced loan, which has not caused it.
            self.account.under_trace(None, self.__exit__, exc_type, exc, traceback)
            return
        if exc is not None:
            self._end(outcome_of(exc))
            return
        try:
            self._apply()
        except BaseException:
            self._end(Outcome.REJECTED)
            raise
        try:
            touched = self._hand_over()
        finally:
            self._end(Outcome.DELIVERED)
        make_ready(touched, self.account.ledger)
        for each in self._after or ():
            self.account.ledger.faults.call(None, "ending a turn", each)
        if self._failed is not None:
            raise _one_of(self._failed)

    # -- noting ---------------------------------------------------------------------------------

    def publish(self, router: Router, event: Any, *, nbytes: int | None = None) -> None:
        """Publish `event` in `router`, a dataspace, at the commit.

        Each holder that it reaches adds one item and `nbytes` bytes (default: `measure(event)`) to
        the debt.

        Raises:
            SettledError: If the turn is not open.
            ValueError: If `nbytes` is negative.
        """
        if nbytes is not None and nbytes < 0:
            msg = f"an event costs no negative bytes, not {nbytes}"
            raise ValueError(msg)
        self.act(partial(router.route, event=event, nbytes=nbytes))
        if self._about is None:
            self._about = event

    def send(
        self, holder: Recipient, item: Any, *, items: int = 1, nbytes: int | None = None
    ) -> None:
        """Send `item` to one `holder` at the commit, without routing.

        Raises:
            SettledError: If the turn is not open.
            TypeError: If `holder` is not a holder.
            ValueError: If it would cost less than one item, or negative bytes.
        """
        if not hasattr(holder, "hold"):
            msg = f"{holder!r} holds no loans; send to a mailbox, an outlet, or the like"
            raise TypeError(msg)
        size = measure(item) if nbytes is None else nbytes
        if not (items >= 1 and size >= 0):
            msg = f"what is sent costs at least one item and no negative bytes, not {items}, {size}"
            raise ValueError(msg)
        self.act(lambda turn: turn.deliver(holder, item, items, size))

    def act(self, action: Callable[[Turn], None]) -> None:
        """Note an action for the commit: it calls `deliver` and `on_undo` of the turn it is given.

        It must not await, and must not raise after changing state without registering an undo.

        Raises:
            SettledError: If the turn is not open.
        """
        if self._state != "open":
            msg = f"{self!r} is not open; send from inside its `with` block"
            raise SettledError(msg)
        self._actions.append(action)

    # -- for actions, at the commit -------------------------------------------------------------

    def deliver(
        self,
        holder: Recipient,
        item: Any,
        items: int,
        nbytes: int,
        payer: Account | None = None,
    ) -> None:
        """Deliver to one holder, once every action has been applied. For actions, at the commit.

        `payer` pays instead of the turn's account, if given; it has to be open.

        Raises:
            SettledError: At any other time: nobody would hand it over.
        """
        if self._state != "committing":
            msg = f"{self!r} is not committing; `act` or `send` is for the block itself"
            raise SettledError(msg)
        self._deliveries.append((holder, item, items, nbytes, payer))

    def afterwards(self, call: Callable[[], object]) -> None:
        """Register a call for after all deliveries; it is not called if the turn fails."""
        if self._after is None:
            self._after = []
        self._after.append(call)

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Register the undo of a change of state, for when a later action fails. Must not raise."""
        self._undo.append(undo)

    # -- the commit -----------------------------------------------------------------------------

    def _apply(self) -> None:
        self._state = "committing"
        try:
            for action in self._actions:
                if len(self._deliveries) > self.max_deliveries:
                    msg = f"it would cause more than {self.max_deliveries} deliveries at once"
                    raise TooManyDeliveriesError(msg)
                action(self)
            if self._deliveries and self.account.opens <= 0:
                self.account.check_open()
        except BaseException:
            self._deliveries.clear()
            self._undo_all()
            raise

    def _undo_all(self) -> None:
        failures: list[BaseException] = []
        while self._undo:
            try:
                self._undo.pop()()
            except BaseException as exc:  # noqa: BLE001 (the rest has to be undone too)
                failures.append(exc)
        if failures:
            raise BaseExceptionGroup("a failed turn could not be undone", failures)

    def _hand_over(self) -> Iterable[Recipient]:
        now = self.opened
        ledger = self.account.ledger
        touched: dict[Recipient, None] = {}
        # A holder may have to send something on at once (a dead letter): a turn within this one.
        # Its confirms must not reach this one's publisher.
        outer, ledger.confirming = ledger.confirming, self.confirm
        try:
            for holder, item, items, nbytes, payer in self._deliveries:
                account = payer or self.account
                account.borrow(items, nbytes)
                try:
                    holder.hold(account, item, items, nbytes, now)
                except Exception as exc:  # noqa: BLE001 (raised again when all have theirs)
                    self._failed = _not_held(account, holder, items, nbytes, exc, self._failed)
                else:
                    touched[holder] = None
            for holder in touched:
                if holder.gathers:
                    ledger.faults.call(whose(holder), "gathering a commit", holder.gathered)
        finally:
            ledger.confirming = outer
        return touched

    def _end(self, outcome: Outcome) -> None:
        self._state = "ended"
        account = self.account
        ledger = account.ledger
        ledger.leave(account, self._task)
        ledger.turns.discard(self)
        items, nbytes = self.input_items, self.input_bytes
        self.input_items = self.input_bytes = 0
        if items and ledger.recorder is not None:
            self._tell(ledger.recorder, items, nbytes, outcome)
        self._about = None
        self._actions.clear()
        self._deliveries.clear()
        self._undo.clear()
        if items:
            ledger.router.ages.add(ledger.clock() - self.opened, items)
            account.repay(items, nbytes, outcome, ledger.router)

    def _tell(self, recorder: Recorder, items: int, nbytes: int, outcome: Outcome) -> None:
        account = self.account
        deliveries = self._deliveries
        about = self._about
        if about is None and deliveries:
            about = deliveries[0][1]
        if about is None or outcome is not Outcome.DELIVERED:
            recorder.settled(account, account.ledger.router, items, nbytes, outcome, self.opened)
        else:
            copies = sum([each[2] for each in deliveries])
            copied = sum([each[3] for each in deliveries])
            recorder.published(account, about, items, nbytes, copies, copied)


def commit_run(
    account: Account, holders: Collection[Recipient], item: Any, items: int, nbytes: int
) -> None:
    """Do a whole root turn in one step: one run of validated events, for holders already known.

    It keeps the same books as ::

        with account.turn(items=items, nbytes=nbytes) as turn:
            for holder in holders:
                turn.send(holder, item, items=items, nbytes=nbytes)

    except for `Holder.ready`, which the caller calls once for all the runs of a read. Nothing can
    look at the books in between, so all deliveries of the turn are borrowed at once.
    """
    ledger = account.ledger
    if account.tracers is not None:
        holders = account.tracers[0].run(account, holders, item, items, nbytes)
    borrow_run(account, items, nbytes, len(holders))
    if ledger.recorder is not None:
        copies = len(holders)
        ledger.recorder.published(account, item, items, nbytes, items * copies, nbytes * copies)
    hold_all(account, holders, item, items, nbytes)


def hold_all(
    account: Account, holders: Iterable[Recipient], item: Any, items: int, nbytes: int
) -> None:
    """Hand `item`, already charged to `account`, to each holder. For callers like `commit_run`."""
    now = account.ledger.clock()
    failed: list[Exception] | None = None
    for holder in holders:
        try:
            holder.hold(account, item, items, nbytes, now)
        except Exception as exc:  # noqa: BLE001 (raised again when all have theirs)
            failed = _not_held(account, holder, items, nbytes, exc, failed)
    if failed is not None:
        raise _one_of(failed)


def _not_held(
    account: Account,
    holder: Recipient,
    items: int,
    nbytes: int,
    exc: Exception,
    before: list[Exception] | None,
) -> list[Exception] | None:
    """Repay the charge for a holder that has raised: it has not taken the item (rule 4).

    The holder is at fault, not the publisher or the other recipients, which get theirs. The
    holder's connection ends (`Faults`). If nothing ends connections, the exception is raised after
    all other deliveries. Returns the exceptions to raise: those `before`, and perhaps this one.
    """
    account.repay(items, nbytes, Outcome.REJECTED)
    ledger = account.ledger
    if not ledger.faults.ends:
        return [exc] if before is None else [*before, exc]
    last = whose(holder)
    ledger.faults.note(last, "taking what was published", exc)
    confirm = ledger.confirming
    if confirm is not None and isinstance(last, Holder) and last.takes_responsibility:
        # Otherwise the publisher would believe that the queue has it (rule 7).
        confirm.expect()
        confirm.refused(f"{last.kind} {last.name} could not take it, for an internal error")
    return before


def make_ready(touched: Iterable[Recipient], ledger: Ledger) -> None:
    """Call `ready` of each recipient; one that raises ends its own connection."""
    left = iter(touched)
    holder: Recipient | None = None
    while True:
        try:
            for holder in left:
                holder.ready()
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            assert holder is not None
            ledger.faults.note(whose(holder), "seeing to what was published", exc)
        else:
            return


def whose(recipient: Recipient) -> Recipient:
    """Return the holder behind a recipient, which is the one that connection servers know."""
    holder = recipient.last_holder  # an empty one is false
    return recipient if holder is None else holder


def _one_of(failed: list[Exception]) -> Exception:
    """Return one exception for all of them."""
    if len(failed) == 1:
        return failed[0]
    return ExceptionGroup("several holders could not take what was sent to them", failed)
