"""Who may look at the pages, by what name, and what the log says of it."""

from __future__ import annotations

import logging
import socket
import ssl
from base64 import b64encode
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from clearfunds.access import BearerTokens, Passwords, TokenFileError
from clearfunds.accounts import Ledger
from clearfunds.pages import Access, HttpLimits, Pages, Request, serve_pages
from clearfunds.pages._attempts import ADDRESSES_MAX, BURST, Attempts
from clearfunds.pages._looks import (
    KNOWN_MAX,
    LINES_BURST,
    LINES_PER_SECOND,
    REPEAT_SECONDS,
    Look,
    Looks,
)
from clearfunds.sockets import ServerTls
from tests.pages.test_server import Answer, Client
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

TOKEN = "0123456789abcdef-Token"
USERS = f"{user_line('anna', b'secret')}\n{user_line('bert', b'a:b')}\n"
CLOSED = (
    "/",
    "/metrics",
    "/metrics/detailed",
    "/ledger.json",
    "/history.json",
    "/trace.json",
    "/live/events",
)


def basic(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


@asynccontextmanager
async def serving(access: Access | None = None, **options: Any) -> AsyncGenerator[str]:
    """Serve pages; yields their URL."""
    async with trio.open_nursery() as nursery:
        serve = partial(serve_pages, Pages(Ledger()), access=access, **options)
        urls: list[str] = await nursery.start(serve)
        with trio.fail_after(30):
            yield urls[0]
        nursery.cancel_scope.cancel()


async def get(
    url: str, path: str, headers: Mapping[str, str] | None = None, *, version: str = "1.1"
) -> Answer:
    fields = {"Host": "localhost", **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    async with await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2])) as stream:
        client = Client(stream)
        await client.send(f"GET {path} HTTP/{version}\r\n{head}\r\n".encode("latin-1"))
        return await client.answer()


# -- tokens and passwords -------------------------------------------------------------------------


def test_the_position_of_a_token_is_its_own_also_if_one_is_there_twice() -> None:
    other, third = f"{TOKEN}-2", f"{TOKEN}-3"
    tokens = BearerTokens([TOKEN, TOKEN, third, other])
    found = [tokens.find(each.encode()) for each in (TOKEN, third, other, "none")]
    assert found == [2, 3, 4, 0]


@pytest.mark.parametrize("path", CLOSED)
async def test_without_a_token_there_is_no_page(path: str) -> None:
    async with serving(Access(tokens=BearerTokens([TOKEN]))) as url:
        answer = await get(url, path)
        assert answer.status == 401
        assert answer.body == b"This page needs a token or a password.\n"
        assert answer.headers["www-authenticate"].startswith("Bearer")  # The second of two.


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_whether_it_is_well_is_for_everybody(path: str) -> None:
    async with serving(Access(tokens=BearerTokens([TOKEN]))) as url:
        for headers in ({}, {"Host": "relay.example"}, {"Authorization": "Bearer x"}):
            answer = await get(url, path, headers)
            assert answer.status == (200 if path == "/healthz" else 503)
            assert answer.body.startswith(b"The relay is")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN} ", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer", 401),
        (TOKEN, 401),
        (basic("anna", TOKEN), 200),
        (basic("", TOKEN), 200),
        (basic(TOKEN, ""), 401),
        (basic("anna", "secret"), 200),
        (basic("bert", "a:b"), 200),
        (basic("anna", "a:b"), 401),
        (basic("carl", "secret"), 401),
        (basic("", "secret"), 401),
        ("Basic", 401),
        ("Basic !!!", 401),
        (f"Basic {b64encode(b'anna').decode()}", 401),
        (f"Basic {b64encode(bytes(range(256))).decode()}", 401),
        ("Digest username=anna", 401),
    ],
)
async def test_a_token_or_a_password_opens_the_pages(authorization: str, status: int) -> None:
    access = Access(tokens=BearerTokens([TOKEN]), passwords=Passwords.from_text(USERS))
    async with serving(access) as url:
        for _ in range(2):
            answer = await get(url, "/metrics", {"Authorization": authorization})
            assert answer.status == status


async def test_a_password_that_is_slow_to_check_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    file.write_text(user_line("anna", b"secret", 1_000))
    passwords = Passwords.from_file(file)
    assert not passwords.quick
    checks: list[str] = []
    check = Passwords.check

    def counted(self: Passwords, user: str, password: bytes) -> bool:
        checks.append(user)
        return check(self, user, password)

    monkeypatch.setattr(Passwords, "check", counted)
    headers = {"Authorization": basic("anna", "secret")}
    async with serving(Access(passwords=passwords)) as url:
        for _ in range(3):
            assert (await get(url, "/metrics", headers)).status == 200
        assert checks == ["anna"]
        file.write_text(user_line("anna", b"another", 1_000))
        passwords.reload()
        assert (await get(url, "/metrics", headers)).status == 401
        assert checks == ["anna", "anna"]


async def test_an_authenticator_of_ones_own_is_asked_each_time() -> None:
    class Own:
        asked = 0

        def check(self, user: str, password: bytes) -> bool:
            self.asked += 1
            return (user, password) == ("anna", b"x")

    own = Own()
    async with serving(Access(passwords=own)) as url:
        for _ in range(3):
            answer = await get(url, "/metrics", {"Authorization": basic("anna", "x")})
            assert answer.status == 200
    assert own.asked == 3


async def test_after_too_many_wrong_ones_an_address_has_to_wait() -> None:
    access = Access(tokens=BearerTokens([TOKEN]), passwords=Passwords.from_text(USERS))
    right = {"Authorization": basic("anna", "secret")}
    async with serving(access) as url:
        assert (await get(url, "/metrics", right)).status == 200
        wrong = {"Authorization": basic("anna", "wrong")}
        statuses = [(await get(url, "/metrics", wrong)).status for _ in range(BURST + 3)]
        assert statuses == [401] * BURST + [429] * 3
        answer = await get(url, "/metrics", wrong)
        assert answer.body.startswith(b"There were too many wrong tokens and passwords from 127.")
        assert 0 < int(answer.headers["retry-after"]) <= 2
        # Who was right before is, and who has a token, which cannot be guessed.
        assert (await get(url, "/metrics", right)).status == 200
        assert (await get(url, "/metrics", {"Authorization": f"Bearer {TOKEN}"})).status == 200
        # A password that was not given before is not even looked at.
        late = {"Authorization": basic("bert", "a:b")}
        assert (await get(url, "/metrics", late)).status == 429


async def test_attempts_come_back_and_are_of_a_bounded_number_of_addresses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    attempts = Attempts()
    for _ in range(BURST):
        assert attempts.seconds_to_wait("2001:db8::1") == 0
        attempts.failed("2001:db8::1")
    assert attempts.seconds_to_wait("2001:db8::ffff") == 2
    assert attempts.seconds_to_wait("2001:db8:0:1::") == 0
    assert attempts.seconds_to_wait("::ffff:10.0.0.1") == attempts.seconds_to_wait("") == 0
    await trio.sleep(2)
    assert attempts.seconds_to_wait("2001:db8::2") == 0
    for number in range(2 * ADDRESSES_MAX):
        attempts.failed(f"10.0.{number // 256}.{number % 256}")
    assert len(attempts) == ADDRESSES_MAX


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:9100", 200),
        ("127.0.0.1:9100", 200),
        ("[::1]:9100", 200),
        ("192.0.2.7", 200),
        (socket.gethostname(), 200),
        ("relay.example", 200),
        ("Relay.Example.:80", 200),
        ("evil.example", 421),
        ("localhost.evil.example:9100", 421),
        ("127.0.0.1.evil.example", 421),
        ("evil.example:127", 421),
        ("localhost@evil.example", 421),
        ("[::1", 421),
        (" ", 421),
    ],
)
async def test_a_browser_has_to_come_by_a_name_that_is_known(host: str, status: int) -> None:
    async with serving(Access(hosts=("relay.example",))) as url:
        answer = await get(url, "/ledger.json", {"Host": host})
        assert answer.status == status
        if status == 421:
            assert b"--http-host NAME" in answer.body


async def test_any_name_will_do_where_it_is_said_and_none_where_there_is_none() -> None:
    async with serving(Access(hosts=("*",))) as url:
        assert (await get(url, "/ledger.json", {"Host": "evil.example"})).status == 200
    async with serving() as url:
        assert (await get(url, "/ledger.json", {"Host": "evil.example"})).status == 421
        assert (await get(url, "/metrics", {"Host": ""}, version="1.0")).status == 200


# -- tokens in files ------------------------------------------------------------------------------


def test_tokens_of_a_file_and_what_becomes_of_them(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# of Prometheus\n{TOKEN}\r\n\n{'b' * 16}\n")
    tokens = BearerTokens.from_file(file)
    assert tokens.check(TOKEN.encode())
    assert tokens.check(b"b" * 16)
    assert not tokens.check(b"b" * 15)
    assert not tokens.check(b"")
    assert TOKEN not in repr(tokens)
    file.write_text("short\n")
    with pytest.raises(TokenFileError, match="line 1: a token has at least 16 characters") as error:
        tokens.reload()
    assert "short" not in str(error.value)
    assert tokens.check(TOKEN.encode())
    file.write_text("c" * 16)
    tokens.reload()
    assert not tokens.check(TOKEN.encode())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no token in it: openssl rand"),
        ("# none\n\n", "has no token in it"),
        (f"{TOKEN}\ntwo words are none\n", "line 2: a token has only letters"),
        ("0123456789abcdefü", "line 1: a token has only letters"),
    ],
)
def test_what_is_no_file_of_tokens(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text, "utf-8")
    with pytest.raises(TokenFileError, match=said):
        BearerTokens.from_file(file)


# -- TLS ------------------------------------------------------------------------------------------


async def test_pages_by_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    papers = papers_in(tmp_path)
    # The certificate that listeners ask for is not asked for here: probes and browsers have none.
    tls = ServerTls(papers.for_server(asks=True).for_server)
    context = papers.for_client().for_client()
    async with serving(tls=tls) as url:
        assert url.startswith("https://127.0.0.1:")
        port = int(url.rpartition(":")[2])
        for _ in range(2):
            async with await secure(port, context) as stream:
                client = Client(cast("Any", stream))
                for path in ("/healthz", "/metrics", "/ledger.json"):
                    assert (await client.ask(path, host="localhost")).status == 200
            tls.reload()
        # The end is said by TLS, too: nobody can have cut it off.
        stream = await secure(port, context, https_compatible=False)
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        await stream.send_all(b"Connection: close\r\n\r\n")
        answer = b"".join([piece async for piece in stream])
        assert answer.endswith(b"The relay is alive.\n")
        await stream.aclose()
        assert (await plain(port)) == b""
    assert "the TLS handshake failed: http request" in caplog.text


async def secure(
    port: int, context: ssl.SSLContext, *, https_compatible: bool = True
) -> trio.SSLStream[trio.SocketStream]:
    return await trio.open_ssl_over_tcp_stream(
        "localhost", port, ssl_context=context, https_compatible=https_compatible
    )


async def plain(port: int) -> bytes:
    """Speak HTTP to a port for TLS."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join([piece async for piece in stream])
    # An alert of TLS, at most.
    return b"" if answer[:1] in (b"", b"\x15") else answer


async def test_a_handshake_has_to_come_to_its_end(tmp_path: Path) -> None:
    tls = ServerTls(papers_in(tmp_path).for_server().for_server)
    async with serving(tls=tls, limits=HttpLimits(head_seconds=0.2)) as url:
        port = int(url.rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"\x16\x03\x01\x02\x00")
            assert await stream.receive_some() == b""


# -- the log --------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        {name: vars(record)[name] for name in ("event", "user", "path", "status", "times")}
        for record in caplog.records
        if hasattr(record, "times")
    ]


async def test_the_log_says_who_looked_at_what(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    access = Access(tokens=BearerTokens([TOKEN]), passwords=Passwords.from_text(USERS))
    anna, token = {"Authorization": basic("anna", "secret")}, {"Authorization": f"Bearer {TOKEN}"}
    async with serving(access) as url:
        for path in ("/healthz", "/readyz"):
            await get(url, path)
        for _ in range(3):
            await get(url, "/metrics", token)
        await get(url, "/trace.json?account=%1b[31m" + "x" * 200, anna)
        await get(url, "/ledger.json")
        await get(url, "/ledger.json", {"Host": "evil.example"})
        for number in range(3):
            await get(url, f"/{number}", anna)
    seen = [tuple(line.values()) for line in lines(caplog)]
    assert seen == [
        ("looked", "token", "/metrics", 200, 1),
        ("request_refused", "anna", "/trace.json", 400, 1),
        ("request_refused", "-", "/ledger.json", 401, 1),
        ("request_refused", "-", "/ledger.json", 421, 1),
        ("request_refused", "anna", "a page that is not there", 404, 1),
    ]
    (first, *_) = [record for record in caplog.records if hasattr(record, "times")]
    assert first.getMessage().startswith("HTTP: 127.0.0.1 port ")
    assert first.getMessage().endswith("(user token) asked for /metrics and got 200")
    assert TOKEN not in caplog.text
    assert "secret" not in caplog.text


async def test_a_scraper_is_a_line_an_hour(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    looks = Looks()
    for _ in range(1 + 2 * 720):
        looks.note(Look("10.0.0.1", "token", "/metrics", 200), "10.0.0.1 port 7")
        await trio.sleep(REPEAT_SECONDS / 720)
    assert [line["times"] for line in lines(caplog)] == [1, 720, 720]


async def test_a_flood_is_few_lines_and_hides_nobody(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    looks = Looks()
    for number in range(10_000):
        looks.note(Look(f"10.0.0.{number}", "-", "/metrics", 401), "x")
    assert len(lines(caplog)) == LINES_BURST
    looks.note(Look("10.0.0.1", "anna", "/metrics", 200), "x")
    assert len(lines(caplog)) == LINES_BURST + 1
    await trio.sleep(1.1 / LINES_PER_SECOND)
    looks.note(Look("10.1.0.1", "-", "/metrics", 401), "x")
    assert f"({10_000 - LINES_BURST} other lines were left out)" in caplog.text
    for number in range(2 * KNOWN_MAX):
        looks.note(Look(f"10.2.0.{number}", "-", "/metrics", 401), "x")
        await trio.sleep(1 / LINES_PER_SECOND)
    assert len(looks) == KNOWN_MAX


async def test_access_is_made_of_nothing_by_default() -> None:
    access = Access()
    assert not access.asks
    request = Request.parse("GET", "/metrics", ((b"host", b"localhost"),))
    verdict = await access.judge(request, "127.0.0.1")
    assert (verdict.user, verdict.refusal) == ("-", None)
    assert "secret" not in repr(Access(passwords=Passwords.from_text(USERS)))
