"""A relay behind TLS: foreign clients, certificates of both sides, and peers that do it wrong."""

from __future__ import annotations

import functools
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import wrap_client_stream

from clearfunds.access import Passwords, Tenant
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.sockets import CertificateError, Certificates, ServerTls
from clearfunds.transports import ListenURLError
from clearfunds.transports.mqtt import ConnAck, Connect, Disconnect, Publish
from tests.programs import needs
from tests.transports.certificates import Papers, papers_in
from tests.transports.mqtt.users import user_line
from tests.transports.peers import (
    SECONDS,
    BareClient,
    RunningRelay,
    connected,
    dial,
    frames,
    hear_of_each_other,
    kill,
    log_of,
    run_fed,
    running,
    until,
)
from tests.transports.syndicate.relay.peers import (
    TCP,
    WHOLE_SAYS,
    Peer,
    SyndicateRelay,
    observe,
    says,
    wire,
)

BOTH = ("mqtt+tcp://127.0.0.1:0", "mqtt+tls://127.0.0.1:0")

needs_mosquitto = needs("mosquitto_pub", "mosquitto_sub")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_in(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def tls(papers: Papers) -> ServerTls:
    return ServerTls(papers.for_server().for_server)


def content(file: str | Path | None) -> bytes:
    assert file is not None
    return Path(file).read_bytes()


def write(file: str | Path | None, data: bytes) -> None:
    assert file is not None
    Path(file).write_bytes(data)


def port_of(relay: RunningRelay) -> int:
    return int(relay.addresses.listening[-1].rpartition(":")[2])


@asynccontextmanager
async def secured(
    relay: RunningRelay, context: ssl.SSLContext, *, receive_buffer: int | None = None
) -> AsyncGenerator[BareClient]:
    """Open a connection, and say nothing but what TLS says."""
    async with dial(port_of(relay), receive_buffer=receive_buffer) as client:
        stream: Any = trio.SSLStream(
            client.stream, context, server_hostname="localhost", https_compatible=True
        )
        await stream.do_handshake()
        client.stream = stream
        yield client


@asynccontextmanager
async def secure(
    relay: RunningRelay,
    papers: Papers,
    client_id: str = "",
    *,
    user: str | None = None,
    username: str | None = None,
    receive_buffer: int | None = None,
) -> AsyncGenerator[BareClient]:
    """Connect a client, over TLS."""
    context = papers.for_client(user).for_client()
    async with secured(relay, context, receive_buffer=receive_buffer) as client:
        connect = Connect(client_id, True, 0, username)
        await client.stream.send_all(client.connection.send(connect))
        await client.expect(ConnAck(False, 0))
        yield client


# -- what a client may expect ---------------------------------------------------------------------


async def test_they_and_those_over_tcp_hear_of_each_other(papers: Papers, tls: ServerTls) -> None:
    async with running(listen=BOTH, tls=tls) as relay:
        async with secure(relay, papers, "tls") as one, connected(relay.port, "tcp") as other:
            await hear_of_each_other(one, other)
            await until(lambda: not relay.statistics().debt_items)
            assert relay.account("tls").name == f"mqtt:{port_of(relay)}/-/tls"
        await relay.deserted()


@pytest.mark.parametrize("qos", ["0", "1", "2"])
@needs_mosquitto
async def test_mosquittos_clients(papers: Papers, tls: ServerTls, qos: str) -> None:
    options = ["-h", "localhost", "--cafile", str(papers.trusted), "-q", qos, "-t", "lines"]
    lines = [b"%05d %s" % (n, bytes([65 + n % 26]) * (n % 500)) for n in range(3_000)]
    # mosquitto's clients ask for localhost at ::1 first.
    listen = ("mqtt+tls://127.0.0.1:0",)
    async with running(listen=listen, tls=tls) as relay:
        at = ["-p", str(relay.port)]
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                functools.partial(
                    trio.run_process,
                    ["mosquitto_sub", *at, *options, "-C", str(len(lines))],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    deliver_cancel=kill,
                )
            )
            await until(lambda: len(relay.relay.dataspace.routes) == 1)
            await run_fed(["mosquitto_pub", *at, *options, "-l"], b"\n".join(lines) + b"\n")
            assert process.stdout is not None
            came = b""
            with trio.fail_after(SECONDS):
                async with process.stdout:
                    async for piece in process.stdout:
                        came += piece
        assert came.splitlines() == lines
        await relay.deserted()


async def test_over_websocket(papers: Papers, tls: ServerTls) -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", "mqtt+wss://127.0.0.1:0")
    async with running(listen=listen, tls=tls) as relay:
        async with (
            connected(relay.port) as other,
            secured(relay, papers.for_client().for_client()) as below,
            trio.open_nursery() as nursery,
        ):
            await other.subscribe("#")
            web = await wrap_client_stream(
                nursery, below.stream, "localhost", "/mqtt", subprotocols=["mqtt"]
            )
            data = frames(("t", b"%05d" % n + bytes(n % 700)) for n in range(2_000))
            client = BareClient(below.stream)
            await web.send_message(client.connection.send(Connect("web")))
            await web.send_message(data[:100_000])
            await web.send_message(data[100_000:])
            for n, publication in enumerate(await other.publications(2_000)):
                assert publication.payload == b"%05d" % n + bytes(n % 700)
            with trio.fail_after(SECONDS):
                await web.aclose()
            nursery.cancel_scope.cancel()
        await until(lambda: len(relay.relay.mqtt.open) == 0)


async def test_by_a_slow_reader_nothing_is_lost_or_left(papers: Papers, tls: ServerTls) -> None:
    """Its publisher waits until the kernel has taken the last record."""
    publications = [("t", b"%06d" % n + bytes(n * 37 % 30_000)) for n in range(1_000)]
    async with running(listen=BOTH, tls=tls, limit_items=100) as relay:
        async with (
            secure(relay, papers, "slow", receive_buffer=4096) as slow,
            secure(relay, papers, "fast") as fast,
            secure(relay, papers, "source") as source,
        ):
            for client in (slow, fast):
                await client.subscribe("t")

            async def publish() -> None:
                await source.stream.send_all(frames(publications))

            async def read_all(client: BareClient) -> None:
                found = await client.publications(len(publications))
                assert [(p.topic, p.payload) for p in found] == publications

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                await until(lambda: not relay.account("source").funds_are_clear())
                assert relay.account("source").debt_items <= 150
                relay.audit()
                for client in (slow, fast):
                    nursery.start_soon(read_all, client)
            await until(lambda: not relay.statistics().debt_items)
        await relay.deserted()


async def test_who_is_conflated_gets_whole_messages(papers: Papers, tls: ServerTls) -> None:
    """What is dropped is never half encrypted."""
    async with running(
        listen=BOTH, tls=tls, stuck="conflate", patience=0.3, limit_items=20
    ) as relay:
        async with (
            secure(relay, papers, "slow", receive_buffer=4096) as slow,
            connected(relay.port, "source") as source,
        ):
            await slow.subscribe("#")
            for n in range(600):
                await source.publish(f"t/{n % 7}", b"%06d" % n + bytes(20_000))
            await source.publish("end", b"end")
            last: dict[str, bytes] = {}
            while (publication := await slow.publication()).topic != "end":
                assert len(publication.payload) == 20_006
                assert publication.payload[:6] > last.get(publication.topic, b"")
                last[publication.topic] = publication.payload[:6]
            assert sorted(last.values()) == [b"%06d" % n for n in range(593, 600)]
            relay.audit()
        await relay.deserted()


async def test_what_is_owed_is_sent_before_the_relay_stops(papers: Papers, tls: ServerTls) -> None:
    async with running(listen=BOTH, tls=tls) as relay, secure(relay, papers, "late") as client:
        await client.subscribe("t")
        async with connected(relay.port) as publisher:
            await publisher.publish("t", b"the last")
            await until(lambda: relay.statistics().repaid_items["delivered"] >= 2)
        relay.stop.set()
        await client.expect(Publish("t", b"the last"))
        # Said by TLS: with an end that is not, this would raise.
        assert await client.gone() == []


async def test_who_disconnects_is_closed_in_order(papers: Papers, tls: ServerTls) -> None:
    async with running(listen=BOTH, tls=tls) as relay:
        async with secure(relay, papers, "leaves") as client:
            await client.send(Disconnect())
            assert await client.gone() == []
        await relay.deserted()
        assert relay.relay.mqtt.counters.protocol_errors == 0


async def test_with_busy_poll(papers: Papers, tls: ServerTls) -> None:
    async with (
        running(listen=BOTH, tls=tls, busy_poll=0.01) as relay,
        secure(relay, papers) as client,
    ):
        await client.subscribe("t")
        await client.publish("t", b"awake")
        await client.expect(Publish("t", b"awake"))


# -- who the client is ----------------------------------------------------------------------------


async def test_a_clients_certificate_says_who_it_is(papers: Papers) -> None:
    """Whatever it says itself: a tenant's users are not anybody who says so."""
    tls = ServerTls(papers.for_server(asks=True).for_server)
    press, rest = Tenant(name="press", user=("press",)), Tenant(name="rest", default=True)
    async with (
        running(listen=BOTH, tls=tls, tenant=(press, rest)) as relay,
        secure(relay, papers, "a", user="press", username="somebody") as one,
        secure(relay, papers, "b", user="other", username="press"),
    ):
        assert relay.account("a").name == f"mqtt:{port_of(relay)}/press/a"
        assert relay.account("b").name == f"mqtt:{port_of(relay)}/other/b"
        tenants = [relay.account(name).parent for name in ("a", "b")]
        assert [t.name if t else None for t in tenants] == ["tenant/press", "tenant/rest"]
        await one.subscribe("t")
        await one.publish("t", b"mine")
        await one.expect(Publish("t", b"mine"))


@pytest.mark.parametrize("name", [" ", "\t\n", "-"])
async def test_a_certificate_that_names_nobody_is_refused(
    papers: Papers, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise its client could name whom it likes, and need no password."""
    blank = papers.issue("blank", "b@example.com", common_name=name)
    context = attrs.evolve(blank, trusted=papers.trusted).for_client()
    tls = ServerTls(papers.for_server(asks=True).for_server)
    async with running(listen=BOTH, tls=tls) as relay:
        async with secured(relay, context) as client:
            await client.stream.send_all(client.connection.send(Connect("a", username="press")))
            with trio.fail_after(SECONDS):
                assert await client.receive() is None
        await until(lambda: not relay.relay.mqtt.open)
    assert log_of(caplog, "the client's certificate has no common name")


async def test_without_a_certificate_nobody_gets_in(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(papers.for_server(asks=True).for_server)
    async with running(listen=BOTH, tls=tls) as relay:
        # With TLS 1.3 a client believes that it is in, until it reads.
        async with secured(relay, papers.for_client().for_client()) as client:
            with pytest.raises(trio.BrokenResourceError):
                await client.stream.receive_some(1)
        await until(lambda: not relay.relay.mqtt.open)
        assert relay.relay.mqtt.counters.protocol_errors == 1
    assert log_of(caplog, "the TLS handshake failed: peer did not return a certificate")


async def test_a_stranger_to_the_authority_does_not_get_in(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(papers.for_server(asks=True).for_server)
    stranger = papers_in(tmp_path / "strangers").issue(
        "press", "p@example.com", common_name="press"
    )
    context = attrs.evolve(stranger, trusted=papers.trusted).for_client()
    async with running(listen=BOTH, tls=tls) as relay:
        async with secured(relay, context) as client:
            with pytest.raises(trio.BrokenResourceError):
                await client.stream.receive_some(1)
        await until(lambda: not relay.relay.mqtt.open)
    assert log_of(caplog, "the TLS handshake failed: certificate verify failed")


async def test_who_shows_a_certificate_needs_no_password(papers: Papers) -> None:
    tls = ServerTls(papers.for_server(asks=True).for_server)
    passwords = Passwords.from_text(user_line("anna", b"one"))
    async with running(listen=BOTH, tls=tls, passwords=passwords) as relay:
        async with secure(relay, papers, "a", user="press", username="anna"):
            assert relay.account("a").name == f"mqtt:{port_of(relay)}/press/a"
        async with dial(relay.port) as client:
            await client.stream.send_all(client.connection.send(Connect("b", username="anna")))
            await client.expect(ConnAck(False, 4))


# -- the relay's certificate ----------------------------------------------------------------------


async def test_who_does_not_believe_the_relay_leaves(tls: ServerTls, tmp_path: Path) -> None:
    elsewhere = papers_in(tmp_path / "elsewhere")
    async with running(listen=BOTH, tls=tls) as relay:
        with pytest.raises(trio.BrokenResourceError):
            async with secured(relay, elsewhere.for_client().for_client()):
                pytest.fail("it believes anybody")
        await relay.deserted()


async def test_a_new_certificate_is_shown_to_who_comes_then(papers: Papers, tmp_path: Path) -> None:
    files = papers_in(tmp_path / "files")
    tls = ServerTls(files.for_server().for_server)
    async with running(listen=BOTH, tls=tls) as relay, secure(relay, files, "old") as old:
        shown = files.for_server()
        write(shown.chain, b"nothing")
        with pytest.raises(CertificateError, match=r"server\.pem has to have a certificate"):
            tls.reload()
        renewed = papers.for_server()
        write(shown.chain, content(renewed.chain))
        with pytest.raises(CertificateError, match=r"server\.key is not that of the certificate"):
            tls.reload()
        async with secure(relay, files):
            pass  # as it was
        write(shown.key, content(renewed.key))
        tls.reload()
        async with secure(relay, papers):
            pass
        await old.subscribe("t")  # who is there stays


@pytest.mark.parametrize("url", ["mqtt+tls://127.0.0.1:0", "syndicate+wss://127.0.0.1:0"])
async def test_without_a_certificate_the_relay_does_not_start(url: str) -> None:
    with pytest.raises(ListenURLError, match="TLS needs a certificate: give"):
        await serve_relay(RelaySettings(listen=(url,)), stop=trio.Event())


def test_what_it_shows_is_not_in_the_repr(tls: ServerTls) -> None:
    assert "tls" not in repr(RelaySettings(tls=tls))


# -- Syndicate ------------------------------------------------------------------------------------


async def test_syndicate(papers: Papers, tls: ServerTls) -> None:
    """More than a record at a time, both ways."""
    listen = (TCP, "syndicate+tls://127.0.0.1:0")
    texts = [f'"{chr(97 + n % 26) * (n * 41 % 40_000)}"' for n in range(100)]
    async with running(listen=listen, tls=tls) as served:
        relay = SyndicateRelay(served)
        async with (
            relay.peer() as other,
            secured(served, papers.for_client().for_client()) as client,
        ):
            peer = Peer(client.stream)
            for each in (peer, other):
                await each.send(observe(WHOLE_SAYS))
                await each.sync()

            async def say() -> None:
                await peer.send_raw(b"".join(wire(says(text)) for text in texts))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(say)
                for each in (peer, other):
                    told = await each.lines(len(texts))
                    assert [line[:11] for line in told] == ["1 ! [<Says "] * len(texts)
            relay.audit()
            await peer.leave()
        await relay.deserted()


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", "wrong version number"),
        (b"GET / HTTP/1.1\r\n\r\n", "http request"),
    ],
)
async def test_who_speaks_no_tls_is_closed(
    tls: ServerTls, hello: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(listen=BOTH, tls=tls) as relay:
        async with dial(port_of(relay)) as client:
            await client.stream.send_all(hello)
            with trio.fail_after(SECONDS):
                while await client.stream.receive_some(100):
                    pass
        await relay.deserted()
        assert relay.relay.mqtt.counters.protocol_errors == 1
    assert log_of(caplog, f"the TLS handshake failed: {reason}")


@pytest.mark.parametrize("protocol", ["mqtt+tls", "mqtt+wss", "syndicate+tls", "syndicate+wss"])
@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_who_does_not_finish_the_handshake_is_cut(
    tls: ServerTls, protocol: str, hello: bytes
) -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", f"{protocol}://127.0.0.1:0")
    async with running(listen=listen, tls=tls, connect_timeout=0.3) as relay:
        async with dial(port_of(relay)) as client:
            if hello:
                await client.stream.send_all(hello)
            with trio.fail_after(SECONDS):
                while await client.stream.receive_some(100):
                    pass
        sides = relay.relay.sides
        await until(lambda: not any(side.open for side in sides))
        assert sum(side.counters.timeouts for side in sides) == 1


@pytest.mark.parametrize("protocol", ["mqtt+tls", "mqtt+wss", "syndicate+tls", "syndicate+wss"])
async def test_the_relay_stops_within_a_handshake(
    tls: ServerTls, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nobody to say goodbye to."""
    monkeypatch.setattr("clearfunds.transports._session.LINGER_SECONDS", SECONDS * 10)
    listen = ("mqtt+tcp://127.0.0.1:0", f"{protocol}://127.0.0.1:0")
    async with running(listen=listen, tls=tls) as relay, dial(port_of(relay)) as client:
        await until(lambda: any(side.open for side in relay.relay.sides))
        relay.stop.set()
        with trio.fail_after(SECONDS):
            assert await client.stream.receive_some(100) == b""


@pytest.mark.parametrize("protocol", ["mqtt+tls", "mqtt+wss", "syndicate+tls", "syndicate+wss"])
async def test_what_is_no_tls_any_more_ends_it(
    papers: Papers, tls: ServerTls, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", f"{protocol}://127.0.0.1:0")
    async with running(listen=listen, tls=tls) as relay:
        async with secured(relay, papers.for_client().for_client()) as client:
            stream: Any = client.stream
            await stream.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
            with trio.fail_after(SECONDS), suppress(trio.BrokenResourceError):
                while await stream.receive_some(100):
                    pass
        await until(lambda: not any(side.open for side in relay.relay.sides))
        assert sum(side.counters.protocol_errors for side in relay.relay.sides) == 1
    assert log_of(caplog, "TLS has failed: decryption failed or bad record mac")


async def test_what_comes_with_the_last_of_the_handshake_is_heard(
    papers: Papers, tls: ServerTls
) -> None:
    """And not when something more comes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = papers.for_client().for_client()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with running(listen=BOTH, tls=tls) as relay, dial(port_of(relay)) as below:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                await below.stream.send_all(outgoing.read())
                incoming.write(await below.stream.receive_some(1 << 16))
        client.write(below.connection.send(Connect("hasty")))
        await below.stream.send_all(outgoing.read())
        with trio.fail_after(SECONDS):
            await until(lambda: "hasty" in relay.relay.mqtt.sessions)


async def test_who_breaks_off_is_gone(papers: Papers, tls: ServerTls) -> None:
    async with running(listen=BOTH, tls=tls) as relay:
        async with dial(port_of(relay)) as half:
            await half.stream.send_all(b"\x16\x03\x01")
        async with secured(relay, papers.for_client().for_client()) as client:
            stream: Any = client.stream
            sock = stream.transport_stream.socket
            await client.stream.send_all(client.connection.send(Connect("resets")))
            await client.expect(ConnAck(False, 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
        await relay.deserted()
        assert relay.relay.mqtt.counters.protocol_errors == 0


# -- files ----------------------------------------------------------------------------------------


def test_files_that_are_no_certificates(papers: Papers, tmp_path: Path) -> None:
    good, other = papers.for_server(), papers.issue("other", "other.example.com")
    empty, nowhere = tmp_path / "empty.pem", tmp_path / "nowhere.pem"
    empty.write_text("")
    for changes, message in (
        ({"chain": None}, "a server has to have a certificate"),
        ({"chain": nowhere}, "cannot read .*nowhere.pem: No such file"),
        ({"key": nowhere}, "cannot read .*nowhere.pem: No such file"),
        ({"chain": empty}, "empty.pem has to have a certificate, its own first"),
        ({"key": None}, "server.pem has no private key in it: give the file that has"),
        ({"key": empty}, "empty.pem its private key, in PEM"),
        ({"key": other.key}, "other.key is not that of the certificate in .*server.pem"),
        ({"trusted": empty}, "empty.pem has to have certificates, in PEM"),
        ({"trusted": nowhere}, "cannot read .*nowhere.pem: No such file"),
    ):
        with pytest.raises(CertificateError, match=message):
            attrs.evolve(good, **changes).for_server()
    with pytest.raises(CertificateError, match="give the certificate, too"):
        Certificates(key=good.key).for_client()


def test_a_key_with_a_password_is_refused(papers: Papers, tmp_path: Path) -> None:
    """And not asked for in the terminal."""
    from cryptography.hazmat.primitives import serialization

    good = papers.for_server()
    key: Any = serialization.load_pem_private_key(content(good.key), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(CertificateError, match=r"the key in .*locked\.key is encrypted"):
        attrs.evolve(good, key=locked).for_server()
