"""Queues with a length limit, and what becomes of messages beyond it."""

from __future__ import annotations

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene


@case
def head_is_dropped(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length": 3})
    scene.publish(channel, queue, *(b"%d" % number for number in range(5)))
    assert scene.drain(channel, queue) == [b"2", b"3", b"4"]


@case
def head_is_dropped_when_told(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length": 1, "x-overflow": "drop-head"})
    scene.publish(channel, queue, b"a", b"b")
    assert scene.drain(channel, queue) == [b"b"]


@case
def length_of_zero_keeps_nothing(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length": 0})
    scene.publish(channel, queue, b"a")
    assert scene.drain(channel, queue) == []


@case
def length_of_zero_delivers_to_consumers(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-max-length": 0})
    consumer = scene.consume(channel, queue, auto_ack=True)
    scene.publish(channel, queue, b"a")
    scene.until(lambda: consumer.bodies == [b"a"])


@case
def bytes_are_limited(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length-bytes": 10_000})
    scene.publish(channel, queue, bytes(4_000), bytes(4_100), bytes(4_200))
    assert [len(body) for body in scene.drain(channel, queue)] == [4_100, 4_200]


@case
def bytes_of_a_message(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length-bytes": 100})
    scene.publish(channel, queue, bytes(60), bytes(40))
    assert [len(body) for body in scene.drain(channel, queue)] == (
        [60, 40] if scene.on_rabbitmq else [40]
    )


@case
def message_larger_than_the_bytes(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length-bytes": 100})
    scene.publish(channel, queue, b"a", bytes(101))
    assert scene.drain(channel, queue) == []


@case
def the_first_limit_that_is_reached_counts(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length": 2, "x-max-length-bytes": 1_000})
    scene.publish(channel, queue, b"1", b"2", b"3")
    assert scene.drain(channel, queue) == [b"2", b"3"]
    scene.publish(channel, queue, bytes(800), bytes(900))
    assert scene.drain(channel, queue) == [bytes(900)]


@case
def unacknowledged_messages_do_not_count(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length": 2})
    scene.publish(channel, queue, b"a", b"b")
    scene.take(channel, queue, auto_ack=False)
    scene.publish(channel, queue, b"c")
    assert scene.drain(channel, queue) == [b"b", b"c"]


@case
def requeueing_beyond_the_limit_drops_the_head(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel, {"x-max-length": 2})
    scene.publish(channel, queue, b"a")
    got = scene.take(channel, queue, auto_ack=False)
    scene.publish(channel, queue, b"b", b"c")
    channel.basic_nack(got.method.delivery_tag)
    scene.settle(channel, queue)
    assert scene.drain(channel, queue) == [b"b", b"c"]


@case
def rejected_publications_are_nacked(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.content(b"a", key=queue)
    assert raw.expect(commands.Basic.Ack).delivery_tag == 1
    raw.content(b"b", key=queue)
    # RabbitMQ sets its multiple flag, which makes no difference: all before it are confirmed.
    assert raw.expect(commands.Basic.Nack).delivery_tag == 2
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"
    raw.content(b"c", key=queue)
    assert raw.expect(commands.Basic.Ack).delivery_tag == 3


@case
def rejected_by_bytes_when_it_would_pass_them(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue(arguments={"x-max-length-bytes": 1_000, "x-overflow": "reject-publish"})
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    answers: list[str] = []
    for size in (700, 400, 5):
        raw.content(bytes(size), key=queue)
        method = raw.next().method
        assert method is not None
        answers.append(method.name)
    assert answers == ["Basic.Ack", "Basic.Nack", "Basic.Ack"]


@case
def rejected_publications_without_confirms_are_gone(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    scene.publish(channel, queue, b"a", b"b", b"c")
    scene.settle(channel, queue)
    assert scene.drain(channel, queue) == [b"a"]


@case
def rejected_by_one_of_two_queues_is_nacked(scene: Scene) -> None:
    raw = scene.raw().open()
    limited = raw.queue(arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    free = raw.queue()
    exchange = scene.name()
    scene.forget(exchange=exchange)
    raw.call(
        commands.Exchange.Declare(exchange=exchange, exchange_type="fanout"),
        commands.Exchange.DeclareOk,
    )
    for queue in (limited, free):
        raw.call(
            commands.Queue.Bind(queue=queue, exchange=exchange, routing_key="k"),
            commands.Queue.BindOk,
        )
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.content(b"a", exchange=exchange)
    raw.expect(commands.Basic.Nack)
    raw.method(commands.Basic.Get(queue=free, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"


@case
def dropped_head_was_confirmed(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue(arguments={"x-max-length": 1})
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    for number in (1, 2, 3):
        raw.content(b"a", key=queue)
        assert raw.expect(commands.Basic.Ack).delivery_tag == number
