"""benchmarks/stuck.py: what it counts, by hand; and a run of it, with a relay that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clients import WIRES, Pace, Receiver, kinds_of
from benchmarks.servers import Relay
from benchmarks.stuck import COLUMNS, Found, Terms, row, run, table

STUCK = Path(__file__).parents[2] / "benchmarks" / "stuck.py"


@pytest.mark.parametrize("cut", [1, 3, 7, 10, 64])
def test_messages_and_pings_are_counted_however_they_are_cut(cut: int) -> None:
    receiver = Receiver(10, b"PING\r\n")
    receiver.begin(0.0)
    stream = b"PING\r\n" + b"x" * 30 + b"PING\r\n" + b"x" * 20 + b"xxx"
    pings = sum(receiver.took(stream[at : at + cut], at / 100) for at in range(0, len(stream), cut))
    assert (receiver.messages, pings) == (5, 2)
    assert receiver.took(b"x" * 7, 1.0) == 0
    assert receiver.messages == 6


def test_a_gap_is_the_longest_time_in_which_no_whole_message_came() -> None:
    receiver = Receiver(4)
    receiver.took(b"1234", 5.0)
    receiver.begin(10.0)
    assert receiver.gap(11.0) == 1.0
    receiver.took(b"1234", 12.0)
    receiver.took(b"12", 13.0)
    receiver.took(b"34", 17.0)
    receiver.took(b"1234", 17.5)
    assert (receiver.messages, receiver.longest) == (3, 5.0)
    assert receiver.gap(18.0) == 5.0
    assert receiver.gap(30.0) == 12.5


def test_who_is_not_blocked_sends_at_his_pace() -> None:
    pace = Pace(1_000)
    pace.begin(100.0)
    counts = [pace.due(100.0 + tick / 100) for tick in range(101)]
    assert sum(counts) == pytest.approx(1_000, abs=1)
    assert max(counts) <= 11
    assert not pace.end(101.0)
    assert (pace.sent, pace.waited, pace.went_on) == (sum(counts), 0.0, None)


def test_who_was_blocked_catches_up_with_nothing() -> None:
    pace = Pace(1_000)
    pace.begin(0.0)
    sent = sum(pace.due(tick / 100) for tick in range(101))
    pace.blocked(1.0)
    pace.blocked(3.0)
    sent += sum(pace.due(tick / 100) for tick in range(101, 501))
    pace.free(5.0)
    sent += sum(pace.due(tick / 100) for tick in range(501, 601))
    pace.blocked(6.0)
    pace.free(6.5)
    pace.free(7.0)
    assert sent == pace.sent
    assert sent == pytest.approx(2_000, abs=2)
    assert (pace.waited, pace.longest, pace.went_on) == (4.5, 4.0, 5.0)
    assert not pace.end(8.0)
    pace.blocked(9.0)
    assert pace.end(19.0)
    assert (pace.waited, pace.longest, pace.went_on) == (14.5, 10.0, None)


def test_a_wait_that_has_begun_before_counts_from_the_beginning() -> None:
    pace = Pace(10)
    pace.blocked(1.0)
    pace.begin(5.0)
    pace.free(6.0)
    assert (pace.waited, pace.went_on) == (1.0, 6.0)


@pytest.mark.parametrize("protocol", WIRES)
def test_all_topics_have_frames_of_one_size(protocol: str) -> None:
    wire = WIRES[protocol]
    payload = b"x" * 1_000
    assert len({len(wire.frame(topic, payload)) for topic in range(10)}) == 1
    assert wire.delivered(payload) > 1_000
    assert not wire.welcomed(b"", True)


def test_lines_of_a_log_that_tell_of_it_are_shown_once_for_each_kind() -> None:
    lines = [
        "1795299474: Outgoing messages are being dropped for client it.",
        "1795299480: Outgoing messages are being dropped for client it.",
        "New client connected",
        "[7] 127.0.0.1:5 - cid:9 - Slow Consumer Detected",
    ]
    assert kinds_of(lines) == (lines[0], lines[3])


def found(**values: Any) -> Found:
    made: dict[str, Any] = {
        "server": "relay",
        "version": "1",
        "away": None,
        "offered": 80_000,
        "sent": 60_000,
        "share": 0.75,
        "gap": 5.25,
        "waited": 5.0,
        "went_on": 9.0,
        "waits": False,
        "others_lost": 0,
        "stuck_got": 1_000,
        "stuck_lost": 3_000,
        "cut": True,
        "cut_after": 7.25,
        "memory": 12.4,
        "log": ("it is stuck",),
        "over_time": {"t": [0.0], "others": [0.0], "mb": [50.0]},
    }
    return Found(**(made | values))


def test_a_run_is_a_row() -> None:
    assert row(found()) == (
        *("relay", "75.0%", "5.2 s", "5.0 s", "9.0 s", "3,000 of 4,000", "yes", "yes", "+12 MB"),
    )
    assert row(found(others_lost=7))[1] == "75.0% (7 lost)"
    assert row(found(waits=True, went_on=None))[4] == "never"
    assert row(found(waited=0.2, went_on=3.0))[4] == "-"
    lines = table([found(), found(server="nats")]).splitlines()
    assert len(lines) == 4
    assert all(line.count(" | ") == len(COLUMNS) - 1 for line in lines)


def test_a_run_of_a_relay_says_what_became_of_everybody(tmp_path: Path) -> None:
    relay = Relay(protocols=("mqtt",), options=("--stuck=disconnect", "--patience=0.3"))
    terms = Terms(rate=4_000, payload=4_000, warm=0.3, watch=2.5, quiet=0.4)
    one = run(relay, "relay, disconnect", terms, tmp_path)
    assert (one.offered, one.others_lost) == (10_000, 0)
    assert one.stuck_got + one.stuck_lost >= one.sent
    assert 0 < one.share <= 1.05
    assert len({len(column) for column in one.over_time.values()}) == 1
    # By then the kernel's buffers and the publisher's limit are full: 16 MB/s come.
    assert one.cut
    assert one.stuck_lost > 0
    assert one.waited > 0
    assert any("the-stuck-one" in line for line in one.log)


@pytest.mark.long
def test_a_relay_is_measured_as_a_user_would_do_it(tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    options = ("--only=disconnect", "--away=good", "--patience=0.5", "--watch=2")
    done = subprocess.run(
        [sys.executable, str(STUCK), *options, f"--json={written}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(written.read_text())["runs"]
    assert "relay, disconnect" in done.stdout
    assert one["others_lost"] == 0
    assert one["stuck_got"] > 0
    assert one["offered"] == 4_000
    assert one["sent"] < 4_100
    assert 0 < one["share"] <= 1.05
