"""Channels: opening, closing, flow, and errors that close a channel but not its connection."""

from __future__ import annotations

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene


@case
def channel_that_is_not_open_is_504(scene: Scene) -> None:
    raw = scene.raw().open(channels=0)
    raw.method(commands.Basic.Qos())
    raw.refused(504, "CHANNEL_ERROR - expected 'channel.open'", method=(60, 10))


@case
def publishing_on_a_channel_that_is_not_open_is_504(scene: Scene) -> None:
    raw = scene.raw().open(channels=0)
    raw.content(b"a", key="q")
    raw.refused(504, "CHANNEL_ERROR")


@case
def open_twice_is_504(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Channel.Open())
    raw.refused(504, "CHANNEL_ERROR - second 'channel.open' seen", method=(20, 10))


@case
def closing_a_channel_that_is_not_open(scene: Scene) -> None:
    raw = scene.raw().open(channels=0)
    raw.method(commands.Channel.Close(200, "", 0, 0))
    raw.refused(504, "CHANNEL_ERROR", method=(20, 40))


@case
def number_is_free_after_close(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.close_channel()
    raw.open_channel(1)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk)


@case
def number_is_free_after_a_soft_error(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue=scene.name(), passive=True))
    raw.channel_refused(404, method=(50, 10))
    raw.open_channel(1)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk)


@case
def soft_error_leaves_other_channels_alone(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(second)
    with scene.refused(first, 404):
        first.queue_declare(scene.name(), passive=True)
    scene.publish(second, queue, b"a")
    assert scene.take(second, queue).body == b"a"


@case
def nothing_is_taken_between_a_soft_error_and_its_answer(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    queue = raw.queue(2)
    raw.method(commands.Queue.Declare(queue=scene.name(), passive=True))
    raw.content(b"late", key=queue)
    raw.method(commands.Queue.Purge(queue=scene.name()))
    raw.channel_refused(404)
    raw.open_channel(1)
    assert (
        raw.call(
            commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk
        ).message_count
        == 0
    )


@case
def closing_within_a_message_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Publish(routing_key="q"))
    raw.method(commands.Channel.Close(200, "", 0, 0))
    raw.refused(505, "UNEXPECTED_FRAME")


@case
def closing_gives_back_what_is_unacknowledged(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.publish(first, queue, b"a", b"b", b"c")
    consumer = scene.consume(second, queue)
    scene.until(lambda: len(consumer.got) == 3)
    consumer.ack(0)
    second.close()
    got = [scene.take(first, queue), scene.take(first, queue)]
    assert [(each.body, each.method.redelivered) for each in got] == [(b"b", True), (b"c", True)]


@case
def soft_error_gives_back_what_is_unacknowledged(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.publish(first, queue, b"a")
    scene.take(second, queue, auto_ack=False)
    with scene.refused(second, 404):
        second.queue_declare(scene.name(), passive=True)
    assert scene.take(first, queue).method.redelivered


@case
def closing_ends_its_consumers(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.consume(second, queue)
    assert scene.consumers(first, queue) == 1
    second.close()
    assert scene.consumers(first, queue) == 0


@case
def what_was_published_before_close_is_queued(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.publish(second, queue, *(b"%d" % number for number in range(50)))
    second.close()
    scene.until(lambda: scene.ready(first, queue) == 50)
    assert scene.drain(first, queue) == [b"%d" % number for number in range(50)]


@case
def delivery_tags_belong_to_a_channel(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.publish(first, queue, b"a", b"b")
    assert scene.take(first, queue, auto_ack=False).method.delivery_tag == 1
    assert scene.take(second, queue, auto_ack=False).method.delivery_tag == 1


@case
def flow_active_is_answered(scene: Scene) -> None:
    raw = scene.raw().open()
    assert raw.call(commands.Channel.Flow(True), commands.Channel.FlowOk).active is True


@case
def flow_inactive_is_540(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Channel.Flow(False))
    raw.refused(540, "NOT_IMPLEMENTED - active=false", method=(20, 20))


@case
def high_numbers(scene: Scene) -> None:
    raw = scene.raw().open(channels=0)
    raw.open_channel(2_047)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk, 2_047)


@case
def number_above_the_channel_max(scene: Scene) -> None:
    raw = scene.raw().open(channel_max=10)
    if scene.on_rabbitmq:
        raw.open_channel(11)
    else:
        raw.method(commands.Channel.Open(), 11)
        raw.refused(530, "NOT_ALLOWED")


@case
def channels_come_and_go(scene: Scene) -> None:
    raw = scene.raw().open(channels=0)
    for _ in range(3):
        for number in range(1, 51):
            raw.open_channel(number)
        for number in range(1, 51):
            raw.close_channel(number)
