"""Memory that a peer makes the relay hold, and that no debt is for: all of it is bounded."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import ExitStack, suppress

from tests.attacks.kit import Attacker, attacked, connect, packet, publish, string, subscribe

MIB = 1 << 20


def pour(port: int, count: int, begin: bytes, rest: bytes) -> list[socket.socket]:
    """Open connections, each of which writes as much of `begin` and `rest` as it is let."""
    opened: list[socket.socket] = []
    left: dict[socket.socket, bytes] = {}
    for number in range(count):
        sock = socket.create_connection(("127.0.0.1", port), 30)
        sock.sendall(begin.replace(b"NNNN", b"%04d" % number))
        sock.setblocking(False)
        opened.append(sock)
        left[sock] = rest.replace(b"NNNN", b"%04d" % number)
    until = time.monotonic() + 10
    while left and time.monotonic() < until:
        for sock, data in list(left.items()):
            try:
                left[sock] = data[sock.send(data[: 256 << 10]) :]
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


def test_packets_that_are_never_complete() -> None:
    """A client on a slow line beside them gets its large packet through."""
    large = publish("large", bytes(MIB))
    with attacked("--listen", "mqtt+tcp://127.0.0.2:0") as scene:
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
    scene.survived()


def test_large_connects_that_are_never_complete() -> None:
    said = packet(0x10, string("MQTT"), bytes((4, 0xC2, 0, 0)), string("n"), bytes(300_000))
    small = packet(0x10, string("MQTT"), bytes((4, 0xC2, 0, 0)), string("n"), bytes(16_000))
    with attacked() as scene:
        opened = pour(scene.port, 500, b"", said[:-1])
        opened += pour(scene.port, 500, b"", small[:-1])
        time.sleep(1)
        close(opened)
    scene.survived()


def test_what_is_looked_ahead_at() -> None:
    """Publishers that wait, each with something that it has not acknowledged."""
    begin = connect("NNNN") + subscribe("own/NNNN", qos=1)
    flood = b"".join(publish("own/NNNN", bytes(1000), qos=1, packet_id=n + 1) for n in range(8_000))
    with attacked("--patience", "30", "--account-limit", "*/-/0*=100,64KiB") as scene:
        opened = pour(scene.port, 60, begin, flood)
        time.sleep(1)
        close(opened)
    scene.survived()


def test_wills() -> None:
    """Each of thousands of small properties."""
    pair = b"\x26\0\1a\0\1b"
    properties = pair * (15_000 // len(pair))
    size = len(properties)
    will = bytes((size % 128 | 128, size // 128)) + properties + string("w") + string(b"bye")
    with attacked("--will-limit", "4MiB") as scene, ExitStack() as stack:
        refused = 0
        for number in range(700):
            said = packet(
                0x10, string("MQTT"), bytes((5, 2 | 4)), struct.pack(">H", 0), b"\0",
                string(f"w{number}"), will,
            )  # fmt: skip
            client = stack.enter_context(Attacker(scene.port, said))
            answer = client.receive(5)
            refused += b"\x97" in answer
        assert refused > 0
    scene.survived()
