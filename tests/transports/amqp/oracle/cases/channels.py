"""Channels: their beginning and end, and the errors that close them (AMQP 0-9-1, class channel)."""

from __future__ import annotations

import struct

from pamqp import base, commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.raw import (
    BODY,
    METHOD,
    Raw,
    content_header,
    method_bytes,
    packed,
)
from tests.transports.amqp.oracle.scene import Scene

CLOSE = commands.Channel.Close(200, "", 0, 0)


def short(text: str) -> bytes:
    """Return a short string."""
    return bytes((len(text),)) + text.encode()


def error(raw: Raw, channel: int = 1) -> None:
    """Have a channel closed for an error, and agree."""
    raw.method(commands.Queue.Declare(queue="no-such-queue", passive=True), channel)
    raw.channel_refused(404, channel=channel)


# ---- Opening ------------------------------------------------------------------------------------


@case
def numbers_with_gaps(scene: Scene) -> None:
    raw = scene.raw().open(channels=0)
    for number in (7, 2_047, 1):
        raw.open_channel(number)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk, 2_047)


@case
def opened_twice_is_504(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Channel.Open())
    raw.refused(504, "CHANNEL_ERROR - second 'channel.open' seen", method=(20, 10))


@case
def method_on_a_channel_that_is_not_open_is_504(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Qos(), 2)
    raw.refused(504, "CHANNEL_ERROR - expected 'channel.open'", method=(60, 10))


@case
def publication_on_a_channel_that_is_not_open_is_504(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.content(b"a", key="q", channel=2)
    raw.refused(504, "CHANNEL_ERROR - expected 'channel.open'")


@case
def number_above_the_channel_max(scene: Scene) -> None:
    raw = scene.raw().open(channel_max=5)
    raw.method(commands.Channel.Open(), 6)
    if scene.on_rabbitmq:
        raw.expect(commands.Channel.OpenOk, 6)
    else:
        raw.refused(530, "NOT_ALLOWED - channel 6 is above", method=(20, 10))


@case
def one_more_than_the_channel_max_is_530(scene: Scene) -> None:
    raw = scene.raw().open(channel_max=2, channels=2)
    raw.method(commands.Channel.Open(), 3)
    raw.refused(530, "NOT_ALLOWED - number of channels opened (2) has reached the negotiated")


@case
def closing_makes_room_below_the_channel_max(scene: Scene) -> None:
    raw = scene.raw().open(channel_max=2, channels=2)
    raw.call(CLOSE, commands.Channel.CloseOk, 1)
    raw.open_channel(1)


@case
def an_error_makes_room_below_the_channel_max(scene: Scene) -> None:
    raw = scene.raw().open(channel_max=2, channels=2)
    error(raw, 2)
    raw.open_channel(2)


# ---- Closing ------------------------------------------------------------------------------------


@case
def closing_is_answered_on_its_channel(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    raw.call(CLOSE, commands.Channel.CloseOk, 2)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk, 1)


@case
def closed_by_its_client_is_opened_again(scene: Scene) -> None:
    raw = scene.raw().open()
    for _ in range(50):
        raw.call(CLOSE, commands.Channel.CloseOk)
        raw.open_channel(1)


@case
def method_after_its_client_closed_it_is_504(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.call(CLOSE, commands.Channel.CloseOk)
    raw.method(commands.Basic.Qos())
    raw.refused(504, "CHANNEL_ERROR - expected 'channel.open'")


@case
def closing_one_that_is_not_open_is_504(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(CLOSE, 2)
    raw.refused(504, "CHANNEL_ERROR - expected 'channel.open'", method=(20, 40))


@case
def close_ok_that_nobody_asked_for(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Channel.CloseOk())
    if scene.on_rabbitmq:
        raw.refused(503, "COMMAND_INVALID", method=(20, 41))
    else:
        raw.alive()


@case
def closing_gives_back_what_is_unacknowledged(scene: Scene) -> None:
    channel, other = scene.channel(), scene.channel()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a", b"b")
    assert scene.take(other, queue, auto_ack=False).body == b"a"
    other.close()
    got = scene.take(channel, queue)
    assert (got.body, got.method.redelivered) == (b"a", True)
    got = scene.take(channel, queue)
    assert (got.body, got.method.redelivered) == (b"b", False)


@case
def closing_ends_its_consumers_alone(scene: Scene) -> None:
    channel, other = scene.channel(), scene.channel()
    queue = scene.queue(channel)
    scene.consume(other, queue)
    mine = scene.consume(channel, queue)
    assert scene.consumers(channel, queue) == 2
    other.close()
    scene.until(lambda: scene.consumers(channel, queue) == 1)
    scene.publish(channel, queue, b"a", b"b")
    scene.until(lambda: mine.bodies == [b"a", b"b"])


@case
def exclusive_queue_outlives_its_channel(scene: Scene) -> None:
    channel, other = scene.channel(), scene.channel()
    queue = scene.queue(other)
    other.close()
    assert scene.ready(channel, queue) == 0


@case
def auto_delete_queue_goes_with_the_channel_of_its_last_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, auto_delete=True, exclusive=False)
    scene.consume(channel, queue)
    channel.close()
    scene.until(lambda: not scene.exists(queue=queue))


@case
def closing_takes_what_was_published_before(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    raw = scene.raw().open()
    raw.content(b"a", key=queue)
    raw.call(CLOSE, commands.Channel.CloseOk)
    assert scene.take(channel, queue).body == b"a"


@case
def closing_within_a_publication_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Publish(routing_key="q"))
    raw.method(CLOSE)
    raw.refused(505, "UNEXPECTED_FRAME")


# ---- Soft errors --------------------------------------------------------------------------------


@case
def soft_error_leaves_the_connection_and_the_others(scene: Scene) -> None:
    channel, other = scene.channel(), scene.channel()
    queue = scene.queue(channel)
    consumer = scene.consume(channel, queue)
    with scene.refused(other, 404, "NOT_FOUND"):
        other.queue_declare("no-such-queue", passive=True)
    scene.publish(channel, queue, b"a")
    scene.until(lambda: consumer.bodies == [b"a"])


@case
def opened_again_after_a_soft_error(scene: Scene) -> None:
    raw = scene.raw().open()
    for _ in range(20):
        error(raw)
        raw.open_channel(1)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk)


@case
def nothing_is_taken_after_a_soft_error(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue="no-such-queue", passive=True))
    raw.content(b"late", key=queue)
    raw.method(commands.Queue.Delete(queue=queue))
    raw.channel_refused(404)
    raw.alive()
    assert scene.ready(channel, queue) == 0


@case
def second_error_is_passed_over(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue="no-such-queue", passive=True))
    raw.method(commands.Basic.Ack(17))
    raw.channel_refused(404, method=(50, 10))
    raw.alive()


@case
def opening_before_close_ok(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue="no-such-queue", passive=True))
    raw.expect(commands.Channel.Close)
    raw.method(commands.Channel.Open())
    if scene.on_rabbitmq:
        raw.refused(504, "CHANNEL_ERROR - second 'channel.open' seen")
    else:
        raw.method(commands.Channel.CloseOk())
        raw.open_channel(1)


@case
def both_sides_close_at_once(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue="no-such-queue", passive=True))
    raw.method(CLOSE)
    raw.expect(commands.Channel.Close)
    raw.expect(commands.Channel.CloseOk)
    raw.method(commands.Channel.CloseOk())
    raw.open_channel(1)


@case
def connection_is_closed_while_a_channel_is_closing(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue="no-such-queue", passive=True))
    raw.expect(commands.Channel.Close)
    raw.call(commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk, 0)


@case
def soft_error_gives_back_what_is_unacknowledged(scene: Scene) -> None:
    channel, other = scene.channel(), scene.channel()
    queue = scene.queue(channel)
    scene.publish(channel, queue, b"a")
    scene.take(other, queue, auto_ack=False)
    with scene.refused(other, 404):
        other.queue_declare("no-such-queue", passive=True)
    got = scene.take(channel, queue)
    assert (got.body, got.method.redelivered) == (b"a", True)


@case
def soft_error_ends_its_consumers(scene: Scene) -> None:
    channel, other = scene.channel(), scene.channel()
    queue = scene.queue(channel)
    scene.consume(other, queue)
    with scene.refused(other, 404):
        other.queue_declare("no-such-queue", passive=True)
    scene.until(lambda: scene.consumers(channel, queue) == 0)


@case
def soft_error_keeps_what_was_done_before_it(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    raw = scene.raw().open()
    raw.content(b"a", key=queue)
    error(raw)
    assert scene.take(channel, queue).body == b"a"


@case
def error_of_a_method_without_an_answer(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Queue.Declare(queue="no-such-queue", passive=True, nowait=True))
    raw.channel_refused(404, "NOT_FOUND - no queue 'no-such-queue' in vhost '/'", method=(50, 10))


@case
def long_texts_end_with_dots(scene: Scene) -> None:
    raw = scene.raw().open()
    arguments = b"\x00\x00" + short("q" * 255) + b"\x01" + struct.pack(">I", 0)
    raw.send(packed(METHOD, 1, method_bytes(50, 10, arguments)))
    text = raw.channel_refused(404, "NOT_FOUND - no queue 'qqq")
    assert len(text) == 255
    assert text.endswith("q...")


def errors_tell(scene: Scene, table: tuple[tuple[base.Frame, int, tuple[int, int]], ...]) -> None:
    """See that each method closes its channel with a code, and with its own number."""
    raw = scene.raw().open()
    for method, code, number in table:
        raw.method(method)
        raw.channel_refused(code, method=number)
        raw.open_channel(1)


@case
def errors_of_class_queue_tell_their_method(scene: Scene) -> None:
    errors_tell(
        scene,
        (
            (commands.Queue.Declare(queue="nil", passive=True), 404, (50, 10)),
            (commands.Queue.Bind(queue="nil", exchange="amq.topic"), 404, (50, 20)),
            (commands.Queue.Purge(queue="nil"), 404, (50, 30)),
        ),
    )


@case
def errors_of_class_exchange_tell_their_method(scene: Scene) -> None:
    errors_tell(
        scene,
        (
            (commands.Exchange.Declare(exchange="nil", passive=True), 404, (40, 10)),
            (commands.Exchange.Delete(exchange="amq.direct"), 403, (40, 20)),
            (commands.Exchange.Bind(destination="nil", source="amq.topic"), 404, (40, 30)),
        ),
    )


@case
def errors_of_class_basic_tell_their_method(scene: Scene) -> None:
    errors_tell(
        scene,
        (
            (commands.Basic.Consume(queue="nil"), 404, (60, 20)),
            (commands.Basic.Get(queue="nil"), 404, (60, 70)),
            (commands.Basic.Ack(1), 406, (60, 80)),
            (commands.Basic.Reject(1), 406, (60, 90)),
            (commands.Basic.Nack(1), 406, (60, 120)),
        ),
    )


# ---- What a channel has of its own --------------------------------------------------------------


@case
def delivery_tags_begin_at_1_on_each_channel(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.publish(first, queue, b"a", b"b", b"c")
    assert scene.take(first, queue, auto_ack=False).method.delivery_tag == 1
    assert scene.take(second, queue, auto_ack=False).method.delivery_tag == 1
    assert scene.take(first, queue, auto_ack=False).method.delivery_tag == 2


@case
def delivery_tags_begin_again_after_an_error(scene: Scene) -> None:
    queue = scene.queue(scene.channel(), exclusive=False)
    raw = scene.raw().open()
    raw.content(b"a", key=queue)
    raw.content(b"b", key=queue)
    for tag in (1, 2):
        raw.method(commands.Basic.Get(queue=queue, no_ack=True))
        got = raw.message(commands.Basic.GetOk).method
        assert isinstance(got, commands.Basic.GetOk)
        assert got.delivery_tag == tag
    error(raw)
    raw.open_channel(1)
    raw.content(b"c", key=queue)
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    got = raw.message(commands.Basic.GetOk).method
    assert isinstance(got, commands.Basic.GetOk)
    assert got.delivery_tag == 1


@case
def tags_of_another_channel_are_unknown(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    scene.publish(first, queue, b"a")
    tag = scene.take(first, queue, auto_ack=False).method.delivery_tag
    with scene.refused(second, 406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        second.basic_ack(tag)
    first.basic_ack(tag)
    assert scene.ready(first, queue) == 0


@case
def same_consumer_tag_on_two_channels(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    queue = scene.queue(first)
    assert scene.consume(first, queue, consumer_tag="same").tag == "same"
    assert scene.consume(second, queue, consumer_tag="same").tag == "same"
    assert scene.consumers(first, queue) == 2


@case
def confirms_are_of_one_channel(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk, 1)
    raw.content(b"a", key="nobody", channel=2)
    raw.content(b"b", key="nobody", channel=1)
    assert raw.expect(commands.Basic.Ack, 1).delivery_tag == 1


@case
def confirms_are_gone_after_an_error(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.content(b"a", key="nobody")
    raw.expect(commands.Basic.Ack)
    error(raw)
    raw.open_channel(1)
    raw.content(b"b", key="nobody")
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk)
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.content(b"c", key="nobody")
    assert raw.expect(commands.Basic.Ack).delivery_tag == 1


@case
def last_declared_queue_is_the_nameless_one(scene: Scene) -> None:
    raw = scene.raw().open()
    name = raw.queue()
    raw.content(b"a", key=name)
    raw.method(commands.Basic.Get(queue="", no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"


@case
def nameless_queue_without_a_declaration_is_404(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    raw.queue()
    raw.method(commands.Basic.Get(queue=""), 2)
    raw.channel_refused(404, "NOT_FOUND - no previously declared queue", channel=2)


# ---- Flow ---------------------------------------------------------------------------------------


@case
def flow_on_is_answered(scene: Scene) -> None:
    raw = scene.raw().open()
    assert raw.call(commands.Channel.Flow(True), commands.Channel.FlowOk).active is True


@case
def flow_off_is_540(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Channel.Flow(False))
    raw.refused(540, "NOT_IMPLEMENTED - active=false", method=(20, 20))


@case
def flow_ok_that_nobody_asked_for(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Channel.FlowOk(True))
    if scene.on_rabbitmq:
        raw.refused(503, "COMMAND_INVALID", method=(20, 21))
    else:
        raw.alive()


# ---- Contents and channels ----------------------------------------------------------------------


@case
def contents_of_two_channels_interleave(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    name = raw.queue()
    publish = commands.Basic.Publish(routing_key=name)
    raw.method(publish, 1)
    raw.method(publish, 2)
    raw.send(content_header(2, None, 2) + content_header(4, None, 1))
    raw.send(packed(BODY, 1, b"aa") + packed(BODY, 2, b"bb") + packed(BODY, 1, b"aa"))
    found: set[bytes] = set()
    for _ in range(2):
        while raw.call(commands.Queue.Declare(queue=name, passive=True), commands.Queue.DeclareOk) \
                .message_count == 0:  # fmt: skip
            pass
        raw.method(commands.Basic.Get(queue=name, no_ack=True))
        found.add(raw.message(commands.Basic.GetOk).body)
    assert found == {b"aaaa", b"bb"}


@case
def methods_of_another_channel_within_a_content(scene: Scene) -> None:
    raw = scene.raw().open(channels=2)
    raw.method(commands.Basic.Publish(routing_key="nobody"), 1)
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk, 2)
    raw.send(content_header(2, None, 1))
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk, 2)
    raw.send(packed(BODY, 1, b"aa"))
    raw.call(commands.Basic.Qos(), commands.Basic.QosOk, 1)


@case
def method_where_a_header_is_due_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Publish(routing_key="nobody"))
    raw.method(commands.Basic.Qos())
    raw.refused(
        505, "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame"
    )


@case
def method_where_a_body_is_due_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Publish(routing_key="nobody"))
    raw.send(content_header(3))
    raw.method(commands.Basic.Qos())
    raw.refused(505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead")


@case
def body_where_a_header_is_due_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Publish(routing_key="nobody"))
    raw.send(packed(BODY, 1, b"abc"))
    raw.refused(505, "UNEXPECTED_FRAME")


@case
def header_that_no_method_asks_for_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(content_header(3))
    raw.refused(505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead")


@case
def body_that_no_method_asks_for_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.send(packed(BODY, 1, b"abc"))
    raw.refused(505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead")


@case
def header_of_another_class_is_505(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Publish(routing_key="nobody"))
    raw.send(packed(2, 1, struct.pack(">HHQH", 50, 0, 0, 0)))
    raw.refused(
        505, "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead"
    )


@case
def channels_come_and_go(scene: Scene) -> None:
    raw = scene.raw().open(channels=0)
    for _ in range(3):
        for number in range(1, 51):
            raw.open_channel(number)
        for number in range(1, 51):
            raw.close_channel(number)
