"""Guessed passwords, and connections that leave no room for others, or no time."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import attrs
import pytest

from clearfunds.access._guesses import DUE_OF_ADDRESS, FREE_OF_ADDRESS
from tests.attacks.kit import (
    SECONDS,
    SHORT,
    Attacker,
    attack,
    attacked,
    connect,
    relay_process,
    until_over,
)
from tests.transports.mqtt.users import user_line
from tests.transports.mqtt.wire import packet, string

LET_IN = b"\x20\x02\0\0"
FULL = b"\x20\x02\0\x03"
WRONG = b"\x20\x02\0\x04"


def log_in(client_id: str, user: str, password: str) -> bytes:
    """A CONNECT with a clean session, a user name and a password."""
    keep_alive = struct.pack(">H", 0)
    names = string(client_id) + string(user) + string(password)
    return packet(0x10, string("MQTT"), b"\x04\xc2", keep_alive, names)


def password_file(folder: Path, iterations: int) -> str:
    file = folder / "users"
    lines = (user_line(user, b"secret", iterations) for user in ("alice", "mallory"))
    file.write_text("\n".join(lines), "utf-8")
    file.chmod(0o600)
    return str(file)


@attrs.define
class LogIns:
    """What became of a client that logs in again and again."""

    answers: list[bytes] = attrs.field(factory=list[bytes])
    seconds: list[float] = attrs.field(factory=list[float])


@contextmanager
def logging_in(port: int) -> Generator[LogIns]:
    """Let alice log in, from the same place and with her password, for the length of a block."""
    seen = LogIns()
    over = threading.Event()

    def again() -> None:
        while not over.wait(0.1):
            began = time.monotonic()
            with Attacker(port, log_in("laptop", "alice", "secret")) as alice:
                seen.answers.append(alice.receive(4))
            seen.seconds.append(time.monotonic() - began)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        time.sleep(1.0)
        yield seen
    finally:
        over.set()
        thread.join()


@attack
@pytest.mark.parametrize(("user", "iterations"), [("alice", 101), ("bob", 20_000)])
def test_guesses_are_few_and_who_knows_the_password_is_let_in(
    tmp_path: Path, iterations: int, user: str, seconds: float
) -> None:
    answers: list[bytes] = []
    numbers = iter(range(10_000_000))

    def guess() -> None:
        with Attacker(scene.port, timeout=0.3) as attacker:
            attacker.send(log_in("", user, f"guess {next(numbers)}"))
            answers.append(attacker.receive(4))

    passwords = ("--passwords", password_file(tmp_path, iterations))
    with attacked(seconds, *passwords, pair=("--user", "alice", "--password", "secret")) as scene:
        began = time.monotonic()
        with logging_in(scene.port) as alice:
            until_over(seconds + 1, *[guess] * 8)
            for _ in range(20):
                if _guesses(scene.relay.fetch("/metrics")):
                    break
                # On a slow machine the checks that are free take longer than that.
                until_over(1, *[guess] * 8)
        metrics = scene.relay.fetch("/metrics")
        took = time.monotonic() - began
        logged = scene.relay.logged()
    assert len(alice.answers) > 5
    assert set(alice.answers) == {LET_IN}
    slowest = max(alice.seconds)
    assert slowest < (2 if scene.whole else scene.beside_others(5)), slowest
    assert len(answers) > (100 if scene.whole else 10)
    assert set(answers) <= {WRONG, b""}
    looked_at = int(float(_value(metrics, 'refused_logins_total{cause="password"}')))
    # Some are free, some are due at a time, and each of the eight is at it already.
    assert 3 <= looked_at <= FREE_OF_ADDRESS + DUE_OF_ADDRESS + 8 + 2 * took
    assert _guesses(metrics) > (50 if scene.whole else 0)
    lines = [each for each in logged.splitlines() if "password" in each]
    assert len(lines) < 30 + took, len(lines)
    scene.survived()


def _guesses(metrics: str) -> float:
    """Return how many passwords were not checked, because of earlier wrong ones."""
    return float(_value(metrics, 'refused_logins_total{cause="guesses"}'))


def _value(metrics: str, name: str) -> str:
    (line,) = (each for each in metrics.splitlines() if each.startswith(f"clearfunds_{name} "))
    return line.rpartition(" ")[2]


def test_silent_connections_of_one_address_leave_room(tmp_path: Path) -> None:
    """As many of them as there may be; others come over a Unix socket, which has no address."""
    listen = f"mqtt+unix://{tmp_path / 'mqtt'}"
    options = ("--max-connections", "100", "--listen", listen)
    with relay_process(*options) as relay, ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(Attacker(relay.port))
        time.sleep(1)
        for n in range(5):
            alice = stack.enter_context(socket.socket(socket.AF_UNIX))
            alice.settimeout(SECONDS)
            alice.connect(str(tmp_path / "mqtt"))
            alice.sendall(connect(f"alice {n}"))
            assert alice.recv(4) == LET_IN
        assert "connections, and only" in relay.logged()


def test_who_may_have_so_many_connections_is_told(tmp_path: Path) -> None:
    options = ("--passwords", password_file(tmp_path, 101), "--connections-per-user", "2")
    with relay_process(*options) as relay, ExitStack() as stack:
        for n, answer in enumerate((LET_IN, LET_IN, FULL)):
            one = stack.enter_context(Attacker(relay.port))
            one.send(log_in(f"m{n}", "mallory", "secret"))
            assert one.receive(4) == answer
        alice = stack.enter_context(Attacker(relay.port, log_in("a", "alice", "secret")))
        assert alice.receive(4) == LET_IN
        # One that comes back takes its own place.
        again = stack.enter_context(Attacker(relay.port, log_in("m1", "mallory", "secret")))
        assert again.receive(4) == LET_IN


def test_a_burst_of_connections_is_spread_out_and_none_fails() -> None:
    with attacked(SHORT, "--connect-rate", "50") as scene, ExitStack() as stack:
        began = time.monotonic()
        crowd = [stack.enter_context(Attacker(scene.port, connect(f"c{n}"))) for n in range(150)]
        for each in crowd:
            assert each.receive(4) == LET_IN
        # The pair has taken two of the first second's worth.
        assert 1.5 < time.monotonic() - began < 20
    scene.survived()


@attack
def test_connections_that_come_and_go_hardly_disturb(seconds: float) -> None:
    def come(port: int) -> None:
        with suppress(OSError), Attacker(port, connect("")) as attacker:
            attacker.receive(4)

    with attacked(seconds) as scene:
        until_over(seconds, *[lambda: come(scene.port)] * 4)
    scene.survived()
