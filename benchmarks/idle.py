"""The cost of idle connections to the relay: KiB of resident memory for each of many.

The relay runs as a process, with its defaults. Each connection is an MQTT client that is silent
after it has

    connected     without subscribing to anything
    subscribed    to one topic, of its own
    gone          closed its connection: what Python keeps for the next ones
    again         connected and subscribed once more, as many of them: a leak would show here

The relay may use at most 12 KiB for an idle connection (`--check`).
"""

from __future__ import annotations

import argparse
import resource
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.servers import MOSQUITTO, AnyServer, Relay, Running

BUDGET_KIB = 12.0
SETTLE_SECONDS = 1.0
ACCEPTED = b"\x20\x02\x00\x00"


def resident_kib(pid: int) -> int:
    """Return the resident set of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def utf8(text: str) -> bytes:
    """Return a string as MQTT has it."""
    return struct.pack(">H", len(text)) + text.encode()


def connect(
    port: int, number: int, secure: Callable[[socket.socket], socket.socket] | None = None
) -> socket.socket:
    """Connect a client, by what `secure` makes of its socket, and wait until it is accepted."""
    body = utf8("MQTT") + b"\x04\x02\x00\x00" + utf8(f"client-{number:06}")
    sock = socket.create_connection(("127.0.0.1", port))
    if secure is not None:
        sock = secure(sock)
    sock.sendall(bytes((0x10, len(body))) + body)
    answer = sock.recv(4, 0 if secure else socket.MSG_WAITALL)
    if answer != ACCEPTED:
        raise SystemExit(f"connection {number} was answered with {answer!r}")
    return sock


def subscribe(sock: socket.socket, topic: str, qos: int = 0) -> None:
    """Subscribe and wait for the answer."""
    body = b"\x00\x01" + utf8(topic) + bytes((qos,))
    sock.sendall(bytes((0x82, len(body))) + body)
    sock.recv(5, socket.MSG_WAITALL)


def measure(running: Running, connections: int) -> dict[str, float]:
    """Open that many connections; return KiB for each of them, by condition."""
    connect(running.port, 0).close()  # what is made once is not counted
    time.sleep(SETTLE_SECONDS)
    before = resident_kib(running.pid)
    found: dict[str, float] = {}

    def look(condition: str) -> None:
        time.sleep(SETTLE_SECONDS)
        found[condition] = (resident_kib(running.pid) - before) / connections

    socks = [connect(running.port, number) for number in range(1, connections + 1)]
    look("connected")
    for number, sock in enumerate(socks):
        subscribe(sock, f"devices/{number:06}/commands")
    look("subscribed")
    for sock in socks:
        sock.close()
    look("gone")
    socks = [connect(running.port, number) for number in range(1, connections + 1)]
    for number, sock in enumerate(socks):
        subscribe(sock, f"devices/{number:06}/commands")
    look("again")
    for sock in socks:
        sock.close()
    return found


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--mosquitto", action="store_true", help="measure mosquitto beside it")
    parser.add_argument("--check", action="store_true", help="fail above the budget")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < options.connections + 100:
        raise SystemExit(f"{options.connections} connections want more descriptors than {most}")
    # Servers inherit it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    servers: list[AnyServer] = [Relay(options=("--log-level", "warning"))]
    if options.mosquitto:
        servers.append(MOSQUITTO)
    too_much = False
    print(f"KiB of resident memory for each of {options.connections} connections")
    for server in servers:
        missing = server.missing()
        if missing is not None:
            print(missing)
            continue
        with (
            tempfile.TemporaryDirectory() as scratch,
            server.running(Path(scratch), None) as running,
        ):
            found = measure(running, options.connections)
        figures = ", ".join(f"{name} {kib:.1f}" for name, kib in found.items())
        print(f"{server.name}: {figures}")
        if server.name == "relay" and found["connected"] > BUDGET_KIB:
            too_much = True
    if options.check and too_much:
        print(f"An idle connection may cost {BUDGET_KIB:g} KiB.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
