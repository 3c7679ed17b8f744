"""Messages and queues that expire (rabbit_amqqueue_process.erl)."""

from __future__ import annotations

import time

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene, pika

TTL = 40
"""Milliseconds: long enough that a message is seen before it expires."""


TEN_YEARS = 10 * 365 * 24 * 3_600 * 1_000
"""In milliseconds."""


def gone(scene: Scene, queue: str) -> None:
    """Wait until an unused queue has expired. To look for it is to use it, so looks are rare."""

    def is_gone() -> bool:
        time.sleep(2 * TTL / 1000)
        return not scene.exists(queue=queue)

    scene.until(is_gone)


@case
def messages_of_a_queue_expire(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-message-ttl": TTL})
    scene.publish(channel, queue, b"a", b"b")
    begun = time.monotonic()
    scene.until(lambda: scene.ready(channel, queue) == 0)
    assert time.monotonic() - begun < 2
    assert scene.get(channel, queue) is None


@case
def messages_live_until_they_expire(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-message-ttl": 60_000})
    scene.publish(channel, queue, b"a")
    assert scene.take(channel, queue).body == b"a"


@case
def messages_have_times_of_their_own(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"short", expiration=str(TTL))
    scene.publish(channel, queue, b"long", expiration="60000")
    scene.publish(channel, queue, b"ever")
    scene.until(lambda: scene.ready(channel, queue) == 2)
    got = scene.take(channel, queue)
    # What has not expired keeps the property.
    assert (got.body, got.properties.expiration) == (b"long", "60000")
    assert scene.drain(channel, queue) == [b"ever"]


@case
def expired_messages_behind_others_wait(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"ever")
    scene.publish(channel, queue, b"short", expiration="1")
    scene.publish(channel, queue, b"next")
    time.sleep(0.03)
    assert scene.ready(channel, queue) == 3
    # None that has expired is delivered, all the same.
    assert scene.drain(channel, queue) == [b"ever", b"next"]


@case
def the_shorter_time_counts(scene: Scene) -> None:
    channel = scene.confirming()
    first = scene.queue(channel, {"x-message-ttl": TTL})
    second = scene.queue(channel, {"x-message-ttl": 60_000})
    scene.publish(channel, first, b"a", expiration="60000")
    scene.publish(channel, second, b"a", expiration=str(TTL))
    scene.until(lambda: scene.ready(channel, first) == 0)
    scene.until(lambda: scene.ready(channel, second) == 0)


@case
def no_time_at_all_without_a_consumer(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-message-ttl": 0})
    scene.publish(channel, queue, b"a")
    assert scene.get(channel, queue) is None


@case
def no_time_at_all_with_a_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    consumer = scene.consume(channel, queue, auto_ack=True)
    scene.publish(channel, queue, b"a", expiration="0")
    scene.until(lambda: consumer.bodies == [b"a"])


@case
def expiration_that_is_no_number_is_406(scene: Scene) -> None:
    for value in ("soon", "1.5", "-1", ""):
        channel = scene.channel()
        with scene.refused(channel, 406, "PRECONDITION_FAILED - invalid expiration"):
            scene.publish(channel, scene.name(), b"a", expiration=value)


@case
def expiration_may_be_ten_years(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a", expiration=str(TEN_YEARS))
    assert scene.take(channel, queue).body == b"a"
    with scene.refused(channel, 406, "PRECONDITION_FAILED - invalid expiration"):
        scene.publish(channel, queue, b"a", expiration=str(TEN_YEARS + 1))


@case
def expiration_beyond_the_limit_is_406(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED - invalid expiration"):
        scene.publish(channel, scene.name(), b"a", expiration=str(2**40))


@case
def unacknowledged_messages_do_not_expire(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-message-ttl": 200})
    scene.publish(channel, queue, b"a")
    got = scene.take(channel, queue, auto_ack=False)
    time.sleep(0.22)
    channel.basic_ack(got.method.delivery_tag)
    assert scene.ready(channel, queue) == 0
    assert channel.is_open


@case
def requeued_messages_keep_their_time(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-message-ttl": 100})
    scene.publish(channel, queue, b"a")
    got = scene.take(channel, queue, auto_ack=False)
    time.sleep(0.11)
    channel.basic_nack(got.method.delivery_tag)
    scene.until(lambda: scene.ready(channel, queue) == 0)
    assert scene.get(channel, queue) is None


@case
def unused_queues_expire(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-expires": TTL}, exclusive=False)
    gone(scene, queue)


@case
def queues_with_a_consumer_do_not_expire(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-expires": TTL}, exclusive=False)
    consumer = scene.consume(channel, queue, auto_ack=True)
    time.sleep(2 * TTL / 1000)
    scene.publish(channel, queue, b"a")
    scene.until(lambda: consumer.bodies == [b"a"])


@case
def queues_expire_after_their_last_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-expires": TTL}, exclusive=False)
    consumer = scene.consume(channel, queue)
    channel.basic_cancel(consumer.tag)
    gone(scene, queue)


@case
def publications_keep_no_queue(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-expires": TTL}, exclusive=False)

    def unroutable() -> bool:
        try:
            channel.basic_publish("", queue, b"a", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
        return False

    scene.until(unroutable)


@case
def gets_keep_a_queue(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-expires": 150}, exclusive=False)
    begun = time.monotonic()
    while time.monotonic() - begun < 0.3:
        assert scene.get(channel, queue) is None
        time.sleep(0.01)


@case
def declarations_keep_a_queue(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-expires": 150}, exclusive=False)
    begun = time.monotonic()
    while time.monotonic() - begun < 0.3:
        channel.queue_declare(queue, arguments={"x-expires": 150})
        time.sleep(0.01)


@case
def what_expires_with_its_queue_is_no_dead_letter(scene: Scene) -> None:
    channel = scene.confirming()
    letters = scene.queue(channel)
    queue = scene.queue(
        channel,
        {"x-expires": TTL, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters},
        exclusive=False,
    )
    scene.publish(channel, queue, b"a")
    gone(scene, queue)
    assert scene.drain(channel, letters) == []
