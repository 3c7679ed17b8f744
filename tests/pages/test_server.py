"""The HTTP server, over real sockets, by clients that behave and clients that do not."""

from __future__ import annotations

import logging
import random
import socket
import struct
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import h11
import pytest
import trio

from clearfunds.pages import Handler, HttpLimits, Request, Response, serve_http

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping


@attrs.frozen
class Answer:
    """One response as a client saw it."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A connection on which bytes are sent as they are and answers are parsed by h11."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._left = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def ask(self, target: str, method: str = "GET", host: str = "test") -> Answer:
        await self.send(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return await self.answer(method)

    async def answer(self, method: str = "GET") -> Answer:
        """Read the next answer; RemoteProtocolError if it is cut short."""
        parser = h11.Connection(h11.CLIENT)
        # h11 must know of a request to know how its answer is framed.
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "test")]))
        parser.send(h11.EndOfMessage())
        if self._left:
            parser.receive_data(self._left)
        response: h11.Response | None = None
        body = bytearray()
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(bytes(await self.stream.receive_some(65536)))
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                assert isinstance(event, h11.EndOfMessage)
                break
        self._left = parser.trailing_data[0]
        assert response is not None
        headers = {name.decode(): value.decode() for name, value in response.headers}
        return Answer(response.status_code, headers, bytes(body))

    async def rest(self) -> bytes:
        """Everything up to the server's end of the connection."""
        data = bytearray(self._left)
        self._left = b""
        async for piece in self.stream:
            data += piece
        return bytes(data)


@attrs.define
class Site:
    """A running server."""

    url: str
    nursery: trio.Nursery

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        port = int(self.url.rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            yield Client(stream)


@asynccontextmanager
async def serving(
    handlers: Mapping[str, Handler], limits: HttpLimits | None = None
) -> AsyncGenerator[Site]:
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(handlers, limits=limits, task_status=task_status)

        urls: list[str] = await nursery.start(run)
        with trio.fail_after(20):
            yield Site(urls[0], nursery)
        nursery.cancel_scope.cancel()


async def hello(request: Request) -> Response:
    return Response(b"hello " + request.path.encode())


async def pieces(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        for number in range(3):
            await trio.lowlevel.checkpoint()
            yield b"piece %d\n" % number
            yield b""  # An empty piece must not be taken for the last chunk.

    return Response(body())


PAGES: dict[str, Handler] = {"/hello": hello, "/pieces": pieces}


async def test_a_page_is_served_and_the_connection_kept() -> None:
    async with serving(PAGES) as site, site.client() as client:
        for _ in range(3):
            answer = await client.ask("/hello?a=1")
            assert answer.status == 200
            assert answer.body == b"hello /hello"
            assert answer.headers["content-length"] == "12"
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert "connection" not in answer.headers


async def test_a_streamed_page_is_chunked() -> None:
    async with serving(PAGES) as site, site.client() as client:
        answer = await client.ask("/pieces")
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.body == b"piece 0\npiece 1\npiece 2\n"
        assert (await client.ask("/hello")).status == 200


async def test_a_streamed_page_for_http_1_0_ends_with_the_connection() -> None:
    async with serving(PAGES) as site, site.client() as client:
        await client.send(b"GET /pieces HTTP/1.0\r\n\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert body == b"piece 0\npiece 1\npiece 2\n"


@pytest.mark.parametrize("target", ["/hello", "/pieces"])
async def test_head_has_the_same_head_and_no_body(target: str) -> None:
    async with serving(PAGES) as site, site.client() as client:
        whole = await client.ask(target)
        bare = await client.ask(target, "HEAD")
        assert bare.body == b""
        for name in ("content-type", "content-length", "transfer-encoding"):
            assert bare.headers.get(name) == whole.headers.get(name)
        # Were there a body after all, this answer could not be read.
        assert (await client.ask("/hello")).body == b"hello /hello"


async def test_the_query_is_parsed() -> None:
    seen: list[Request] = []

    async def note(request: Request) -> Response:
        seen.append(request)
        return Response()

    async with serving({"/a b": note}) as site, site.client() as client:
        assert (await client.ask("/a%20b?x=1&x=2&y=&z=%C3%A9")).status == 200
        assert (await client.ask("http://anywhere/a%20b?x=1")).status == 200
    assert seen[0].query == {"x": ("1", "2"), "y": ("",), "z": ("é",)}
    assert seen[1].query == {"x": ("1",)}


async def test_unknown_pages_are_answered_404_with_the_known_ones() -> None:
    async with serving(PAGES) as site, site.client() as client:
        answer = await client.ask("//elsewhere/x")
        assert answer.status == 404
        assert answer.body == (
            b"There is no page '//elsewhere/x' here; there are: /hello, /pieces.\n"
        )
        assert (await client.ask("/hello")).status == 200


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (b"GET /hello HTTP/1.1\r\n\r\n", 400, b"Host"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, b"not an HTTP request"),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400, b"not an HTTP request"),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 400, b"has a body"),
        (b"GET http://[/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, b"target cannot be read"),
        (b"GET /?" + b"a&" * 99 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400, b"target cannot be read"),
        (b"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405, b"POST"),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405, b"CONNECT"),
        (b"GET /" + b"a" * 20000, 431, b"16384 bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 9000 + b"\r\n", 431, b"16384 bytes"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_a_sentence(
    data: bytes, status: int, says: bytes
) -> None:
    async with serving(PAGES) as site:
        async with site.client() as client:
            await client.send(data)
            answer = await client.answer()
            assert answer.status == status
            assert says in answer.body
            assert answer.body.endswith(b".\n")
            assert answer.headers["connection"] == "close"
            assert ("allow" in answer.headers) == (status == 405)
            assert await client.rest() == b""
        async with site.client() as client:
            assert (await client.ask("/hello")).status == 200


async def test_an_answer_to_an_upgrade_or_an_expectation_is_an_ordinary_one() -> None:
    async with serving(PAGES) as site, site.client() as client:
        await client.send(
            b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        )
        assert (await client.answer()).body == b"hello /hello"
        await client.send(b"GET /hello HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.answer()).body == b"hello /hello"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(PAGES) as site, site.client() as client:
        request = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
        await client.send(request % b"hello" + request % b"pieces" + request % b"none")
        await client.send(request.replace(b"GET", b"HEAD") % b"hello" + request % b"hello")
        assert (await client.answer()).body == b"hello /hello"
        assert (await client.answer()).body.endswith(b"piece 2\n")
        assert (await client.answer()).status == 404
        assert (await client.answer("HEAD")).body == b""
        assert (await client.answer()).body == b"hello /hello"


async def test_a_request_may_come_byte_by_byte() -> None:
    async with serving(PAGES) as site, site.client() as client:
        for byte in b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n":
            await client.send(bytes([byte]))
            await trio.sleep(0.001)
        assert (await client.answer()).body == b"hello /hello"


async def test_a_client_that_has_closed_its_side_is_answered() -> None:
    async with serving(PAGES) as site, site.client() as client:
        await client.send(b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.stream.send_eof()
        assert (await client.answer()).body.endswith(b"piece 2\n")
        assert await client.rest() == b""


async def test_a_client_that_closes_within_a_head_is_told() -> None:
    async with serving(PAGES) as site, site.client() as client:
        await client.send(b"GET /hello HTTP/1.1\r\nHo")
        await client.stream.send_eof()
        assert (await client.answer()).status == 400
        assert await client.rest() == b""


async def test_connection_close_is_honoured() -> None:
    async with serving(PAGES) as site, site.client() as client:
        await client.send(b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.rest() == b""


async def test_a_head_that_trickles_in_is_cut_off() -> None:
    limits = HttpLimits(head_seconds=0.3)
    async with serving(PAGES, limits) as site, site.client() as client:

        async def trickle() -> None:
            for byte in b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * 1000:
                await client.send(bytes([byte]))
                await trio.sleep(0.05)

        # The whole head would take five minutes; the test itself has 20 seconds.
        with pytest.raises(trio.BrokenResourceError):
            await trickle()


async def test_a_head_that_stops_is_answered_408() -> None:
    limits = HttpLimits(head_seconds=0.2)
    async with serving(PAGES, limits) as site, site.client() as client:
        await client.send(b"GET /hello HTTP/1.1\r\nHost: x\r\n")
        answer = await client.answer()
        assert answer.status == 408
        assert b"0.2 seconds" in answer.body


async def test_a_second_head_has_a_limit_too() -> None:
    limits = HttpLimits(head_seconds=0.2, idle_seconds=60)
    async with serving(PAGES, limits) as site, site.client() as client:
        await client.ask("/hello")
        await trio.sleep(0.4)  # Idle for longer than a head may take: still welcome.
        await client.ask("/hello")
        await client.send(b"GET /hello HT")
        assert (await client.answer()).status == 408


async def test_a_head_that_began_with_the_request_before_has_a_limit_too() -> None:
    limits = HttpLimits(head_seconds=0.2, idle_seconds=60)
    async with serving(PAGES, limits) as site, site.client() as client:
        await client.send(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /hel")
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 408


async def test_silent_and_idle_connections_are_closed_without_a_word() -> None:
    limits = HttpLimits(head_seconds=0.1, idle_seconds=0.2)
    async with serving(PAGES, limits) as site:
        async with site.client() as client:
            assert await client.rest() == b""
        async with site.client() as client:
            await client.ask("/hello")
            assert await client.rest() == b""


async def test_a_failing_page_is_logged_and_answered_500(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Request) -> Response:
        raise ZeroDivisionError("secret")

    async with serving({"/broken": broken, **PAGES}) as site, site.client() as client:
        answer = await client.ask("/broken")
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert (await client.ask("/hello")).status == 200
    assert "ZeroDivisionError: secret" in caplog.text


async def test_a_page_that_fails_half_way_is_visibly_not_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"half"
        raise ZeroDivisionError("half-way")

    async def broken(request: Request) -> Response:
        return Response(body())

    async with serving({"/broken": broken, **PAGES}) as site:
        async with site.client() as client:
            with pytest.raises(h11.RemoteProtocolError):
                await client.ask("/broken")
        async with site.client() as client:
            assert (await client.ask("/hello")).status == 200
    assert "ZeroDivisionError: half-way" in caplog.text


async def test_a_handler_that_gives_nonsense_costs_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def nonsense(request: Request) -> Response:
        return Response(headers=(("Bad\r\nName", "x"),))

    async with serving({"/nonsense": nonsense, **PAGES}) as site:
        async with site.client() as client:
            await client.send(b"GET /nonsense HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await client.rest() == b""
        async with site.client() as client:
            assert (await client.ask("/hello")).status == 200
    assert "LocalProtocolError" in caplog.text


async def test_a_reader_that_does_not_read_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    closed = trio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            closed.set()

    async def endless(request: Request) -> Response:
        return Response(body())

    limits = HttpLimits(write_seconds=0.3)
    async with serving({"/endless": endless, **PAGES}, limits) as site, site.client() as client:
        await client.send(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await closed.wait()
        async with site.client() as other:
            assert (await other.ask("/hello")).status == 200
    assert "it took less than 65536 bytes in 0.3 s" in caplog.text


async def test_a_page_has_to_be_taken_in_some_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(0.02)
            yield b"more"

    async def endless(request: Request) -> Response:
        return Response(pieces(), endless=request.path == "/events")

    limits = HttpLimits(page_seconds=0.3)
    handlers: dict[str, Handler] = {"/page": endless, "/events": endless}
    async with serving(handlers, limits) as site, site.client() as client:
        await client.send(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not (await client.rest()).endswith(b"0\r\n\r\n")
        assert "it did not take a page in 0.3 s" in caplog.text
        async with site.client() as watcher:
            await watcher.send(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
            began = trio.current_time()
            while trio.current_time() < began + 0.5:
                assert await watcher.stream.receive_some(4096)


async def test_a_slow_reader_that_keeps_reading_gets_everything() -> None:
    async def large(request: Request) -> Response:
        return Response(bytes(8 << 20))

    limits = HttpLimits(write_seconds=2.0)
    async with serving({"/large": large}, limits) as site, site.client() as client:
        await client.send(b"GET /large HTTP/1.0\r\n\r\n")
        received = 0
        # Slower as a whole than the limit for a piece, but never a piece as slow as that.
        while data := await client.stream.receive_some(1 << 18):
            received += len(data)
            await trio.sleep(0.08)
        assert received > 8 << 20


async def test_a_reset_in_the_middle_of_an_answer_closes_the_page() -> None:
    closed = trio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"tick\n"
                await trio.sleep(0.001)
        finally:
            closed.set()

    async def ticking(request: Request) -> Response:
        return Response(body())

    async with serving({"/ticking": ticking, **PAGES}) as site:
        async with site.client() as client:
            await client.send(b"GET /ticking HTTP/1.1\r\nHost: x\r\n\r\n")
            await client.stream.receive_some(100)
            client.stream.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        await closed.wait()
        async with site.client() as client:
            assert (await client.ask("/hello")).status == 200


async def test_random_bytes_never_end_the_server() -> None:
    noise = random.Random(20)
    limits = HttpLimits(head_seconds=0.2, idle_seconds=0.2)
    async with serving(PAGES, limits) as site:
        for _ in range(60):
            async with site.client() as client:
                data = noise.randbytes(noise.randrange(1, 400))
                if noise.random() < 0.5:
                    data = b"GET /hello HTTP/1.1\r\nHost: x\r\n" + data
                await client.send(data + b"\r\n\r\n")
                reply = await client.rest()
                assert reply == b"" or reply.startswith(b"HTTP/1.1 "), reply
        async with site.client() as client:
            assert (await client.ask("/hello")).status == 200


async def test_cancelling_ends_handlers_streams_and_connections() -> None:
    ended: list[str] = []

    async def stuck(request: Request) -> Response:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("stuck")

    async def body() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await trio.sleep_forever()
        finally:
            ended.append("stream")

    async def stream(request: Request) -> Response:
        return Response(body())

    async with (
        serving({"/stuck": stuck, "/stream": stream, **PAGES}) as site,
        site.client() as first,
        site.client() as second,
        site.client() as idle,
    ):
        await idle.ask("/hello")
        await first.send(b"GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n")
        await second.send(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await second.stream.receive_some(65536)
        site.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(5):
            assert await first.rest() == b""
            assert b"0\r\n\r\n" not in await second.rest()
            assert await idle.rest() == b""
    assert sorted(ended) == ["stream", "stuck"]


async def test_listeners_already_open_are_used_and_closed() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(PAGES, listeners=listeners, task_status=task_status)

        urls: list[str] = await nursery.start(run)
        assert urls == [f"http://127.0.0.1:{port}"]
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            assert (await Client(stream).ask("/hello")).status == 200
        nursery.cancel_scope.cancel()
    assert listeners[0].socket.fileno() == -1


async def test_an_address_in_use_is_reported_to_the_starter() -> None:
    async with serving(PAGES) as site:
        port = int(site.url.rpartition(":")[2])
        with pytest.RaisesGroup(OSError, allow_unwrapped=True, flatten_subgroups=True):
            await serve_http(PAGES, port=port)


async def test_ipv6_urls_are_bracketed() -> None:
    try:
        listeners = await trio.open_tcp_listeners(0, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(PAGES, listeners=listeners, task_status=task_status)

        urls: list[str] = await nursery.start(run)
        assert urls[0].startswith("http://[::1]:")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "option",
    ["connections", "head_bytes", "head_seconds", "idle_seconds", "write_seconds"],
)
def test_limits_cannot_be_nought(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        HttpLimits(**{option: 0})


def test_the_base_package_does_without_h11() -> None:
    program = (
        "import sys, clearfunds.accounts, clearfunds.transports; sys.exit('h11' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("request_line", [b"GET /good", b"HEAD /good", b"GET /bad"])
async def test_a_streamed_body_is_closed_whether_it_was_wanted_or_not(request_line: bytes) -> None:
    closed: list[str] = []

    class Body:
        def __aiter__(self) -> Body:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            closed.append("closed")

    async def good(request: Request) -> Response:
        return Response(Body())

    async def bad(request: Request) -> Response:
        return Response(Body(), headers=(("Bad\r\nName", "x"),))

    async with serving({"/good": good, "/bad": bad}) as site, site.client() as client:
        await client.send(request_line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await client.rest()
    assert closed == ["closed"]
