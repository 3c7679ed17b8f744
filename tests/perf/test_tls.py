"""The generator over TLS: every server, every quality of service, and what cannot be."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("hdrh")

from clearfunds._cli import run as command
from clearfunds.perf import (
    PerfError,
    Profile,
    Result,
    Scenario,
    ScenarioError,
    Sizes,
    measure,
    parse_stalls,
    read_scenarios,
    write,
)
from clearfunds.perf._client import PING, Client
from clearfunds.perf._connect import connect
from clearfunds.perf._publisher import Publisher, PublisherLatencies
from clearfunds.perf._subscriber import Subscriber
from clearfunds.perf._wire import Publications
from clearfunds.sockets import ServerTls, TlsSocket
from tests import forks
from tests.transports.certificates import Papers, papers_in
from tests.transports.conftest import SecureMosquitto
from tests.transports.peers import SECONDS, RunningRelay, descriptors, running, until
from tests.transports.sockets import ReluctantSocket, reluctant_pair

pytestmark = pytest.mark.usefixtures("server_of_forks")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_in(tmp_path_factory.mktemp("papers"))


@asynccontextmanager
async def secure(
    papers: Papers, *, asks: bool = False, **settings: Any
) -> AsyncGenerator[RunningRelay]:
    """Run a relay with TLS; it has to owe nothing in the end."""
    tls = ServerTls(papers.for_server(asks=asks).for_server)
    async with running(tls=tls, listen=("mqtt+tls://127.0.0.1:0",), **settings) as relay:
        yield relay
        relay.audit()


def uri_of(port: int) -> str:
    return f"mqtts://localhost:{port}"


async def measured(port: int, papers: Papers, **more: Any) -> Result:
    scenario = Scenario(uri=uri_of(port), tls_ca=str(papers.trusted), **more)
    with trio.fail_after(2 * SECONDS):
        return await measure(scenario)


def everything_came(result: Result) -> None:
    assert (result.missing, result.received) == (0, result.expected)
    assert result.published == result.due
    assert not any(each.losses for each in result.publishers)
    assert not any(each.losses for each in result.subscribers)


async def process(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process."""
    run = partial(forks.clearfunds, "perf", *argv, timeout=2 * SECONDS)
    return await trio.to_thread.run_sync(run)


async def command_measures(port: int, papers: Papers, folder: Path, *options: str) -> Any:
    """Run the command, see that everything came, and return what it wrote."""
    file = folder / "all.json"
    done = await process(
        "--uri", f"mqtts://me:secret@localhost:{port}", "--tls-ca", str(papers.trusted),
        "--rate", "300", "--seconds", "1", "--subscribers", "2", "--processes", "2",
        "--json", str(file), "--html", str(folder / "page.html"), *options,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "600 of 600, all of them" in done.stdout
    (one,) = json.loads(file.read_text())["runs"]
    assert one["processes"] == 2
    assert one["scenario"]["tls"]
    page = (folder / "page.html").read_text()
    assert "over TLS" in page
    for text in (file.read_text(), page):
        assert "secret" not in text
        assert str(papers.folder) not in text
    return one


LONG = pytest.mark.long


@pytest.mark.parametrize("qos", [pytest.param(0, marks=LONG), 1, pytest.param(2, marks=LONG)])
async def test_the_command_and_a_relay(papers: Papers, tmp_path: Path, qos: int) -> None:
    async with secure(papers) as relay:
        await command_measures(relay.port, papers, tmp_path, "--qos", str(qos))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--qos=0"], marks=LONG),
        ["--qos=1", "--mqtt=5"],
        pytest.param(["--qos=2"], marks=LONG),
        pytest.param(["--qos=2", "--mqtt=5"], marks=LONG),
    ],
)
async def test_the_command_and_mosquitto(
    mosquitto_tls: SecureMosquitto, tmp_path: Path, options: list[str]
) -> None:
    papers = mosquitto_tls.papers
    known = papers.for_client("load")
    shown = ("--tls-certificate", str(known.chain), "--tls-key", str(known.key))
    await command_measures(mosquitto_tls.asking, papers, tmp_path, *shown, *options)


async def test_as_fast_as_it_can(papers: Papers) -> None:
    """Writes of many records, which the kernel takes in part."""
    async with secure(papers) as relay:
        result = await measured(
            relay.port, papers, subscribers=2, seconds=1.0, size=Sizes.parse("50-50000"), drain=30.0
        )
    assert (result.missing, result.received) == (0, 2 * result.published)
    assert result.published > 100


async def test_a_subscriber_that_stalls(papers: Papers) -> None:
    async with secure(papers, limit_items=50, profile="lossless") as relay:
        result = await measured(
            relay.port, papers, subscribers=2, slow=1, slow_stalls=parse_stalls("0.3:2.5"),
            rate=Profile.parse("200"), size=Sizes.parse("60000"), seconds=3.0, drain=20.0,
            receive_buffer=8192,
        )  # fmt: skip
    everything_came(result)
    slow, other = result.subscribers
    assert slow.longest_gap >= 2.4
    # Its publisher had to wait for it, and so the other one got less meanwhile.
    assert result.stalled > 0.2
    assert other.received == slow.received == 600


async def test_prefetch_and_held_back_acknowledgements(mosquitto_tls: SecureMosquitto) -> None:
    """What waits in the kernel is encrypted: it cannot be looked at, and is not."""
    result = await measured(
        mosquitto_tls.port, mosquitto_tls.papers, qos=1, prefetch=10, ack_every=5, delay=0.002,
        ack_interval=0.05, rate=Profile.parse("100"), seconds=1.0,
    )  # fmt: skip
    everything_came(result)
    assert 5 <= result.subscribers[0].most_unacknowledged <= 10


async def test_clients_that_are_cut_off_come_back(papers: Papers) -> None:
    async with secure(papers) as relay, trio.open_nursery() as nursery:

        async def cut_off() -> None:
            await until(lambda: relay.relay.dataspace.statistics().deliveries > 50)
            for session in list(relay.relay.mqtt.open):
                session.cut("for a test")

        nursery.start_soon(cut_off)
        result = await measured(
            relay.port, papers, rate=Profile.parse("100"), seconds=1.5, reconnect=0.1, drain=0.2
        )
    (publisher,), (subscriber,) = result.publishers, result.subscribers
    assert (publisher.losses, subscriber.losses) == (1, 1)
    assert result.received > 60


@pytest.mark.parametrize("for_all", [False, pytest.param(True, marks=LONG)])
async def test_a_scenario_says_all_of_it(papers: Papers, tmp_path: Path, for_all: bool) -> None:
    known = papers.for_client("load")
    file = tmp_path / "load.toml"
    async with secure(papers, asks=True) as relay:
        file.write_text(
            f'[[scenario]]\nuri = "{uri_of(relay.port)}"\ntls-ca = "{papers.trusted}"\n'
            f'tls_certificate = ["{known.chain}"]\ntls_key = "{known.key}"\n'
            'rate = "50"\nseconds = 0.5\nprocesses = 1\n'
            f'[[scenario]]\nuri = "{uri_of(relay.port)}"\ntls_insecure = true\n'
            f'tls_certificate = "{known.chain}"\ntls_key = "{known.key}"\n'
            'rate = "50"\nseconds = 0.5\nprocesses = 1\n'
        )
        # An address, and whom one believes there, can be said of all of them.
        uri = uri_of(relay.port).replace("localhost", "127.0.0.1")
        said = ("--uri", uri, "--tls-insecure", "--quiet") if for_all else ()
        done = await process("--scenario", str(file), *said)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("all of them") == 2
    assert "perf: tls_certificate=load.pem\n" in done.stdout


def test_names_of_runs_hold_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text(
        '[[scenario]]\nuri = ["mqtts://me:secret@host", "mqtt+tls://host"]\n'
        'tls_ca = ["/some/where/one.pem"]\n'
    )
    assert [run.name for run in read_scenarios(file)] == [
        "perf: uri=mqtts://me:...@host, tls_ca=one.pem",
        "perf: uri=mqtt+tls://host, tls_ca=one.pem",
    ]


def test_a_result_says_whether_it_was_tls(tmp_path: Path) -> None:
    shown = Scenario(uri="mqtts://host", tls_key="/some/key", tls_certificate="/some/chain")
    assert shown.tls
    result = Result(
        scenario=shown, seconds=1.0, interrupted=False, processes=1, samples=(), publishers=(),
        subscribers=(), late=_none(), stalls=_none(), confirms=_none(),
    )  # fmt: skip
    write([result], json_file=tmp_path / "all.json")
    told = (tmp_path / "all.json").read_text()
    assert "/some" not in told
    assert json.loads(told)["runs"][0]["scenario"]["tls"] is True


def _none() -> Any:
    return PublisherLatencies().late


# -- what cannot be --------------------------------------------------------------------------


async def said(port: int, tls: ssl.SSLContext, host: str = "localhost") -> str:
    """Return why there is no connection; nothing is left of it."""
    before = descriptors()
    with pytest.raises(PerfError) as caught, trio.fail_after(SECONDS):
        await connect(host, port, "test", tls=tls)
    await until(lambda: descriptors() <= before)  # the relay is in this process, too
    assert f"test at {host}:{port}: " in str(caught.value)
    return str(caught.value)


async def test_who_is_not_believed(papers: Papers, tmp_path: Path) -> None:
    stranger = papers_in(tmp_path / "other").for_client().for_client()
    async with secure(papers) as relay:
        assert "its certificate is not trusted" in await said(relay.port, stranger)
        issued = papers.issue("elsewhere", "elsewhere.example")
        tls = relay.relay.settings.tls
        assert tls is not None
        tls.context = issued.for_server()
        told = await said(relay.port, papers.for_client().for_client(), "127.0.0.1")
        assert "its certificate is for another name" in told


async def test_who_speaks_no_tls(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = papers.for_client().for_client()
    async with running() as relay:
        assert "does it speak TLS on that port?" in await said(relay.port, trusting)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("clearfunds.perf._connect.TIMEOUT", 0.3)
        told = await said(silent.getsockname()[1], trusting, "127.0.0.1")
    assert told.endswith("no answer within 0.3 s: it may not speak TLS there")
    monkeypatch.undo()
    async with secure(papers) as relay:
        with pytest.raises(PerfError, match=r"the server closed the connection|reset"):
            await connect("127.0.0.1", relay.port, "test")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_who_wants_to_know_who_one_is(
    papers: Papers, mosquitto_tls: SecureMosquitto, version: ssl.TLSVersion
) -> None:
    async with secure(papers, asks=True) as relay:
        for port, whose in ((relay.port, papers), (mosquitto_tls.asking, mosquitto_tls.papers)):
            trusting = whose.for_client().for_client()
            trusting.maximum_version = version
            for _ in range(5):
                assert "may require a client's certificate" in await said(port, trusting)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--tls-ca", "x"], "tls_ca needs TLS, and mqtt://127.0.0.1:1883 does not use it: give"),
        (["--uri", "mqtt://a:b@h", "--tls-insecure"], "tls_insecure needs TLS, and mqtt://a:...@"),
        (["--uri", "mqtts://h", "--tls-ca", "no/such"], "cannot read no/such: No such file"),
        (["--uri", "mqtts://h", "--tls-key", "k"], "k is a certificate's key"),
        (["--scenario", "FILE"], "scenario 1: tls_ca needs TLS"),
        (["--scenario", "FILE", "--tls-ca", "no/such"], "scenario 1: tls_ca needs TLS"),
    ],
)
def test_a_mistake_is_one_line(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.toml"
    file.write_text('[[scenario]]\ntls_ca = "x"\n')
    assert command(["perf", *(each.replace("FILE", str(file)) for each in options)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert why in told


@pytest.mark.parametrize("text", ["tls_insecure = 1", "tls_ca = 1", "tls_insecure = 'yes'"])
def test_what_is_no_scenario(tmp_path: Path, text: str) -> None:
    file = tmp_path / "load.toml"
    file.write_text(f'[[scenario]]\nuri = "mqtts://host"\n{text}\n')
    with pytest.raises(ScenarioError, match="it must be"):
        read_scenarios(file)


def test_the_port_of_tls() -> None:
    file_less = Scenario(uri="mqtts://host")
    assert (file_less.tls, Scenario(uri="mqtt://host").tls) == (True, False)


# -- the socket ------------------------------------------------------------------------------


@contextmanager
def pair(papers: Papers | None) -> Generator[tuple[ReluctantSocket, Any, Any]]:
    """Give the client's socket, what is on top of it, and the server's; TLS if there are papers."""
    reluctant, there = reluctant_pair()
    here: Any = reluctant
    far: Any = there
    if papers is not None:
        trusting = papers.for_client().for_client()
        here = TlsSocket(reluctant, trusting, server_side=False, server_hostname="localhost")
        far = TlsSocket(there, papers.for_server().for_server())
        while not here.shake_hands() & far.shake_hands():
            pass
    try:
        yield reluctant, here, far
    finally:
        here.close()
        far.close()


def on(client: Client, sock: Any) -> Client:
    client._sock = sock  # pyright: ignore[reportPrivateUsage]
    return client


async def hear(sock: Any, size: int) -> bytes:
    came = b""
    with trio.fail_after(SECONDS):
        while len(came) < size:
            await trio.lowlevel.wait_readable(sock)
            try:
                came += sock.recv(4096)
            except BlockingIOError:
                continue
    return came


@pytest.mark.parametrize("encrypted", [False, True])
async def test_half_a_ping_of_a_publisher_comes_before_what_it_publishes(
    papers: Papers, encrypted: bool
) -> None:
    publisher = Publisher(Scenario(), 0, "test", PublisherLatencies())
    with pair(papers if encrypted else None) as (below, here, far):
        on(publisher, here)
        told: list[bool] = []
        publisher.told_of = lambda: told.append(True)
        below.takes = [1, 0]
        publisher.ping()
        publisher.ping()  # one that has been begun says that it is alive
        assert told == [True]
        assert publisher.waits_for_the_kernel
        assert publisher.push(0.0, 1.0, 0) is None  # nothing is taken, and nothing else is sent
        assert sum(publisher.sent) == 0
        while not sum(publisher.sent):
            publisher.push(0.0, 1.0, 0)
        assert (await hear(far, 3))[:3] == PING + b"\x30"


@pytest.mark.parametrize("encrypted", [False, True])
async def test_half_a_ping_of_a_subscriber_comes_before_what_it_acknowledges(
    papers: Papers, encrypted: bool
) -> None:
    subscriber = Subscriber(Scenario(qos=1), 0, "test")
    with pair(papers if encrypted else None) as (below, here, far):
        on(subscriber, here)
        below.takes = [1, 0, 0, 0]
        rest = subscriber.ping()
        assert rest == PING[1:]
        assert subscriber.ping() == b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscriber.serve, here)
            far.send(Publications(["perf/0"], 1).frame(0, 7, bytes(30), b""))
            await trio.sleep(0.05)
            nursery.start_soon(subscriber.finish_ping, rest)
            assert await hear(far, 6) == PING + b"\x40\x02\x00\x07"
            nursery.cancel_scope.cancel()
        below.takes = []
        assert subscriber.ping() == b""
        assert await hear(far, 2) == PING


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_ping_that_is_not_taken_is_none(papers: Papers, encrypted: bool) -> None:
    subscriber = Subscriber(Scenario(), 0, "test")
    with pair(papers if encrypted else None) as (below, here, _):
        on(subscriber, here)
        below.takes = [0]
        rest = subscriber.ping()
        # Of an encrypted one as much is to come as of one that was begun.
        assert rest == (PING[1:] if encrypted else b"")


async def test_a_connection_that_is_gone_ends_half_a_ping(papers: Papers) -> None:
    subscriber = Subscriber(Scenario(qos=1), 0, "test")
    with pair(papers) as (below, here, _):
        on(subscriber, here)
        below.takes = [1] + [0] * 99
        rest = subscriber.ping()
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(subscriber.finish_ping, rest)
                await trio.sleep(0.01)
                subscriber.close()
        await subscriber.finish_ping(rest)
    assert not subscriber.connected


@pytest.mark.parametrize("subscribes", [True, False])
async def test_the_end_is_heard_of_at_once(papers: Papers, subscribes: bool) -> None:
    """The last that was read may have said that it is the last: the socket says nothing then."""
    client = (
        Subscriber(Scenario(), 0, "test")
        if subscribes
        else Publisher(Scenario(), 0, "test", PublisherLatencies())
    )
    with pair(papers) as (_, here, far):
        far.send(Publications(["perf/0"], 0).frame(0, 0, bytes(30), b""))
        far._say_the_end()  # the socket itself stays open
        with trio.fail_after(SECONDS):
            await client.serve(here)
