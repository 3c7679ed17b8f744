"""Whoever keeps the pages or their connections busy stops neither a probe nor a message."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from tests.attacks.kit import SECONDS, RelayProcess, attack, attacked

GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"

KINDS = {
    "silent": (None, 0),
    "half a head": ("GET / HTTP/1.1\r\nHost: loc", 0),
    "idle": (GET.format("/readyz"), 1),
    "reading no ledger": (GET.format("/ledger.json"), 0),
    "reading no metrics": (GET.format("/metrics") * 20, 0),
    "evil names": (GET.format("/ledger.json").replace("localhost", "evil.example"), 1),
}
"""What each of the connections sends, and how often it reads."""


def address(relay: RelayProcess) -> tuple[str, int]:
    return "127.0.0.1", int(relay.http.rpartition(":")[2])


@contextmanager
def visitors(relay: RelayProcess, count: int, kind: str) -> Generator[None]:
    """Have so many connections to the pages."""
    said, reads = KINDS[kind]
    with ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(SECONDS)
            sock.connect(address(relay))
            if said is not None:
                sock.sendall(said.encode())
            for _ in range(reads):
                assert sock.recv(4096)
        yield


def probe_for(relay: RelayProcess, seconds: float) -> float:
    """Ask for /healthz each 0.1 s, as a liveness probe does; return the longest time it took."""
    longest = 0.0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        with socket.create_connection(address(relay), SECONDS) as sock:
            sock.sendall(GET.format("/healthz").encode())
            answer = sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        longest = max(longest, time.monotonic() - began)
        time.sleep(max(0.0, 0.1 - longest))
    return longest


@attack
@pytest.mark.parametrize("kind", KINDS)
def test_connections_to_the_pages_that_do_nothing(kind: str, seconds: float) -> None:
    with attacked(seconds) as scene, visitors(scene.relay, 200, kind):
        longest = probe_for(scene.relay, seconds)
    assert longest < (1 if scene.whole else scene.beside_others(5))
    scene.survived()
