"""The command line as a user has it: processes."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from clearfunds._cli import run
from tests import forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clearfunds.relay import RelaySettings

    Settle = Callable[..., RelaySettings]

SECONDS = 30
"""More than anything here takes on a busy machine; less than anyone waits for a hung test."""


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CLEARFUNDS_")]:
        monkeypatch.delenv(name)


class RelayUnderTest:
    """A relay as a process; its lines are read as they come."""

    def __init__(self, options: tuple[str, ...]) -> None:
        self.process = forks.start(
            *("relay", *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_lines),
            threading.Thread(target=self._read_log),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)

    def line(self) -> dict[str, Any]:
        """Return the next line of stdout, decoded."""
        line = self._lines.get(timeout=SECONDS)
        assert line is not None, "".join(self.log)
        decoded: dict[str, Any] = json.loads(line)
        return decoded

    def told(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many lines of the log (`--log-format json`) tell of an event."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found = [each for each in map(json.loads, self.log) if each.get("event") == event]
            if len(found) >= count:
                return found
            time.sleep(0.01)
        raise AssertionError(self.log)

    def ready(self) -> list[dict[str, Any]]:
        """Return the lines before `ready`."""
        lines = [self.line()]
        while lines[-1] != {"ready": True}:
            lines.append(self.line())
        return lines[:-1]

    def port(self, url: str) -> int:
        """Wait until it is ready and return the port of the first listener like this URL."""
        pattern = re.escape(url).replace(":0", r":(\d+)")
        for line in self.ready():
            if match := re.fullmatch(pattern, line.get("listening", "")):
                return int(match[1])
        raise AssertionError(self.log)

    def mqtt_port(self) -> int:
        """Wait until it is ready and return the port of its first TCP listener for MQTT."""
        return self.port("mqtt+tcp://127.0.0.1:0")

    def rest(self) -> str:
        """Return what is left of stdout once the process has ended."""
        return "".join(iter(lambda: self._lines.get(timeout=SECONDS) or "", ""))

    def wait(self) -> int:
        """Wait for the process's end and return its exit status; all of its log is there then."""
        status = self.process.wait(timeout=SECONDS)
        for reader in self._readers:
            reader.join(timeout=SECONDS)
        return status

    def close(self) -> None:
        """Kill what is left of it."""
        self.process.kill()
        self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start_relay() -> Iterator[Callable[..., RelayUnderTest]]:
    """Return what starts a relay with the given options; all of them end with the test."""
    relays: list[RelayUnderTest] = []

    def start(*options: str) -> RelayUnderTest:
        relays.append(RelayUnderTest(options))
        return relays[-1]

    yield start
    for relay in relays:
        relay.close()


@pytest.fixture
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start interpreters of their own, not forks: see `tests.forks`."""
    monkeypatch.setattr(forks, "start", forks.start_as_a_user)


@pytest.fixture
def clearfunds() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return what runs one command to its end."""

    def command(*argv: str, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
        return forks.clearfunds(*argv, stdin=stdin, timeout=SECONDS, **options)

    return command


@pytest.fixture
def complaint(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs one command that fails, in this process.

    To start another takes half a second of CPU; the command's first lines are the same.
    """
    # A command closes the log's handlers, and replaces them: pytest's are still needed.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def command(*argv: str) -> subprocess.CompletedProcess[str]:
        status = run(argv)
        told = capfd.readouterr()
        return subprocess.CompletedProcess(argv, status, told.out, told.err)

    return command


@pytest.fixture
def settle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settle:
    """Return what turns a command line, an environment and a file into settings."""
    found: list[RelaySettings] = []

    def instead(_: object, settings: RelaySettings, __: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("clearfunds._cli._relay.run_async", instead)
    # The collector is that of all tests to come.
    monkeypatch.setattr("clearfunds._cli._relay.spare_the_collector", lambda: None)

    def settle(*options: str, env: dict[str, str] | None = None, toml: str = "") -> RelaySettings:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        file = tmp_path / "clearfunds.toml"
        file.write_text(toml, "utf-8")
        assert run(["relay", "--config", str(file), *options]) == 0
        return found.pop()

    return settle
