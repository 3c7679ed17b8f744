"""Relays and NATS servers that die or hang: the others serve their clients, and books balance."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from clearfunds.transports import TransportError
from clearfunds.transports.mqtt import open_mqtt
from tests.nats_servers import NatsServer, nats_cluster, nats_server, needs_nats
from tests.relay.relay_process import RelayProcess, relay_process
from tests.transports.peers import connected, until

pytestmark = needs_nats

SERVED = 10.0
"""Seconds within which all clients are served again."""
NOTICED = 5.0
"""Seconds within which a relay that has died is noticed."""


@asynccontextmanager
async def relays(
    folder: Path, servers: list[NatsServer], count: int
) -> AsyncGenerator[list[RelayProcess]]:
    """Run relays of one cluster for the length of a block."""
    where = ",".join(server.url for server in servers)
    async with AsyncExitStack() as stack:
        found: list[RelayProcess] = []
        for number in range(count):
            own = folder / f"r{number}"
            own.mkdir()
            options = ("--cluster", where, "--name", f"r{number}")
            found.append(await stack.enter_async_context(relay_process(own, *options)))
        yield found


class Traffic:
    """A publisher and a subscriber on each relay, which come back when they are cut off."""

    def __init__(self, relays: list[RelayProcess]) -> None:
        self._relays = relays
        self._round = 0
        self.got: list[set[tuple[int, int]]] = [set() for _ in relays]

    def start(self, nursery: trio.Nursery) -> None:
        for number in range(len(self._relays)):
            nursery.start_soon(self._keep, self._read, number)
            nursery.start_soon(self._keep, self._publish, number)

    async def _keep(self, run: Callable[[int], Awaitable[None]], number: int) -> None:
        while True:
            try:
                await run(number)
            except TransportError:
                await trio.sleep(0.1)

    async def _read(self, number: int) -> None:
        port = self._relays[number].port
        async with open_mqtt("127.0.0.1", port, client_id=f"s{number}", keep_alive=3) as client:
            await client.subscribe("all/#", 1)
            async for message in client:
                round_, publisher = map(int, message.payload.split())
                self.got[number].add((round_, publisher))

    async def _publish(self, number: int) -> None:
        port = self._relays[number].port
        async with open_mqtt("127.0.0.1", port, client_id=f"p{number}", keep_alive=3) as client:
            while True:
                with trio.fail_after(30):
                    await client.publish(f"all/{number}", b"%d %d" % (self._round, number), qos=1)
                await trio.sleep(0.05)

    async def reaches_all(self, seconds: float) -> None:
        """Wait until every subscriber gets something new of every publisher."""
        self._round += 1
        wanted = {(self._round, publisher) for publisher in range(len(self._relays))}
        await until(lambda: all(wanted <= got for got in self.got), seconds)


async def owes_for(relay: RelayProcess, other: str) -> bool:
    """Whether somebody owes here for what another relay has, or is to have."""
    matrix = (await relay.ledger())["matrix"]
    return any(row["holder"] == other or row["holder"].startswith(f"{other}/") for row in matrix)


async def test_a_killed_relay_is_noticed_and_its_clients_are_served_by_another(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path) as server:
        async with (
            relays(tmp_path, [server], 2) as (one, two),
            connected(two.port, "reader") as reader,
            open_mqtt("127.0.0.1", one.port, client_id="writer") as writer,
        ):
            await reader.subscribe("t")
            while True:  # until the other relay knows
                await writer.publish("t", b"probe")
                with trio.move_on_after(0.1):
                    assert await reader.publication()
                    break
            two.stop_for_now()
            await writer.publish("t", b"lost")
            await writer.flush()
            with trio.fail_after(NOTICED):
                while not await owes_for(one, "r1"):  # noqa: ASYNC110
                    await trio.sleep(0.02)
            began = trio.current_time()
            await two.kill()
            while await owes_for(one, "r1"):  # noqa: ASYNC110
                await trio.sleep(0.1)
            assert trio.current_time() - began < NOTICED
            async with open_mqtt("127.0.0.1", one.port, client_id="reader") as again:
                await again.subscribe("t", 1)
                await writer.publish("t", b"y", qos=1)
                assert (await again.receive()).payload == b"y"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
async def test_whatever_dies_or_hangs_clients_are_served_again_and_books_balance(
    seed: int, tmp_path: Path
) -> None:
    """Ten rounds: `kill -9` or SIGSTOP of a relay, or of one of three NATS servers."""
    chance = Random(seed)
    with nats_cluster(tmp_path) as servers:
        async with relays(tmp_path, servers, 3) as found, trio.open_nursery() as nursery:
            traffic = Traffic(found)
            traffic.start(nursery)
            await traffic.reaches_all(20)
            for _ in range(10):
                relay, server = chance.choice(found), chance.choice(servers)
                seconds = chance.choice([0.5, 2.0, 5.0, 10.0])
                match chance.randrange(4):
                    case 0:
                        await relay.kill()
                        await trio.sleep(seconds)
                        await relay.start()
                    case 1:
                        relay.stop_for_now()
                        await trio.sleep(seconds)
                        relay.go_on()
                    case 2:
                        await trio.to_thread.run_sync(server.kill)
                        await trio.sleep(seconds)
                        await trio.to_thread.run_sync(server.start)
                    case _:
                        with server.frozen():
                            await trio.sleep(seconds)
                await traffic.reaches_all(SERVED)
                for each in found:
                    await each.audit()
            nursery.cancel_scope.cancel()
