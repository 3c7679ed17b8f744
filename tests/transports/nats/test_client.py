"""The NATS client, with a real server, and with some that misbehave."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from clearfunds.transports import LocalProtocolError, TransportError
from clearfunds.transports.nats import (
    ConnectionLostError,
    Login,
    LoginError,
    Message,
    NatsClient,
    NoAnswerError,
    NoRespondersError,
    RefusedError,
    open_nats,
)
from tests.nats_servers import NatsServer, nats_server, needs_nats
from tests.transports.certificates import papers_in
from tests.transports.peers import until

pytestmark = needs_nats


async def answer(nats: NatsClient, subject: str) -> None:
    """Answer requests with their payload in upper case."""
    with nats.subscribe(subject) as requests:
        async for request in requests:
            await nats.publish(request.reply, request.payload.upper(), headers={"Seen": "yes"})


# -- publishing and subscribing -------------------------------------------------------------------


async def test_subscribers_get_what_is_published(shared: NatsServer) -> None:
    async with open_nats(shared.url) as nats:
        with nats.subscribe("t1.*.x") as some, nats.subscribe("t1.>") as all_of_them:
            await nats.publish("t1.a.x", b"1", headers={"K": ["v", "w"]})
            await nats.publish("t1.a.y", b"2", reply="t1.back")
            await nats.publish("t2.a.x", b"3")
            await nats.flush()
            assert len(some) == 1
            first = await some.receive()
            assert (first.subject, first.payload) == ("t1.a.x", b"1")
            assert first.headers.values == {"K": ["v", "w"]}
            assert [(await all_of_them.receive()).payload for _ in range(2)] == [b"1", b"2"]
            with pytest.raises(trio.WouldBlock):
                all_of_them.receive_nowait()
        await nats.publish("t1.a.x")
        await nats.flush()
        assert nats.statistics().subscriptions == 0
        with pytest.raises(trio.EndOfChannel):
            await some.receive()


async def test_large_messages_and_many(shared: NatsServer) -> None:
    async with open_nats(shared.url) as nats, open_nats(shared.url) as other:
        with other.subscribe("large") as received:
            await other.flush()
            payloads = [bytes([n % 256]) * (n * 97 % 70_000) for n in range(400)]

            async def publish() -> None:
                for payload in payloads:
                    await nats.publish("large", payload)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                for payload in payloads:
                    assert (await received.receive()).payload == payload


async def test_a_group_gets_each_message_once(shared: NatsServer) -> None:
    async with open_nats(shared.url) as nats, open_nats(shared.url) as other:
        with nats.subscribe("work", queue="g") as one, other.subscribe("work", queue="g") as two:
            await other.flush()
            for number in range(100):
                await nats.publish("work", b"%d" % number)
            await nats.flush()
            await other.flush()
            found = [*(one.receive_nowait() for _ in range(len(one)))]
            found += [two.receive_nowait() for _ in range(len(two))]
    assert sorted(int(each.payload) for each in found) == list(range(100))


async def test_without_echo_a_client_does_not_hear_itself(shared: NatsServer) -> None:
    async with open_nats(shared.url, echo=False) as nats:
        with nats.subscribe("echo") as received:
            await nats.publish("echo")
            await nats.flush()
            assert not len(received)


async def test_a_full_buffer_drops_and_counts(
    shared: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_nats(shared.url) as nats:
        with (
            nats.subscribe("flood", max_buffered=10) as few,
            nats.subscribe("flood", max_buffered_bytes=100) as small,
        ):
            for number in range(50):
                await nats.publish("flood", b"%02d" % number)
            await nats.flush()
            assert (len(few), few.missed) == (10, 40)
            assert len(small) * len("flood00") <= 100
            assert len(small) + small.missed == 50
            assert few.receive_nowait().payload == b"00"
    assert caplog.text.count("buffer of a subscription to flood is full") == 2


async def test_a_message_larger_than_the_buffer_comes_alone(shared: NatsServer) -> None:
    async with open_nats(shared.url) as nats:
        with nats.subscribe("big", max_buffered_bytes=10) as received:
            await nats.publish("big", b"x" * 1000)
            await nats.publish("big", b"y")
            await nats.flush()
            assert (len(received), received.missed) == (1, 1)


# -- requests -------------------------------------------------------------------------------------


async def test_requests_get_their_own_answers(shared: NatsServer) -> None:
    found: dict[int, bytes] = {}
    async with (
        open_nats(shared.url) as nats,
        open_nats(shared.url) as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(answer, server, "upper")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await server.flush()

        async def ask(number: int) -> None:
            reply = await nats.request("upper", b"n%d" % number)
            assert reply.headers.get("Seen") == "yes"
            found[number] = reply.payload

        async with trio.open_nursery() as asking:
            for number in range(50):
                asking.start_soon(ask, number)
        nursery.cancel_scope.cancel()
    assert found == {number: b"N%d" % number for number in range(50)}
    assert nats.statistics().requests == 0


async def test_requests_that_nobody_answers(shared: NatsServer) -> None:
    async with open_nats(shared.url) as nats:
        with pytest.raises(NoRespondersError, match=r"nobody subscribes to nobody\.here"):
            await nats.request("nobody.here")
        with nats.subscribe("silent"), pytest.raises(NoAnswerError, match=r"within 0\.05 s"):
            await nats.request("silent", timeout=0.05)
        with nats.subscribe("silent"), trio.move_on_after(0.05):
            await nats.request("silent")
        assert nats.statistics().requests == 0


async def test_many_requests_with_callbacks(shared: NatsServer) -> None:
    async with open_nats(shared.url) as nats, trio.open_nursery() as nursery:
        nursery.start_soon(answer, nats, "upper2")
        await trio.testing.wait_all_tasks_blocked(0.02)
        found: list[Message | TransportError] = []
        for number in range(100):
            nats.ask_nowait("upper2", b"n%d" % number, found.append)
        forgotten = nats.ask_nowait("upper2", b"x", found.append)
        nats.forget(forgotten)
        await nats.request("upper2")
        nursery.cancel_scope.cancel()
    assert [each.payload for each in found if isinstance(each, Message)] == [
        b"N%d" % number for number in range(100)
    ]


# -- misuse ---------------------------------------------------------------------------------------


async def test_what_would_break_the_protocol_is_not_sent(shared: NatsServer) -> None:
    async with open_nats(shared.url) as nats:
        for subject in ("a b", "a\r\nPUB b 0", "", "a.*"):
            with pytest.raises(LocalProtocolError, match="is no subject"):
                await nats.publish(subject)
            with pytest.raises(LocalProtocolError, match="is no subject"):
                await nats.publish("a", reply=subject or " ")
        with pytest.raises(LocalProtocolError, match="is no subject"):
            nats.subscribe("a..b")
        with pytest.raises(LocalProtocolError, match="is no subject"):
            nats.subscribe("a", queue="b c")
        with pytest.raises(LocalProtocolError, match="the server takes 1048576 at most"):
            await nats.publish("a", bytes((1 << 20) + 1))
        await nats.publish("a", bytes(1 << 20))
        with pytest.raises(ValueError, match="at least one message"):
            nats.subscribe("a", max_buffered=0)
        with nats.subscribe("a") as entered, pytest.raises(ValueError, match="entered before"):
            entered.__enter__()
        with pytest.raises(ValueError, match="in its `with` block"):
            nats.subscribe("a").receive_nowait()
        await nats.flush()
        assert nats.statistics().connections == 1
    for use in (nats.flush, partial(nats.publish, "a"), nats.wait_connected):
        with pytest.raises(LocalProtocolError, match="has been left"):
            await use()
    with pytest.raises(LocalProtocolError, match="has been left"):
        nats.publish_nowait("a")
    with pytest.raises(LocalProtocolError, match="has been left"), nats.subscribe("a"):
        pass
    with pytest.raises(ValueError, match="ping_interval"):
        async with open_nats(shared.url, ping_interval=0):
            pass


async def test_leaving_sends_what_was_published_and_ends_iteration(shared: NatsServer) -> None:
    async with open_nats(shared.url) as other:
        with other.subscribe("last") as received:
            await other.flush()
            async with trio.open_nursery() as nursery, open_nats(shared.url) as nats:
                for _ in range(1000):
                    await nats.publish("last", b"x" * 500)
                left = nats.subscribe("nothing")
                left.__enter__()

                async def wait_for_the_end() -> None:
                    assert [each async for each in left] == []

                nursery.start_soon(wait_for_the_end)
            await other.flush()
            assert len(received) == 1000


async def test_an_error_of_the_block_comes_out_unwrapped(shared: NatsServer) -> None:
    with pytest.raises(KeyError):
        async with open_nats(shared.url):
            raise KeyError


# -- logging in -----------------------------------------------------------------------------------


USERS = """
authorization { users: [
  { user: ann, password: "s3cret", permissions: { publish: "a.>", subscribe: ["a.>", "_INBOX.>"] } }
  { nkey: %s }
] }
"""


async def test_users_with_passwords_and_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nkeys = pytest.importorskip("nkeys")
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    with nats_server(tmp_path, USERS % public) as server:
        async with open_nats(server.url, login=Login(user="ann", password="s3cret")) as nats:
            with nats.subscribe("b.x") as refused, nats.subscribe("a.x") as allowed:
                with pytest.raises(RefusedError, match="Permissions Violation for Subscription"):
                    await refused.receive()
                await nats.publish("b.x")
                await nats.publish("a.x", b"1")
                assert (await allowed.receive()).payload == b"1"
        assert 'reports: Permissions Violation for Publish to "b.x"' in caplog.text
        address = server.url.replace("//", "//ann:s3cret@")
        async with open_nats(address) as nats:
            await nats.flush()
        login = Login(seed=seed.decode())
        async with open_nats(server.url, login=lambda: login) as nats:
            await nats.flush()
        assert "s3cret" not in repr(Login(password="s3cret"))
        for wrong in (None, Login(user="ann", password="s"), Login(token="x")):
            with pytest.raises(TransportError, match="refused the login: Authorization Violation"):
                async with open_nats(server.url, login=wrong):
                    pass
        with pytest.raises(TransportError, match="the seed of the key is damaged"):
            async with open_nats(server.url, login=Login(seed="SUnonsense")):
                pass


async def test_a_token(tmp_path: Path) -> None:
    with nats_server(tmp_path, 'authorization { token: "t0ken" }') as server:
        async with open_nats(server.url, login=Login(token="t0ken")) as nats:
            await nats.flush()
        async with open_nats(server.url.replace("//", "//t0ken@")) as nats:
            await nats.flush()


def jwt(signer: Any, subject: str, name: str, kind: str, more: dict[str, Any]) -> str:
    """Return a token as `nsc` makes it [NATS ADR-14]."""

    def part(found: bytes) -> str:
        return base64.urlsafe_b64encode(found).rstrip(b"=").decode()

    claims = {
        "iat": 1,
        "iss": signer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": {"type": kind, "version": 2} | more,
    }
    digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    text = f"{head}.{part(json.dumps(claims).encode())}"
    return f"{text}.{part(signer.sign(text.encode()))}"


async def test_a_credentials_file(tmp_path: Path) -> None:
    nkeys = pytest.importorskip("nkeys")

    def pair(prefix: int, number: int) -> tuple[Any, str]:
        seed = nkeys.encode_seed(bytes([number] * 32), prefix)
        return nkeys.from_seed(bytearray(seed)), seed.decode()

    operator, _ = pair(nkeys.PREFIX_BYTE_OPERATOR, 1)
    account, _ = pair(nkeys.PREFIX_BYTE_ACCOUNT, 2)
    user, seed = pair(nkeys.PREFIX_BYTE_USER, 3)
    names = [each.public_key.decode() for each in (operator, account, user)]
    limits = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    of_account = jwt(operator, names[1], "a", "account", {"limits": limits | {"wildcards": True}})
    server = (
        f"operator: {jwt(operator, names[0], 'o', 'operator', {})}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {names[1]}: {of_account} }}"
    )
    of_user = jwt(account, names[2], "u", "user", {"subs": -1, "data": -1, "payload": -1})
    path = tmp_path / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    with nats_server(tmp_path, server, jetstream=False) as running:
        async with open_nats(running.url, login=partial(Login.from_credentials, path)) as nats:
            await nats.flush()
    path.write_text("nothing")
    with pytest.raises(LoginError, match="NATS USER JWT"):
        Login.from_credentials(path)
    with pytest.raises(LoginError, match="cannot read"):
        Login.from_credentials(tmp_path / "none")


@pytest.mark.parametrize("first", [False, True], ids=["after INFO", "first"])
async def test_tls(tmp_path: Path, first: bool) -> None:
    papers = papers_in(tmp_path / "papers")
    issued = papers.for_server()
    more = (
        f'tls {{ cert_file: "{issued.chain}", key_file: "{issued.key}", '
        f"handshake_first: {str(first).lower()} }}"
    )
    with nats_server(tmp_path, more) as server:
        trusting = papers.for_client().for_client()
        async with open_nats(server.url, tls=trusting, tls_first=first) as nats:
            with nats.subscribe("a") as received:
                for _ in range(20):
                    await nats.publish("a", b"x" * 50_000)
                for _ in range(20):
                    assert len((await received.receive()).payload) == 50_000
        with pytest.raises(TransportError, match="certificate verify failed"):
            async with open_nats(server.url, tls_first=first):
                pass
    with nats_server(tmp_path) as plain, pytest.raises(TransportError, match="it has no TLS"):
        async with open_nats(plain.url.replace("nats:", "tls:"), tls=trusting):
            pass


# -- lost connections -----------------------------------------------------------------------------


async def test_it_connects_again_and_subscribes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with nats_server(tmp_path) as server:
        async with open_nats(server.url) as nats:
            with nats.subscribe("news") as received, nats.subscribe("silent"):
                connection = await nats.wait_connected()
                outcomes: list[object] = []

                async def ask() -> None:
                    try:
                        await nats.request("silent", timeout=30)
                    except ConnectionLostError as error:
                        outcomes.append(error)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    nats.ask_nowait("silent", b"", outcomes.append)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    server.kill()
                    await nats.wait_lost(connection)
                assert [type(each) for each in outcomes] == [ConnectionLostError] * 2
                assert not nats.is_connected
                assert nats.server is None
                with pytest.raises(trio.WouldBlock):
                    nats.publish_nowait("news")
                with pytest.raises(NoAnswerError, match="there is no connection"):
                    await nats.request("news", timeout=0.1)
                assert nats.unconnected_for > 0.1
                assert "not connected" in repr(nats)
                server.start()
                await nats.publish("news", b"again")
                assert (await received.receive()).payload == b"again"
                assert nats.statistics().connections == 2
                assert nats.unconnected_for == 0
    assert "lost the connection to nats://127.0.0.1" in caplog.text
    assert "again, after" in caplog.text


async def test_a_server_that_hangs_is_noticed(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with open_nats(server.url, ping_interval=0.1) as nats:
            await trio.sleep(0.5)
            assert nats.statistics().connections == 1
            connection = await nats.wait_connected()
            with server.frozen(), trio.fail_after(5):
                await trio.sleep(0.05)  # The signal does not stop all of its threads at once.
                with pytest.raises(ConnectionLostError, match="has been silent for"):
                    await nats.flush()
                await nats.wait_lost(connection)
            with trio.fail_after(10):
                await nats.wait_connected()


async def test_another_server_takes_over(cluster: list[NatsServer]) -> None:
    async with open_nats(cluster[0].url) as nats:
        with nats.subscribe("news") as received:
            async with open_nats(cluster[1].url) as other:
                await nats.flush()
                await until(lambda: nats.server and len(nats.server.connect_urls) == 3)
                connection = await nats.wait_connected()
                cluster[0].kill()
                await nats.wait_lost(connection)
                try:
                    with trio.fail_after(10):
                        while True:
                            await nats.wait_connected()
                            await nats.flush()
                            await other.publish("news", b"still there")
                            with trio.move_on_after(0.1):
                                await received.receive()
                                break
                finally:
                    cluster[0].start()


async def test_a_server_that_does_not_answer_or_is_not_there(nursery: trio.Nursery) -> None:
    with pytest.raises(
        TransportError, match=r"no NATS server accepts: nats://127.0.0.1:\d: Conn.*; nats"
    ):
        async with open_nats("127.0.0.1:1,127.0.0.1:2"):
            pass

    async def say_nothing(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    port = await served(nursery, say_nothing)
    with pytest.raises(TransportError, match=r"did not answer within 0\.1 s"):
        async with open_nats(f"127.0.0.1:{port}", connect_timeout=0.1):
            pass


async def served(
    nursery: trio.Nursery, serve: Callable[[trio.SocketStream], Awaitable[object]]
) -> int:
    """Serve connections with a function; returns the port."""

    async def handle(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await serve(stream)

    listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
    return int(listeners[0].socket.getsockname()[1])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "closed the connection before"),
        (b"HTTP/1.1 400\r\n", "is a NATS server listening there"),
        (b"PING\r\n", "first line has to be INFO"),
        (b"INFO {}\r\nMSG a 1 0\r\n\r\n", "first answer has to be PONG"),
        (b"INFO {}\r\n-ERR 'maximum connections exceeded'\r\n", "refused the login: maximum conn"),
        (b"INFO {}\r\n-ERR 'Parser Error'\r\n", "the server reports: Parser Error"),
        (b'INFO {"tls_required": true}\r\nPONG\r\n', "more than INFO before the TLS handshake"),
    ],
)
async def test_a_server_that_begins_wrongly(nursery: trio.Nursery, said: bytes, why: str) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(said)

    port = await served(nursery, serve)
    with pytest.raises(TransportError, match=why):
        async with open_nats(f"127.0.0.1:{port}"):
            pass


@pytest.mark.parametrize("said", [b"PONG\r\n", b"NONSENSE\r\n", b"MSG a 1 1\r\nabc\r\n"])
async def test_a_server_that_goes_wrong_later_is_left(
    nursery: trio.Nursery, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"INFO {}\r\nPONG\r\n")
        await trio.sleep(0.05)
        await stream.send_all(said)
        await trio.sleep_forever()

    port = await served(nursery, serve)
    async with open_nats(f"127.0.0.1:{port}") as nats:
        await nats.wait_lost(await nats.wait_connected())
        assert await nats.wait_connected() == 2
    assert "the server broke the protocol" in caplog.text


async def test_a_server_that_sends_pings_and_reads_nothing_is_left(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"INFO {}\r\nPONG\r\n")
        while True:
            await stream.send_all(b"PING\r\n" * 10_000)

    port = await served(nursery, serve)
    async with open_nats(f"127.0.0.1:{port}") as nats:
        with trio.fail_after(30):
            await nats.wait_lost(1)
    assert "the server sends and does not read" in caplog.text


async def test_a_refused_certificate_is_said(tmp_path: Path) -> None:
    papers = papers_in(tmp_path / "papers")
    issued = papers.issue("other", "other.example")
    more = f'tls {{ cert_file: "{issued.chain}", key_file: "{issued.key}" }}'
    with nats_server(tmp_path, more) as server:
        context: ssl.SSLContext = papers.for_client().for_client()
        with pytest.raises(TransportError, match="certificate verify failed"):
            async with open_nats(server.url, tls=context):
                pass
