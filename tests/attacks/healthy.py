"""A healthy publisher and subscriber, in a process of their own, whose latency is watched.

Usage: python healthy.py PORT [--seconds S] [--qos 0|1] [--user NAME --password WORD]

It prints `ready` once both are connected, publishes 200 messages a second until its stdin is closed
or the time is over, waits a moment for what is still on its way, and prints one line of JSON:
`{"sent": ..., "received": ..., "p50": ..., "p99": ..., "max": ...}`, the latencies in seconds from
when each message was due, so that a publisher that is held up counts too. What never came counts as
infinitely late, and is null in a percentile. It needs the standard library only, so that it starts
at once and shares no mistake with the relay.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import selectors
import socket
import struct
import sys
import threading
import time

RATE = 200
"""Messages a second."""
SIZE = 32
"""Bytes of payload."""
PATIENCE = 10.0
"""Seconds that the last messages may take to come when the publisher has stopped."""
TOPIC = "healthy/pair"


def string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


def packet(first: int, body: bytes) -> bytes:
    length, rest = bytearray(), len(body)
    while rest > 127:
        length.append(rest % 128 | 128)
        rest //= 128
    length.append(rest)
    return bytes((first,)) + bytes(length) + body


class Client:
    """One connection; blocking."""

    def __init__(self, port: int, client_id: str, user: str, password: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        flags = 2 | (0xC0 if user else 0)
        body = string("MQTT") + bytes((4, flags, 0, 0)) + string(client_id)
        if user:
            body += string(user) + string(password)
        self.sock.sendall(packet(0x10, body))
        self.reader = self.sock.makefile("rb")
        answer = self.receive()
        if answer != (0x20, b"\0\0"):
            raise SystemExit(f"{client_id} was not let in: {answer}")

    def receive(self) -> tuple[int, bytes] | None:
        """Return the next packet's first byte and body; None at the end of the stream."""
        try:
            first = self.reader.read(1)
            length = shift = 0
            while first:
                byte = self.reader.read(1)[0]
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return first[0], self.reader.read(length)
        except (OSError, IndexError):
            pass
        return None


class Watch:
    """Notes when each message came; answers those with QoS 1."""

    def __init__(self, client: Client, qos: int) -> None:
        self.client = client
        self.latencies: dict[int, float] = {}
        client.sock.sendall(packet(0x82, b"\0\1" + string(TOPIC) + bytes((qos,))))
        assert client.receive() == (0x90, bytes((0, 1, qos)))
        client.sock.settimeout(None)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        start = 2 + len(TOPIC)
        while (got := self.client.receive()) is not None:
            first, body = got
            if first & 0xF0 != 0x30:
                continue
            at = start + (2 if first & 6 else 0)
            number, due = struct.unpack_from(">Qd", body, at)
            self.latencies.setdefault(number, time.monotonic() - due)
            if first & 6:
                self.client.sock.sendall(packet(0x40, body[start : start + 2]))


def publish(client: Client, qos: int, seconds: float) -> int:
    """Publish until stdin is closed or the time is over; return how many were sent."""
    looked = selectors.DefaultSelector()
    looked.register(sys.stdin, selectors.EVENT_READ)
    begin = time.monotonic()
    sent = 0
    while (due := begin + sent / RATE) < begin + seconds:
        if looked.select(max(0.0, due - time.monotonic())):
            if not os.read(sys.stdin.fileno(), 1):
                break
            continue
        body = string(TOPIC) + (struct.pack(">H", sent % 65_535 + 1) if qos else b"")
        body += struct.pack(">Qd", sent, due).ljust(SIZE, b".")
        try:
            client.sock.sendall(packet(0x30 | qos << 1, body))
        except OSError:
            return sent + 1
        sent += 1
    return sent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--qos", type=int, default=0, choices=(0, 1))
    parser.add_argument("--user", default="")
    parser.add_argument("--password", default="")
    parser.add_argument("--name", default="healthy")
    args = parser.parse_args()
    watch = Watch(Client(args.port, f"{args.name}-sub", args.user, args.password), args.qos)
    publisher = Client(args.port, f"{args.name}-pub", args.user, args.password)
    publisher.sock.settimeout(30)
    if args.qos:  # its acknowledgements are read and forgotten
        threading.Thread(target=lambda: all(iter(publisher.receive, None)), daemon=True).start()
    print("ready", flush=True)
    sent = publish(publisher, args.qos, args.seconds)
    until = time.monotonic() + PATIENCE
    while len(watch.latencies) < sent and time.monotonic() < until and watch.thread.is_alive():
        time.sleep(0.01)
    late = sorted(watch.latencies.values())
    late += [math.inf] * (sent - len(late))

    def percentile(share: float) -> float | None:
        found = late[min(len(late) - 1, math.ceil(share * len(late)) - 1)] if late else math.inf
        return None if math.isinf(found) else round(found, 6)

    found = {"p50": percentile(0.5), "p99": percentile(0.99), "max": percentile(1.0)}
    print(json.dumps({"sent": sent, "received": len(watch.latencies), **found}), flush=True)


if __name__ == "__main__":
    main()
