"""Publishing: bodies of all sizes, content in pieces, returned messages, and its errors."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.raw import BODY, content_header, packed
from tests.transports.amqp.oracle.scene import Scene


@case
def empty_body(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"", content_type="x/y")
    got = scene.take(channel, queue)
    assert (got.body, got.properties.content_type) == (b"", "x/y")


@case
def empty_body_to_a_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    consumer = scene.consume(channel, queue)
    scene.publish(channel, queue, b"", b"a", b"")
    scene.until(lambda: consumer.bodies == [b"", b"a", b""])


@case
def empty_body_has_no_body_frame(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"", key=queue)
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    assert raw.message(commands.Basic.GetOk).pieces == ()


@case
def body_of_many_frames(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    body = bytes(range(256)) * 8_192
    scene.publish(channel, queue, body)
    assert scene.take(channel, queue).body == body


@case
def body_in_small_pieces(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"0123456789" * 20, key=queue, piece=7)
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"0123456789" * 20


@case
def deliveries_keep_to_the_frame_max(scene: Scene) -> None:
    channel = scene.channel()
    raw = scene.raw().open(frame_max=4_096)
    queue = raw.queue()
    body = bytes(range(256)) * 100
    scene.publish(channel, queue, body)
    raw.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
    message = raw.message(commands.Basic.Deliver)
    assert message.body == body
    assert max(len(piece) + 8 for piece in message.pieces) == 4_096


@case
def bodies_around_the_frame_max(scene: Scene) -> None:
    raw = scene.raw().open(frame_max=4_096)
    queue = raw.queue()
    for size in (4_087, 4_088, 4_089, 8_176, 8_177):
        raw.content(bytes(size), key=queue)
        raw.method(commands.Basic.Get(queue=queue, no_ack=True))
        assert len(raw.message(commands.Basic.GetOk).body) == size


@case
def heartbeat_within_content(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.method(commands.Basic.Publish(routing_key=queue))
    raw.heartbeat()
    raw.send(content_header(1))
    raw.heartbeat()
    raw.send(packed(BODY, 1, b"a"))
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"


@case
def body_longer_than_announced(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.method(commands.Basic.Publish(routing_key=queue))
    raw.send(content_header(3) + packed(BODY, 1, b"abcdef"))
    if scene.on_rabbitmq:
        raw.method(commands.Basic.Get(queue=queue, no_ack=True))
        assert raw.next().method is not None
    else:
        raw.refused(501)


@case
def properties_cut_short(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.method(commands.Basic.Publish(routing_key=queue))
    # A content type of nine bytes, of which there are two.
    raw.send(content_header(0, b"\x80\x00\x09ab"))
    if scene.on_rabbitmq:
        raw.refused(541, "INTERNAL_ERROR")
    else:
        raw.refused(502, "SYNTAX_ERROR", method=(60, 40))


@case
def immediate_is_540(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.content(b"a", key=raw.queue(), immediate=True)
    raw.refused(540, "NOT_IMPLEMENTED - immediate=true", method=(60, 40))


@case
def mandatory_message_that_is_routed(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"a", key=queue, mandatory=True)
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"


@case
def mandatory_message_that_is_not_routed_comes_back(scene: Scene) -> None:
    raw = scene.raw().open()
    key = scene.name()
    properties = commands.Basic.Properties(message_id="m", headers={"a": 1})
    raw.content(b"body", exchange="amq.direct", key=key, mandatory=True, properties=properties)
    message = raw.message(commands.Basic.Return)
    assert dict(message.method) == {
        "reply_code": 312,
        "reply_text": "NO_ROUTE",
        "exchange": "amq.direct",
        "routing_key": key,
    }
    assert message.body == b"body"
    assert (message.properties.message_id, message.properties.headers) == ("m", {"a": 1})


@case
def mandatory_message_to_the_default_exchange_comes_back(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.content(b"", key=scene.name(), mandatory=True)
    message = raw.message(commands.Basic.Return)
    assert (dict(message.method)["exchange"], message.body) == ("", b"")


@case
def unroutable_message_is_dropped(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.content(b"a", key=scene.name())
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk)


@case
def missing_exchange_is_404_and_closes_the_channel_alone(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    name = scene.name()
    raw.content(b"a", exchange=name)
    raw.channel_refused(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", method=(60, 40))
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk, 2)


@case
def user_id_of_the_user(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a", user_id="guest")
    assert scene.take(channel, queue).properties.user_id == "guest"


@case
def user_id_of_another_is_406(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - user_id property set to 'other'"):
        scene.publish(channel, queue, b"a", user_id="other")


@case
def keys_of_255_bytes(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    key = scene.name("k").ljust(255, "k")
    channel.queue_bind(queue, "amq.direct", key)
    scene.publish(channel, key, b"a", exchange="amq.direct")
    assert scene.take(channel, queue).method.routing_key == key


@case
def publishing_and_consuming_on_one_channel(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    channel.basic_qos(prefetch_count=10)
    got: list[bytes] = []

    def on_message(_: object, method: Any, __: object, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(got) < 300:
            channel.basic_publish("", queue, b"%d" % len(got))

    channel.basic_consume(queue, on_message)
    channel.basic_publish("", queue, b"0")
    scene.until(lambda: len(got) == 300)
    assert got == [b"%d" % number for number in range(300)]


@case
def one_message_to_a_hundred_queues(scene: Scene) -> None:
    channel = scene.confirming()
    exchange = scene.exchange(channel, "fanout")
    queues = [scene.queue(channel) for _ in range(100)]
    for queue in queues:
        channel.queue_bind(queue, exchange)
    scene.publish(channel, "", b"a", exchange=exchange)
    assert [scene.drain(channel, queue) for queue in queues] == [[b"a"]] * 100
