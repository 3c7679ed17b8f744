"""Dead letters: reasons, routes and headers (rabbit_dead_letter.erl)."""

from __future__ import annotations

import datetime
import time
from typing import Any

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Got, Scene


class Letters:
    """A queue whose dead letters come to another by way of an exchange."""

    def __init__(self, scene: Scene, arguments: dict[str, Any] | None = None) -> None:
        self._scene = scene
        self.channel = scene.confirming()
        self.exchange = scene.exchange(self.channel, "fanout")
        self.dead = scene.queue(self.channel)
        self.channel.queue_bind(self.dead, self.exchange)
        self.queue = scene.queue(
            self.channel, {"x-dead-letter-exchange": self.exchange, **(arguments or {})}
        )

    def publish(self, *bodies: bytes, **properties: Any) -> None:
        self._scene.publish(self.channel, self.queue, *bodies, **properties)

    def take(self) -> Got:
        """Wait for the next dead letter."""
        return self._scene.take(self.channel, self.dead)

    def reject(self) -> None:
        """Reject the queue's next message."""
        got = self._scene.take(self.channel, self.queue, auto_ack=False)
        self.channel.basic_reject(got.method.delivery_tag, requeue=False)

    def is_death(self, got: Got, reason: str, **more: Any) -> None:
        """See that the headers tell of one death, of this reason, in the queue."""
        headers = got.properties.headers
        (death,) = headers["x-death"]
        when = death.pop("time")
        assert isinstance(when, datetime.datetime)
        assert death == {
            "count": 1,
            "exchange": "",
            "queue": self.queue,
            "reason": reason,
            "routing-keys": [self.queue],
            **more,
        }
        assert {name: value for name, value in headers.items() if name.startswith("x-first")} == {
            "x-first-death-exchange": "",
            "x-first-death-queue": self.queue,
            "x-first-death-reason": reason,
        }


def deaths_of(got: Got) -> list[dict[str, Any]]:
    """Return the deaths that a message's headers tell of; none if it has no headers."""
    headers: dict[str, Any] = got.properties.headers or {}
    deaths: list[dict[str, Any]] = headers.get("x-death", [])
    return deaths


@case
def rejected(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(b"a", message_id="m", headers={"mine": 1})
    letters.reject()
    got = letters.take()
    assert (got.body, got.method.exchange) == (b"a", letters.exchange)
    assert got.method.routing_key == letters.queue
    assert got.method.redelivered is False
    assert (got.properties.message_id, got.properties.headers["mine"]) == ("m", 1)
    letters.is_death(got, "rejected")


@case
def nacked(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(b"a", b"b")
    scene.take(letters.channel, letters.queue, auto_ack=False)
    got = scene.take(letters.channel, letters.queue, auto_ack=False)
    letters.channel.basic_nack(got.method.delivery_tag, multiple=True, requeue=False)
    assert [letters.take().body, letters.take().body] == [b"a", b"b"]


@case
def nacked_and_requeued_is_no_death(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(b"a")
    got = scene.take(letters.channel, letters.queue, auto_ack=False)
    letters.channel.basic_nack(got.method.delivery_tag)
    assert scene.take(letters.channel, letters.queue).method.redelivered
    assert scene.drain(letters.channel, letters.dead) == []


@case
def expired_in_the_queue(scene: Scene) -> None:
    letters = Letters(scene, {"x-message-ttl": 20})
    letters.publish(b"a")
    got = letters.take()
    letters.is_death(got, "expired")
    assert got.properties.expiration is None


@case
def expired_by_its_own_time(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(b"a", expiration="20")
    got = letters.take()
    # The property is taken off, lest it expire there too, and kept in the header.
    assert got.properties.expiration is None
    letters.is_death(got, "expired", **{"original-expiration": "20"})


@case
def expired_before_it_came_to_the_head(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(b"ever")
    letters.publish(b"short", expiration="1")
    time.sleep(0.02)
    assert scene.take(letters.channel, letters.queue).body == b"ever"
    assert letters.take().body == b"short"


@case
def dropped_by_the_length_limit(scene: Scene) -> None:
    letters = Letters(scene, {"x-max-length": 1})
    letters.publish(b"a", b"b")
    got = letters.take()
    assert got.body == b"a"
    letters.is_death(got, "maxlen")


@case
def dropped_by_the_bytes_limit(scene: Scene) -> None:
    letters = Letters(scene, {"x-max-length-bytes": 1_000})
    letters.publish(bytes(600), bytes(700))
    got = letters.take()
    assert got.body == bytes(600)
    letters.is_death(got, "maxlen")


@case
def refused_by_the_length_limit_is_no_death(scene: Scene) -> None:
    letters = Letters(scene, {"x-max-length": 0, "x-overflow": "reject-publish"})
    plain = scene.channel()
    scene.publish(plain, letters.queue, b"a")
    scene.settle(plain, letters.queue)
    assert scene.drain(letters.channel, letters.dead) == []


@case
def refused_by_the_length_limit_is_a_death_when_told(scene: Scene) -> None:
    letters = Letters(scene, {"x-max-length": 0, "x-overflow": "reject-publish-dlx"})
    scene.publish(scene.channel(), letters.queue, b"a")
    got = letters.take()
    assert got.body == b"a"
    letters.is_death(got, "maxlen")


@case
def purged_and_deleted_is_no_death(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(b"a")
    letters.channel.queue_purge(letters.queue)
    letters.publish(b"b")
    letters.channel.queue_delete(letters.queue)
    assert scene.drain(letters.channel, letters.dead) == []


@case
def by_another_key(scene: Scene) -> None:
    letters = Letters(scene, {"x-dead-letter-routing-key": "other"})
    letters.publish(b"a")
    letters.reject()
    got = letters.take()
    assert got.method.routing_key == "other"
    letters.is_death(got, "rejected")


@case
def by_the_default_exchange(scene: Scene) -> None:
    channel = scene.confirming()
    dead = scene.queue(channel)
    queue = scene.queue(channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    scene.publish(channel, queue, b"a")
    channel.basic_reject(scene.take(channel, queue, auto_ack=False).method.delivery_tag, False)
    got = scene.take(channel, dead)
    assert (got.method.exchange, got.method.routing_key) == ("", dead)


@case
def to_a_missing_exchange_is_lost(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-dead-letter-exchange": scene.name()})
    scene.publish(channel, queue, b"a")
    channel.basic_reject(scene.take(channel, queue, auto_ack=False).method.delivery_tag, False)
    assert scene.ready(channel, queue) == 0
    assert channel.is_open


@case
def without_an_exchange_is_lost(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a")
    channel.basic_reject(scene.take(channel, queue, auto_ack=False).method.delivery_tag, False)
    assert scene.ready(channel, queue) == 0


@case
def published_by_an_exchange_names_it(scene: Scene) -> None:
    letters = Letters(scene)
    source = scene.exchange(letters.channel, "topic")
    letters.channel.queue_bind(letters.queue, source, "a.#")
    scene.publish(letters.channel, "a.b", b"a", exchange=source)
    letters.reject()
    got = letters.take()
    (death,) = got.properties.headers["x-death"]
    assert (death["exchange"], death["routing-keys"]) == (source, ["a.b"])
    assert got.properties.headers["x-first-death-exchange"] == source
    assert got.method.routing_key == "a.b"


@case
def copies_are_listed(scene: Scene) -> None:
    letters = Letters(scene)
    other = scene.queue(letters.channel)
    letters.publish(b"a", headers={"CC": [other]})
    letters.reject()
    (death,) = letters.take().properties.headers["x-death"]
    assert death["routing-keys"] == [letters.queue, other]


@case
def second_death_in_a_queue_counts(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(b"a")
    letters.reject()
    first = letters.take()
    letters.channel.basic_publish("", letters.queue, first.body, first.properties)
    letters.reject()
    (death,) = letters.take().properties.headers["x-death"]
    assert (death["count"], death["queue"], death["reason"]) == (2, letters.queue, "rejected")


@case
def deaths_in_several_queues_are_listed_last_first(scene: Scene) -> None:
    channel = scene.confirming()
    last = scene.queue(channel)
    middle = scene.queue(channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": last})
    first = scene.queue(
        channel,
        {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": middle,
            "x-message-ttl": 20,
        },
    )
    scene.publish(channel, first, b"a")
    got = scene.take(channel, middle, auto_ack=False)
    channel.basic_reject(got.method.delivery_tag, False)
    headers = scene.take(channel, last).properties.headers
    found = [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]]
    assert found == [(middle, "rejected", 1), (first, "expired", 1)]
    assert headers["x-first-death-queue"] == first
    assert headers["x-first-death-reason"] == "expired"


@case
def circles_of_expiry_are_broken(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.name("q")
    scene.queue(
        channel,
        {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
            "x-message-ttl": 20,
        },
        queue=queue,
    )
    scene.publish(channel, queue, b"a")
    scene.until(lambda: scene.ready(channel, queue) == 0)
    time.sleep(0.05)
    assert scene.ready(channel, queue) == 0


@case
def circles_with_a_rejection_go_on(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.name("q")
    scene.queue(
        channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}, queue=queue
    )
    scene.publish(channel, queue, b"a")
    for count in range(3):
        got = scene.take(channel, queue, auto_ack=False)
        deaths = deaths_of(got)
        assert sum(death["count"] for death in deaths) == count
        channel.basic_reject(got.method.delivery_tag, False)


@case
def delay_by_expiry_and_back(scene: Scene) -> None:
    channel = scene.confirming()
    work = scene.name("work")
    delay = scene.queue(
        channel,
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 20},
    )
    scene.queue(
        channel,
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": delay},
        queue=work,
    )
    scene.publish(channel, work, b"a")
    for tries in range(3):
        got = scene.take(channel, work, auto_ack=False)
        deaths = deaths_of(got)
        assert {death["reason"]: death["count"] for death in deaths} == (
            {"expired": tries, "rejected": tries} if tries else {}
        )
        channel.basic_reject(got.method.delivery_tag, False)


@case
def delivery_mode_and_body_stay(scene: Scene) -> None:
    letters = Letters(scene)
    letters.publish(bytes(300_000), delivery_mode=2, content_type="x/y", priority=3)
    letters.reject()
    got = letters.take()
    assert got.body == bytes(300_000)
    properties = got.properties
    assert (properties.delivery_mode, properties.content_type, properties.priority) == (2, "x/y", 3)


@case
def delivery_limit(scene: Scene) -> None:
    channel = scene.confirming()
    dead = scene.queue(channel)
    arguments: dict[str, Any] = {
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    if scene.on_rabbitmq:
        # Classic queues of RabbitMQ ignore the limit.
        arguments["x-queue-type"] = "quorum"
        queue = scene.queue(channel, arguments, durable=True, exclusive=False)
    else:
        queue = scene.queue(channel, arguments)
    scene.publish(channel, queue, b"a")
    for _ in range(3):
        got = scene.take(channel, queue, auto_ack=False)
        channel.basic_reject(got.method.delivery_tag, requeue=True)
    got = scene.take(channel, dead)
    (death,) = got.properties.headers["x-death"]
    assert (death["reason"], death["count"]) == ("delivery_limit", 1)
