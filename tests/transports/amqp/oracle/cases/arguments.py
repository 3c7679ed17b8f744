"""Optional arguments of queues: which are taken, and which are refused (rabbit_amqqueue.erl)."""

from __future__ import annotations

from typing import Any

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene, pika


def refused(scene: Scene, *arguments: dict[str, Any], text: str | None = None) -> None:
    """See each of these refused with 406 and a text that names the argument."""
    for each in arguments:
        channel = scene.channel()
        begin = f"PRECONDITION_FAILED - invalid arg '{next(iter(each))}' for queue"
        with scene.refused(channel, 406, begin if text is None else text):
            scene.queue(channel, each)


def taken(scene: Scene, *arguments: dict[str, Any]) -> None:
    """See each of these taken."""
    channel = scene.channel()
    for each in arguments:
        scene.queue(channel, each)


@case
def message_ttl_that_is_none(scene: Scene) -> None:
    refused(scene, *({"x-message-ttl": value} for value in (-1, "60000", True, 2**40)))


@case
def message_ttl(scene: Scene) -> None:
    taken(scene, {"x-message-ttl": 0}, {"x-message-ttl": 1}, {"x-message-ttl": 2**31})


@case
def expires_that_is_none(scene: Scene) -> None:
    refused(scene, *({"x-expires": value} for value in (0, -1, "1000", 2**40)))


@case
def max_length_that_is_none(scene: Scene) -> None:
    refused(scene, {"x-max-length": -1}, {"x-max-length": "10"})


@case
def max_length_bytes_that_is_none(scene: Scene) -> None:
    refused(scene, {"x-max-length-bytes": -1}, {"x-max-length-bytes": "10"})


@case
def max_length(scene: Scene) -> None:
    taken(scene, {"x-max-length": 0}, {"x-max-length": 2**40, "x-max-length-bytes": 2**40})


@case
def overflow_that_is_none(scene: Scene) -> None:
    refused(scene, {"x-overflow": "reject"}, {"x-overflow": 1})


@case
def overflow(scene: Scene) -> None:
    taken(
        scene,
        *({"x-overflow": way} for way in ("drop-head", "reject-publish", "reject-publish-dlx")),
    )


@case
def dead_letter_exchange_that_is_none(scene: Scene) -> None:
    refused(scene, {"x-dead-letter-exchange": 5}, text="PRECONDITION_FAILED - invalid type")


@case
def dead_letter_exchange_need_not_exist(scene: Scene) -> None:
    taken(scene, {"x-dead-letter-exchange": scene.name()}, {"x-dead-letter-exchange": ""})


@case
def dead_letter_routing_key_that_is_none(scene: Scene) -> None:
    refused(scene, {"x-dead-letter-routing-key": 5, "x-dead-letter-exchange": "x"})


@case
def dead_letter_routing_key_needs_an_exchange(scene: Scene) -> None:
    refused(scene, {"x-dead-letter-routing-key": "k"})


@case
def dead_letter_strategy_is_for_quorum_queues(scene: Scene) -> None:
    refused(scene, {"x-dead-letter-strategy": "at-most-once"})


@case
def queue_type_that_is_none(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED - "):
        scene.queue(channel, {"x-queue-type": "nope"})


@case
def queue_type_classic(scene: Scene) -> None:
    taken(scene, {"x-queue-type": "classic"})


@case
def queue_type_is_classic_by_default(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel, {"x-queue-type": "classic"})
    channel.queue_declare(name, exclusive=True)


@case
def queue_type_quorum(scene: Scene) -> None:
    channel = scene.channel()
    if scene.on_rabbitmq:
        scene.queue(channel, {"x-queue-type": "quorum"}, durable=True, exclusive=False)
    else:
        with scene.refused(channel, 406, "PRECONDITION_FAILED"):
            scene.queue(channel, {"x-queue-type": "quorum"}, durable=True, exclusive=False)


@case
def queue_type_stream(scene: Scene) -> None:
    channel = scene.channel()
    if scene.on_rabbitmq:
        scene.queue(channel, {"x-queue-type": "stream"}, durable=True, exclusive=False)
    else:
        with scene.refused(channel, 406, "PRECONDITION_FAILED"):
            scene.queue(channel, {"x-queue-type": "stream"}, durable=True, exclusive=False)


@case
def queue_mode(scene: Scene) -> None:
    taken(scene, {"x-queue-mode": "lazy"}, {"x-queue-mode": "default"})


@case
def queue_mode_that_is_none(scene: Scene) -> None:
    refused(scene, {"x-queue-mode": "nope"})


@case
def max_priority_that_is_none(scene: Scene) -> None:
    refused(scene, *({"x-max-priority": value} for value in (-1, 256, "5")))


@case
def single_active_consumer_that_is_none(scene: Scene) -> None:
    refused(scene, {"x-single-active-consumer": "yes"})


@case
def queue_version(scene: Scene) -> None:
    taken(scene, {"x-queue-version": 1}, {"x-queue-version": 2})


@case
def unknown_ones_are_ignored(scene: Scene) -> None:
    taken(scene, {"x-mine": "yes", "other": 5, "x-table": {"a": [1, None]}})


@case
def integers_of_any_width(scene: Scene) -> None:
    channel = scene.channel()
    # pika sends the first as 'I', the second as 'l'; they are the same number.
    name = scene.queue(channel, {"x-max-length": 5})
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": pika.compat.long(5)})


@case
def declared_with_others_is_406(scene: Scene) -> None:
    for before, after, name in (
        ({"x-max-length": 5}, {"x-max-length": 6}, "x-max-length"),
        ({"x-message-ttl": 50_000}, {}, "x-message-ttl"),
        ({}, {"x-expires": 50_000}, "x-expires"),
        ({}, {"x-dead-letter-exchange": "x"}, "x-dead-letter-exchange"),
        ({"x-overflow": "drop-head"}, {"x-overflow": "reject-publish"}, "x-overflow"),
    ):
        channel = scene.channel()
        queue = scene.queue(channel, before)
        with scene.refused(
            channel, 406, f"PRECONDITION_FAILED - inequivalent arg '{name}' for queue '{queue}'"
        ):
            channel.queue_declare(queue, exclusive=True, arguments=after)


@case
def declared_with_other_unknown_ones(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-mine": 1})
    channel.queue_declare(queue, exclusive=True, arguments={"x-mine": 2})


@case
def told_how_they_differ(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-max-length": 5})
    with scene.refused(
        channel,
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/': "
        "received '6' but current is '5'",
    ):
        channel.queue_declare(queue, exclusive=True, arguments={"x-max-length": 6})


@case
def priorities(scene: Scene) -> None:
    channel = scene.confirming()
    if not scene.on_rabbitmq:
        refused(scene, {"x-max-priority": 5})
        return
    queue = scene.queue(channel, {"x-max-priority": 5})
    for body, priority in ((b"low", 1), (b"high", 5), (b"none", None), (b"mid", 3), (b"over", 9)):
        scene.publish(channel, queue, body, priority=priority)
    assert scene.drain(channel, queue) == [b"high", b"over", b"mid", b"low", b"none"]


@case
def single_active_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-single-active-consumer": True})
    first = scene.consume(channel, queue, auto_ack=True)
    second = scene.consume(channel, queue, auto_ack=True)
    scene.publish(channel, queue, b"a", b"b", b"c")
    scene.until(lambda: len(first.got) == 3)
    channel.basic_cancel(first.tag)
    scene.publish(channel, queue, b"d")
    scene.until(lambda: second.bodies == [b"d"])
    assert first.bodies == [b"a", b"b", b"c"]
