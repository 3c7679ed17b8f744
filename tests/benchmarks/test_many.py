"""Many publishers: what the generator counts, of real servers and of ones that cheat; tables."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks import many
from benchmarks.evidence import many as section
from benchmarks.fanout import Cores
from benchmarks.loadgen import ManyLoad, build, run_many
from benchmarks.many import ROWS, Results, Row, Sample, Setting
from benchmarks.servers import (
    DURABLE,
    HIVEMQ,
    MOSQUITTO,
    NATS,
    TODAY,
    AnyServer,
    CommandServer,
    Relay,
    Running,
    Server,
)
from tests.benchmarks.frames import frame_end

KEEPING = DURABLE[0]
"""mosquitto, which with the options of the other section drops what it has queued for a session
beyond a thousand messages, those of QoS 1, too."""

LOADGEN = Path(__file__).parents[2] / "benchmarks" / "loadgen.py"


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Compile the generator once, where there is a compiler."""
    if shutil.which("cc") is None:
        pytest.skip("the load generator is a C program, and there is no cc here to compile it")
    build()


# ---- Real servers --------------------------------------------------------------------------------


@contextlib.contextmanager
def running(server: AnyServer, tmp_path: Path) -> Generator[Running]:
    """Start a server, or skip the test."""
    if (missing := server.missing()) is not None:
        pytest.skip(missing)
    with server.running(tmp_path, None) as found:
        yield found


# Any two of kind, QoS and pace come together.
@pytest.mark.parametrize(
    ("kind", "qos", "pace"),
    [
        pytest.param("pairs", 0, "rate", marks=pytest.mark.long),
        ("pairs", 1, "window"),
        ("fan-in", 0, "window"),
        pytest.param("fan-in", 1, "rate", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("server", [Relay(), KEEPING, NATS], ids=lambda server: server.name)
def test_everything_arrives_once_from_a_real_server(
    server: AnyServer, kind: str, qos: int, pace: str, tmp_path: Path
) -> None:
    protocol = many.protocol_for(Row(kind, 20, None, qos), server)
    if protocol is None:
        assert server is NATS
        return
    load = ManyLoad(
        protocol, kind, 20, qos, 600.0 if pace == "rate" else None, window=3, seconds=1.0,
        warmup=0.1, sleep=True, drain=20,
    )  # fmt: skip
    with running(server, tmp_path) as found_server:
        found = run_many(load, port=found_server.ports[protocol], pid=found_server.pid)
    assert found["whole"], found
    if pace == "rate":
        assert found["latency"]["count"] == 600, "what was due in the measured time"
        assert found["generator_late"]["count"] == 600
    if qos:
        # What is under way when measuring begins may count in one of them only.
        counts = (found["confirmation"]["count"], found["latency"]["count"])
        assert abs(counts[0] - counts[1]) <= (0 if pace == "rate" else 60)
    else:
        assert found["confirmation"] is None
    assert found["subscribers"] == (20 if kind == "pairs" else 1)
    assert 0 < found["cpu_seconds_per_million"] < 100_000


@pytest.mark.parametrize("server", [Relay(), MOSQUITTO], ids=lambda server: server.name)
def test_what_is_published_while_a_session_is_away_is_fetched(
    server: AnyServer, tmp_path: Path
) -> None:
    with running(server, tmp_path) as found_server:
        load = ManyLoad("mqtt", "fan-in", 5, 1, 1000.0, away=True, seconds=0.2, warmup=0, drain=20)
        found = run_many(load, port=found_server.ports["mqtt"], pid=found_server.pid)
    assert found["whole"], found
    assert found["delivered"] == found["confirmed"] == 200
    assert found["latency"] is None, "nobody was there"


# ---- Servers that cheat --------------------------------------------------------------------------


class Broker:
    """As much of an MQTT server with QoS 1 as the generator needs, with a fault of our choice.

    ``deliver(topic, number, frame)`` says what a topic's subscribers get in place of the frame, and
    ``acknowledge(topic, number)`` how often its publisher is acknowledged, and for which
    identifiers; ``number`` counts the messages of a topic.
    """

    def __init__(
        self,
        deliver: Callable[[str, int, bytes], list[tuple[str, bytes]]],
        acknowledge: Callable[[str, int], list[int]],
    ) -> None:
        self.deliver = deliver
        self.acknowledge = acknowledge
        self.subscribers: dict[str, trio.SocketStream] = {}
        self.sending = trio.Lock()
        self.published: dict[str, int] = {}

    async def handle(self, stream: trio.SocketStream) -> None:
        pending = b""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in stream:
                pending += data
                while (end := frame_end(pending)) is not None:
                    frame, pending = pending[:end], pending[end:]
                    await self.take(stream, frame)

    async def take(self, stream: trio.SocketStream, frame: bytes) -> None:
        body = frame[3:] if frame[1] & 0x80 else frame[2:]
        match frame[0]:
            case 0x10:
                await stream.send_all(b"\x20\x02\x00\x00")
            case 0x82:
                topic = body[4 : 4 + body[3]].decode()
                self.subscribers[topic] = stream
                await stream.send_all(b"\x90\x03" + body[:2] + b"\x01")
            case 0x32:
                topic = body[2 : 2 + body[1]].decode()
                number = self.published.get(topic, 0)
                self.published[topic] = number + 1
                for to, answer in self.deliver(topic, number, frame):
                    async with self.sending:
                        await self.subscribers[to].send_all(answer)
                for acknowledged in self.acknowledge(topic, number):
                    identifier = acknowledged + 1
                    await stream.send_all(b"\x40\x02" + identifier.to_bytes(2))
            case 0x40:
                pass
            case other:
                raise AssertionError(f"an unexpected packet: {other:#x}")


def honest(topic: str, _number: int, frame: bytes) -> list[tuple[str, bytes]]:
    """Deliver it."""
    return [(topic, frame)]


def each(_topic: str, number: int) -> list[int]:
    """Acknowledge it."""
    return [number]


FAULTS = ("lost", "surplus", "reordered", "altered", "unconfirmed", "unasked")


async def against(
    deliver: Callable[[str, int, bytes], list[tuple[str, bytes]]] = honest,
    acknowledge: Callable[[str, int], list[int]] = each,
) -> tuple[int, dict[str, int]]:
    """Send 90 messages through three pairs; return the exit status and what is wrong."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port: int = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, Broker(deliver, acknowledge).handle, [listener])
        load = ManyLoad("mqtt", "pairs", 3, 1, rate=600, seconds=0.15, warmup=0, drain=1)
        with trio.fail_after(60):
            done = await trio.run_process(
                [sys.executable, str(LOADGEN), f"--port={port}", *load.arguments()],
                capture_stdout=True,
                check=False,
            )
        nursery.cancel_scope.cancel()
    found = json.loads(done.stdout)
    assert found["published"] == 90
    assert found["whole"] is (done.returncode == 0)
    return done.returncode, {name: found[name] for name in FAULTS if found[name]}


async def test_an_honest_fake_is_found_honest() -> None:
    assert await against() == (0, {})


async def test_a_delivery_that_does_not_come_is_lost() -> None:
    def drop(topic: str, number: int, frame: bytes) -> list[tuple[str, bytes]]:
        return [] if (topic, number) == ("bench/1", 7) else [(topic, frame)]

    assert await against(drop) == (1, {"lost": 1})


async def test_a_delivery_that_comes_twice_is_a_surplus_with_dup_or_without() -> None:
    def repeat(topic: str, number: int, frame: bytes) -> list[tuple[str, bytes]]:
        return [(topic, frame)] * (2 if (topic, number) == ("bench/2", 29) else 1)

    def again(topic: str, number: int, frame: bytes) -> list[tuple[str, bytes]]:
        dup = (topic, b"\x3a" + frame[1:])
        return [(topic, frame), dup] if (topic, number) == ("bench/0", 3) else [(topic, frame)]

    assert await against(repeat) == (1, {"surplus": 1, "reordered": 1})
    assert await against(again) == (1, {"surplus": 1})


async def test_a_delivery_to_the_wrong_subscriber_and_another_content_are_seen() -> None:
    def stray(topic: str, number: int, frame: bytes) -> list[tuple[str, bytes]]:
        return [("bench/0" if (topic, number) == ("bench/1", 7) else topic, frame)]

    def alter(topic: str, number: int, frame: bytes) -> list[tuple[str, bytes]]:
        changed = frame[:-1] + bytes([frame[-1] ^ 1])
        return [(topic, changed if (topic, number) == ("bench/1", 7) else frame)]

    assert await against(stray) == (1, {"altered": 1, "lost": 1})
    assert await against(alter) == (1, {"altered": 1, "lost": 1})


async def test_a_swap_is_reordering() -> None:
    held: list[bytes] = []

    def swap(topic: str, number: int, frame: bytes) -> list[tuple[str, bytes]]:
        if (topic, number) == ("bench/1", 7):
            held.append(frame)
            return []
        swapped = [(topic, frame), (topic, held.pop())] if held and topic == "bench/1" else None
        return swapped or [(topic, frame)]

    assert await against(swap) == (1, {"reordered": 1})


async def test_acknowledgements_are_counted_whatever_their_order() -> None:
    def keep(topic: str, number: int) -> list[int]:
        return [] if (topic, number) == ("bench/1", 29) else [number]

    def twice(topic: str, number: int) -> list[int]:
        return [number] * (2 if (topic, number) == ("bench/1", 7) else 1)

    def late(topic: str, number: int) -> list[int]:
        if topic != "bench/1":
            return [number]
        return [] if number == 7 else [8, 7] if number == 8 else [number]

    def unknown(topic: str, number: int) -> list[int]:
        return [number, 5000] if (topic, number) == ("bench/1", 7) else [number]

    assert await against(acknowledge=keep) == (1, {"unconfirmed": 1})
    assert await against(acknowledge=twice) == (1, {"unasked": 1})
    assert await against(acknowledge=late) == (0, {})
    assert await against(acknowledge=unknown) == (1, {"unasked": 1})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pairs=2", "--fan-in=2"], "one of them"),
        (["--pairs=2", "--protocol=syndicate"], "not with syndicate"),
        (["--pairs=2", "--protocol=nats", "--qos=1"], "with mqtt only"),
        (["--pairs=2", "--payload=50:60"], "one size"),
        (["--pairs=2", "--verify"], "it always does"),
        (["--fan-in=2", "--away"], "--away wants --qos 1"),
        (["--qos=1"], "want --pairs or --fan-in"),
    ],
)
def test_what_does_not_go_together_is_refused(options: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(LOADGEN), "--protocol=mqtt", "--port=1", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr


# ---- Rows, and what is made of them ------------------------------------------------------------


def found_of(cpu: float, p99: float = 0.001, **more: Any) -> dict[str, Any]:
    """Return as much of a measurement as the tables want."""
    quantiles = {"p50": p99 / 2, "p99": p99}
    return {
        "cpu_seconds_per_million": cpu, "latency": quantiles, "confirmation": None,
        "deliveries_per_second": 2000.0, "delivered": 10, "whole": True, "server_share": 0.1,
        "generator_share": 0.1, "generator_queued": 0.0, "server_queued": 0.01,
        "generator_late": quantiles, "rss_mb": 9.0,
    } | more  # fmt: skip


def test_rows_have_names_of_their_own_and_say_what_they_are() -> None:
    assert all(name == row.name for name, row in ROWS.items())
    assert {2 * row.publishers for row in ROWS.values() if row.kind == "pairs"} >= {10, 5000}
    assert ROWS["pairs-1000-qos1"].meaning == "1,000 pairs, QoS 1, 8,000/s"
    assert ROWS["pairs-100-dense"].meaning == "100 pairs, QoS 0, 4 in flight each"
    assert set(section.CHOSEN) | set(section.FEW) <= set(ROWS)


def test_nobody_is_always_first_and_who_has_no_qos_1_is_left_out() -> None:
    rows = [ROWS["pairs-100"], ROWS["pairs-100-qos1"]]
    servers = (Relay(), MOSQUITTO, NATS)
    first, second = (
        [(row.qos, server.name) for row, server in many.steps(rows, servers, number)]
        for number in (1, 2)
    )
    assert [name for qos, name in first if qos == 0] == ["mosquitto", "nats", "relay"]
    assert [name for qos, name in second if qos == 0] == ["nats", "relay", "mosquitto"]
    assert all(name != "nats" for qos, name in first + second if qos == 1)
    assert list(many.steps(rows, (), 1)) == []


def test_what_cannot_be_started_is_noted_and_the_rest_is_measured(tmp_path: Path) -> None:
    absent = CommandServer(f"{tmp_path}/no-such-program {{port}}", name="absent")
    said: list[str] = []
    row = Row("pairs", 3, 300.0)
    setting = Setting(Cores.choose(), 1, 0.2, sleep=True)
    results = many.measure_all([row], [absent, Relay()], setting, said.append)
    assert [sample.server for sample in results.samples] == ["relay"]
    assert results.samples[0].found["whole"]
    assert len(results.failures) == 1
    assert "cannot run" in results.failures[0]
    assert results.failures[0].startswith("absent, pass 1: ")
    assert len(said) == 1


def test_ratios_are_taken_within_a_pass() -> None:
    results = Results(
        [
            Sample(1, "pairs-100", "relay", found_of(20, 0.002)),
            Sample(1, "pairs-100", "mosquitto", found_of(10, 0.001)),
            Sample(2, "pairs-100", "relay", found_of(90)),
            Sample(2, "pairs-100", "mosquitto", found_of(30)),
            Sample(3, "pairs-100", "relay", found_of(7)),
        ]
    )
    assert results.ratios("pairs-100", "mosquitto", many.cpu) == [2.0, 3.0]
    assert results.ratios("pairs-100", "mosquitto", many.p99) == [2.0, 1.0]
    table = many.results_table(results, [ROWS["pairs-100"]], ["relay", "mosquitto", "nats"])
    assert (
        "| 100 pairs, QoS 0, 2,000/s | mosquitto | 20.0 (10.0-30.0) | 2.50 (2.00-3.00) |" in table
    )
    assert "nats" not in table


def rendered(**cpu_of: float) -> Any:
    """Return the section with one pass of two rows, where each server has so much CPU."""
    rows = ("pairs-100", "pairs-100-dense", "pairs-100-qos1")
    samples = [
        {"number": 1, "row": row, "server": server} | section.brief(found_of(cpu))
        for row in rows
        for server, cpu in cpu_of.items()
        if (server, row) != ("nats", "pairs-100-qos1")
    ]
    fields = {name: {"kind": r.kind, "publishers": r.publishers, "rate": r.rate, "qos": r.qos,
                     "window": r.window} for name in rows for r in [ROWS[name]]}  # fmt: skip
    return section.render(
        {"passes": 1, "seconds": 1.0, "rows": fields, "samples": samples, "skipped": []}
    )


def test_the_page_holds_the_relay_to_its_peers() -> None:
    page = rendered(relay=30.0, mosquitto=21.0, nats=29.0, mochi=31.0)
    words = sorted(claim.word for claim in page.claims)
    assert words == ["MISSED", "MISSED", "MISSED", *["held"] * 4], page.claims
    missed = [claim.text for claim in page.claims if claim.word == "MISSED"]
    assert all("QoS 0" in text for text in missed), "30 / 21 is within 1.5, but not within 1.2"
    assert any("below NATS's" in text for text in missed)
    assert "highest: 100 pairs, QoS 0, 2,000/s" in missed[0]
    assert "| 100 pairs, QoS 1, 2,000/s | 30.0 | 21.0 | - | 31.0 |" in page.text
    assert "| 100 pairs, QoS 0, 2,000/s | 1.43 | 1.03 | 0.97 |" in page.text
    assert "All 110 measured deliveries arrived" in page.text
    assert page.beside == {
        "CPU s per M deliveries, 100 pairs at 2,000/s": {
            "relay": "30", "mosquitto": "21", "nats": "29", "mochi": "31",
        }
    }  # fmt: skip
    assert page.figures["many"]().axes


def test_without_peers_nothing_is_held() -> None:
    page = rendered(relay=30.0)
    assert {claim.word for claim in page.claims} == {"not measured"}
    assert all("highest" not in claim.text for claim in page.claims)


# ---- The servers of today ----------------------------------------------------------------------


def test_a_server_that_was_not_fetched_is_left_out_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = Server(
        "hivemq", "mqtt", "true", HIVEMQ.arguments, "", HIVEMQ.windows, remedy=HIVEMQ.remedy,
        needs=tmp_path / "hivemq",
    )  # fmt: skip
    assert absent.missing() == (
        "hivemq is left out: there is no hivemq (python benchmarks/peers/fetch.py hivemq)."
    )


def test_a_benchmark_runs_before_others_while_it_measures() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if os.geteuid():
        with pytest.raises(PermissionError), many.before_others():
            pass
    else:
        with many.before_others(3):
            assert os.getpriority(os.PRIO_PROCESS, 0) == before - 3
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


FAST = {"mosquitto", "mosquitto-new", "nats", "mochi", "rumqttd", "bare"}


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(server, id=server.name, marks=() if server.name in FAST else pytest.mark.long)
        for server in TODAY
    ],
)
def test_a_server_of_today_takes_many_publishers(server: AnyServer, tmp_path: Path) -> None:
    with running(server, tmp_path) as found_server:
        ((protocol, port),) = found_server.ports.items()
        load = ManyLoad(protocol, "pairs", 5, rate=500, seconds=0.2, warmup=0, drain=20)
        found = run_many(load, port=port, pid=found_server.pid)
    assert found["whole"], found
    assert found["rss_mb"] > 1
    assert any(character.isdigit() for character in server.version())
