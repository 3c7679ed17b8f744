"""Queues: declaring, deleting, purging, exclusiveness (rabbit_amqqueue.erl)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.raw import METHOD, method_bytes, packed
from tests.transports.amqp.oracle.scene import ChannelClosedByBroker, Scene


def locked(name: str) -> str:
    return (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'."
    )


@case
def server_makes_names(scene: Scene) -> None:
    channel = scene.channel()
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("amq.gen-") for name in names)


@case
def declaring_answers_with_counts(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel)
    scene.publish(channel, name, b"a", b"b")
    method = channel.queue_declare(name, exclusive=True).method
    assert (method.queue, method.message_count, method.consumer_count) == (name, 2, 0)
    consumer = scene.consume(channel, name)
    scene.until(lambda: len(consumer.got) == 2)
    method = channel.queue_declare(name, passive=True).method
    # Those that a consumer has are not ready.
    assert (method.message_count, method.consumer_count) == (0, 1)


@case
def reserved_prefix_is_403(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(
        channel, 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    ):
        channel.queue_declare("amq.mine")


@case
def server_made_name_may_be_declared_passively_only(scene: Scene) -> None:
    channel = scene.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    assert channel.queue_declare(name, passive=True).method.queue == name
    with scene.refused(channel, 403, f"ACCESS_REFUSED - queue name '{name}' contains reserved"):
        channel.queue_declare(name, exclusive=True)


@case
def line_ends_are_taken_off_names(scene: Scene) -> None:
    raw = scene.raw().open()
    name = f"{scene.name()}\r\n"
    # pamqp would not send such a name.
    arguments = b"\x00\x00" + bytes((len(name),)) + name.encode() + b"\x04" + bytes(4)
    raw.send(packed(METHOD, 1, method_bytes(50, 10, arguments)))
    assert raw.expect(commands.Queue.DeclareOk).queue == name.strip()


@case
def passive_missing_is_404(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.queue_declare(name, passive=True)


@case
def passive_does_not_compare(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel)
    channel.queue_declare(name, passive=True, durable=True, auto_delete=True)


@case
def empty_name_is_the_last_declared(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.queue()
    name = raw.queue()
    raw.call(
        commands.Queue.Bind(queue="", exchange="amq.fanout", routing_key=""), commands.Queue.BindOk
    )
    raw.content(b"a", key=name)
    raw.method(commands.Basic.Get(queue="", no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"
    raw.content(b"b", key=name)
    assert raw.call(commands.Queue.Purge(queue=""), commands.Queue.PurgeOk).message_count == 1
    raw.call(commands.Basic.Consume(queue="", no_ack=True), commands.Basic.ConsumeOk)
    raw.method(commands.Queue.Delete(queue=""))
    names = {method.name for method in (raw.next().method, raw.next().method) if method}
    assert names == {"Queue.DeleteOk", "Basic.Cancel"}


@case
def empty_name_and_key_bind_by_the_queues_name(scene: Scene) -> None:
    raw = scene.raw().open()
    name = raw.queue()
    raw.call(
        commands.Queue.Bind(queue="", exchange="amq.direct", routing_key=""), commands.Queue.BindOk
    )
    raw.content(b"a", exchange="amq.direct", key=name)
    raw.method(commands.Basic.Get(queue=name, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"


@case
def empty_name_before_any_was_declared_is_404(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Basic.Consume(queue=""))
    raw.channel_refused(404, "NOT_FOUND - no previously declared queue", method=(60, 20))


@case
def exclusive_is_locked_for_others(scene: Scene) -> None:
    name = scene.queue(scene.channel())
    other = scene.connect()
    attempts: dict[str, Callable[[Any], object]] = {
        "declare": lambda channel: channel.queue_declare(name, exclusive=True),
        "declare not exclusively": lambda channel: channel.queue_declare(name),
        "passive": lambda channel: channel.queue_declare(name, passive=True),
        "consume": lambda channel: channel.basic_consume(name, print),
        "get": lambda channel: channel.basic_get(name),
        "purge": lambda channel: channel.queue_purge(name),
        "delete": lambda channel: channel.queue_delete(name),
        "bind": lambda channel: channel.queue_bind(name, "amq.fanout", ""),
    }
    for attempt in attempts.values():
        channel = other.channel()
        with scene.refused(channel, 405, locked(name)):
            attempt(channel)


@case
def exclusive_takes_publications_of_others(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel)
    scene.publish(scene.connect().channel(), name, b"a")
    assert scene.take(channel, name).body == b"a"


@case
def exclusive_goes_with_its_connection(scene: Scene) -> None:
    other = scene.connect()
    name = scene.queue(other.channel())
    watching = scene.connect()
    other.close()

    def gone() -> Any:
        channel = watching.channel()
        with pytest.raises(ChannelClosedByBroker) as caught:
            channel.queue_declare(name, passive=True)
        assert caught.value.reply_code in {404, 405}
        return caught.value.reply_code == 404

    scene.until(gone)


@case
def exclusive_declared_otherwise_by_its_owner(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel)
    with scene.refused(channel, 405, locked(name)):
        channel.queue_declare(name)


@case
def declared_again(scene: Scene) -> None:
    channel = scene.channel()
    arguments = {"x-max-length": 10, "x-message-ttl": 60_000}
    name = scene.queue(channel, arguments, durable=True)
    channel.queue_declare(name, durable=True, exclusive=True, arguments=arguments)


@case
def declared_with_another_durability_is_406(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel, exclusive=False)
    with scene.refused(
        channel,
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{name}' in vhost '/': "
        "received 'true' but current is 'false'",
    ):
        channel.queue_declare(name, durable=True)


@case
def declared_with_another_auto_delete_is_406(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel)
    with scene.refused(
        channel, 406, f"PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '{name}'"
    ):
        channel.queue_declare(name, auto_delete=True, exclusive=True)


@case
def declared_exclusively_when_it_is_not(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel, exclusive=False)
    with scene.refused(channel, 405, locked(name)):
        channel.queue_declare(name, exclusive=True)


@case
def auto_delete_waits_for_a_first_consumer(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel, exclusive=False, auto_delete=True)
    scene.publish(channel, name, b"a")
    assert scene.take(channel, name).body == b"a"
    assert scene.exists(queue=name)


@case
def auto_deleted_when_the_last_consumer_goes(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel, exclusive=False, auto_delete=True)
    first, second = scene.consume(channel, name), scene.consume(channel, name)
    channel.basic_cancel(first.tag)
    assert scene.exists(queue=name)
    channel.basic_cancel(second.tag)
    scene.until(lambda: not scene.exists(queue=name))


@case
def auto_deleted_when_the_consumers_channel_closes(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    name = scene.queue(first, exclusive=False, auto_delete=True)
    scene.consume(second, name)
    second.close()
    scene.until(lambda: not scene.exists(queue=name))


@case
def deleting_tells_how_many_were_ready(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel)
    scene.publish(channel, name, b"a", b"b", b"c")
    scene.take(channel, name, auto_ack=False)
    assert channel.queue_delete(name).method.message_count == 2
    assert not scene.exists(queue=name)


@case
def deleting_what_is_not_there(scene: Scene) -> None:
    assert scene.channel().queue_delete(scene.name()).method.message_count == 0


@case
def deleted_if_unused(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel)
    channel.queue_delete(name, if_unused=True)
    assert not scene.exists(queue=name)


@case
def deleted_if_unused_but_consumed_is_406(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel)
    scene.consume(channel, name)
    with scene.refused(channel, 406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use"):
        channel.queue_delete(name, if_unused=True)
    assert scene.exists(queue=name)


@case
def deleted_if_empty(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.queue(channel)
    channel.queue_delete(name, if_empty=True)
    assert not scene.exists(queue=name)


@case
def deleted_if_empty_but_full_is_406(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel)
    scene.publish(channel, name, b"a")
    with scene.refused(
        channel, 406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty"
    ):
        channel.queue_delete(name, if_empty=True)
    assert scene.exists(queue=name)


@case
def deleting_ends_its_bindings(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, name = scene.exchange(channel, "fanout"), scene.queue(channel)
    channel.queue_bind(name, exchange)
    channel.queue_delete(name)
    scene.queue(channel, queue=name)
    scene.publish(channel, "", b"a", exchange=exchange)
    assert scene.drain(channel, name) == []


@case
def deleted_and_declared_is_another(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel)
    scene.publish(channel, name, b"a")
    channel.queue_delete(name)
    scene.queue(channel, queue=name)
    assert scene.ready(channel, name) == 0


@case
def purging_tells_how_many(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel)
    scene.publish(channel, name, b"a", b"b", b"c")
    assert channel.queue_purge(name).method.message_count == 3
    assert scene.drain(channel, name) == []


@case
def purging_leaves_what_is_unacknowledged(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel)
    scene.publish(channel, name, b"a", b"b")
    got = scene.take(channel, name, auto_ack=False)
    assert channel.queue_purge(name).method.message_count == 1
    channel.basic_nack(got.method.delivery_tag)
    assert scene.take(channel, name).body == b"a"


@case
def purging_what_is_not_there_is_404(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.queue_purge(name)


@case
def names_of_255_bytes(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name("q").ljust(255, "x")
    scene.queue(channel, queue=name)
    scene.publish(channel, name, b"a")
    assert scene.take(channel, name).method.routing_key == name


@case
def names_in_utf_8(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name("日本")
    assert channel.queue_declare(name, exclusive=True).method.queue == name
    scene.publish(channel, name, b"a")
    assert scene.take(channel, name).body == b"a"


@case
def declared_and_deleted_without_answers(scene: Scene) -> None:
    raw = scene.raw().open()
    name = scene.name()
    raw.method(commands.Queue.Declare(queue=name, exclusive=True, nowait=True))
    raw.content(b"a", key=name)
    raw.method(commands.Queue.Purge(queue=name, nowait=True))
    raw.call(commands.Queue.Declare(queue=name, passive=True), commands.Queue.DeclareOk)
    raw.method(commands.Queue.Delete(queue=name, nowait=True))
    raw.method(commands.Queue.Declare(queue=name, passive=True))
    raw.channel_refused(404)


@case
def first_in_first_out(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel)
    bodies = [b"%d" % number for number in range(100)]
    scene.publish(channel, name, *bodies)
    assert scene.drain(channel, name) == bodies


@case
def exclusive_queues_are_never_durable(scene: Scene) -> None:
    channel = scene.confirming()
    name = scene.queue(channel, durable=True)
    channel.queue_declare(name, exclusive=True)
    scene.publish(channel, name, b"a", delivery_mode=2)
    assert scene.take(channel, name).properties.delivery_mode == 2
