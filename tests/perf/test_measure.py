"""Real runs: the generator's processes, and a relay in this one."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import attrs
import pytest
import trio
from prometheus_client import generate_latest

pytest.importorskip("hdrh")

from clearfunds._cli import run as command
from clearfunds.perf import (
    PerfError,
    Profile,
    Result,
    Sample,
    Scenario,
    Sizes,
    exposed,
    measure,
    parse_stalls,
    summary,
    write,
)
from clearfunds.perf._header import HEADER_BYTES
from clearfunds.perf._result import LATE_SECONDS
from clearfunds.perf._wire import Publications
from tests.transports.peers import running, until


async def run(**more: Any) -> tuple[Result, list[Sample]]:
    """Measure a relay of this process, and see that it owes nothing afterwards."""
    limits = {
        name: more.pop(name) for name in ("limit_items", "limit_bytes", "profile") if name in more
    }
    seen: list[Sample] = []
    async with running(**limits) as relay:
        uri = f"mqtt://127.0.0.1:{relay.port}"
        with trio.fail_after(60):
            result = await measure(Scenario(uri=uri, **more), seen.append)
        relay.audit()
    assert list(result.samples) == seen
    return result, seen


@pytest.mark.parametrize(
    "qos", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)]
)
async def test_everything_arrives_and_is_counted(qos: int) -> None:
    result, seen = await run(
        publishers=3, subscribers=4, topics=2, topic="t/{publisher}/{topic}", qos=qos, seconds=1.2,
        rate=Profile.parse("200:0.3,300:0.3"), size=Sizes.parse("24,100,2000"), processes=2,
    )  # fmt: skip
    assert result.processes == 2
    assert result.published == 3 * 300 == result.scenario.due(1.2)
    assert [each.received for each in result.subscribers] == [900] * 4
    assert (result.received, result.expected, result.missing) == (3600, 3600, 0)
    assert [each.again + each.foreign + each.losses for each in result.subscribers] == [0] * 4
    assert len(result.latencies()) == 3600
    assert sum(each.confirmed for each in result.publishers) == (900 if qos else 0)
    assert len(result.confirms) == (900 if qos else 0)
    seconds = [sample.at for sample in seen]
    assert seconds == sorted(seconds)
    assert sum(sample.seconds for sample in seen) == pytest.approx(max(seconds))
    # The last of them is what there is after the last whole second: nothing is left out.
    assert sum(sample.received * sample.seconds for sample in seen) == pytest.approx(3600)
    assert sum(sample.published * sample.seconds for sample in seen) == pytest.approx(900)
    assert sum(len(sample.latencies) for sample in seen) == 3600


async def test_as_fast_as_it_can() -> None:
    result, _ = await run(subscribers=2, seconds=1.0, qos=1, in_flight=50)
    assert result.missing == 0
    assert result.published > 500
    assert result.expected == 2 * result.published == result.received
    assert sum(each.unconfirmed for each in result.publishers) == 0


async def test_filters_say_who_is_to_get_what() -> None:
    result, _ = await run(
        publishers=3, subscribers=2, filter="perf/{subscriber}", rate=Profile.parse("50"),
        seconds=1.0,
    )  # fmt: skip
    assert [each.expected for each in result.subscribers] == [50, 50]
    assert [each.received for each in result.subscribers] == [50, 50]


async def test_publishers_and_subscribers_apart() -> None:
    results: dict[str, Result] = {}
    seen: list[Sample] = []
    stop = trio.Event()

    def received(sample: Sample) -> None:
        seen.append(sample)
        if sum(len(each.latencies) for each in seen) >= 50:
            stop.set()

    async def to(scenario: Scenario) -> None:
        results["to"] = await measure(scenario, received, stop)

    async with running() as relay:
        here = Scenario(
            uri=f"mqtt://127.0.0.1:{relay.port}", clock="wall", rate=Profile.parse("50"),
            filter="perf/#", drain=1.0, seconds=1.0,
        )  # fmt: skip
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(to, attrs.evolve(here, publishers=0, seconds=99.0))
                await until(lambda: relay.relay.dataspace.statistics().subscriptions)
                results["from"] = await measure(attrs.evolve(here, subscribers=0))
        relay.audit()
    assert results["from"].published == 50 == results["to"].received
    assert (results["to"].expected, results["to"].missing) == (0, 0)
    assert results["to"].subscribers[0].foreign == 0
    said = "\n".join(summary(results["to"]))
    assert "received              50, " in said
    assert results["to"].interrupted
    assert "note: it was interrupted after" in said


async def test_without_publishers_it_is_over_when_nothing_comes_any_more() -> None:
    """After `seconds`; a second after the last message, and after `drain` at the latest."""
    async with running() as relay:
        here = Scenario(uri=f"mqtt://127.0.0.1:{relay.port}", publishers=0, seconds=0.2)
        with trio.fail_after(60):
            quiet = await measure(here)
            soon = await measure(attrs.evolve(here, drain=0.1))
    assert (quiet.interrupted, soon.interrupted) == (False, False)
    assert quiet.samples[-1].at >= 1.0
    assert [len(each.samples) for each in (quiet, soon)] == [1, 0]


async def test_a_subscriber_that_stalls_is_told_from_the_others() -> None:
    result, _ = await run(
        subscribers=3, slow=1, slow_stalls=parse_stalls("0.5:1.5"), rate=Profile.parse("200"),
        seconds=2.5,
    )  # fmt: skip
    slow, *others = result.subscribers
    assert slow.slow
    assert result.missing == 0
    assert slow.longest_gap >= 1.4
    most = slow.latencies.most()
    assert most is not None
    assert most >= 1.3  # of what was due when the stall began
    assert max(each.longest_gap for each in others) < slow.longest_gap
    assert len(result.latencies(slow=True)) == 500
    assert len(result.latencies(slow=False)) == 1000


async def test_what_waits_for_a_server_counts_from_when_it_was_due() -> None:
    # One that reads ten a second holds up who publishes a hundred: nothing is dropped, and what
    # could not be sent counts as late as it is.
    result, seen = await run(
        delay=0.1, rate=Profile.parse("100"), size=Sizes.parse("200000"), seconds=2.0, drain=1.0,
        receive_buffer=4096, limit_items=2, profile="lossless",
    )  # fmt: skip
    assert result.published < 200
    assert result.stalled > 0.3
    longest = result.stalls.most()
    assert longest is not None
    assert longest > 0.05
    assert max(sample.stalled for sample in seen) > 0.2
    late = result.latencies().most()
    assert late is not None
    assert late > 0.5
    own_fault = result.late.percentile(99)
    assert own_fault is None or own_fault < late
    assert result.missing == 0 or result.seconds >= 3.0


async def test_clients_that_are_cut_off_come_back() -> None:
    async with running() as relay:
        uri = f"mqtt://127.0.0.1:{relay.port}"
        scenario = Scenario(
            uri=uri, rate=Profile.parse("100"), seconds=1.5, reconnect=0.1, drain=0.2
        )

        async def cut_off() -> None:
            await until(lambda: relay.relay.dataspace.statistics().deliveries > 50)
            for session in list(relay.relay.mqtt.open):
                session.cut("for a test")

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut_off)
                result = await measure(scenario)
        relay.audit()
    (publisher,), (subscriber,) = result.publishers, result.subscribers
    assert (publisher.losses, subscriber.losses) == (1, 1)
    assert 0.4 <= subscriber.lost[0]["at"] < 1.5
    # It went on; what came in between it did not get.
    assert result.received > 60
    assert result.published >= result.received


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PerfError, match="refused; is a server listening there") as caught:
            await refused(port)
    assert f"127.0.0.1:{port}" in str(caught.value)


async def refused(port: int) -> None:
    try:
        with trio.fail_after(60):
            await measure(Scenario(uri=f"mqtt://127.0.0.1:{port}", seconds=1.0))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def test_a_server_that_does_not_speak_mqtt() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(serve, answer, 0)
        with pytest.raises(PerfError, match="perf-"):
            await refused(listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_cancelled_no_process_is_left() -> None:
    async with running() as relay:
        scenario = Scenario(uri=f"mqtt://127.0.0.1:{relay.port}", rate=Profile.parse("10"))
        with trio.CancelScope() as scope:
            await measure(scenario, lambda sample: scope.cancel())
        assert scope.cancelled_caught
        await until(lambda: not relay.relay.mqtt.open)
    # Of this process: sessions of their own, and so not among those of its terminal.
    ps = ["ps", "-o", "args=", "--ppid", str(os.getpid())]
    left = await trio.run_process(ps, capture_stdout=True)
    assert b"perf._worker" not in left.stdout


class Cells(HTMLParser):
    """What stands in the cells of a page, and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "line":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


async def test_what_is_written(tmp_path: Path) -> None:
    name = "<b>slow & steady</b>"
    result, seen = await run(
        name=name, subscribers=2, slow=1, slow_delay=0.001, rate=Profile.parse("100"), seconds=2.0,
        qos=1,
    )  # fmt: skip
    paths = [tmp_path / each for each in ("seconds.csv", "all.json", "page.html")]
    made = write([result, result], csv_file=paths[0], json_file=paths[1], html_file=paths[2])
    assert made == paths
    rows = list(csv.DictReader(paths[0].read_text().splitlines()))
    assert len(rows) == 2 * len(seen)
    assert {row["scenario"] for row in rows} == {name}
    assert float(rows[0]["expected_published_per_s"]) == pytest.approx(100, abs=30)
    whole = json.loads(paths[1].read_text())
    assert [each["missing"] for each in whole["runs"][0]["subscribers"]] == [0, 0]
    assert whole["runs"][0]["latency_seconds"]["count"] == 400
    page = paths[2].read_text()
    cells = Cells()
    cells.feed(page)
    cells.close()
    assert cells.open == []
    assert cells.cells.count("200") >= 4  # received, and of how many
    assert "<b>slow" not in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere
    said = "\n".join(summary(result))
    assert "400 of 400, all of them" in said
    assert "subscriber 0 (slow): 200 of 200" in said
    with pytest.raises(PerfError, match="cannot write"):
        write([result], html_file=tmp_path / "nowhere" / "page.html")


def page(url: str) -> str:
    with urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


async def test_figures_for_prometheus_stand_beside_what_was_to_be() -> None:
    with exposed("127.0.0.1", 0) as shown:
        port = shown.port
        async with running() as relay:
            uri = f"mqtt://127.0.0.1:{relay.port}"
            scenario = Scenario(name="told", uri=uri, rate=Profile.parse("40"), seconds=1.0)
            await measure(scenario, lambda sample: shown.show("told", sample))
        told = await trio.to_thread.run_sync(page, f"http://127.0.0.1:{port}/metrics")
        with pytest.raises(PerfError, match="cannot be served"), exposed("127.0.0.1", port):
            pass
    assert 'clearfunds_perf_samples_total{scenario="told"}' in told
    for name in ("published_rate", "expected_published_rate", "received_rate"):
        assert f'clearfunds_perf_{name}{{scenario="told"}}' in told
    assert 'clearfunds_perf_latency_seconds{quantile="0.99",scenario="told"}' in told


def test_the_generator_says_when_it_is_the_bottleneck() -> None:
    result = trio.run(_small)
    late = result.late.percentile(99)
    assert late is not None
    assert result.doubts() == [] or late > LATE_SECONDS
    result.late.add([1_000_000] * 1000)
    assert any("sent more than" in each for each in result.doubts())


async def _small() -> Result:
    result, _ = await run(rate=Profile.parse("20"), seconds=1.0)
    return result


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--rate", "fast"], 2, "is not RATE:SECONDS"),
        (["--uri", "tcp://x"], 2, "write mqtt://HOST:PORT"),
        (["--prefetch", "10"], 2, "has no effect with QoS 0"),
        (["--mqtt", "4"], 2, "3.1.1"),
        (["--scenario", "FILE"], 2, "a run for each of its values"),
        (["--ramp", "inf"], 2, "ramp is inf"),
        (["--receive-buffer", "99999999999"], 2, "receive_buffer of 99999999999"),
        (["--rate", "50", "--rate", "90"], 2, "more than once"),
    ],
)
def test_a_mistake_is_one_line(
    options: list[str],
    status: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "load.toml"
    file.write_text("[[scenario]]\nsubscribers = []\n")
    assert command(["perf", *(each.replace("FILE", str(file)) for each in options)]) == status
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("clearfunds perf: ")
    assert said in told


def test_an_address_that_is_given_is_that_of_all_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it is the one that is meant when none is."""
    file = tmp_path / "load.toml"
    file.write_text('[[scenario]]\nuri = "mqtt://127.0.0.1:1"\n')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"mqtt://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clearfunds._cli._perf.DEFAULTS", Scenario(uri=uri))
            assert command(["perf", "--scenario", str(file), "--uri", uri]) == 1
    assert uri.removeprefix("mqtt://") in capsys.readouterr().err


def test_the_command() -> None:
    away = subprocess.run(
        (sys.executable, "-m", "clearfunds", "perf", "--uri", "mqtt://127.0.0.1:1"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert away.returncode == 1
    assert len(away.stderr.splitlines()) == 1
    assert "is a server listening there?" in away.stderr


async def interrupted(
    port: int, folder: Path, lines: int, *options: str
) -> tuple[bytes, dict[str, Any]]:
    """Run the command, and interrupt it after so many lines; return what it said, and its JSON."""
    file = folder / "all.json"
    argv = [sys.executable, "-m", "clearfunds", "perf", "--uri", f"mqtt://127.0.0.1:{port}"]
    process = await trio.lowlevel.open_process(
        [*argv, "--json", str(file), *options], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said = b""
    with trio.fail_after(60):
        while said.count(b"\n") < lines:  # the heading, and seconds
            said += await process.stdout.receive_some()
        process.send_signal(signal.SIGINT)
        async for some in process.stdout:
            said += some
        assert await process.wait() == 130
    await process.stdout.aclose()
    (one,) = json.loads(file.read_text())["runs"]
    return said, one


async def test_interrupted_it_says_what_there_was_until_then(tmp_path: Path) -> None:
    async with running() as relay:
        said, one = await interrupted(relay.port, tmp_path, 2, "--rate=50", "--seconds=60")
    assert b"never came" in said or b"all of them" in said
    assert b"note: it was interrupted after" in said
    assert one["interrupted"]
    assert 0 < one["received"] <= one["published"] <= 50 * one["seconds"] + 1 < 3000
    assert one["missing"] == one["published"] - one["received"]


async def test_what_was_due_and_never_sent_is_told() -> None:
    """A server that goes away must not look perfect to who counts only what was sent."""
    with trio.fail_after(60):
        async with running() as relay, trio.open_nursery() as nursery:
            uri = f"mqtt://127.0.0.1:{relay.port}"
            scenario = Scenario(
                uri=uri, rate=Profile.parse("100"), seconds=2.0, drain=0.2, reconnect=None
            )

            async def cut_off() -> None:
                await until(lambda: relay.relay.dataspace.statistics().deliveries > 50)
                for session in list(relay.relay.mqtt.open):
                    session.cut("for a test")

            nursery.start_soon(cut_off)
            result = await measure(scenario)
            relay.audit()
    (publisher,), (subscriber,) = result.publishers, result.subscribers
    assert result.due == 200
    assert 50 <= result.published <= 190
    assert result.unsent == result.due - result.published - publisher.uncertain
    assert result.as_json()["never_published"] == result.unsent
    # What it could not send for want of a connection counts as such, to the end.
    silence = 2.0 - publisher.sent_at
    assert silence > 0.05
    assert publisher.stalled == pytest.approx(silence, abs=0.05)
    assert subscriber.longest_gap >= 0.9 * silence
    lines = list(summary(result))
    assert f"{result.published:,} of 200 that were due" in lines[0]
    assert any(f"{result.unsent:,} messages that were due were never" in line for line in lines)
    # One subscriber alone has a line, too, where there is something to say of it.
    assert any("cut off once" in line for line in lines)


async def test_two_loads_on_the_same_topics_are_told_apart() -> None:
    found: dict[str, Result] = {}
    async with running() as relay:
        uri = f"mqtt://127.0.0.1:{relay.port}"

        async def one(name: str, rate: str) -> None:
            scenario = Scenario(uri=uri, rate=Profile.parse(rate), seconds=1.5)
            found[name] = await measure(scenario)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, "slow", "40")
                nursery.start_soon(one, "fast", "80")
        relay.audit()
    for name, count in (("slow", 60), ("fast", 120)):
        (subscriber,) = found[name].subscribers
        assert (subscriber.received, subscriber.expected) == (count, count)
        assert subscriber.again == 0
        assert subscriber.foreign > 0
        assert any("not of this run" in doubt for doubt in found[name].doubts())


async def test_the_window_is_looked_at_behind_a_subscriber_that_takes_its_time() -> None:
    async with trio.open_nursery() as nursery:

        async def flood(stream: trio.SocketStream) -> None:
            """Let them in, and pay no heed to the window of who subscribes."""
            said = b""
            with suppress(trio.BrokenResourceError):
                while not said.startswith(b"\x82"):
                    said = await stream.receive_some()
                    if said.startswith(b"\x10"):
                        await stream.send_all(b"\x20\x03\x00\x00\x00")
                await stream.send_all(b"\x90\x04" + said[2:4] + b"\x00\x01")
                some = Publications(["perf/0"], 1, properties=True)
                filler = bytes(HEADER_BYTES)
                await stream.send_all(b"".join(some.frame(0, n, filler, b"") for n in range(1, 41)))
                while await stream.receive_some():
                    pass

        serve = partial(trio.serve_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(serve, flood, 0)
        uri = f"mqtt://127.0.0.1:{listener.socket.getsockname()[1]}"
        scenario = Scenario(
            uri=uri, publishers=0, subscriber_qos=1, prefetch=10, delay=0.02, filter="#",
            seconds=0.5, drain=0.0,
        )  # fmt: skip
        with trio.fail_after(60):
            result = await measure(scenario)
        nursery.cancel_scope.cancel()
    (subscriber,) = result.subscribers
    assert subscriber.most_unacknowledged == 40
    assert any("its prefetch, 10" in doubt for doubt in result.doubts())


async def test_who_takes_its_time_takes_no_more_of_it() -> None:
    """What the event loop oversleeps is made up for: each message has its delay, and no more."""
    received: list[int] = []
    # A busy machine takes some of the time, but not each time.
    while len(received) < 5 and max(received, default=0) < 510:
        result, _ = await run(
            rate=Profile.parse("1000"), delay=0.005, seconds=1.0, drain=2.0, processes=1
        )
        received.append(result.received)
    # 200 a second for three seconds; each millisecond overslept and kept would be a sixth less.
    assert 510 <= max(received) <= 630, received


async def test_acknowledgements_held_back_for_ever_are_told_of() -> None:
    result, _ = await run(qos=1, ack_every=50, rate=Profile.parse("200"), seconds=0.6, drain=0.5)
    assert result.subscribers[0].held_back == 32
    assert result.missing == 120 - 32
    assert any("holds 32 messages that it will acknowledge" in each for each in result.doubts())


async def test_a_run_that_is_over_shows_no_last_second() -> None:
    result, seen = await run(rate=Profile.parse("40"), seconds=1.0)
    assert result.published == 40
    with exposed("127.0.0.1", 0) as shown:
        shown.show("one", seen[0])
        shown.over("one")
        shown.over("never shown")
        told = generate_latest(shown.registry).decode()
    assert 'samples_total{scenario="one"} 1.0' in told
    assert "rate{" not in told
    assert "quantile" not in told


async def test_a_backlog_is_published_at_the_pace_at_which_it_was(tmp_path: Path) -> None:
    """More than the generator can: it says how many a second there were, and can be stopped."""
    async with running() as relay:
        options = ("--rate=5000000", "--seconds=1", "--subscribers=0", "--drain=60")
        _, one = await interrupted(relay.port, tmp_path, 4, *options)
    assert one["interrupted"]
    assert one["due"] == pytest.approx(5_000_000, rel=1e-5)
    assert one["publishing_seconds"] > 2.0
    assert one["never_published"] > 0


def test_files_are_looked_at_before_the_load_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.json"
    for files, status, said in (
        ([f"--csv={tmp_path}/no/x", f"--json={there}"], 1, "x: No such file"),
        ([f"--html={tmp_path}"], 1, ": Is a directory"),
        ([f"--json={there}", f"--csv={there}"], 2, "is given twice"),
    ):
        # Nobody listens there: it does not get as far as that.
        assert command(["perf", "--uri", "mqtt://127.0.0.1:1", *files]) == status
        assert said in capsys.readouterr().err
    assert not there.exists()


def test_one_file_that_cannot_be_written_does_not_cost_the_others(tmp_path: Path) -> None:
    result = trio.run(_small)
    with pytest.raises(PerfError, match=r"cannot write .*none/x\.csv: "):
        write([result], csv_file=tmp_path / "none" / "x.csv", json_file=tmp_path / "all.json")
    assert json.loads((tmp_path / "all.json").read_text())["runs"]
