"""The chat, run as a process on both loops: a client that stops reading stops nobody."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

CHAT = Path(__file__).parents[2] / "examples" / "chat.py"
LINES = 20_000
LINE = b"x" * 200


@contextmanager
def chatting(loop: str, printed: list[str]) -> Generator[int]:
    """Run the chat; give its port, and what it has printed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(CHAT), "--port", "0", "--loop", loop],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"port (\d+)", process.stdout.readline())
        assert found
        yield int(found[1])
        process.send_signal(signal.SIGINT)
        printed += process.communicate(timeout=60)[0].splitlines()
        assert process.returncode == 0, "\n".join(printed)
    finally:
        process.kill()
        process.communicate()


def join(port: int, name: str, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    assert sock.recv(100) == b"Your name? "
    sock.sendall(name.encode() + b"\n")
    return sock


def read(sock: socket.socket, size: int) -> bytes:
    """Return so many bytes."""
    got = bytearray()
    while len(got) < size:
        data = sock.recv(1 << 16)
        assert data
        got += data
    return bytes(got)


def until(sock: socket.socket, what: bytes) -> bytes:
    """Return what comes up to, and with, some words."""
    got = b""
    while what not in got:
        data = sock.recv(4096)
        assert data, got
        got += data
    return got


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_client_that_stops_reading_stops_nobody(loop: str) -> None:
    printed: list[str] = []
    with (
        chatting(loop, printed) as port,
        closing(join(port, "alice")) as alice,
        closing(join(port, "bob")) as bob,
        closing(join(port, "stuck", receive_buffer=4096)),
        ThreadPoolExecutor() as pool,
    ):
        # Each has joined when it gets its own line.
        for each, name in ((alice, b"alice"), (bob, b"bob")):
            each.sendall(b"hello\n")
            until(each, name + b": hello\n")
        alice.sendall(b"ready\n")
        until(alice, b"ready\n")
        until(bob, b"ready\n")
        writing = pool.submit(alice.sendall, (LINE + b"\n") * LINES)
        expected = (b"alice: " + LINE + b"\n") * LINES
        of_bob = pool.submit(read, bob, len(expected))
        assert read(alice, len(expected)) == expected
        assert of_bob.result() == expected
        writing.result()
        bob.sendall(b"/debt\n")
        assert re.search(rb"stuck is behind by \d{4} lines\n", until(bob, b" lines\n"))
    assert printed[-1] == "stopped"
    assert any("mailbox stuck made no progress" in line for line in printed)
    assert not any("Traceback" in line for line in printed)


def test_what_is_no_chat_ends_its_connection_alone() -> None:
    printed: list[str] = []
    with (
        chatting("asyncio", printed) as port,
        closing(join(port, "alice")) as alice,
        closing(join(port, "long")) as long,
    ):
        long.sendall(b"y" * 10_000)
        assert not long.recv(100)
        alice.sendall(b"hello\n")
        until(alice, b"alice: hello\n")
    assert printed == ["stopped"]
