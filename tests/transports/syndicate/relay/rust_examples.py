"""The example clients of the Rust implementation, unchanged, in both generations."""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.transports.peers import kill

BUILT: Final = Path(__file__).parents[4] / "build" / "clients"

STABLE: Final = "0.50.1"
"""The stable release, whose clients expect `<accepted ...>`."""

NEXT: Final = "0.51.0-rc.4"
"""The release candidate, whose clients expect `<ok ...>`."""

GENERATIONS: Final = (STABLE, NEXT)

PORT: Final = 9001
"""The examples connect to this port of 127.0.0.1 and no other."""

BUILDING: Final = 1800.0
"""Seconds in which one generation can be built on a busy machine."""

STARTING: Final = 60.0

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@functools.cache
def built(version: str) -> Path:
    """Return the folder of the programs of one generation; skip the test if it cannot be built."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed, which builds the Rust examples")
    folder = BUILT / f"syndicate-rs-{version}"
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "syndicate-rs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "bin" / "producer").exists():
            done = subprocess.run(
                [
                    "cargo", "install", "syndicate-server", "--version", version, "--locked",
                    "--debug", "--bins", "--examples", "--root", folder,
                ],
                # Its crates use features that the stable compiler has behind this.
                env=os.environ | {"RUSTC_BOOTSTRAP": "1", "CARGO_TARGET_DIR": f"{BUILT}/target"},
                capture_output=True, text=True, timeout=BUILDING, check=False,
            )  # fmt: skip
            if done.returncode:
                why = " ".join(done.stderr.split())[-400:]
                pytest.skip(f"syndicate-server {version} cannot be built: {why}")
    return folder / "bin"


def port_is_free() -> bool:
    """Whether nobody listens where the examples connect."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", PORT))
        except OSError:
            return False
        return True


@contextmanager
def the_port_alone() -> Generator[None]:
    """Keep other processes that run tests from the examples' port; skip the test if it is taken."""
    with (BUILT / "syndicate-port.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not port_is_free():
            pytest.skip(f"port {PORT}, to which the examples connect, is taken")
        yield


class Example:
    """A running program, and what it has written."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.written = ""

    async def read(self) -> None:
        """Take what it writes, until its end."""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            self.written += _COLOURS.sub("", data.decode(errors="replace"))

    async def until(self, condition: Callable[[str], object]) -> None:
        """Wait until what it has written is so."""
        with trio.fail_after(STARTING):
            try:
                while not condition(self.written):  # noqa: ASYNC110
                    await trio.sleep(0.05)
            except trio.Cancelled:
                print(self.process.args, self.written[-2000:])
                raise


@asynccontextmanager
async def example(
    version: str, *argv: str, configuration: Path | None = None
) -> AsyncGenerator[Example]:
    """Run an example, or the server with a configuration, for the length of a block."""
    program, *rest = argv
    if configuration is not None:
        rest += ["-c", str(configuration)]
    process = await trio.lowlevel.open_process(
        [str(built(version) / program), *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    running = Example(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.read)
        try:
            yield running
        finally:
            await kill(process)
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()
    assert process.stdout is not None
    await process.stdout.aclose()
