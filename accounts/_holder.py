"""Where loans sit: a mailbox, an outlet, a queue.

A holder takes loans and nothing else (rule 15), and shows what it physically has in its hands, so
that the audit and the matrix are computed from the things themselves and never from counters.

What a holder keeps that is stuck, by its `StuckPolicy`, is in `_backlog.py`.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from ._backlog import KEEP, Backlog, Part, Relief
from ._errors import NotALoanError, UnfitPolicyError
from ._label import label_of
from ._limit import Limit
from ._loan import LoanedItem
from ._outcome import Outcome
from ._stuck_policy import StuckPolicy

if TYPE_CHECKING:
    from ._account import Account
    from ._ledger import Ledger

DEFAULT_PATIENCE = 20.0
"""Seconds. Twice NATS's write deadline (10 s), a third of Redis's soft limit (60 s)."""

IMPATIENT_SECONDS: Final = 0.5
"""A holder with less patience is looked at as soon as somebody waits; others, as often as this."""

RELIEVES: Final = frozenset(policy for policy in StuckPolicy if policy.relieves)
"""The policies by which a holder stays."""

JOIN_BYTES = 64 << 10
"""A loan that has grown to this many bytes is not joined any more: settling goes by whole loans,
so this is how finely a backlog is repaid while it drains. One read's worth."""


class Recipient(abc.ABC):
    """Whom a commit delivers to: a holder, or what stands before one.

    What stands before a holder has nothing in its hands between two commits: it puts what it is
    given into a holder's, in the form in which that one has it.
    """

    __slots__ = ("__weakref__",)

    gathers: ClassVar[bool] = False
    """Whether it wants to be told, by `gathered`, when it has got all of one commit."""

    @property
    def run_place(self) -> object:
        """Where a run of messages would end up, if it can be taken at all; None: it cannot.

        Who takes a run makes of it what its observation shows of each message; two recipients that
        end up in one place would get theirs out of order. For transports, see
        `clearfunds.dataspace.Dataspace.route_run`.
        """
        return None

    @property
    def last_holder(self) -> Holder | None:
        """Whose hands it is that what it is given ends up in, by the end of the commit.

        What one commit gives to recipients that have this in common may be told together. None
        where nobody's; for traces.
        """
        return None

    @property
    def hears_of_its_end(self) -> bool:
        """Whether it is told, when its observation ends, that what it was shown has gone.

        A peer's knowledge has to be taken back; a program closes its mailbox.
        """
        return False

    @abc.abstractmethod
    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """Take custody of one `item`, for which `account` has just been charged.

        Called by a commit, for each delivery; must not raise. If it does nevertheless, it has taken
        nothing, and its connection ends (`Faults`); where nobody ends connections, whoever commits
        hears of it when the others have theirs. What arrives after the holder has been closed is
        repaid at once as `dropped`.
        """

    def gathered(self) -> None:  # noqa: B027 (most have nothing to do then)
        """One commit has delivered all that it has for this one; nobody is `ready` yet."""

    @abc.abstractmethod
    def ready(self) -> None:
        """Everything of one commit is in custody: wake who takes it, or send it."""


class Holder(Recipient):
    """Something that has loans in its hands.

    Registered with its ledger, weakly, until `Ledger.unregister`: the ledger never keeps a
    forgotten holder alive, so that its loans are found by the garbage collector.

    Attributes:
        owner: The account of the connection whose peer has to take what is held here, if there is
            one; to be set by who knows it. A peer that is not read may not read either: while that
            account's reader waits, this holder is taken to wait on it (`rings`).
        behind: Whether it has been relieved and has not caught up since; nobody waits on it.
        relief: What has become of what it could not take, since it was made.
        ages: How old loans were when holders of this kind were done with them. `LoanedItem.settle`
            counts; who repays in any other way what it has held does so itself.
    """

    __slots__ = (
        "_patience", "_policy", "ages", "behind", "ledger", "name", "owner", "progressed_at",
        "relief",
    )  # fmt: skip

    kind = "holder"
    """What sort of holder this is, for people, and for metrics: as many kinds as classes."""

    takes_responsibility: ClassVar[bool] = False
    """Whether what it has taken may be acknowledged to its publisher for that (`Confirm`)."""

    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(StuckPolicy) - RELIEVES
    """By which policies holders of this class can be dealt with."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
    ) -> None:
        self.ledger = ledger
        self.name = name
        self.patience = patience
        self.policy = policy
        self.owner: Account | None = None
        self.behind = False
        self.relief = Relief()
        self.progressed_at = ledger.clock()
        self.ages = ledger.ages_of(self.kind)
        ledger.register(self)

    @property
    def patience(self) -> float:
        """Seconds without progress, while others wait for what it holds, until `policy` applies.

        0: as soon as somebody waits.
        """
        return self._patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self.set_patience(seconds)

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
                ledger.on_wait()  # somebody may wait on it already
        else:
            ledger.impatient.discard(self)

    @property
    def policy(self) -> StuckPolicy:
        """What is done with it when its patience is over.

        Setting it raises UnfitPolicyError if it cannot be dealt with so; one that is behind already
        catches up by the policy it had.
        """
        return self._policy

    @policy.setter
    def policy(self, policy: StuckPolicy) -> None:
        self.check_policy(policy)
        self._policy = policy

    def check_policy(self, policy: StuckPolicy) -> None:
        """See whether it could be dealt with by `policy`.

        Raises:
            UnfitPolicyError: If not.
        """
        if policy not in self.policies:
            others = ", ".join(each for each in StuckPolicy if each in self.policies)
            msg = f"{self.kind} {self.name} cannot {policy} when it is stuck; choose of {others}"
            raise UnfitPolicyError(msg)

    @property
    def last_holder(self) -> Holder | None:
        """See `Recipient.last_holder`: its own."""
        return self

    @abc.abstractmethod
    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield every loan that is physically here, each once."""

    def waited_for(self) -> Iterator[LoanedItem[Any]]:
        """Yield those of its loans for which readers may wait: all, unless it knows better."""
        return self.loans()

    @abc.abstractmethod
    def give_up(self, why: str) -> None:
        """End with this holder by its policy: close it and write off what it held."""

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """Let nobody wait on it any more, by its policy: it is behind until it has caught up.

        For those whose policy `relieves`. `why` is a sentence for the log, `fields` more of it for
        `extra=`. Those who waited are repaid before it returns.
        """
        msg = f"{self.kind} {self.name} cannot be relieved"
        raise UnfitPolicyError(msg)

    def settled(self) -> None:
        """Note that something held here was finished: this is progress, made now."""
        self.progressed_at = self.ledger.clock()

    def surplus(self) -> tuple[int, str] | None:
        """Tell of bytes that are here and that no loan covers, as (bytes, what they are)."""
        return None


class LoanQueue(Holder):
    """A holder that keeps its loans in order of arrival; each loan's `item` is a list.

    Deliveries of one account that arrive in a row join one loan (`LoanedItem.item` grows), because
    an object for each delivery costs three to seven times as much CPU. A loan that has been taken
    out of `queue` grows no more.

    One that is relieved (`Holder.relieve`) keeps what its policy says, each event in a loan of its
    own, until somebody calls `caught_up`. Who inherits names the policies that it knows how to deal
    with (`policies`), and says what the `Backlog` has to know: `begun`, `under_way`, `apart`,
    `key_of`, `spill`.

    Attributes:
        queue: What is here, the oldest first.
        closed: Set it when nothing more is to be taken; what comes then is repaid as `dropped`.
        keep: How much it keeps while it is behind.
        backlog: What it keeps and has lost in this spell, while it is behind.
    """

    __slots__ = ("backlog", "closed", "keep", "queue")

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        keep: Limit = KEEP,
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        self.queue: deque[LoanedItem[list[Any]]] = deque()
        self.closed = False
        self.keep = keep
        self.backlog: Backlog | None = None

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`."""
        queue = self.queue
        if self.closed:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if self.behind:
            self.hold_behind(account, item, items, nbytes, now)
            return
        if queue:
            tail = queue[-1]
            if tail.account is account and tail.bytes < JOIN_BYTES:
                tail.item.append(item)
                tail.items += items
                tail.bytes += nbytes
                return
        else:
            # A holder that held nothing was not failing to make progress.
            self.progressed_at = now
        queue.append(LoanedItem(account, [item], items, nbytes, self, now, charged=True))

    def put(self, loan: LoanedItem[list[Any]]) -> None:
        """Take over `loan`, whoever held it before, behind what is here already.

        Raises:
            NotALoanError: If it is anything but a loan that is outstanding.
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
        """Put `loan` behind what is here."""
        if not self.queue:
            self.progressed_at = self.ledger.clock()
        self.queue.append(loan)

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`."""
        yield from self.queue

    def settle_all(self, outcome: Outcome) -> None:
        """Repay everything queued, with `outcome`."""
        queue = self.queue
        while queue:
            loan = queue.popleft()
            if loan.items:  # else somebody has settled it where it was
                loan.settle(outcome=outcome)

    # -- being behind ---------------------------------------------------------------------------

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """See `Holder.relieve`."""
        if not self.policy.relieves:
            super().relieve(why, fields)
        if self.closed:
            return
        if self.backlog is not None:
            self.backlog.take_over_begun()
            return
        self.backlog = Backlog(self, why, fields)
        self.behind = True
        self.ledger.behind.add(self)
        self.backlog.relieve()

    def hold_behind(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        policy: StuckPolicy | None = None,
        key: Hashable = None,
    ) -> None:
        """Take what comes while it is behind, or drop it; for `hold`.

        `policy` is that of this item, by default the holder's; `key` what it is conflated by, by
        default `key_of(item)`.
        """
        backlog = self.backlog
        assert backlog is not None
        backlog.take(account, item, items, nbytes, now, policy or backlog.policy, key)

    def caught_up(self, why: str = "has caught up") -> None:
        """Note that nothing is left of what it kept, or that it has ended: it is not behind."""
        backlog, self.backlog = self.backlog, None
        self.behind = False
        self.ledger.behind.discard(self)
        if backlog is not None:
            backlog.end(why)

    @property
    def begun(self) -> int:
        """How many loans at the front of the queue have been begun and have to be finished."""
        return 0

    def under_way(self) -> Iterator[LoanedItem[list[Any]]]:
        """Yield the loans of this holder that have been begun, wherever they are."""
        for loan in islice(self.queue, self.begun):
            if loan.holder is self:
                yield loan

    def apart(self, entries: list[Any], items: int, nbytes: int) -> list[Part] | None:
        """Return what `entries` of a loan stand for, one by one, in order; None: nobody can tell.

        In sum they are `items` and `nbytes`.
        """
        if len(entries) != items:
            return [(entries[0], items, nbytes)] if len(entries) == 1 else None
        size, rest = divmod(nbytes, items)
        return [(entry, 1, size + (n < rest)) for n, entry in enumerate(entries)]

    def key_of(self, entry: Any) -> Hashable:
        """Return what an entry replaces the latest of, for `StuckPolicy.CONFLATE`."""
        return label_of(entry)

    def spill(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        """Put elsewhere what `account` owes for, for `StuckPolicy.SPILL`; who takes it owes it."""
        msg = f"{self.kind} {self.name} has nowhere to spill to"
        raise UnfitPolicyError(msg)

    def missed(
        self,
        items: int,
        before: LoanedItem[list[Any]] | None,
        gone: LoanedItem[list[Any]] | None = None,
    ) -> None:
        """Note that what would have come next before that loan has been dropped; None: at the end.

        For who tells its consumer where there are gaps. `gone` is the loan that it was, if it was a
        whole one that had been kept.
        """
