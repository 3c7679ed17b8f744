"""Dead letters: where they go, and what their headers say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from clearfunds.dataspace import TopicFilter
from clearfunds.dataspace.exchanges import Message
from clearfunds.dataspace.queues import Channel, PrefetchWindow
from tests.dataspace.exchanges.conftest import WALL, Bench, Worker, properties_of

TIME = datetime.fromtimestamp(WALL, UTC)


def headers_of(bench: Bench, message: Message) -> Mapping[str, Any]:
    return bench.host.properties.headers(message)


def dead(bench: Bench, name: str = "dead") -> Message:
    """Return the one message in a queue."""
    (message,) = bench.messages(name)
    return message


def reject(bench: Bench, name: str, *, requeue: bool = False) -> None:
    delivery = bench.host.queues[name].queue.get(Channel("test"))
    assert delivery is not None
    delivery.reject(requeue=requeue)
    bench.ledger.audit()


def expire(bench: Bench, name: str) -> None:
    bench.wait(1.0)


def overflow(bench: Bench, name: str) -> None:
    bench.publish("x", "k", "another")
    bench.take(name)


def fail(bench: Bench, name: str) -> None:
    reject(bench, name, requeue=True)
    reject(bench, name, requeue=True)


@pytest.mark.rule(2)
@pytest.mark.parametrize(
    ("reason", "arguments", "die"),
    [
        ("rejected", {}, reject),
        ("expired", {"x-message-ttl": 500}, expire),
        ("maxlen", {"x-max-length": 1}, overflow),
        ("delivery_limit", {"x-delivery-limit": 1}, fail),
    ],
)
def test_the_headers_say_why(bench: Bench, reason: str, arguments: Any, die: Any) -> None:
    bench.host.declare_exchange("x", "direct")
    bench.host.declare_exchange("dlx", "fanout")
    bench.queue("dead", ("dlx",))
    bench.queue("a", ("x", "k"), arguments={"x-dead-letter-exchange": "dlx", **arguments})
    properties = properties_of({"own": 1}, type="t", expiration="60000")
    bench.publish("x", "k", "body", properties=properties, expiration=60.0, persistent=True)
    die(bench, "a")
    assert bench.publisher.debt_items == 1  # who has caused it pays on
    message = dead(bench)
    assert (message.exchange, message.routing_key, message.body) == ("dlx", "k", b"body")
    assert (message.expiration, message.persistent) == (None, True)
    assert bench.host.queues["a"].queue.counters.dead_lettered == 1
    seconds = int(reason == "expired")
    death = {
        "count": 1,
        "reason": reason,
        "queue": "a",
        "time": datetime.fromtimestamp(WALL + seconds, UTC),
        "exchange": "x",
        "routing-keys": ["k"],
        "original-expiration": "60000",
    }
    assert headers_of(bench, message) == {
        "own": 1,
        "x-death": [death],
        "x-first-death-reason": reason,
        "x-first-death-queue": "a",
        "x-first-death-exchange": "x",
    }
    assert b'"expiration"' not in message.properties
    assert b'"type"' in message.properties


def test_a_key_of_their_own(bench: Bench) -> None:
    bench.queue("dead", ("amq.direct", "grave"))
    bench.queue("copy", ("amq.direct", "k"))
    bench.queue(
        "a",
        arguments={"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": "grave"},
    )
    bench.publish("", "a", headers={"CC": ["k"]})
    reject(bench, "a")
    message = dead(bench)
    assert message.routing_key == "grave"
    headers = headers_of(bench, message)
    assert "CC" not in headers
    assert headers["x-death"][0]["routing-keys"] == ["a", "k"]
    assert bench.reached() == {}


def test_without_one_all_their_keys_count(bench: Bench) -> None:
    bench.queue("cc", ("amq.direct", "k"))
    bench.queue("bcc", ("amq.direct", "blind"))
    bench.queue("dead", ("amq.direct", "a"))
    bench.queue("a", arguments={"x-dead-letter-exchange": "amq.direct"})
    bench.publish("", "a", headers={"CC": ["k"], "BCC": ["blind"]})
    reject(bench, "a")
    for name in ("cc", "bcc", "dead"):
        headers = headers_of(bench, dead(bench, name))
        assert headers["x-death"][0]["routing-keys"] == ["a", "k"]
        assert "BCC" not in headers


def test_the_default_exchange(bench: Bench) -> None:
    bench.queue("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    bench.queue("a", arguments=arguments)
    bench.publish("", "a")
    reject(bench, "a")
    assert dead(bench).exchange == ""


def test_an_exchange_that_is_not_there(bench: Bench) -> None:
    bench.queue("a", arguments={"x-dead-letter-exchange": "dlx"})
    bench.publish("", "a")
    reject(bench, "a")
    assert bench.publisher.debt_items == 0
    bench.host.declare_exchange("dlx", "fanout")
    bench.publish("", "a")
    reject(bench, "a")  # it is there, and routes to nobody
    assert bench.publisher.debt_items == 0
    assert bench.host.queues["a"].queue.counters.dead_letters_failed == 0


def test_deaths_are_counted_by_queue_and_reason(bench: Bench) -> None:
    bench.host.declare_exchange("dlx", "direct")
    to = {"x-dead-letter-exchange": "dlx"}
    bench.queue("a", ("dlx", "b"), arguments={**to, "x-dead-letter-routing-key": "a"})
    bench.queue("b", ("dlx", "a"), arguments={**to, "x-dead-letter-routing-key": "b"})
    bench.publish("", "a", headers={"own": 1})
    for _ in range(3):
        reject(bench, "a")
        bench.now += 10
        reject(bench, "b")
        bench.now += 10
    reject(bench, "a")
    headers = headers_of(bench, dead(bench, "b"))
    deaths = headers["x-death"]
    assert [(d["queue"], d["reason"], d["count"]) for d in deaths] == [
        ("a", "rejected", 4),
        ("b", "rejected", 3),
    ]
    # The other fields are of the first time.
    assert [d["time"].timestamp() for d in deaths] == [WALL, WALL + 10]
    assert [d["exchange"] for d in deaths] == ["", "dlx"]
    assert headers["x-first-death-queue"] == "a"
    assert headers["own"] == 1


def test_a_circle_without_a_consumers_doing_ends(bench: Bench) -> None:
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-message-ttl": 1_000}
    bench.queue("a", arguments=to)
    bench.publish("", "a")
    bench.wait(1.0)
    assert bench.publisher.debt_items == 0
    assert bench.host.queues["a"].queue.counters.cycles == 1


def test_a_retry_by_way_of_a_queue_where_messages_expire(bench: Bench) -> None:
    """The usual way to wait between attempts: it goes round as often as a consumer rejects it."""
    host = bench.host
    bench.queue("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})  # noqa: E501  # fmt: skip
    bench.queue("wait", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 100})  # noqa: E501  # fmt: skip
    bench.publish("", "work")
    worker = Worker(host.queues["work"].queue, window=PrefetchWindow(1))
    for attempt in range(1, 4):
        (delivery,) = worker.got
        if attempt > 1:
            deaths: Any = headers_of(bench, delivery.event)["x-death"]
            assert {(d["queue"], d["reason"]): d["count"] for d in deaths} == {
                ("work", "rejected"): attempt - 1,
                ("wait", "expired"): attempt - 1,
            }
        worker.got.clear()
        delivery.reject(requeue=False)
        bench.wait(0.1)
    worker.got.pop().ack()
    worker.channel.close()


def test_a_header_that_a_client_has_made(bench: Bench) -> None:
    bench.queue("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    bench.queue("a", arguments=arguments)
    for made, left in (
        ("text", []),
        (["text", {"queue": "b"}], ["text", {"queue": "b"}]),
        ([{"queue": "a", "reason": "rejected", "count": "x", "time": 1}], []),
    ):
        bench.publish("", "a", headers={"x-death": made})
        reject(bench, "a")
        headers = headers_of(bench, dead(bench))
        assert headers["x-death"][0]["count"] == 1
        assert headers["x-death"][1:] == left
        assert "x-first-death-queue" not in headers


def test_a_full_queue_may_dead_letter_what_it_refuses(bench: Bench) -> None:
    bench.queue("dead", ("amq.fanout",))
    arguments = {
        "x-max-length": 1,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "amq.fanout",
    }
    bench.queue("a", arguments=arguments)
    bench.publish("", "a", "one")
    bench.publish("", "a", "two")
    assert bench.reached() == {"a": ["one"], "dead": ["two"]}


def test_dead_letters_of_a_topic_reach_mqtt_too(bench: Bench) -> None:
    with bench.dataspace.subscribed(bench.publisher, TopicFilter("dead/#")) as mailbox:
        bench.queue("a", ("amq.direct", "dead.a"), arguments={"x-dead-letter-exchange": "amq.topic"})  # noqa: E501  # fmt: skip
        bench.publish("amq.direct", "dead.a")
        reject(bench, "a")
        with mailbox.receive_nowait() as events:
            assert [event.topic for event in events] == ["dead/a"]
