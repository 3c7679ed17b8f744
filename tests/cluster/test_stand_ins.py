"""Relays with `--store nats` that have gone: others keep for them, and stand in for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from clearfunds.transports import TransportError
from clearfunds.transports.mqtt import MqttClient, open_mqtt
from tests.nats_servers import NatsServer, needs_nats
from tests.relay.relay_process import RelayProcess, relay_process
from tests.transports.peers import until

pytestmark = needs_nats

PUBLISHED = 20


@asynccontextmanager
async def pair(
    folder: Path, nats: NatsServer, *options: str
) -> AsyncGenerator[tuple[RelayProcess, RelayProcess]]:
    """Run two relays that know each other."""
    for name in ("r0", "r1"):
        (folder / name).mkdir()
    where = nats.url
    async with (
        relay_process(folder / "r0", *options, nats=where, name="r0") as one,
        relay_process(folder / "r1", *options, nats=where, name="r1") as two,
    ):
        await until(lambda: "relay r1 is in the cluster" in one.log)
        yield one, two
        for relay in (one, two):
            if relay.is_running:
                await relay.audit()


@asynccontextmanager
async def kept(port: int, name: str) -> AsyncGenerator[MqttClient]:
    """Connect with a session that outlives the connection; try until it is let in."""
    while True:
        try:
            async with open_mqtt("127.0.0.1", port, client_id=name, clean_session=False) as client:
                yield client
                return
        except TransportError as exc:
            if "navailable" not in f"{exc}":
                raise
        await trio.sleep(0.1)


async def subscribe(port: int, name: str) -> None:
    """Make a session."""
    async with kept(port, name) as client:
        await client.subscribe("news/#", 2)
    await trio.sleep(0.3)  # and so the other relay knows


async def receives(client: MqttClient, count: int) -> list[int]:
    """Return what a client gets; nothing comes after that."""
    got: list[int] = []
    with trio.fail_after(30):
        while len(got) < count:
            got.append(int((await client.receive()).payload))
    with trio.move_on_after(0.5):
        extra = await client.receive()
        pytest.fail(f"{extra} comes, too")
    return got


async def test_a_relay_stands_in_for_one_that_has_gone_and_gives_the_name_back(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    """Nothing that is published meanwhile is lost, or comes twice."""
    async with pair(tmp_path, own_nats) as (one, two):
        await subscribe(two.port, "archive")
        async with open_mqtt("127.0.0.1", one.port, client_id="newsroom") as writer:
            for number in range(PUBLISHED):
                if number == PUBLISHED // 2:
                    await two.kill()
                with trio.fail_after(10):  # it is confirmed when it is stored for the session
                    await writer.publish("news/a", b"%d" % number, qos=2)
            await until(lambda: "stands in for it" in one.log)
            async with kept(one.port, "archive") as client:
                assert client.session_present
                assert await receives(client, PUBLISHED) == [*range(PUBLISHED)]
            await two.start()
            await until(lambda: "relay r1 is back" in one.log)
            await writer.publish("news/a", b"77", qos=2)
        async with kept(two.port, "archive") as client:
            assert client.session_present
            assert await receives(client, 1) == [77]


async def test_a_relay_that_was_taken_for_dead_begins_anew(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    async with pair(tmp_path, own_nats) as (one, two):
        await subscribe(two.port, "archive")
        two.stop_for_now()
        async with open_mqtt("127.0.0.1", one.port, client_id="newsroom") as writer:
            for number in range(PUBLISHED):
                with trio.fail_after(10):
                    await writer.publish("news/a", b"%d" % number, qos=1 + number % 2)
        await until(lambda: "stands in for it" in one.log)
        two.go_on()
        await until(lambda: "it begins anew" in two.log)
        await until(lambda: "relay r1 is back" in one.log)
        async with kept(two.port, "archive") as client:
            assert client.session_present
            assert sorted(await receives(client, PUBLISHED)) == [*range(PUBLISHED)]


async def test_a_confirm_waits_for_a_relay_that_comes_back(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    async with pair(tmp_path, own_nats, "--no-stand-in") as (one, two):
        await subscribe(two.port, "archive")
        await two.kill()
        async with open_mqtt("127.0.0.1", one.port, client_id="newsroom") as writer:
            await until(lambda: "relay r1 has left" in one.log)
            confirmed = trio.Event()

            async def publish() -> None:
                await writer.publish("news/a", b"1", qos=1)
                confirmed.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                await trio.sleep(1)
                assert not confirmed.is_set()
                ledger = await one.ledger()
                assert "r1" in {row["holder"] for row in ledger["matrix"]}
                await two.start()
        async with kept(one.port, "archive") as client:
            assert await receives(client, 1) == [1]


async def test_a_relay_that_does_not_come_back_is_given_up(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    options = ("--no-stand-in", "--patience", "2")
    async with pair(tmp_path, own_nats, *options) as (one, two):
        await subscribe(two.port, "archive")
        await two.kill()
        await until(lambda: "relay r1 has left" in one.log)
        async with open_mqtt("127.0.0.1", one.port, client_id="newsroom") as writer:
            with trio.fail_after(20):
                await writer.publish("news/a", b"1", qos=1)
        await until(lambda: "relay r1 has not come back within 2 s" in one.log)


async def test_a_relay_that_comes_knows_what_one_that_is_away_wants(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    async with pair(tmp_path, own_nats, "--no-stand-in") as (one, two):
        await subscribe(two.port, "archive")
        await two.kill()
        await until(lambda: "relay r1 has left" in one.log)
        await one.stop()
        await one.start()
        async with (
            open_mqtt("127.0.0.1", one.port, client_id="newsroom") as writer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(writer.publish, "news/a", b"1", qos=1))
            await two.start()
        async with kept(one.port, "archive") as client:
            assert await receives(client, 1) == [1]
