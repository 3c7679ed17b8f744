"""The loop closes: the limits that a report of an overload recommends keep holds short.

The relay and the report are the commands, as processes; publishers and the subscriber speak MQTT.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from clearfunds.pipeline._arrow import arrow
from tests.pipeline.conftest import needs_spark
from tests.pipeline.relays import RelayProcess
from tests.pipeline.report.clients import Client
from tests.ports import lasting_port
from tests.transports.mqtt import wire

TARGET_MS: Final = 250.0
PACE: Final = 6_000_000
"""Bytes a second that the subscriber takes; what the relay itself can do is several times that."""
RECORDED: Final = 10.0
"""Seconds of overload: several times as long as what may stand before the subscriber takes."""
FILLING: Final = bytes(4_000)
PUBLISHERS: Final = ("left", "right")


class Flood(Client):
    """Publishes as much as its connection takes."""

    def run(self) -> None:
        frames = wire.publish("load", FILLING) * 16
        while not self.ended.is_set():
            self.sock.sendall(frames)


class SlowSubscriber(Client):
    """Takes what comes at a pace of its own, evenly.

    Attributes:
        taken: Bytes so far.
    """

    taken = 0

    def run(self) -> None:
        self.sock.sendall(wire.subscribe(1, ("#", 0)))
        began = time.monotonic()
        while not self.ended.is_set():
            due = int((time.monotonic() - began) * PACE) - self.taken
            if due < 1 << 15:
                time.sleep((1 << 15) / PACE)
            elif data := self.sock.recv(min(due, 1 << 16)):
                self.taken += len(data)
            else:
                return


def overload(port: int, journal: Path, *options: str) -> tuple[float, dict[str, Any]]:
    """Put the load on a relay; return how many bytes a second came through, and the limits."""
    # The subscriber is slow and not stuck; the relay ends without waiting for it.
    fixed = ("--journal", str(journal), "--stuck", "wait", "--grace", "0.2")
    with RelayProcess(*fixed, *options, mqtt=port) as relay:
        assert relay.mqtt == port
        with ExitStack() as clients:
            subscriber = clients.enter_context(SlowSubscriber(port, "slow"))
            for name in PUBLISHERS:
                clients.enter_context(Flood(port, name))
            time.sleep(2.0)
            began, before = time.monotonic(), subscriber.taken
            time.sleep(RECORDED)
            throughput = (subscriber.taken - before) / (time.monotonic() - began)
            books = relay.ledger()
        assert relay.stop() == 0
    limits = {each["name"]: each["limit"] for each in books["accounts"]}
    return throughput, limits


def held(journal: Path, holder: str) -> float:
    """Return for how long, in ms, that holder had one in a hundred messages, or longer."""
    table = arrow("pyarrow.parquet").read_table(str(journal / "settlements"))
    rows = [row for row in table.to_pylist() if (row["holder"], row["kind"]) == (holder, "outlet")]
    holds = sorted(((row["settled_ns"] - row["opened_ns"]) / 1e6, row["items"]) for row in rows)
    rest = sum(items for _, items in holds) * 0.01
    while (rest := rest - holds[-1][1]) > 0:
        holds.pop()
    longest: float = holds[-1][0]
    return longest


def report(journal: Path, out: Path) -> None:
    """Run the command."""
    command = [sys.executable, "-m", "clearfunds", "report", str(journal), "--out", str(out)]
    done = subprocess.run(
        [*command, "--target", f"{TARGET_MS}ms", "--threads", "2"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{len(PUBLISHERS)} limits to change\n")


@pytest.mark.long
@needs_spark
def test_the_recommended_limits_do_what_they_say(tmp_path: Path) -> None:
    port = lasting_port()
    slow = f"mqtt:{port}/-/slow"
    before, limits = overload(port, tmp_path / "before")
    late = held(tmp_path / "before", slow)
    assert late > 2 * TARGET_MS, "there was no overload to begin with"
    report(tmp_path / "before", tmp_path / "report")
    file = tmp_path / "report" / "limits.toml"
    after, lower = overload(port, tmp_path / "after", "--config", str(file))
    for name in PUBLISHERS:
        account = f"mqtt:{port}/-/{name}"
        assert lower[account]["bytes"] < limits[account]["bytes"]
    now = held(tmp_path / "after", slow)
    print(
        file.read_text(),
        f"{late:.0f} ms, {before / 1e6:.2f} MB/s; {now:.0f} ms, {after / 1e6:.2f} MB/s",
    )
    assert now < TARGET_MS
    assert after >= 0.9 * before
