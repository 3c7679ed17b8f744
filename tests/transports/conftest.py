"""A real broker for the tests that want a foreign implementation at the other end."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin")


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run mosquitto on a loopback port for the whole session; gives the port."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    folder = tmp_path_factory.mktemp("mosquitto")
    # A port that is free now may be taken when mosquitto wants it: it cannot choose one itself.
    for _ in range(5):
        port = _free_port()
        process = _start(MOSQUITTO, folder, port)
        if _answers(process, port):
            break
        process.kill()
        process.wait()
    else:
        pytest.fail(f"mosquitto does not start: {(folder / 'log').read_text()}")
    yield port
    process.terminate()
    process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(mosquitto: str, folder: Path, port: int) -> "subprocess.Popen[bytes]":
    config = folder / "mosquitto.conf"
    # Without the last line it drops what a slow subscriber has not taken, from the 1001st on.
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([mosquitto, "-c", str(config)], stdout=log, stderr=log)


def _answers(process: "subprocess.Popen[bytes]", port: int) -> bool:
    for _ in range(100):
        if process.poll() is not None:
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.05)
    return False
