"""Sessions that outlive their connections, with real clients, and through a line that breaks."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.transports.mqtt import ClientSession, ConnectionLostError, open_mqtt
from tests.cli import conftest as processes
from tests.cli.conftest import RelayUnderTest
from tests.programs import needs
from tests.relay.brokers import Broker, numbered
from tests.transports.peers import SECONDS, kill, run_fed, until

start_relay = processes.start_relay  # a fixture

paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

needs_mosquitto = needs("mosquitto_pub", "mosquitto_sub")

# --- mosquitto's clients ------------------------------------------------------------------------


async def mosquitto_pub(broker: Broker, payloads: list[bytes], qos: int) -> None:
    argv = ["mosquitto_pub", "-p", str(broker.port), "-t", broker.topic, "-q", str(qos), "-l"]
    await run_fed(argv, b"".join(payload + b"\n" for payload in payloads))


async def mosquitto_sub(broker: Broker, qos: int, *options: str) -> list[bytes]:
    """Run it for the test's own session; return the lines that it writes."""
    argv = ["mosquitto_sub", "-p", str(broker.port), "-t", broker.topic, "-q", str(qos)]
    argv += ["-i", broker.name, "-c", *options]
    with trio.fail_after(SECONDS):
        done = await trio.run_process(argv, capture_stdout=True, deliver_cancel=kill)
    return done.stdout.splitlines()


@needs_mosquitto
@pytest.mark.parametrize("qos", [1, 2])
async def test_messages_wait_for_mosquitto_sub(broker: Broker, qos: int) -> None:
    assert await mosquitto_sub(broker, qos, "-E") == []
    payloads = numbered(100)
    await mosquitto_pub(broker, payloads, qos)
    lines = await mosquitto_sub(broker, qos, "-C", "100", "-F", "%q %r %p")
    assert lines == [b"%d 0 %s" % (qos, payload) for payload in payloads]
    await broker.forget()


# --- a line that breaks -------------------------------------------------------------------------


class BreakingLine:
    """Passes bytes on between clients and a server, and breaks each connection after some.

    What is on its way is lost then: a packet may be cut in two, or have arrived unacknowledged.
    """

    def __init__(self, server: int, bytes_each: list[int]) -> None:
        self.server = server
        self._bytes_each = bytes_each
        self.broken = 0
        self.port = 0

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, self._connection, 0)
            self.port = listeners[0].socket.getsockname()[1]
            task_status.started()

    async def _connection(self, client: trio.SocketStream) -> None:
        # When none is left, the line holds.
        left = self._bytes_each.pop() if self._bytes_each else 1 << 40

        async def pass_on(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            nonlocal left
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while data := await source.receive_some(256):
                    data = data[:left]
                    left -= len(data)
                    await sink.send_all(data)
                    if not left:
                        self.broken += 1
                        break
            nursery.cancel_scope.cancel()

        async with client:
            try:
                server = await trio.open_tcp_stream("127.0.0.1", self.server)
            except OSError:
                return
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(pass_on, client, server)
                nursery.start_soon(pass_on, server, client)


@asynccontextmanager
async def breaking_line(port: int, breaks: int, seed: str) -> AsyncGenerator[BreakingLine]:
    """Lead to a server through a line that breaks so many times."""
    chance = random.Random(seed)
    line = BreakingLine(port, [chance.randrange(40, 900) for _ in range(breaks)])
    async with trio.open_nursery() as nursery:
        await nursery.start(line.serve)
        yield line
        nursery.cancel_scope.cancel()


async def we_publish(port: int, name: str, topic: str, payloads: list[bytes], qos: int) -> None:
    session = ClientSession()
    accepted = 0
    while True:
        with suppress(ConnectionLostError):
            async with open_mqtt(
                "127.0.0.1", port, client_id=name, clean_session=False, session=session
            ) as client:
                while accepted < len(payloads):
                    await client.publish(topic, payloads[accepted], qos, wait=False)
                    accepted += 1
                await client.flush()
                return


async def we_take(port: int, name: str, count: int, taken: list[bytes]) -> None:
    session = ClientSession()
    while len(set(taken)) < count:
        with suppress(ConnectionLostError):
            async with open_mqtt(
                *("127.0.0.1", port),
                client_id=name,
                clean_session=False,
                session=session,
                manual_ack=True,
            ) as client:
                async for message in client:
                    client.ack(message)
                    taken.append(message.payload)
                    if len(set(taken)) == count:
                        break


class Paho:
    """A paho client with a session that is kept, driven by a thread until it is done."""

    def __init__(self, port: int, name: str) -> None:
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=name,
            clean_session=False,
            protocol=paho.MQTTv311,
        )
        self.port = port
        self.stopped = False

    async def run(self, done: Callable[[], bool]) -> None:
        try:
            with trio.fail_after(SECONDS):
                await trio.to_thread.run_sync(self._run, done, abandon_on_cancel=True)
        finally:
            self.stopped = True

    def _run(self, done: Callable[[], bool]) -> None:
        client = self.client
        connected = False
        while not (self.stopped or done()):
            if not connected:
                with suppress(OSError):
                    connected = client.connect("127.0.0.1", self.port) == paho.MQTT_ERR_SUCCESS
            if connected and client.loop(0.01) != paho.MQTT_ERR_SUCCESS:
                connected = False
        client.disconnect()


async def paho_publishes(port: int, name: str, topic: str, payloads: list[bytes], qos: int) -> None:
    publisher = Paho(port, name)
    published: set[int] = set()

    def on_publish(client: Any, data: Any, mid: int, code: Any, properties: Any) -> None:
        published.add(mid)

    publisher.client.on_publish = on_publish
    for payload in payloads:
        publisher.client.publish(topic, payload, qos)  # it keeps them until it is connected
    await publisher.run(lambda: len(published) == len(payloads))


async def paho_takes(port: int, name: str, count: int, taken: list[bytes]) -> None:
    subscriber = Paho(port, name)

    def on_message(client: Any, data: Any, message: Any) -> None:
        taken.append(message.payload)

    subscriber.client.on_message = on_message
    await subscriber.run(lambda: len(set(taken)) >= count)


Publishes = Callable[[int, str, str, list[bytes], int], Awaitable[None]]
Takes = Callable[[int, str, int, list[bytes]], Awaitable[None]]


# Not paho with QoS 2: if a connection breaks before its CONNACK, paho publishes anew, as if it had
# not heard of it, what it had had the PUBREC for (2.2: _messages_reconnect_reset_out).
@pytest.mark.parametrize(
    ("qos", "publishes"), [(1, we_publish), (1, paho_publishes), (2, we_publish)]
)
@pytest.mark.parametrize("takes", [we_take, paho_takes])
async def test_nothing_is_lost_on_a_line_that_breaks_and_nothing_of_qos_2_comes_twice(
    broker: Broker, qos: int, publishes: Publishes, takes: Takes
) -> None:
    payloads = numbered(120)
    taken: list[bytes] = []
    publisher = f"{broker.prefix}-publisher"
    async with broker.visit(present=False, leave=True) as client:
        await client.subscribe(broker.topic, qos=qos)
    seed = f"{qos} {publishes.__name__} {takes.__name__}"
    async with breaking_line(broker.port, 40, seed) as line:
        with trio.fail_after(2 * SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publishes, line.port, publisher, broker.topic, payloads, qos)
                nursery.start_soon(takes, line.port, broker.name, len(payloads), taken)
        assert line.broken > 10
    if qos == 2:
        assert taken == payloads
    else:
        assert list(dict.fromkeys(taken)) == payloads
    await broker.forget(publisher, broker.name)


# --- a relay that is killed ---------------------------------------------------------------------


@pytest.mark.parametrize("takes", [we_take, paho_takes])
async def test_a_relay_that_is_killed_loses_nothing_and_says_nothing_of_qos_2_twice(
    takes: Takes, start_relay: Callable[..., RelayUnderTest], tmp_path: Path
) -> None:
    options = ("--listen", "mqtt+tcp://127.0.0.1:0", "--store", str(tmp_path / "store"))

    async def started() -> tuple[RelayUnderTest, int]:
        relay = start_relay(*options, "--fsync-interval", "0.01")
        return relay, await trio.to_thread.run_sync(relay.mqtt_port)

    payloads = numbered(300)
    taken: list[bytes] = []
    relay, port = await started()
    broker = Broker(port, 20, "killed")
    async with broker.visit(present=False, leave=True) as client:
        await client.subscribe(broker.topic, qos=2)
    async with breaking_line(port, 0, "") as line:
        with trio.fail_after(2 * SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(we_publish, line.port, "publisher", broker.topic, payloads, 2)
                nursery.start_soon(takes, line.port, broker.name, len(payloads), taken)
                await until(lambda: len(taken) >= 100)
                relay.process.kill()
                relay, line.server = await started()
    assert taken == payloads
