"""pika, unchanged: its blocking connection in a thread, its select connection, and aio-pika."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest
import trio

from clearfunds.access._passwords import Passwords
from tests.transports.amqp.clients import AMQP, blocking, in_thread, serving, side
from tests.transports.mqtt.users import user_line
from tests.transports.peers import RunningRelay, connected, until

NOISY = "ignore::pytest.PytestUnraisableExceptionWarning"


def ignore(*_: object) -> None:
    """Take a message, and do nothing."""


PERSISTENT = pika.BasicProperties(delivery_mode=2)


async def test_blocking_publishes_consumes_and_acknowledges() -> None:
    async with serving() as relay:

        def talk() -> None:
            connection = blocking(relay)
            channel = connection.channel()
            channel.exchange_declare("e", "topic")
            queue = channel.queue_declare("").method.queue
            channel.queue_bind(queue, "e", "a.#")
            channel.confirm_delivery()
            for n in range(20):
                channel.basic_publish("e", f"a.{n}", b"%d" % n, mandatory=True)
            with pytest.raises(pika.exceptions.UnroutableError):
                channel.basic_publish("e", "b", b"lost", mandatory=True)
            channel.basic_qos(prefetch_count=5)
            found: list[bytes] = []
            for method, _, payload in channel.consume(queue, inactivity_timeout=5):
                assert payload is not None
                assert method is not None
                found.append(payload)
                if len(found) % 5 == 0:
                    channel.basic_ack(method.delivery_tag or 0, multiple=True)
                if len(found) == 20:
                    break
            assert found == [b"%d" % n for n in range(20)]
            assert channel.cancel() == 0
            connection.close()

        await in_thread(talk)
        await until(lambda: not side(relay).open)
        relay.audit()
        assert not [each for each in relay.ledger.accounts.values() if each.debt_items]


async def test_blocking_hears_of_errors() -> None:
    async with serving() as relay:

        def talk() -> None:
            connection = blocking(relay)
            channel = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
                channel.queue_declare("nowhere", passive=True)
            assert caught.value.reply_code == 404
            assert caught.value.reply_text == "NOT_FOUND - no queue 'nowhere' in vhost '/'"
            channel = connection.channel()
            channel.queue_declare(
                "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
            )
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"1")
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "q", b"2")
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                channel.tx_select()
            assert closed.value.reply_code == 540

        await in_thread(talk)


async def test_blocking_with_passwords() -> None:
    async with serving(passwords=Passwords.from_text(user_line("alice", b"secret"))) as relay:

        def talk() -> None:
            credentials = pika.PlainCredentials("alice", "secret")
            blocking(relay, credentials=credentials).close()
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                blocking(relay, credentials=pika.PlainCredentials("alice", "wrong"))
            with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
                blocking(relay, credentials=credentials, virtual_host="moon")

        await in_thread(talk)


async def test_a_consumer_is_told_when_its_queue_goes() -> None:
    async with serving() as relay:

        def talk() -> None:
            connection = blocking(relay)
            one, two = connection.channel(), connection.channel()
            one.queue_declare("q")
            told: list[Any] = []
            one.add_on_cancel_callback(told.append)
            one.basic_consume("q", ignore)
            two.queue_delete("q")
            connection.process_data_events(time_limit=1)
            assert len(told) == 1
            connection.close()

        await in_thread(talk)


async def test_direct_replies() -> None:
    async with serving() as relay:

        def talk() -> None:
            server, asking = blocking(relay), blocking(relay)
            works = server.channel()
            works.queue_declare("rpc")
            channel = asking.channel()
            answers: list[tuple[bytes, str | None]] = []

            def on_answer(_: object, __: object, properties: Any, payload: bytes) -> None:
                answers.append((payload, properties.correlation_id))

            properties = pika.BasicProperties(
                reply_to="amq.rabbitmq.reply-to", correlation_id="1", headers={"a": 1}
            )
            channel.basic_publish("", "rpc", b"?", properties)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
                channel.queue_declare("rpc", passive=True)
            assert caught.value.reply_text == (
                "PRECONDITION_FAILED - fast reply consumer does not exist"
            )
            channel = asking.channel()
            channel.basic_consume("amq.rabbitmq.reply-to", on_answer, auto_ack=True)
            channel.basic_publish("", "rpc", b"?", properties)
            while (got := works.basic_get("rpc", auto_ack=True))[0] is None:
                pass
            assert got[1].headers == {"a": 1}
            address = str(got[1].reply_to)
            assert address.startswith("amq.rabbitmq.reply-to.")
            works.queue_declare(address, passive=True)
            works.confirm_delivery()
            correlated = pika.BasicProperties(correlation_id="1")
            works.basic_publish("", address, b"!" * 300_000, correlated, mandatory=True)
            while not answers:
                asking.process_data_events(time_limit=1)
            assert answers == [(b"!" * 300_000, "1")]
            asking.close()
            with pytest.raises(pika.exceptions.UnroutableError):
                works.basic_publish("", address, b"late", mandatory=True)
            server.close()

        await in_thread(talk)
        assert not side(relay).replies
        relay.audit()


async def test_select_publishes_and_consumes_on_one_connection_above_its_limit() -> None:
    """The trap of one connection for both, with pika's own event loop."""
    count = 300
    async with serving(limit_items=20, kept_limit=1, patience=60.0) as relay:

        def talk() -> list[bytes]:
            found: list[bytes] = []

            def on_message(channel: Any, method: Any, _: Any, payload: bytes) -> None:
                found.append(payload)
                channel.basic_ack(method.delivery_tag)
                if len(found) == count:
                    channel.connection.close()

            def on_channel(channel: Any) -> None:
                channel.basic_qos(prefetch_count=10)
                channel.queue_declare("q", callback=partial(on_queue, channel))

            def on_queue(channel: Any, _: Any) -> None:
                channel.basic_consume("q", on_message)
                for n in range(count):
                    channel.basic_publish("", "q", b"%d" % n)

            def on_close(made: Any, _: object) -> None:
                made.ioloop.stop()

            connection = pika.SelectConnection(
                pika.ConnectionParameters("127.0.0.1", relay.port),
                on_open_callback=lambda made: made.channel(on_open_callback=on_channel),
                on_close_callback=on_close,
            )
            connection.ioloop.start()
            connection.ioloop.close()
            return found

        assert await in_thread(talk) == [b"%d" % n for n in range(count)]
        relay.audit()


async def test_pika_hears_that_it_is_blocked() -> None:
    async with serving(limit_items=10, kept_limit=1, patience=60.0) as relay:
        told: list[str] = []
        may_go = threading.Event()

        def on_blocked(_: object, frame: Any) -> None:
            told.append(frame.method.reason)

        def on_unblocked(*_: object) -> None:
            told.append("unblocked")

        def talk() -> None:
            connection = blocking(relay)
            connection.add_on_connection_blocked_callback(on_blocked)
            connection.add_on_connection_unblocked_callback(on_unblocked)
            channel = connection.channel()
            channel.queue_declare("q")
            for _ in range(30):
                channel.basic_publish("", "q", b"x")
            while len(told) < 2 and not may_go.is_set():
                connection.process_data_events(time_limit=0.1)
            connection.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, talk)
            try:
                await until(lambda: told)
                assert "guest waits for queue q" in told[0]
                assert "which has no consumer" in told[0]
                queue = side(relay).hosts["/"].queues["q"].queue
                await until(lambda: (queue.purge(), told[1:])[1])
                assert told[1] == "unblocked"
            finally:
                may_go.set()


async def test_durable_messages_outlive_the_relay(tmp_path: Path) -> None:
    store = str(tmp_path / "store")

    def publish(relay: RunningRelay) -> None:
        connection = blocking(relay)
        channel = connection.channel()
        channel.exchange_declare("e", "fanout", durable=True)
        channel.queue_declare("kept", durable=True)
        channel.queue_declare("gone")
        channel.queue_bind("kept", "e")
        channel.queue_bind("gone", "e")
        channel.confirm_delivery()
        for n in range(10):
            channel.basic_publish("e", "", b"%d" % n, PERSISTENT if n % 2 else None)
        connection.close()

    def look(relay: RunningRelay) -> None:
        connection = blocking(relay)
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("gone", passive=True)
        channel = connection.channel()
        channel.exchange_declare("e", "fanout", durable=True)
        found: list[bytes] = []
        while (got := channel.basic_get("kept", auto_ack=True))[0] is not None:
            if got[1].delivery_mode == 2:
                found.append(got[2])
        assert found == [b"1", b"3", b"5", b"7", b"9"]
        channel.basic_publish("e", "", b"again", PERSISTENT)
        assert channel.basic_get("kept", auto_ack=True)[2] == b"again"
        connection.close()

    async with serving(store=store, fsync_interval=0.05) as relay:
        await in_thread(partial(publish, relay))
    async with serving(store=store, fsync_interval=0.05) as relay:
        await in_thread(partial(look, relay))
        relay.audit()


async def test_mqtt_and_amqp_meet_at_amq_topic() -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", AMQP)
    async with serving(listen=listen) as relay:
        port = int(relay.addresses.listening[1].rpartition(":")[2])

        def bind() -> tuple[pika.BlockingConnection, Any, str]:
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
            channel = connection.channel()
            queue = channel.queue_declare("").method.queue
            channel.queue_bind(queue, "amq.topic", "sensors.*.temperature")
            return connection, channel, queue

        def take(channel: Any, queue: str) -> Any:
            while True:
                method, properties, payload = channel.basic_get(queue, auto_ack=True)
                if method is not None:
                    return method.routing_key, properties.delivery_mode, payload

        connection, channel, queue = await in_thread(bind)
        async with connected(relay.port, "sensor") as mqtt:
            await mqtt.publish("sensors/kitchen/temperature", b"21", 1, packet_id=1)
            await mqtt.next()
            assert await in_thread(partial(take, channel, queue)) == (
                "sensors.kitchen.temperature", 2, b"21",
            )  # fmt: skip
            await mqtt.subscribe("alarms/#", qos=1)
            publish = partial(channel.basic_publish, "amq.topic", "alarms.fire", b"!", PERSISTENT)
            await in_thread(publish)
            got = await mqtt.publication()
            assert (got.topic, got.payload, got.qos) == ("alarms/fire", b"!", 1)
        await in_thread(connection.close)
        relay.audit()


@pytest.mark.filterwarnings(NOISY)
async def test_aio_pika_with_a_connection_that_comes_back(tmp_path: Path) -> None:
    async with serving(store=str(tmp_path / "store"), fsync_interval=0.01) as relay:

        async def talk() -> list[bytes]:
            connection = await aio_pika.connect_robust(
                f"amqp://guest:guest@127.0.0.1:{relay.port}/"
            )
            found: list[bytes] = []
            async with connection:
                channel = await connection.channel(on_return_raises=True)
                await channel.set_qos(prefetch_count=10)
                queue = await channel.declare_queue("q", durable=True)
                exchange = await channel.declare_exchange("e", aio_pika.ExchangeType.DIRECT)
                await queue.bind(exchange, "k")
                for n in range(50):
                    message = aio_pika.Message(
                        b"%d" % n, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, headers={"n": n}
                    )
                    await exchange.publish(message, "k")
                async with queue.iterator() as messages:
                    async for got in messages:
                        async with got.process():
                            assert got.headers["n"] == len(found)
                            found.append(got.body)
                        if len(found) == 50:
                            break
                with pytest.raises(aio_pika.exceptions.DeliveryError):
                    await channel.default_exchange.publish(
                        aio_pika.Message(b"x"), "nowhere", mandatory=True
                    )
            return found

        assert await in_thread(partial(asyncio.run, talk())) == [b"%d" % n for n in range(50)]
        await until(lambda: not side(relay).open)
        relay.audit()
