"""What `clearfunds relay` logs, as a process, with real clients."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]


def logged(relay: RelayUnderTest) -> list[dict[str, Any]]:
    """End the relay and return what it has logged: each line is an object with these four."""
    relay.process.terminate()
    assert relay.wait() == 0
    lines = [json.loads(line) for line in relay.log]
    for line in lines:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["logger"].startswith("clearfunds")
    assert relay.log
    return lines


def test_every_line_is_an_object(start_relay: StartRelay) -> None:
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json")
    port = relay.mqtt_port()
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        # A client that calls itself something with an escape sequence, and then breaks the rules.
        client.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04\x1b[2J")
        client.recv(4)
        client.sendall(b"\xff\xff\xff\xff\xff\xff")
        assert client.recv(100) == b""
    messages = [line["message"] for line in logged(relay)]
    assert any("SIGTERM" in message for message in messages)
    assert any(r"\x1b[2J" in message for message in messages)
    assert not any("\x1b" in message for message in messages)
