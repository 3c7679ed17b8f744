"""Memory that a peer makes the relay hold, and that no debt is for: all of it is bounded."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from tests.attacks.kit import (
    Attacker,
    attack,
    attacked,
    connect,
    publish,
    subscribe,
)
from tests.transports.mqtt.wire import packet, string

MIB = 1 << 20


def pour(port: int, count: int, begin: bytes, rest: bytes) -> list[socket.socket]:
    """Open connections, each of which writes as much of `begin` and `rest` as it is let.

    It is over when nothing more has been taken for a second, or after three.
    """
    opened: list[socket.socket] = []
    left: dict[socket.socket, bytes] = {}
    for number in range(count):
        sock = socket.create_connection(("127.0.0.1", port), 30)
        sock.sendall(begin.replace(b"NNNN", b"%04d" % number))
        sock.setblocking(False)
        opened.append(sock)
        left[sock] = rest.replace(b"NNNN", b"%04d" % number)
    until = time.monotonic() + 1
    latest = until + 2
    while left and time.monotonic() < until:
        for sock, data in list(left.items()):
            try:
                left[sock] = data[sock.send(data[: 256 << 10]) :]
                until = min(time.monotonic() + 1, latest)
            except BlockingIOError:
                continue
            except OSError:
                left[sock] = b""
            if not left[sock]:
                del left[sock]
        time.sleep(0.01)
    return opened


def close(opened: list[socket.socket]) -> None:
    for sock in opened:
        with suppress(OSError):
            sock.close()


def hold(seconds: float, attack: Callable[[], list[socket.socket]]) -> None:
    """Begin again each ten seconds, until it is over."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        opened = attack()
        time.sleep(max(0.0, min(now + 10, end) - time.monotonic()))
        close(opened)


@attack
def test_packets_that_are_never_complete(seconds: float) -> None:
    """A client on a slow line beside them gets its large packet through."""
    large = publish("large", bytes(MIB))
    with attacked(seconds, "--listen", "mqtt+tcp://127.0.0.2:0") as scene:
        honest = Attacker(scene.port, connect("honest") + subscribe("large")).let_in()
        opened = pour(scene.port, 300, connect("NNNN"), large[: MIB - 100])
        other = int(scene.relay.listening[1].rpartition(":")[2])
        slow = socket.create_connection(("127.0.0.2", other), 30, ("127.0.0.3", 0))
        slow.sendall(connect("slow"))
        said = publish("large", bytes(2 * MIB - 100))
        for start in range(0, len(said), 64 << 10):
            slow.sendall(said[start : start + (64 << 10)])
            time.sleep(0.02)
        got = 0
        while got < 2 * MIB - 100:
            data = honest.receive()
            assert data
            got += len(data)
        assert scene.relay.ledger()["totals"]["at_rest"]["ram"]["bytes"] <= 80 * MIB
        close([*opened, slow, honest.sock])
        hold(seconds, lambda: pour(scene.port, 300, connect("NNNN"), large[: MIB - 100]))
    scene.survived()


@attack
def test_large_connects_that_are_never_complete(seconds: float) -> None:
    said = packet(0x10, string("MQTT"), bytes((4, 0xC2, 0, 0)), string("n"), bytes(300_000))
    small = packet(0x10, string("MQTT"), bytes((4, 0xC2, 0, 0)), string("n"), bytes(16_000))
    with attacked(seconds) as scene:
        port = scene.port
        hold(
            seconds,
            lambda: pour(port, 500, b"", said[:-1]) + pour(port, 500, b"", small[:-1]),
        )
    scene.survived()


@attack
def test_what_is_looked_ahead_at(seconds: float) -> None:
    """Publishers that wait, each with something that it has not acknowledged."""
    begin = connect("NNNN") + subscribe("own/NNNN", qos=1)
    flood = b"".join(publish("own/NNNN", bytes(1000), qos=1, packet_id=n + 1) for n in range(8_000))
    options = ("--patience", "30", "--account-limit", "*/-/0*=100,64KiB")
    with attacked(seconds, *options) as scene:
        hold(seconds, lambda: pour(scene.port, 60, begin, flood))
    scene.survived()


@attack
def test_wills(seconds: float) -> None:
    """Each of thousands of small properties."""
    pair = b"\x26\0\1a\0\1b"
    properties = pair * (15_000 // len(pair))
    size = len(properties)
    will = bytes((size % 128 | 128, size // 128)) + properties + string("w") + string(b"bye")
    refused = 0

    def come() -> list[socket.socket]:
        nonlocal refused
        opened: list[socket.socket] = []
        for number in range(400):
            said = packet(
                0x10, string("MQTT"), bytes((5, 2 | 4)), struct.pack(">H", 0), b"\0",
                string(f"w{number}"), will,
            )  # fmt: skip
            client = Attacker(scene.port, said)
            opened.append(client.sock)
            refused += b"\x97" in client.receive(5)
        return opened

    with attacked(seconds, "--will-limit", "1MiB") as scene:
        hold(seconds, come)
    assert refused > 0
    scene.survived()
