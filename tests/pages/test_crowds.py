"""Many connections at once that do nothing, or take nothing: a probe is answered all the same."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from clearfunds.accounts import Ledger
from clearfunds.pages import (
    Access,
    Action,
    Handler,
    HttpLimits,
    Operator,
    Pages,
    Request,
    Response,
    serve_http,
)
from clearfunds.pages._room import Room, Waits
from tests.pages.test_server import Site

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWERED_SECONDS = 1.0
"""Much more than a turn of the loop takes, much less than a probe waits."""


async def quick(request: Request) -> Response:
    return Response.sentence(200, "well")


@asynccontextmanager
async def serving(
    handlers: Mapping[str, Handler],
    limits: HttpLimits | None = None,
    actions: Action | None = None,
) -> AsyncGenerator[Site]:
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(
                handlers,
                limits=limits,
                access=Access(),
                actions=actions,
                task_status=task_status,
            )

        urls: list[str] = await nursery.start(run)
        with trio.fail_after(60):
            yield Site(urls[0], nursery)
        nursery.cancel_scope.cancel()


async def probe(site: Site, times: int = 20, every: float = 0.1) -> None:
    """Ask for /healthz again and again, each time by a new connection."""
    for _ in range(times):
        began = trio.current_time()
        async with site.client() as client:
            with trio.fail_after(ANSWERED_SECONDS):
                assert (await client.ask("/healthz")).status == 200
        await trio.sleep(max(0.0, began + every - trio.current_time()))


@asynccontextmanager
async def readers(site: Site, count: int, target: str) -> AsyncGenerator[None]:
    """Have so many who ask for a page and read nothing; the kernel keeps little for them."""
    port = int(site.url.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(trio.socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await sock.connect(("127.0.0.1", port))
            await sock.send(GET.format(target).encode())
        yield


@pytest.mark.parametrize("asked", [0, 1])
async def test_connections_that_are_silent_or_idle_keep_no_probe_out(asked: int) -> None:
    async with (
        serving({"/healthz": quick, "/page": quick}) as site,
        AsyncExitStack() as stack,
    ):
        for _ in range(200):
            client = await stack.enter_async_context(site.client())
            for _ in range(asked):
                await client.send(GET.format("/page").encode())
                assert (await client.answer()).status == 200
        await probe(site)


async def test_a_flood_of_new_connections_keeps_no_probe_out() -> None:
    async def flood(site: Site) -> None:
        async with AsyncExitStack() as stack:
            while True:
                for _ in range(200):
                    await stack.enter_async_context(site.client())
                await stack.pop_all().aclose()

    async with serving({"/healthz": quick}) as site, trio.open_nursery() as nursery:
        nursery.start_soon(flood, site)
        await probe(site)
        nursery.cancel_scope.cancel()


async def test_those_who_take_nothing_of_a_large_page_keep_no_probe_out() -> None:
    async def large(request: Request) -> Response:
        return Response(bytes(8 << 20))

    async with (
        serving({"/healthz": quick, "/large": large}) as site,
        readers(site, 200, "/large"),
    ):
        await probe(site)


async def test_those_who_ask_for_100_continue_and_send_no_body_keep_no_probe_out() -> None:
    head = "POST /log-level HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"

    async def none(request: Request, operator: Operator) -> Response:
        raise AssertionError(request, operator)

    limits = HttpLimits(connections=8)
    async with (
        serving({"/healthz": quick}, limits, none) as site,
        AsyncExitStack() as stack,
    ):
        for _ in range(8):
            client = await stack.enter_async_context(site.client())
            await client.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await probe(site, 2)


async def test_requests_that_are_worked_on_keep_no_probe_out() -> None:
    go_on = trio.Event()

    async def slow(request: Request) -> Response:
        await go_on.wait()
        return Response(b"done")

    limits = HttpLimits(connections=8, requests=4)
    async with (
        serving({"/healthz": quick, "/slow": slow}, limits) as site,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(site.client()) for _ in range(4)]
        for client in clients:
            await client.send(GET.format("/slow").encode())
        await probe(site, 2)
        async with site.client() as late:
            await late.send(GET.format("/slow").encode())
            answer = await late.answer()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert (await late.ask("/healthz")).status == 200
        # What is worked on is not closed for others.
        for _ in range(20):
            await stack.enter_async_context(site.client())
        await probe(site, 2)
        go_on.set()
        for client in clients:
            assert (await client.answer()).body == b"done"


async def test_of_the_ledger_those_go_first_who_do_not_take_it() -> None:
    ledger = Ledger()
    accounts = [ledger.open(f"account {number:0200}") for number in range(4_000)]
    async with serving(Pages(ledger).handlers()) as site, readers(site, 20, "/ledger.json"):
        await probe(site)
        # Those who had the places of long pages have held them for more than a second by now.
        async with site.client() as client:
            await client.send(GET.format("/ledger.json").encode())
            answer = await client.answer()
        assert answer.status == 200
        assert answer.body.count(b"account 0") == len(accounts)


# -- who is closed --------------------------------------------------------------------------------


class Peer:
    def __init__(self, name: str, address: str, waits: Waits, since: float) -> None:
        self.name, self.address, self.waits, self.since = name, address, waits, since
        self.scope = trio.CancelScope()
        self.input = False

    def has_input(self) -> bool:
        return self.input


async def test_it_is_of_the_address_with_most_then_idle_then_longest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    await trio.sleep(10)
    room = Room(6)
    guests = [
        Peer("busy", "b", Waits.WORKS, 0.0),
        Peer("other", "a", Waits.READING, 1.0),
        Peer("asks", "b", Waits.READING, 2.0),
        Peer("sends", "b", Waits.SENDING, 3.0),
        Peer("late", "b", Waits.READING, 5.0),
        Peer("early", "b", Waits.READING, 4.0),
    ]
    guests[2].input = True
    assert all(room.enter(guest) for guest in guests)
    assert room.closed == 0
    closed: list[str] = []
    for number in range(6):
        before = [guest for guest in guests if not guest.scope.cancel_called]
        entered = room.enter(Peer("new", f"new {number}", Waits.WORKS, 9.0))
        closed += [guest.name for guest in before if guest.scope.cancel_called]
        assert entered == (number < 5)
        assert len(room) == 6
    assert closed == ["early", "late", "sends", "other", "asks"]
    assert room.closed == 5


async def test_for_a_moment_it_does_not_matter_that_one_has_asked_for_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    await trio.sleep(10)
    room = Room(3)
    now = trio.current_time()
    guests = [
        Peer("sends", "a", Waits.SENDING, now - 0.2),
        Peer("has just come", "a", Waits.READING, now - 0.1),
        Peer("sends since", "a", Waits.SENDING, now),
    ]
    assert all(room.enter(guest) for guest in guests)
    assert room.enter(Peer("new", "b", Waits.WORKS, now))
    assert [guest.name for guest in guests if guest.scope.cancel_called] == ["sends"]


async def test_who_ends_makes_room() -> None:
    room = Room(1)
    first, second = (Peer(name, "a", Waits.WORKS, 0.0) for name in ("first", "second"))
    assert room.enter(first)
    assert not room.enter(second)
    room.leave(first)
    assert room.enter(second)
    room.leave(first)
    assert len(room) == 1
