"""The ledger: all accounts and holders of one process, and their audit (rules 8 and 15)."""

from __future__ import annotations

import logging
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs

from ._account import Account, check_weight
from ._backlog import Relief
from ._cooperative import run_to_end
from ._errors import (
    AccountError,
    AuditError,
    ClosedAccountError,
    SelfWaitError,
    WrongLoopError,
)
from ._faults import Faults
from ._gate import UNUSUAL
from ._histogram import AGE_BUCKETS, BYTE_BUCKETS, COUNT_BUCKETS, Histogram
from ._holder import Holder
from ._leaks import Gone, LeakLog
from ._loan import LOOSE, LoanedItem
from ._loop import ASIDE, TASKS, running
from ._outcome import Outcome
from ._statistics import AccountStatistics, HolderStatistics, Holding, LedgerStatistics
from ._turn import Turn
from ._waiters import REASONS, Waiter, waited_by_reason
from .limits._limit import Limit, check_limit
from .limits._standing import AllStanding, Quota, Standing
from .watch._audit import audit_in_steps
from .watch._causes import Causes
from .watch._forecasts import Forecasts
from .watch._incidents import Incidents
from .watch._profile import DEFAULT_PATIENCE
from .watch._stuck_policy import StuckPolicy
from .watch._timelines import Timelines

if TYPE_CHECKING:
    from ._confirm import Confirm
    from ._loop import Loop
    from ._recorder import Recorder
    from .trace._notes import Notes
    from .trace._trace_notes import TraceNotes
    from .trace._tracer import Tracer
    from .watch._slow_waits import SlowWaits
    from .watch._used_up import UsedUp

logger = logging.getLogger("clearfunds.accounts")

STATES: tuple[str, ...] = ("clear", "owing", "throttled", "closing", "flow")


class Router(Holder):
    """The holder of the input of open turns. It is always reported, never given up."""

    kind = "router"

    def __repr__(self) -> str:
        return "<Router of turns: the holder of their input>"

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """Refuse: the router keeps nothing."""
        raise AssertionError

    def ready(self) -> None:
        """Do nothing."""

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield nothing: an open turn's input is counted by the ledger."""
        return iter(())

    def give_up(self, why: str) -> None:
        """Do nothing: a turn does not wait."""


class Ledger:
    """All accounts and holders of one process.

    Args:
        clock: Returns seconds that never go back; `trio.current_time` for tests with a mock clock.
        quota: The quota of standing state of each owner.

    Attributes:
        accounts: Every account that is open, or still being paid off, by name.
        at_rest: The accounts charged for messages at rest (paged out), and where those are: `disk`
            or `ram`; see `open`.
        holders: Every registered holder.
        lagging: The lagging holders: their policy relieved them of messages they could not take.
        relief: What has become of those messages, by policy.
        turns: Every open turn.
        router: The holder of the input of open turns.
        borrowed_items: Events ever borrowed.
        borrowed_bytes: Bytes ever borrowed.
        repaid_items: Events ever repaid, indexed by `Outcome`.
        repaid_bytes: Bytes ever repaid, indexed by `Outcome`.
        leaked_loans: Loans that the garbage collector found outstanding.
        wait_seconds: Durations of the waits that have ended.
        overshoot_items: By how many events accounts were over their limits when a reader was first
            made to wait.
        overshoot_bytes: By how many bytes.
        fanout_copies: Copies made of each published message; for a dataspace to count.
        loan_ages: Ages of loans in seconds when they were settled, by the holder's kind; see
            `ages_of`.
        waiters: The readers that wait now.
        confirming: The `Confirm` that hears when responsibility is taken for the delivery being
            handed over at this moment; for `Holder.hold`.
        faults: The handling of internal errors that concern one connection.
        recorder: Hears of every settlement, publication, stall and change of a limit; or None.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, quota: Quota | None = None
    ) -> None:
        self.clock = clock
        self.quota = Quota() if quota is None else quota
        self.accounts: dict[str, Account] = {}
        # Accounts without a parent: the sum of their debts is the whole debt.
        self.roots: set[Account] = set()
        self.at_rest: dict[Account, str] = {}
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.turns: set[Turn] = set()
        self.loose: weakref.WeakSet[LoanedItem[Any]] = weakref.WeakSet()
        # Holders that are relieved and have not caught up, and totals of the messages affected.
        self.lagging: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.relief = {policy: Relief() for policy in StuckPolicy if policy.relieves}
        # Appended to by finalizers, in any thread: a deque's append is atomic.
        self.leaked: deque[tuple[Account, int, int, Gone | None, float, Notes | None]] = deque()
        self.leaked_loans = 0
        # Accounts of holders that were forgotten while they were behind.
        self.abandoned: deque[Account] = deque()
        self._leak_log = LeakLog()
        self.borrowed_items = 0
        self.borrowed_bytes = 0
        self.repaid_items = [0] * len(Outcome)
        self.repaid_bytes = [0] * len(Outcome)
        # How often readers had to wait, and the seconds of ended stretches of waits, by reason.
        self.waits = [0] * len(REASONS)
        self.waited = [0.0] * len(REASONS)
        # The alarms that are watched, and whether they are up.
        self.alarms: dict[str, bool] = {}
        # Problems outside the books, as sentences, by subject: for the web pages.
        self.troubles: dict[str, str] = {}
        self.wait_seconds = Histogram(AGE_BUCKETS)
        self.overshoot_items = Histogram(COUNT_BUCKETS)
        self.overshoot_bytes = Histogram(BYTE_BUCKETS)
        self.fanout_copies = Histogram(COUNT_BUCKETS)
        self.loan_ages: dict[str, Histogram] = {}
        # Owners with standing state are kept; the others only while something refers to them.
        self.standings: weakref.WeakValueDictionary[str, Standing] = weakref.WeakValueDictionary()
        self.all_standing = AllStanding()
        # The tasks inside a loan's or a turn's block, and the accounts of those blocks.
        self.inside: dict[object, list[Account]] = {}
        # How to ask for the current task; and the loop that uses this ledger, once one did.
        self._current_task = TASKS[0]
        self._token: object = None
        self._tickets = count()
        # Accounts in `UNUSUAL` states: few, and so found without a walk over all accounts.
        self.unusual: set[Account] = set()
        self.waiters: set[Waiter] = set()
        # Holders with less patience than the interval of `watch_patience`, and how to wake it.
        self.impatient: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.on_wait: Callable[[], object] | None = None
        # Whether the watch of patience looks seldom, since nobody waits.
        self.at_ease = False
        self.warned_unwatched = False
        # Holders that were left alone when their patience was over.
        self.used_up: weakref.WeakKeyDictionary[Holder, UsedUp] = weakref.WeakKeyDictionary()
        # Logs long waits, while `watch_slow_waits` runs.
        self.slow_waits: SlowWaits | None = None
        # Recent reports of `slow_waits` and `watch_patience`.
        self.timelines = Timelines()
        self.incidents = Incidents(self.timelines)
        # Why holders that readers wait for are slow, while `watch_patience` runs.
        self.causes = Causes()
        # Who will have to wait for whom, while `watch_forecasts` runs.
        self.forecasts = Forecasts()
        # Tracers that wait for accounts not open yet, and the traces under way.
        self.tracers: list[Tracer] = []
        # Holders on rings that other processes open first; see `Holder.ring_rank`.
        self.ranked: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.traces: list[TraceNotes] = []
        # Belongs to the turn that is being handed over.
        self.confirming: Confirm | None = None
        self.recorder: Recorder | None = None
        self.faults = Faults()
        self.router = Router(self, "router")

    def __repr__(self) -> str:
        owing = sum(each.debt_items > 0 for each in self.accounts.values())
        items = self.borrowed_items - sum(self.repaid_items)
        nbytes = self.borrowed_bytes - sum(self.repaid_bytes)
        return (
            f"<Ledger: {owing} of {len(self.accounts)} accounts owe {items:,} items and "
            f"{nbytes:,} bytes; {len(self.waiters)} have readers that wait>"
        )

    # -- accounts -------------------------------------------------------------------------------

    def open(
        self,
        name: str,
        *,
        limit: Limit | None = None,
        parent: Account | None = None,
        at_rest: str | None = None,
        weight: float | None = None,
        shared: bool | None = None,
    ) -> Account:
        """Open the account called `name`, or open it once more.

        A name that is still known, because it is in use or its debt is still being paid off, gives
        the same account with its debt (rule 14). Each opening needs its own `Account.close`. A
        given `limit` (default: `Limit()`) is a new account's, or a closed one's from now on; so are
        `weight` (default: 1, see `Account.weight`) and `shared` (default: False, see
        `Account.shared`), also where it is open.

        A new account opened with `at_rest` is charged for stored (paged out) messages, and says
        where they are: on `disk` or in `ram`. So are accounts opened under it. Reports keep this
        apart from publishers' debt: nobody works on it, and no reader waits for it as such.

        Raises:
            AccountError: If it is known under another parent, or open with another limit.
            TypeError: If `limit` is no `Limit`.
            ClosedAccountError: If `parent` is not in this ledger: closed and forgotten, or another
                ledger's.
            ValueError: If the weight is not above zero.
        """
        if weight is not None:
            check_weight(weight)
        if limit is not None:
            check_limit(limit)
        account = self.accounts.get(name)
        if account is None:
            if parent is not None:
                known = self.accounts.get(parent.name)
                if known is not parent:
                    msg = (
                        f"account {parent.name} is not in this ledger (any more); open it before "
                        f"{name}"
                    )
                    raise ClosedAccountError(msg)
                parent = known
            account = Account(self, name, Limit() if limit is None else limit, parent)
            self.accounts[name] = account
            if parent is None:
                self.roots.add(account)
            else:
                if parent.below is None:
                    parent.below = {}
                parent.below[account] = None
                at_rest = self.at_rest.get(parent, at_rest)
            if at_rest is not None:
                self.at_rest[account] = at_rest
            if weight is not None:
                account.weight = weight
            if shared:
                account.shared = True
            for tracer in self.tracers:
                tracer.opened(account)
            return account
        if account.parent != parent:
            old = "no parent" if account.parent is None else account.parent.name
            new = "no parent" if parent is None else parent.name
            msg = f"account {name} is under {old}; close it before opening it under {new}"
            raise AccountError(msg)
        if limit is not None and limit != account.limit and account.control is None:
            if account.opens > 0:
                msg = f"account {name} is open with {account.limit!r}; set its `limit` to change it"
                raise AccountError(msg)
            account.limit = limit
        account.opens += 1
        if account.state not in UNUSUAL:
            self.unusual.discard(account)
        if weight is not None:
            account.weight = weight
        if shared is not None:
            account.shared = shared
        return account

    def fold(self, account: Account) -> None:
        """Forget an account if nothing is left of it; its totals stay in the ledger's.

        Nothing is left when it is closed, owes nothing, has no accounts below it and no readers
        that still wait.
        """
        if (
            account.opens > 0
            or account.debt_items
            or account.debt_bytes
            or account.below
            or account.waiting
            or self.accounts.get(account.name) is not account
        ):
            return
        del self.accounts[account.name]
        self.unusual.discard(account)
        self.roots.discard(account)
        self.at_rest.pop(account, None)
        account.tracers = None
        # An account is in its own chain: only the garbage collector could free it otherwise.
        account.chain = account.chain[1:]
        account.find_limited()
        parent = account.parent
        if parent is not None:
            if parent.below is not None:
                parent.below.pop(account, None)
            if parent.shares is not None:
                parent.shares.forget(account)
            self.fold(parent)

    def limits_changed(self, changed: Account) -> None:
        """Tell `changed` and every account below that readers must check it now, or no more."""
        some = [changed]
        while some:
            account = some.pop()
            account.find_limited()
            some.extend(account.below or ())

    def standing_of(self, owner: str) -> Standing:
        """Return the standing state of `owner`; it outlives the owner's accounts (rule 16)."""
        standing = self.standings.get(owner)
        if standing is None:
            standing = self.standings[owner] = Standing(owner, self.quota, all=self.all_standing)
        return standing

    # -- holders --------------------------------------------------------------------------------

    def register(self, holder: Holder) -> None:
        """Count the loans that `holder` has from now on, for as long as it lives."""
        self.holders.add(holder)

    def unregister(self, holder: Holder) -> None:
        """Stop counting a holder that is closed and empty."""
        self.lagging.discard(holder)
        self.impatient.discard(holder)
        self.holders.discard(holder)

    def ages_of(self, kind: str) -> Histogram:
        """Return the ages of loans when holders of that kind were done with them."""
        ages = self.loan_ages.get(kind)
        if ages is None:
            ages = self.loan_ages[kind] = Histogram(AGE_BUCKETS)
        return ages

    # -- for accounts, loans and turns ----------------------------------------------------------

    def next_ticket(self) -> int:
        """Draw a place in the line of waiting readers."""
        return next(self._tickets)

    def is_unwatched(self) -> bool:
        """Whether no `watch_patience` runs, and the log has not said so yet."""
        return self.on_wait is None and not self.warned_unwatched

    def warn_unwatched(self, account: Account) -> None:
        """Log, once, that a reader waits and no `watch_patience` runs: nobody else will say so."""
        self.warned_unwatched = True
        logger.warning(
            "%s has waited for %g s, and nothing watches for slow consumers: start "
            "watch_patience(ledger) in a task, or it may wait for ever",
            account.name,
            DEFAULT_PATIENCE,
            extra={"event": "unwatched", "account": account.name, "seconds": DEFAULT_PATIENCE},
        )

    def loop(self) -> Loop:
        """Return the running event loop, for a task that has to wait.

        Raises:
            NoLoopError: None is running.
            WrongLoopError: Readers wait in another one: one ledger is of one loop, in one thread.
        """
        loop = running()
        token = loop.token()
        if token is not self._token:
            if self.waiters:
                msg = (
                    f"{len(self.waiters)} readers of this ledger wait in another event loop: use a "
                    "ledger in one loop, and one thread, and make one for each"
                )
                raise WrongLoopError(msg)
            self._token = token
        return loop

    def task(self) -> object | None:
        """Return the current task of the running loop; None where there is none."""
        if ASIDE.here:
            return None
        try:
            return self._current_task()
        except RuntimeError:
            pass
        for current_task in TASKS:
            try:
                task = current_task()
            except RuntimeError:
                continue
            self._current_task = current_task
            return task
        return None

    def enter(self, account: Account) -> object | None:
        """Note that the current task is inside a block of a loan or turn of `account`.

        Returns the task, for `leave`: a block inside a generator may be left by another one.
        """
        if ASIDE.here:
            return None
        try:
            task = self._current_task()  # as `task` does, without the call: for each turn
        except RuntimeError:
            task = self.task()
        if task is None:  # no event loop: the engine is plain functions
            return None
        self.inside.setdefault(task, []).append(account)
        return task

    def leave(self, account: Account, task: object | None) -> None:
        """Note that a block of a loan or turn of `account`, which `task` entered, has been left."""
        accounts = None if task is None else self.inside.get(task)
        if task is None or accounts is None or account not in accounts:
            return  # two tasks were inside one block, which is noted for the last of them
        accounts.remove(account)
        if not accounts:
            del self.inside[task]

    def refuse_inside(self, account: Account) -> None:
        """Raise if the current task is inside a block whose debt `account` would wait for.

        Raises:
            SelfWaitError: If so. Only sources wait (rule 5).
        """
        for open_account in self.inside.get(self.task(), ()):
            if any(a in open_account.chain for a in account.limited or (account,)):
                msg = (
                    f"ensure_clear_funds() of {account.name} inside an open loan or turn of "
                    f"{open_account.name} would wait for itself; end the block first"
                )
                raise SelfWaitError(msg)

    def drain(self) -> None:
        """Repay loans that the garbage collector found outstanding, as `leaked`.

        Turns call it, readers before they wait, the watch over patience and the audit. It also logs
        an error, one line for all loans and at most one in ten seconds.

        Warns:
            ResourceWarning: For each such loan, once the books are right.
        """
        found: list[str] = []
        while self.leaked:
            account, items, nbytes, gone, opened, trace = self.leaked.popleft()
            self.leaked_loans += 1
            account.repay(items, nbytes, Outcome.LEAKED, gone, opened, lent=True)
            if trace is not None:
                trace.repaid(items, nbytes, Outcome.LEAKED, gone)
            holder = None if gone is None else gone.name
            self._leak_log.note(account.name, items, nbytes, holder)
            where = "before any holder took it" if holder is None else f"held by {holder}"
            found.append(
                f"a loan of {account.name} ({items} items, {nbytes} bytes), {where}, was never "
                "settled; use it as a context manager, or call settle()"
            )
        while self.abandoned:
            self.abandoned.popleft().close()
        # Leaks too soon after a log line are logged later, when the watch over patience drains.
        self._leak_log.tell(self.clock())
        for message in found:
            warnings.warn(message, ResourceWarning, stacklevel=3)

    def tell_stalls(self) -> None:
        """Bring the recorder up to date about the waits that are still going on."""
        for waiter in self.waiters:
            if waiter.at is not None and waiter.at.line is not None:
                waiter.at.line.tell_stall(waiter)

    # -- looking --------------------------------------------------------------------------------

    def held(self) -> Iterator[tuple[str, LoanedItem[Any]]]:
        """Yield (holder's name, loan) for everything that is physically held."""
        for holder in list(self.holders):
            for loan in holder.loans():
                yield holder.name, loan
        for loan in list(self.loose):
            if loan.items:
                yield LOOSE, loan

    def matrix(self) -> list[Holding]:
        """Return who holds whose debt, the largest first; computed from the loans in holders."""
        now = self.clock()
        cells: dict[tuple[str, str], list[float]] = {}
        for holder, loan in self.held():
            cell = cells.setdefault((loan.account.name, holder), [0, 0, now])
            cell[0] += loan.items
            cell[1] += loan.bytes
            cell[2] = min(cell[2], loan.opened)
        for turn in self.turns:
            cell = cells.setdefault((turn.account.name, self.router.name), [0, 0, now])
            cell[0] += turn.input_items
            cell[1] += turn.input_bytes
            cell[2] = min(cell[2], turn.opened)
        rows = [
            Holding(account, holder, int(items), int(nbytes), now - opened)
            for (account, holder), (items, nbytes, opened) in cells.items()
        ]
        rows.sort(key=lambda row: (-row.items, -row.bytes, row.account, row.holder))
        return rows

    def holder_statistics(self, holder: Holder) -> HolderStatistics:
        """Return the figures of the loans that `holder` has."""
        now = self.clock()
        items = nbytes = loans = 0
        oldest = now
        for loan in holder.loans():
            items += loan.items
            nbytes += loan.bytes
            loans += 1
            oldest = min(oldest, loan.opened)
        return HolderStatistics(
            name=holder.name,
            kind=holder.kind,
            items=items,
            bytes=nbytes,
            loans=loans,
            oldest_seconds=now - oldest,
            idle_seconds=now - holder.progressed_at if loans else 0.0,
            patience=holder.patience,
            policy=str(holder.policy),
            lagging=holder.lagging,
            **attrs.asdict(holder.relief),
        )

    def account_statistics(self) -> list[AccountStatistics]:
        """Return the statement of every account."""
        return [account.statistics() for account in self.accounts.values()]

    def statistics(self) -> LedgerStatistics:
        """Return the totals. Looks at each account's debt once: 0.1 us for each account."""
        now = self.clock()
        debts = [account.debt_items for account in self.accounts.values()]
        resting = [account.debt_items for account in self.at_rest]
        active = [account for account in self.roots if account not in self.at_rest]
        states: dict[str, int] = dict.fromkeys(STATES, 0)
        states["clear"] = debts.count(0) - resting.count(0)
        states["owing"] = len(debts) - len(resting) - states["clear"]
        some = [account for account in self.unusual if account not in self.at_rest]
        unusual = [account.debt_items for account in some]
        states["clear"] -= unusual.count(0)
        states["owing"] -= len(unusual) - unusual.count(0)
        for account in some:
            states[account.state] += 1
        rest_items: dict[str, int] = {}
        rest_bytes: dict[str, int] = {}
        for account, place in self.at_rest.items():
            if account.parent is None:
                rest_items[place] = rest_items.get(place, 0) + account.debt_items
                rest_bytes[place] = rest_bytes.get(place, 0) + account.debt_bytes
        waited = waited_by_reason(self.waited, self.waiters, now)
        return LedgerStatistics(
            accounts=states,
            holders=len(self.holders),
            lagging=len(self.lagging),
            relieved={p: relief.spells for p, relief in self.relief.items()},
            relieved_items={p: relief.items for p, relief in self.relief.items()},
            relieved_bytes={p: relief.bytes for p, relief in self.relief.items()},
            debt_items=sum([account.debt_items for account in active]),
            debt_bytes=sum([account.debt_bytes for account in active]),
            at_rest_items=rest_items,
            at_rest_bytes=rest_bytes,
            # A parent owes at least what its children owe, so the roots suffice.
            top_debt_items=max([account.debt_items for account in active], default=0),
            borrowed_items=self.borrowed_items,
            borrowed_bytes=self.borrowed_bytes,
            repaid_items={o.label: self.repaid_items[o] for o in Outcome},
            repaid_bytes={o.label: self.repaid_bytes[o] for o in Outcome},
            waiting=len(self.waiters),
            waits=sum(self.waits),
            waits_by_reason=dict(zip(REASONS, self.waits, strict=True)),
            waited_seconds=sum(waited.values()),
            waited_by_reason=waited,
            leaked_loans=self.leaked_loans,
            standing_items=self.all_standing.items,
            standing_bytes=self.all_standing.bytes,
        )

    # -- the audit ------------------------------------------------------------------------------

    def discrepancies(self) -> tuple[str, ...]:
        """Return a sentence for everything that does not balance; empty when all does (rule 8).

        Walks the loans that every holder physically has (rule 15): linear in outstanding loans.
        """
        return run_to_end(audit_in_steps(self)).discrepancies

    def audit(self) -> None:
        """Check that the books balance: the debt of each account is the sum of its live loans, and
        all that was borrowed less all that was repaid is the whole debt.

        Raises:
            AuditError: If they do not, with a sentence for each discrepancy.

        Warns:
            ResourceWarning: For each loan that was found leaked.
        """  # noqa: D205
        found = self.discrepancies()
        if found:
            raise AuditError(found)
