"""A relay that is killed at any moment: what it has acknowledged, it keeps to."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests import forks
from tests.ports import lasting_port
from tests.relay.faithful import Life, Load, mixed
from tests.transports.peers import SECONDS, fetch, until


class RelayProcess:
    """`clearfunds relay` in a process of its own, on the same store and port each time."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port = lasting_port()
        self._argv = [
            *("relay", "--http", "127.0.0.1:0"),
            *("--listen", f"mqtt+tcp://127.0.0.1:{self.port}"),
            *("--store", str(directory / "store")),
            *options,
        ]
        self._log = directory / "log"
        self._process: subprocess.Popen[str] | None = None
        self._http = ""

    async def start(self) -> None:
        process = self._process = self._open()
        assert process.stdout is not None
        with trio.fail_after(SECONDS):
            while True:
                line = await trio.to_thread.run_sync(process.stdout.readline)
                assert line, self.log
                told: dict[str, Any] = json.loads(line)
                self._http = told.get("http", self._http)
                if "ready" in told:
                    return

    def _open(self) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return forks.start(*self._argv, stdout=subprocess.PIPE, stderr=log, text=True)

    async def audit(self) -> None:
        """See that the books balance."""
        ledger = json.loads(await fetch(f"{self._http}/ledger.json"))
        assert ledger["audit"]["balanced"], ledger["audit"]

    async def kill(self) -> None:
        """End it as nobody should."""
        assert self._process is not None
        assert self._process.poll() is None, self.log
        await self._end(signal.SIGKILL)

    async def close(self) -> None:
        """See that it has ended."""
        if self._process is not None:
            await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it as one does; it has to leave nothing behind."""
        assert await self._end(signal.SIGTERM) == 0, self.log

    async def _end(self, number: int) -> int:
        process = self._process
        assert process is not None
        process.send_signal(number)
        status = await trio.to_thread.run_sync(process.wait)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return status

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()[-3000:]


@asynccontextmanager
async def relay_process(directory: Path, *options: str) -> AsyncGenerator[RelayProcess]:
    """Let there be a relay, and none at the end."""
    relay = RelayProcess(directory, *options)
    try:
        await relay.start()
        yield relay
    finally:
        with trio.CancelScope(shield=True):
            await relay.close()


async def rounds(directory: Path, number: int, seed: int, *options: str) -> Load:
    """Kill it so many times under load; return what was seen, when all has come to rest."""
    chance = random.Random(seed)
    load = Load(seed)
    mixed(load)
    async with relay_process(directory, *options) as relay, trio.open_nursery() as nursery:
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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_killed_under_load_a_hundred_times(tmp_path: Path, seed: int) -> None:
    await rounds(tmp_path, 10, seed, "--fsync-interval", "0.05" if seed % 2 else "0.2")
