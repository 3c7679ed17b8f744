"""The least that a process in front of JetStream costs: it forwards, and does nothing else.

It takes MQTT's PUBLISH with QoS 1, publishes the payload to one subject, and answers PUBACK when
JetStream has acknowledged it. No topics, no sessions, no accounts, no limits; blocking calls over
plain sockets, without Trio. What came in one read is forwarded with one write, both ways.

    python benchmarks/peers/forwarding_server.py PORT NATS_PORT SUBJECT
"""

from __future__ import annotations

import re
import select
import socket
import sys

CONNACK = b"\x20\x02\x00\x00"
READ = 1 << 18
ACK = re.compile(rb"MSG a\.(\d+) 1 \d+\r\n\{[^\r]*\r\n")
"""An answer of JetStream, to the packet of that identifier."""


def to_nats(port: int) -> socket.socket:
    """Return a connection to NATS that has subscribed to the answers."""
    nats = connected(socket.create_connection(("127.0.0.1", port)))
    nats.recv(READ)
    nats.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB a.* 1\r\nPING\r\n')
    while not nats.recv(READ).endswith(b"PONG\r\n"):
        pass
    return nats


def connected(sock: socket.socket) -> socket.socket:
    """Return a socket that sends at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def taken(buffer: bytes, subject: bytes) -> tuple[bytes, bytes, bytes]:
    """Return an answer for the client, what to publish, and the bytes of a packet not yet whole."""
    answer, published = b"", bytearray()
    at = 0
    while len(buffer) - at >= 2:
        length, body = buffer[at + 1], at + 2
        if length > 127:
            if len(buffer) == body:
                break
            length += buffer[body] - 1 << 7
            body += 1
        if len(buffer) < body + length:
            break
        if buffer[at] == 0x10:
            answer += CONNACK
        elif buffer[at] == 0x32:
            ident = body + 2 + (buffer[body] << 8 | buffer[body + 1])
            number = buffer[ident] << 8 | buffer[ident + 1]
            payload = buffer[ident + 2 : body + length]
            published += b"PUB %b a.%d %d\r\n%b\r\n" % (subject, number, len(payload), payload)
        at = body + length
    return answer, bytes(published), buffer[at:]


def serve(client: socket.socket, nats: socket.socket, subject: bytes) -> None:
    """Forward for one client until it leaves."""
    both = select.epoll()
    both.register(client, select.EPOLLIN)
    both.register(nats, select.EPOLLIN)
    said = acked = b""
    while True:
        for fd, _ in both.poll():
            if fd == client.fileno():
                data = client.recv(READ)
                if not data or data == b"\xe0\x00":
                    return
                answer, published, said = taken(said + data, subject)
                if answer:
                    client.sendall(answer)
                if published:
                    nats.sendall(published)
            else:
                acked += nats.recv(READ)
                numbers = [*ACK.finditer(acked)]
                if numbers:
                    acked = acked[numbers[-1].end() :]
                    client.sendall(
                        b"".join(b"\x40\x02%b" % int(n[1]).to_bytes(2, "big") for n in numbers)
                    )


def main(port: int, nats_port: int, subject: bytes) -> None:
    """Serve clients for ever, one after the other."""
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        client, _ = listener.accept()
        with connected(client), to_nats(nats_port) as nats:
            serve(client, nats, subject)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode())
