"""The feed of one consumer: its events, one after the other, and what it missed."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio
import trio

from ..accounts import Ledger, Limit, LoanedItem, Outcome, StuckPolicy, Turn
from ..accounts._loop import checkpoint, is_cancellation
from ..dataspace import Dataspace, GivenUpError, Mailbox, MailboxClosedError
from ._sending import Sink, sender_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from ..accounts import Account

T = TypeVar("T")


class _Box(Mailbox[T]):
    """A mailbox that says when it is given up: its consumer may be stuck in the midst of a send.

    Attributes:
        on_given_up: Called then, with the reason.
        current: The loan of the event that the feed has given out last.
    """

    __slots__ = ("current", "on_given_up")

    on_given_up: Callable[[str], object]
    current: LoanedItem[list[T]] | None

    def give_up(self, why: str) -> None:
        super().give_up(why)
        self.on_given_up(why)

    def in_hand(self) -> list[LoanedItem[Any]]:
        found = super().in_hand()
        current = self.current
        if current is not None and current.items and current.holder is self:
            found.append(current)
        return found


class Feed(Generic[T]):
    """Events for one consumer; see `Hub.subscribe`, which makes it.

    ::

        with hub.subscribe("alice", "news/#") as feed:
            async for event in feed:
                await send(event)

    An event counts against its publisher until the next one is asked for, or the block is left: so
    send it, and wait for that, before you ask for the next. If the block is left by an exception,
    the event ends as `rejected`, or as `cancelled`; those that nobody asked for are `dropped`.

    A slow consumer that is disconnected by its policy is cancelled wherever its block waits, also
    in a send that makes no progress; `GivenUpError` is raised at the end of the block.

    Enter it once, in the task that consumes; other tasks may take events, too.

    Attributes:
        name: The name on pages and in logs.
        missed: The number of events missing right before the one that was given out last: its
            policy dropped them because it was too slow.
    """

    def __init__(
        self,
        ledger: Ledger,
        dataspace: Dataspace,
        user: str | Account,
        what: object,
        *,
        name: str | None,
        patience: float,
        policy: StuckPolicy,
        retain_limit: Limit,
        key: Callable[[Any], Hashable],
    ) -> None:
        self._ledger = ledger
        self._dataspace = dataspace
        self._user = user
        self._what = what
        self.name = (user if isinstance(user, str) else user.name) if name is None else name
        self.missed = 0
        self._given_up: str | None = None
        # The place of the event in hand within its loan.
        self._place = 0
        self._block: AbstractContextManager[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._box: _Box[T] = _Box(
            ledger,
            self.name,
            patience=patience,
            policy=policy,
            retain_limit=retain_limit,
            key=key,
        )
        self._box.on_given_up = self._end
        self._box.current = None

    def __repr__(self) -> str:
        return f"<Feed of {self.name}: {self._box!r}>"

    @property
    def mailbox(self) -> Mailbox[T]:
        """The mailbox behind it: its backlog, its policy, and counts of what was dropped."""
        return self._box

    def _end(self, why: str) -> None:
        self._given_up = why
        if self._scope is not None:
            self._scope.cancel()

    # -- its life -------------------------------------------------------------------------------

    # A KeyboardInterrupt in the midst of these would leave a cancel scope behind, which Trio cannot
    # forgive.
    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> Self:
        if self._scope is not None:
            msg = f"{self!r} has been entered already; subscribe once more"
            raise RuntimeError(msg)
        self._block = self._subscribed()
        self._block.__enter__()
        return self

    @trio.lowlevel.enable_ki_protection
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._block is not None
        return self._block.__exit__(exc_type, exc, traceback)

    @contextmanager
    def _subscribed(self) -> Generator[None]:
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                with ExitStack() as stack:
                    user = self._user
                    if isinstance(user, str):
                        user = stack.enter_context(self._ledger.open(user))
                    self._box.owner = user
                    self._box.bind()
                    stack.enter_context(self._box)
                    stack.enter_context(self._dataspace.observed(user, self._what, self._box))
                    try:
                        yield
                    except BaseException as exc:
                        self._finish(
                            Outcome.CANCELLED if is_cancellation(exc) else Outcome.REJECTED
                        )
                        raise
                    self._finish(Outcome.DELIVERED)
        finally:
            if not any(True for _ in self._box.loans()):
                # Otherwise it would be listed until the garbage collector finds it.
                self._ledger.unregister(self._box)
        if self._given_up is not None and scope.cancelled_caught:
            msg = f"{self.name} was too slow: {self._given_up}"
            raise GivenUpError(msg)

    def _finish(self, outcome: Outcome) -> None:
        """End the event in hand; those behind it in its loan were never asked for."""
        loan, self._box.current = self._box.current, None
        if loan is not None and loan.items:
            loan.settle(1, outcome)
            if loan.items:
                loan.settle(outcome=Outcome.DROPPED)

    # -- its events -----------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next event, and end the one before it.

        Cancellation: no event is lost; the one before has ended as `delivered`.

        Raises:
            GivenUpError: The consumer was disconnected, because it was too slow.
        """
        box = self._box
        loan = box.current
        if loan is not None:
            left = loan.items
            if left:
                loan.settle(1)
            if left > 1:
                self._place = place = self._place + 1
                if place < len(loan.item):
                    self.missed = 0
                    return loan.item[place]
            box.current = None
        # As `Mailbox.receive`, without a coroutine in between: it would cost at each wake-up.
        if box.queue or box.closed:
            await checkpoint()
        try:
            while not box.queue:
                await box.arrival()
        except MailboxClosedError:
            if self._given_up is not None:
                raise
            raise StopAsyncIteration from None
        box.current = loan = box.take()
        self.missed = box.dropped
        self._place = 0
        return loan.item[0]

    def turn(self) -> Turn:
        """Begin a turn of the event in hand: its publisher pays for what is sent in it, too.

        Raises:
            RuntimeError: There is no event in hand.
        """
        if self._box.current is None:
            msg = f"{self!r} has no event in hand; use the turn of an account"
            raise RuntimeError(msg)
        return self._box.current.turn()

    async def send_to(
        self,
        sink: Sink,
        encode: Callable[[T], bytes],
        *,
        missed: Callable[[int], bytes] | None = None,
    ) -> None:
        """Send all events to a stream until it ends, or until cancelled.

        Events of one publisher that wait go out together, and count against it until the stream has
        taken them.

        Args:
            sink: An `asyncio.StreamWriter`, a Trio or anyio stream, or an asynchronous function
                that takes bytes.
            encode: Makes bytes of an event.
            missed: Makes bytes of the number of events that this consumer has missed.

        Raises:
            GivenUpError: As `async for`; and whatever the stream raises.
        """
        send = sender_of(sink)
        async for loan in self._box:
            self.missed = self._box.dropped
            with loan as events:
                pieces = [encode(event) for event in events]
                if self.missed and missed is not None:
                    pieces.insert(0, missed(self.missed))
                await send(b"".join(pieces))
