"""What the tests of the ASGI part share: they run under Trio and under asyncio, or serve."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from tests.loops import (
    loop_of_the_test,
    pytest_collection_modifyitems,
    pytest_generate_tests,
    pytest_pyfunc_call,
)

__all__ = [
    "loop_of_the_test",
    "pytest_collection_modifyitems",
    "pytest_generate_tests",
    "pytest_pyfunc_call",
]

SERVERS: Final = ("uvicorn", "hypercorn-asyncio", "hypercorn-trio")


@attrs.frozen
class Served:
    """A program that is being served, on a port of this machine."""

    port: int
    log: Path

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        """Connect to it, as a client that may have room for little."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(20)
        try:
            sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        return sock

    def get(self, path: str, *, method: str = "GET") -> Any:
        """Return what a page says, as JSON."""
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def until(self, path: str, what: str, wanted: object, seconds: float = 60.0) -> None:
        """Wait until the field `what` of a page is as wanted."""
        deadline = time.monotonic() + seconds
        while (found := self.get(path)[what]) != wanted:
            assert time.monotonic() < deadline, f"{what} is {found!r}, not {wanted!r}"
            time.sleep(0.05)


def command_of(server: str, program: str, port: int) -> list[str]:
    """Return the command that serves `program` (`module:name`)."""
    if server == "uvicorn":
        return [sys.executable, "-m", "uvicorn", program, "--port", str(port)]
    worker = server.removeprefix("hypercorn-")
    return [sys.executable, "-m", "hypercorn", program, "-b", f"127.0.0.1:{port}", "-k", worker]


@contextmanager
def serving(server: str, program: str, folder: Path, scratch: Path) -> Generator[Served]:
    """Serve a program in a folder by one of `SERVERS`, for as long as the block lasts."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    served = Served(port, scratch / "server.log")
    with served.log.open("wb") as log:
        process = subprocess.Popen(
            command_of(server, program, port),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                served.connect().close()
                break
            except OSError:
                assert process.poll() is None, served.log.read_text()
                assert time.monotonic() < deadline, served.log.read_text()
                time.sleep(0.05)
        yield served
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, -signal.SIGINT), served.log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    """The server of the test."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def served(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve `program.py`."""
    scratch = tmp_path_factory.mktemp(server)
    with serving(server, "program:app", Path(__file__).parent, scratch) as found:
        yield found
