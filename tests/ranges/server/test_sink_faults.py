"""Batches through power failures and kills: each is published once, whole and in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from tests.ports import lasting_port
from tests.ranges.server.sink_load import Clients, SinkLoad
from tests.relay.faithful import Life
from tests.relay.powered import powered
from tests.relay.relay_process import relay_process
from tests.store.disk import Disks
from tests.transports.peers import RunningRelay, until


@pytest.fixture(autouse=True)
def _small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of many blocks, so that a fault comes in between."""
    monkeypatch.setattr("clearfunds.ranges.client._writer.FRAME_BYTES", 150)


async def everything_is_taken(relay: RunningRelay) -> None:
    """Wait until nothing is at rest at the sinks, and see that nothing has gone wrong."""
    server = relay.relay.readers
    assert server is not None
    await until(lambda: not server.writing.sinks.statistics().rest_items)
    assert server.counters.internal_errors == server.writing.failures == 0
    relay.audit()


ENOUGH = 100
"""Rows that have to have been written by the end."""


async def power_fails(disks: Disks, seed: int, rounds: int, **settings: object) -> SinkLoad:
    chance = random.Random(seed)
    disk = disks(seed)
    mqtt, port = lasting_port(), lasting_port()
    listen = (f"mqtt+tcp://127.0.0.1:{mqtt}", f"subscribe+tcp://127.0.0.1:{port}")
    load = SinkLoad(seed, port)
    clients = Clients(seed, Life(mqtt))
    for qos in (1, 2):
        clients.subscriber(f"q{qos}", qos)
    async with trio.open_nursery() as nursery:
        for left in range(rounds, -1, -1):
            async with powered(disk, listen=listen, **settings) as relay:
                if left == rounds:
                    await load.begin()
                    await load.keep_session(mqtt)
                    clients.start(nursery)
                    await until(lambda: all(each.subscribed for each in clients.subscribers))
                    load.start()
                    await until(lambda: load.batches)
                await trio.sleep(chance.uniform(0.02, 0.25))
                if not left:
                    # However slow the machine is: fewer would have met too few faults.
                    await until(lambda: len(load.expected) > ENOUGH)
                    await load.end()
                    await load.check(mqtt)
                    await clients.have(load.expected)
                    await everything_is_taken(relay)
        nursery.cancel_scope.cancel()
    return load


@pytest.mark.parametrize(("seed", "interval"), [(1, 0.0), (3, 0.05)])
async def test_power_fails_while_batches_are_written(
    seed: int, interval: float, disks: Disks
) -> None:
    load = await power_fails(disks, seed, 6, fsync_interval=interval)
    assert len(load.expected) > ENOUGH


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
async def test_power_fails_thirty_times(seed: int, disks: Disks) -> None:
    await power_fails(disks, seed, 12, fsync_interval=0.02)


async def killed(directory: Path, seed: int, rounds: int, *options: str) -> SinkLoad:
    chance = random.Random(seed)
    port = lasting_port()
    options += ("--listen", f"subscribe+tcp://127.0.0.1:{port}")
    async with relay_process(directory, *options) as relay:
        load = SinkLoad(seed, port, rows=400)
        await load.begin()
        await load.keep_session(relay.port)
        load.start()
        await until(lambda: load.batches)
        for _ in range(rounds):
            await trio.sleep(chance.uniform(0.01, 0.4))
            await relay.kill()
            await relay.start()
            await relay.audit()
        await trio.sleep(0.3)
        await load.end()
        await load.check(relay.port)
        await relay.audit()
        assert "Traceback" not in relay.log
    return load


async def test_killed_while_batches_are_written(tmp_path: Path) -> None:
    load = await killed(tmp_path, 1, 2, "--fsync-interval", "0.05")
    assert len(load.expected) > ENOUGH


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 205))
async def test_killed_twenty_times(tmp_path: Path, seed: int) -> None:
    await killed(tmp_path, seed, 20, "--fsync-interval", "0.05")
