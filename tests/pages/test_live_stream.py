"""The live page's events over real sockets: browsers that read, do not read, and go away."""

from __future__ import annotations

import json
import logging
import socket
import struct
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from clearfunds.accounts import Ledger
from clearfunds.pages import HttpLimits, Request, Response, serve_http
from clearfunds.pages._live import BROWSERS_MAX, LivePage
from tests.transports.peers import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ASK = b"GET /live/events HTTP/1.1\r\nHost: relay\r\nAccept: text/event-stream\r\n\r\n"


@attrs.define
class Site:
    """A server with a live page."""

    page: LivePage
    port: int

    async def connect(self, receive_buffer: int | None = None) -> trio.SocketStream:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(("127.0.0.1", self.port))
        return trio.SocketStream(sock)


@asynccontextmanager
async def serving(ledger: Ledger, limits: HttpLimits | None = None) -> AsyncGenerator[Site]:
    page = LivePage(ledger)
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(page.handlers(), limits=limits, task_status=task_status)

        urls: list[str] = await nursery.start(run)
        with trio.fail_after(30):
            yield Site(page, int(urls[0].rpartition(":")[2]))
        nursery.cancel_scope.cancel()


async def events(stream: trio.SocketStream) -> AsyncGenerator[tuple[str, Any], None]:
    """Read events; the framing by chunks is taken off by hand, as these are whole chunks."""
    data = b""
    async for piece in stream:
        data += piece
        while b"\n\n\r\n" in data:
            chunk, _, data = data.partition(b"\n\n\r\n")
            name = ""
            for line in chunk.split(b"\n"):
                if line.startswith(b"event: "):
                    name = line[7:].decode()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])


async def test_events_come_in_over_http() -> None:
    ledger = Ledger()
    ledger.open("mqtt:1883/-/pub")
    async with serving(ledger) as site, await site.connect() as stream:
        await stream.send_all(ASK)
        names: list[str] = []
        async with aclosing(events(stream)) as coming:
            async for name, page in coming:
                names.append(name)
                if name == "sample":
                    assert page["accounts"][0]["name"] == "mqtt:1883/-/pub"
                if len(names) == 3:
                    break
        assert names == ["history", "sample", "sample"]


async def test_the_head_says_what_it_is() -> None:
    async with serving(Ledger()) as site, await site.connect() as stream:
        await stream.send_all(ASK)
        head = bytes(await stream.receive_some()).partition(b"\r\n\r\n")[0].decode()
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    for line in (
        "Content-Type: text/event-stream",
        "Cache-Control: no-store",
        "X-Accel-Buffering: no",
        "Connection: close",
    ):
        assert line in head.split("\r\n")


async def test_head_is_answered_without_events() -> None:
    async with serving(Ledger()) as site, await site.connect() as stream:
        await stream.send_all(ASK.replace(b"GET", b"HEAD"))
        data = b"".join([bytes(piece) async for piece in stream])
        assert data.endswith(b"\r\n\r\n")
        assert data.count(b"\r\n\r\n") == 1
        await until(lambda: site.page.watching == 0)
        assert site.page.sampler.taken == 0


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_a_browser_that_has_gone_costs_nothing_more(how: str) -> None:
    async with serving(Ledger()) as site:
        async with await site.connect() as stream:
            await stream.send_all(ASK)
            await until(lambda: site.page.sampler.taken >= 1)
            assert site.page.watching == 1
            if how == "reset":
                linger = struct.pack("ii", 1, 0)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        # At once, and not with the next sample that it does not take.
        taken = site.page.sampler.taken
        await until(lambda: site.page.watching == 0)
        assert site.page.sampler.taken <= taken + 1
        taken = site.page.sampler.taken
        await trio.sleep(1.3)
        assert site.page.sampler.taken == taken


async def test_a_browser_that_reads_nothing_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Little is kept for it meanwhile, and those who read do not notice."""
    ledger = Ledger()
    for number in range(40):
        ledger.open(f"{number} {'x' * 5000}")
    limits = HttpLimits(write_seconds=0.5)
    caplog.set_level(logging.INFO, "clearfunds.pages")
    async with serving(ledger, limits) as site:
        # A second a sample would fill the buffers too slowly for a test.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clearfunds.pages._live.SAMPLE_SECONDS", 0.005)
            patch.setattr("clearfunds.pages._live.LIVE_SHARE", 1.0)
            async with (
                await site.connect(receive_buffer=2048) as slow,
                await site.connect() as quick,
            ):
                await slow.send_all(ASK)
                await until(lambda: site.page.watching == 1)
                await quick.send_all(ASK)
                got = 0
                async with aclosing(events(quick)) as coming:
                    async for name, _ in coming:
                        got += name == "sample"
                        if site.page.watching == 1 and got > 3:
                            break
                # All that was kept for it, here and there: it would be megabytes otherwise.
                left = 0
                with suppress(trio.BrokenResourceError):
                    async for piece in slow:
                        left += len(piece)
                assert left < 1 << 19
        await until(lambda: site.page.watching == 0)
    assert any("it took less than" in record.getMessage() for record in caplog.records)


async def test_open_pages_leave_room_for_everybody_else() -> None:
    async with serving(Ledger()) as site:
        streams = [await site.connect() for _ in range(BROWSERS_MAX + 1)]
        for number, stream in enumerate(streams[:-1], 1):
            await stream.send_all(ASK)
            await until(lambda number=number: site.page.watching == number)  # type: ignore[misc]
        await streams[-1].send_all(ASK)
        assert (await streams[-1].receive_some()).startswith(b"HTTP/1.1 503 ")
        await streams[-1].send_all(b"GET /live/icon.svg HTTP/1.1\r\nHost: relay\r\n\r\n")
        assert (await streams[-1].receive_some()).startswith(b"HTTP/1.1 200 ")
        for stream in streams:
            await stream.aclose()
        await until(lambda: site.page.watching == 0)


async def test_what_a_watching_browser_sends_is_bounded() -> None:
    async with serving(Ledger()) as site, await site.connect() as stream:
        await stream.send_all(ASK)
        await until(lambda: site.page.watching == 1)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(bytes(64 << 20))
        await until(lambda: site.page.watching == 0)


async def test_an_endless_answer_that_fails_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(request: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            yield b"first"
            msg = "for the test"
            raise ValueError(msg)

        return Response(body(), endless=True)

    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http({"/": fails}, task_status=task_status)

        urls: list[str] = await nursery.start(run)
        for _ in range(2):
            stream = await trio.open_tcp_stream("127.0.0.1", int(urls[0].rpartition(":")[2]))
            async with stream:
                await stream.send_all(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n")
                with trio.fail_after(10):
                    data = b"".join([bytes(piece) async for piece in stream])
                assert b"first" in data
                # The last chunk is missing, by which the peer knows that it is not whole.
                assert not data.endswith(b"0\r\n\r\n")
        nursery.cancel_scope.cancel()
    assert any("failed half-way" in record.getMessage() for record in caplog.records)
