"""Exchanges: declaring, deleting, binding (rabbit_exchange.erl, rabbit_binding.erl)."""

from __future__ import annotations

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.scene import Scene

PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


@case
def predeclared(scene: Scene) -> None:
    channel = scene.channel()
    for name in PREDECLARED:
        channel.exchange_declare(name, passive=True)


@case
def predeclared_may_be_declared_as_they_are(scene: Scene) -> None:
    channel = scene.channel()
    for name, kind in PREDECLARED.items():
        channel.exchange_declare(name, kind, durable=True)


@case
def predeclared_may_not_be_declared_otherwise(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange"):
        channel.exchange_declare("amq.direct", "fanout", durable=True)


@case
def reserved_prefix_is_403(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(
        channel, 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    ):
        channel.exchange_declare("amq.mine", "direct")


@case
def predeclared_may_not_be_deleted(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(channel, 403, "ACCESS_REFUSED"):
        channel.exchange_delete("amq.fanout")


@case
def default_exchange_may_not_be_declared(scene: Scene) -> None:
    channel = scene.channel()
    with scene.refused(
        channel, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"
    ):
        channel.exchange_declare("", "direct", durable=True)


@case
def default_exchange_may_not_be_deleted(scene: Scene) -> None:
    raw = scene.raw().open()
    raw.method(commands.Exchange.Delete(exchange=""))
    raw.channel_refused(403, "ACCESS_REFUSED - operation not permitted on the default exchange")


@case
def default_exchange_may_not_be_bound(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    with scene.refused(
        channel, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"
    ):
        channel.queue_bind(queue, "", "key")


@case
def default_exchange_may_not_be_unbound(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel)
    with scene.refused(
        channel, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"
    ):
        channel.queue_unbind(queue, "", queue)


@case
def passive_finds_it(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "topic")
    channel.exchange_declare(exchange, passive=True)


@case
def passive_does_not_compare(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "topic")
    channel.exchange_declare(exchange, "fanout", passive=True, durable=True)


@case
def passive_missing_is_404(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, passive=True)


@case
def declared_again(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "fanout", durable=True)
    channel.exchange_declare(exchange, "fanout", durable=True)


@case
def declared_with_another_type_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "fanout")
    with scene.refused(
        channel,
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{exchange}' in vhost '/': "
        "received 'topic' but current is 'fanout'",
    ):
        channel.exchange_declare(exchange, "topic")


@case
def declared_with_another_durability_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "fanout")
    with scene.refused(
        channel,
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for exchange '{exchange}' in vhost '/': "
        "received 'true' but current is 'false'",
    ):
        channel.exchange_declare(exchange, "fanout", durable=True)


@case
def declared_with_another_auto_delete_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for"):
        channel.exchange_declare(exchange, "direct", auto_delete=True)


@case
def declared_with_another_internal_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel)
    with scene.refused(channel, 406, "PRECONDITION_FAILED - inequivalent arg 'internal' for"):
        channel.exchange_declare(exchange, "direct", internal=True)


@case
def declared_with_another_alternate_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "direct", {"alternate-exchange": "amq.fanout"})
    with scene.refused(
        channel, 406, "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for"
    ):
        channel.exchange_declare(exchange, "direct")


@case
def declared_with_other_unknown_arguments(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "direct", {"x-mine": 1})
    channel.exchange_declare(exchange, "direct", arguments={"x-mine": 2})


@case
def unknown_type_is_503(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    with scene.cut_off(connection, 503, "COMMAND_INVALID - unknown exchange type 'nope'"):
        channel.exchange_declare(scene.name(), "nope")


@case
def names_of_255_bytes(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name("e").ljust(255, "x")
    queue = scene.queue(channel)
    scene.exchange(channel, "fanout", exchange=name)
    channel.queue_bind(queue, name)
    scene.publish(channel, "", b"a", exchange=name)
    assert scene.take(channel, queue).method.exchange == name


@case
def names_in_utf_8(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name("börse-価格")
    queue = scene.queue(channel)
    scene.exchange(channel, "fanout", exchange=name)
    channel.queue_bind(queue, name)
    scene.publish(channel, "schlüssel", b"a", exchange=name)
    got = scene.take(channel, queue)
    assert (got.method.exchange, got.method.routing_key) == (name, "schlüssel")


@case
def declared_without_an_answer(scene: Scene) -> None:
    raw = scene.raw().open()
    name = scene.name()
    scene.forget(exchange=name)
    raw.method(commands.Exchange.Declare(exchange=name, exchange_type="fanout", nowait=True))
    raw.call(commands.Exchange.Declare(exchange=name, passive=True), commands.Exchange.DeclareOk)
    raw.method(commands.Exchange.Delete(exchange=name, nowait=True))
    raw.method(commands.Exchange.Declare(exchange=name, passive=True))
    raw.channel_refused(404, "NOT_FOUND", method=(40, 10))


@case
def deleting_what_is_not_there(scene: Scene) -> None:
    scene.channel().exchange_delete(scene.name())


@case
def deleting_ends_its_bindings(scene: Scene) -> None:
    channel = scene.confirming()
    exchange = scene.exchange(channel, "fanout")
    queue = scene.queue(channel)
    channel.queue_bind(queue, exchange)
    channel.exchange_delete(exchange)
    channel.exchange_declare(exchange, "fanout")
    scene.publish(channel, "", b"a", exchange=exchange)
    assert scene.drain(channel, queue) == []


@case
def deleted_if_unused(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel)
    channel.exchange_delete(exchange, if_unused=True)
    assert not scene.exists(exchange=exchange)


@case
def deleted_if_unused_but_bound_is_406(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel)
    channel.queue_bind(scene.queue(channel), exchange, "k")
    with scene.refused(
        channel, 406, f"PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use"
    ):
        channel.exchange_delete(exchange, if_unused=True)
    assert scene.exists(exchange=exchange)


@case
def deleted_if_unused_where_it_is_a_destination_only(scene: Scene) -> None:
    channel = scene.channel()
    source, destination = scene.exchange(channel), scene.exchange(channel)
    channel.exchange_bind(destination, source, "k")
    channel.exchange_delete(destination, if_unused=True)
    assert not scene.exists(exchange=destination)


@case
def auto_delete_waits_for_a_first_binding(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, auto_delete=True)
    assert scene.exists(exchange=exchange)


@case
def auto_deleted_when_the_last_binding_goes(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, auto_delete=True)
    queue = scene.queue(channel)
    channel.queue_bind(queue, exchange, "a")
    channel.queue_bind(queue, exchange, "b")
    channel.queue_unbind(queue, exchange, "a")
    assert scene.exists(exchange=exchange)
    channel.queue_unbind(queue, exchange, "b")
    assert not scene.exists(exchange=exchange)


@case
def auto_deleted_with_its_last_queue(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, auto_delete=True)
    queue = scene.queue(channel)
    channel.queue_bind(queue, exchange, "a")
    channel.queue_delete(queue)
    assert not scene.exists(exchange=exchange)


@case
def auto_deleted_with_its_last_destination(scene: Scene) -> None:
    channel = scene.channel()
    source = scene.exchange(channel, auto_delete=True)
    destination = scene.exchange(channel)
    channel.exchange_bind(destination, source, "k")
    channel.exchange_delete(destination)
    assert not scene.exists(exchange=source)


@case
def auto_deletion_goes_up_the_chain(scene: Scene) -> None:
    channel = scene.channel()
    first = scene.exchange(channel, auto_delete=True)
    second = scene.exchange(channel, auto_delete=True)
    queue = scene.queue(channel)
    channel.exchange_bind(second, first, "k")
    channel.queue_bind(queue, second, "k")
    channel.queue_delete(queue)
    assert not scene.exists(exchange=second)
    assert not scene.exists(exchange=first)


@case
def binding_to_a_missing_exchange_is_404(scene: Scene) -> None:
    channel = scene.channel()
    queue, name = scene.queue(channel), scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.queue_bind(queue, name, "k")


@case
def binding_a_missing_queue_is_404(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no queue '{name}' in vhost '/'"):
        channel.queue_bind(name, "amq.direct", "k")


@case
def unbinding_what_is_not_bound(scene: Scene) -> None:
    channel = scene.channel()
    channel.queue_unbind(scene.queue(channel), "amq.direct", "never")


@case
def unbinding_from_a_missing_exchange(scene: Scene) -> None:
    channel = scene.channel()
    channel.queue_unbind(scene.queue(channel), scene.name(), "k")


@case
def unbinding_a_missing_queue(scene: Scene) -> None:
    channel = scene.channel()
    channel.queue_unbind(scene.name(), "amq.direct", "k")


@case
def bound_twice_is_bound_once(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel), scene.queue(channel)
    channel.queue_bind(queue, exchange, "k")
    channel.queue_bind(queue, exchange, "k")
    scene.publish(channel, "k", b"a", exchange=exchange)
    assert scene.drain(channel, queue) == [b"a"]
    channel.queue_unbind(queue, exchange, "k")
    scene.publish(channel, "k", b"b", exchange=exchange)
    assert scene.drain(channel, queue) == []


@case
def bindings_with_other_arguments_are_others(scene: Scene) -> None:
    channel = scene.confirming()
    exchange, queue = scene.exchange(channel), scene.queue(channel)
    channel.queue_bind(queue, exchange, "k", {"x": 1})
    channel.queue_bind(queue, exchange, "k", {"x": 2})
    channel.queue_unbind(queue, exchange, "k", {"x": 1})
    scene.publish(channel, "k", b"a", exchange=exchange)
    assert scene.drain(channel, queue) == [b"a"]
    channel.queue_unbind(queue, exchange, "k", {"x": 2})
    scene.publish(channel, "k", b"b", exchange=exchange)
    assert scene.drain(channel, queue) == []


@case
def bound_without_an_answer(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.method(commands.Queue.Bind(queue=queue, exchange="amq.fanout", routing_key="", nowait=True))
    raw.content(b"a", exchange="amq.fanout")
    raw.method(commands.Basic.Get(queue=queue, no_ack=True))
    assert raw.message(commands.Basic.GetOk).body == b"a"


@case
def internal_exchanges_take_no_publications(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "fanout", internal=True)
    with scene.refused(
        channel,
        403,
        f"ACCESS_REFUSED - cannot publish to internal exchange '{exchange}' in vhost '/'",
    ):
        scene.publish(channel, "k", b"a", exchange=exchange)


@case
def internal_exchanges_take_what_other_exchanges_send(scene: Scene) -> None:
    channel = scene.channel()
    outer = scene.exchange(channel, "fanout")
    inner = scene.exchange(channel, "fanout", internal=True)
    queue = scene.queue(channel)
    channel.exchange_bind(inner, outer)
    channel.queue_bind(queue, inner)
    scene.publish(channel, "k", b"a", exchange=outer)
    assert scene.take(channel, queue).body == b"a"


@case
def publishing_to_a_missing_exchange_is_404(scene: Scene) -> None:
    channel = scene.channel()
    name = scene.name()
    with scene.refused(channel, 404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        scene.publish(channel, "k", b"a", exchange=name)
