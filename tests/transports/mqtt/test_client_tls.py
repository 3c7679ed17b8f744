"""The client over TLS: to a relay, to mosquitto, and to who is not whom it takes it for."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.sockets import ServerTls
from clearfunds.transports import TransportError
from clearfunds.transports.mqtt import (
    ConnAck,
    ConnectionLostError,
    MqttClient,
    Publish,
    encode,
    open_mqtt,
)
from tests.transports.certificates import Papers, papers_in
from tests.transports.conftest import SecureMosquitto
from tests.transports.peers import SECONDS, RunningRelay, descriptors, running, until

HOST = "localhost"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_in(tmp_path_factory.mktemp("papers"))


@asynccontextmanager
async def secure(papers: Papers, *, asks: bool = False) -> AsyncGenerator[RunningRelay]:
    """Run a relay with TLS."""
    tls = ServerTls(papers.for_server(asks=asks).for_server)
    async with running(tls=tls, listen=("mqtt+tls://127.0.0.1:0",)) as relay:
        yield relay


def trusting(papers: Papers, user: str | None = None) -> ssl.SSLContext:
    return papers.for_client(user).for_client()


async def take(client: MqttClient, count: int) -> list[bytes]:
    with trio.fail_after(SECONDS):
        return [(await client.receive()).payload for _ in range(count)]


async def both_ways(port: int, context: ssl.SSLContext, qos: int) -> None:
    """Publish what is short and what is long, and get it."""
    topic = f"clearfunds/{uuid.uuid4().hex}"
    payloads = [b"", b"text", bytes(range(256)) * 4096, *(b"%d" % n for n in range(2_000))]
    async with (
        open_mqtt(HOST, port, tls=context) as subscriber,
        open_mqtt(HOST, port, tls=context) as publisher,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe(topic, qos)

        async def publish() -> None:
            for payload in payloads:
                await publisher.publish(topic, payload, qos, wait=False)
            await publisher.flush()

        nursery.start_soon(publish)
        assert await take(subscriber, len(payloads)) == payloads


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_every_quality_of_service_both_ways(papers: Papers, qos: int) -> None:
    async with secure(papers) as relay:
        await both_ways(relay.port, trusting(papers), qos)
        await relay.deserted()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_with_mosquitto(mosquitto_tls: SecureMosquitto, version: ssl.TLSVersion) -> None:
    context = trusting(mosquitto_tls.papers)
    context.maximum_version = version
    await both_ways(mosquitto_tls.port, context, 1)


async def test_who_takes_nothing_holds_up_who_publishes(papers: Papers) -> None:
    """As without TLS: what a client has not taken does not pile up in it."""
    context = trusting(papers)
    async with (
        secure(papers) as relay,
        open_mqtt(HOST, relay.port, tls=context, max_buffered=10) as subscriber,
        open_mqtt(HOST, relay.port, tls=context) as publisher,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe("t")
        sent = 0

        async def publish() -> None:
            nonlocal sent
            for _ in range(400):
                await publisher.publish("t", bytes(100_000))
                sent += 1

        nursery.start_soon(publish)
        await until(lambda: relay.statistics().debt_items > 0)
        await trio.sleep(0.3)
        assert sent < 400
        assert subscriber.statistics().buffered_messages <= 11
        assert len(await take(subscriber, 400)) == 400


async def refused(port: int, context: ssl.SSLContext, host: str = HOST, **more: Any) -> str:
    """Connect to who is not to be connected to; return what was said, and see what is left."""
    before = descriptors()
    with pytest.raises(TransportError) as caught, trio.fail_after(SECONDS):
        async with open_mqtt(host, port, tls=context, **more):
            pytest.fail("this was no connection")
    await until(lambda: descriptors() <= before)  # the relay is in this process, too
    return str(caught.value)


async def test_a_certificate_that_is_not_believed(papers: Papers, tmp_path: Path) -> None:
    stranger = papers_in(tmp_path / "other")
    async with secure(papers) as relay:
        said = await refused(relay.port, trusting(stranger))
        assert f"cannot connect to {HOST} port {relay.port}: its certificate is not trusted" in said
        assert "--tls-ca FILE" in said
        await relay.deserted()


async def test_a_name_that_is_another(papers: Papers) -> None:
    issued = papers.issue("elsewhere", "elsewhere.example")
    tls = ServerTls(issued.for_server)
    async with running(tls=tls, listen=("mqtt+tls://127.0.0.1:0",)) as relay:
        for host in (HOST, "127.0.0.1"):
            said = await refused(relay.port, trusting(papers), host)
            assert "its certificate is for another name" in said
            assert host in said


async def test_a_server_without_tls(papers: Papers) -> None:
    async with running() as relay:
        said = await refused(relay.port, trusting(papers))
    assert said.endswith("within the TLS handshake; does it speak TLS on that port?")


async def test_a_server_that_answers_in_its_own_way(papers: Papers) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with listening(answer) as port:
        said = await refused(port, trusting(papers))
    assert "the server does not speak TLS (wrong version number); is that its port for TLS?" in said


async def test_a_server_that_says_nothing(papers: Papers) -> None:
    """Its time is that of the answer to CONNECT, and no socket is left of it."""
    ended = trio.Event()

    async def hear(stream: trio.SocketStream) -> None:
        async for _ in stream:
            pass
        ended.set()

    async with listening(hear) as port:
        said = await refused(port, trusting(papers), connect_timeout=0.2)
        assert said == f"no MQTT server with TLS answered on {HOST} port {port} within 0.2 s"
        with trio.fail_after(SECONDS):
            await ended.wait()
        with trio.move_on_after(0.2) as scope:
            async with open_mqtt(HOST, port, tls=trusting(papers)):
                pytest.fail("nobody answered")
        assert scope.cancelled_caught


WANTS = "client's certificate"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_wants_to_know_who_one_is(
    papers: Papers, version: ssl.TLSVersion
) -> None:
    async with secure(papers, asks=True) as relay:
        without, known = trusting(papers), trusting(papers, "press")
        without.maximum_version = known.maximum_version = version
        assert WANTS in await refused(relay.port, without)
        async with open_mqtt(HOST, relay.port, tls=known) as client:
            await client.publish("t", b"x", 1)


async def test_mosquitto_wants_to_know_who_one_is(mosquitto_tls: SecureMosquitto) -> None:
    papers = mosquitto_tls.papers
    assert WANTS in await refused(mosquitto_tls.asking, trusting(papers))
    async with open_mqtt(HOST, mosquitto_tls.asking, tls=trusting(papers, "press")) as client:
        await client.publish("t", b"x", 1)


async def test_a_stream_is_not_encrypted_twice(papers: Papers) -> None:
    ours, _theirs = trio.testing.memory_stream_pair()
    with pytest.raises(ValueError, match="tls is for a host"):
        async with open_mqtt(ours, tls=trusting(papers)):
            pytest.fail("this is no host")


# --- broken off -----------------------------------------------------------------------------


@asynccontextmanager
async def listening(serve: Callable[[trio.SocketStream], Any]) -> AsyncGenerator[int]:
    """Serve connections with a function; gives the port."""
    async with trio.open_nursery() as nursery:
        start = partial(trio.serve_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(start, serve, 0)
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def ending(papers: Papers, end: bytes | None) -> AsyncGenerator[int]:
    """Accept a client, send a message and the half of one, and end it in some way.

    Args:
        end: What comes instead of TLS; None: it is said by TLS that this is the end.
    """

    async def serve(plain: trio.SocketStream) -> None:
        context = papers.for_server().for_server()
        stream = trio.SSLStream(plain, context, server_side=True)
        await stream.receive_some()
        whole = encode(Publish("t", b"last"))
        await stream.send_all(encode(ConnAck(False, 0)) + whole + whole[:5])
        if end is None:
            await stream.unwrap()
        elif end:
            await plain.send_all(end)
            await trio.sleep_forever()
        else:
            await plain.send_eof()
            await trio.sleep_forever()

    async with listening(serve) as port:
        yield port


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (None, "closed the connection in the middle of a packet, after 5 bytes"),
        (b"", "closed the connection in the middle of a packet, after 5 bytes"),
        (b"\x17\x03\x03\x00\x20" + bytes(32), "the connection broke"),
        (b"no TLS at all", "the connection broke"),
    ],
)
async def test_broken_off_in_the_middle(papers: Papers, end: bytes | None, said: str) -> None:
    """What had come before counts; an end that TLS does not say is one all the same."""

    async def lose(port: int) -> None:
        async with open_mqtt(HOST, port, tls=trusting(papers)) as client:
            assert await take(client, 1) == [b"last"]
            await take(client, 1)

    async with ending(papers, end) as port:
        with pytest.raises(ConnectionLostError, match=said):
            await lose(port)


async def test_cut_off_by_a_relay(papers: Papers) -> None:
    async def lose(relay: RunningRelay) -> None:
        async with open_mqtt(HOST, relay.port, tls=trusting(papers)) as client:
            await client.subscribe("t")
            for session in list(relay.relay.mqtt.open):
                session.cut("for a test")
            await take(client, 1)

    async with secure(papers) as relay:
        with pytest.raises(ConnectionLostError):
            await lose(relay)
        await relay.deserted()
