"""Publisher confirms (rabbit_channel.erl, and "Confirms" of RabbitMQ's documentation)."""

from __future__ import annotations

from pamqp import commands

from tests.transports.amqp.oracle.play import case
from tests.transports.amqp.oracle.raw import Raw
from tests.transports.amqp.oracle.scene import Scene


def confirming(scene: Scene, channels: int = 1) -> Raw:
    """Return a connection whose channels are all in confirm mode."""
    raw = scene.raw().open(channels=channels)
    for channel in range(1, channels + 1):
        raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk, channel)
    return raw


def confirmed(raw: Raw, count: int, channel: int = 1) -> list[int]:
    """Wait until so many publications are confirmed; return their numbers, in order."""
    numbers: list[int] = []
    while len(numbers) < count:
        ack = raw.expect(commands.Basic.Ack, channel)
        if ack.multiple:
            # It covers those below that are not yet confirmed.
            numbers += [each for each in range(1, ack.delivery_tag) if each not in numbers]
        numbers.append(ack.delivery_tag)
    return numbers


@case
def numbers_start_at_one(scene: Scene) -> None:
    raw = confirming(scene)
    queue = raw.queue()
    raw.content(b"a", key=queue)
    ack = raw.expect(commands.Basic.Ack)
    assert ack.delivery_tag == 1


@case
def each_is_confirmed_once(scene: Scene) -> None:
    raw = confirming(scene)
    queue = raw.queue()
    for _ in range(500):
        raw.content(b"a", key=queue)
    assert sorted(confirmed(raw, 500)) == list(range(1, 501))


@case
def numbers_belong_to_a_channel(scene: Scene) -> None:
    raw = confirming(scene, 2)
    queue = raw.queue()
    for channel in (1, 2, 1):
        raw.content(b"a", key=queue, channel=channel)
        if channel == 2:
            assert raw.expect(commands.Basic.Ack, 2).delivery_tag == 1
        else:
            raw.expect(commands.Basic.Ack, 1)


@case
def publications_before_select_do_not_count(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.content(b"a", key=queue)
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.content(b"b", key=queue)
    assert raw.expect(commands.Basic.Ack).delivery_tag == 1


@case
def select_twice_goes_on_counting(scene: Scene) -> None:
    raw = confirming(scene)
    queue = raw.queue()
    raw.content(b"a", key=queue)
    assert confirmed(raw, 1) == [1]
    raw.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    raw.content(b"b", key=queue)
    assert raw.expect(commands.Basic.Ack).delivery_tag == 2


@case
def select_without_an_answer(scene: Scene) -> None:
    raw = scene.raw().open()
    queue = raw.queue()
    raw.method(commands.Confirm.Select(nowait=True))
    raw.content(b"a", key=queue)
    assert raw.expect(commands.Basic.Ack).delivery_tag == 1


@case
def confirmed_means_queued(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    raw = confirming(scene)
    raw.content(b"a", key=queue)
    confirmed(raw, 1)
    assert scene.ready(channel, queue) == 1


@case
def unroutable_is_confirmed(scene: Scene) -> None:
    raw = confirming(scene)
    raw.content(b"a", key=scene.name())
    assert confirmed(raw, 1) == [1]


@case
def unroutable_and_mandatory_comes_back_first(scene: Scene) -> None:
    raw = confirming(scene)
    raw.content(b"a", key=scene.name(), mandatory=True)
    assert dict(raw.message(commands.Basic.Return).method)["reply_code"] == 312
    assert confirmed(raw, 1) == [1]


@case
def missing_exchange_is_404_without_a_confirm(scene: Scene) -> None:
    raw = confirming(scene)
    name = scene.name()
    raw.content(b"a", exchange=name)
    raw.channel_refused(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")


@case
def earlier_ones_are_confirmed_before_an_error(scene: Scene) -> None:
    raw = confirming(scene)
    queue = raw.queue()
    raw.content(b"a", key=queue)
    assert confirmed(raw, 1) == [1]
    raw.content(b"b", exchange=scene.name())
    raw.channel_refused(404)
    raw.open_channel(1)
    declared = raw.call(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)
    assert declared.message_count == 1


@case
def persistent_in_a_durable_queue(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, durable=True, exclusive=False)
    raw = confirming(scene)
    for _ in range(20):
        raw.content(b"a", key=queue, properties=commands.Basic.Properties(delivery_mode=2))
    assert sorted(confirmed(raw, 20)) == list(range(1, 21))


@case
def to_several_queues_is_confirmed_once(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "fanout")
    queues = [scene.queue(channel) for _ in range(3)]
    for queue in queues:
        channel.queue_bind(queue, exchange)
    raw = confirming(scene)
    raw.content(b"a", exchange=exchange)
    assert confirmed(raw, 1) == [1]
    raw.content(b"b", exchange=exchange)
    assert confirmed(raw, 1)[-1] == 2
    assert [scene.ready(channel, queue) for queue in queues] == [2, 2, 2]


@case
def to_a_consumer_without_acks(scene: Scene) -> None:
    raw = confirming(scene, 2)
    queue = raw.queue(2)
    raw.call(commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk, 2)
    raw.content(b"a", key=queue)
    kinds: list[str] = []
    for _ in range(4):
        found = raw.next()
        kinds.append(found.method.name if found.method is not None else "content")
    assert sorted(kinds) == ["Basic.Ack", "Basic.Deliver", "content", "content"]


@case
def not_until_the_consumer_acknowledges(scene: Scene) -> None:
    # A confirm tells that the queue has it, and says nothing of consumers.
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=False)
    scene.consume(channel, queue)
    raw = confirming(scene)
    raw.content(b"a", key=queue)
    assert confirmed(raw, 1) == [1]


@case
def message_without_time_is_confirmed(scene: Scene) -> None:
    raw = confirming(scene)
    queue = raw.queue(arguments={"x-message-ttl": 0})
    raw.content(b"a", key=queue)
    assert confirmed(raw, 1) == [1]


@case
def deleted_queue_leaves_no_confirm_behind(scene: Scene) -> None:
    raw = confirming(scene, 2)
    queue = raw.queue(2)
    for _ in range(10):
        raw.content(b"a", key=queue)
    raw.method(commands.Queue.Delete(queue=queue), 2)
    numbers: set[int] = set()
    deleted = False
    while len(numbers) < 10 or not deleted:
        found = raw.next()
        method = found.method
        if isinstance(method, commands.Basic.Ack):
            first = 1 if method.multiple else method.delivery_tag
            numbers |= set(range(first, method.delivery_tag + 1))
        else:
            assert isinstance(method, commands.Queue.DeleteOk), found
            deleted = True
    assert numbers == set(range(1, 11))


@case
def many_in_flight_over_many_frames(scene: Scene) -> None:
    raw = confirming(scene)
    queue = raw.queue()
    for _ in range(10):
        raw.content(bytes(300_000), key=queue)
    assert sorted(confirmed(raw, 10)) == list(range(1, 11))


@case
def tx_in_confirm_mode(scene: Scene) -> None:
    raw = confirming(scene)
    raw.method(commands.Tx.Select())
    if scene.on_rabbitmq:
        raw.channel_refused(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")
    else:
        raw.refused(540, "NOT_IMPLEMENTED")
