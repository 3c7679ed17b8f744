"""The relay and the Rust example clients of both generations, with default options."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from tests.transports.syndicate.relay.peers import SyndicateRelay, relay
from tests.transports.syndicate.relay.rust_examples import (
    GENERATIONS,
    PORT,
    built,
    example,
    the_port_alone,
)

pytestmark = pytest.mark.long


@asynccontextmanager
async def served(key: bytes = b"") -> AsyncGenerator[SyndicateRelay]:
    """Run a relay where the examples expect it; the key is the one of their sturdyref."""
    for version in GENERATIONS:
        await trio.to_thread.run_sync(built, version)
    listen = (f"syndicate+tcp://127.0.0.1:{PORT}?gatekeeper",)
    with the_port_alone():
        async with relay(listen=listen, sturdy_key=key) as running:
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
