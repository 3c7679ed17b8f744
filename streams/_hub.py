"""A hub: the publishers and the consumers of one program, with bounded memory between them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

import anyio

from ..accounts import (
    DEFAULT_PATIENCE,
    LAGGING,
    NO_LIMIT,
    RETAIN_LIMIT,
    Account,
    Ledger,
    Limit,
    Profile,
    StuckPolicy,
    watch_forecasts,
    watch_patience,
)
from ..accounts._loop import checkpoint
from ..dataspace import Dataspace, Pattern, Publication, TopicFilter, subject_of
from ._beside import beside
from ._feed import Feed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

T = TypeVar("T")

DEFAULT_SPILL_BYTES: Final = 64 << 20
"""Memory for the backlogs of all slow consumers together: a quarter of a relay's, which a program
shares with other work."""


class Hub:
    """Publishers and consumers of one program. Use it as an asynchronous context manager::

        async with Hub() as hub:
            newsroom = hub.open("newsroom")
            with hub.subscribe("alice", "news/#") as feed:
                await hub.publish(newsroom, Publication("news/sport", b"1:0"))
                async for event in feed:
                    await send(event.payload)

    Each event counts against the publisher that caused it until every consumer is done with it.
    A publisher that owes too much waits in `publish`, the others go on. A slow consumer is handled
    by its profile, or by its policy: see `subscribe`.

    A hub belongs to one event loop and one thread. Leaving the block stops its watch over slow
    consumers; close feeds before.

    Args:
        profile: The profile of feeds that name none: `balanced`, `lossless` or `live`.
        limit: The high-water mark of each publisher that is opened without one.
        spill_bytes: Memory for the backlogs of all slow consumers together; None: no bound.
        ledger: The books to use, of a program that has some; by default its own.

    Attributes:
        ledger: Its books: who owes what, and who waits for whom.
        dataspace: Its router.
    """

    def __init__(
        self,
        *,
        profile: Profile | str = Profile.BALANCED,
        limit: Limit | None = None,
        spill_bytes: int | None = DEFAULT_SPILL_BYTES,
        ledger: Ledger | None = None,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self.dataspace = Dataspace(self.ledger)
        self._profile = Profile(profile)
        self._limit = Limit() if limit is None else limit
        self.ledger.open(LAGGING, limit=Limit(items=None, bytes=spill_bytes), at_rest="ram")
        self._jobs: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("watching patience", partial(watch_patience, self.ledger)),
            ("looking ahead", partial(watch_forecasts, self.ledger)),
        ]
        self._running: AbstractAsyncContextManager[None] | None = None

    def __repr__(self) -> str:
        return f"<Hub: {len(self.ledger.holders)} holders; {self.ledger!r}>"

    async def __aenter__(self) -> Self:
        if self._running is not None:
            msg = "this hub runs already; enter it once, around everything that uses it"
            raise RuntimeError(msg)
        self._running = beside(self._watch)
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        running, self._running = self._running, None
        assert running is not None
        return await running.__aexit__(exc_type, exc, traceback)

    async def _watch(self) -> None:
        async with anyio.create_task_group() as group:
            for doing, job in self._jobs:
                group.start_soon(self.ledger.faults.keep_going, doing, job)

    def run_beside(self, doing: str, job: Callable[[], Awaitable[object]]) -> None:
        """Run a job for as long as the hub runs; one that fails is logged and begins anew.

        Args:
            doing: The job in words, for the log.
            job: An asynchronous function.

        Raises:
            RuntimeError: If the hub runs already.
        """
        if self._running is not None:
            msg = f"the hub runs already; ask for {doing} before it is entered"
            raise RuntimeError(msg)
        self._jobs.append((doing, job))

    def open(
        self, name: str, *, limit: Limit | None = None, parent: Account | None = None
    ) -> Account:
        """Open the account called `name`, of a publisher or a user; `with` closes it.

        See `Ledger.open`. The same name is the same account, so nobody gets rid of debt by
        reconnecting.
        """
        known = self.ledger.accounts.get(name)
        if limit is None and known is None:
            limit = self._limit
        return self.ledger.open(name, limit=limit, parent=parent)

    async def publish(self, account: Account, event: object, *, nbytes: int | None = None) -> None:
        """Wait until `account` has clear funds, then publish an event on it.

        Args:
            account: The account that causes the event.
            event: A `Publication`, which goes to those that subscribed to its topic, or any other
                value, which goes to those whose class or pattern it matches.
            nbytes: Its size; by default its payload, or what `measure` finds.

        Cancellation: always a checkpoint, before anything is published.

        Raises:
            SelfWaitError: Inside the block of a loan or a turn: publish by `Feed.turn` there.
        """
        await checkpoint()
        await account.ensure_clear_funds()
        if isinstance(event, Publication) and not (event.qos or event.retain or nbytes):
            # The same as a turn, booked in one sum: half the cost for each consumer.
            run = self.dataspace.routes.of(event.topic).run
            if run is not None:
                self.dataspace.route_run(account, event, run.holders)
                for holder in run.holders:
                    holder.ready()
                return
        with account.turn() as turn:
            turn.publish(self.dataspace, event, nbytes=nbytes)

    @overload
    def subscribe(
        self,
        user: str | Account,
        what: str | TopicFilter,
        *,
        name: str | None = None,
        profile: Profile | str | None = None,
        policy: StuckPolicy | str | None = None,
        patience: float | None = None,
        retain_limit: Limit | None = None,
        key: Callable[[Any], Hashable] = subject_of,
    ) -> Feed[Publication]: ...

    @overload
    def subscribe(
        self,
        user: str | Account,
        what: type[T],
        *,
        name: str | None = None,
        profile: Profile | str | None = None,
        policy: StuckPolicy | str | None = None,
        patience: float | None = None,
        retain_limit: Limit | None = None,
        key: Callable[[Any], Hashable] = subject_of,
    ) -> Feed[T]: ...

    @overload
    def subscribe(
        self,
        user: str | Account,
        what: Pattern,
        *,
        name: str | None = None,
        profile: Profile | str | None = None,
        policy: StuckPolicy | str | None = None,
        patience: float | None = None,
        retain_limit: Limit | None = None,
        key: Callable[[Any], Hashable] = subject_of,
    ) -> Feed[Any]: ...

    def subscribe(
        self,
        user: str | Account,
        what: object,
        *,
        name: str | None = None,
        profile: Profile | str | None = None,
        policy: StuckPolicy | str | None = None,
        patience: float | None = None,
        retain_limit: Limit | None = None,
        key: Callable[[Any], Hashable] = subject_of,
    ) -> Feed[Any]:
        """Return a feed of events for one consumer; it begins with its `with` block.

        Args:
            user: The consumer's account, or its name.
            what: A topic filter in MQTT's words (`"news/#"`), a class, or a pattern: see
                `Dataspace.observe`.
            name: The feed's name on pages and in logs; by default the user's.
            profile: The handling of a slow consumer, in one word: `balanced` spills its backlog to
                memory, `lossless` lets publishers wait and then disconnects it, `live` drops the
                oldest.
            policy: The same in detail: `wait`, `disconnect`, `drop_oldest`, `drop_newest`,
                `conflate` or `spill`.
            patience: Seconds without progress while a publisher waits, before that; 0: at once. By
                default the profile's; with a policy 0 where the publishers go on, else 20.
            retain_limit: How much of its backlog is kept: by default 1,000 events and 8 MiB, or
                what `spill_bytes` leaves where it spills.
            key: For `conflate`: the subject that an event is the latest of. By default its topic.

        Raises:
            PatternError: If `what` is neither.
            ValueError: For an unknown word, or a negative patience.
        """
        if policy is not None:
            if profile is not None:
                msg = "give a profile or a policy, not both: a profile is a policy with a patience"
                raise ValueError(msg)
            chosen = StuckPolicy(policy)
            usual = 0.0 if chosen.relieves else DEFAULT_PATIENCE
        else:
            of = self._profile if profile is None else Profile(profile)
            chosen, usual = of.policy, of.patience
        if retain_limit is None:
            retain_limit = NO_LIMIT if chosen is StuckPolicy.SPILL else RETAIN_LIMIT
        return Feed(
            self.ledger,
            self.dataspace,
            user,
            TopicFilter(what) if isinstance(what, str) else what,
            name=name,
            patience=usual if patience is None else patience,
            policy=chosen,
            retain_limit=retain_limit,
            key=key,
        )
