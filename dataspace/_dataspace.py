"""The dataspace: routes each event to its recipients.

It has Syndicate's semantics. A message is routed once, to its recipients at that moment. An
assertion is state with an owner. Assertions are a bag by value: observers see the first of equal
assertions appear and the last go. A new observer gets the assertions that already stand, in the
same turn. To observe is itself an assertion (`Observe`), which can be observed.

Everything happens in turns, at their commit: if the turn fails, nothing of it ever happened.
Routing is synchronous, in the publisher's turn: the router has no task and no queue of its own.

Source: syndicate-rs, dataspace.rs and skeleton.rs; MQTT 3.1.1 for topics and retained messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

import attrs

from ..accounts import (
    DEFAULT_PATIENCE,
    RETAIN_LIMIT,
    Account,
    Holder,
    Ledger,
    Limit,
    Recipient,
    StuckPolicy,
    Turn,
    commit_run,
    measure,
)
from ._bag import identity
from ._block import Block, block
from ._changes import StateChanges, show
from ._errors import DataspaceError, NotAssertedError
from ._events import Asserted, Batch, Observe, Publication, Retracted
from ._index import DEFAULT_MAX_SHAPES, Endpoint, PatternIndex, kind_wanted, matches
from ._mailbox import Mailbox, subject_of
from ._pattern import Path, Pattern, Skeleton, captured, compile_pattern, take_apart
from ._retained import DEFAULT_MAX_RETAINED, DEFAULT_MAX_RETAINED_BYTES, RetainedStore
from ._routes import (
    DEFAULT_CACHED_ROUTE_BYTES,
    DEFAULT_CACHED_ROUTES,
    DEFAULT_MAX_DEEP_SHAPES,
    Destinations,
    Route,
    Routes,
    Subscription,
)
from ._telling import Telling
from ._topics import TopicFilter, memory_of, shape_of

if TYPE_CHECKING:
    from .queues import Queue


@attrs.define(slots=True, eq=False)
class Assertion:
    """A handle on one assertion; `Dataspace.retract` takes it back."""

    value: Any
    owner: Account
    nbytes: int
    key: Hashable
    """The value's `identity`. Observers see assertions with equal keys as one."""
    standing: bool = False
    """Whether it is in the dataspace now."""


@attrs.define(slots=True, eq=False)
class Observation:
    """A handle on one observation; `Dataspace.unobserve` ends it."""

    pattern: Pattern | TopicFilter
    holder: Recipient | None
    assertion: Assertion
    skeleton: Skeleton | None = None
    subscription: Subscription | None = None


def _holder(observation: object) -> Recipient:
    """Return the holder of an observation by pattern, which always has one."""
    holder = cast("Observation", observation).holder
    assert holder is not None
    return holder


class Run(Protocol):
    """Several messages for the same holders, which know how to handle the run."""

    @property
    def count(self) -> int:
        """The number of messages."""
        ...

    @property
    def nbytes(self) -> int:
        """The bytes that all of them together are charged for, for each holder."""
        ...


RunT = TypeVar("RunT", bound=Run)
T = TypeVar("T")


@attrs.frozen(slots=True)
class DataspaceStatistics:
    """Statistics of a dataspace."""

    assertions: int
    """Distinct values that are asserted now."""
    observations: int
    """Patterns that are observed now, topic filters not counted."""
    shapes: int
    """Distinct shapes among them. The cost of routing a value grows with these."""
    subscriptions: int
    """Topic filters that are observed now."""
    cached_routes: int
    """Topics with a cached route."""
    retained: int
    """Topics with a retained value."""
    retained_bytes: int
    """Bytes of their topics and payloads."""
    published: int
    """Messages and publications ever routed."""
    deliveries: int
    """Copies of them that holders got: the fan-out."""
    unrouted: int
    """Those of `published` that had no recipient."""


class Dataspace:
    """Routes the events that turns publish to their holders.

    Args:
        ledger: The ledger that all events are charged in.
        cached_routes: Most topics whose routes are cached.
        max_retained: Most topics that may have a retained value.
        max_retained_bytes: Most bytes of topics and payloads that may be retained.
        max_shapes: Most distinct shapes that the observed patterns may have.
        cached_route_bytes: Most memory that cached routes may take.
        max_filter_shapes: See `max_deep_shapes` of `Routes`.

    Attributes:
        routes: Subscriptions to topics, for transports that route runs of publications.
        retained: The retained publications.
        published: Messages and publications ever routed.
        deliveries: Copies of them that holders got.
        unrouted: Those of `published` that had no recipient.
        changes: The assertions, for transports that change them at once.
        looks_into_publications: Whether some observer's pattern might match a publication.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        cached_routes: int = DEFAULT_CACHED_ROUTES,
        max_retained: int = DEFAULT_MAX_RETAINED,
        max_retained_bytes: int = DEFAULT_MAX_RETAINED_BYTES,
        max_shapes: int = DEFAULT_MAX_SHAPES,
        cached_route_bytes: int = DEFAULT_CACHED_ROUTE_BYTES,
        max_filter_shapes: int = DEFAULT_MAX_DEEP_SHAPES,
    ) -> None:
        if not isinstance(ledger, Ledger):  # pyright: ignore[reportUnnecessaryIsInstance]
            msg = f"a dataspace routes in a ledger, not in {ledger!r}; write Dataspace(Ledger())"
            raise TypeError(msg)
        self.ledger = ledger
        self.routes = Routes(
            cached_routes,
            self._observers_of_runs,
            cached_bytes=cached_route_bytes,
            max_deep_shapes=max_filter_shapes,
            may_be_observed=self._may_be_observed,
        )
        self.retained = RetainedStore(max_retained, max_retained_bytes)
        self.published = 0
        self.deliveries = 0
        self.unrouted = 0
        self.looks_into_publications = False
        self._index = PatternIndex(max_shapes)
        self._observations = 0
        self.changes = StateChanges()

    def __repr__(self) -> str:
        assertions = len(self.changes.bag)
        return (
            f"<Dataspace: {self._observations} patterns observed, {assertions} assertions, "
            f"{len(self.retained)} topics retained, {self.published:,} events routed>"
        )

    # -- messages -------------------------------------------------------------------------------

    def route(self, turn: Turn, event: Any, nbytes: int | None = None) -> None:
        """Route `event` to its recipients now; for `Turn.publish`, at its commit.

        A `Publication` goes to subscribers of its topic, and to observers whose patterns match it
        as a value; so does each of a `Batch`. One with `retain` becomes its topic's value.

        Raises:
            QuotaExceededError: If it would be retained and its account's quota does not allow it.
        """
        if isinstance(event, Batch):
            for publication in event.events():
                self.route(turn, publication)
            return
        reached = 0
        looked_into = True
        if isinstance(event, Publication):
            if nbytes is None:
                nbytes = event.nbytes
            if event.retain:
                turn.on_undo(self.retained.set(event, turn.account.standing()))
                # Existing subscribers get it as a new message [MQTT-3.3.1-9].
                event = attrs.evolve(event, retain=False, was_retained=True)
            route = self.routes.of(event.topic)
            looked_into = route.looked_into
            holders = route.acked.holders if event.qos else route.plain.holders
            if event.qos and route.unacked.holders:
                plain = attrs.evolve(event, qos=0)
                for holder in route.unacked.holders:
                    turn.deliver(holder, plain, 1, nbytes)
                reached = len(route.unacked.holders)
            for holder in holders:
                turn.deliver(holder, event, 1, nbytes)
            reached += len(holders)
        elif isinstance(event, (Asserted, Retracted)):
            msg = f"{event!r} cannot be published; only a dataspace says what is the case"
            raise DataspaceError(msg)
        if looked_into:
            reached += self._route_value(turn, event, nbytes)
        self.ledger.fanout_copies.add(reached)
        self.published += 1
        self.deliveries += reached
        self.unrouted += not reached
        turn.on_undo(partial(self._uncount, reached))

    def route_run(
        self,
        account: Account,
        batch: RunT,
        holders: Collection[Recipient],
        commit: Callable[[Account, Collection[Recipient], RunT, int, int], None] = commit_run,
    ) -> None:
        """Route a run of messages with known holders in one step.

        It is a whole root turn, except that the caller calls `Holder.ready`: see
        `clearfunds.accounts.commit_run`. For QoS 0 publications the holders are `Route.run`; for
        other values see `recipients`. `commit` does the commit, with the same effect on the ledger.
        """
        count = batch.count
        commit(account, holders, batch, count, batch.nbytes)
        copies = len(holders)
        self.ledger.fanout_copies.add_copies(copies, count)
        self.published += count
        if copies:
            self.deliveries += count * copies
        else:
            self.unrouted += count

    def deliver_run(self, turn: Turn, run: Run, holders: Collection[Recipient]) -> None:
        """Deliver a run of messages to known holders in a turn, at its commit; see `route_run`."""
        count, nbytes = run.count, run.nbytes
        for holder in holders:
            turn.deliver(holder, run, count, nbytes)
        self.count_run(count, len(holders))
        turn.on_undo(partial(self.count_run, count, len(holders), -1))

    def count_run(self, count: int, copies: int, change: int = 1) -> None:
        """Count a run of messages that has been routed to `copies` holders."""
        self.ledger.fanout_copies.add_copies(copies, change * count)
        self.published += change * count
        self.deliveries += change * count * copies
        if not copies:
            self.unrouted += change * count

    def _route_value(self, turn: Turn, value: Any, nbytes: int | None) -> int:
        reached = 0
        whole = nbytes
        telling: Telling | None = None
        for endpoint, shown in self._index.matching(value):
            if whole is None:
                whole = measure(value)
            if telling is None:
                telling = Telling(turn, whole, _holder)
            size = whole if endpoint.captures is None else measure(shown)
            for observation in endpoint.observers:
                reached += telling.tell(observation, shown, size)
        return reached

    @property
    def version(self) -> int:
        """A counter that changes whenever an observer by pattern comes or goes."""
        return self._index.version

    def _observers_of_runs(self, topic: str) -> tuple[Recipient, ...] | None:
        """Return the observers by pattern of any QoS 0 publication on a topic; see `Route.run`."""
        return self.recipients(Publication(topic, b""), ("payload",))

    def _may_be_observed(self, topic: str) -> bool:
        return self.looks_into_publications and self._index.may_concern_topic(
            Publication(topic, b"")
        )

    def recipients(self, value: Any, varying: Path | None = None) -> tuple[Recipient, ...] | None:
        """Return the observers of `value`, for `route_run`.

        With `varying`, return those that match whatever atom of its type stands at that path; None
        if that depends on the atom. None, too, if they cannot all take runs
        (`Recipient.run_place`).
        """
        endpoints = self._index.concerned(value, varying)
        if endpoints is None:
            return None
        found = [_holder(o) for e in endpoints for o in e.observers]
        places = {holder.run_place for holder in found}
        return None if None in places or len(places) < len(found) else tuple(found)

    def concerned(self, value: Any) -> list[Endpoint]:
        """Return the endpoints of the observers of `value`; they hold until `version` changes."""
        return self._index.concerned(value) or []

    def deciding(self, kind: Hashable) -> set[Hashable]:
        """Return the entries of a compound of this kind on whose content its observers depend.

        Two of them with equal content there, and with the same entries, have the same observers,
        until `version` changes.
        """
        return self._index.deciding(kind)

    def steady_destinations(self, value: Any, varying: Path) -> Destinations | None:
        """Return `recipients` as `Destinations`, which are the same object for the same recipients.

        The result holds until `version` changes: a transport may route a run of such values as one.
        """
        holders = self.recipients(value, varying)
        return None if holders is None else self.routes.intern(holders)

    def _uncount(self, reached: int) -> None:
        self.ledger.fanout_copies.add(reached, -1)
        self.published -= 1
        self.deliveries -= reached
        self.unrouted -= not reached

    # -- assertions -----------------------------------------------------------------------------

    def assert_(self, turn: Turn, value: Hashable) -> Assertion:
        """Assert `value` from the commit of `turn` on, until it is retracted.

        The assertion counts against the quota of the turn's account (rule 16); the notifications to
        observers are charged as debt. Observers see equal values of equal types as one: they see
        the first come and the last go.

        Raises:
            TypeError: If `value` is not hashable; at the commit, `QuotaExceededError`.
        """
        hash(value)
        assertion = Assertion(value, turn.account, measure(value), identity(value))
        turn.act(partial(self._assert, assertion=assertion))
        return assertion

    def retract(self, turn: Turn, assertion: Assertion) -> None:
        """Retract `assertion` at the commit of `turn`, which pays for the notifications.

        At the commit, NotAssertedError if it is not in the dataspace.
        """
        turn.act(partial(self._retract, assertion=assertion))

    @block
    def asserted(self, account: Account, value: Hashable) -> Generator[Assertion]:
        """Assert `value` for as long as the block lasts; `account` pays for both ends of it.

        The account stays open until then, even if it is closed meanwhile.
        """
        with account.kept_open():
            with account.turn(value) as turn:
                assertion = self.assert_(turn, value)
            try:
                yield assertion
            finally:
                with account.turn(value) as turn:
                    self.retract(turn, assertion)

    def _assert(self, turn: Turn, assertion: Assertion) -> None:
        assertion.owner.standing().check(1, assertion.nbytes)
        entry = self.changes.put_in(assertion)
        turn.on_undo(partial(self.changes.take_out, assertion))
        if entry.count == 1:
            self._tell(turn, assertion, entry.value, 1)

    def _retract(self, turn: Turn, assertion: Assertion) -> None:
        if not assertion.standing:
            msg = f"{assertion.value!r} has been retracted already, or its turn failed"
            raise NotAssertedError(msg)
        entry = self.changes.take_out(assertion)
        turn.on_undo(partial(self.changes.put_in, assertion, entry))
        if not entry.count:
            self._tell(turn, assertion, entry.value, -1)

    def _tell(self, turn: Turn, assertion: Assertion, value: Any, change: int) -> None:
        """Tell observers that `value` has appeared (change 1) or gone (-1)."""
        telling = Telling(turn, assertion.nbytes, _holder)
        for endpoint, shown in self._index.matching(value):
            key = assertion.key if endpoint.captures is None else identity(shown)
            # The value reported gone is the very one that was reported first.
            shown, before = endpoint.shown.get(key, (shown, 0))
            count = before + change
            show(endpoint, key, shown, count)
            turn.on_undo(partial(show, endpoint, key, shown, before))
            if change > 0 and count == 1:
                event: Asserted | Retracted = Asserted(shown)
            elif change < 0 and count == 0:
                event = Retracted(shown)
            else:
                continue  # other assertions still show the same
            size = assertion.nbytes if endpoint.captures is None else measure(shown)
            for observation in endpoint.observers:
                telling.tell(observation, event, size)

    # -- observing ------------------------------------------------------------------------------

    def observe(
        self,
        turn: Turn,
        pattern: object,
        holder: Recipient | None,
        *,
        acked: Recipient | None = None,
        granted: int = 1,
        consumer: object = None,
        replay: bool = True,
        value: Hashable = None,
        allows: Callable[[str], bool] | None = None,
    ) -> Observation:
        """Let `holder` observe `pattern` from the commit on.

        The holder gets messages as they are (or the tuple of the pattern's captures), and
        assertions as `Asserted` and `Retracted`. It gets the assertions that already stand in the
        same turn, and the turn's account pays for those. A `TopicFilter` observes publications;
        retained ones come first, with `retain` set, unless `replay` is false.

        Args:
            turn: The turn at whose commit it begins.
            pattern: See `clearfunds.dataspace.compile_pattern`, or a `TopicFilter`.
            holder: The recipient. None only with `acked`: publications of QoS 0 then go to nobody.
                For a `TopicFilter` a `Holder`; a recipient in front of one only with a `consumer`.
            acked: For a `TopicFilter`: the recipient of publications of QoS 1 and 2 instead.
            granted: For a `TopicFilter`: the highest QoS that `acked` takes.
            consumer: For a `TopicFilter`: the owner of the subscription, by default the `holder`'s.
                Of one consumer's overlapping subscriptions, the one with the highest QoS counts.
            replay: For a `TopicFilter`: whether to send retained publications.
            value: The assertion that observers of observers see; `Observe(pattern)` by default.
            allows: For a `TopicFilter`: says which matching topics the holder may get; see
                `Subscription`.

        Raises:
            PatternError: If `pattern` cannot be one; at the commit, `TooManyShapesError`, and as
                `assert_`; `QuotaExceededError` also if its owner has too many shapes, or all have
                (see `Routes.subscribe`).
            TypeError: If `holder` is not a recipient of loans.
        """
        if holder is not None and not hasattr(holder, "hold"):
            msg = f"{holder!r} holds no loans; observe with a mailbox, an outlet, or another holder"
            raise TypeError(msg)
        compiled = pattern if isinstance(pattern, TopicFilter) else compile_pattern(pattern)
        if value is None:
            value = Observe(compiled)
        nbytes = measure(value)
        if isinstance(compiled, TopicFilter):
            nbytes += memory_of(compiled.text)
        assertion = Assertion(value, turn.account, nbytes, identity(value))
        observation = Observation(compiled, holder, assertion)
        if isinstance(compiled, TopicFilter):
            # A recipient in front of a holder may serve one subscription of several: it does not
            # say which consumer's it is.
            assert (
                isinstance(holder, Holder)
                or (holder is None and acked is not None)
                or (holder is not None and consumer is not None)
            )
            observation.subscription = Subscription(
                compiled, holder, acked, granted, consumer, allows
            )
            turn.act(partial(self._subscribe, observation=observation, replay=replay))
        else:
            turn.act(partial(self._observe, observation=observation, pattern=compiled))
        turn.act(partial(self._assert, assertion=assertion))
        return observation

    def unobserve(self, turn: Turn, observation: Observation) -> None:
        """End `observation` at the commit of `turn`.

        The holder hears that the values it was shown have gone only if it wants to
        (`Recipient.hears_of_its_end`).

        At the commit, NotAssertedError if it has ended already.
        """
        turn.act(partial(self._retract, assertion=observation.assertion))
        turn.act(partial(self._unobserve, observation=observation))

    @block
    def observed(
        self, account: Account, pattern: object, holder: Recipient, *, replay: bool = True
    ) -> Generator[Observation]:
        """Let `holder` observe `pattern` for as long as the block lasts; `account` pays.

        The arguments are those of `observe`. The account stays open until then, even if it is
        closed meanwhile.
        """
        with account.kept_open():
            with account.turn() as turn:
                observation = self.observe(turn, pattern, holder, replay=replay)
            try:
                yield observation
            finally:
                with account.turn() as turn:
                    self.unobserve(turn, observation)

    @overload
    def subscribed(
        self,
        account: Account,
        pattern: TopicFilter,
        *,
        name: str | None = None,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        retain_limit: Limit = RETAIN_LIMIT,
        key: Callable[[Any], Hashable] = subject_of,
        spill: Queue | None = None,
        replay: bool = True,
    ) -> Block[Mailbox[Publication]]: ...

    @overload
    def subscribed(
        self,
        account: Account,
        pattern: type[T],
        *,
        name: str | None = None,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        retain_limit: Limit = RETAIN_LIMIT,
        key: Callable[[Any], Hashable] = subject_of,
        spill: Queue | None = None,
        replay: bool = True,
    ) -> Block[Mailbox[T]]: ...

    @overload
    def subscribed(
        self,
        account: Account,
        pattern: object,
        *,
        name: str | None = None,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        retain_limit: Limit = RETAIN_LIMIT,
        key: Callable[[Any], Hashable] = subject_of,
        spill: Queue | None = None,
        replay: bool = True,
    ) -> Block[Mailbox[Any]]: ...

    def subscribed(self, account: Account, pattern: object, **options: Any) -> Block[Mailbox[Any]]:
        """Let a new mailbox observe `pattern` for as long as the block lasts; `account` pays::

            with dataspace.subscribed(
                account, TopicFilter("sensors/#"), patience=2, policy=StuckPolicy.CONFLATE
            ) as mailbox:
                async for loan in mailbox:
                    ...

        The mailbox is called `name` (default: as the account). Each subscription has its own policy
        for a slow consumer: for `patience`, `policy`, `retain_limit`, `key` and `spill` see
        `Mailbox`; for `pattern` and `replay` see `observe`.

        Raises:
            UnfitPolicyError: If an argument is missing that `policy` needs; and as `observe`.
        """
        return self._subscribed(account, pattern, **options)

    @block
    def _subscribed(
        self,
        account: Account,
        pattern: object,
        *,
        name: str | None = None,
        replay: bool = True,
        **options: Any,
    ) -> Generator[Mailbox[Any]]:
        mailbox: Mailbox[Any] = Mailbox(
            self.ledger, account.name if name is None else name, **options
        )
        with mailbox, self.observed(account, pattern, mailbox, replay=replay):
            yield mailbox

    def _subscribe(self, turn: Turn, observation: Observation, *, replay: bool) -> None:
        subscription = observation.subscription
        assert subscription is not None
        shape = shape_of(subscription.filter.text)
        if shape is not None:
            observation.assertion.owner.standing().check_shape(shape)
        self._join(observation)
        turn.on_undo(partial(self._leave, observation))
        if replay:
            for publication in self.retained.matching(subscription.filter.text):
                holder: Recipient | None = subscription.holder
                if subscription.allows is not None and not subscription.allows(publication.topic):
                    continue
                if publication.qos and subscription.acked is not None:
                    holder = subscription.acked
                elif publication.qos:
                    publication = attrs.evolve(publication, qos=0)
                if holder is not None:
                    turn.deliver(holder, publication, 1, publication.nbytes)

    def _observe(self, turn: Turn, observation: Observation, pattern: Pattern) -> None:
        skeleton = take_apart(pattern)
        owner = observation.assertion.owner.standing()
        owner.check_shape(skeleton.shape)
        endpoint = self._index.put(skeleton, observation, Endpoint(skeleton.captures))
        observation.skeleton = skeleton
        owner.add_shape(skeleton.shape)
        self._observations += 1
        self._look_again(skeleton)
        turn.on_undo(partial(self._drop_observation, observation))
        if len(endpoint.observers) == 1:
            # Nobody observed this before: find the assertions that already stand.
            for whole, value in self.changes.bag.of_kind(kind_wanted(skeleton)):
                if matches(skeleton, value):
                    shown = captured(skeleton.captures, value)
                    key = whole if skeleton.captures is None else identity(shown)
                    shown, count = endpoint.shown.get(key, (shown, 0))
                    show(endpoint, key, shown, count + 1)
        holder = _holder(observation)
        for shown, _ in endpoint.shown.values():
            turn.deliver(holder, Asserted(shown), 1, measure(shown))

    def _unobserve(self, turn: Turn, observation: Observation) -> None:
        if observation.subscription is not None:
            self._leave(observation)
            turn.on_undo(partial(self._join, observation))
            return
        endpoint = self._drop_observation(observation)
        turn.on_undo(partial(self._restore_observation, observation, endpoint))
        holder = _holder(observation)
        if holder.hears_of_its_end:
            for shown, _ in endpoint.shown.values():
                turn.deliver(holder, Retracted(shown), 1, measure(shown))

    def _join(self, observation: Observation) -> None:
        subscription = observation.subscription
        assert subscription is not None
        self.routes.subscribe(subscription)
        shape = shape_of(subscription.filter.text)
        if shape is not None:
            observation.assertion.owner.standing().add_shape(shape)

    def _leave(self, observation: Observation) -> None:
        subscription = observation.subscription
        assert subscription is not None
        self.routes.unsubscribe(subscription)
        shape = shape_of(subscription.filter.text)
        if shape is not None:
            observation.assertion.owner.standing().release_shape(shape)

    def _drop_observation(self, observation: Observation) -> Endpoint:
        skeleton = observation.skeleton
        assert skeleton is not None
        self._observations -= 1
        endpoint = self._index.remove(skeleton, observation)
        observation.assertion.owner.standing().release_shape(skeleton.shape)
        self._look_again(skeleton)
        return endpoint

    def _restore_observation(self, observation: Observation, endpoint: Endpoint) -> None:
        skeleton = observation.skeleton
        assert skeleton is not None
        self._observations += 1
        # The same endpoint object: the next undo may concern a value that it showed.
        self._index.put(skeleton, observation, endpoint)
        observation.assertion.owner.standing().add_shape(skeleton.shape)
        self._look_again(skeleton)

    def _look_again(self, skeleton: Skeleton) -> None:
        self.looks_into_publications = self._index.may_concern(Publication)
        if kind_wanted(skeleton) in (None, Publication):
            self.routes.forget_all()

    # -- looking --------------------------------------------------------------------------------

    def assertions(self) -> Collection[Hashable]:
        """Return the distinct values that are asserted now."""
        return list(self.changes.bag)

    def route_of(self, topic: str) -> Route:
        """Return the recipients of a publication on `topic` now."""
        return self.routes.of(topic)

    def statistics(self) -> DataspaceStatistics:
        """Return the statistics of the dataspace."""
        return DataspaceStatistics(
            assertions=len(self.changes.bag),
            observations=self._observations,
            shapes=len(self._index),
            subscriptions=len(self.routes),
            cached_routes=self.routes.cached,
            retained=len(self.retained),
            retained_bytes=self.retained.nbytes,
            published=self.published,
            deliveries=self.deliveries,
            unrouted=self.unrouted,
        )
