"""A disk that writes nothing for a while: writers are told nothing that a crash would undo."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
import trio

from clearfunds.ranges.client import DiskError, SinkWriter
from clearfunds.store import Store, StoreSettings
from tests.ranges.server.relays import HOST, Relay, blocking, running
from tests.store.disk import Disks
from tests.transports.peers import until

ROWS = [("a/b", b"1"), ("a/b", b"2")]


def refuse(operation: str, name: str) -> None:
    if operation in {"write", "sync"}:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


async def writer(relay: Relay, **options: Any) -> SinkWriter:
    made: SinkWriter = await blocking(SinkWriter, HOST, relay.port, "w", timeout=10, **options)
    relay.readers.append(made)
    return made


async def in_the_end(ask: Callable[[], object]) -> object:
    """What is answered when the disk writes again: it is tried again a moment later."""
    with trio.fail_after(20):
        while True:
            try:
                return await blocking(ask)
            except DiskError:
                await trio.sleep(0.05)


async def test_nobody_is_told_of_a_batch_before_its_decision_is_on_the_disk(disks: Disks) -> None:
    disk = disks()
    store = Store.open(disk.directory, StoreSettings(fsync_interval=0.01), vfs=disk.name)
    async with running(store=store, store_timeout=0.2) as relay:
        client = await writer(relay)
        part = await blocking(client.stage, 0, 0, 1, ROWS)
        disk.fault = refuse
        with pytest.raises(DiskError, match="the store has not written it"):
            await blocking(client.commit, 0, [part])
        # Decided it is, but only here: who believed that would not write it again after a crash.
        with pytest.raises(DiskError, match="the store has not written it"):
            await blocking(client.last_committed)
        disk.fault = None
        assert await in_the_end(client.last_committed) == 0
        assert not await blocking(client.commit, 0, [part])
    store.close()


async def test_a_name_is_taken_over_when_that_is_on_the_disk(disks: Disks) -> None:
    disk = disks()
    store = Store.open(disk.directory, StoreSettings(fsync_interval=0.01), vfs=disk.name)
    async with running(store=store, store_timeout=0.2) as relay:
        old = await writer(relay)
        await blocking(old.stage, 0, 0, 1, ROWS)
        disk.fault = refuse
        # A relay that is killed now knows only the one before, and would put out the newer one.
        with pytest.raises(DiskError, match="the store has not written it"):
            await writer(relay, take_over=True)
        await until(lambda: len(relay.server.open) == 1)
        disk.fault = None
        new = await in_the_end(lambda: SinkWriter(HOST, relay.port, "w", take_over=True))
        assert isinstance(new, SinkWriter)
        relay.readers.append(new)
        assert await blocking(new.last_committed) is None
        generation = new.ticket.generation
    store.close()
    disk.lose_power()
    store = Store.open(disk.directory, vfs=disk.name)
    async with running(store=store) as relay:
        found = relay.server.writing.sinks.find("w")
        assert found is not None
        assert found.generation == generation
    store.close()
