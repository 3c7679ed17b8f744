"""A real broker for the tests that want a foreign implementation at the other end."""

import contextlib
import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.ports import lasting_port
from tests.transports.certificates import Papers, papers_in

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin")


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run mosquitto on a loopback port for the whole session; gives the port."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    folder = tmp_path_factory.mktemp("mosquitto")
    yield from _running(MOSQUITTO, folder, lambda port: f"listener {port} 127.0.0.1\n")


@attrs.frozen
class SecureMosquitto:
    """mosquitto with TLS, and who vouches for it."""

    port: int
    """Where it wants no certificate of clients."""
    asking: int
    """Where it does."""
    papers: Papers


@pytest.fixture(scope="session")
def mosquitto_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureMosquitto]:
    """Run mosquitto with TLS, on two loopback ports, for the whole session."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    folder = tmp_path_factory.mktemp("mosquitto-tls")
    papers = papers_in(folder)
    issued = papers.for_server()
    asking: list[int] = []

    def listeners(port: int) -> str:
        asking.append(lasting_port())
        files = f"cafile {papers.trusted}\ncertfile {issued.chain}\nkeyfile {issued.key}\n"
        # It reads them as another user, if it is not told to be who they belong to.
        return (
            f"user {getpass.getuser()}\n"
            f"listener {asking[-1]} 127.0.0.1\n{files}require_certificate true\n"
            f"listener {port} 127.0.0.1\n{files}"
        )

    for port in _running(MOSQUITTO, folder, listeners):
        yield SecureMosquitto(port, asking[-1], papers)


def _running(mosquitto: str, folder: Path, listeners: Callable[[int], str]) -> Iterator[int]:
    """Run it with the listeners for a port, until the next is asked for; gives the port."""
    # A port that is free now may be taken when mosquitto wants it: it cannot choose one itself.
    for _ in range(5):
        port = lasting_port()
        process = _start(mosquitto, folder, listeners(port))
        if _answers(process, port):
            break
        process.kill()
        process.wait()
    else:
        pytest.fail(f"mosquitto does not start: {(folder / 'log').read_text()}")
    yield port
    process.terminate()
    process.wait(10)


def _start(mosquitto: str, folder: Path, listeners: str) -> "subprocess.Popen[bytes]":
    config = folder / "mosquitto.conf"
    # Without the last line it drops what a slow subscriber has not taken, from the 1001st on.
    config.write_text(f"allow_anonymous true\nmax_queued_messages 0\n{listeners}")
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
