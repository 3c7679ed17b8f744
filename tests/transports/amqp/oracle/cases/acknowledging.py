"""Acknowledging, rejecting, recovering, and what comes again (rabbit_channel.erl)."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.raw import METHOD, method_bytes, packed
from tests.transports.amqp.oracle.scene import Got, Scene


def taken(scene: Scene, channel: Any, queue: str, *bodies: bytes) -> list[Got]:
    """Publish these messages and take them, unacknowledged."""
    publisher = scene.confirming()
    scene.publish(publisher, queue, *bodies)
    return [scene.take(channel, queue, auto_ack=False) for _ in bodies]


def ready_after_close(scene: Scene, channel: Any, queue: str) -> list[bytes]:
    """Close a channel; return what it had not acknowledged."""
    channel.close()
    return scene.drain(scene.channel(), queue)


@case
def one(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a", b"b", b"c")
    channel.basic_ack(2)
    assert ready_after_close(scene, channel, queue) == [b"a", b"c"]


@case
def all_up_to_one(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a", b"b", b"c")
    channel.basic_ack(2, multiple=True)
    assert ready_after_close(scene, channel, queue) == [b"c"]


@case
def all_of_them(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a", b"b", b"c")
    channel.basic_ack(0, multiple=True)
    assert ready_after_close(scene, channel, queue) == []


@case
def all_of_none(scene: Scene) -> None:
    channel = scene.channel()
    channel.basic_ack(0, multiple=True)
    channel.queue_declare("", exclusive=True)
    assert channel.is_open


@case
def all_of_several_queues(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    first, second = scene.queue(owner), scene.queue(owner)
    taken(scene, channel, first, b"a")
    taken(scene, channel, second, b"b")
    taken(scene, channel, first, b"c")
    channel.basic_ack(2, multiple=True)
    channel.close()
    assert scene.drain(owner, first) == [b"c"]
    assert scene.drain(owner, second) == []


@case
def in_any_order(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a", b"b", b"c")
    for tag in (3, 1, 2):
        channel.basic_ack(tag)
    assert ready_after_close(scene, channel, queue) == []


@case
def unknown_tag_is_406(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 99"):
        channel.basic_ack(99)


@case
def unknown_tag_acknowledges_nothing(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a", b"b")
    channel.basic_ack(1)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 99"):
        channel.basic_ack(99, multiple=True)
    # What had been acknowledged stays so, and the rest comes again.
    got = scene.take(owner, queue)
    assert (got.body, got.method.redelivered) == (b"b", True)
    assert scene.get(owner, queue) is None


@case
def tag_zero_alone_is_406(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a")
    with scene.refused(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 0"):
        channel.basic_ack(0)


@case
def twice_is_406(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a", b"b")
    channel.basic_ack(1)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        channel.basic_ack(1)


@case
def up_to_one_that_is_acknowledged_is_406(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a", b"b", b"c")
    channel.basic_ack(2)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 2"):
        channel.basic_ack(2, multiple=True)
    assert scene.drain(owner, queue) == [b"a", b"c"]


@case
def of_another_channel_is_406(scene: Scene) -> None:
    owner, first, second = scene.channel(), scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, first, queue, b"a")
    with scene.refused(second, 406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        second.basic_ack(1)


@case
def of_what_needs_none_is_406(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a")
    got = scene.take(channel, queue, auto_ack=True)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        channel.basic_ack(got.method.delivery_tag)


@case
def after_its_queue_is_gone(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    taken(scene, channel, queue, b"a")
    owner.queue_delete(queue)
    channel.basic_ack(1)
    channel.queue_declare("", exclusive=True)
    assert channel.is_open


@case
def rejecting_gives_it_back(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    taken(scene, channel, queue, b"a")
    channel.basic_reject(1, requeue=True)
    got = scene.take(channel, queue)
    assert (got.body, got.method.redelivered) == (b"a", True)


@case
def rejecting_for_good(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    taken(scene, channel, queue, b"a")
    channel.basic_reject(1, requeue=False)
    assert scene.ready(channel, queue) == 0


@case
def rejecting_an_unknown_tag_is_406(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED - unknown delivery tag 5"):
        channel.basic_reject(5)


@case
def nacking_all_up_to_one(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    taken(scene, channel, queue, b"a", b"b", b"c")
    channel.basic_nack(2, multiple=True, requeue=True)
    scene.until(lambda: scene.ready(channel, queue) == 2)
    assert scene.drain(channel, queue) == [b"a", b"b"]


@case
def nacking_all_for_good(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    taken(scene, channel, queue, b"a", b"b", b"c")
    channel.basic_nack(0, multiple=True, requeue=False)
    assert ready_after_close(scene, channel, queue) == []


@case
def requeued_messages_come_at_their_old_place(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    taken(scene, channel, queue, b"a", b"b")
    publisher = scene.confirming()
    scene.publish(publisher, queue, b"c", b"d")
    # Given back last first, and they stand in their order all the same.
    channel.basic_nack(2)
    channel.basic_nack(1)
    scene.until(lambda: scene.ready(channel, queue) == 4)
    assert scene.drain(channel, queue) == [b"a", b"b", b"c", b"d"]


@case
def requeued_messages_come_before_what_was_not_taken(scene: Scene) -> None:
    owner, channel = scene.channel(), scene.channel()
    queue = scene.queue(owner)
    scene.publish(scene.confirming(), queue, b"a", b"b", b"c")
    scene.take(channel, queue, auto_ack=False)
    assert ready_after_close(scene, channel, queue) == [b"a", b"b", b"c"]


@case
def requeued_messages_go_to_another_consumer(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    first.basic_qos(prefetch_count=1)
    second.basic_qos(prefetch_count=1)
    one_consumer = scene.consume(first, queue)
    scene.publish(first, queue, b"a")
    scene.until(lambda: one_consumer.got)
    other = scene.consume(second, queue)
    first.close()
    scene.until(lambda: other.got)
    assert (other.bodies, other.got[0].method.redelivered) == ([b"a"], True)


@case
def first_delivery_is_no_redelivery(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    got = taken(scene, channel, queue, b"a", b"b")
    assert [each.method.redelivered for each in got] == [False, False]
    channel.basic_nack(1)
    again = scene.take(channel, queue, auto_ack=False)
    assert (again.method.redelivered, again.method.delivery_tag) == (True, 3)


@case
def recover_gives_back_all(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    taken(scene, channel, queue, b"a", b"b")
    channel.basic_recover(requeue=True)
    scene.until(lambda: scene.ready(channel, queue) == 2)
    got = [scene.take(channel, queue) for _ in range(2)]
    assert [(each.body, each.method.redelivered) for each in got] == [(b"a", True), (b"b", True)]


@case
def recover_delivers_to_the_consumer_again(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, b"a")
    scene.until(lambda: len(consumer.got) == 1)
    channel.basic_recover(requeue=True)
    scene.until(lambda: len(consumer.got) == 2)
    assert [got.method.redelivered for got in consumer.got] == [False, True]


@case
def recover_without_requeue_is_540(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Recover(False))
    raw.refused(540, "NOT_IMPLEMENTED - requeue=false", method=(60, 110))


@case
def recover_async(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"a", key=queue)
    raw.method(commands.Basic.Get(queue=queue))
    raw.message(commands.Basic.GetOk)
    # Deprecated, as pamqp warns.
    raw.send(packed(METHOD, 1, method_bytes(60, 100, b"\x01")))
    raw.method(commands.Basic.Get(queue=queue))
    again = raw.message(commands.Basic.GetOk)
    assert dict(again.method)["redelivered"] is True


@case
def acknowledged_messages_are_gone(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, *(b"%d" % number for number in range(20)))
    scene.until(lambda: len(consumer.got) == 20)
    consumer.ack(multiple=True)
    channel.basic_recover(requeue=True)
    channel.basic_cancel(consumer.tag)
    assert scene.drain(channel, queue) == []


@case
def tag_of_an_earlier_time_of_the_channel_is_406(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"a", key=queue)
    raw.method(commands.Basic.Get(queue=queue))
    raw.message(commands.Basic.GetOk)
    raw.close_channel()
    raw.open_channel(1)
    raw.method(commands.Basic.Ack(1))
    raw.channel_refused(406, "PRECONDITION_FAILED - unknown delivery tag 1", method=(60, 80))
