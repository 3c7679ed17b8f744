"""Subscriptions to topics, and the cache that makes routing one dictionary look-up."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import chain, islice
from sys import getsizeof
from typing import Any, Final

import attrs

from ..accounts import QuotaExceededError, Recipient
from ._topics import FilterIndex, TopicFilter, shape_of

DEFAULT_CACHED_ROUTES = 16_384
"""Limit on cached routes, in topics: 13 MB at about 800 bytes each (measured with 3 levels)."""

DEFAULT_CACHED_ROUTE_BYTES = 16 << 20
"""Limit on their memory: that of as many short topics."""

DEFAULT_MAX_DEEP_SHAPES = 1_000
"""Places in which filters of more than `SHALLOW` levels may have wildcards. A topic is looked up
once for each, at 0.5 us; clients all over the world have a few dozen (see also `Quota.shapes`)."""

SHALLOW: Final = 8
"""Filters of up to this many levels are not limited: one topic can match at most 767 placements of
their wildcards. AWS IoT Core's topics have 8 levels."""

MAX_FORGOTTEN: Final = 1_024
"""Most routes that one change removes from the cache one by one; if it may concern more, all go."""

FREEING_BATCH: Final = 32
"""How many forgotten entries are freed whenever a route is found."""

ROUTE_BYTES: Final = 620
"""The memory of a cached route besides its topic and its keys (measured)."""

KEY_BYTES: Final = 130
"""The memory of a key in the cache besides its bytes (measured)."""

DESTINATION_BYTES: Final = 270
"""The memory of `Destinations` and of what is noted there, besides `HOLDER_BYTES` for each."""

HOLDER_BYTES: Final = 16


@attrs.frozen(slots=True, eq=False)
class Subscription:
    """One consumer's interest in one topic filter."""

    filter: TopicFilter
    holder: Recipient | None
    """The recipient of everything published with QoS 0, and of everything if `acked` is None:
    publications, and runs of them (`Batch`). None: the consumer is away, and nobody takes these."""
    acked: Recipient | None = None
    """The recipient of publications that the consumer must acknowledge: QoS 1 or 2, if granted."""
    granted: int = 1
    """The highest QoS that `acked` takes. The highest of a consumer's overlapping filters counts,
    and it takes a publication once [MQTT-3.3.5-1]."""
    consumer: object = None
    """The owner of the subscription; by default the holder's."""
    allows: Callable[[str], bool] | None = None
    """Says whether the consumer may get a topic that matches its filter; None: all of them. Called
    when a route is found: when its answers change, call `Routes.forget_all`."""

    @property
    def rank(self) -> int:
        """The highest QoS that it takes."""
        return 0 if self.acked is None else self.granted


@attrs.define(slots=True, eq=False, weakref_slot=True)
class Destinations:
    """A set of holders; two topics with the same subscribers have the very same `Destinations`.

    So a transport needs only one comparison to see whether a run of publications may go on from one
    topic to the next.
    """

    holders: tuple[Recipient, ...] = attrs.field(on_setattr=attrs.setters.frozen)
    used: int = attrs.field(default=0, init=False, repr=False)
    """In how many places of cached routes they are; for the cache, which counts them once."""
    noted: Any = attrs.field(default=None, init=False, repr=False)
    """What a transport has found out about the holders, for itself."""


@attrs.frozen(slots=True, eq=False)
class Route:
    """The recipients of a topic, each once however many of its filters match [MQTT-3.3.5-1]."""

    topic: str
    plain: Destinations
    """Recipients of a publication with QoS 0."""
    unacked: Destinations
    """Recipients of a publication with a higher QoS as if it had QoS 0."""
    acked: Destinations
    """Recipients that acknowledge it."""
    run: Destinations | None
    """Recipients of a run of publications with QoS 0: `plain`, and observers by pattern that can
    take runs. None if the recipients depend on more than the topic, or if one takes only single
    ones."""
    looked_into: bool = False
    """Whether some observer's pattern might match a publication on it."""


def _no_observers(_: str) -> tuple[Recipient, ...] | None:
    return ()


@attrs.define(slots=True, eq=False)
class _Cached:
    """A route in the cache."""

    route: Route
    nbytes: int
    keys: tuple[bytes, ...] = ()


class Routes:
    """Subscriptions, and cached routes of the topics lately published to.

    Theory of operation. A cached route must be right, because a hit is not checked again. So a
    change of a subscription removes the routes that it makes wrong, and that must be fast whatever
    the filter. A filter without wildcards concerns one topic. Other filters concern topics that
    begin with the same level, or the same two levels, if these are not wildcards. Such topics are
    listed together, and a change forgets all of them, or the whole cache if they are many. So a
    change costs no more than was spent before to find the routes that it forgets; and the clients
    of one tenant, whose topics begin alike, do not cost others their routes.

    When the cache is full, by number or in bytes, the routes that were found first go.

    Args:
        cached: Most routes to keep.
        observers: Returns further recipients of a run of publications on a topic; see `Route.run`.
            When its answers change, call `forget_all`.
        cached_bytes: Most memory that cached routes may take; at least one is kept.
        may_be_observed: Says whether `observers` has to be asked; see `Route.looked_into`. When its
            answers change, call `forget_all`.
        max_deep_shapes: In how many different places filters of more than `SHALLOW` levels may have
            their wildcards.

    Attributes:
        version: Changes whenever routes may have changed; for callers that keep some.
        on_change: Called with each subscription that has come (1) or gone (-1).

    Raises:
        ValueError: If less than one route is to be `cached`.
    """

    def __init__(
        self,
        cached: int = DEFAULT_CACHED_ROUTES,
        observers: Callable[[str], tuple[Recipient, ...] | None] = _no_observers,
        *,
        cached_bytes: int = DEFAULT_CACHED_ROUTE_BYTES,
        max_deep_shapes: int = DEFAULT_MAX_DEEP_SHAPES,
        may_be_observed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        if cached < 1:
            msg = f"at least one route has to be cached, not {cached}"
            raise ValueError(msg)
        self.version = 0
        self.on_change: Callable[[Subscription, int], object] | None = None
        self._filters: FilterIndex[Subscription] = FilterIndex()
        self._capacity = cached
        self._max_bytes = cached_bytes
        self._max_deep_shapes = max_deep_shapes
        # The number of filters with each deep shape.
        self._deep: dict[object, int] = {}
        self._observers = observers
        self._may_be_observed = may_be_observed
        self._by_topic: dict[str, _Cached] = {}
        # A protocol's own keys, as bytes with a length, to save decoding.
        self.by_key: dict[bytes, Route] = {}
        # The same topics by their first level and then their second.
        self._alike: dict[str, dict[str, set[str]]] = {}
        self.cached_bytes = 0
        # Entries forgotten all at once. Freeing them takes time, so it is spread out.
        self._waste: list[dict[Any, Any]] = []
        self._interned: weakref.WeakValueDictionary[tuple[Recipient, ...], Destinations] = (
            weakref.WeakValueDictionary()
        )

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._filters)

    @property
    def cached(self) -> int:
        """The number of cached routes."""
        return len(self._by_topic)

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription.

        Raises:
            QuotaExceededError: If there are filters of `max_deep_shapes` other deep shapes.
        """
        text = subscription.filter.text
        self._count_shape(text, 1)
        self.version += 1
        self._filters.add(text, subscription)
        self._forget(text)
        if self.on_change is not None:
            self.on_change(subscription, 1)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription.

        Raises:
            KeyError: If it is not there.
        """
        self.version += 1
        text = subscription.filter.text
        self._filters.remove(text, subscription)
        self._count_shape(text, -1)
        self._forget(text)
        if self.on_change is not None:
            self.on_change(subscription, -1)

    def _count_shape(self, text: str, change: int) -> None:
        if text.count("/") < SHALLOW:
            return
        shape = shape_of(text)
        if shape is None or len(shape.literals) == shape.depth:
            return  # no more of those than topics have levels
        count = self._deep.get(shape, 0) + change
        if count == change > 0 and len(self._deep) >= self._max_deep_shapes:
            msg = (
                f"filters of more than {SHALLOW} levels have wildcards in "
                f"{self._max_deep_shapes} different places, which is the limit; use a filter of "
                f"{SHALLOW} levels or less, with # at its end, say, or raise it"
            )
            raise QuotaExceededError(msg)
        if count:
            self._deep[shape] = count
        else:
            del self._deep[shape]

    def of(self, topic: str) -> Route:
        """Return the route of a topic."""
        cached = self._by_topic.get(topic)
        if cached is None:
            cached = self._add(self._find(topic))
            self._keep_limits()
        return cached.route

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
            cached = self._by_topic[topic]
            cached.keys = (*cached.keys, key)
            cached.nbytes += KEY_BYTES + len(key)
            self.cached_bytes += KEY_BYTES + len(key)
            self._keep_limits()
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
        looked_into = self._may_be_observed(topic)
        observers = self._observers(topic) if looked_into else ()
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
            looked_into,
        )

    def forget_all(self) -> None:
        """Forget every route that is cached."""
        self.version += 1
        if self._by_topic:
            self._waste += (self._by_topic, self.by_key, self._alike)
            self._by_topic = {}
            self.by_key = {}
            self._alike = {}
            self.cached_bytes = 0
            # New destinations have not been counted.
            self._interned = weakref.WeakValueDictionary()

    def intern(self, holders: Iterable[Recipient]) -> Destinations:
        """Return the one `Destinations` with these holders."""
        # Sorted, so that the order in which filters were found makes no difference.
        key = tuple(sorted(holders, key=id))
        destinations = self._interned.get(key)
        if destinations is None:
            destinations = self._interned[key] = Destinations(key)
        return destinations

    def _forget(self, text: str) -> None:
        """Forget the routes that a change of a filter may make wrong."""
        if "+" not in text and "#" not in text:
            if text in self._by_topic:
                self._drop(text)
            return
        levels = text.split("/", 2)
        if levels[0] in ("+", "#"):
            self.forget_all()
            return
        alike = self._alike.get(levels[0], {})
        groups = alike.values() if levels[1] in ("+", "#") else (alike.get(levels[1], ()),)
        topics = list(islice(chain.from_iterable(groups), MAX_FORGOTTEN + 1))
        if len(topics) > MAX_FORGOTTEN:
            self.forget_all()
        else:
            for topic in topics:
                self._drop(topic)

    def _add(self, route: Route) -> _Cached:
        if self._waste:
            self._free()
        topic = route.topic
        cached = self._by_topic[topic] = _Cached(route, ROUTE_BYTES + 2 * getsizeof(topic))
        self.cached_bytes += cached.nbytes
        self._use(route, 1)
        first, second = _first_levels(topic)
        self._alike.setdefault(first, {}).setdefault(second, set()).add(topic)
        return cached

    def _free(self) -> None:
        """Free some forgotten entries: more than one route that is found leaves behind."""
        waste = self._waste
        for _ in range(FREEING_BATCH):
            if not waste:
                break
            if not waste[-1]:
                waste.pop()
                continue
            _, value = waste[-1].popitem()
            if hasattr(value, "popitem"):  # free it piece by piece, too
                waste.append(value)

    def _keep_limits(self) -> None:
        while len(self._by_topic) > self._capacity or (
            self.cached_bytes > self._max_bytes and len(self._by_topic) > 1
        ):
            self._drop(next(iter(self._by_topic)))

    def _drop(self, topic: str) -> None:
        cached = self._by_topic.pop(topic)
        self.cached_bytes -= cached.nbytes
        self._use(cached.route, -1)
        for key in cached.keys:
            del self.by_key[key]
        first, second = _first_levels(topic)
        alike = self._alike[first]
        alike[second].remove(topic)
        if not alike[second]:
            del alike[second]
            if not alike:
                del self._alike[first]

    def _use(self, route: Route, change: int) -> None:
        """Count the uses of a route's `Destinations`, added or removed: each costs memory once."""
        for destinations in (route.plain, route.unacked, route.acked, route.run):
            if destinations is not None:
                before = destinations.used
                destinations.used = before + change
                if not before or not destinations.used:
                    nbytes = DESTINATION_BYTES + HOLDER_BYTES * len(destinations.holders)
                    self.cached_bytes += change * nbytes


def _first_levels(topic: str) -> tuple[str, str]:
    """Return the first two levels of a topic; "" for the second if it has none."""
    first, _, rest = topic.partition("/")
    return first, rest.partition("/")[0]
