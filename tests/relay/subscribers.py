"""Very many subscribers in one process: `subscribers.py PORT COUNT QOS SIZE`.

Prints `ready` when all have subscribed. Then waits for a line on stdin and from then on reads, and
acknowledges. Ends when each has received a publication whose payload ends in `last`, and prints how
many each of them got: the least and the most, and a checksum of what the first of them got.
"""

import selectors
import socket
import sys
import zlib

CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"


def connect(port: int, qos: int) -> socket.socket:
    """Connect one and subscribe to `t`; its answers are not read yet."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(CONNECT + b"\x82\x06\x00\x01\x00\x01t" + bytes((qos,)))
    return sock


def receive(sock: socket.socket, size: int) -> bytes:
    """Receive that many bytes."""
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, "the relay has closed the connection"
        data += piece
    return data


def main() -> None:
    """Do what it says above."""
    port, count, qos, size = map(int, sys.argv[1:])
    socks = [connect(port, qos) for _ in range(count)]
    for sock in socks:
        assert receive(sock, 9) == b"\x20\x02\x00\x00\x90\x03\x00\x01" + bytes((qos,))
        sock.setblocking(False)
    print("ready", flush=True)
    sys.stdin.readline()

    # Each frame is as long as the next: one byte, two of length, topic, identifier, payload.
    frame = 1 + 2 + 3 + 2 * qos + size
    rest = dict.fromkeys(socks, b"")
    got = dict.fromkeys(socks, 0)
    checksums = dict.fromkeys(socks, 0)
    by_number = {sock.fileno(): sock for sock in socks}
    selector = selectors.DefaultSelector()
    for sock in socks:
        selector.register(sock, selectors.EVENT_READ)
    left = set(socks)
    while left:
        for key, _ in selector.select():
            sock = by_number[key.fd]
            piece = sock.recv(1 << 16)
            assert piece, "the relay has closed the connection"
            data = rest[sock] + piece
            acks = b""
            while len(data) >= frame:
                payload = data[frame - size : frame]
                if qos:
                    acks += b"\x40\x02" + data[6:8]
                got[sock] += 1
                checksums[sock] = zlib.crc32(payload, checksums[sock])
                data = data[frame:]
                if payload.endswith(b"last"):
                    left.discard(sock)
            rest[sock] = data
            if acks:
                assert sock.send(acks) == len(acks)
    print(min(got.values()), max(got.values()), *sorted(set(checksums.values())), flush=True)


if __name__ == "__main__":
    main()
