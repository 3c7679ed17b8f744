"""Routes: whom a topic concerns, and a cache of that which is never wrong."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import Holder, Ledger, QuotaExceededError
from clearfunds.dataspace import Mailbox, Route, Routes, Subscription, TopicFilter, topic_matches
from clearfunds.dataspace._routes import DESTINATION_BYTES, HOLDER_BYTES, MAX_FORGOTTEN
from tests import memory
from tests.dataspace.conftest import STEADY, inside, is_empty

LEDGER = Ledger()
HOLDERS = [Mailbox(LEDGER, f"holder {n}") for n in range(4)]
ACKED = [Mailbox(LEDGER, f"acked {n}") for n in range(4)]
TOPICS = ("a", "a/b", "a/b/c", "b", "b/b", "a/", "/a", "$s", "$s/a", "")
FILTERS = ("a", "a/b", "a/+", "a/#", "+", "#", "+/b", "+/#", "b/+", "$s/#", "$s/+", "/+", "a/b/c")


def subscription(text: str, holder: int, *, acked: bool = False) -> Subscription:
    return Subscription(TopicFilter(text), HOLDERS[holder], ACKED[holder] if acked else None)


def parts(route: Route | None) -> tuple[str, set[str], set[str], set[str]]:
    """Return the topic and the names of those it concerns."""
    assert route is not None
    names: list[set[str]] = []
    for destinations in (route.plain, route.unacked, route.acked):
        assert len(set(destinations.holders)) == len(destinations.holders)
        names.append({h.name for h in destinations.holders if isinstance(h, Holder)})
        assert len(names[-1]) == len(destinations.holders)
    return route.topic, names[0], names[1], names[2]


def expected(
    topic: str, subscriptions: list[Subscription]
) -> tuple[str, set[str], set[str], set[str]]:
    """Return the same by brute force."""
    concerned = [s for s in subscriptions if topic_matches(s.filter.text, topic)]
    holders = [(s.holder, s.acked) for s in concerned if isinstance(s.holder, Holder)]
    plain = {holder.name for holder, _ in holders}
    acked = {s.acked.name for s in concerned if isinstance(s.acked, Holder)}
    granted = {holder.name for holder, acks in holders if acks is not None}
    return topic, plain, plain - granted, acked


def topic_of(key: bytes) -> str:
    """Return the topic of a key as MQTT has it: two bytes of length, then the topic."""
    return key[2:].decode()


def test_of_one_consumers_filters_the_one_with_the_highest_quality_counts() -> None:
    routes = Routes()
    outlet, once, twice = HOLDERS[0], HOLDERS[1], HOLDERS[2]
    consumer = object()
    for text, acked, granted in (("a/#", once, 1), ("a/+", twice, 2), ("#", None, 1)):
        routes.subscribe(Subscription(TopicFilter(text), outlet, acked, granted, consumer))
    assert parts(routes.of("a/b")) == ("a/b", {outlet.name}, set(), {twice.name})
    assert parts(routes.of("a/b/c")) == ("a/b/c", {outlet.name}, set(), {once.name})
    assert parts(routes.of("c")) == ("c", {outlet.name}, {outlet.name}, set())


def test_who_is_away_takes_only_what_is_to_be_acknowledged() -> None:
    routes = Routes()
    queue = HOLDERS[1]
    routes.subscribe(Subscription(TopicFilter("a"), None, queue, 2, queue))
    assert parts(routes.of("a")) == ("a", set(), set(), {queue.name})
    assert routes.of("a").run is routes.of("nobody's").run


def test_a_holder_is_there_once_however_many_of_its_filters_match() -> None:
    """[MQTT-3.3.5-1]: and with the highest of the qualities that they were granted."""
    routes = Routes()
    for text, acked in (("a/#", False), ("a/+", True), ("#", False), ("a/b", False)):
        routes.subscribe(subscription(text, 0, acked=acked))
    routes.subscribe(subscription("a/b", 1))
    assert len(routes) == 5
    assert parts(routes.of("a/b")) == ("a/b", {"holder 0", "holder 1"}, {"holder 1"}, {"acked 0"})
    assert parts(routes.of("a/b/c")) == ("a/b/c", {"holder 0"}, {"holder 0"}, set())
    assert parts(routes.of("$s")) == ("$s", set(), set(), set())


def test_the_same_holders_are_the_very_same_destinations() -> None:
    """In whatever order they subscribed, and for every part of a route."""
    routes = Routes()
    for text, holders in (("a", (0, 1, 2)), ("b", (2, 0, 1)), ("c", (0, 1))):
        for holder in holders:
            routes.subscribe(subscription(text, holder))
    assert routes.of("a").plain is routes.of("b").plain
    assert routes.of("a").unacked is routes.of("b").plain
    assert routes.of("a").acked is routes.of("c").acked is routes.of("nobody").plain
    assert routes.of("c").plain is not routes.of("a").plain
    routes.subscribe(subscription("#", 2))
    assert routes.of("c").plain is routes.of("a").plain


def test_destinations_are_forgotten_with_the_last_route() -> None:
    """What is interned keeps no holder alive."""
    routes = Routes()
    mine = subscription("a", 0)
    routes.subscribe(mine)
    interned = inside(routes, "_interned")
    assert len(routes.of("a").plain.holders) == 1
    routes.unsubscribe(mine)
    gc.collect()
    assert len(interned) == 0


def test_a_known_key_is_one_look_up() -> None:
    routes = Routes()
    routes.subscribe(subscription("a/+", 0))
    key = b"\x00\x03a/b"
    route = routes.of_key(key, topic_of)
    assert route is routes.of("a/b")
    assert routes.by_key == {key: route}

    def refuse(key: bytes) -> str:
        raise AssertionError(key)

    assert routes.of_key(key, refuse) is route
    with pytest.raises(UnicodeDecodeError):
        routes.of_key(b"\x00\x01\xff", topic_of)
    assert routes.of_key(b"\x00\x01#", lambda key: None) is None
    assert (routes.cached, len(routes.by_key)) == (1, 1)


def test_a_topic_may_have_a_key_in_several_protocols() -> None:
    routes = Routes()
    keys = [b"\x00\x01a", b"::a"]
    for key in keys:
        assert routes.of_key(key, topic_of) is routes.of("a")
    routes.subscribe(subscription("a", 0))
    assert routes.by_key == {}
    for key in keys:
        assert parts(routes.of_key(key, topic_of)) == ("a", {"holder 0"}, {"holder 0"}, set())


def test_the_first_found_goes_when_the_cache_is_full() -> None:
    routes = Routes(cached=3)
    for topic in ("a", "b", "c", "a", "d"):
        routes.of_key(b"::" + topic.encode(), topic_of)
    assert routes.cached == 3
    assert sorted(routes.by_key) == [b"::b", b"::c", b"::d"]


def test_no_cache_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Routes(cached=0)


def test_unsubscribing_what_is_not_there_is_refused() -> None:
    routes = Routes()
    routes.subscribe(subscription("a/b", 0))
    for text in ("a/b", "a", "x/y"):
        with pytest.raises(KeyError):
            routes.unsubscribe(subscription(text, 0))
    assert len(routes) == 1
    assert parts(routes.of("a/b")) == ("a/b", {"holder 0"}, {"holder 0"}, set())


def test_a_change_forgets_what_it_may_concern_and_no_more() -> None:
    """By the filter's first two levels; without wildcards, one topic."""
    routes = Routes()
    topics = ["a", "a/", "a/b", "a/b/c", "a/c", "b/a", "b", "$s/a"]

    def left_by(text: str) -> set[str]:
        for topic in topics:
            routes.of(topic)
        mine = subscription(text, 0)
        routes.subscribe(mine)
        left = set(inside(routes, "_by_topic"))
        for topic in topics:
            routes.of(topic)
        routes.unsubscribe(mine)
        assert set(inside(routes, "_by_topic")) == left
        return left

    assert left_by("a/b") == set(topics) - {"a/b"}
    assert left_by("a/b/+") == left_by("a/b/#") == set(topics) - {"a/b", "a/b/c"}
    assert left_by("a/#") == left_by("a/+/x") == {"b/a", "b", "$s/a"}
    assert left_by("c/+") == left_by("c") == left_by("a/d/+") == set(topics)
    assert left_by("+/x") == left_by("#") == left_by("+") == set()


def test_a_change_that_may_concern_many_forgets_all_at_once() -> None:
    routes = Routes()
    for n in range(MAX_FORGOTTEN + 1):
        routes.of_key(b"::" + f"a/b/{n}".encode(), topic_of)
    routes.of("b")
    routes.subscribe(subscription("a/c/+", 0))
    assert routes.cached == MAX_FORGOTTEN + 2
    routes.subscribe(subscription("a/b/+", 0))
    assert (routes.cached, routes.by_key, routes.cached_bytes) == (0, {}, 0)
    waste = inside(routes, "_waste")
    assert waste
    for n in range(MAX_FORGOTTEN + 1):
        route = routes.of_key(b"::" + f"a/b/{n}".encode(), topic_of)
        assert parts(route)[1] == {"holder 0"}
    assert not waste


def test_what_is_forgotten_again_and_again_does_not_pile_up() -> None:
    routes = Routes()
    mine = subscription("+/x", 0)
    for n in range(300):
        routes.of_key(b"::" + f"{n}/x".encode(), topic_of)
        routes.subscribe(mine)
        routes.unsubscribe(mine)
        assert len(inside(routes, "_waste")) <= 3


def test_the_cache_is_bounded_in_bytes() -> None:
    """By true cost: deep topics of many bytes take the place of many short ones."""
    routes = Routes(cached_bytes=1 << 20)
    with memory.tracing():
        for n in range(4_000):
            topic = f"{n:05}/" + "/".join("abc" for _ in range(127))
            routes.of_key(len(topic).to_bytes(2, "big") + topic.encode(), topic_of)
        # The keys are made here.
        assert sum(memory.held(__file__)) < 1.25 * (1 << 20)
    assert 400 < routes.cached < 1_000
    assert routes.cached_bytes <= 1 << 20


def test_at_least_one_route_is_cached() -> None:
    routes = Routes(cached_bytes=0)
    for topic in ("a", "b"):
        assert routes.of(topic) is routes.of(topic)
    assert routes.cached == 1
    assert list(routes.by_key) == []


def test_what_routes_share_is_counted_once() -> None:
    routes = Routes()
    for n in range(4):
        routes.subscribe(subscription("#", n))
    routes.of("a")
    alone = routes.cached_bytes
    routes.of("b")
    assert routes.cached_bytes < 2 * alone - 3 * DESTINATION_BYTES // 2
    routes.subscribe(subscription("a", 0))
    routes.subscribe(subscription("b", 0))
    assert (routes.cached, routes.cached_bytes) == (0, 0)


def test_shapes_of_deep_filters_have_a_limit() -> None:
    """Filters with few levels are few by themselves; those without `+` as well."""
    routes = Routes(max_deep_shapes=2)
    deep = ["/".join("abcdefgh"[:place] + "+" + "abcdefgh"[place:]) for place in range(9)]
    kept = [subscription(text, 0) for text in (deep[0], deep[1], deep[1].upper(), *"+#")]
    for each in kept:
        routes.subscribe(each)
    with pytest.raises(QuotaExceededError, match="in 2 different places"):
        routes.subscribe(subscription(deep[2], 0))
    for text in (deep[2].removesuffix("/h"), deep[2].replace("+", "a"), "a/b/c/d/e/f/g/h/i/#"):
        routes.subscribe(subscription(text, 0))
    for each in kept[1:3]:
        routes.unsubscribe(each)
    routes.subscribe(subscription(deep[2], 0))


LOOK = st.tuples(st.just("look"), st.sampled_from(TOPICS), st.booleans())
SUBSCRIBE = st.tuples(
    st.just("subscribe"), st.sampled_from(FILTERS), st.integers(0, 3), st.booleans()
)
UNSUBSCRIBE = st.tuples(st.just("unsubscribe"), st.integers(0))


@STEADY
@given(
    st.lists(LOOK | SUBSCRIBE | UNSUBSCRIBE, max_size=60),
    st.integers(1, 12),
    st.sampled_from([1_000, 5_000, 1 << 20]),
    st.sampled_from([1, 3, MAX_FORGOTTEN]),
)
def test_every_cached_route_is_what_would_be_found_now(
    steps: list[tuple[str, str, bool] | tuple[str, str, int, bool] | tuple[str, int]],
    capacity: int,
    nbytes: int,
    at_once: int,
) -> None:
    """And a change drops those routes that its filter matches."""
    routes = Routes(capacity, cached_bytes=nbytes)
    subscriptions: list[Subscription] = []
    for step in steps:
        before = cached_routes(routes)
        changed: Subscription | None = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clearfunds.dataspace._routes.MAX_FORGOTTEN", at_once)
            match step:
                case ("look", str(topic), bool(by_key)):
                    if by_key:
                        key = len(topic).to_bytes(2, "big") + topic.encode()
                        route = routes.of_key(key, topic_of)
                    else:
                        route = routes.of(topic)
                    assert parts(route) == expected(topic, subscriptions)
                    assert cached_routes(routes)[topic] is route
                    if topic in before:
                        assert route is before[topic]
                case ("subscribe", str(text), int(holder), bool(acked)):
                    changed = subscription(text, holder, acked=acked)
                    routes.subscribe(changed)
                    subscriptions.append(changed)
                case ("unsubscribe", int(place)) if subscriptions:
                    changed = subscriptions.pop(place % len(subscriptions))
                    routes.unsubscribe(changed)
                case _:
                    pass
        cached = cached_routes(routes)
        if changed is not None:
            assert not [t for t in cached if topic_matches(changed.filter.text, t)]
            assert cached.items() <= before.items()
        assert len(routes) == len(subscriptions)
        assert routes.cached == len(cached) <= capacity
        assert routes.cached_bytes <= nbytes or len(cached) == 1
        for topic, route in cached.items():
            assert parts(route) == expected(topic, subscriptions)
        for key, route in routes.by_key.items():
            assert cached[topic_of(key)] is route
        check_bytes(routes, cached)
    for left in subscriptions:
        routes.unsubscribe(left)
    assert is_empty(inside(routes, "_filters"))
    for topic in TOPICS:
        assert parts(routes.of(topic)) == (topic, set(), set(), set())


def cached_routes(routes: Routes) -> dict[str, Route]:
    """Return the routes that are cached, by topic."""
    return {topic: inside(each, "route") for topic, each in inside(routes, "_by_topic").items()}


def check_bytes(routes: Routes, cached: dict[str, Route]) -> None:
    """See that the bytes are those of the routes, and of each of their destinations once."""
    shared = {d for r in cached.values() for d in (r.plain, r.unacked, r.acked, r.run) if d}
    assert routes.cached_bytes == sum(
        inside(each, "nbytes") for each in inside(routes, "_by_topic").values()
    ) + sum(DESTINATION_BYTES + HOLDER_BYTES * len(d.holders) for d in shared)
