"""Routes of messages: each type of exchange, alternates, exchanges behind exchanges, copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene, pika


def routed(scene: Scene, kind: str, keys: Sequence[str], published: Sequence[str]) -> list[str]:
    """Return the keys that get through, of those published, to a queue bound with these keys."""
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel, kind), scene.queue(channel)
    for key in keys:
        channel.queue_bind(queue, exchange, key)
    for key in published:
        scene.publish(channel, key, key.encode(), exchange=exchange)
    return [body.decode() for body in scene.drain(channel, queue)]


@case
def default_exchange_routes_by_name(scene: Scene) -> None:
    channel = scene.confirming()
    queue, other = scene.queue(channel), scene.queue(channel)
    scene.publish(channel, queue, b"a")
    got = scene.take(channel, queue)
    assert (got.method.exchange, got.method.routing_key) == ("", queue)
    assert scene.drain(channel, other) == []


@case
def direct(scene: Scene) -> None:
    keys = ["a", "A", "a.b", "", "aa", "*", "#"]
    assert routed(scene, "direct", ["a", "a.b"], keys) == ["a", "a.b"]


@case
def direct_with_an_empty_key(scene: Scene) -> None:
    assert routed(scene, "direct", [""], ["", "a"]) == [""]


@case
def direct_with_wildcards_means_them(scene: Scene) -> None:
    assert routed(scene, "direct", ["a.*", "#"], ["a.b", "a.*", "#"]) == ["a.*", "#"]


@case
def direct_to_several_queues(scene: Scene) -> None:
    channel = scene.confirming()
    exchange = scene.exchange(channel)
    queues = [scene.queue(channel) for _ in range(3)]
    for queue in queues[:2]:
        channel.queue_bind(queue, exchange, "k")
    scene.publish(channel, "k", b"a", exchange=exchange)
    assert [scene.drain(channel, queue) for queue in queues] == [[b"a"], [b"a"], []]


@case
def fanout_ignores_keys(scene: Scene) -> None:
    assert routed(scene, "fanout", ["a"], ["a", "b", ""]) == ["a", "b", ""]


@case
def topic_literals(scene: Scene) -> None:
    assert routed(scene, "topic", ["a.b"], ["a.b", "a", "a.b.c", "a.B", ""]) == ["a.b"]


@case
def topic_star_is_one_word(scene: Scene) -> None:
    keys = ["a.b", "a.x.b", "a..b", "a.b.", "x", "a.b.c"]
    assert routed(scene, "topic", ["a.*.b"], keys) == ["a.x.b", "a..b"]


@case
def topic_star_alone(scene: Scene) -> None:
    assert routed(scene, "topic", ["*"], ["", "a", "a.b", "."]) == ["a"]


@case
def topic_hash_is_any_number_of_words(scene: Scene) -> None:
    keys = ["a", "a.b", "a.b.c", "b", "a.", "ab"]
    assert routed(scene, "topic", ["a.#"], keys) == ["a", "a.b", "a.b.c", "a."]


@case
def topic_hash_alone_takes_all(scene: Scene) -> None:
    keys = ["", "a", "a.b", "..", "a..b"]
    assert routed(scene, "topic", ["#"], keys) == keys


@case
def topic_hash_at_the_start(scene: Scene) -> None:
    assert routed(scene, "topic", ["#.z"], ["z", "a.z", "a.b.z", "z.a", "az"]) == [
        "z",
        "a.z",
        "a.b.z",
    ]


@case
def topic_hash_in_the_middle(scene: Scene) -> None:
    keys = ["a.z", "a.b.z", "a.b.c.z", "a", "z", "a.z.z", "a.z.b"]
    assert routed(scene, "topic", ["a.#.z"], keys) == ["a.z", "a.b.z", "a.b.c.z", "a.z.z"]


@case
def topic_two_hashes(scene: Scene) -> None:
    keys = ["m", "a.m", "m.a", "a.m.b.c", "a.b"]
    assert routed(scene, "topic", ["#.m.#"], keys) == ["m", "a.m", "m.a", "a.m.b.c"]


@case
def topic_star_and_hash(scene: Scene) -> None:
    assert routed(scene, "topic", ["*.#"], ["", "a", "a.b", "a.b.c"]) == ["a", "a.b", "a.b.c"]


@case
def topic_hash_and_star(scene: Scene) -> None:
    assert routed(scene, "topic", ["#.*.b"], ["b", "a.b", "x.a.b", "a.b.c"]) == ["a.b", "x.a.b"]


@case
def topic_empty_key(scene: Scene) -> None:
    assert routed(scene, "topic", [""], ["", "a", "."]) == [""]


@case
def topic_wildcards_within_words_are_literal(scene: Scene) -> None:
    assert routed(scene, "topic", ["a*.b"], ["ax.b", "a*.b"]) == ["a*.b"]


@case
def topic_wildcards_in_keys_are_literal(scene: Scene) -> None:
    assert routed(scene, "topic", ["a.b"], ["a.*", "a.#", "#", "*.*"]) == []


@case
def topic_slashes_are_letters(scene: Scene) -> None:
    keys = ["a/b.c", "a/c", "a.b/c"]
    assert routed(scene, "topic", ["a/b.*", "*.b/c"], keys) == ["a/b.c", "a.b/c"]


@case
def topic_several_patterns_make_one_copy(scene: Scene) -> None:
    assert routed(scene, "topic", ["#", "a.*", "a.b", "*.b"], ["a.b"]) == ["a.b"]


@case
def topic_unbound_pattern_is_gone(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel, "topic"), scene.queue(channel)
    channel.queue_bind(queue, exchange, "a.#")
    channel.queue_bind(queue, exchange, "a.b")
    channel.queue_unbind(queue, exchange, "a.#")
    for key in ("a.b", "a.c"):
        scene.publish(channel, key, key.encode(), exchange=exchange)
    assert scene.drain(channel, queue) == [b"a.b"]


@case
def topic_predeclared(scene: Scene) -> None:
    channel = scene.confirming()
    queue, stem = scene.queue(channel), scene.name("t")
    channel.queue_bind(queue, "amq.topic", f"{stem}.*.#")
    for key in (f"{stem}.a", f"{stem}.a.b.c", stem):
        scene.publish(channel, key, key.encode(), exchange="amq.topic")
    assert scene.drain(channel, queue) == [f"{stem}.a".encode(), f"{stem}.a.b.c".encode()]


@case
def topic_predeclared_with_a_hash_in_the_middle(scene: Scene) -> None:
    channel = scene.confirming()
    queue, stem = scene.queue(channel), scene.name("t")
    channel.queue_bind(queue, "amq.topic", f"{stem}.#.z")
    for key in (f"{stem}.z", f"{stem}.a.b.z", f"{stem}.a"):
        scene.publish(channel, key, key.encode(), exchange="amq.topic", content_type="x/y")
    assert scene.take(channel, queue).properties.content_type == "x/y"
    assert scene.drain(channel, queue) == [f"{stem}.a.b.z".encode()]


# ---- Headers -------------------------------------------------------------------------------------


Headers = list[dict[str, Any]]


def matched(scene: Scene, binding: Mapping[str, Any], *sent: Mapping[str, Any] | None) -> list[int]:
    """Return the places of those headers that a binding with these arguments matches."""
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel, "headers"), scene.queue(channel)
    channel.queue_bind(queue, exchange, "", dict(binding))
    for place, headers in enumerate(sent):
        scene.publish(channel, "k", b"%d" % place, exchange=exchange, headers=headers)
    return [int(body) for body in scene.drain(channel, queue)]


@case
def headers_all(scene: Scene) -> None:
    binding = {"x-match": "all", "a": 1, "b": "two"}
    sent: Headers = [
        {"a": 1, "b": "two"},
        {"a": 1},
        {"a": 1, "b": "two", "c": 3},
        {"a": 2, "b": "two"},
        {},
    ]
    assert matched(scene, binding, *sent) == [0, 2]


@case
def headers_any(scene: Scene) -> None:
    binding = {"x-match": "any", "a": 1, "b": "two"}
    sent: Headers = [{"a": 1}, {"b": "two"}, {"a": 2, "b": "x"}, {"c": 1}, {"a": 2, "b": "two"}]
    assert matched(scene, binding, *sent) == [0, 1, 4]


@case
def headers_match_all_by_default(scene: Scene) -> None:
    assert matched(scene, {"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2}) == [1]


@case
def headers_without_a_value_match_presence(scene: Scene) -> None:
    sent: Headers = [{"a": 1}, {"a": "x"}, {"b": 1}, {"a": None}]
    assert matched(scene, {"x-match": "all", "a": None}, *sent) == [0, 1, 3]


@case
def headers_compare_types(scene: Scene) -> None:
    sent: Headers = [{"a": 1}, {"a": "1"}, {"a": True}]
    assert matched(scene, {"x-match": "all", "a": "1"}, *sent) == [1]


@case
def headers_numbers_of_any_width(scene: Scene) -> None:
    # pika encodes the first as 'I' and the second as 'l' where it is as large as that.
    sent: Headers = [{"a": 5_000_000_000}, {"a": 5}]
    assert matched(scene, {"x-match": "all", "a": 5_000_000_000}, *sent) == [0]


@case
def headers_starting_with_x_are_ignored(scene: Scene) -> None:
    sent: Headers = [{"a": 1}, {"a": 1, "x-b": 2}, {"x-b": 2}]
    assert matched(scene, {"x-match": "all", "a": 1, "x-b": 2}, *sent) == [0, 1]


@case
def headers_all_with_x(scene: Scene) -> None:
    sent: Headers = [{"a": 1}, {"a": 1, "x-b": 2}, {"x-b": 2}]
    assert matched(scene, {"x-match": "all-with-x", "a": 1, "x-b": 2}, *sent) == [1]


@case
def headers_any_with_x(scene: Scene) -> None:
    sent: Headers = [{"a": 2}, {"a": 2, "x-b": 2}, {"x-b": 3}]
    assert matched(scene, {"x-match": "any-with-x", "a": 1, "x-b": 2}, *sent) == [1]


@case
def headers_of_a_message_without_any(scene: Scene) -> None:
    assert matched(scene, {"x-match": "all", "a": 1}, None, {}) == []


@case
def headers_all_of_nothing(scene: Scene) -> None:
    assert matched(scene, {"x-match": "all"}, None, {"a": 1}) == [0, 1]


@case
def headers_any_of_nothing(scene: Scene) -> None:
    assert matched(scene, {"x-match": "any"}, None, {"a": 1}) == []


@case
def headers_ignore_the_key(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel, "headers"), scene.queue(channel)
    channel.queue_bind(queue, exchange, "some.key", {"a": 1})
    scene.publish(channel, "other", b"a", exchange=exchange, headers={"a": 1})
    assert scene.drain(channel, queue) == [b"a"]


@case
def headers_unknown_way_to_match_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange, queue = scene.exchange(channel, "headers"), scene.queue(channel)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - Invalid x-match field value"):
        channel.queue_bind(queue, exchange, "", {"x-match": "some"})


@case
def headers_way_to_match_of_another_type_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange, queue = scene.exchange(channel, "headers"), scene.queue(channel)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - Invalid x-match field type"):
        channel.queue_bind(queue, exchange, "", {"x-match": 1})


# ---- Alternate exchanges -------------------------------------------------------------------------


@case
def alternate_takes_what_is_unroutable(scene: Scene) -> None:
    channel = scene.confirming()
    alternate = scene.exchange(channel, "fanout")
    exchange = scene.exchange(channel, "direct", {"alternate-exchange": alternate})
    routed_to, other = scene.queue(channel), scene.queue(channel)
    channel.queue_bind(routed_to, exchange, "k")
    channel.queue_bind(other, alternate)
    for key in ("k", "z"):
        scene.publish(channel, key, key.encode(), exchange=exchange)
    assert scene.drain(channel, routed_to) == [b"k"]
    got = scene.take(channel, other)
    assert (got.body, got.method.exchange, got.method.routing_key) == (b"z", exchange, "z")


@case
def alternate_makes_a_mandatory_message_routed(scene: Scene) -> None:
    channel = scene.confirming()
    alternate = scene.exchange(channel, "fanout")
    exchange = scene.exchange(channel, "direct", {"alternate-exchange": alternate})
    queue = scene.queue(channel)
    channel.queue_bind(queue, alternate)
    channel.basic_publish(exchange, "z", b"a", mandatory=True)
    assert scene.drain(channel, queue) == [b"a"]


@case
def alternate_that_routes_nowhere_returns(scene: Scene) -> None:
    channel = scene.confirming()
    alternate = scene.exchange(channel, "fanout")
    exchange = scene.exchange(channel, "direct", {"alternate-exchange": alternate})
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(exchange, "z", b"a", mandatory=True)


@case
def alternate_need_not_exist(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.name("late")
    exchange = scene.exchange(channel, "direct", {"alternate-exchange": name})
    scene.publish(channel, "z", b"a", exchange=exchange)
    scene.exchange(channel, "fanout", exchange=name)
    queue = scene.queue(channel)
    channel.queue_bind(queue, name)
    scene.publish(channel, "z", b"b", exchange=exchange)
    assert scene.drain(channel, queue) == [b"b"]


@case
def alternates_follow_each_other(scene: Scene) -> None:
    channel = scene.confirming()
    last = scene.exchange(channel, "fanout")
    middle = scene.exchange(channel, "direct", {"alternate-exchange": last})
    first = scene.exchange(channel, "direct", {"alternate-exchange": middle})
    queue = scene.queue(channel)
    channel.queue_bind(queue, last)
    scene.publish(channel, "z", b"a", exchange=first)
    assert scene.drain(channel, queue) == [b"a"]


@case
def alternates_in_a_circle_end(scene: Scene) -> None:
    channel = scene.confirming()
    names = [scene.name(), scene.name()]
    for name, other in (names, names[::-1]):
        scene.exchange(channel, "direct", {"alternate-exchange": other}, exchange=name)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(names[0], "z", b"a", mandatory=True)


@case
def alternate_of_another_type_is_406(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED - invalid type"):
        scene.exchange(channel, "direct", {"alternate-exchange": 5})


# ---- Exchanges behind exchanges ------------------------------------------------------------------


@case
def exchange_to_exchange(scene: Scene) -> None:
    channel = scene.confirming()
    first, second = scene.exchange(channel, "topic"), scene.exchange(channel, "direct")
    queue = scene.queue(channel)
    channel.exchange_bind(second, first, "a.*")
    channel.queue_bind(queue, second, "a.b")
    for key in ("a.b", "a.c", "b.b"):
        scene.publish(channel, key, key.encode(), exchange=first)
    got = scene.take(channel, queue)
    assert (got.body, got.method.exchange) == (b"a.b", first)
    assert scene.drain(channel, queue) == []


@case
def exchange_unbound_from_exchange(scene: Scene) -> None:
    channel = scene.confirming()
    first, second = scene.exchange(channel, "fanout"), scene.exchange(channel, "fanout")
    queue = scene.queue(channel)
    channel.exchange_bind(second, first)
    channel.queue_bind(queue, second)
    channel.exchange_unbind(second, first)
    scene.publish(channel, "", b"a", exchange=first)
    assert scene.drain(channel, queue) == []


@case
def exchanges_in_a_circle(scene: Scene) -> None:
    channel = scene.confirming()
    first, second = scene.exchange(channel, "fanout"), scene.exchange(channel, "fanout")
    queue = scene.queue(channel)
    channel.exchange_bind(second, first)
    channel.exchange_bind(first, second)
    channel.queue_bind(queue, second)
    scene.publish(channel, "", b"a", exchange=first)
    assert scene.drain(channel, queue) == [b"a"]


@case
def exchange_bound_to_itself(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel, "fanout"), scene.queue(channel)
    channel.exchange_bind(exchange, exchange)
    channel.queue_bind(queue, exchange)
    scene.publish(channel, "", b"a", exchange=exchange)
    assert scene.drain(channel, queue) == [b"a"]


@case
def two_ways_to_a_queue_make_one_copy(scene: Scene) -> None:
    channel = scene.confirming()
    source = scene.exchange(channel, "fanout")
    queue = scene.queue(channel)
    for _ in range(2):
        middle = scene.exchange(channel, "fanout")
        channel.exchange_bind(middle, source)
        channel.queue_bind(queue, middle)
    channel.queue_bind(queue, source)
    scene.publish(channel, "", b"a", exchange=source)
    assert scene.drain(channel, queue) == [b"a"]


@case
def exchange_bound_to_a_missing_one_is_404(scene: Scene) -> None:
    channel = scene.channel()
    exchange, name = scene.exchange(channel), scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.exchange_bind(exchange, name, "k")


@case
def missing_exchange_bound_is_404(scene: Scene) -> None:
    channel = scene.channel()
    exchange, name = scene.exchange(channel), scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.exchange_bind(name, exchange, "k")


@case
def exchange_bound_to_the_default_is_403(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel)
    with scene.refused(
        channel, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"
    ):
        channel.exchange_bind(exchange, "", "k")


@case
def deleted_destination_is_unbound(scene: Scene) -> None:
    channel = scene.confirming()
    source, middle = scene.exchange(channel, "fanout"), scene.exchange(channel, "fanout")
    queue = scene.queue(channel)
    channel.exchange_bind(middle, source)
    channel.queue_bind(queue, middle)
    channel.exchange_delete(middle)
    scene.exchange(channel, "fanout", exchange=middle)
    channel.queue_bind(queue, middle)
    scene.publish(channel, "", b"a", exchange=source)
    assert scene.drain(channel, queue) == []


@case
def exchange_behind_the_predeclared_topic(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, queue, stem = scene.exchange(channel, "direct"), scene.queue(channel), scene.name("t")
    channel.exchange_bind(exchange, "amq.topic", f"{stem}.#")
    channel.queue_bind(queue, exchange, f"{stem}.a")
    for key in (f"{stem}.a", f"{stem}.b"):
        scene.publish(channel, key, key.encode(), exchange="amq.topic")
    assert scene.drain(channel, queue) == [f"{stem}.a".encode()]


# ---- Copies --------------------------------------------------------------------------------------


@case
def cc_routes_by_more_keys(scene: Scene) -> None:
    channel = scene.confirming()
    queues = [scene.queue(channel) for _ in range(3)]
    scene.publish(channel, queues[0], b"a", headers={"CC": queues[1:]})
    for queue in queues:
        got = scene.take(channel, queue)
        assert got.method.routing_key == queues[0]
        assert got.properties.headers["CC"] == queues[1:]


@case
def bcc_routes_and_is_taken_off(scene: Scene) -> None:
    channel = scene.confirming()
    first, second = scene.queue(channel), scene.queue(channel)
    scene.publish(channel, first, b"a", headers={"BCC": [second], "kept": 1})
    for queue in (first, second):
        assert scene.take(channel, queue).properties.headers == {"kept": 1}


@case
def cc_to_the_same_queue_makes_one_copy(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a", headers={"CC": [queue], "BCC": [queue]})
    assert scene.drain(channel, queue) == [b"a"]


@case
def cc_of_another_type_is_406(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED - invalid message"):
        scene.publish(channel, scene.name(), b"a", headers={"CC": "not-a-list"})


@case
def cc_at_a_topic_exchange(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel, "topic"), scene.queue(channel)
    channel.queue_bind(queue, exchange, "b.*")
    scene.publish(channel, "a.a", b"a", exchange=exchange, headers={"CC": ["b.c"]})
    assert scene.drain(channel, queue) == [b"a"]
