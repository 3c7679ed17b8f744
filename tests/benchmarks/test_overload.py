"""benchmarks/overload.py and its section: what is counted, by hand; what is said; and a run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.clients import WIRES, Receiver, Scene, ends_of, family, resident
from benchmarks.evidence import _plot
from benchmarks.evidence._section import Setting
from benchmarks.evidence.overload import SECTION
from benchmarks.fanout import Cores
from benchmarks.overload import LIMIT, Found, Looks, Terms, held_over_time, on_the_way, run
from benchmarks.servers import PEERS, Relay

MQTT = WIRES["mqtt"]


# -- what came ----------------------------------------------------------------------------------


def stream_of(numbers: list[int], payload: int = 40) -> tuple[bytes, int]:
    frames = [MQTT.frame(0, (b"%012d" % number).ljust(payload, b".")) for number in numbers]
    return b"".join(frames), len(frames[0])


@pytest.mark.parametrize("seed", range(5))
def test_numbers_are_found_however_the_stream_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    sent = sorted(chance.sample(range(1_000), 50))
    stream, size = stream_of(sent)
    receiver = Receiver(size, number=size - 40)
    while stream:
        cut = chance.randint(1, 200)
        receiver.took(stream[:cut], 0.0)
        stream = stream[cut:]
    assert (list(receiver.numbers), receiver.messages, receiver.strange) == (sent, 50, 0)


def test_what_comes_again_or_late_or_was_never_sent_is_strange() -> None:
    stream, size = stream_of([0, 1, 1, 3, 2, 4])
    receiver = Receiver(size, number=size - 40)
    receiver.took(stream, 0.0)
    assert (receiver.strange, receiver.messages) == (2, 6)
    receiver.took(b"x" * size, 0.0)
    assert (receiver.strange, receiver.messages) == (3, 7)
    assert list(receiver.numbers) == [0, 1, 1, 3, 2, 4]


@pytest.mark.parametrize("protocol", WIRES)
def test_the_number_is_where_the_payload_begins(protocol: str) -> None:
    wire = WIRES[protocol]
    payload = b"0" * 40
    size = wire.delivered(payload)
    delivered = {
        "mqtt": MQTT.frame(0, payload),
        "nats": b"MSG stuck.0 1 40\r\n" + payload + b"\r\n",
        "redis": b"*4\r\n$8\r\npmessage\r\n$7\r\nstuck/0\r\n$7\r\nstuck/0\r\n$40\r\n"
        + payload
        + b"\r\n",
    }[protocol]
    assert len(delivered) == size
    assert delivered[size - 40 - wire.after :].startswith(payload)


# -- what the kernel says -----------------------------------------------------------------------

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def line(here: int, there: int, state: str, out: int, came: int) -> str:
    return f"   0: 0100007F:{here:04X} 0100007F:{there:04X} {state} {out:08X}:{came:08X} 00:0 0\n"


def test_what_is_in_sockets_is_told_apart_by_whose_it_is() -> None:
    server, publisher, one, two, other = 1883, 50_000, 50_001, 50_002, 50_003
    table = HEAD + "".join(
        (
            line(server, 0, "0A", 0, 128),  # it listens
            line(server, publisher, "01", 9, 1_000),
            line(publisher, server, "01", 200, 9),
            line(server, one, "01", 30_000, 0),
            line(one, server, "01", 0, 4_000),
            line(other, 9_999, "01", 1, 1),  # of something else
        )
    )
    table6 = HEAD + line(server, two, "04", 70_000, 0)  # the server has closed it
    ends = ends_of([table, table6], server, publisher)
    assert (ends.to_send, ends.to_take, ends.coming) == (100_000, 4_000, 1_200)
    assert ends.open == {publisher, one}
    assert ends.total == 105_200


def test_the_memory_of_a_process_and_its_children() -> None:
    import os
    import subprocess
    import sys

    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()  # it has begun
            found = family(os.getpid())
            assert found[0] == os.getpid()
            assert child.pid in found
            assert resident(found) > resident([child.pid]) > 1
        finally:
            child.communicate(b"\n")
    assert child.pid not in family(os.getpid())
    assert resident([child.pid]) == 0


# -- what was held ------------------------------------------------------------------------------


def test_what_was_dropped_later_was_not_on_its_way() -> None:
    arrived = [0, 1, 2, 10, 11]
    assert on_the_way(arrived, 2, 10, cut=False) == 1  # 3 to 9 never came
    assert on_the_way(arrived, 3, 11, cut=False) == 1
    assert on_the_way(arrived, 5, 20, cut=False) == 0
    assert on_the_way(arrived, 2, 10, cut=True) == 8  # who knows


def test_what_is_held_is_what_is_neither_there_nor_in_the_kernel() -> None:
    looks = Looks(
        t=[0.1, 0.2, 0.3],
        mb=[1.0, 1.0, 1.0],
        published=[4, 8, 8],
        delivered=[[1, 1], [2, 2], [8, 2]],
        kernel=[(100, 50, 0), (0, 0, 100), (0, 0, 0)],
    )
    arrived = [list(range(8)), [0, 1]]
    held, own = held_over_time(looks, arrived, [None, 0.25], 100)
    # What the server has not read yet is to reach both; who is cut off has nothing on its way.
    assert held == [6, 12, 0]
    assert own == [450, 1_000, 0]


# -- a run --------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_relay_holds_its_limit_and_loses_nothing(tmp_path: Path) -> None:
    limit = 200_000
    relay = Relay(protocols=("mqtt",), options=(f"--limit-bytes={limit}",))
    terms = Terms(subscribers=3, payload=8_000, rate=5_000, taken=50, push=1.2, quiet=0.3)
    found = run(relay, "relay", terms, tmp_path)
    assert (found.ended, found.lost, found.strange, found.balanced) == ("", 0, 0, True)
    assert found.delivered == found.published * 3
    assert found.cut == [None] * 3
    assert found.owed is not None
    # The kernel's sockets are full by then: three subscribers take 1.2 MB/s of 40.
    assert limit / 2 < found.owed < 2 * limit
    assert found.held_back > 0.2
    assert len({len(column) for column in found.over_time.values()}) == 1


@pytest.mark.long
def test_who_takes_too_much_memory_is_killed(tmp_path: Path) -> None:
    relay = Relay(protocols=("mqtt",))
    found = run(relay, "relay", Terms(push=5.0, cap=-1.0), tmp_path)
    assert (found.ended, found.drain) == ("cap", None)
    assert found.pushed < 2


@pytest.mark.long
def test_every_server_found_can_be_overloaded(tmp_path: Path) -> None:
    servers = tuple(server for server in (Relay(), *PEERS) if server.missing() is None)
    said: list[str] = []
    setting = Setting(servers, Cores.choose(), said.append, 0.1)
    data = SECTION.measure(setting)
    assert {one["server"] for one in data["runs"]} == {server.name for server in servers}
    assert data["skipped"] == []
    for one in data["runs"]:
        assert one["strange"] == 0
        assert one["delivered"] > 0
    rendered = SECTION.render(data)
    with _plot.styled():
        figure = rendered.figures["overload"]()
    figure.savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


# -- what is said -------------------------------------------------------------------------------


def found(**values: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "server": "nats",
        "label": "nats",
        "version": "1",
        "idle": 12.0,
        "peak": 100.0,
        "published": 1_000,
        "offered": 40_000,
        "delivered": 9_000,
        "lost": 0,
        "strange": 0,
        "held": 100,
        "held_bytes": 5 << 20,
        "sockets": 1 << 20,
        "held_back": 0.1,
        "waited": 0.0,
        "generator": 0.2,
        "cut": [None] * 9,
        "drain": 0.5,
        "ended": "",
        "pushed": 8.0,
        "owed": None,
        "balanced": None,
        "log": (),
        "over_time": {"t": [0.1], "mb": [1.0], "published": [10.0]},
    }
    assert made.keys() >= values.keys()
    return attrs.asdict(Found(**(made | values)))


def data_of(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"terms": attrs.asdict(Terms()), "runs": list(runs), "skipped": []}


RELAY: dict[str, Any] = {
    "server": "relay",
    "label": "relay",
    "owed": LIMIT,
    "balanced": True,
    "held_bytes": LIMIT + 1_000,
    "held_back": 0.9,
}


def test_who_paid_is_said_by_what_was_found() -> None:
    text = SECTION.render(
        data_of(
            found(**RELAY),
            found(server="mosquitto", label="mosquitto", lost=3_000),
            found(server="redis", label="redis", lost=70, cut=[2.5, 1.5, *[None] * 7], log=("a",)),
            found(server="broadcaster", label="broadcaster", peak=250.0),
            found(server="amqtt", label="amqtt", ended="cap", drain=None, lost=9, generator=0.95),
        )
    ).text
    assert "held back**, by more than half, with the relay (90%).\n" in text
    assert "cut off** by Redis (2 of 9).\n" in text
    assert "by mosquitto (3,000 deliveries of 12,000).\n" in text
    assert "by broadcaster (+250 MB) and amqtt (+100 MB).\n" in text
    assert "**Killed by us**, for its memory, was amqtt after 8 s." in text
    assert "perhaps the limit**, not the server, with amqtt (95% of its core)." in text
    assert "| 2 of 9, from 1.5 s on |" in text
    assert "Out of order" not in text
    assert "- Redis: `a`" in text


def test_who_cut_the_publisher_off_has_not_kept_everything() -> None:
    shown = SECTION.render(data_of(found(ended="closed", drain=None)))
    assert "**The publisher was cut off** by NATS." in shown.text
    assert "Everything was kept" not in shown.text
    assert shown.beside["who pays for an overload"] == {"nats": "publisher cut off"}


def test_what_has_to_hold_of_the_relay() -> None:
    def words(**values: Any) -> list[str]:
        claims = SECTION.render(data_of(found(**(RELAY | values)))).claims
        return [claim.word for claim in claims]

    assert words() == ["held"] * 4
    assert words(owed=2 * LIMIT) == ["MISSED", "held", "held", "held"]
    assert words(held_bytes=2 * LIMIT) == ["held", "MISSED", "held", "held"]
    assert words(lost=1) == ["held", "held", "MISSED", "held"]
    assert words(balanced=False) == ["held", "held", "held", "MISSED"]
    nobody = SECTION.render(data_of(found()))
    assert {claim.word for claim in nobody.claims} == {"not measured"}
    assert nobody.beside["memory under overload"] == {"nats": "+100 MB"}


def test_the_relay_stands_once_beside_others() -> None:
    more = RELAY | {"label": "relay, no limit", "peak": 900.0}
    beside = SECTION.render(data_of(found(**RELAY), found(**more))).beside
    assert beside["who pays for an overload"] == {"relay": "publisher held back (90%)"}


def test_a_scene_that_finds_no_server_says_so() -> None:
    with pytest.raises(OSError, match="refused"):
        Scene(MQTT, 1, names=["one"], payload=100, rate=10)
