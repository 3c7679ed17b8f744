"""benchmarks/growth.py: what it makes of its figures, one short run, and its section."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import attrs
import pytest

from benchmarks import growth
from benchmarks.evidence.growth import SECTION
from benchmarks.fanout import Cores
from benchmarks.growth import (
    GROWTHS,
    WIRES,
    Client,
    Found,
    Growth,
    Measuring,
    Sample,
    accounts_here,
    cpu_seconds,
    find,
    main,
    missed,
    retaining,
    rows,
    subscribing,
)
from benchmarks.servers import SEARCH_PATH, ServerError
from clearfunds.transports.mqtt import (
    NEED_DATA,
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connection,
    PingReq,
    PingResp,
    Publish,
    Role,
    SubAck,
    Subscribe,
)

FOLDER = Path(__file__).parents[2] / "benchmarks"
MARKS = (1, 2, 4)
BY_NAME = {each.name: each for each in GROWTHS}


def sample(
    name: str,
    server: str,
    costs: Sequence[float],
    *,
    number: int = 0,
    marks: Sequence[int] = MARKS,
    mib: int = 10,
) -> Sample:
    """Return a run with these CPU seconds, and a KiB for each second."""
    kib = [round(each) for each in costs]
    return Sample(name, server, number, marks, costs, kib, 1024 * mib)


def test_what_comes_of_a_run() -> None:
    linear, more = sample("plain", "relay", (1, 2, 4)), sample("plain", "relay", (1, 4, 16))
    assert linear.exponent == pytest.approx(1)
    assert more.exponent == pytest.approx(2)
    assert linear.each_us == pytest.approx(1e6)
    assert linear.each_bytes == pytest.approx(1024)


def test_what_is_compared_is_of_the_same_pass() -> None:
    # The second pass was twice as dear for both, as when the machine is busy.
    samples = [
        sample("connecting", "relay", (1, 2, 3), number=0),
        sample("connecting", "mosquitto", (1, 1, 2), number=0),
        sample("connecting", "relay", (2, 4, 6), number=1),
        sample("connecting", "mosquitto", (2, 2, 4), number=1),
        sample("connecting", "relay", (9, 9, 9), number=2),
    ]
    found = Found.of(samples)
    relay, mosquitto = (find(found, "connecting", name) for name in ("relay", "mosquitto"))
    assert relay is not None
    assert mosquitto is not None
    assert relay.times(mosquitto) == pytest.approx([1.5, 1.5])
    assert relay.times(None) == []
    assert find(found, "crowd", "relay") is None
    assert [row[1:3] for row in rows(found)] == [["relay", "4"], ["mosquitto", "4"]]
    assert rows(found)[0][4] == "1.50"


def test_budgets() -> None:
    def said(*samples: Sample) -> list[str]:
        return missed(Found.of(samples))

    mosquitto = sample("connecting", "mosquitto", (1, 2, 4))
    assert said(sample("connecting", "relay", (1, 3, 6)), mosquitto) == [
        "connecting: exponent 1.29, at most 1.1"
    ]
    assert said(sample("connecting", "relay", (2, 4, 7)), mosquitto) == [
        "connecting: 1.75 times mosquitto's CPU, at most 1.5"
    ]
    assert said(sample("connecting", "relay", (1.5, 3, 6)), mosquitto) == []
    assert said(sample("retained", "relay", (1, 2, 4), mib=1025)) == [
        "retained: 1,025 MiB, at most 1,024"
    ]
    assert said(sample("retained", "mosquitto", (1, 4, 99), mib=9999)) == []


def test_numbers_to_look_at() -> None:
    plain = BY_NAME["plain"]
    assert plain.marks(1.0, 500)[-1] == 100_000
    assert plain.marks(1.0, 500)[0] == 100_000 // 32
    assert plain.marks(1e-9, 500) == (1, 2, 4, 8, 16, 32)
    connecting = BY_NAME["connecting"]
    assert connecting.marks(1.0, 20_000)[-1] == 10_000
    assert connecting.marks(1.0, 1_000)[-1] == 1_000 - growth.OTHER_FILES
    with pytest.raises(ServerError, match="descriptors"):
        connecting.marks(1.0, growth.OTHER_FILES + 10)


def test_cpu_time_is_that_of_the_process() -> None:
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) < before + 0.02:
        pass
    times = os.times()
    assert cpu_seconds(os.getpid()) == pytest.approx(times.user + times.system, abs=0.1)


class Broker:
    """An MQTT server of one client, which notes what that client says."""

    def __init__(self) -> None:
        self.filters: list[str] = []
        self.retained: list[str] = []
        self.refuses = False
        self._ours, self.theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.theirs.close()
        self._thread.join(10)

    def _serve(self) -> None:
        connection = Connection(Role.SERVER)
        connection.receive_data(WIRES["mqtt"].hello(0))
        connection.next_packet()
        connection.send(ConnAck(False, 0))
        with self._ours:  # a fault of this is the end of the stream for the client
            while data := self._ours.recv(65_536):
                connection.receive_data(data)
                while (packet := connection.next_packet()) is not NEED_DATA:
                    self._answer(connection, packet)

    def _answer(self, connection: Connection, packet: object) -> None:
        match packet:
            case Subscribe():
                self.filters += [topic_filter for topic_filter, _ in packet.filters]
                code = SUBSCRIPTION_FAILED if self.refuses else 0
                codes = (code,) * len(packet.filters)
                self._ours.sendall(connection.send(SubAck(packet.packet_id, codes)))
            case Publish(retain=True):
                self.retained.append(packet.topic)
            case PingReq():
                self._ours.sendall(connection.send(PingResp()))
            case _:
                raise AssertionError(packet)


class Connected(Client):
    """A client that is connected to a `Broker` already."""

    def connect(self, first: int, end: int, at_once: int) -> None:
        """Do nothing."""


def steps(drive: Iterator[None], seen: list[str]) -> list[int]:
    """Return how much has been seen at each mark."""
    return [len(seen) for _ in drive]


def test_filters_come_as_the_marks_say() -> None:
    with Broker() as broker:
        client = Connected(0, WIRES["mqtt"], [broker.theirs])
        found = steps(subscribing("a/{0}/+")(client, (5, 25, 2_025)), broker.filters)
    assert found == [1, 6, 26, 2_026]
    assert broker.filters[:3] == ["first", "a/0/+", "a/1/+"]
    assert len(set(broker.filters)) == 2_026


def test_a_refused_filter_is_said() -> None:
    with Broker() as broker:
        broker.refuses = True
        client = Connected(0, WIRES["mqtt"], [broker.theirs])
        with pytest.raises(ServerError, match="subscription"):
            list(subscribing("a/{0}")(client, (5,)))


def test_retained_topics_come_as_the_marks_say() -> None:
    with Broker() as broker:
        client = Connected(0, WIRES["mqtt"], [broker.theirs])
        found = steps(retaining(client, (10, 6_000)), broker.retained)
    assert found == [0, 10, 6_000]
    assert len(set(broker.retained)) == 6_000


def test_nats_hears_the_same_filters() -> None:
    wire = WIRES["nats"]
    assert wire.subscribe(["a/+/b", "c/#"], 7) == b"SUB a.*.b 7\r\nSUB c.> 8\r\nPING\r\n"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b'INFO {"server_id":"x"}\r\nPONG\r\n')
        wire.welcome(theirs)
        ours.sendall(b"-ERR 'Maximum Subscriptions Exceeded'\r\n")
        with pytest.raises(ServerError, match="Maximum Subscriptions"):
            wire.subscribed(theirs, 1)


def test_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    # What it does to the collector is not for the process of the tests.
    monkeypatch.setattr("clearfunds._cli._collector.spare_the_collector", lambda: None)
    found = accounts_here((10, 20))
    assert len(found["cpu"]) == len(found["kib"]) == 2
    assert 0 < found["cpu"][0] < found["cpu"][1]


@pytest.mark.parametrize(
    "name",
    [
        "connecting",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("many-plus", "shared", "retained", "accounts")
        ),
    ],
)
def test_a_short_run(name: str) -> None:
    servers = growth.servers_here(())[:1]
    lines: list[str] = []
    measuring = Measuring(Cores(None, None), 64 / BY_NAME[name].most, lines.append)
    (found,) = measuring.growth(BY_NAME[name], servers, 1)
    assert found.marks == (2, 4, 8, 16, 32, 64)
    assert list(found.cpu) == sorted(found.cpu)
    assert found.cpu[-1] > 0
    assert found.total_kib > 10_000
    assert len(lines) == 1


@pytest.mark.long
def test_those_who_do_nothing_else_let_clients_in() -> None:
    servers = growth.servers_here(())[-2:]
    measuring = Measuring(Cores(None, None), 32 / 10_000, lambda line: None)
    found = measuring.growth(BY_NAME["crowd"], servers, 1)
    assert [(each.server, each.marks[-1]) for each in found] == [("trio", 32), ("bare", 32)]


def test_a_server_that_is_not_asked_for_is_not_run() -> None:
    only_mqtt = attrs.evolve(BY_NAME["retained"], servers=("mosquitto",))
    measuring = Measuring(Cores(None, None), 1e-9, lambda line: None)
    assert measuring.growth(only_mqtt, growth.servers_here(()), 1) == []


# -- The section -----------------------------------------------------------------------------------


def data(times: float = 1.0, mib: int = 10) -> dict[str, Any]:
    """Return what the section measures, connecting at so many times mosquitto's cost."""
    samples: list[Sample] = []
    for each in GROWTHS:
        marks = each.marks(1.0, 20_000)
        costs = [mark * 1e-5 for mark in marks]
        samples.append(
            sample(each.name, "relay", [cost * times for cost in costs], marks=marks, mib=mib)
        )
        samples.append(sample(each.name, "mosquitto", costs, marks=marks))
        samples.append(sample(each.name, "trio", costs, marks=marks))
        samples.append(sample(each.name, "bare", costs, marks=marks))
    return {"samples": [attrs.asdict(each) for each in samples], "skipped": []}


def test_the_section_says_whether_it_holds() -> None:
    rendered = SECTION.render(json.loads(json.dumps(data())))
    assert [claim.word for claim in rendered.claims] == ["held", "held", "held"]
    row = "| retained topics | 1,000,000 | the relay | 10 µs | 1.00 | 1.00 | 0.0102 B | 10 MiB |"
    assert row in rendered.text
    for least in ("Trio alone", "bare Python"):
        assert f"{least} takes 1.00 times what mosquitto does" in " ".join(rendered.text.split())
    rendered = SECTION.render(data(2.0, 1025))
    assert [claim.word for claim in rendered.claims] == ["MISSED", "MISSED", "held"]
    assert "50% of what the relay does" in " ".join(rendered.text.split())


def test_the_section_names_what_is_more_than_linear() -> None:
    found = data()
    for each in found["samples"]:
        if (each["growth"], each["server"]) == ("plus", "relay"):
            each["cpu"] = [cost**2 for cost in each["cpu"]]
    rendered = SECTION.render(found)
    named = "Above 1.1: filters with + of one client with the relay (2.00)."
    assert named in " ".join(rendered.text.split())
    assert [claim.word for claim in rendered.claims] == ["held", "held", "MISSED"]


def test_a_part_of_the_topics_says_nothing_about_all() -> None:
    found = data()
    for each in found["samples"]:
        each["marks"] = [mark // 2 for mark in each["marks"]]
    assert [claim.word for claim in SECTION.render(found).claims] == [
        "held", "not measured", "held",
    ]  # fmt: skip


def test_the_section_without_data() -> None:
    rendered = SECTION.render({"samples": [], "skipped": []})
    assert {claim.word for claim in rendered.claims} == {"not measured"}


def test_the_figure() -> None:
    pytest.importorskip("matplotlib")
    picture = SECTION.render(data()).figures["growth"]()
    assert [axis.get_xlabel() for axis in picture.axes[5:]] == [
        "clients", "filters of one client", "filters of many clients", "retained topics",
        "accounts that owe",
    ]  # fmt: skip
    assert [len(axis.lines) for axis in picture.axes[:5]] == [8, 12, 16, 4, 4]


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("mosquitto", path=SEARCH_PATH) is None, reason="mosquitto is not installed"
)
def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    done = subprocess.run(
        [
            *(sys.executable, str(FOLDER / "growth.py"), "--passes", "1", "--part", "0.003"),
            *("--server", "relay", "--server", "mosquitto", "--json", str(file)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = {(each["growth"], each["server"]) for each in json.loads(file.read_text())}
    assert found == {
        (each.name, server) for each in GROWTHS for server in ("relay", "mosquitto")
        if server in each.servers
    }  # fmt: skip


def test_nothing_is_no_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["growth.py", "--part", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "above 0" in capsys.readouterr().err


def test_names() -> None:
    assert len(BY_NAME) == len(GROWTHS)
    assert all(isinstance(each, Growth) and each.servers for each in GROWTHS)
