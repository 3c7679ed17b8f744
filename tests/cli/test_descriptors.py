"""A relay that may open few files: accepting, its pages and its store go on."""

from __future__ import annotations

import json
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from clearfunds._cli._descriptors import within_descriptors
from clearfunds.relay import RelaySettings
from clearfunds.transports.mqtt import Connect, Publish, Subscribe, encode
from tests import forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import RelayUnderTest

DEFAULT = RelaySettings().max_connections


@pytest.mark.parametrize(
    ("allowed", "options", "connections", "pages"),
    [
        (resource.RLIM_INFINITY, {}, DEFAULT, 128),
        (20_000, {"http": "127.0.0.1:0", "store": "x"}, DEFAULT, 128),
        (1024, {}, 1024 - 128, 128),
        (1024, {"http": "127.0.0.1:0"}, 1024 - 128 - 128, 128),
        (1024, {"http": "127.0.0.1:0", "store": "x"}, 1024 - 128 - 128 - 96, 128),
        (1024, {"http": "127.0.0.1:0", "max_connections": 100}, 100, 128),
        (256, {"http": "127.0.0.1:0", "store": "x"}, 128, 32),
        (16, {"http": "127.0.0.1:0"}, 8, 2),
    ],
)
def test_what_fits(
    allowed: int,
    options: dict[str, object],
    connections: int,
    pages: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:

    def getrlimit(which: int) -> tuple[int, int]:
        return allowed, allowed

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        pass

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    settings = RelaySettings(**options)  # type: ignore[arg-type]
    found = within_descriptors(settings, journal=False)
    assert (found.max_connections, found.max_http_connections) == (connections, pages)
    assert bool(caplog.records) == (found != settings)


def healthy(url: str) -> bool:
    with urlopen(f"{url}/healthz", timeout=5) as page:
        return bool(page.status == 200)


def test_they_run_out_and_it_goes_on(
    start_relay: Callable[..., RelayUnderTest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = ("sh", "-c", 'ulimit -n 320 && exec "$@"', "sh", *forks.CLEARFUNDS)
    monkeypatch.setattr(forks, "CLEARFUNDS", limited)
    monkeypatch.setattr(forks, "start", forks.start_as_a_user)
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json"),
        *("--store", str(tmp_path / "store"), "--grace", "0", "--fsync-interval", "0"),
    )
    listening, pages = relay.ready()
    port, url = int(listening["listening"].rpartition(":")[2]), pages["http"]
    few = [each for each in map(json.loads, relay.log) if each["event"] == "few_descriptors"]
    assert [each["connections"] for each in few] == [160]

    def dial() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=60)

    with ExitStack() as stack:
        client = stack.enter_context(dial())
        client.sendall(encode(Connect("kept", clean_session=False)))
        assert client.recv(4) == b"\x20\x02\x00\x00"
        client.sendall(encode(Subscribe(1, (("t", 1),))))
        assert client.recv(5) == b"\x90\x03\x00\x01\x01"
        client.shutdown(socket.SHUT_WR)
        publisher = stack.enter_context(dial())
        publisher.sendall(encode(Connect("publisher")))
        assert publisher.recv(4) == b"\x20\x02\x00\x00"
        for _ in range(400):
            stack.enter_context(dial())
        for number in range(1, 21):
            assert healthy(url)
            # A new queue on disk, then more of it: all of that needs the directory.
            publisher.sendall(encode(Publish("t", bytes(1000), qos=1, packet_id=number)))
            assert publisher.recv(4) == b"\x40\x02\x00" + bytes([number])
    until = time.monotonic() + 20
    while True:
        with dial() as client:
            client.sendall(encode(Connect("late")))
            if client.recv(4) == b"\x20\x02\x00\x00":
                break
        assert time.monotonic() < until
        time.sleep(0.05)
    events = [each.get("event") for each in map(json.loads, relay.log)]
    assert "store_trouble" not in events
    assert "cannot_accept" not in events, [x for x in relay.log if "cannot_accept" in x]
