"""Holders keep loans: a mailbox, an outlet (a connection's send buffer), a queue.

A holder takes loans and nothing else (rule 15), and shows the loans that it physically has, so that
the audit and the matrix are computed from the loans themselves and never from counters.

`_backlog.py` has what a slow consumer keeps under its `StuckPolicy`.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from ._backlog import RETAIN_LIMIT, Backlog, Part, Relief
from ._errors import NotALoanError, UnfitPolicyError
from ._loan import LoanedItem, lent
from ._outcome import Outcome
from .limits._limit import Limit, check_limit
from .trace._label import label_of
from .watch._profile import DEFAULT_PATIENCE, HORIZON, SPILL_HORIZON
from .watch._stuck_policy import StuckPolicy

if TYPE_CHECKING:
    from ._account import Account
    from ._ledger import Ledger
    from .watch._causes import Symptoms

IMPATIENT_SECONDS: Final = 0.25
"""A holder with less patience is checked as soon as a reader waits; others at this interval."""

RELIEVES: Final = frozenset(policy for policy in StuckPolicy if policy.relieves)
"""The policies under which a holder stays."""


class Recipient(abc.ABC):
    """The target of a delivery: a holder, or an adapter before one.

    An adapter keeps nothing between two commits: it passes each delivery to a holder, in that
    holder's own form.
    """

    __slots__ = ("__weakref__",)

    gathers: ClassVar[bool] = False
    """Whether `gathered` is to be called when it has all deliveries of one commit."""

    takes_columns: ClassVar[bool] = False
    """Whether `hold` takes runs of publications as columns: `clearfunds.dataspace.ColumnRun`."""

    @property
    def run_place(self) -> object:
        """The place where a run of messages would end up; None: it cannot take runs.

        A recipient that takes a run converts each message itself to the form that its
        observation shows. Two recipients that end up in one place would get theirs out of order.
        For transports, see `clearfunds.dataspace.Dataspace.route_run`.
        """
        return None

    @property
    def last_holder(self) -> Holder | None:
        """The holder that has its deliveries by the end of the commit, or None; for traces.

        Deliveries of one commit to recipients with the same last holder may be reported together.
        """
        return None

    @property
    def hears_of_its_end(self) -> bool:
        """Whether it has to be told, when its observation ends, to forget what it was shown.

        A peer's knowledge has to be retracted; a program closes its mailbox.
        """
        return False

    @abc.abstractmethod
    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """Take custody of one `item`, for which `account` has just been charged.

        A commit calls it for each delivery. It must not raise. If it does, it counts as having
        taken nothing, and its connection ends (`Faults`); if nothing ends connections, the commit
        raises the exception after the other deliveries. Deliveries after the holder has been closed
        are repaid at once as `dropped`.
        """

    def gathered(self) -> None:  # noqa: B027 (most have nothing to do then)
        """Note that it has all deliveries of one commit; no `ready` has been called yet."""

    @abc.abstractmethod
    def ready(self) -> None:
        """Wake the consumer, or send: all deliveries of one commit are in custody."""


class Holder(Recipient):
    """A queue, send buffer or other place that keeps loans; potentially a slow consumer.

    Registered with its ledger, weakly, until `Ledger.unregister`: the ledger never keeps a
    forgotten holder alive, so that the garbage collector finds its loans.

    Attributes:
        owner: The account of the connection whose peer has to take these loans, if there is one;
            set by code that knows it. A peer that is not read may not read either: while that
            account's reader waits, this holder counts as waiting on it (`rings`).
        lagging: Whether it is lagging: relieved, and not caught up since. No reader waits on it.
        full_patience: Set while no more may be spilled for it: readers wait again, and after these
            seconds it is disconnected, whatever its policy.
        relief: What became of messages it could not take, since it was made.
        ages: Ages of loans when holders of this kind were done with them. `LoanedItem.settle`
            counts them; a holder that repays in any other way counts them itself.
    """

    __slots__ = (
        "_patience", "_policy", "ages", "full_patience", "lagging", "ledger", "name", "owner",
        "progressed_at", "relief",
    )  # fmt: skip

    kind = "holder"
    """The sort of holder, for people and for metrics: as many kinds as classes."""

    takes_responsibility: ClassVar[bool] = False
    """Whether a message may be acknowledged to its publisher once this has taken it (`Confirm`)."""

    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(StuckPolicy) - RELIEVES
    """The policies for slow consumers that holders of this class support."""

    makes_room: ClassVar[bool] = False
    """Whether it keeps accepted messages when it is given up, as far as it can: a queue."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
    ) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            msg = f"a {self.kind} takes its ledger first, and then its name, not {name!r}"
            raise TypeError(msg)
        self.ledger = ledger
        self.name = name
        self.full_patience: float | None = None
        self.patience = patience
        self.policy = policy
        self.owner: Account | None = None
        self.lagging = False
        self.relief = Relief()
        self.progressed_at = ledger.clock()
        self.ages = ledger.ages_of(self.kind)
        ledger.register(self)

    @property
    def patience(self) -> float:
        """Slow-consumer timeout: seconds without progress, while readers wait for its loans.

        Then `policy` applies. 0: as soon as a reader waits.
        """
        return self._patience if self.full_patience is None else self.full_patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self.set_patience(seconds)

    @property
    def horizon(self) -> int:
        """The number of patiences within which it must clear what readers wait for."""
        spills = self._policy is StuckPolicy.SPILL and not self.lagging
        return SPILL_HORIZON if spills else HORIZON

    def set_patience(self, seconds: float) -> None:
        """Set `patience`; for holders that have several."""
        if not seconds >= 0:
            msg = f"{self.kind} {self.name} cannot have a patience of {seconds:g} s; 0 is the least"
            raise ValueError(msg)
        self._patience = seconds
        ledger = self.ledger
        if seconds < IMPATIENT_SECONDS:
            ledger.impatient.add(self)
            if ledger.waiters and ledger.on_wait is not None:
                ledger.on_wait()  # a reader may wait on it already
        else:
            ledger.impatient.discard(self)

    @property
    def policy(self) -> StuckPolicy:
        """The policy for slow consumers that applies when its patience is over.

        Setting it raises UnfitPolicyError if the holder does not support it. A holder that is
        lagging already catches up under its previous policy.
        """
        return self._policy if self.full_patience is None else StuckPolicy.DISCONNECT

    @policy.setter
    def policy(self, policy: StuckPolicy) -> None:
        self.set_policy(policy)

    def set_policy(self, policy: StuckPolicy) -> None:
        """Set `policy`; for holders whose messages decide which one applies."""
        policy = StuckPolicy(policy)  # its word is as good
        self.check_policy(policy)
        self._policy = policy

    def check_policy(self, policy: StuckPolicy) -> None:
        """Check that the holder supports `policy`.

        Raises:
            UnfitPolicyError: If not.
        """
        if policy not in self.policies:
            others = ", ".join(each for each in StuckPolicy if each in self.policies)
            msg = f"{self.kind} {self.name} cannot {policy} when it is stuck; choose of {others}"
            raise UnfitPolicyError(msg)

    @property
    def last_holder(self) -> Holder | None:
        return self

    @abc.abstractmethod
    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield every loan that is physically here, each once."""

    def waited_for(self) -> Iterator[LoanedItem[Any]]:
        """Yield its loans for which readers may wait: all, unless overridden."""
        return self.loans()

    def symptoms(self) -> Symptoms | None:
        """Return a reading that may show why it is slow, or None if there is nothing to read.

        Called four times a second while readers wait for its loans, and not otherwise (`Causes`).
        """
        return None

    @abc.abstractmethod
    def give_up(self, why: str) -> None:
        """Close this holder by its policy, and write off its loans."""

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """Stop it from blocking readers, by its policy: it is lagging until it has caught up.

        For holders whose policy `relieves`. `why` is a sentence for the log, `fields` more of it
        for `extra=`. The accounts that waited are repaid before it returns.
        """
        msg = f"{self.kind} {self.name} cannot be relieved"
        raise UnfitPolicyError(msg)

    @property
    def ring_rank(self) -> int:
        """The number of other processes that are to open a ring that it is on first.

        The policies of its members here apply after one more patience for each. While a holder is
        on such a ring, it is in `Ledger.ranked`.
        """
        return 0

    def spill_again(self) -> None:
        """Spill what there is room for by now; called from time to time with `full_patience`."""

    def settled(self) -> None:
        """Note that an event held here was finished: this is progress, made now."""
        self.progressed_at = self.ledger.clock()

    def surplus(self) -> tuple[int, str] | None:
        """Return bytes here that no loan covers, as (bytes, a description), or None."""
        return None


class LoanQueue(Holder):
    """A holder that keeps its loans in order of arrival; each loan's `item` is a list.

    Deliveries of one account that arrive in a row join one loan (`LoanedItem.item` grows), because
    an object for each delivery costs three to seven times as much CPU. A loan that has been taken
    out of `queue` grows no more.

    A relieved queue (`Holder.relieve`) keeps what its policy allows, each event in a separate loan,
    until `caught_up` is called. A subclass names the policies that it supports (`policies`), and
    defines what the `Backlog` needs: `begun`, `under_way`, `apart`, `key_of`, `spill`.

    Attributes:
        queue: The loans here, the oldest first.
        closed: Set it to take nothing more; later deliveries are repaid as `dropped`.
        retain_limit: How much it keeps while it is lagging.
        backlog: The messages kept, and counts of those lost, in this spell of lagging.
    """

    __slots__ = ("backlog", "closed", "queue", "retain_limit")

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        retain_limit: Limit = RETAIN_LIMIT,
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        check_limit(retain_limit, "retain_limit")
        self.queue: deque[LoanedItem[list[Any]]] = deque()
        self.closed = False
        self.retain_limit = retain_limit
        self.backlog: Backlog | None = None

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        queue = self.queue
        if self.closed:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if self.lagging:
            self.hold_lagging(account, item, items, nbytes, now)
            return
        if queue:
            tail = queue[-1]
            if tail.account is account and tail.bytes < tail.grows_to and account.tracing is None:
                tail.item.append(item)
                tail.items += items
                tail.bytes += nbytes
                return
        else:
            # An empty holder was not failing to make progress.
            self.progressed_at = now
        queue.append(lent(account, [item], items, nbytes, self, now))

    def put(self, loan: LoanedItem[list[Any]]) -> None:
        """Take over `loan` from any holder, at the end of the queue.

        Raises:
            NotALoanError: If it is anything but an outstanding loan.
            TypeError: If its `item` is not a list, which later deliveries could join.
        """
        if not isinstance(loan, LoanedItem):  # pyright: ignore[reportUnnecessaryIsInstance]
            msg = f"{self.name} holds loans only, not {loan!r}; make it a LoanedItem of an account"
            raise NotALoanError(msg)
        if not loan.items:
            msg = f"{self.name} was given {loan!r}, which is already settled"
            raise NotALoanError(msg)
        if not isinstance(cast("object", loan.item), list):
            msg = f"{self.name} takes loans of lists, not of {loan.item!r}; lend a list of events"
            raise TypeError(msg)
        loan.held_by(self)
        if self.closed:
            loan.settle(outcome=Outcome.DROPPED)
            return
        if self.backlog is not None:
            self.backlog.put(loan)
        else:
            self.append(loan)
        self.ready()

    def append(self, loan: LoanedItem[list[Any]]) -> None:
        """Put `loan` at the end of the queue."""
        if not self.queue:
            self.progressed_at = self.ledger.clock()
        self.queue.append(loan)

    def loans(self) -> Iterator[LoanedItem[Any]]:
        yield from self.queue

    def settle_all(self, outcome: Outcome) -> None:
        """Repay everything queued, with `outcome`."""
        queue = self.queue
        while queue:
            loan = queue.popleft()
            if loan.items:  # else it was settled while it was queued
                loan.settle(outcome=outcome)

    # -- being behind ---------------------------------------------------------------------------

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        if not self.policy.relieves:
            super().relieve(why, fields)
        if self.closed:
            return
        if self.backlog is not None:
            self.backlog.take_over_begun()
            return
        self.backlog = Backlog(self, why, fields)
        self.lagging = True
        self.ledger.lagging.add(self)
        self.backlog.relieve()

    def hold_lagging(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        policy: StuckPolicy | None = None,
        key: Hashable = None,
    ) -> None:
        """Take a delivery while it is lagging, or drop it; for `hold`.

        `policy` applies to this item (default: the holder's); `key` is its conflation key (default:
        `key_of(item)`).
        """
        backlog = self.backlog
        assert backlog is not None
        backlog.take(account, item, items, nbytes, now, policy or backlog.policy, key)

    def caught_up(self, why: str = "has caught up") -> None:
        """Note that its backlog is empty, or that it has ended: it is not lagging any more."""
        backlog, self.backlog = self.backlog, None
        self.lagging = False
        self.ledger.lagging.discard(self)
        if backlog is not None:
            backlog.end(why)

    @property
    def begun(self) -> int:
        """Number of loans at the front of the queue that are begun and have to be finished."""
        return 0

    def under_way(self) -> Iterator[LoanedItem[list[Any]]]:
        """Yield the loans of this holder that have been begun, wherever they are."""
        for loan in islice(self.queue, self.begun):
            if loan.holder is self:
                yield loan

    def apart(self, entries: list[Any], items: int, nbytes: int) -> list[Part] | None:
        """Return the parts that `entries` of a loan stand for, in order; None: cannot be told.

        Their sums are `items` and `nbytes`.
        """
        if len(entries) != items:
            return [(entries[0], items, nbytes)] if len(entries) == 1 else None
        size, rest = divmod(nbytes, items)
        return [(entry, 1, size + (n < rest)) for n, entry in enumerate(entries)]

    def key_of(self, entry: Any) -> Hashable:
        """Return the conflation key: an entry replaces the latest one with the same key."""
        return label_of(entry)

    def spill(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        """Spill `entry`, which `account` owes for (`StuckPolicy.SPILL`); its taker then owes it."""
        msg = f"{self.kind} {self.name} has nowhere to spill to"
        raise UnfitPolicyError(msg)

    def spill_whole(self, loan: LoanedItem[list[Any]]) -> bool:
        """Spill a loan of its own as it is, if it can; False: `spill` gets each of its entries."""
        del loan
        return False

    def missed(
        self,
        items: int,
        before: LoanedItem[list[Any]] | None,
        gone: LoanedItem[list[Any]] | None = None,
    ) -> None:
        """Note that `items` events just before loan `before` were dropped; None: at the end.

        For holders that tell their consumer where there are gaps. `gone` is the dropped loan, if it
        was a whole one that had been kept.
        """
