"""Where loans sit: a mailbox, an outlet, a queue.

A holder takes loans and nothing else (rule 15), and shows what it physically has in its hands, so
that the audit and the matrix are computed from the things themselves and never from counters.
"""

from __future__ import annotations

import abc
import enum
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ._errors import NotALoanError
from ._loan import LoanedItem
from ._outcome import Outcome

if TYPE_CHECKING:
    from ._account import Account
    from ._ledger import Ledger

DEFAULT_PATIENCE = 20.0
"""Seconds. Twice NATS's write deadline (10 s), a third of Redis's soft limit (60 s)."""

JOIN_BYTES = 64 << 10
"""A loan that has grown to this many bytes is not joined any more: settling goes by whole loans,
so this is how finely a backlog is repaid while it drains. One read's worth."""


class StuckPolicy(enum.StrEnum):
    """What is done with a holder that makes no progress while others wait on it."""

    WAIT = "wait"
    """It is waited for; the log says so once for each time its patience runs out."""
    DISCONNECT = "disconnect"
    """It is closed, and what it held is written off."""


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

        Called by a commit, for each delivery; must not raise. What arrives after the holder has
        been closed is repaid at once as `dropped`.
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
        ages: How old loans were when holders of this kind were done with them. `LoanedItem.settle`
            counts; who repays in any other way what it has held does so itself.
    """

    __slots__ = ("ages", "ledger", "name", "owner", "patience", "policy", "progressed_at")

    kind = "holder"
    """What sort of holder this is, for people, and for metrics: as many kinds as classes."""

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
        self.progressed_at = ledger.clock()
        self.ages = ledger.ages_of(self.kind)
        ledger.register(self)

    @property
    def last_holder(self) -> Holder | None:
        """See `Recipient.last_holder`: its own."""
        return self

    @abc.abstractmethod
    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield every loan that is physically here, each once."""

    @abc.abstractmethod
    def give_up(self, why: str) -> None:
        """End with this holder by its policy: close it and write off what it held."""

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

    Attributes:
        queue: What is here, the oldest first.
        closed: Set it when nothing more is to be taken; what comes then is repaid as `dropped`.
    """

    __slots__ = ("closed", "queue")

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        self.queue: deque[LoanedItem[list[Any]]] = deque()
        self.closed = False

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`."""
        queue = self.queue
        if self.closed:
            account.repay(items, nbytes, Outcome.DROPPED, self)
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
        if not self.queue:
            self.progressed_at = self.ledger.clock()
        self.queue.append(loan)
        self.ready()

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
