"""Consumers: deliveries, prefetch, exclusiveness, cancelling; and `basic.get`."""

from __future__ import annotations

from functools import partial

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Consumer, Scene


@case
def deliveries_come_in_order(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    bodies = [b"%d" % number for number in range(200)]
    scene.publish(channel, queue, *bodies[:100])
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, *bodies[100:])
    scene.until(lambda: len(consumer.got) == 200)
    assert consumer.bodies == bodies
    assert [got.method.delivery_tag for got in consumer.got] == list(range(1, 201))


@case
def delivery_tells_where_it_comes_from(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.queue_bind(queue, "amq.direct", f"key-{queue}")
    consumer = scene.consume(channel, queue, consumer_tag="mine")
    scene.publish(channel, f"key-{queue}", b"a", exchange="amq.direct")
    scene.until(lambda: consumer.got)
    method = consumer.got[0].method
    assert (method.exchange, method.routing_key) == ("amq.direct", f"key-{queue}")
    assert (method.consumer_tag, method.delivery_tag) == ("mine", 1)
    assert method.redelivered is False


@case
def server_makes_tags(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    consume = commands.Basic.Consume(queue=queue)
    tags = {raw.call(consume, commands.Basic.ConsumeOk).consumer_tag for _ in range(3)}
    assert len(tags) == 3
    assert all(tag and tag.startswith("amq.ctag-") for tag in tags)


@case
def tag_in_use_is_530(scene: Scene) -> None:
    raw = scene.raw().open()
    consume = commands.Basic.Consume(queue=raw.queue(), consumer_tag="t")
    raw.call(consume, commands.Basic.ConsumeOk)
    raw.method(consume)
    raw.refused(530, "NOT_ALLOWED - attempt to reuse consumer tag 't'", method=(60, 20))


@case
def tag_on_another_channel_is_free(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    consume = commands.Basic.Consume(queue=raw.queue(), consumer_tag="t")
    raw.call(consume, commands.Basic.ConsumeOk, 1)
    raw.call(consume, commands.Basic.ConsumeOk, 2)


@case
def tag_is_free_after_cancel(scene: Scene) -> None:
    raw = scene.raw().open()
    consume = commands.Basic.Consume(queue=raw.queue(), consumer_tag="t")
    for _ in range(2):
        raw.call(consume, commands.Basic.ConsumeOk)
        raw.call(commands.Basic.Cancel("t"), commands.Basic.CancelOk)


@case
def missing_queue_is_404(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        scene.consume(channel, name)


@case
def consuming_without_an_answer(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.method(commands.Basic.Consume(queue=queue, consumer_tag="t", no_ack=True, nowait=True))
    raw.content(b"a", key=queue)
    message = raw.message(commands.Basic.Deliver)
    assert (dict(message.method)["consumer_tag"], message.body) == ("t", b"a")
    raw.method(commands.Basic.Cancel("t", nowait=True))
    declared = raw.call(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)
    assert declared.consumer_count == 0


@case
def consumers_take_turns(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    consumers = [scene.consume(channel, queue) for _ in range(3)]
    scene.publish(channel, queue, *(b"%d" % number for number in range(9)))
    scene.until(lambda: sum(len(consumer.got) for consumer in consumers) == 9)
    assert [consumer.bodies for consumer in consumers] == [
        [b"0", b"3", b"6"],
        [b"1", b"4", b"7"],
        [b"2", b"5", b"8"],
    ]


@case
def consumers_with_a_higher_priority_come_first(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    if not scene.on_rabbitmq:
        with scene.refused(channel, 406, "PRECONDITION_FAILED - consumers have no priorities"):
            scene.consume(channel, queue, arguments={"x-priority": 10})
        return
    channel.basic_qos(prefetch_count=2)
    low = scene.consume(channel, queue)
    high = scene.consume(channel, queue, arguments={"x-priority": 10})
    scene.publish(channel, queue, b"a", b"b", b"c")
    scene.until(lambda: len(low.got) + len(high.got) == 3)
    assert (high.bodies, low.bodies) == ([b"a", b"b"], [b"c"])


@case
def priority_of_another_type_is_406(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    with scene.refused(channel, 406, "PRECONDITION_FAILED"):
        scene.consume(channel, queue, arguments={"x-priority": "high"})


@case
def no_ack_leaves_nothing(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    consumer = scene.consume(channel, queue, auto_ack=True)
    scene.publish(channel, queue, b"a", b"b")
    scene.until(lambda: len(consumer.got) == 2)
    channel.close()
    assert scene.ready(scene.channel(), queue) == 0


@case
def no_local_is_ignored(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.call(commands.Basic.Consume(queue=queue, no_local=True), commands.Basic.ConsumeOk)
    raw.content(b"a", key=queue)
    assert raw.message(commands.Basic.Deliver).body == b"a"


@case
def exclusive_consumer_keeps_others_out(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.consume(first, queue, exclusive=True)
    with scene.refused(
        second, 403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    ):
        scene.consume(second, queue)


@case
def exclusive_consumer_needs_the_queue_for_itself(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.consume(first, queue)
    with scene.refused(
        second, 403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    ):
        scene.consume(second, queue, exclusive=True)


@case
def exclusive_consumer_leaves_get_to_others(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    first.basic_qos(prefetch_count=1)
    scene.consume(first, queue, exclusive=True)
    scene.publish(first, queue, b"a", b"b")
    assert scene.take(second, queue).body == b"b"


@case
def exclusive_consumer_gone_lets_others_in(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    consumer = scene.consume(first, queue, exclusive=True)
    first.basic_cancel(consumer.tag)
    scene.consume(second, queue)


# ---- Prefetch ------------------------------------------------------------------------------------


@case
def prefetch_bounds_what_is_unacknowledged(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=2)
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, b"a", b"b", b"c", b"d")
    scene.until(lambda: len(consumer.got) >= 2)
    scene.settle(channel, queue)
    assert consumer.bodies == [b"a", b"b"]
    consumer.ack(0)
    scene.until(lambda: len(consumer.got) >= 3)
    scene.settle(channel, queue)
    assert consumer.bodies == [b"a", b"b", b"c"]
    consumer.ack(2, multiple=True)
    scene.until(lambda: len(consumer.got) == 4)


@case
def prefetch_is_for_each_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queues = [scene.queue(channel), scene.queue(channel)]
    channel.basic_qos(prefetch_count=1)
    consumers = [scene.consume(channel, queue) for queue in queues]
    for queue in queues:
        scene.publish(channel, queue, b"a", b"b")
    scene.until(lambda: all(consumer.got for consumer in consumers))
    scene.settle(channel, *queues)
    assert [consumer.bodies for consumer in consumers] == [[b"a"], [b"a"]]


def came(consumers: list[Consumer], count: int) -> bool:
    """Say whether so many messages came to these consumers."""
    return sum(len(consumer.got) for consumer in consumers) == count


@case
def prefetch_is_for_the_channel_when_global(scene: Scene) -> None:
    channel = scene.channel()
    queues = [scene.queue(channel), scene.queue(channel)]
    channel.basic_qos(prefetch_count=1, global_qos=True)
    consumers = [scene.consume(channel, queue) for queue in queues]
    for queue in queues:
        scene.publish(channel, queue, b"a", b"b")
    scene.until(lambda: any(consumer.got for consumer in consumers))
    scene.settle(channel, *queues)
    assert sum(len(consumer.got) for consumer in consumers) == 1
    for count in (2, 3, 4):
        (holder,) = (each for each in consumers if each.unacknowledged)
        holder.ack()
        scene.until(partial(came, consumers, count))


@case
def both_prefetches_hold_together(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=2)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    consumers = [scene.consume(channel, queue), scene.consume(channel, queue)]
    scene.publish(channel, queue, *(b"%d" % number for number in range(6)))
    scene.until(lambda: sum(len(consumer.got) for consumer in consumers) >= 3)
    scene.settle(channel, queue)
    assert sorted(len(consumer.got) for consumer in consumers) == [1, 2]


@case
def prefetch_is_taken_when_a_consumer_starts(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=1)
    consumer = scene.consume(channel, queue)
    channel.basic_qos(prefetch_count=3)
    scene.publish(channel, queue, b"a", b"b", b"c")
    scene.until(lambda: consumer.got)
    scene.settle(channel, queue)
    assert consumer.bodies == [b"a"]


@case
def global_prefetch_may_be_raised(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, b"a", b"b", b"c")
    scene.until(lambda: consumer.got)
    scene.settle(channel, queue)
    assert len(consumer.got) == 1
    channel.basic_qos(prefetch_count=2, global_qos=True)
    scene.until(lambda: len(consumer.got) == 2)
    channel.basic_qos(prefetch_count=0, global_qos=True)
    scene.until(lambda: len(consumer.got) == 3)


@case
def prefetch_of_zero_is_no_bound(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=0)
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, *([b"a"] * 500))
    scene.until(lambda: len(consumer.got) == 500)


@case
def prefetch_does_not_bound_no_ack(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=1)
    consumer = scene.consume(channel, queue, auto_ack=True)
    scene.publish(channel, queue, b"a", b"b", b"c")
    scene.until(lambda: len(consumer.got) == 3)


@case
def prefetch_does_not_bound_get(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=1)
    scene.publish(channel, queue, b"a", b"b")
    assert scene.take(channel, queue, auto_ack=False).body == b"a"
    assert scene.take(channel, queue, auto_ack=False).body == b"b"


@case
def what_get_took_does_not_fill_the_prefetch(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=1)
    scene.publish(channel, queue, b"a", b"b")
    scene.take(channel, queue, auto_ack=False)
    consumer = scene.consume(channel, queue)
    scene.until(lambda: consumer.bodies == [b"b"])


@case
def prefetch_size_is_540(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Qos(prefetch_size=1_000))
    raw.refused(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1000)", method=(60, 10))


@case
def message_passes_a_full_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=1)
    first, second = scene.consume(channel, queue), scene.consume(channel, queue)
    scene.publish(channel, queue, b"a", b"b")
    scene.until(lambda: first.got and second.got)
    second.ack()
    scene.publish(channel, queue, b"c")
    scene.until(lambda: second.bodies == [b"b", b"c"])
    assert first.bodies == [b"a"]


# ---- Cancelling ----------------------------------------------------------------------------------


@case
def cancelled_consumers_get_no_more(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    consumer = scene.consume(channel, queue)
    channel.basic_cancel(consumer.tag)
    scene.publish(channel, queue, b"a")
    assert scene.take(channel, queue).body == b"a"
    assert consumer.got == []


@case
def cancelled_consumers_keep_what_they_have(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.call(commands.Basic.Consume(queue=queue, consumer_tag="t"), commands.Basic.ConsumeOk)
    raw.content(b"a", key=queue)
    raw.message(commands.Basic.Deliver)
    raw.call(commands.Basic.Cancel("t"), commands.Basic.CancelOk)
    passive = commands.Queue.Declare(queue=queue, passive=True)
    assert raw.call(passive, commands.Queue.DeclareOk).message_count == 0
    raw.method(commands.Basic.Ack(1))
    raw.close_channel()
    raw.open_channel(1)
    assert raw.call(passive, commands.Queue.DeclareOk).message_count == 0


@case
def cancelling_an_unknown_tag(scene: Scene) -> None:
    raw = scene.raw().open()
    answer = raw.call(commands.Basic.Cancel("never"), commands.Basic.CancelOk)
    assert answer.consumer_tag == "never"


@case
def deleted_queue_cancels_its_consumers(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    consumer = scene.consume(second, queue)
    first.queue_delete(queue)
    scene.until(lambda: consumer.cancelled)
    assert second.is_open


@case
def cancel_notice_names_the_tag(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.call(commands.Basic.Consume(queue=queue, consumer_tag="t"), commands.Basic.ConsumeOk)
    raw.method(commands.Queue.Delete(queue=queue))
    found = [raw.next().method, raw.next().method]
    (notice,) = (method for method in found if isinstance(method, commands.Basic.Cancel))
    (answer,) = (method for method in found if isinstance(method, commands.Queue.DeleteOk))
    assert (notice.consumer_tag, notice.nowait, answer.message_count) == ("t", True, 0)


@case
def no_cancel_notice_for_clients_that_cannot_take_it(scene: Scene) -> None:
    raw = scene.raw().open(capabilities={})
    queue = raw.queue()
    raw.call(commands.Basic.Consume(queue=queue, consumer_tag="t"), commands.Basic.ConsumeOk)
    raw.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk)


# ---- Get -----------------------------------------------------------------------------------------


@case
def get_tells_how_many_remain(scene: Scene) -> None:
    channel = scene.confirming()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a", b"b", b"c")
    counts = [scene.take(channel, queue).method.message_count for _ in range(3)]
    assert counts == [2, 1, 0]


@case
def get_from_an_empty_queue(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.call(commands.Basic.Get(queue=raw.queue()), commands.Basic.GetEmpty)


@case
def get_from_a_missing_queue_is_404(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.basic_get(name)


@case
def get_with_and_without_acknowledgement(scene: Scene) -> None:
    first, second = scene.confirming(), scene.channel()
    queue = scene.queue(first)
    scene.publish(first, queue, b"a", b"b")
    assert scene.take(second, queue, auto_ack=True).body == b"a"
    assert scene.take(second, queue, auto_ack=False).body == b"b"
    second.close()
    assert scene.take(first, queue).body == b"b"


@case
def get_and_consume_share_tags(scene: Scene) -> None:
    channel = scene.confirming()
    queue, other = scene.queue(channel), scene.queue(channel)
    scene.publish(channel, other, b"a", b"c")
    assert scene.take(channel, other, auto_ack=False).method.delivery_tag == 1
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, b"b")
    scene.until(lambda: consumer.got)
    assert consumer.got[0].method.delivery_tag == 2
    assert scene.take(channel, other, auto_ack=False).method.delivery_tag == 3


# ---- Direct reply-to -----------------------------------------------------------------------------


@case
def direct_reply_to(scene: Scene) -> None:
    client, server = scene.channel(), scene.channel()
    queue = scene.queue(server)
    replies = scene.consume(client, "amq.rabbitmq.reply-to", auto_ack=True)
    scene.publish(client, queue, b"question", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    got = scene.take(server, queue)
    reply_to = got.properties.reply_to
    assert reply_to.startswith("amq.rabbitmq.reply-to.")
    scene.publish(server, reply_to, b"answer", correlation_id=got.properties.correlation_id)
    scene.until(lambda: replies.got)
    answer = replies.got[0]
    assert (answer.body, answer.properties.correlation_id) == (b"answer", "7")
    assert (answer.method.exchange, answer.method.routing_key) == ("", reply_to)


@case
def direct_reply_to_needs_no_ack(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED"):
        scene.consume(channel, "amq.rabbitmq.reply-to")


@case
def direct_reply_to_needs_a_consumer_first(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        scene.publish(channel, queue, b"question", reply_to="amq.rabbitmq.reply-to")


@case
def direct_reply_to_once_per_channel(scene: Scene) -> None:
    channel = scene.channel()
    scene.consume(channel, "amq.rabbitmq.reply-to", auto_ack=True)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - reply consumer already set"):
        scene.consume(channel, "amq.rabbitmq.reply-to", auto_ack=True)


@case
def direct_reply_to_is_gone_with_its_channel(scene: Scene) -> None:
    client, server = scene.channel(), scene.confirming()
    queue = scene.queue(server)
    scene.consume(client, "amq.rabbitmq.reply-to", auto_ack=True)
    scene.publish(client, queue, b"question", reply_to="amq.rabbitmq.reply-to")
    reply_to = scene.take(server, queue).properties.reply_to
    server.queue_declare(reply_to, passive=True)
    client.close()
    with scene.refused(server, 404):
        server.queue_declare(reply_to, passive=True)
