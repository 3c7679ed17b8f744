"""amq.topic and the dataspace: MQTT's publications in queues, and AMQP's in mailboxes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import NO_LIMIT, Outcome, Quota
from clearfunds.dataspace import Batch, Mailbox, Publication, TopicFilter, topic_matches
from clearfunds.dataspace.exchanges import (
    HostError,
    Message,
    filter_of,
    key_of,
    pattern_matches,
    topic_of,
)
from clearfunds.dataspace.queues import Queue
from tests.dataspace.conftest import STEADY
from tests.dataspace.exchanges.conftest import WALL, Bench
from tests.dataspace.queues.conftest import Heard

words = st.text("ab/+*#$.", max_size=3)
texts = st.lists(words, max_size=4).map(".".join)


def got(mailbox: Mailbox[Any]) -> list[Publication]:
    """Return what has come, and take it."""
    found: list[Publication] = []
    while next(mailbox.loans(), None) is not None:
        with mailbox.receive_nowait() as events:
            found += events
    return found


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        ("a.b.c", "a/b/c"),
        ("a/b.c", "a.b/c"),
        ("a..b", "a//b"),
        (".", "/"),
        ("a+b", "a*b"),
        ("", None),
        ("a.*", None),
        ("a.#", None),
        ("a\0", None),
        ("$SYS.load", None),
        ("\udcff", None),
    ],
)
def test_keys_and_topics(key: str, topic: str | None) -> None:
    assert topic_of(key) == topic
    if topic is not None:
        assert key_of(topic) == key


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("a.b", "a/b"),
        ("a.*.b", "a/+/b"),
        ("a.#", "a/#"),
        ("#", "#"),
        ("#.a", "#"),
        ("a.#.b.*", "a/#"),
        ("a/b.*", "a.b/+"),
        ("a+.b", "a*/b"),
        ("a*.b", None),
        ("a#.b", None),
        ("", None),
        ("\udcff", None),
    ],
)
def test_binding_keys_and_filters(key: str, text: str | None) -> None:
    assert filter_of(key) == text


@STEADY
@given(texts, st.lists(st.text("ab/*.", max_size=3), max_size=4).map("/".join))
def test_a_filter_covers_its_key(key: str, topic: str) -> None:
    """Every topic that matches the key matches the filter; both are the same without inner #."""
    if not topic:
        return
    text = filter_of(key)
    matches = pattern_matches(key, key_of(topic))
    if text is None:
        assert not matches
    else:
        TopicFilter(text)
        if matches:
            assert topic_matches(text, topic)
        if "#" not in key.split(".")[:-1]:
            assert topic_matches(text, topic) is matches


# -- from MQTT -------------------------------------------------------------------------------------


def test_publications_reach_queues(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "sensors.#"))
    bench.queue("b", ("amq.topic", "*.kitchen"), ("amq.topic", "sensors.#.warm"))
    bench.publish_topic("sensors/kitchen", "one", qos=1, properties=b"mqtt's")
    bench.publish_topic("sensors/hall/shelf/warm", "two", qos=0)
    bench.publish_topic("sensors", "three", qos=2)
    bench.publish_topic("alarm", "none")
    first, second, third = bench.messages("a")
    assert (first.exchange, first.routing_key, first.body) == (
        "amq.topic", "sensors.kitchen", b"one"
    )  # fmt: skip
    assert [each.persistent for each in (first, second, third)] == [True, False, True]
    assert bench.host.properties.headers(first) == {"mqtt": "mqtt's"}
    assert bench.reached() == {"b": ["one", "two"]}
    assert bench.host.topics.received == 3
    assert bench.dataspace.unrouted == 1


@pytest.mark.rule(2)
@pytest.mark.rule(3)
def test_the_publisher_pays(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "a.#"))
    bench.queue("b", ("amq.topic", "#"))
    bench.publish_topic("a/b", "12345")
    assert bench.publisher.debt_items == 2
    (message, _) = (*bench.messages("a"), *bench.messages("b"))
    assert bench.publisher.debt_items == 0
    assert bench.publisher.peak_items >= 3  # (rule 3)
    assert message.nbytes * 2 <= bench.publisher.peak_bytes


def test_retained_publications_are_not_replayed(bench: Bench) -> None:
    bench.publish_topic("a", retain=True)
    bench.queue("a", ("amq.topic", "#"))
    assert bench.reached() == {}
    bench.publish_topic("a", "new", retain=True)
    assert bench.reached() == {"a": ["new"]}


def test_a_publication_keeps_its_expiry(bench: Bench) -> None:
    declared = bench.queue("a", ("amq.topic", "#"))
    bench.publish_topic("a", "one", expires=WALL + 10)
    bench.publish_topic("a", "two", expires=WALL + 20)
    bench.wait(10)
    assert len(declared.queue) == 1
    (message,) = bench.messages("a")
    assert message.expiration == 20


def test_confirms_wait_for_the_queues(bench: Bench) -> None:
    bench.queue(
        "a", ("amq.topic", "#"), arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    first, second = Heard(), Heard()
    for heard in (first, second):
        with bench.publisher.turn(confirm=heard) as turn:
            turn.publish(bench.dataspace, Publication("a", b"m", qos=1))
    assert (first.answers, second.answers) == (["taken"], ["queue a is full"])


def test_runs_are_taken_apart(bench: Bench) -> None:
    declared = bench.queue("a", ("amq.topic", "a.#"), ("amq.topic", "#"))
    events = [Publication("a/b", b"%d" % number) for number in range(3)]
    batch = Batch(b"x" * 50, 3, lambda _: events)
    holders = bench.dataspace.route_of("a/b").run
    assert holders is not None
    assert len(holders.holders) == 1
    bench.dataspace.route_run(bench.publisher, batch, holders.holders)
    for holder in holders.holders:
        holder.ready()
    bench.ledger.audit()
    assert bench.publisher.debt_items == 3
    assert len(declared.queue) == 3
    assert bench.take("a") == ["0", "1", "2"]


def test_exchanges_behind_it(bench: Bench) -> None:
    host = bench.host
    host.declare_exchange("x", "direct")
    host.declare_exchange("h", "headers")
    host.bind_exchange("x", "amq.topic", "a.*")
    host.bind_exchange("h", "x", "a.b")
    host.bind_exchange("amq.topic", "x", "a.b")  # round and round
    bench.queue("a", ("x", "a.b"), ("h", "", {"mqtt": "p"}))
    bench.queue("b", ("h", "", {"mqtt": "other"}))
    bench.publish_topic("a/b", properties=b"p")
    bench.publish_topic("a/b", "without")
    bench.publish_topic("a/c", "nowhere")
    assert bench.reached() == {"a": ["m", "without"]}


def test_only_topics_that_match_the_whole_key_have_a_recipient(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "a.#.b"))
    route_of = bench.dataspace.route_of
    assert [len(route_of(topic).plain.holders) for topic in ("a/b", "a/x/b", "a/x", "b")] == [
        1, 1, 0, 0
    ]  # fmt: skip


def test_a_binding_that_ends(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "a"), ("amq.topic", "a", {"x": 1}))
    bench.queue("b", ("amq.topic", "a"), ("amq.topic", ""), ("amq.topic", "a*"))
    assert bench.dataspace.statistics().subscriptions == 1
    bench.host.unbind_queue("a", "amq.topic", "a")
    bench.host.delete_queue("b")
    bench.publish_topic("a", "one")
    bench.host.unbind_queue("a", "amq.topic", "a", {"x": 1})
    bench.publish_topic("a", "two")
    assert bench.reached() == {"a": ["one"]}
    assert bench.dataspace.statistics().subscriptions == 0


@pytest.mark.rule(16)
def test_a_quota_that_is_used_up(bench: Bench) -> None:
    bench.ledger.quota = Quota(items=1)
    bench.queue("a", ("amq.topic", "a"))
    with pytest.raises(HostError, match=r"cannot bind to exchange 'amq\.topic' with key 'b': host"):
        bench.host.bind_queue("a", "amq.topic", "b")
    assert bench.host.bindings == 1
    bench.host.bind_queue("a", "amq.topic", "a", {"same": "key"})
    assert bench.publish("amq.topic", "b") is False


def test_long_topics_have_no_key(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "#"))
    bench.publish_topic("x" * 255, "one")
    bench.publish_topic("é" * 128, "two")
    assert bench.reached() == {"a": ["one"]}


class BrokenError(Exception):
    """A fault of the code."""


def test_a_queue_that_fails_costs_the_others_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.queue("a", ("amq.topic", "#")).queue
    bench.queue("b", ("amq.topic", "#"))
    hold = Queue.hold

    def broken(queue: Queue, *args: Any) -> None:
        if queue is first:
            raise BrokenError
        hold(queue, *args)

    monkeypatch.setattr(Queue, "hold", broken)
    bench.publish_topic("a/b")
    monkeypatch.undo()
    assert "a publication on a/b does not reach all queues" in caplog.text
    assert bench.reached() == {"b": ["m"]}
    assert bench.ledger.repaid_items[Outcome.REJECTED] == 1


# -- to MQTT ---------------------------------------------------------------------------------------


def test_messages_reach_subscribers(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "a.#"))
    with bench.dataspace.subscribed(bench.account, TopicFilter("a/+")) as mailbox:
        assert bench.publish("amq.topic", "a.b", "one", expiration=5.0)
        assert bench.publish("amq.topic", "a.c", "two", persistent=True, headers={"h": 1})
        assert bench.publish("amq.topic", "a.d.e", "three")
        assert bench.publisher.debt_items == 5
        first, second = got(mailbox)
    assert (first.topic, first.payload, first.qos, first.retain) == ("a/b", b"one", 0, False)
    assert (first.properties, first.expires) == (b"amqp", WALL + 5)
    assert (second.topic, second.payload) == ("a/c", b"two")
    # The queue has each once, with the properties that it came with.
    messages = bench.messages("a")
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    assert bench.host.properties.headers(messages[1]) == {"h": 1}
    assert bench.host.topics.received == 0
    assert bench.host.topics.sent == 2


def test_subscribers_count_as_somebody(bench: Bench) -> None:
    with bench.dataspace.subscribed(bench.account, TopicFilter("a/#")) as mailbox:
        assert bench.publish("amq.topic", "a.b")
        assert not bench.publish("amq.topic", "b")
        assert bench.host.statistics().unrouted == 1
        assert len(got(mailbox)) == 1
    assert not bench.publish("amq.topic", "a.b")
    assert not bench.publish("amq.topic", "")  # the name of no topic


def test_observers_by_pattern_count_too(bench: Bench) -> None:
    with bench.dataspace.subscribed(bench.account, Publication) as mailbox:
        assert bench.publish("amq.topic", "a.b")
        assert bench.publish("amq.topic", "a.c", persistent=True)
        assert [(each.topic, each.qos) for each in got(mailbox)] == [("a/b", 0), ("a/c", 1)]


def test_by_way_of_other_exchanges(bench: Bench) -> None:
    host = bench.host
    arguments = {"alternate-exchange": "amq.topic"}
    host.declare_exchange("x", "fanout")
    host.declare_exchange("y", "direct", arguments=arguments)
    host.bind_exchange("amq.topic", "x")
    with bench.dataspace.subscribed(bench.account, TopicFilter("#")) as mailbox:
        assert bench.publish("x", "a.b")
        assert bench.publish("y", "a.c", headers={"CC": ["a.d"], "BCC": ["a.d"]})
        assert [each.topic for each in got(mailbox)] == ["a/b", "a/c", "a/d"]


def test_other_exchanges_do_not_lead_there(bench: Bench) -> None:
    bench.host.declare_exchange("x", "fanout")
    bench.host.bind_exchange("x", "amq.direct", "a")
    with bench.dataspace.subscribed(bench.account, TopicFilter("#")) as mailbox:
        assert not bench.publish("", "a")
        assert not bench.publish("amq.direct", "a", headers={"CC": ["a.b"]})
        assert got(mailbox) == []


@pytest.mark.rule(4)
def test_a_turn_that_fails(bench: Bench) -> None:
    with bench.dataspace.subscribed(bench.account, TopicFilter("#")) as mailbox:
        with pytest.raises(ZeroDivisionError), bench.publisher.turn() as turn:  # noqa: PT012
            bench.host.publish(turn, "amq.topic", Message("amq.topic", "a", b"", b"m"))
            turn.act(lambda _: 1 // 0)  # type: ignore[arg-type]
        assert got(mailbox) == []
    assert not bench.host.topics._own  # pyright: ignore[reportPrivateUsage]
    assert bench.host.topics.sent == 0


def test_several_messages_in_one_turn(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "#"))
    with bench.dataspace.subscribed(bench.account, TopicFilter("#")) as mailbox:
        with bench.publisher.turn() as turn:
            for number in range(3):
                message = Message("amq.topic", f"a.{number}", b"", b"%d" % number)
                bench.host.publish(turn, "amq.topic", message)
            # MQTT's, in the same turn, are told apart.
            turn.publish(bench.dataspace, Publication("a/b", b"mqtt"))
        assert [each.topic for each in got(mailbox)] == ["a/0", "a/1", "a/2", "a/b"]
    assert sorted(bench.take("a")) == ["0", "1", "2", "mqtt"]
    assert not bench.host.topics._own  # pyright: ignore[reportPrivateUsage]


# -- several hosts ---------------------------------------------------------------------------------


def test_each_host_has_its_own_topics() -> None:
    bench = Bench()
    press = bench.another("press", topic_prefix="press/")
    press.declare_queue("a")
    press.bind_queue("a", "amq.topic", "#")
    bench.queue("a", ("amq.topic", "#"))
    assert bench.publish("amq.topic", "news", "from press", host=press)
    bench.publish_topic("press/news", "mqtt")
    bench.publish_topic("press", "their parent")
    bench.publish_topic("press/", "without a word")
    bench.publish_topic("other", "other")
    host, bench.host = bench.host, press
    found = bench.messages("a")
    assert [message.body for message in found] == [b"from press", b"mqtt"]
    assert {message.routing_key for message in found} == {"news"}
    bench.host = host
    assert bench.take("a") == ["from press", "mqtt", "their parent", "without a word", "other"]
    press.delete_queue("a")
    bench.close()


def test_what_a_host_may_read_and_publish() -> None:
    def is_open(topic: str) -> bool:
        return topic.startswith("open/")

    bench = Bench(may_read=is_open, may_publish=is_open)
    bench.queue("a", ("amq.topic", "#"))
    bench.publish_topic("open/a", "one")
    bench.publish_topic("closed/a", "two")
    with bench.dataspace.subscribed(bench.account, TopicFilter("#")) as mailbox:
        assert bench.publish("amq.topic", "closed.b", "three")  # to its own queues, always
        assert bench.publish("amq.topic", "open.b", "four")
        assert [each.topic for each in got(mailbox)] == ["open/b"]
    assert bench.reached() == {"a": ["one", "three", "four"]}
    assert bench.host.topics.topic_of("closed.b") is None
    bench.close()


def test_queues_of_one_name_in_two_hosts() -> None:
    bench = Bench()
    other = bench.another("b/c")
    first, second = bench.queue("a").queue, other.declare_queue("a").queue
    assert (first.name, second.name) == ("a", "b/c/a")
    assert first.account is not second.account
    assert bench.publish("", "a", host=other)
    assert (len(first), len(second)) == (0, 1)
    second.delete()
    bench.close()


def test_a_publisher_may_be_closed_meanwhile(bench: Bench) -> None:
    bench.queue("a", ("amq.topic", "#"))
    short = bench.ledger.open("short", limit=NO_LIMIT)
    with short.turn() as turn:
        turn.publish(bench.dataspace, Publication("a", b"m"))
        short.close()
    bench.ledger.audit()
    assert short.debt_items == 1
    assert bench.take("a") == ["m"]
    assert short.debt_items == 0
