"""The relay and the Rust example clients of both generations, with default options."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.transports.syndicate import mint
from tests.transports.syndicate.relay.peers import BIND, SyndicateRelay, observe, rec, relay
from tests.transports.syndicate.relay.rust_examples import (
    GENERATIONS,
    PORT,
    built,
    example,
    port_is_free,
    the_port_alone,
)

pytestmark = pytest.mark.long


@asynccontextmanager
async def served(key: bytes = b"", **settings: Any) -> AsyncGenerator[SyndicateRelay]:
    """Run a relay where the examples expect it; the key is the one of their sturdyref."""
    for version in GENERATIONS:
        await trio.to_thread.run_sync(built, version)
    listen = (f"syndicate+tcp://127.0.0.1:{PORT}?gatekeeper",)
    with the_port_alone():
        async with relay(listen=listen, sturdy_key=key, **settings) as running:
            yield running


def counted(what: str) -> re.Pattern[str]:
    """A report of at least one of something in the last second."""
    return re.compile(rf"\b[1-9]\d* {what}")


MESSAGES = counted("messages in the last second")
EVENTS = counted("events in the last second")
ARRIVALS = counted("arrivals, ")


async def test_both_generations_meet_in_one_dataspace() -> None:
    async with served() as relay_, AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(example(version, "consumer")) for version in GENERATIONS
        ]
        watchers = [
            await stack.enter_async_context(example(version, "state-consumer"))
            for version in GENERATIONS
        ]
        for producing in GENERATIONS:
            for one in (*consumers, *watchers):
                one.written = ""
            async with example(producing, "producer"), example(producing, "state-producer"):
                for one in consumers:
                    await one.until(MESSAGES.search)
                for one in watchers:
                    await one.until(ARRIVALS.search)
            relay_.audit()


@pytest.mark.parametrize("pinging", GENERATIONS)
@pytest.mark.parametrize("answering", GENERATIONS)
async def test_they_play_ping_pong(pinging: str, answering: str) -> None:
    async with served() as relay_, example(answering, "pingpong", "pong") as pong:
        await pong.until(lambda text: "events in the last second" in text)
        async with example(pinging, "pingpong", "ping") as ping:
            await ping.until(EVENTS.search)
            await pong.until(EVENTS.search)
            relay_.audit()


@pytest.mark.parametrize("version", GENERATIONS)
async def test_one_with_a_wrong_sturdyref_hears_so(version: str) -> None:
    async with served(key=b"another key") as relay_, example(version, "consumer") as refused:
        await refused.until(lambda text: "this sturdyref names no service here" in text)
        with trio.fail_after(30):
            assert await refused.process.wait() != 0
        relay_.audit()


BOUND = mint("syndicate", b"")
"""The sturdyref of the examples, for what is bound here with its name and key."""


async def test_they_meet_in_a_dataspace_that_a_client_has_bound() -> None:
    """Their name and key are not the relay's own, but of a client, which has made the dataspace."""
    key = b"the relay's"
    async with served(key=key, sturdy_oid="own") as relay_, relay_.peer() as owner:
        await owner.send(f"[[0 <A <resolve {mint('bind', key)} #:[0 1]> 3>]]")
        await owner.lines(2)
        await owner.send("[[1 <A <dataspace #:[0 2]> 13>]]")
        (made,) = await owner.told()
        oid = made.rpartition("#:[0 ")[2].partition("]")[0]
        bind = f'<bind <ref {{oid: "syndicate" key: #""}}> #:[1 {oid}] #f>'
        await owner.send(f"[[1 <A {bind} 23>]]")
        async with AsyncExitStack() as stack:
            for version in GENERATIONS:
                await stack.enter_async_context(example(version, "producer"))
            for version in GENERATIONS:
                consumer = await stack.enter_async_context(example(version, "consumer"))
                await consumer.until(MESSAGES.search)
            # They are not in the relay's own dataspace.
            assert relay_.statistics.observations == 0
            relay_.audit()


CONFIGURATION = """
let ?root_ds = dataspace
<require-service <relay-listener <tcp "127.0.0.1" {port}> $gatekeeper>>
<bind <ref {{oid: "syndicate" key: #x""}}> $root_ds #f>
"""
"""What the Rust server is to do: as in syndicate-rs's dev-scripts/benchmark-config.pr."""


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize("address", [f'<tcp "127.0.0.1" {PORT}>', f'<ws "ws://127.0.0.1:{PORT}">'])
async def test_a_route_leads_to_the_rust_server(version: str, address: str, tmp_path: Path) -> None:
    """Beyond it are the Rust examples; on this side a bare peer, which sees them all the same."""
    await trio.to_thread.run_sync(built, version)
    configuration = tmp_path / "server.pr"
    configuration.write_text(CONFIGURATION.format(port=PORT))
    key = b"the relay's"
    with the_port_alone():
        async with (
            example(version, "syndicate-server", configuration=configuration) as server,
            relay(listen=("syndicate+tcp://127.0.0.1:0?gatekeeper",), sturdy_key=key) as near,
            near.peer() as peer,
        ):
            await server.until(lambda _: not port_is_free())
            await peer.send(f"[[0 <A <resolve {mint('bind', key)} #:[0 2]> 3>]]")
            await peer.lines(2)
            await peer.send(observe(rec("a", rec("resolve-path"), BIND), 3, 13, 1))
            route = f"<route [{address}] {BOUND}>"
            await peer.send(f"[[1 <A <q <resolve-path {route}>> 23>]]")
            (line,) = await peer.told()
            assert line.startswith("3 + [<ok <resolved-path "), line
            there = line.rpartition("#:[0 ")[2].partition("]")[0]
            await peer.send(observe(rec("Says", BIND), 4, 33, int(there)))
            await peer.send(f"[[{there} <M <Says me>>]]")
            assert await peer.told() == ["4 ! [me]"]
            assert await peer.sync(int(there)) == []
            async with example(version, "producer", "-b", "100"):
                assert (await peer.lines(1000))[-1] == '4 ! ["producer"]'
                near.audit()
            async with example(version, "consumer") as consumer:
                await consumer.until(lambda text: "0 messages in the last second" in text)
                await peer.send(*[f"[[{there} <M <Says me {n}>>]]" for n in range(100)])
                await consumer.until(MESSAGES.search)
            near.audit()
