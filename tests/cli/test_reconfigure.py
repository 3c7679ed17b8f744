"""SIGHUP reads the file of --config again: what changes, what does not, and what it never does."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from clearfunds._cli._reloading import RELOADABLE_OPTIONS, Configuration
from clearfunds.relay import Adjusting, RelaySettings
from tests.attacks.kit import cpu_seconds
from tests.cli.conftest import RelayUnderTest
from tests.signals import heard

SECONDS = 30
ABOUT_IT = "reconfigured", "restart_needed", "not_reloaded", "reloaded"
"""Other events may be logged meanwhile: a busy machine's event loop is late, for example."""

ANY = ("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json")


class Configured:
    """A relay with a file of options."""

    def __init__(self, relay: RelayUnderTest, file: Path) -> None:
        self.relay = relay
        self._file = file

    def write(self, text: str) -> list[dict[str, Any]]:
        """Write another file, send SIGHUP, and return the lines of the log that come of it."""
        self._file.write_text(text)
        before = len(self.relay.log)
        self.relay.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            told = [json.loads(line) for line in self.relay.log[before:]]
            lines = [line for line in told if line.get("event") in ABOUT_IT]
            if lines and lines[-1].get("what") == "access control list":
                return lines
            time.sleep(0.01)
        raise AssertionError(self.relay.log)


@pytest.fixture
def configured(
    start_relay: Callable[..., RelayUnderTest], tmp_path: Path
) -> Callable[..., Configured]:
    # The list is read after the configuration: the last line tells that all has been done.
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite #\n")

    def start(text: str, *options: str) -> Configured:
        file = tmp_path / "relay.toml"
        file.write_text(text)
        with heard(signal.SIGHUP):
            relay = start_relay(*ANY, "--acl", str(acl), "--config", str(file), *options)
            relay.mqtt_port()  # it listens for signals, too
        return Configured(relay, file)

    return start


def test_what_is_reloadable_changes_and_the_rest_is_named(
    configured: Callable[..., Configured],
) -> None:
    relay = configured("[relay]\nlimit_items = 50\n", "--patience", "7")
    changed, restart, _ = relay.write(
        "[relay]\nlimit_items = 60\npatience = 9\nmax_inflight = 3\nfair = false\n"
        'log_level = "debug"\n[[relay.tenant]]\nname = "press"\nuser = "p"\n'
    )
    # --patience is on the command line, which wins.
    assert changed["event"] == "reconfigured"
    assert changed["changed"] == ["limit_items", "log_level"]
    assert restart["event"] == "restart_needed"
    assert restart["level"] == "WARNING"
    assert restart["options"] == ["tenant", "fair", "max_inflight"]
    assert restart["message"].endswith("kept and latency cannot), --fair, --max-inflight")


def test_a_file_with_a_mistake_changes_nothing_and_says_where(
    configured: Callable[..., Configured], tmp_path: Path
) -> None:
    relay = configured("[relay]\nlimit_items = 50\n")
    for text, why in (
        ('[relay]\nlimit_items = 60\npatience = "soon"\n', '"soon" is not a number of seconds'),
        ("[relay]\nlimit_items = 60\nlimit_item = 7\n", "limit_item"),
        ("[relay]\nlimit_items = \n", "line 2"),
        ("[relay]\nlimit_items = 60\nrate = " + "[" * 9_000, "nested too deeply"),
        ("[relay]\nlimit_items = 60\nrate = ['a=x']\n", '"x", which is not a number'),
    ):
        wrong, _ = relay.write(text)
        assert (wrong["event"], wrong["level"]) == ("not_reloaded", "ERROR")
        assert wrong["what"] == "configuration"
        assert why in wrong["reason"]
        assert "relay.toml" in wrong["reason"]
    same, _ = relay.write("[relay]\nlimit_items = 50\n")
    assert same["changed"] == []
    (tmp_path / "relay.toml").unlink()
    relay.relay.process.terminate()
    assert relay.relay.wait() == 0


GIVEN: dict[str, Any] = {
    "log_level": "info",
    **{name: getattr(RelaySettings(), name) for name in RELOADABLE_OPTIONS if name != "log_level"},
}


async def test_connections_still_fit_the_open_files_that_are_allowed() -> None:
    def fitted(settings: RelaySettings) -> RelaySettings:
        return attrs.evolve(settings, max_connections=min(settings.max_connections, 300))

    adjusting = Adjusting(fitted(RelaySettings()))
    for wanted, found in ((10_000, 300), (20_000, 300), (200, 200)):
        read = partial(dict[str, Any], GIVEN, max_connections=wanted)
        await Configuration(read, GIVEN, adjusting, fitted=fitted).reload()
        assert adjusting.settings.max_connections == found


async def test_whatever_goes_wrong_the_relay_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> dict[str, Any]:
        raise LookupError("nobody expects this")

    await Configuration(read, GIVEN, Adjusting(RelaySettings())).reload()
    assert "the configuration stays unchanged: nobody expects this" in caplog.text


def hears(pid: int, number: signal.Signals) -> bool:
    """Whether a process has said what it does about a signal."""
    status = dict(
        line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return any(int(status[mask], 16) >> (number - 1) & 1 for mask in ("SigIgn", "SigCgt"))


def test_sighup_ends_no_relay_from_its_start_to_its_end() -> None:
    """A process as a user starts it: nothing has been imported."""
    for delay in (0.0, 0.2, 0.6):
        with heard(signal.SIGHUP):
            process = subprocess.Popen(
                [sys.executable, "-m", "clearfunds", "relay", "--listen", "mqtt://127.0.0.1:0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        with process:
            # Until it has begun the system ends it.
            while not hears(process.pid, signal.SIGHUP):
                assert process.poll() is None
                time.sleep(0.001)
            # To import it all takes three times as long.
            assert cpu_seconds(process.pid) < 0.15
            time.sleep(delay)
            process.send_signal(signal.SIGHUP)
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(2)]
            assert said[-1] == '{"ready": true}\n', said
            process.terminate()
            deadline = time.monotonic() + SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                process.send_signal(signal.SIGHUP)
                time.sleep(0.001)
            assert process.returncode == 0


def test_the_options_that_are_reloadable() -> None:
    assert {"limit_items", "tenant", "log_level", "profile", "grace"} <= set(RELOADABLE_OPTIONS)
    assert not {"listen", "store", "fair", "acl"} & set(RELOADABLE_OPTIONS)
