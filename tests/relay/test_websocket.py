"""MQTT over WebSocket (MQTT 3.1.1, section 6): by paho, by a browser, and message by message."""

from __future__ import annotations

import queue
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from clearfunds.relay import RelaySettings
from clearfunds.transports import ListenURLError
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    Will,
    encode,
)
from tests.pages.chromium import CHROMIUM, WHY_NOT, browsing
from tests.transports.peers import (
    SECONDS,
    BareClient,
    RunningRelay,
    connected,
    dial,
    hear_of_each_other,
    log_of,
    running,
    until,
)
from tests.transports.websocket.frames import BINARY, frame, request

BOTH = ("mqtt+tcp://127.0.0.1:0", "mqtt+ws://127.0.0.1:0")


HANDSHAKE = request(Sec_WebSocket_Protocol="mqtt")
message = partial(frame, BINARY)


def web_port(relay: RunningRelay) -> int:
    return int(relay.addresses.listening[1].rpartition(":")[2])


class Messages:
    """A client's WebSocket as a stream: each piece is a message."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def send_all(self, data: bytes) -> None:
        await self.socket.send_message(data)

    async def receive_some(self, _: int = 0) -> bytes:
        try:
            message = await self.socket.get_message()
        except ConnectionClosed:
            return b""
        assert isinstance(message, bytes)
        return message


class WebClient(BareClient):
    """A bare client over a WebSocket."""

    def __init__(self, socket: WebSocketConnection) -> None:
        stream: Any = Messages(socket)
        super().__init__(stream)
        self.socket = socket

    @property
    def closed(self) -> tuple[int, str | None]:
        """What the relay closed it with."""
        why = self.socket.closed
        assert why is not None
        return why.code, why.reason


@asynccontextmanager
async def opened(
    relay: RunningRelay, subprotocols: list[str] | None = None
) -> AsyncGenerator[WebClient]:
    """Open a WebSocket to the relay, and say nothing of MQTT yet."""
    wanted = ["mqtt"] if subprotocols is None else subprotocols
    async with (
        # Closed here: trio-websocket does not always, when the other side has closed first.
        await trio.open_tcp_stream("127.0.0.1", web_port(relay)) as stream,
        trio.open_nursery() as nursery,
    ):
        socket = await wrap_client_stream(
            nursery, stream, "127.0.0.1", "/mqtt", subprotocols=wanted
        )
        yield WebClient(socket)
        with trio.move_on_after(1):
            await socket.aclose()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def web(relay: RunningRelay, client_id: str) -> AsyncGenerator[WebClient]:
    """Connect a client over a WebSocket."""
    async with opened(relay) as client:
        await client.stream.send_all(client.connection.send(Connect(client_id)))
        await client.expect(ConnAck(False, 0))
        yield client


# -- what a client may expect ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["mqtt"], "mqtt"), (["other", "mqtt"], "mqtt"), (["mqttv3.1"], None), ([], None)],
)
async def test_the_subprotocol(offered: list[str], chosen: str | None) -> None:
    """[MQTT-6.0.0-3], [MQTT-6.0.0-4]; who offers none is served all the same."""
    async with running(listen=BOTH) as relay:
        async with opened(relay, subprotocols=offered) as client:
            assert client.socket.subprotocol == chosen
        await relay.deserted()


async def test_they_and_those_over_tcp_hear_of_each_other() -> None:
    async with running(listen=BOTH) as relay:
        async with web(relay, "web") as one, connected(relay.port, "tcp") as other:
            await hear_of_each_other(one, other)
            await until(lambda: not relay.statistics().debt_items)
            name = relay.account("web").name
            assert name == f"mqtt:{web_port(relay)}/-/web"
        await relay.deserted()


async def test_where_messages_end_means_nothing() -> None:
    """[MQTT-6.0.0-2]."""
    packets: list[Packet] = [
        Connect("cut"), Subscribe(1, (("t", 0),)), Publish("t", b"1"), PingReq(),
    ]  # fmt: skip
    stream = b"".join(encode(packet) for packet in packets)
    async with running(listen=BOTH) as relay:
        for size in (1, 7, len(stream)):
            async with opened(relay) as client:
                client.connection.send(Connect("cut"))
                for at in range(0, len(stream), size):
                    await client.stream.send_all(stream[at : at + size])
                await client.expect(ConnAck(False, 0))
                assert (await client.receive()) is not None  # SUBACK
                await client.expect(Publish("t", b"1"))
                await client.expect(PingResp())


async def test_a_ping_of_the_websockets_is_answered() -> None:
    async with running(listen=BOTH) as relay, web(relay, "pings") as client:
        with trio.fail_after(SECONDS):
            await client.socket.ping(b"here")


async def test_who_disconnects_is_closed_in_order() -> None:
    async with running(listen=BOTH) as relay:
        async with web(relay, "leaves") as client:
            await client.send(Disconnect())
            assert await client.gone() == []
            assert client.closed[0] == 1000
        await relay.deserted()
        assert relay.relay.mqtt.counters.protocol_errors == 0


async def test_what_is_owed_is_sent_before_the_relay_stops() -> None:
    async with running(listen=BOTH) as relay, web(relay, "late") as client:
        await client.subscribe("t")
        async with connected(relay.port) as publisher:
            await publisher.publish("t", b"the last")
            await until(lambda: relay.statistics().repaid_items["delivered"] >= 2)
        relay.stop.set()
        await client.expect(Publish("t", b"the last"))
        assert await client.gone() == []
        assert client.closed[0] == 1001


# -- faults ---------------------------------------------------------------------------------------


async def test_what_breaks_mqtt_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    async with running(listen=BOTH) as relay:
        async with opened(relay) as client:
            await client.stream.send_all(b"\xff\x00")
            assert await client.gone() == []
            code, reason = client.closed
        assert code == 1002
        assert reason
        await relay.deserted()
        assert relay.relay.mqtt.counters.protocol_errors == 1
    assert log_of(caplog, reason)


async def test_text_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """[MQTT-6.0.0-1]; what came before it counts."""
    async with running(listen=BOTH) as relay, connected(relay.port) as subscriber:
        await subscriber.subscribe("t")
        async with web(relay, "types") as client:
            await client.publish("t", b"before")
            await client.socket.send_message("text")
            assert await client.gone() == []
            assert client.closed[0] == 1003
        await subscriber.expect(Publish("t", b"before"))
        await until(lambda: relay.relay.mqtt.counters.protocol_errors == 1)
    assert log_of(caplog, "a text frame came")


async def test_a_packet_that_is_too_large_is_refused() -> None:
    async with running(listen=BOTH, max_packet_size=1_000) as relay, web(relay, "large") as client:
        await client.publish("t", bytes(1_000))
        assert await client.gone() == []
        assert client.closed[0] == 1002


async def test_a_message_of_many_packets_may_be_larger() -> None:
    """[MQTT-6.0.0-2]; and it is taken piece by piece, as if it came over TCP."""
    async with running(listen=BOTH, max_packet_size=1_000) as relay:
        async with connected(relay.port) as subscriber, web(relay, "many") as client:
            await subscriber.subscribe("t")
            packets = [encode(Publish("t", b"%06d" % n + bytes(800))) for n in range(5_000)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.stream.send_all, b"".join(packets))
                for n in range(5_000):
                    assert (await subscriber.publication()).payload[:6] == b"%06d" % n
        await relay.deserted()


@pytest.mark.parametrize("leaves", ["by a fault", "in order"])
async def test_its_name_is_free_at_once(leaves: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may be slow to close: nothing of it is in the way of who comes by the same name."""
    will = Will("will", b"by a fault")
    async with running(listen=BOTH) as relay, connected(relay.port, "watcher") as watcher:
        await watcher.subscribe("#")
        async with dial(web_port(relay)) as old:
            await old.stream.send_all(HANDSHAKE + message(encode(Connect("twin", will=will))))
            await until(lambda: "twin" in relay.relay.mqtt.sessions)
            await old.stream.send_all(message(encode(Subscribe(1, (("t", 0),)))))
            await until(lambda: len(relay.relay.dataspace.routes) == 2)
            last = b"\xff\x00" if leaves == "by a fault" else encode(Disconnect())
            with trio.fail_after(0.8):
                await old.stream.send_all(message(last))
                if leaves == "by a fault":
                    await watcher.expect(Publish("will", b"by a fault"))
                await until(lambda: len(relay.relay.dataspace.routes) == 1)
                assert len(relay.relay.mqtt.open) == 2  # it has still to close
                async with connected(relay.port, "twin") as new:
                    await new.publish("t", b"here")
                    await watcher.expect(Publish("t", b"here"))
        await until(lambda: len(relay.relay.mqtt.open) == 1)
        relay.audit()
    assert not log_of(caplog, "another connection came")


async def test_who_is_taken_over_is_told_so() -> None:
    """Also with input that has not been read: closed at once, the reason might be lost to it."""
    async with running(listen=BOTH) as relay, web(relay, "twin") as old:
        await old.subscribe("t")
        async with web(relay, "twin") as new:
            with suppress(ConnectionClosed):  # it may have heard already
                await old.publish("t", bytes(100_000))
            assert await old.gone() == []
            assert old.closed == (1008, "another connection came with the same client identifier")
            await new.send(PingReq())
            await new.expect(PingResp())
            assert relay.relay.mqtt.counters.internal_errors == 0


async def test_silence_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running(listen=BOTH) as relay:
        async with dial(web_port(relay)) as client:
            connect = encode(Connect("silent", keep_alive=1))
            await client.stream.send_all(HANDSHAKE + message(connect))
            await until(lambda: relay.relay.mqtt.sessions)
            await until(lambda: not relay.relay.mqtt.open)
        assert relay.relay.mqtt.counters.timeouts == 1
    assert len(log_of(caplog, "keep-alive is over")) == 1


async def test_a_large_packet_on_a_slow_line_is_a_sign_of_life() -> None:
    """Within one message there can be no PINGREQ."""
    payload = bytes(70_000)
    async with running(listen=BOTH) as relay, connected(relay.port) as subscriber:
        await subscriber.subscribe("t")
        async with dial(web_port(relay)) as slow:
            await slow.stream.send_all(HANDSHAKE + message(encode(Connect("slow", keep_alive=1))))
            large = message(encode(Publish("t", payload)))
            for at in range(0, len(large), 9_000):
                await slow.stream.send_all(large[at : at + 9_000])
                await trio.sleep(0.25)
            await subscriber.expect(Publish("t", payload))
        assert relay.relay.mqtt.counters.timeouts == 0


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"HTTP/1.1 426 "),
        (encode(Connect("tcp")), b"HTTP/1.1 400 "),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
    ],
)
async def test_who_speaks_no_websocket_is_told_so(
    said: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(listen=BOTH) as relay:
        async with dial(web_port(relay)) as client:
            await client.stream.send_all(said)
            got = b""
            with trio.fail_after(SECONDS):
                while data := await client.stream.receive_some():
                    got += data
        assert got.startswith(answer)
        await relay.deserted()
    assert log_of(caplog, "no WebSocket handshake")


@pytest.mark.parametrize("protocol", ["mqtt", "syndicate"])
async def test_whose_pages_may_connect(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", f"{protocol}+ws://127.0.0.1:0")
    async with running(listen=listen, origin=("https://Here.example",)) as relay:
        for origin, answer in (("https://here.example", 101), ("https://there.example", 403)):
            async with dial(web_port(relay)) as client:
                await client.stream.send_all(request(Origin=origin))
                with trio.fail_after(SECONDS):
                    head = await client.stream.receive_some()
                assert head.startswith(b"HTTP/1.1 %d " % answer)
    assert log_of(caplog, "pages of 'https://there.example' may not connect here")


@pytest.mark.parametrize("protocol", ["mqtt", "syndicate"])
async def test_pages_of_others_may_not_connect_by_default(protocol: str) -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", f"{protocol}+ws://127.0.0.1:0")
    async with running(listen=listen) as relay:
        for origin, answer in (("http://127.0.0.1:3000", 101), ("http://evil.example", 403)):
            async with dial(web_port(relay)) as client:
                await client.stream.send_all(request(Origin=origin, Host="127.0.0.1:8083"))
                with trio.fail_after(SECONDS):
                    head = await client.stream.receive_some()
                assert head.startswith(b"HTTP/1.1 %d " % answer)


def test_origins() -> None:
    given = ("*", "http://[::1]:8000", "https://Here.example", "http://here.example:443", "app://x")
    assert RelaySettings(origin=given).origin == tuple(each.lower() for each in given)


@pytest.mark.parametrize(
    "origin",
    [
        *("here.example", "https://here.example/", "https://", "null", "https://*", "http://[::1"),
        *("https://here.example:443", "http://here.example:80", "https://me@here.example"),
        *("https://here.example:port", "https://bücher.example", "https://here example"),
    ],
)
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(ListenURLError, match="is no origin: write https://HOST, with :PORT"):
        RelaySettings(origin=(origin,))


async def test_half_a_handshake_is_not_waited_for() -> None:
    async with running(listen=BOTH, connect_timeout=0.2) as relay:
        async with dial(web_port(relay)) as client:
            await client.stream.send_all(b"GET / HTTP/1.1\r\n")
            with trio.fail_after(SECONDS):
                assert not await client.stream.receive_some()
        await relay.deserted()
        assert relay.relay.mqtt.counters.timeouts == 1


# -- flow control ---------------------------------------------------------------------------------


async def test_who_reads_nothing_holds_up_who_publishes_and_gets_it_all() -> None:
    count, payload = 3_000, bytes(5_000)
    async with running(listen=BOTH, limit_items=100) as relay:
        async with web(relay, "slow") as slow, web(relay, "fast") as publisher:
            await slow.subscribe("t")
            sent = 0

            async def publish() -> None:
                nonlocal sent
                for n in range(count):
                    await publisher.publish("t", b"%06d" % n + payload)
                    sent += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                await until(lambda: relay.account("fast").waiting)
                # trio-websocket reads ahead by one message only.
                await trio.sleep(0.2)
                assert sent < count
                assert relay.account("fast").debt_items <= 102
                relay.audit()
                for n in range(count):
                    packet = await slow.publication()
                    assert packet.payload[:6] == b"%06d" % n
                    assert len(packet.payload) == 5_006
        await relay.deserted()


async def test_who_reads_nothing_for_too_long_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with running(listen=BOTH, limit_items=10, patience=0.3, stuck="disconnect") as relay:
        async with dial(web_port(relay)) as stuck, connected(relay.port, "press") as publisher:
            await stuck.stream.send_all(HANDSHAKE)
            await until(lambda: relay.relay.mqtt.open)
            await stuck.stream.send_all(message(encode(Connect("stuck"))))
            await stuck.stream.send_all(message(encode(Subscribe(1, (("t", 0),)))))
            await until(lambda: len(relay.relay.dataspace.routes) == 1)
            with trio.fail_after(SECONDS):
                for _ in range(200):
                    await publisher.publish("t", bytes(100_000))
            await until(lambda: len(relay.relay.mqtt.open) == 1)
        await relay.deserted()
    assert log_of(caplog, "outlet mqtt:")


# -- others' clients ------------------------------------------------------------------------------


async def test_paho_publishes_and_subscribes() -> None:
    paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
    large = bytes(range(256)) * 4_096

    def test(port: int) -> None:
        got: queue.Queue[tuple[str, bytes, int]] = queue.Queue()
        ready: queue.Queue[None] = queue.Queue()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "paho", transport="websockets")

        def on_connect(*_: Any) -> None:
            client.subscribe("t/+", 2)

        def on_subscribe(*_: Any) -> None:
            ready.put(None)

        def on_message(_: Any, __: Any, message: Any) -> None:
            got.put((message.topic, message.payload, message.qos))

        client.on_connect = on_connect
        client.on_subscribe = on_subscribe
        client.on_message = on_message
        client.connect("127.0.0.1", port)
        client.loop_start()
        try:
            ready.get(timeout=SECONDS)
            for qos in (0, 1, 2):
                for payload in (b"", b"small", large):
                    client.publish(f"t/{qos}", payload, qos)
                    assert got.get(timeout=SECONDS) == (f"t/{qos}", payload, qos)
        finally:
            client.disconnect()
            client.loop_stop()

    # Its descriptors are closed by the garbage collector.
    async with running(listen=BOTH, strangers=3) as relay:
        await trio.to_thread.run_sync(test, web_port(relay))
        await until(lambda: not relay.relay.mqtt.open)
        relay.audit()


SCRIPT = """
new Promise((resolve, reject) => {
  const socket = new WebSocket("ws://127.0.0.1:%d/mqtt", "mqtt");
  socket.binaryType = "arraybuffer";
  socket.onerror = () => reject(new Error("the socket has failed"));
  const got = [];
  socket.onopen = () => socket.send(new Uint8Array(%s));
  socket.onmessage = (event) => {
    got.push(...new Uint8Array(event.data));
    if (got.length >= %d) socket.send(new Uint8Array([0xe0, 0]));
  };
  socket.onclose = (event) => resolve([socket.protocol, got, event.code, event.wasClean]);
})
"""


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
async def test_a_browser_publishes_and_subscribes() -> None:
    publication = encode(Publish("t", b"from a page"))
    said = list(encode(Connect("browser")) + encode(Subscribe(1, (("t", 0),))) + publication)
    echo = list(encode(ConnAck(False, 0)) + encode(SubAck(1, (0,))) + publication)
    async with running(listen=BOTH, http="127.0.0.1:0", strangers=100) as relay:
        url = relay.addresses.http
        assert url is not None
        async with browsing() as browser:
            tab = await browser.open(f"{url}/healthz")
            script = SCRIPT % (web_port(relay), said, len(echo))
            assert await tab.evaluate(script) == ["mqtt", echo, 1000, True]
        await until(lambda: not relay.relay.mqtt.open)
        relay.audit()
