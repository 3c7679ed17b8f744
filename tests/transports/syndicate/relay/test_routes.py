"""Routes: the relay connects to other servers for its clients."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio

from clearfunds.transports._connecting import SocketStream, open_stream
from clearfunds.transports.syndicate import mint
from tests.transports.peers import SECONDS, until
from tests.transports.syndicate.relay.peers import (
    BIND,
    TCP,
    WHOLE_SAYS,
    Peer,
    SyndicateRelay,
    observe,
    rec,
    relay,
    says,
    wire,
)

GATE = f"{TCP}?gatekeeper"
KEY = b"the near relay's"
FAR_KEY = b"the far relay's"

ANSWERS = rec("a", rec("resolve-path"), BIND)


@attrs.define
class Two:
    """Two relays: clients of the near one reach the far one by a route."""

    near: SyndicateRelay
    far: SyndicateRelay

    def route(self, *steps: str, port: object = None, over: str = "tcp") -> str:
        where = self.far.where() if port is None else port
        to = f'<ws "ws://127.0.0.1:{where}/any">' if over == "ws" else f'<tcp "127.0.0.1" {where}>'
        return f"<route [{to}] {' '.join(steps)}>"


@asynccontextmanager
async def two(**settings: Any) -> AsyncGenerator[Two]:
    async with (
        relay(listen=(GATE,), sturdy_key=FAR_KEY) as far,
        relay(listen=(GATE,), sturdy_key=KEY, resolve_answer="ok", **settings) as near,
    ):
        yield Two(near, far)
        near.audit()
        far.audit()


FAR = str(mint("syndicate", FAR_KEY))


def ask(route: str, handle: int = 30, at: int = 1) -> str:
    return f"[[{at} <A <q <resolve-path {route}>> {handle}>]]"


async def watcher(peer: Peer) -> None:
    """Get the bindspace as oid 1 of the relay; answers come to oid 3 of the peer."""
    await peer.send(f"[[0 <A <resolve {mint('bind', KEY)} #:[0 2]> 1>]]")
    assert await peer.told() == ["2 + <ok #:[0 1]>"]
    await peer.send(observe(ANSWERS, 3, 2, 1))
    await peer.sync(1)


async def followed(peer: Peer, route: str, handle: int = 30) -> int:
    """Ask for a route; return the oid of what it leads to."""
    await peer.send(ask(route, handle))
    (line,) = await peer.told()
    assert line.startswith("3 + [<ok <resolved-path <"), line
    return int(line.rpartition("#:[0 ")[2].partition("]")[0])


@pytest.mark.parametrize("over", ["tcp", "ws"])
async def test_a_route_leads_to_another_relays_dataspace(over: str) -> None:
    async with two() as relays, relays.near.peer() as peer, relays.far.peer() as far:
        await far.send(f"[[0 <A <resolve {FAR} #:[0 2]> 3>]]")
        await far.lines(2)
        await far.send(observe(WHOLE_SAYS, 4, 13, 1))
        await far.sync(1)
        await watcher(peer)
        there = await followed(peer, relays.route(FAR, over=over))
        # Assertions, messages and retractions go there in order, and are observed from here.
        await peer.send(f"[[{there} <A <Says here> 40>] [{there} <M <Says once>>]]")
        assert await far.lines(2) == ["4 + [<Says here>]", "4 ! [<Says once>]"]
        await peer.send(observe(WHOLE_SAYS, 5, 41, there))
        assert await peer.told() == ["5 + [<Says here>]"]
        await far.send("[[1 <A <Says there> 23>] [1 <M <Says twice>>]]")
        await far.lines(2)
        assert await peer.lines(2) == ["5 + [<Says there>]", "5 ! [<Says twice>]"]
        await peer.send("[[1 <R 40>]]")
        assert await far.told() == ["4 - [<Says here>]"]
        assert await peer.told() == ["5 - [<Says here>]"]
        # A sync there comes back when all that was sent before has been handled there.
        assert await peer.sync(there) == []
        names = [name for name in relays.near.ledger.accounts if name.startswith("route/")]
        assert names == [f"route/-/127.0.0.1:{relays.far.where()}#1"]
        relays.near.audit()
        # The question retracted, all that came by the route is gone.
        await peer.send("[[1 <R 30>]]")
        lines = await peer.lines(2)
        assert lines[0].startswith("3 - [<ok <resolved-path") or "5 - " in lines[0]
        await until(lambda: len(relays.far.side.open) == 1)


async def test_references_pass_both_ways_by_a_route() -> None:
    async with two() as relays, relays.near.peer() as peer, relays.far.peer() as far:
        await far.send(f"[[0 <A <resolve {FAR} #:[0 2]> 3>]]")
        await far.lines(2)
        await far.send(observe(rec("service", BIND), 4, 13, 1))
        await far.sync(1)
        await watcher(peer)
        there = await followed(peer, relays.route(FAR))
        await peer.send(f"[[{there} <A <service #:[0 9]> 40>]]")
        (line,) = await far.told()
        oid = line.removeprefix("4 + [#:[0 ").removesuffix("]]")
        await far.send(f"[[{oid} <M hello>]]")
        assert await peer.told() == ["9 ! hello"]


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("<route>", "a route is"),
        ("<route 17>", "a route begins with"),
        ("17", "a route is"),
        ("<route []>", "a sequence of addresses"),
        ('<route [<unix "/x">]>', "<tcp host port>"),
        ('<route [<ws "http://x">]>', "ws://host:port/path"),
        ('<route [<ws "ws://x:y">]>', "an address cannot be used"),
        ('<route [<ws "ws://127.0.0.1:9/\u00e9">]>', "a character that a URL has to escape"),
        ('<route [<ws "ws://127.0.0.1:9/a b">]>', "a character that a URL has to escape"),
        ('<route [<tcp "127.0.0.1" 0>]>', "<tcp host port>"),
        ('<route [<tcp "127.0.0.1" 9>] <noise {}>>', "a sturdyref is"),
    ],
)
async def test_what_is_no_route_is_answered_so(route: str, why: str) -> None:
    async with (
        relay(listen=(GATE,), sturdy_key=KEY, resolve_answer="ok") as near,
        near.peer() as peer,
    ):
        await watcher(peer)
        await peer.send(ask(route))
        (line,) = await peer.told()
        assert line.startswith("3 + [<error ")
        assert why in line
        await peer.send("[[1 <R 30>]]")
        assert await peer.told() == [line.replace("+", "-", 1)]


async def test_an_error_of_the_relay_itself_ends_no_relay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clearfunds.accounts._faults.PAUSE_SECONDS", 0.01)
    failed = 0

    async def fail_once(host: str, port: int) -> SocketStream:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise LookupError("nobody expects this")
        return await open_stream(host, port)

    monkeypatch.setattr("clearfunds.transports.syndicate._routes.open_stream", fail_once)
    async with two() as relays, relays.near.peer() as peer:
        await watcher(peer)
        await followed(peer, relays.route(FAR))
        assert failed == 2
        assert relays.near.ledger.faults.unowned == 1
        relays.near.ledger.faults.unowned = 0


async def test_nobody_at_the_address_is_answered_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with two() as relays, relays.near.peer() as peer:
            await watcher(peer)
            await peer.send(ask(relays.route(FAR, port=taken.getsockname()[1])))
            (line,) = await peer.told()
            assert line.startswith('3 + [<error "no address of the route can be reached: 127.0.0.1')


async def test_a_server_that_takes_no_websocket_is_answered_so() -> None:
    async with two(http="127.0.0.1:0") as relays, relays.near.peer() as peer:
        await watcher(peer)
        http = relays.near.running.addresses.http
        assert http is not None
        await peer.send(ask(relays.route(FAR, port=urlsplit(http).port, over="ws")))
        (line,) = await peer.told()
        assert "it refuses the WebSocket handshake: HTTP status 4" in line


async def test_the_first_address_that_accepts_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with two() as relays, relays.near.peer() as peer:
            await watcher(peer)
            port = taken.getsockname()[1]
            where = relays.far.where()
            route = f'<route [<tcp "127.0.0.1" {port}> <tcp "localhost" {where}>] {FAR}>'
            await peer.send(ask(route))
            (line,) = await peer.told()
            assert line.startswith(f'3 + [<ok <resolved-path <tcp "localhost" {where}>')


async def test_a_refusal_there_is_told_here() -> None:
    async with two() as relays, relays.near.peer() as peer:
        await watcher(peer)
        await peer.send(ask(relays.route(str(mint("syndicate", b"wrong")))))
        (line,) = await peer.told()
        assert line.startswith('3 + [<error "the other server refuses: this sturdyref names no')


async def test_a_lost_connection_is_told_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearfunds.transports.syndicate._routes.PAUSES", (0.01, 0.01))
    async with two() as relays, relays.near.peer() as peer:
        await watcher(peer)
        await followed(peer, relays.route(FAR))
        (session,) = relays.far.side.open
        session.cut("the test says so")
        lines = await peer.lines(4)
        assert [line[:10] for line in lines] == [
            "3 - [<ok <", "3 + [<erro", "3 - [<erro", "3 + [<ok <",
        ]  # fmt: skip
        # A client may want that, too.
        control = lines[-1].split("#:[0 ")[1].partition("]")[0]
        await peer.send(f"[[{control} <M <force-disconnect>>]]")
        assert [line[:10] for line in await peer.lines(4)] == [line[:10] for line in lines]


async def test_routes_are_limited() -> None:
    async with (
        two(max_routes=3, routes_per_connection=2) as relays,
        relays.near.peer() as one,
        relays.near.peer() as other,
    ):
        for peer in (one, other):
            await watcher(peer)
        for n, peer in enumerate((one, one, other)):
            await peer.send(ask(relays.route(FAR), 30 + n))
        await until(lambda: len(relays.far.side.open) == 3)
        for peer, option in ((one, "--routes-per-connection"), (other, "--max-routes")):
            await peer.send(ask(relays.route(FAR, FAR), 40))
            with trio.fail_after(SECONDS):
                while option not in (await peer.told())[-1]:
                    pass
        await one.send("[[1 <R 30>]]")
        await until(lambda: len(relays.far.side.open) == 2)


async def test_a_stuck_route_is_named_and_holds_the_debt() -> None:
    """Who sends there waits, and the one who is in the way is the route."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        async with (
            relay(
                listen=(GATE,), sturdy_key=KEY, resolve_answer="ok", limit_items=5, patience=60,
                stuck="wait",
            ) as near,
            near.peer() as peer,
        ):  # fmt: skip
            await watcher(peer)
            there = await followed(peer, f'<route [<tcp "127.0.0.1" {port}>]>')
            large = says(f'"{"x" * 100_000}"').replace("[[0 ", f"[[{there} ")
            account = near.account(peer)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.send_raw, wire(large) * 300)
                await until(lambda: account.waiting)
                holder = f"route/-/127.0.0.1:{port}#1"
                assert near.holders(account) == {holder: account.debt_items}
                near.audit()
                nursery.cancel_scope.cancel()


async def test_the_default_reference_follows_no_routes() -> None:
    async with two() as relays, relays.near.peer() as peer:
        await peer.send(f"[[0 <A <resolve {mint('syndicate', KEY)} #:[0 2]> 1>]]")
        await peer.told()
        await peer.send(observe(ANSWERS, 3, 2, 1), ask(relays.route(FAR)))
        assert await peer.sync(1) == []
        assert not relays.far.side.open
