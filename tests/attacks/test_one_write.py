"""18 legal bytes: a publication, a subscription and DISCONNECT in one write, and the like."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clearfunds.transports.mqtt import (
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    encode,
    encode5,
)
from tests.attacks.kit import RELAY, attack, attacked


def write(port: int, version: int, client_id: str, *packets: Packet, kept: bool) -> None:
    """Connect, say all that in one write, and read until the relay closes or is silent."""
    encoded = encode if version == 4 else encode5
    properties = Properties(session_expiry=60) if kept and version == 5 else Properties()
    hello = Connect(client_id, not kept, 0, protocol_level=version, properties=properties)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(encoded(hello))
        sock.recv(1 << 16)
        sock.sendall(b"".join(map(encoded, packets)))
        if not isinstance(packets[-1], Disconnect):
            sock.recv(1 << 16)
            return
        while sock.recv(1 << 16):
            pass


def say_it_all(port: int, seconds: float) -> int:
    """Say it in all ways that were found, again and again; return how often."""
    write(port, 4, "keeper", Subscribe(1, (("x", 2),)), kept=True)
    until = time.monotonic() + seconds
    written = 0
    while time.monotonic() < until:
        for version in (4, 5):
            for then in (Subscribe(2, (("y", 1),)), Unsubscribe(2, ("y",))):
                for qos in (1, 2):
                    publication = Publish("x", b"", qos, retain=qos == 2, packet_id=1)
                    for kept in (True, False):
                        packets = (publication, then, Disconnect())
                        write(port, version, f"evil{version}", *packets, kept=kept)
                        written += 1
    return written


def credit_flow(*argv: str, **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen([sys.executable, "-m", "experiments.credit_flow", *argv], **options)


@attack
@pytest.mark.parametrize("options", [[], ["credit"], ["--store"]])
def test_whole_packets_in_one_write_end_nobody_else(
    options: list[str], seconds: float, tmp_path: Path
) -> None:
    given = [*options, str(tmp_path / "store")] if options == ["--store"] else []
    start = credit_flow if options == ["credit"] else RELAY
    with attacked(seconds, *given, start=start) as scene:
        assert say_it_all(scene.port, seconds)
    scene.survived()
