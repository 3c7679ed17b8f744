"""Who subscribes to a topic, and the cache that makes asking one dictionary look-up."""

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
"""Topics whose route is kept: 13 MB at about 800 bytes each (measured with 3 levels)."""

DEFAULT_CACHED_ROUTE_BYTES = 16 << 20
"""Their memory: what as many short topics take."""

DEFAULT_MAX_DEEP_SHAPES = 1_000
"""Places in which filters of more than `SHALLOW` levels have wildcards. A topic is looked up once
for each, at 0.5 us; clients all over the world have a few dozen (see also `Quota.shapes`)."""

SHALLOW: Final = 8
"""Filters of so many levels are never too many: their wildcards can be in 767 places at the most
that one topic matches. AWS IoT Core's topics have 8 levels."""

FORGET_AT_ONCE: Final = 1_024
"""How many routes one change removes from the cache one by one; if it may concern more, all go."""

FREED_AT_ONCE: Final = 32
"""How much of what was forgotten is freed whenever a route is found."""

ROUTE_BYTES: Final = 620
"""What a route takes in the cache besides its topic and its keys (measured)."""

KEY_BYTES: Final = 130
"""What a key takes in the cache besides its bytes (measured)."""

DESTINATION_BYTES: Final = 200
"""What `Destinations` take besides 8 bytes for each holder."""


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

    @property
    def rank(self) -> int:
        """The highest QoS that it takes."""
        return 0 if self.acked is None else self.granted


@attrs.define(slots=True, eq=False, weakref_slot=True)
class Destinations:
    """A set of holders; two topics with the same subscribers have the very same `Destinations`.

    So a run of publications may go on from one topic to the next, while it concerns the same
    holders, with one comparison.
    """

    holders: tuple[Recipient, ...] = attrs.field(on_setattr=attrs.setters.frozen)
    used: int = attrs.field(default=0, init=False, repr=False)
    """In how many places of cached routes they are; for the cache, which counts them once."""


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
    """Subscriptions, and the routes of the topics lately published to.

    Theory of operation. What is cached must be right, and who finds something there does not look
    twice, so a change of a subscription removes what it makes wrong. That must not take long,
    whatever the filter: a filter without wildcards concerns one topic. The others concern topics
    that begin with the same level, or the same two levels, if these are no wildcards; such topics
    are listed together, and all of them are forgotten, or the whole cache if they are many. So each
    change costs as much as was spent before to find what it forgets, and no more; and the clients
    of one tenant, whose topics begin alike, do not cost others theirs.

    When the cache is full, by number or in bytes, the routes that were found first go.

    Args:
        cached: How many routes to keep.
        observers: Tells who else takes a run of publications on a topic; see `Route.run`. When it
            would say something else than before, `forget_all` has to be called.
        cached_bytes: How much memory the routes that are kept may take; at least one is kept.
        may_be_observed: Tells whether `observers` has to be asked; see `Route.looked_into`. The
            same goes for it.
        max_deep_shapes: In how many different places filters of more than `SHALLOW` levels may have
            their wildcards.

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
        self._filters: FilterIndex[Subscription] = FilterIndex()
        self._capacity = cached
        self._max_bytes = cached_bytes
        self._max_deep_shapes = max_deep_shapes
        # How many filters have each deep shape.
        self._deep: dict[object, int] = {}
        self._observers = observers
        self._may_be_observed = may_be_observed
        self._by_topic: dict[str, _Cached] = {}
        # The keys of one protocol's own, as bytes with a length, to spare the decoding.
        self.by_key: dict[bytes, Route] = {}
        # The same topics by their first level and then their second.
        self._alike: dict[str, dict[str, set[str]]] = {}
        self.cached_bytes = 0
        # What was forgotten all at once; to free it takes its time.
        self._waste: list[dict[Any, Any]] = []
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
        """Add a subscription.

        Raises:
            QuotaExceededError: If there are filters of `max_deep_shapes` other deep shapes.
        """
        text = subscription.filter.text
        self._count_shape(text, 1)
        self._filters.add(text, subscription)
        self._forget(text)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription.

        Raises:
            KeyError: If it is not there.
        """
        text = subscription.filter.text
        self._filters.remove(text, subscription)
        self._count_shape(text, -1)
        self._forget(text)

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
        if self._by_topic:
            self._waste += (self._by_topic, self.by_key, self._alike)
            self._by_topic = {}
            self.by_key = {}
            self._alike = {}
            self.cached_bytes = 0
            # Those that come have not been counted.
            self._interned = weakref.WeakValueDictionary()

    def intern(self, holders: Iterable[Recipient]) -> Destinations:
        """Return the `Destinations` that are these."""
        # Sorted, so that the order in which filters were found does not tell sets apart.
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
        topics = list(islice(chain.from_iterable(groups), FORGET_AT_ONCE + 1))
        if len(topics) > FORGET_AT_ONCE:
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
        """Free some of what was forgotten: more than one route that is found leaves behind."""
        waste = self._waste
        for _ in range(FREED_AT_ONCE):
            if not waste:
                break
            if not waste[-1]:
                waste.pop()
                continue
            _, value = waste[-1].popitem()
            if hasattr(value, "popitem"):  # to be freed piece by piece, too
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
        """Count in which `Destinations` a route begins or ends to be: each costs memory once."""
        for destinations in (route.plain, route.unacked, route.acked, route.run):
            if destinations is not None:
                before = destinations.used
                destinations.used = before + change
                if not before or not destinations.used:
                    nbytes = DESTINATION_BYTES + 8 * len(destinations.holders)
                    self.cached_bytes += change * nbytes


def _first_levels(topic: str) -> tuple[str, str]:
    """Return the first two levels of a topic; of one that has no second, "" for that."""
    first, _, rest = topic.partition("/")
    return first, rest.partition("/")[0]
