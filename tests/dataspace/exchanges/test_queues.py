"""Queues by name: declaring them, their arguments, and how they end."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from clearfunds.accounts import StuckPolicy
from clearfunds.dataspace.exchanges import HostError, Reason
from clearfunds.dataspace.queues import (
    Channel,
    Overflow,
    PrefetchWindow,
    QueueInUseError,
    QueueSettings,
)
from tests.dataspace.exchanges.conftest import Bench, Worker, refused

CONNECTION = object()
OTHER = object()


# -- declaring -------------------------------------------------------------------------------------


def test_a_queue_can_be_declared_again(bench: Bench) -> None:
    arguments = {"x-message-ttl": 1_000, "else": 1}
    first = bench.queue("a", durable=True, auto_delete=True, arguments=arguments)
    again = bench.host.declare_queue(
        "a", durable=True, auto_delete=True, arguments={"x-message-ttl": 1_000.0, "x-queue-type": "classic"}  # noqa: E501
    )  # fmt: skip
    assert first is again is bench.host.find_queue("a")
    assert first.queue.settings == QueueSettings(
        durable=True, auto_delete=True, message_ttl=1.0, delivery_limit=None
    )


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"durable": False}, "'durable' for queue 'a' in vhost '/': received 'false' but current is 'true'"),  # noqa: E501
        ({"auto_delete": True}, "'auto_delete' for queue 'a' in vhost '/': received 'true' but current is 'false'"),  # noqa: E501
        ({"arguments": {"x-message-ttl": 20}}, "'x-message-ttl' for queue 'a' in vhost '/': received '20' but current is '10'"),  # noqa: E501
        ({"arguments": {"x-message-ttl": "foo"}}, "'x-message-ttl' for queue 'a' in vhost '/': received 'foo' but current is '10'"),  # noqa: E501
        ({"arguments": {}}, "'x-message-ttl' for queue 'a' in vhost '/': received none but current is the value '10' of type 'signedint'"),  # noqa: E501
        ({"arguments": {"x-message-ttl": 10, "x-expires": 1 << 31}}, "'x-expires' for queue 'a' in vhost '/': received the value '2147483648' of type 'long' but current is none"),  # noqa: E501
        ({"arguments": {"x-message-ttl": 10, "x-queue-type": "quorum"}}, "'x-queue-type' for queue 'a' in vhost '/': received the value 'quorum' of type 'longstr' but current is none"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_queue_cannot_be_declared_otherwise(bench: Bench, changed: Any, text: str) -> None:
    call = {"durable": True, "arguments": {"x-message-ttl": 10}}
    bench.queue("a", **call)
    refused(
        Reason.PRECONDITION_FAILED,
        f"inequivalent arg {text}",
        bench.host.declare_queue, "a", **{**call, **changed},
    )  # fmt: skip


def test_a_queue_whose_name_the_server_makes(bench: Bench) -> None:
    names = {bench.host.declare_queue("").name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("amq.gen-") and len(name) == 30 for name in names)
    name = names.pop()
    assert bench.publish("", name)
    refused(
        Reason.ACCESS_REFUSED,
        f"queue name '{name}' contains reserved prefix 'amq.*'",
        bench.host.declare_queue, name,
    )  # fmt: skip
    with pytest.raises(HostError, match="at most 255 bytes"):
        bench.host.declare_queue("é" * 128)
    bench.host.declare_queue("é" * 127)


def test_an_exclusive_queue(bench: Bench) -> None:
    host = bench.host
    declared = bench.queue("a", ("amq.direct", "k"), exclusive_to=CONNECTION, durable=True)
    assert not declared.durable  # it goes with its connection
    assert host.declare_queue("a", exclusive_to=CONNECTION) is declared
    assert host.find_queue("a", CONNECTION) is declared
    locked = (
        "cannot obtain exclusive access to locked queue 'a' in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the "
        "original declaration."
    )
    for call in (
        lambda: host.declare_queue("a", exclusive_to=OTHER),
        lambda: host.declare_queue("a", by=CONNECTION),
        lambda: host.find_queue("a", OTHER),
        lambda: host.find_queue("a"),
        lambda: host.purge_queue("a", OTHER),
        lambda: host.delete_queue("a", by=OTHER),
        lambda: host.bind_queue("a", "amq.direct", "other", by=OTHER),
        lambda: host.unbind_queue("a", "amq.direct", "k", by=OTHER),
    ):
        refused(Reason.RESOURCE_LOCKED, locked, call)
    host.unbind_queue("a", "amq.direct", "other", by=OTHER)  # there is none
    bench.queue("b")
    refused(
        Reason.RESOURCE_LOCKED, locked.replace("'a'", "'b'"),
        host.declare_queue, "b", exclusive_to=CONNECTION,
    )  # fmt: skip
    assert bench.publish("amq.direct", "k")  # anybody may
    worker = Worker(declared.queue)
    host.connection_gone(OTHER)
    assert "a" in host.queues
    host.connection_gone(CONNECTION)
    host.connection_gone(CONNECTION)
    assert list(host.queues) == ["b"]
    assert worker.ends == ["queue a was deleted"]
    assert not bench.publish("amq.direct", "k")
    assert not host._exclusive  # pyright: ignore[reportPrivateUsage]


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({"x-message-ttl": 0}, {"message_ttl": 0}),
        ({"x-message-ttl": 1_500}, {"message_ttl": 1.5}),
        ({"x-expires": 250}, {"expires": 0.25}),
        ({"x-max-length": 0}, {"max_length": 0}),
        ({"x-max-length-bytes": 100}, {"max_bytes": 100}),
        ({"x-overflow": "reject-publish"}, {"overflow": Overflow.REJECT_PUBLISH}),
        ({"x-overflow": "reject-publish-dlx"}, {"overflow": Overflow.REJECT_PUBLISH_DLX}),
        ({"x-delivery-limit": 3}, {"delivery_limit": 3}),
        # They change nothing here.
        ({"x-queue-mode": "lazy", "x-queue-version": 2, "x-queue-master-locator": "x"}, {}),
        ({"x-queue-type": "classic", "whatever": object}, {}),
        ({"x-single-active-consumer": False}, {}),
    ],
)
def test_arguments_and_settings(bench: Bench, arguments: Any, settings: Any) -> None:
    arguments = {name: value for name, value in arguments.items() if value is not object}
    declared = bench.queue("a", arguments=arguments)
    wanted = attrs.evolve(QueueSettings(delivery_limit=None), **settings)
    assert declared.queue.settings == wanted


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"x-message-ttl": "foo"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": True}, '"expected integer, got bool"'),
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": 5_000_000_000_000}, "{value_too_large,5000000000000}"),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-expires": 1.5}, '"expected integer, got double"'),
        ({"x-max-length": -1}, "{value_negative,-1}"),
        ({"x-max-length-bytes": None}, '"expected integer, got void"'),
        ({"x-overflow": "foo"}, "invalid_overflow"),
        ({"x-overflow": 1}, "{unacceptable_type,signedint}"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-queue-mode": "foo"}, "\"unsupported queue mode 'foo'\""),
        ({"x-queue-version": 3}, "\"unsupported queue version '3'\""),
        ({"x-queue-type": "foo"}, "\"unsupported queue type 'foo'\""),
        ({"x-queue-type": 1}, "{unacceptable_type,signedint}"),
        ({"x-single-active-consumer": "yes"}, "{unacceptable_type,longstr}"),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-max-priority": "5"}, '"expected integer, got longstr"'),
        # What there is in RabbitMQ, and not here.
        ({"x-max-priority": 5}, '"priorities are not supported; leave it out"'),
        ({"x-queue-type": "stream"}, '"streams are not supported; use another queue type"'),
        (
            {"x-queue-type": "quorum"},
            '"a quorum queue needs a store that is replicated, and this one is not"',
        ),
    ],
)
def test_wrong_arguments(bench: Bench, arguments: Any, wrong: str) -> None:
    (name,) = arguments
    text = f"invalid arg '{name}' for queue 'a' in vhost '/': {wrong}"
    refused(Reason.PRECONDITION_FAILED, text, bench.host.declare_queue, "a", arguments=arguments)
    assert not bench.host.queues


def test_a_dead_letter_exchange_that_is_no_name(bench: Bench) -> None:
    refused(
        Reason.PRECONDITION_FAILED,
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'a' in vhost '/'",
        bench.host.declare_queue, "a", arguments={"x-dead-letter-exchange": 1},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["x-max-age", "x-dead-letter-strategy", "x-max-in-memory-length"])
def test_arguments_of_other_types(bench: Bench, name: str) -> None:
    refused(
        Reason.PRECONDITION_FAILED,
        f"invalid arg '{name}' for queue 'a' in vhost '/' of queue type rabbit_classic_queue",
        bench.host.declare_queue, "a", arguments={name: "at-most-once"},
    )  # fmt: skip


def test_quorum_queues() -> None:
    bench = Bench(replicated=True)
    quorum = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"}
    declared = bench.queue("a", durable=True, arguments=quorum)
    assert declared.kind == "quorum"
    for wrong, call in (
        ("invalid property 'non-durable' for queue 'b' in vhost '/'", {}),
        ("invalid property 'auto-delete' for queue 'b' in vhost '/'", {"auto_delete": True, "durable": True}),  # noqa: E501
        ("invalid property 'non-durable' for queue 'b' in vhost '/'", {"exclusive_to": CONNECTION, "durable": True}),  # noqa: E501
    ):  # fmt: skip
        more: Any = call
        refused(
            Reason.PRECONDITION_FAILED, wrong,
            bench.host.declare_queue, "b", arguments=quorum, **more,
        )  # fmt: skip
    refused(
        Reason.PRECONDITION_FAILED,
        "Cannot declare a server-named queue for type rabbit_quorum_queue",
        bench.host.declare_queue, "", durable=True, arguments=quorum,
    )  # fmt: skip
    refused(
        Reason.PRECONDITION_FAILED,
        "invalid arg 'x-queue-mode' for queue 'b' in vhost '/' of queue type rabbit_quorum_queue",
        bench.host.declare_queue, "b", durable=True, arguments={**quorum, "x-queue-mode": "lazy"},
    )  # fmt: skip
    bench.close()


# -- the messages in them --------------------------------------------------------------------------


def test_messages_expire(bench: Bench) -> None:
    bench.queue("a", arguments={"x-message-ttl": 2_000})
    bench.queue("b")
    for name in "ab":
        bench.publish("", name, "soon", expiration=1.0)
        bench.publish("", name, "late", expiration=3.0)
        bench.publish("", name, "never")
    bench.wait(1.0)
    assert [len(bench.host.queues[name].queue) for name in "ab"] == [2, 2]
    bench.wait(1.0)
    assert [len(bench.host.queues[name].queue) for name in "ab"] == [0, 2]
    bench.wait(1.0)
    assert bench.take("b") == ["never"]


def test_a_message_that_may_not_wait(bench: Bench) -> None:
    declared = bench.queue("a")
    bench.publish("", "a", expiration=0.0)
    assert len(declared.queue) == 0
    worker = Worker(declared.queue)
    bench.publish("", "a", expiration=0.0)
    assert worker.bodies == ["m"]
    worker.channel.close()


def test_maximum_lengths(bench: Bench) -> None:
    bench.queue("a", arguments={"x-max-length": 2})
    bench.queue("b", arguments={"x-max-length-bytes": 12})
    for number in range(4):
        bench.publish("", "a", f"{number}")
        bench.publish("", "b", f"{number}")
    # A body of 1 byte, and the key.
    assert bench.reached() == {"a": ["2", "3"], "b": ["0", "1", "2", "3"]}
    for number in range(8):
        bench.publish("", "b", f"{number}")
    assert bench.take("b") == ["2", "3", "4", "5", "6", "7"]


def test_a_queue_expires(bench: Bench) -> None:
    bench.queue("a", ("amq.direct", "k"), arguments={"x-expires": 1_000})
    bench.wait(0.9)
    bench.host.declare_queue("a", arguments={"x-expires": 1_000})
    bench.wait(0.9)
    assert "a" in bench.host.queues
    bench.wait(0.2)
    assert "a" not in bench.host.queues
    assert bench.host.bindings == 0


def test_the_time_of_the_next_tick(bench: Bench) -> None:
    for number in range(130):
        bench.queue(f"q{number}")
    assert len(list(bench.host.tick_in_steps(0.0))) == 2  # 64 queues each, and the rest
    bench.queue("a", arguments={"x-expires": 10_000})
    bench.publish("", "q0", expiration=5.0)

    assert bench.host.tick(bench.now) == pytest.approx(5.0)
    bench.wait(5.0)
    assert bench.host.tick(bench.now) == pytest.approx(10.0)


def test_a_queue_goes_with_its_last_consumer(bench: Bench) -> None:
    declared = bench.queue("a", ("amq.direct", "k"), auto_delete=True)
    first, second = Worker(declared.queue), Worker(declared.queue)
    first.consumer.cancel()
    assert "a" in bench.host.queues
    second.channel.close()
    assert "a" not in bench.host.queues
    assert bench.host.bindings == 0
    assert f"{declared.queue.account.name}" not in bench.ledger.accounts
    # One of that name is another one.
    assert bench.queue("a", auto_delete=True).queue is not declared.queue


def test_a_queue_in_use_or_not_empty(bench: Bench) -> None:
    host = bench.host
    declared = bench.queue("a")
    worker = Worker(declared.queue)
    refused(
        Reason.PRECONDITION_FAILED, "queue 'a' in vhost '/' in use",
        host.delete_queue, "a", if_unused=True,
    )  # fmt: skip
    worker.channel.close()
    bench.publish("", "a")
    refused(
        Reason.PRECONDITION_FAILED, "queue 'a' in vhost '/' not empty",
        host.delete_queue, "a", if_empty=True,
    )  # fmt: skip
    assert host.purge_queue("a") == 1
    bench.publish("", "a")
    bench.publish("", "a")
    worker = Worker(declared.queue, window=PrefetchWindow(1))
    assert host.delete_queue("a") == 1  # the other one is unacked
    assert worker.ends == ["queue a was deleted"]


def test_publishers_wait_for_a_queue_without_consumers(bench: Bench) -> None:
    """It is not emptied for their sake, as a queue in RAM otherwise is."""
    declared = bench.queue("a")
    bench.publish("", "a", "one")
    declared.queue.give_up("readers wait on it")
    assert len(declared.queue) == 1
    worker = Worker(declared.queue, window=PrefetchWindow(1))
    assert declared.queue.policy is StuckPolicy.DISCONNECT
    declared.queue.give_up("readers wait on it")
    assert worker.ends == ["readers wait on it"]
    assert bench.take("a") == ["one"]


# -- one active consumer ---------------------------------------------------------------------------


def test_a_single_active_consumer(bench: Bench) -> None:
    declared = bench.queue("a", arguments={"x-single-active-consumer": True})
    queue = declared.queue
    workers = [Worker(queue, window=PrefetchWindow(2)) for _ in range(3)]
    for number in range(5):
        bench.publish("", "a", f"{number}")
    assert [worker.bodies for worker in workers] == [["0", "1"], [], []]
    workers[0].got[0].ack()
    assert workers[0].bodies == ["0", "1", "2"]
    workers[1].consumer.cancel()
    assert workers[2].bodies == []
    workers[0].consumer.cancel()
    # Its own are still its own.
    assert workers[2].bodies == ["3", "4"]
    workers[0].channel.close()
    workers[2].channel.ack(0, multiple=True)
    assert workers[2].bodies == ["3", "4", "1", "2"]
    again = Worker(queue)
    assert again.bodies == []
    workers[2].channel.close()
    assert again.bodies == ["1", "2"]
    again.channel.ack(0, multiple=True)
    again.channel.close()
    with pytest.raises(QueueInUseError, match="single active consumer"):
        Worker(queue, exclusive=True)


def test_a_single_active_consumer_shares_its_channels_window(bench: Bench) -> None:
    one = bench.queue("a", arguments={"x-single-active-consumer": True}).queue
    other = bench.queue("b").queue
    shared = PrefetchWindow(1)
    channel = Channel("shared", window=shared)
    got: list[Any] = []
    one.consume(got.append, channel=channel)
    other.consume(got.append, channel=channel)
    for name in ("a", "b", "a", "b"):
        bench.publish("", name, name)
    bodies: list[str] = []
    while got:
        assert len(got) == 1
        bodies.append(got[0].event.body.decode())
        got.pop().ack()
    assert sorted(bodies) == ["a", "a", "b", "b"]
    channel.close()
