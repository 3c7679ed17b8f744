"""Attacks by readers of ranges, and on their listener."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from clearfunds.ranges.client import NotAuthorizedError, RangeReader
from clearfunds.ranges.wire import Auth, Hello, Kind, encode_request
from tests.attacks.kit import (
    MORE_MEMORY,
    SHORT,
    Attacker,
    attacked,
    connect,
    publish,
    relay_process,
    resident,
    until_over,
)
from tests.transports.mqtt.users import user_line

RANGES = ("--listen", "subscribe+tcp://127.0.0.1:0")


def port_of(listening: list[str]) -> int:
    """Return the port of the listener for readers."""
    (url,) = [each for each in listening if each.startswith("subscribe")]
    return int(url.rpartition(":")[2])


def test_an_idle_reader_of_everything_stops_nobody_for_ever() -> None:
    """It acknowledges nothing; a publisher of QoS 1 sends more than it may owe."""
    messages, together = 6_000, 100
    done: list[float] = []
    with attacked(SHORT, *RANGES, "--limit-items", "2000", "--reader-patience", "1") as scene:
        host = "127.0.0.1"
        with (
            RangeReader(host, port_of(scene.relay.listening), "idle", filters=["#"]) as idle,
            Attacker(scene.port, connect("till")) as till,
        ):
            till.let_in()
            some = b"".join(
                publish("bank", bytes(20), qos=1, packet_id=n + 1) for n in range(together)
            )
            began = time.monotonic()
            for _ in range(messages // together):
                assert till.send(some)
                answers = 0
                while answers < 4 * together:
                    answers += len(till.receive())
            done.append(time.monotonic() - began)
            assert idle.head().low > 1
        assert "made no progress" in scene.relay.logged()
    assert done[0] < 15
    scene.survived()


def test_who_does_not_log_in_is_held_next_to_nothing_for(tmp_path: Path) -> None:
    """A thousand connections that begin a log-in and do not end it, and some that write much."""
    users = tmp_path / "users"
    users.write_text(user_line("anna", b"secret"))
    users.chmod(0o600)
    hello = encode_request(0, Hello(1, 1))
    begun = hello + encode_request(1, Auth("anna", bytes(8_000)))[:-1]
    too_large = hello + struct.pack("<IB3xI", 60_000, Kind.ATTACH, 1)
    with relay_process(*RANGES, "--passwords", str(users), "--connect-timeout", "2") as relay:
        port = port_of(relay.listening)
        before = resident(relay.pid)
        with ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(Attacker(port, begun))

            def flood() -> None:
                with Attacker(port, too_large, timeout=5) as attacker:
                    while attacker.send(bytes(1 << 16)):
                        pass

            until_over(2, flood, flood)
            assert resident(relay.pid) - before < MORE_MEMORY // 4
        relay.lives()
        with pytest.raises(NotAuthorizedError, match="give a user and a password"):
            RangeReader("127.0.0.1", port, "s", filters=["#"])
