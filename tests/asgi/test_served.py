"""WebSockets and server-sent events with real servers, whose clients sleep, leave and err."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.asgi.conftest import Served

SECONDS = 60
"""More than anything waited for takes on a busy machine."""
SMALL = 4096
#: More than the buffers of the server and of the kernel take for one client.
COUNT, SIZE = 400, 64 << 10


def websocket(served: Served, path: str, *, small: bool = False) -> ClientConnection:
    """Connect to a WebSocket; `small`: a client with room for little in its socket."""
    sock = served.connect(SMALL if small else None)
    return connect(
        f"ws://127.0.0.1:{served.port}{path}",
        sock=sock,
        max_size=None,
        max_queue=1 if small else None,
        compression=None,
        open_timeout=SECONDS,
        close_timeout=2,
    )


@contextmanager
def sse(served: Served, path: str, *, small: bool = False) -> Generator[BinaryIO]:
    """Ask for an event stream, and wait until it is open; the block has its lines."""
    with served.connect(SMALL if small else None) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        with sock.makefile("rb") as lines:
            while lines.readline() != b": open\n":
                pass
            yield lines


def events(lines: BinaryIO) -> Iterator[tuple[str, str]]:
    """Yield the type and the data of each event."""
    kind, data = "message", ""
    for line in lines:
        text = line.decode().rstrip("\r\n")
        if text.startswith("event: "):
            kind = text[7:]
        elif text.startswith("data: "):
            data = text[6:]
        elif not text and data:
            yield kind, data
            kind, data = "message", ""


def number_of(text: str | bytes) -> int:
    return int(text.split()[0])


def test_what_one_says_all_hear(served: Served) -> None:
    with (
        websocket(served, "/ws/alice") as alice,
        websocket(served, "/ws/bob") as bob,
        sse(served, "/sse/eve") as eve,
    ):
        served.until("/books", "feeds", ["alice", "bob", "eve"])
        alice.send("hello")
        bob.send("good day")
        heard = events(eve)
        for found in (
            {alice.recv(5), alice.recv(5)},
            {bob.recv(5), bob.recv(5)},
            {next(heard)[1], next(heard)[1]},
        ):
            assert found == {"alice: hello", "bob: good day"}
    served.until("/books", "feeds", [])
    served.until("/books", "owed", {"behind": 0})


def test_a_sleeping_client_holds_up_nobody(served: Served) -> None:
    """The default: what the sleepers do not take is spilled, and comes when they wake up."""
    with (
        websocket(served, "/ws/sleeps", small=True) as sleeps,
        sse(served, "/sse/dozes", small=True) as dozes,
        websocket(served, "/ws/awake") as awake,
        ThreadPoolExecutor() as pool,
    ):
        served.until("/books", "feeds", ["awake", "dozes", "sleeps"])
        publishing = pool.submit(served.get, f"/publish?count={COUNT}&size={SIZE}", method="POST")
        assert [number_of(awake.recv(SECONDS)) for _ in range(COUNT)] == list(range(COUNT))
        assert publishing.result() < 8
        assert served.get("/books")["lagging"] == ["dozes", "sleeps"]
        assert [number_of(sleeps.recv(SECONDS)) for _ in range(COUNT)] == list(range(COUNT))
        heard = events(dozes)
        assert [number_of(next(heard)[1]) for _ in range(COUNT)] == list(range(COUNT))
        served.until("/books", "lagging", [])
    served.until("/books", "owed", {"behind": 0})


def test_a_sleeping_client_is_told_what_it_missed(served: Served) -> None:
    with (
        websocket(served, "/ws/sleeps?profile=live", small=True) as sleeps,
        sse(served, "/sse/dozes?profile=live", small=True) as dozes,
    ):
        served.until("/books", "feeds", ["dozes", "sleeps"])
        assert served.get(f"/publish?count={COUNT}&size={SIZE}", method="POST") < 8
        next_one = 0
        while next_one < COUNT:
            text = sleeps.recv(SECONDS)
            if "missed" in str(text)[:20]:
                next_one += int(str(text)[:-1].split()[1])
            else:
                assert number_of(text) == next_one
                next_one += 1
        next_one = gaps = 0
        heard = events(dozes)
        while next_one < COUNT:
            kind, data = next(heard)
            if kind == "missed":
                next_one += int(data)
                gaps += 1
            else:
                assert number_of(data) == next_one
                next_one += 1
        assert gaps
    served.until("/books", "owed", {"behind": 0})


@pytest.mark.parametrize("kind", ["ws", "sse"])
def test_a_sleeping_client_is_disconnected(kind: str, server: str, served: Served) -> None:
    """Under `lossless` the publisher waits, for the patience; then it goes on without it.

    Hypercorn's Trio worker shields its sends: there the connection stays, without a feed, until its
    client takes something or leaves.
    """
    opened: Any = {"ws": websocket, "sse": sse}[kind]
    with opened(served, f"/{kind}/sleeps?profile=lossless&patience=1", small=True) as sleeps:
        served.until("/books", "feeds", ["sleeps"])
        before = served.get("/books")["given_up"]
        took = served.get(f"/publish?count={COUNT}&size={SIZE}", method="POST")
        assert 1 <= took < 8
        assert served.get("/books")["given_up"] > before
        assert "giving it up" in served.log.read_text()
        if server != "hypercorn-trio":
            served.until("/books", "owed", {"behind": 0})
            served.until("/books", "feeds", [])
            assert "sleeps was too slow" in served.log.read_text()
            if kind == "ws":
                with pytest.raises(ConnectionClosed):
                    list(sleeps)
    served.until("/books", "owed", {"behind": 0})
    served.until("/books", "feeds", [])


def test_a_client_that_leaves_without_a_word(served: Served) -> None:
    with sse(served, "/sse/user"):
        guest = websocket(served, "/ws/guest")
        served.until("/books", "feeds", ["guest", "user"])
    guest.socket.shutdown(socket.SHUT_RDWR)
    served.get("/publish?count=5&size=10", method="POST")
    served.until("/books", "feeds", [])
    served.until("/books", "owed", {"behind": 0})
    log = served.log.read_text()
    assert "Traceback" not in log, log


def test_a_fault_of_a_handler_ends_its_connection_alone(served: Served) -> None:
    with websocket(served, "/ws/alice") as alice, websocket(served, "/ws/bob") as bob:
        served.until("/books", "feeds", ["alice", "bob"])
        alice.send("fail")
        with pytest.raises(ConnectionClosed):
            alice.recv(SECONDS)
        bob.send("still here")
        assert bob.recv(5) == "bob: still here"
        deadline = time.monotonic() + 5
        while "KeyError" not in served.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    served.until("/books", "owed", {"behind": 0})
