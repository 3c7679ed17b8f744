"""benchmarks/stuck.py: what it counts, by hand; and a run of it, with a relay that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.clients import WIRES, Pace, Receiver, kinds_of
from benchmarks.evidence import _plot
from benchmarks.evidence._section import Setting
from benchmarks.evidence.stuck import SECTION
from benchmarks.fanout import Cores
from benchmarks.servers import PEERS, Relay
from benchmarks.stuck import AS_IT_COMES, BESIDE, COLUMNS, Found, Terms, row, run, table

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
        "before": 1.0,
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


@pytest.mark.long
def test_a_run_of_a_relay_says_what_became_of_everybody(tmp_path: Path) -> None:
    relay = Relay(protocols=("mqtt",), options=("--stuck=disconnect", "--patience=0.3"))
    terms = Terms(rate=4_000, payload=8_000, warm=0.3, watch=2.5, quiet=0.4)
    one = run(relay, "relay, disconnect", terms, tmp_path)
    assert (one.offered, one.others_lost) == (10_000, 0)
    assert one.stuck_got + one.stuck_lost >= one.sent
    assert 0 < one.share <= 1.05
    assert len({len(column) for column in one.over_time.values()}) == 1
    assert one.before > 0
    # By then the kernel's buffers and the publisher's limit are full: 32 MB/s come.
    assert one.cut
    assert one.stuck_lost > 0
    assert one.waited > 0
    assert any("the-stuck-one" in line for line in one.log)


# -- the section of docs/evidence.md ------------------------------------------------------------


def data_of(*runs: Found) -> dict[str, Any]:
    terms = attrs.asdict(Terms(rate=2_000, watch=40.0))
    return {"terms": terms, "patience": 2.0, "runs": [attrs.asdict(r) for r in runs], "skipped": []}


def over(*others: float) -> dict[str, list[float]]:
    return {
        "t": [20.0 * place for place in range(len(others))],
        "others": list(others),
        "mb": [50.0] * len(others),
    }


def test_the_evidence_says_who_noticed_and_who_paid() -> None:
    went_on = over(0.0, 20_000.0, 60_000.0)
    stopped = over(0.0, 20_000.0, 20_000.0)
    data = data_of(
        found(server=AS_IT_COMES, over_time=went_on),
        found(server="relay, wait", over_time=stopped, share=0.25, cut=False, cut_after=None),
        found(server="mosquitto", over_time=went_on, share=1.0, gap=0.1, cut=False, log=()),
        found(server="nats", over_time=went_on, gap=0.1, others_lost=7),
        found(server="rabbitmq", over_time=went_on, gap=0.1, before=0.4, stuck_lost=0),
    )
    text = SECTION.render(data).text
    assert "**The others did not notice** with mosquitto (+12 MB).\n" in text
    assert "and then went on** with the relay as it comes (for 5.25 s).\n" in text
    assert "never nothing for long** with NATS (75%) and RabbitMQ (75%).\n" in text
    assert "to the end** with `wait` (25% in 40 s).\n" in text
    assert "before anybody was stuck** was RabbitMQ (40% of it).\n" in text
    assert "**They lost messages that were sent** with NATS (7).\n" in text
    assert "**The stuck one lost nothing** with RabbitMQ.\n" in text
    assert "stayed connected** by `wait` (3,000) and mosquitto (3,000).\n" in text
    assert "**No log said anything** of mosquitto." in text
    assert "| after 7.2 s |" in text


def test_the_evidence_has_claims_about_the_relay_alone() -> None:
    def words(**values: Any) -> list[str]:
        runs = (found(server="relay, spill", **values), found(server="nats", others_lost=9))
        return [claim.word for claim in SECTION.render(data_of(*runs)).claims]

    good = {"gap": 3.4, "stuck_lost": 0}
    unknown = ["not measured"] * 4  # those about the relay as it comes
    assert words(**good) == [*unknown, "held", "held", "held"]
    assert words(**good | {"gap": 3.6}) == [*unknown, "MISSED", "held", "held"]
    assert words(**good | {"others_lost": 1}) == [*unknown, "held", "MISSED", "held"]
    assert words(**good | {"stuck_lost": 1}) == [*unknown, "held", "held", "MISSED"]

    def default(**values: Any) -> list[str]:
        run = found(server=AS_IT_COMES, **values)
        return [claim.word for claim in SECTION.render(data_of(run)).claims][:4]

    good = {"gap": 0.5, "share": 0.96, "stuck_lost": 0, "memory": 100.0}
    assert default(**good) == ["held"] * 4
    assert default(**good | {"gap": 1.6}) == ["MISSED", "held", "held", "held"]
    assert default(**good | {"share": 0.94}) == ["held", "MISSED", "held", "held"]
    assert default(**good | {"stuck_lost": 1}) == ["held", "held", "MISSED", "held"]
    assert default(**good | {"memory": 150.0}) == ["held", "held", "held", "MISSED"]
    unmeasured = SECTION.render(data_of(found(server="nats")))
    assert [claim.word for claim in unmeasured.claims] == ["not measured"] * 7
    assert unmeasured.beside["one stuck of nine: silence of the others"] == {"nats": "5.2 s"}


def test_the_picture_has_a_place_for_each_server() -> None:
    runs = [found(server=name, over_time=over(0.0, 1.0, 2.0)) for name in "abcdef"]
    with _plot.styled():
        figure = SECTION.render(data_of(*runs)).figures["stuck"]()
    assert [axis.get_title() for axis in figure.axes if axis.get_visible()] == list("abcdef")


@pytest.mark.long
def test_the_evidence_is_measured_with_every_server_that_is_here() -> None:
    here = tuple(server for server in (Relay(), *PEERS) if server.missing() is None)
    data = SECTION.measure(Setting(here, Cores.choose(), lambda _: None, 0.1))
    labels = {run["server"] for run in data["runs"]}
    assert data["skipped"] == []
    assert labels >= {AS_IT_COMES, "relay, wait", "relay, spill"}
    assert labels & set(BESIDE) == {server.name for server in here} & set(BESIDE)
    assert "offered" in SECTION.render(data).text


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
