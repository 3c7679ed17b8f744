"""A relay in a process of its own, which a test may kill, stop for a while and start again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests import forks
from tests.ports import lasting_port
from tests.transports.peers import SECONDS, fetch


class RelayProcess:
    """`clearfunds relay` in a process of its own, on the same store and port each time."""

    def __init__(
        self, directory: Path, *options: str, nats: str | None = None, name: str = "r"
    ) -> None:
        self.port = lasting_port()
        #: Where its temporary directories are.
        self.temporary = directory / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self._argv = [
            *("relay", "--http", "127.0.0.1:0"),
            *("--listen", f"mqtt+tcp://127.0.0.1:{self.port}"),
            *(
                ("--store", str(directory / "store"))
                if nats is None
                else (
                    "--store",
                    "nats",
                    "--cluster",
                    nats,
                    "--name",
                    name,
                    "--disk-limit",
                    "128MiB",
                )
            ),
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
            environment = {**os.environ, "TMPDIR": str(self.temporary)}
            return forks.start(
                *self._argv, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    async def page(self, path: str) -> str:
        """Return a page."""
        return await fetch(f"{self._http}{path}")

    async def ledger(self) -> dict[str, Any]:
        """Return its books; see that they balance."""
        ledger: dict[str, Any] = json.loads(await fetch(f"{self._http}/ledger.json"))
        assert ledger["audit"]["balanced"], ledger["audit"]
        return ledger

    async def audit(self) -> None:
        """See that the books balance."""
        await self.ledger()

    def stop_for_now(self) -> None:
        """Let it hang until `go_on` is called."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

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
        assert list(self.temporary.iterdir()) == []

    async def ended(self) -> int:
        """Wait until it ends by itself; return its exit status."""
        process = self._process
        assert process is not None
        status = await trio.to_thread.run_sync(process.wait)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return status

    async def _end(self, number: int) -> int:
        process = self._process
        assert process is not None
        process.send_signal(number)
        return await self.ended()

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not ended."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()[-3000:]


@asynccontextmanager
async def relay_process(
    directory: Path, *options: str, nats: str | None = None, name: str = "r"
) -> AsyncGenerator[RelayProcess]:
    """Let there be a relay, and none at the end.

    Args:
        directory: A folder for its files.
        options: Options of `clearfunds relay`.
        nats: The servers whose JetStream has its store; None: a directory is its store.
        name: Its name in the cluster, with `nats`.
    """
    relay = RelayProcess(directory, *options, nats=nats, name=name)
    try:
        await relay.start()
        yield relay
    finally:
        with trio.CancelScope(shield=True):
            await relay.close()
