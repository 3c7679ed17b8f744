"""What `clearfunds relay` logs, as a process, with real clients."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING, Any

from tests.cli.peers import PUBLISH, connect, publish_until_it_waits, subscribe_to_all

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
        peer = ":".join(map(str, client.getsockname()))
    lines = logged(relay)
    by_event = {line.get("event"): line for line in lines}
    assert by_event["listening"]["urls"] == [f"mqtt+tcp://127.0.0.1:{port}"]
    for event in ("connected", "closed", "left"):
        line = by_event[event]
        assert line["account"] == f"mqtt:{port}/-/" + r"\x1b[2J"
        assert line["peer"] == peer
    assert by_event["closed"]["reason"] == by_event["left"]["reason"]
    assert by_event["closed"]["reason"] in by_event["closed"]["message"]
    assert by_event["ended"]["not_delivered"] == 0
    messages = [line["message"] for line in lines]
    assert any("SIGTERM" in message for message in messages)
    assert any(r"\x1b[2J" in message for message in messages)
    assert not any("\x1b" in message for message in messages)


def take_all(client: socket.socket) -> int:
    """Take what comes until nothing has come for a second; return how many bytes it was."""
    came = 0
    try:
        while piece := client.recv(1 << 20):
            came += len(piece)
            client.settimeout(1)
    except TimeoutError:
        pass
    return came


def test_one_that_never_says_who_it_is_has_no_account(start_relay: StartRelay) -> None:
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json")
    port = relay.mqtt_port()
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(100) == b""
    (line,) = [line for line in logged(relay) if line.get("event") == "left"]
    assert line["account"] is None
    assert line["peer"].startswith("127.0.0.1:")


def test_a_slow_wait_is_a_line_at_the_threshold_and_one_at_its_end(
    start_relay: StartRelay,
) -> None:
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json", "--slow-wait", "0.5"),
        *("--limit-items", "1000", "--patience", "600"),
    )
    port = relay.mqtt_port()
    with connect(port, b"stk") as stuck, connect(port, b"pub") as publisher:
        subscribe_to_all(stuck)
        # Until the relay has read nothing for a second: it waits for longer than the threshold.
        publish_until_it_waits(publisher)
        relay.told("slow_wait")  # it does wait, and has not only stood still itself
        stuck.settimeout(10)
        assert take_all(stuck) > 1000 * len(PUBLISH)
    lines = [each for each in logged(relay) if each.get("event", "").startswith("slow_wait")]
    # One line, and one; should the machine have stood still meanwhile, again one and one.
    assert [each["event"] for each in lines] == ["slow_wait", "slow_wait_ended"] * (len(lines) // 2)
    line, end, *_ = lines
    for each in (line, end):
        assert (each["level"], each["logger"]) == ("INFO", "clearfunds.accounts")
        assert each["account"].endswith("/pub")
        assert each["message"].startswith(each["account"])
    assert line["at"] == line["account"]
    assert line["seconds"] >= 0.5
    # It waits down to the low-water mark, half of the limit: the kernel may have taken more of it.
    assert line["items"] > 500
    assert line["bytes"] > line["items"] * 1024
    assert line["limit_items"] == 1000
    (holder,) = line["holders"]
    assert holder["holder"].endswith("/stk")
    assert holder["items"] == line["items"]
    assert holder["share"] == 1.0
    assert holder["kind"] == "outlet"
    assert holder["idle_seconds"] > 0.4
    assert end["clear"]
    assert end["seconds"] > line["seconds"]
    (culprit,) = end["holders"]
    assert culprit["holder"] == holder["holder"]
    assert culprit["share"] == 1.0
    assert culprit["blamed_seconds"] > 0.5


def test_no_slow_wait_is_told_of_if_nobody_wants_to_know(start_relay: StartRelay) -> None:
    relay = start_relay(
        *("--listen", "mqtt+tcp://127.0.0.1:0", "--log-format", "json", "--slow-wait", "none"),
        *("--limit-items", "1000", "--patience", "600", "--grace", "0"),
    )
    port = relay.mqtt_port()
    with connect(port, b"stk") as stuck, connect(port, b"pub") as publisher:
        subscribe_to_all(stuck)
        publish_until_it_waits(publisher)
    events = [line.get("event") for line in logged(relay)]
    assert events[0] == "listening"
    assert "slow_wait" not in events
