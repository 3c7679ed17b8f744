"""Clients that others have written, unchanged: mosquitto_pub, mosquitto_sub, paho-mqtt."""

from __future__ import annotations

import functools
import queue
import random
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds._cli._running import alone
from clearfunds.transports.mqtt import PubAck, Publish
from tests.programs import needs
from tests.transports.peers import (
    SECONDS,
    RunningRelay,
    connected,
    kill,
    run_fed,
    running,
    until,
)

paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

needs_mosquitto = needs("mosquitto_pub", "mosquitto_sub")

MEBIBYTE = random.Random(0).randbytes(1 << 20)


# -- mosquitto's clients --------------------------------------------------------------------------


def at(relay: RunningRelay) -> list[str]:
    return ["-h", "127.0.0.1", "-p", str(relay.port)]


async def publish(relay: RunningRelay, *options: str, stdin: bytes = b"") -> None:
    """Run mosquitto_pub to its end."""
    await run_fed(["mosquitto_pub", *at(relay), *options], stdin)


@asynccontextmanager
async def ungrouped() -> AsyncGenerator[None]:
    """Let an exception that is the only one of its group out of it.

    Ten of these groups, one in the other, are more than a traceback shows of them.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        cause = alone(group)
        if cause is None:
            raise
        raise cause from group


@asynccontextmanager
async def subscribed(
    relay: RunningRelay, *options: str, filters: int = 1
) -> AsyncGenerator[trio.Process]:
    """Run mosquitto_sub, from when it has subscribed on."""
    before = len(relay.relay.dataspace.routes)
    async with ungrouped(), trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            functools.partial(
                trio.run_process,
                ["mosquitto_sub", *at(relay), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=False,
                deliver_cancel=kill,
            )
        )
        await until(lambda: len(relay.relay.dataspace.routes) == before + filters)
        assert process.stdout is not None
        async with process.stdout:
            yield process
        nursery.cancel_scope.cancel()


async def output(process: trio.Process) -> bytes:
    """All that a process prints, until it ends."""
    assert process.stdout is not None
    printed = b""
    with trio.fail_after(SECONDS):
        async for piece in process.stdout:
            printed += piece
    return printed


@needs_mosquitto
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("wanted", [0, 1, 2])
async def test_mosquitto_publishes_and_subscribes(published: int, wanted: int) -> None:
    async with running() as relay:
        options = ["-t", "a/+/c", "-q", str(wanted), "-C", "100", "-F", "%t %q %r %p"]
        async with subscribed(relay, *options) as sub:
            lines = b"".join(b"message %d\n" % n for n in range(100))
            await publish(relay, "-t", "a/b/c", "-q", str(published), "-l", stdin=lines)
            qos = min(published, wanted)
            assert await output(sub) == b"".join(
                b"a/b/c %d 0 message %d\n" % (qos, n) for n in range(100)
            )
        await relay.deserted()


@needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_mosquitto_sends_a_mebibyte_of_anything(qos: int, tmp_path: Path) -> None:
    path = trio.Path(tmp_path / "payload")
    await path.write_bytes(MEBIBYTE)
    async with running() as relay:
        async with subscribed(relay, "-t", "#", "-q", "1", "-C", "1", "-N") as sub:
            await publish(relay, "-t", "t", "-q", str(qos), "-f", str(path))
            assert await output(sub) == MEBIBYTE
        await relay.deserted()


@needs_mosquitto
async def test_mosquitto_finds_what_is_retained() -> None:
    async with running() as relay:
        await publish(relay, "-t", "kept/1", "-m", "old", "-r")
        await publish(relay, "-t", "kept/1", "-m", "new", "-r", "-q", "1")
        await publish(relay, "-t", "kept/2", "-m", "gone", "-r")
        await publish(relay, "-t", "kept/2", "-n", "-r")
        await publish(relay, "-t", "kept/3", "-m", "3", "-r", "-q", "2")
        options = ["-t", "kept/#", "-q", "1", "-F", "%t %q %r %p", "-C", "2"]
        before = len(relay.relay.dataspace.routes)
        argv = ["mosquitto_sub", *at(relay), *options]
        with trio.fail_after(SECONDS):
            done = await trio.run_process(argv, capture_stdout=True, deliver_cancel=kill)
        assert sorted(done.stdout.splitlines()) == [b"kept/1 1 1 new", b"kept/3 1 1 3"]
        await until(lambda: len(relay.relay.dataspace.routes) == before)
        assert len(relay.relay.dataspace.retained) == 2


@needs_mosquitto
async def test_mosquitto_leaves_a_will_when_it_is_killed() -> None:
    will = ["--will-topic", "wills", "--will-payload", "killed", "--will-qos", "1"]
    async with running() as relay, connected(relay.port) as watcher:
        await watcher.subscribe("wills")
        async with subscribed(relay, "-t", "x", *will) as mortal:
            mortal.kill()
            assert await watcher.publication() == Publish("wills", b"killed")
        async with subscribed(relay, "-t", "x", *will) as mortal:
            await publish(relay, "-t", "x", "-m", "it reads")
            assert mortal.stdout is not None
            assert await mortal.stdout.receive_some() == b"it reads\n"
            mortal.terminate()  # it says DISCONNECT
            await until(lambda: len(relay.relay.mqtt.open) == 1)
            assert await watcher.silent()


@needs_mosquitto
@pytest.mark.long  # its shortest keep-alive is five seconds
async def test_mosquitto_keeps_its_connection_alive() -> None:
    async with running() as relay:
        async with subscribed(relay, "-t", "x", "-k", "5", "-i", "alive", "-C", "1") as sub:
            session = relay.relay.mqtt.sessions["alive"]
            await trio.sleep(8.5)
            assert relay.relay.mqtt.sessions["alive"] is session
            await publish(relay, "-t", "x", "-m", "still here")
            assert await output(sub) == b"still here\n"
        assert relay.relay.mqtt.counters.timeouts == 0


@needs_mosquitto
async def test_mosquitto_comes_in_by_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    listen = (f"mqtt+unix://{path}", "mqtt+tcp://127.0.0.1:0")
    async with running(listen=listen) as relay, connected(str(path), "u") as client:
        await client.subscribe("t")
        assert f"mqtt:{path}/-/u" in relay.ledger.accounts
        await trio.run_process(["mosquitto_pub", "--unix", str(path), "-t", "t", "-m", "by unix"])
        assert await client.publication() == Publish("t", b"by unix")
        port = int(relay.addresses.listening[1].rpartition(":")[2])
        async with connected(port, "tcp") as other:
            await other.publish("t", b"by tcp")
            assert await client.publication() == Publish("t", b"by tcp")


@needs_mosquitto
async def test_many_of_mosquittos_clients_at_once() -> None:
    async with running() as relay:
        async with AsyncExitStack() as stack:
            subs = [
                await stack.enter_async_context(
                    subscribed(relay, "-t", f"t/{n}", "-C", "200", "-q", "1", "-F", "%p")
                )
                for n in range(10)
            ]
            lines = b"".join(b"%d\n" % n for n in range(200))
            async with trio.open_nursery() as nursery:
                for n in range(10):
                    options = ["-t", f"t/{n}", "-q", str(n % 3), "-l"]
                    nursery.start_soon(functools.partial(publish, relay, *options, stdin=lines))
            for sub in subs:
                assert await output(sub) == lines
        await relay.deserted()


# -- paho-mqtt ------------------------------------------------------------------------------------


Message = tuple[str, bytes, int, bool]
"""Topic, payload, QoS, whether it was retained."""

PAHO = 40
"""Descriptors that paho clients may still have open: the garbage collector closes them."""


@attrs.define
class Paho:
    """A paho client with its thread; methods that wait are for other threads than Trio's."""

    client: Any
    messages: queue.Queue[Any] = attrs.field(factory=queue.Queue[Any])
    ended: queue.Queue[Any] = attrs.field(factory=queue.Queue[Any])

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        granted: queue.Queue[list[Any]] = queue.Queue()

        def on_subscribe(_: Any, __: Any, ___: Any, codes: list[Any], ____: Any) -> None:
            granted.put(codes)

        self.client.on_subscribe = on_subscribe
        self.client.subscribe(list(filters))
        return [code.value for code in granted.get(timeout=SECONDS)]

    def take(self, count: int) -> list[Message]:
        found: list[Message] = []
        for _ in range(count):
            message = self.messages.get(timeout=SECONDS)
            found.append((message.topic, message.payload, message.qos, message.retain))
        return found


@contextmanager
def paho_client(
    port: int, client_id: str, *, keep_alive: int = 60, will: dict[str, Any] | None = None
) -> Generator[Paho]:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id)
    if will is not None:
        client.will_set(**will)
    here = Paho(client)
    is_connected: queue.Queue[Any] = queue.Queue()

    def on_connect(_: Any, __: Any, flags: Any, code: Any, ___: Any) -> None:
        is_connected.put((flags, code))

    def on_message(_: Any, __: Any, message: Any) -> None:
        here.messages.put(message)

    def on_disconnect(_: Any, __: Any, ___: Any, code: Any, ____: Any) -> None:
        here.ended.put(code)

    client.on_connect = on_connect
    client.on_message = on_message
    client.on_disconnect = on_disconnect
    client.reconnect_delay_set(min_delay=3600, max_delay=3600)
    client.connect("127.0.0.1", port, keepalive=keep_alive)
    client.loop_start()
    try:
        flags, code = is_connected.get(timeout=SECONDS)
        assert not flags.session_present
        assert code == 0
        yield here
    finally:
        client.disconnect()
        client.loop_stop()


async def in_thread(test: Any, *args: object) -> None:
    await trio.to_thread.run_sync(functools.partial(test, *args))


async def test_paho_publishes_and_subscribes() -> None:
    def test(port: int) -> None:
        with paho_client(port, "sub") as sub, paho_client(port, "pub") as pub:
            assert sub.subscribe(("a/#", 0), ("b/+", 1), ("c", 2)) == [0, 1, 2]
            expected: dict[tuple[str, bytes], list[Message]] = {}
            infos: list[Any] = []
            for topic, granted in (("a/x", 0), ("b/y", 1), ("c", 2), ("b/y/z", None)):
                for n in range(120):
                    qos = n % 3
                    # What paho holds back, of QoS 1 and 2, is overtaken by what has QoS 0; and of
                    # QoS 2 it shows a message when it is released.
                    kind = b"later" if qos else b"at once"
                    if granted == 2:
                        kind = b"QoS %d" % qos
                    payload = kind + random.randbytes(random.choice([0, 1, 100, 10_000]))
                    infos.append(pub.client.publish(topic, payload, qos=qos))
                    if granted is not None:
                        message = (topic, payload, min(qos, granted), False)
                        expected.setdefault((topic, kind), []).append(message)
            for info in infos:
                info.wait_for_publish(SECONDS)
            got = sub.take(360)
            for (topic, kind), messages in expected.items():
                assert [m for m in got if m[0] == topic and m[1].startswith(kind)] == messages

    async with running(strangers=PAHO) as relay:
        await in_thread(test, relay.port)
        await relay.deserted()


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_paho_sends_a_mebibyte_of_anything(qos: int) -> None:
    def test(port: int) -> None:
        with paho_client(port, "sub") as sub, paho_client(port, "pub") as pub:
            sub.subscribe(("t", 1))
            for n in range(12):
                pub.client.publish("t", bytes((n,)) + MEBIBYTE[1:], qos=qos)
            got = sub.take(12)
            assert [m[1] for m in got] == [bytes((n,)) + MEBIBYTE[1:] for n in range(12)]

    async with running(strangers=PAHO) as relay:
        await in_thread(test, relay.port)
        await relay.deserted()


async def test_paho_publishes_to_itself_above_its_limit() -> None:
    """With QoS 1 and 2, both ways on one connection, and all of its window in flight."""

    def test(port: int) -> None:
        with paho_client(port, "echo") as echo:
            echo.subscribe(("t", 1))
            infos = [
                echo.client.publish("t", b"%d;" % n + bytes(50_000), qos=1 + n % 2)
                for n in range(200)
            ]
            got = [int(m[1].split(b";")[0]) for m in echo.take(200)]
            for info in infos:
                info.wait_for_publish(SECONDS)
            assert sorted(got) == list(range(200))
            assert [n for n in got if n % 2] == list(range(1, 200, 2))

    async with running(strangers=PAHO, limit_items=5) as relay:
        await in_thread(test, relay.port)
        await relay.deserted()


async def test_paho_finds_what_is_retained() -> None:
    def test(port: int) -> None:
        with paho_client(port, "pub") as pub:
            for topic, payload in (("k/1", b"old"), ("k/1", b"new"), ("k/2", b"x"), ("k/2", b"")):
                pub.client.publish(topic, payload, qos=1, retain=True).wait_for_publish(SECONDS)
            with paho_client(port, "sub") as sub:
                sub.subscribe(("k/#", 1))
                assert sub.take(1) == [("k/1", b"new", 1, True)]
                pub.client.publish("k/1", b"newer", qos=1, retain=True)
                assert sub.take(1) == [("k/1", b"newer", 1, False)]

    async with running(strangers=PAHO) as relay:
        await in_thread(test, relay.port)


async def test_paho_leaves_a_will_when_its_socket_closes() -> None:
    def test(port: int) -> None:
        with paho_client(port, "watcher") as watcher:
            watcher.subscribe(("wills/+", 1))
            will: dict[str, Any] = {
                "topic": "wills/x",
                "payload": b"gone",
                "qos": 1,
                "retain": True,
            }
            with paho_client(port, "mortal", will=will) as mortal:
                mortal.client.socket().shutdown(2)
                assert watcher.take(1) == [("wills/x", b"gone", 1, False)]
            with paho_client(port, "polite", will=will):
                pass
            with paho_client(port, "late") as late:
                late.subscribe(("wills/+", 1))
                assert late.take(1) == [("wills/x", b"gone", 1, True)]
            assert watcher.messages.empty()

    async with running(strangers=PAHO) as relay:
        await in_thread(test, relay.port)


async def test_paho_is_taken_over_by_its_name() -> None:
    def test(port: int) -> None:
        with paho_client(port, "twin") as old:
            old.subscribe(("t", 0))
            with paho_client(port, "twin") as new:
                assert old.ended.get(timeout=SECONDS) is not None
                new.subscribe(("t", 0))
                new.client.publish("t", b"to the new one")
                assert new.take(1) == [("t", b"to the new one", 0, False)]
                assert old.messages.empty()

    async with running(strangers=PAHO) as relay:
        await in_thread(test, relay.port)
        await relay.deserted()


async def test_paho_keeps_its_connection_alive() -> None:
    def test(port: int) -> None:
        with paho_client(port, "alive", keep_alive=1) as alive:
            with pytest.raises(queue.Empty):
                alive.ended.get(timeout=4)
            alive.subscribe(("t", 0))
            alive.client.publish("t", b"still here")
            assert alive.take(1) == [("t", b"still here", 0, False)]

    async with running(strangers=PAHO) as relay:
        await in_thread(test, relay.port)
        assert relay.relay.mqtt.counters.timeouts == 0


async def test_paho_comes_in_by_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "relay.sock")
    listen = (f"mqtt+unix://{path}", "mqtt+tcp://127.0.0.1:0")

    def test() -> None:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "u", transport="unix")
        got: queue.Queue[bytes] = queue.Queue()

        def on_connect(*_: Any) -> None:
            client.subscribe("t")

        def on_subscribe(*_: Any) -> None:
            client.publish("t", b"by unix")

        def on_message(_: Any, __: Any, message: Any) -> None:
            got.put(message.payload)

        client.on_connect = on_connect
        client.on_subscribe = on_subscribe
        client.on_message = on_message
        client.connect(path)
        client.loop_start()
        assert got.get(timeout=SECONDS) == b"by unix"
        client.disconnect()
        client.loop_stop()

    async with running(strangers=PAHO, listen=listen) as relay:
        await in_thread(test)
        await until(lambda: not relay.relay.mqtt.open)


# -- many -----------------------------------------------------------------------------------------


async def test_five_hundred_clients_at_once() -> None:
    """Each subscribes to its own topic and to everybody's, and publishes to its neighbour."""
    count = 500
    async with running() as relay:
        ready = trio.Event()
        here = 0

        async def client(n: int) -> None:
            nonlocal here
            async with connected(relay.port, f"c{n}", keep_alive=30) as one:
                await one.subscribe(f"one/{n}", "all", qos=1)
                here += 1
                await ready.wait()
                if n == 0:
                    await one.publish("all", b"to all", 1)
                await one.publish(f"one/{(n + 1) % count}", b"from %d" % n, n % 2)
                wanted = {("all", b"to all"), (f"one/{n}", b"from %d" % ((n - 1) % count))}
                while wanted:
                    packet = await one.receive()
                    if isinstance(packet, Publish):
                        wanted.remove((packet.topic, packet.payload))
                        if packet.qos:
                            await one.send(PubAck(packet.packet_id))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for n in range(count):
                    nursery.start_soon(client, n)
                await until(lambda: here == count)
                assert len(relay.relay.mqtt.sessions) == count
                relay.audit()
                ready.set()
        await relay.deserted()
        assert relay.relay.mqtt.counters.accepted == count
