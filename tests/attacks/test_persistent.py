"""Sessions that somebody leaves behind take nothing from those of others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.attacks.kit import (
    WHOLE,
    Attacker,
    attack,
    attacked,
    connect,
    publish,
    subscribe,
)
from tests.transports.mqtt.wire import DISCONNECT


def leave(port: int, client: str, topic: str) -> None:
    """Connect with a session that is kept, subscribe with QoS 1, and go."""
    with Attacker(port, connect(client, clean=False)) as leaver:
        leaver.let_in()
        leaver.send(subscribe(topic, qos=1))
        assert leaver.receive(5)[:1] == b"\x90"
        leaver.send(DISCONNECT)
        assert leaver.receive() == b""


def order(n: int, at: int) -> bytes:
    return b"till %d order %d" % (n, at)


@attack
@pytest.mark.parametrize("kept", ["in memory", "on disk"])
def test_the_innocent_lose_no_acknowledged_message(
    kept: str, seconds: float, tmp_path: Path
) -> None:
    sessions, limit = (4_000, "32MiB") if seconds >= WHOLE else (60, "256KiB")
    options = ["--patience", "1", "--max-connections", "5000", "--kept-limit", limit]
    if kept == "on disk":
        options = ["--store", str(tmp_path), "--disk-limit", limit, *options[:4]]
    with attacked(seconds, *options) as scene:
        for n in range(20):
            leave(scene.port, f"till-{n}", f"till/{n}")
        with Attacker(scene.port, connect("shop")) as shop:
            shop.let_in()
            for n in range(20):
                for at in range(10):
                    packet_id = n * 10 + at + 1
                    shop.send(publish(f"till/{n}", order(n, at), qos=1, packet_id=packet_id))
            expected = b"".join(b"\x40\x02" + n.to_bytes(2, "big") for n in range(1, 201))
            acknowledged = b""
            while len(acknowledged) < len(expected):
                acknowledged += shop.receive()
            assert acknowledged == expected
        for n in range(sessions):
            leave(scene.port, f"mallory-{n}", "flood/#")
        # 20 KB a second, to each of them.
        answered = b""
        sent = 0
        with Attacker(scene.port, connect("flood"), timeout=0.1) as flood:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sent += 1
                flood.send(publish("flood/x", bytes(2_000), qos=1, packet_id=sent))
                time.sleep(0.1)
                answered += flood.receive()
            # Who publishes is not held up for ever: those that have more than their share go.
            end += 120
            while len(answered) < 4 * (1 + sent) and time.monotonic() < end:
                answered += flood.receive()
        for n in range(20):
            with Attacker(scene.port, connect(f"till-{n}", clean=False)) as till:
                found = b""
                while order(n, 9) not in found and (more := till.receive()):
                    found += more
                assert found[:4] == b"\x20\x02\x01\x00", "its session is gone"
                assert all(order(n, at) in found for at in range(10))
    scene.survived()
    assert len(answered) == 4 * (1 + sent)
