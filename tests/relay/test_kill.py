"""A relay that is killed at any moment: what it has acknowledged, it keeps to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from tests.nats_servers import nats_server, needs_nats
from tests.relay.faithful import Life, Load, mixed
from tests.relay.relay_process import relay_process
from tests.transports.peers import until


async def rounds(
    directory: Path, number: int, seed: int, *options: str, nats: str | None = None
) -> Load:
    """Kill it so many times under load; return what was seen, when all has come to rest."""
    chance = random.Random(seed)
    load = Load(seed)
    mixed(load)
    async with (
        relay_process(directory, *options, nats=nats) as relay,
        trio.open_nursery() as nursery,
    ):
        load.life = Life(relay.port)
        load.start(nursery)
        await until(lambda: load.confirmed)
        for _ in range(number):
            await trio.sleep(chance.uniform(0.02, 0.7))
            await relay.kill()
            await relay.start()
            await relay.audit()
        await trio.sleep(0.3)
        await load.settled()
        await relay.audit()
        load.over = True
        nursery.cancel_scope.cancel()
    assert "Traceback" not in relay.log
    load.check()
    return load


async def test_killed_under_load(tmp_path: Path) -> None:
    load = await rounds(tmp_path, 5, 1, "--fsync-interval", "0.05")
    # It was a load, and something was cut off.
    assert len(load.confirmed) > 100
    assert sum(each.again for each in load.subscribers) > 10
    assert all(each.safe for each in load.subscribers)


@needs_nats
async def test_killed_under_load_with_its_store_in_jetstream(tmp_path: Path) -> None:
    """It takes some seconds each time: its lease has to expire."""
    with nats_server(tmp_path) as server:
        load = await rounds(tmp_path, 2, 1, nats=server.url)
    assert len(load.confirmed) > 100
    assert sum(each.again for each in load.subscribers) > 3
    assert all(each.safe for each in load.subscribers)


@needs_nats
@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_killed_under_load_with_its_store_in_jetstream_again_and_again(
    tmp_path: Path, seed: int
) -> None:
    with nats_server(tmp_path) as server:
        await rounds(tmp_path, 10, seed, nats=server.url)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_killed_under_load_a_hundred_times(tmp_path: Path, seed: int) -> None:
    await rounds(tmp_path, 10, seed, "--fsync-interval", "0.05" if seed % 2 else "0.2")
