"""`clearfunds demo` as a process, and on a relay that loses what it should deliver."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import SECONDS
from tests.forks import CLEARFUNDS

if TYPE_CHECKING:
    from collections.abc import Callable

    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]


def test_three_days_of_flights(clearfunds: Clearfunds) -> None:
    run = clearfunds(
        "demo", "--profile", "lossless", "--days", "3", "--pause", "3", "--limit-items", "200"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    said = run.stdout
    assert "published   2,699 of 2,699 flights" in said
    assert "delivered   7,430 of 7,430 to" in said
    assert "lost        0\n" in said
    assert "books       every message in a queue is owed for" in said
    assert "; 0 still owed" in said
    assert re.search(r"lossless  the publisher waited [\d.]+ s for archive; nothing was lost", said)
    # The archive paused; the publisher was made to wait, and the ledger says on whom.
    peak = int(re.findall(r"peak debt +([\d,]+) messages", said)[0].replace(",", ""))
    # At most one packet's fan-out over the limit: no flight concerns more than five of the nine,
    # and the packet itself is on the account until it has been routed.
    assert 200 < peak <= 200 + 6
    waited = float(re.findall(r"waited +([\d.]+) s", said)[0])
    on_archive = float(re.findall(r"([\d.]+) s on archive", said)[0])
    assert waited > 0.5
    assert on_archive > 0.5
    # A line a second while it ran, for there is no terminal here.
    shown = re.findall(r"owes (\d+) of 200, held by archive (\d+), publisher waits for", said)
    # It goes on at half of its limit, so while it waits it owes more than that. (The page is read
    # in steps: a line about the moment at which it goes on may mix before and after.)
    assert any(100 < int(owed) <= peak and owed == held for owed, held in shown)
    assert all(int(owed) <= peak for owed, _ in shown)
    assert "archive reads nothing" in said


LOSES = """
import sys
from clearfunds.transports.mqtt import MqttClient
from clearfunds._cli import run

# The flight AS 7 of the first of January never gets to the relay, though its publisher thinks so.
publish = MqttClient.publish

async def leaky(self, topic, payload=b"", *args, **kwargs):
    if b'"carrier":"AS","flight":7,' not in payload:
        await publish(self, topic, payload, *args, **kwargs)

MqttClient.publish = leaky
import clearfunds._cli._demo._command as command
command._STALL_SECONDS = 1.0
sys.exit(run(["demo", "--profile", "lossless", "--days", "1", "--pause", "0"]))
"""


def test_a_lost_flight_is_found() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOSES],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    # By the archive and by Newark's board.
    assert "lost        2\n" in run.stdout
    assert run.stdout.count("   lost 1\n") == 2


def relays_of(pid: int) -> list[int]:
    """Return the child processes of a process."""
    # Each thread has children of its own; Trio starts processes in a worker thread.
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for each in threads for child in (each / "children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc here")
def test_an_interrupted_demo_leaves_no_relay_behind() -> None:
    with subprocess.Popen(
        [*CLEARFUNDS, "demo", "--pause", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        while "reads nothing\n" not in demo.stdout.readline():
            pass
        (relay,) = relays_of(demo.pid)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=SECONDS)
        assert demo.returncode == 130
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{relay}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "option", [["--days", "32"], ["--days", "0"], ["--pause", "-1"], ["--limit-items", "0"]]
)
def test_wrong_use(complaint: Clearfunds, option: list[str]) -> None:
    run = complaint("demo", *option)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert option[0] in run.stderr


def test_three_acts(clearfunds: Clearfunds) -> None:
    run = clearfunds("demo", "--days", "3", "--pause", "1", "--limit-items", "200")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("published   2,699 of 2,699 flights") == 3
    *_, lossless, live, balanced = run.stdout.splitlines()
    assert re.search(r"lossless  the publisher waited \d.\d s for archive; noth", lossless)
    # Sockets hold all of three days.
    assert live.startswith("  live      nobody waited; ")
    assert balanced.startswith("  balanced  the publisher waited")
    assert balanced.endswith("; nothing was lost")
    assert re.search(r"spilled +[\d,]+ messages for archive", run.stdout)


@pytest.mark.long
def test_the_whole_month(clearfunds: Clearfunds) -> None:
    run = clearfunds("demo", "--pause", "2")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("published   27,004 of 27,004 flights") == 3
    assert run.stdout.count("delivered   72,883 of 72,883 to") == 2
    (lost,) = re.findall(r"lost +([\d,]+), all of them counted by the relay", run.stdout)
    assert f"archive lost {lost} messages" in run.stdout
