"""What the tests of attacks share: a relay as a process, and a healthy pair whose p99 is watched.

    @attack
    def test_...(seconds: float) -> None:
        with attacked(seconds) as scene:
            ...                            # the attack, for so many seconds
        scene.survived()

A test of an attack is run twice: for a second in `make test`, where it must not silence the pair,
and for a minute in `make test-long`, where the pair must hardly notice. `pytest -s` shows how it
fared. The relay and the pair run in processes of their own: what is measured is not what the test
costs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

import attrs
import pytest

from tests import forks
from tests.transports.mqtt.wire import number, packet, string

SECONDS = 60
"""More than anything waited for takes on a busy machine; less than anyone waits for a hung test."""

SHORT = 1.0
"""Seconds of an attack in a test that is always run."""

WHOLE = 60.0
"""The same in one that takes minutes."""

attack = pytest.mark.parametrize(
    "seconds",
    [pytest.param(SHORT, id="short"), pytest.param(WHOLE, id="whole", marks=pytest.mark.long)],
)
"""Of a test: how long the attack lasts."""

P99 = 0.05
"""Seconds: what the healthy pair's 99th percentile may be, beside any attack that lasts a minute
on a machine that does nothing else."""

P99_BUSY = 3.0
"""The same in a short test, on a machine where other tests run, and a process may wait for a second
until it is its turn: an attack that works silences the pair for as long as it lasts."""

USUAL_SLOWDOWN = 4.0
"""How many times as long everything takes there; where it is more, the pair may be later."""

MORE_MEMORY = 256 << 20
"""Bytes that the relay's resident memory may grow by, during an attack."""

LEFT_MEMORY = 64 << 20
"""The same after a rest of at most `REST` seconds, where the attack was a whole one."""

REST = 60.0

HEALTHY = Path(__file__).with_name("healthy.py")

RELAY = partial(forks.start, "relay")
"""Starts a relay; takes its options, and those of `Popen`."""

Start = Callable[..., subprocess.Popen[Any]]


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None, status
    return int(found[1]) << 10


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def on_cpu_and_waiting(pid: int) -> tuple[int, int]:
    """Return the nanoseconds that a process has run, and has waited until it was its turn to."""
    running, waiting, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(running), int(waiting)


class RelayProcess:
    """A relay as a process, with its pages; ended by `close`."""

    def __init__(
        self,
        *options: str,
        listen: str = "mqtt+tcp://127.0.0.1:0",
        start: Start = RELAY,
    ) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by `close`)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CLEARFUNDS_")}
        self.process = start(
            *("--listen", listen, "--http", "127.0.0.1:0", "--grace", "1", *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )
        self.listening: list[str] = []
        self.http = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "listening" in said:
                self.listening.append(said["listening"])
            self.http = said.get("http", self.http)
            if said == {"ready": True}:
                return
        raise AssertionError(self.logged())

    @property
    def port(self) -> int:
        """The port of its first listener."""
        return int(self.listening[0].rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self.process.pid

    def logged(self) -> str:
        """Return what it has logged so far."""
        self.log.seek(0)
        return self.log.read()

    def fetch(self, path: str) -> str:
        """Return a page; a relay that has too many requests is asked again, as it says."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                with urlopen(f"{self.http.rstrip('/')}{path}", timeout=SECONDS) as page:
                    text: str = page.read().decode()
                return text
            except HTTPError as error:
                if error.code != 503 or time.monotonic() > until:
                    raise
                time.sleep(float(error.headers.get("Retry-After", "1")))

    def ledger(self) -> dict[str, Any]:
        """Return /ledger.json."""
        found: dict[str, Any] = json.loads(self.fetch("/ledger.json"))
        return found

    def lives(self) -> None:
        """See that it has not ended, has met no fault of its own, and that its books balance."""
        assert self.process.poll() is None, self.logged()
        assert "internal error" not in (log := self.logged()), log
        audit = self.ledger()["audit"]
        assert audit["balanced"], audit

    def close(self) -> None:
        """End it; kill it if it does not."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


class HealthyPair:
    """See `healthy.py`; `finish` ends it and says how it fared."""

    def __init__(self, port: int, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HEALTHY), str(port), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def finish(self) -> Fared:
        """Stop publishing and return how late what was published came."""
        out, _ = self.process.communicate(timeout=SECONDS)
        return Fared(**json.loads(out))

    def close(self) -> None:
        """Kill what is left of it."""
        self.process.kill()
        self.process.communicate()


@attrs.frozen
class Fared:
    """How the healthy pair has fared; seconds."""

    sent: int
    received: int
    p50: float | None
    p99: float | None
    max: float | None

    @property
    def lost(self) -> int:
        return self.sent - self.received


@attrs.define
class Scene:
    """A relay under attack, and what was seen of it."""

    relay: RelayProcess
    pair: HealthyPair
    whole: bool
    before: int
    """Resident bytes before the attack."""
    peak: int = 0
    after: int = 0
    cpu: float = 0.0
    slowdown: float = 1.0
    """How many times as long the relay took as on a CPU of its own."""
    fared: Fared | None = None

    @property
    def port(self) -> int:
        return self.relay.port

    def rest(self) -> None:
        """Wait until the relay has given its memory back; a minute at most."""
        until = time.monotonic() + REST
        while True:
            self.after = resident(self.relay.pid)
            if self.after - self.before <= LEFT_MEMORY or time.monotonic() > until:
                return
            time.sleep(0.5)

    def beside_others(self, seconds: float) -> float:
        """Return what takes so long at most where other tests run, on the machine as it was."""
        return seconds * max(1.0, self.slowdown / USUAL_SLOWDOWN)

    def survived(self, more_memory: int = MORE_MEMORY) -> None:
        """See that the pair hardly noticed, and what became of the relay's memory."""
        print(f"{os.environ.get('PYTEST_CURRENT_TEST')}: {self}")
        p99 = P99 if self.whole else self.beside_others(P99_BUSY)
        if self.whole:
            assert self.after - self.before <= LEFT_MEMORY, f"{self.before} -> {self.after} bytes"
        assert self.fared is not None
        assert self.fared.lost == 0, self.fared
        assert self.fared.p99 is not None
        assert self.fared.p99 <= p99, self.fared
        assert self.peak - self.before <= more_memory, f"{self.before} -> {self.peak} bytes"

    def __str__(self) -> str:
        megabytes = " -> ".join(f"{n / 1e6:.0f}" for n in (self.before, self.peak, self.after))
        cpu = f"CPU {self.cpu:.2f} s, {self.slowdown:.1f} times as slow"
        return f"{self.fared}; RSS {megabytes} MB; {cpu}"


@contextmanager
def relay_process(
    *options: str, listen: str = "mqtt+tcp://127.0.0.1:0", start: Start = RELAY
) -> Generator[RelayProcess]:
    """Run a relay as a process for the length of a block."""
    relay = RelayProcess(*options, listen=listen, start=start)
    try:
        yield relay
    finally:
        relay.close()


@contextmanager
def attacked(
    seconds: float,
    *options: str,
    listen: str = "mqtt+tcp://127.0.0.1:0",
    pair: tuple[str, ...] = (),
    lives: bool = True,
    start: Start = RELAY,
) -> Generator[Scene]:
    """Run a relay with these options, and beside it a healthy pair, while the block attacks it.

    At the end of the block the pair is stopped, and the relay has to be alive with its books
    balanced. After a whole attack its memory is looked at once more. `pair` has options of
    `healthy.py`.
    """
    with ExitStack() as stack:
        relay = stack.enter_context(relay_process(*options, listen=listen, start=start))
        healthy = HealthyPair(relay.port, *pair)
        stack.callback(healthy.close)
        time.sleep(0.5)
        scene = Scene(relay, healthy, seconds >= WHOLE, resident(relay.pid))
        scene.peak = scene.before
        began = cpu_seconds(relay.pid)
        ran_before, waited_before = on_cpu_and_waiting(relay.pid)
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                with suppress(OSError):
                    scene.peak = max(scene.peak, resident(relay.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield scene
            scene.fared = healthy.finish()
            assert relay.process.poll() is None, relay.logged()
            scene.cpu = cpu_seconds(relay.pid) - began
            ran, waited = on_cpu_and_waiting(relay.pid)
            scene.slowdown += (waited - waited_before) / max(ran - ran_before, 1)
            if lives:
                relay.lives()
        finally:
            over.set()
            watcher.join()
        if scene.whole:
            scene.rest()


# -- what attackers write -----------------------------------------------------------------------


def connect(
    client_id: str, *, clean: bool = True, level: int = 4, keep_alive: int = 0, expiry: int = 0
) -> bytes:
    """A CONNECT; with `level` 5 and not `clean`, its session is kept for `expiry` seconds."""
    properties = b""
    if level == 5:
        properties = packet(0, b"\x11" + struct.pack(">I", expiry) if expiry else b"")[1:]
    flags = bytes((level, 2 if clean else 0))
    return packet(0x10, string("MQTT"), flags, number(keep_alive), properties, string(client_id))


def publish(
    topic: str, payload: bytes = b"", *, qos: int = 0, retain: bool = False, packet_id: int = 1,
    level: int = 4,
) -> bytes:  # fmt: skip
    """A PUBLISH without properties."""
    identifier = number(packet_id) if qos else b""
    properties = b"\0" if level == 5 else b""
    return packet(0x30 | qos << 1 | retain, string(topic), identifier, properties, payload)


def subscribe(*filters: str, qos: int = 0, packet_id: int = 1, level: int = 4) -> bytes:
    """A SUBSCRIBE without properties."""
    properties = b"\0" if level == 5 else b""
    topics = b"".join(string(text) + bytes((qos,)) for text in filters)
    return packet(0x82, number(packet_id), properties, topics)


def unsubscribe(*filters: str, packet_id: int = 1, level: int = 4) -> bytes:
    """An UNSUBSCRIBE without properties."""
    properties = b"\0" if level == 5 else b""
    return packet(0xA2, number(packet_id), properties, *map(string, filters))


class Attacker:
    """A blocking connection for whatever bytes; a context manager."""

    def __init__(self, port: int, data: bytes = b"", *, timeout: float = SECONDS) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout)
        if data:
            self.sock.sendall(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> bool:
        """Send; False if the relay has closed the connection."""
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def receive(self, size: int = 1 << 16) -> bytes:
        """Return what comes next; b"" when the relay has closed the connection."""
        try:
            return self.sock.recv(size)
        except OSError:
            return b""

    def let_in(self) -> Attacker:
        """Read the CONNACK."""
        assert self.receive(4)[:1] == b"\x20"
        return self


def give_way() -> None:
    """Let this thread, an attacker's, take no CPU from those it attacks.

    Attackers are on other machines.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def until_over(seconds: float, *attacks: Callable[[], object]) -> None:
    """Call each again and again, each in a thread of its own, for so many seconds.

    An attack that raises OSError (its connection was closed) goes on with its next call.
    """
    end = time.monotonic() + seconds

    def run(attack: Callable[[], object]) -> None:
        give_way()
        while time.monotonic() < end:
            with suppress(OSError):
                attack()

    threads = [threading.Thread(target=run, args=(attack,)) for attack in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
