"""The commands of cluster.md and nats.md: relays, workers and NATS servers of their own."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from tests.docs.shell import LOG, SECONDS, blocks_of, other_ports, relay, run
from tests.nats_servers import nats_cluster, needs_nats
from tests.programs import needs

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = [needs_nats, needs("bash")]


@contextmanager
def running(
    command: str, folder: Path, environment: dict[str, str]
) -> Generator[subprocess.Popen[str]]:
    """Run a command until the end of the block."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()


def until_it_listens(port: int) -> None:
    give_up = time.monotonic() + SECONDS
    while True:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < give_up
        time.sleep(0.02)


def start_nats(line: str, port: str, folder: Path) -> str:
    """Return the page's command with a port and a folder of this test."""
    assert "nats-server -js -sd /tmp/jetstream" in line
    return line.replace("-sd /tmp/jetstream", f"-sd {folder / 'jetstream'} -p {port}")


def until_all_answer(http: str) -> list[str]:
    """Return the names of the relays of a cluster, by its page, when all of them answer."""
    give_up = time.monotonic() + SECONDS
    while True:
        with urlopen(f"http://{http}/cluster.json", timeout=SECONDS) as answer:
            relays: list[dict[str, Any]] = json.load(answer)["relays"]
        if all(each["answers"] for each in relays):
            return [each["name"] for each in relays]
        assert time.monotonic() < give_up, relays
        time.sleep(0.1)


def test_a_nats_server_to_try_the_client_with(tmp_path: Path, environment: dict[str, str]) -> None:
    (block,) = blocks_of("nats.md")
    (port,) = other_ports("4222").splitlines()
    installs, serves = block.splitlines()
    assert "WARNING" not in run(f"{installs} 2>&1", tmp_path, environment)
    with running(start_nats(serves, port, tmp_path), tmp_path, environment):
        until_it_listens(int(port))


def test_two_relays_are_one(tmp_path: Path, environment: dict[str, str]) -> None:
    """The page's lines one after the other, each when the one before it has started."""
    port, block = other_ports(f"4222\0{blocks_of('cluster.md')[0]}").split("\0")
    installs, serves, one, two, subscribes, publishes = block.splitlines()
    run(installs, tmp_path, environment)
    with ExitStack() as stack:
        serves = start_nats(serves.removesuffix(" &"), port, tmp_path)
        stack.enter_context(running(serves, tmp_path, environment))
        until_it_listens(int(port))
        for line in (one, two):
            (name,) = re.findall(r"--name (\S+) .* &$", line)
            (tmp_path / name).mkdir()
            stack.enter_context(relay(line.removesuffix(" &"), tmp_path / name, environment))
        subscriber = stack.enter_context(
            running(subscribes.removesuffix(" &"), tmp_path, environment)
        )
        told = subscriber.stdout
        assert told is not None
        got: list[str] = []
        reader = threading.Thread(target=lambda: got.append(told.readline()))
        reader.start()
        give_up = time.monotonic() + SECONDS
        while reader.is_alive():  # until it has subscribed
            assert time.monotonic() < give_up
            run(publishes, tmp_path, environment)
            reader.join(0.2)
    assert got == ["from the other relay\n"]


def test_workers(tmp_path: Path, environment: dict[str, str]) -> None:
    installs, serves = other_ports(blocks_of("cluster.md")[1]).splitlines()
    run(installs, tmp_path, environment)
    assert "/var/lib/clearfunds" in serves
    assert "0.0.0.0" in serves
    serves = serves.replace("/var/lib/clearfunds", "store").replace("0.0.0.0", "127.0.0.1")
    (http,) = re.findall(r"--http (\S+)", serves)
    with relay(serves, tmp_path, environment):
        assert len(until_all_answer(http)) == 4
    assert (tmp_path / "store").is_dir()


@pytest.mark.long
def test_a_cluster_to_try(tmp_path: Path, environment: dict[str, str]) -> None:
    block = blocks_of("cluster.md")[3]
    assert "--port 1883 " in block
    starts = other_ports(block.replace("--port 1883 ", "--port 0 "))
    (http,) = re.findall(r"--http (\S+)", starts)
    with running(starts.strip(), tmp_path, environment) as process:
        assert process.stdout is not None
        said = ""
        while not said.endswith("Ctrl-C ends it.\n"):
            line = process.stdout.readline()
            assert line, said
            said += line
        assert until_all_answer(http) == ["relay-1", "relay-2", "relay-3"]


def test_a_store_in_jetstream(tmp_path: Path, environment: dict[str, str]) -> None:
    line = blocks_of("cluster.md")[2].strip()
    with nats_cluster(tmp_path) as servers:
        for number, server in enumerate(servers, 1):
            assert f"nats://n{number}:4222" in line
            line = line.replace(f"nats://n{number}:4222", server.url)
        more = "--listen mqtt://127.0.0.1:0 --disk-limit 8MiB"  # these servers have little room
        with relay(f"{line} {more}", tmp_path, environment):
            pass
        log = (tmp_path / LOG).read_text("utf-8")
        assert " WARNING " not in log
        assert " ERROR " not in log
