"""Durable queues of AMQP, in a relay as a process: what was confirmed is there after a kill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pika
import pytest
import trio
from pika.exceptions import ChannelClosedByBroker

from tests.nats_servers import nats_server, needs_nats
from tests.ports import lasting_port
from tests.relay.relay_process import RelayProcess, relay_process

PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"kind": "test"})


async def with_pika(port: int, do: Callable[[Any], None]) -> None:
    """Do something with a channel of pika's, in a thread."""

    def work() -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", port)
        with pika.BlockingConnection(parameters) as connection:
            do(connection.channel())

    await trio.to_thread.run_sync(work)


def declare_and_publish(channel: Any, queue: str, kind: str, count: int) -> None:
    channel.exchange_declare("work", "topic", durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.queue_bind(queue, "work", "jobs.#")
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("work", "jobs.a.b", b"%d" % number, PERSISTENT, mandatory=True)


def take(channel: Any, queue: str) -> list[tuple[bytes, bool]]:
    found: list[tuple[bytes, bool]] = []
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            return found
        assert properties.headers == {"kind": "test"}
        assert (method.exchange, method.routing_key) == ("work", "jobs.a.b")
        found.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)


def numbered(count: int, *, redelivered: bool = False) -> list[tuple[bytes, bool]]:
    return [(b"%d" % number, redelivered) for number in range(count)]


async def test_after_a_kill_what_was_confirmed_is_there(tmp_path: Path) -> None:
    port = lasting_port()
    async with relay_process(tmp_path, "--listen", f"amqp+tcp://127.0.0.1:{port}") as relay:

        def begin(channel: Any) -> None:
            declare_and_publish(channel, "jobs", "classic", 20)
            channel.queue_declare("passing")  # ends with the process
            channel.queue_declare("of.mine", durable=True, exclusive=True)

        await with_pika(port, begin)
        await relay.kill()
        await relay.start()

        def look(channel: Any) -> None:
            # The binding and the exchange are there, too.
            channel.basic_publish("work", "jobs.a.b", b"20", PERSISTENT)
            assert take(channel, "jobs") == numbered(21)
            for name in ("passing", "of.mine"):
                with pytest.raises(ChannelClosedByBroker) as closed:
                    channel.connection.channel().queue_declare(name, passive=True)
                assert closed.value.reply_code == 404

        await with_pika(port, look)
        await relay.audit()
        await relay.stop()
        await relay.start()
        await with_pika(port, lambda channel: _is_empty(channel, "jobs"))
        await relay.stop()
        assert "Traceback" not in relay.log


def _is_empty(channel: Any, queue: str) -> None:
    assert take(channel, queue) == []


async def test_quorum_queues_need_a_replicated_store(tmp_path: Path) -> None:
    port = lasting_port()
    async with relay_process(tmp_path, "--listen", f"amqp+tcp://127.0.0.1:{port}") as relay:

        def ask(channel: Any) -> None:
            with pytest.raises(ChannelClosedByBroker) as closed:
                channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
            assert closed.value.reply_code == 406
            assert "a store that is replicated" in closed.value.reply_text

        await with_pika(port, ask)
        await relay.stop()


@needs_nats
async def test_a_quorum_queue_is_there_on_another_machine(tmp_path: Path) -> None:
    port = lasting_port()
    with nats_server(tmp_path) as server:

        def relay(folder: str) -> AbstractAsyncContextManager[RelayProcess]:
            (tmp_path / folder).mkdir()
            listen = ("--listen", f"amqp+tcp://127.0.0.1:{port}")
            return relay_process(tmp_path / folder, *listen, nats=server.url)

        async with relay("a") as one:
            await with_pika(port, lambda channel: declare_and_publish(channel, "q", "quorum", 20))
            await one.kill()
        async with relay("b") as two:
            found: list[tuple[bytes, bool]] = []
            await with_pika(port, lambda channel: found.extend(take(channel, "q")))
            assert found == numbered(20)
            await two.audit()
            await two.stop()
            assert "Traceback" not in two.log
