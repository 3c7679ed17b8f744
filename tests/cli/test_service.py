"""systemd's side of a relay: what it is told, and the unit."""

from __future__ import annotations

import configparser
import contextlib
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clearfunds._cli._service import Service
from tests.nats_servers import needs_nats

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd" / "clearfunds.service"
DOCS = ROOT / "docs" / "service.md"
SECONDS = 30.0
WATCHDOG = 0.3


class Manager:
    """What systemd is for a service: a socket that is read at once."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(path))
        self.said: queue.Queue[str] = queue.Queue()
        self.beats: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while said := self.sock.recv(4096).decode():
            (self.beats if said == "WATCHDOG=1" else self.said).put(said)

    def hear(self) -> str:
        """Return the next thing that it is told, but for signs of life."""
        return self.said.get(timeout=SECONDS)

    def is_silent_for(self, seconds: float) -> bool:
        """Whether there is no sign of life for so long, after those that have come already."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.beats.get_nowait()
        try:
            self.beats.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(b"", self.sock.getsockname())
        self._thread.join()
        self.sock.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_a_user: None) -> Generator[Manager]:
    """Listen where the relays that a test starts will speak to systemd."""
    del as_a_user
    path = tmp_path / "notify"
    manager = Manager(path)
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    monkeypatch.setenv("WATCHDOG_USEC", str(round(WATCHDOG * 1e6)))
    yield manager
    manager.close()


def test_it_is_told_of_a_whole_life(start_relay: StartRelay, manager: Manager) -> None:
    relay = start_relay("--listen", "mqtt://127.0.0.1:0", "--http", "127.0.0.1:0")
    addresses = [next(iter(line.values())) for line in relay.ready()]
    assert manager.hear() == f"READY=1\nSTATUS=listening on {', '.join(addresses)}"
    relay.process.send_signal(signal.SIGHUP)
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", manager.hear())
    assert manager.hear() == "READY=1"
    for _ in range(3):
        assert manager.beats.get(timeout=SECONDS)
    relay.process.terminate()
    assert manager.hear() == "STOPPING=1\nSTATUS=sending what is owed"
    assert relay.wait() == 0


def test_a_relay_that_hangs_gives_no_sign_of_life(
    start_relay: StartRelay, manager: Manager
) -> None:
    relay = start_relay("--listen", "mqtt://127.0.0.1:0")
    relay.ready()
    assert manager.beats.get(timeout=SECONDS)
    relay.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(WATCHDOG)  # what was on its way has come
        assert manager.is_silent_for(3 * WATCHDOG)
    finally:
        relay.process.send_signal(signal.SIGCONT)
    assert manager.beats.get(timeout=SECONDS)
    relay.process.terminate()
    assert relay.wait() == 0


@needs_nats
def test_workers_are_one_service(start_relay: StartRelay, manager: Manager) -> None:
    """They do not speak for themselves."""
    relay = start_relay("--listen", "mqtt://127.0.0.1:0", "--workers", "2")
    relay.ready()
    assert manager.hear().startswith("READY=1\nSTATUS=listening on mqtt+tcp://127.0.0.1:")
    assert manager.beats.get(timeout=SECONDS)
    relay.process.terminate()
    assert manager.hear().startswith("STOPPING=1")
    assert relay.wait() == 0


def test_without_systemd_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    service = Service.from_environment()
    assert service == Service()
    service.ready("mqtt://here")
    service.stopping()


def test_the_variables_are_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, seconds in ((os.getpid(), 1.5), (os.getpid() + 1, None)):
        monkeypatch.setenv("NOTIFY_SOCKET", "@abstract")
        monkeypatch.setenv("WATCHDOG_USEC", "1500000")
        monkeypatch.setenv("WATCHDOG_PID", str(pid))
        assert Service.from_environment() == Service("@abstract", seconds)
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()
    # Nobody listens there, and nothing comes of it.
    Service("@clearfunds-nobody").ready("mqtt://here")


def test_an_abstract_address_is_understood() -> None:
    name = f"clearfunds-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(SECONDS)
        Service(f"@{name}").stopping()
        assert sock.recv(100).startswith(b"STOPPING=1")


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("clearfunds")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/clearfunds/bin/clearfunds", str(command)))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout


def test_the_unit_and_the_page_agree(
    start_relay: StartRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line of the unit runs with the file that the page shows."""
    program, *words = unit()["Service"]["ExecStart"].split()
    page = DOCS.read_text()
    assert f"{Path(program).parent}/pip install" in page
    assert f"`{words[-1]}` has the relay's options" in page
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert set(tomllib.loads(text)) == {"relay"}
    users = tmp_path / "users"
    users.write_text("")
    users.chmod(0o600)
    for old, new in (
        ("mqtt://0.0.0.0", "mqtt://127.0.0.1:0"), ("127.0.0.1:9100", "127.0.0.1:0"),
        ("/var/lib/clearfunds", str(tmp_path)), ("/etc/clearfunds/users", str(users)),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "clearfunds.toml"
    file.write_text(text)
    assert words[0] == "relay"
    relay = start_relay(*(str(file) if word == words[-1] else word for word in words[1:]))
    assert [next(iter(line)) for line in relay.ready()] == ["listening", "http"]
    assert (tmp_path / "store").is_dir()
    relay.process.terminate()
    assert relay.wait() == 0
