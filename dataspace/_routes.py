"""Who subscribes to a topic, and the cache that makes asking one dictionary look-up."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import attrs

from ..accounts import Recipient
from ._topics import FilterIndex, TopicFilter, TopicIndex

DEFAULT_CACHED_ROUTES = 16_384
"""Topics whose route is kept: 16 MiB at about 1 KiB each; and subscribing to `#`, which forgets
them all, takes 40 ms (measured)."""


@attrs.frozen(slots=True, eq=False)
class Subscription:
    """One consumer's interest in one topic filter."""

    filter: TopicFilter
    holder: Recipient | None
    """Who takes what is published with QoS 0, and everything if `acked` is None: publications, and
    runs of them (`Batch`). None: nobody does at the moment; the consumer is away."""
    acked: Recipient | None = None
    """Who takes what the consumer is to acknowledge: publications with QoS 1 or 2, if granted."""
    granted: int = 1
    """The highest QoS that `acked` takes: of a consumer's overlapping filters the highest counts,
    and it takes a publication once [MQTT-3.3.5-1]."""
    consumer: object = None
    """Whose subscription it is; by default the holder's."""
    allows: Callable[[str], bool] | None = None
    """Says of which of the topics it is told that match its filter; None: of all. Asked when a
    route is found: when it would say something else than before, `Routes.forget_all` has to be
    called."""

    @property
    def rank(self) -> int:
        """The highest QoS that it takes."""
        return 0 if self.acked is None else self.granted


@attrs.frozen(slots=True, eq=False, weakref_slot=True)
class Destinations:
    """A set of holders; two topics with the same subscribers have the very same `Destinations`.

    So a run of publications may go on from one topic to the next, while it concerns the same
    holders, with one comparison.
    """

    holders: tuple[Recipient, ...]


@attrs.frozen(slots=True, eq=False)
class Route:
    """Whom a topic concerns, each holder once however many of its filters match [MQTT-3.3.5-1]."""

    topic: str
    plain: Destinations
    """Who takes a publication with QoS 0."""
    unacked: Destinations
    """Who takes a publication with a higher QoS as if it had QoS 0."""
    acked: Destinations
    """Who takes it to be acknowledged."""
    run: Destinations | None
    """Who takes a run of publications with QoS 0: `plain`, and observers by pattern that can. None
    if it depends on more than the topic who does, or if somebody takes them one by one only."""


def _no_observers(_: str) -> tuple[Recipient, ...] | None:
    return ()


class Routes:
    """Subscriptions, and the routes of the topics lately published to.

    The cache is kept right by removing, at each change of a subscription, just the routes of the
    topics that its filter matches: the cached topics are in an index by topic. When it is full, the
    route that was found first goes.

    Args:
        cached: How many routes to keep.
        observers: Tells who else takes a run of publications on a topic; see `Route.run`. When it
            would say something else than before, `forget_all` has to be called.

    Attributes:
        version: Changes whenever routes may be others than before: for who keeps some.

    Raises:
        ValueError: If less than one route is to be `cached`.
    """

    def __init__(
        self,
        cached: int = DEFAULT_CACHED_ROUTES,
        observers: Callable[[str], tuple[Recipient, ...] | None] = _no_observers,
    ) -> None:
        if cached < 1:
            msg = f"at least one route has to be cached, not {cached}"
            raise ValueError(msg)
        self.version = 0
        self._filters: FilterIndex[Subscription] = FilterIndex()
        self._capacity = cached
        self._observers = observers
        self._cached: TopicIndex[Route] = TopicIndex()
        self._by_topic: dict[str, Route] = {}
        # The keys of one protocol's own, as bytes with a length, to spare the decoding.
        self.by_key: dict[bytes, Route] = {}
        self._keys_of: dict[str, tuple[bytes, ...]] = {}
        self._interned: weakref.WeakValueDictionary[tuple[Recipient, ...], Destinations] = (
            weakref.WeakValueDictionary()
        )

    def __len__(self) -> int:
        """Return how many subscriptions there are."""
        return len(self._filters)

    @property
    def cached(self) -> int:
        """How many routes are cached."""
        return len(self._by_topic)

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription."""
        self.version += 1
        self._filters.add(subscription.filter.text, subscription)
        self._forget(subscription.filter)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription.

        Raises:
            KeyError: If it is not there.
        """
        self.version += 1
        self._filters.remove(subscription.filter.text, subscription)
        self._forget(subscription.filter)

    def of(self, topic: str) -> Route:
        """Return the route of a topic."""
        route = self._by_topic.get(topic)
        if route is None:
            route = self._find(topic)
            if len(self._by_topic) >= self._capacity:
                self._drop(next(iter(self._by_topic)))
            self._by_topic[topic] = route
            self._cached.set(topic, route)
        return route

    def of_key(self, key: bytes, topic_of: Callable[[bytes], str | None]) -> Route | None:
        """Return the route of a topic by a protocol's own key for it, and remember the key.

        `topic_of(key)` is called for a key that is not in `by_key`; None from it is None from here.
        """
        route = self.by_key.get(key)
        if route is None:
            topic = topic_of(key)
            if topic is None:
                return None
            route = self.of(topic)
            self.by_key[key] = route
            self._keys_of[topic] = (*self._keys_of.get(topic, ()), key)
        return route

    def _find(self, topic: str) -> Route:
        granted: dict[object, Subscription] = {}
        for subscription in self._filters.matching(topic):
            if subscription.allows is not None and not subscription.allows(topic):
                continue
            consumer = subscription.consumer
            if consumer is None:
                consumer = subscription.holder
            before = granted.get(consumer)
            if before is None or subscription.rank > before.rank:
                granted[consumer] = subscription
        holders: list[Recipient] = []
        unacked: list[Recipient] = []
        acked: list[Recipient] = []
        for subscription in granted.values():
            holder = subscription.holder
            if subscription.acked is not None:
                acked.append(subscription.acked)
            elif holder is not None:
                unacked.append(holder)
            if holder is not None:
                holders.append(holder)
        run: Destinations | None
        plain = run = self.intern(holders)
        observers = self._observers(topic)
        if observers is None:
            run = None
        elif observers:
            run = self.intern((*holders, *observers))
        return Route(
            topic,
            plain,
            plain if len(unacked) == len(holders) else self.intern(unacked),
            self.intern(acked),
            run,
        )

    def forget_all(self) -> None:
        """Forget every route that is cached."""
        self.version += 1
        self._by_topic.clear()
        self.by_key.clear()
        self._keys_of.clear()
        self._cached = TopicIndex()

    def intern(self, holders: Iterable[Recipient]) -> Destinations:
        """Return the `Destinations` that are these."""
        # Sorted, so that the order in which filters were found does not tell sets apart.
        key = tuple(sorted(holders, key=id))
        destinations = self._interned.get(key)
        if destinations is None:
            destinations = self._interned[key] = Destinations(key)
        return destinations

    def _forget(self, topic_filter: TopicFilter) -> None:
        for route in list(self._cached.matching(topic_filter.text)):
            self._drop(route.topic)

    def _drop(self, topic: str) -> None:
        del self._by_topic[topic]
        self._cached.discard(topic)
        for key in self._keys_of.pop(topic, ()):
            del self.by_key[key]
