"""The least that an MQTT server costs in Python: it routes, and does nothing else.

One epoll set and plain sockets, without Trio. Topics by name, or with a wildcard for the last
level or all; QoS 0 and 1. No sessions, accounts, limits, backpressure or checks: what a subscriber
has not read yet is kept in memory, and what a client says is believed.

    python benchmarks/peers/routing_server.py PORT
"""

from __future__ import annotations

import select
import socket
import sys

CONNACK = b"\x20\x02\x00\x00"
PINGRESP = b"\xd0\x00"
CONNECT, PUBLISH, PUBLISH_QOS_1, SUBSCRIBE, PINGREQ = 0x10, 0x30, 0x32, 0x82, 0xC0
READ = 1 << 16
BACKLOG = 4096
AT_ONCE = 64
"""Connections that are accepted in one pass, as the relay does."""


class Client:
    """A connection, what is to be sent to it, and what has come of a packet that is not whole."""

    __slots__ = ("filters", "number", "out", "rest", "sock", "waits")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.filters: set[bytes] = set()
        self.number = 0
        self.out: list[bytes] = []
        self.rest = b""
        self.waits = False


class Router:
    """All that there is."""

    def __init__(self, port: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.clients: dict[int, Client] = {}
        # Subscribers and the QoS of each, by filter; and by topic, of those that there have been.
        self.filters: dict[bytes, dict[Client, int]] = {}
        self.routes: dict[bytes, list[tuple[Client, int]]] = {}

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            touched: set[Client] = set()
            for fd, event in self.poll.poll():
                client = self.clients.get(fd)
                if client is None:
                    self.accept()
                elif event & select.EPOLLOUT:
                    touched.add(client)
                else:
                    try:
                        data = client.sock.recv(READ)
                    except ConnectionError:
                        data = b""
                    if data:
                        self.take(client, data, touched)
                    else:
                        self.leave(fd, client)
            for client in touched:
                self.send(client)

    def accept(self) -> None:
        """Accept those who have come."""
        for _ in range(AT_ONCE):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            self.clients[sock.fileno()] = Client(sock)
            self.poll.register(sock, select.EPOLLIN)

    def leave(self, fd: int, client: Client) -> None:
        """Forget a client that has left."""
        self.poll.unregister(fd)
        client.sock.close()
        del self.clients[fd]
        for each in client.filters:
            del self.filters[each][client]
            self.routes.clear()

    def send(self, client: Client) -> None:
        """Send what there is for a client, or as much as its socket takes."""
        data = b"".join(client.out)
        try:
            sent = client.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it leaves
        client.out = [data[sent:]] if sent < len(data) else []
        if client.waits != bool(client.out):
            client.waits = not client.waits
            self.poll.modify(client.sock, select.EPOLLIN | (select.EPOLLOUT if client.waits else 0))

    def take(self, client: Client, data: bytes, touched: set[Client]) -> None:
        """Handle what one read has brought."""
        data = client.rest + data
        at = 0
        while len(data) - at >= 2:
            kind, length, body = data[at], data[at + 1], at + 2
            if length > 127:
                if body == len(data):
                    break
                length += data[body] - 1 << 7
                body += 1
            end = body + length
            if end > len(data):
                break
            if kind in (PUBLISH, PUBLISH_QOS_1):
                payload = topic_end = body + 2 + (data[body] << 8 | data[body + 1])
                if kind == PUBLISH_QOS_1:
                    payload += 2
                    client.out.append(b"\x40\x02" + data[topic_end:payload])
                    touched.add(client)
                topic = data[body + 2 : topic_end]
                for to, qos in self.routes.get(topic) or self.route(topic):
                    if kind == PUBLISH:
                        to.out.append(data[at:end])
                    elif qos:
                        to.number = to.number % 65_535 + 1
                        number = to.number.to_bytes(2, "big")
                        to.out.append(data[at:topic_end] + number + data[payload:end])
                    else:
                        size = length - 2
                        head = bytes((size & 0x7F | 0x80, size >> 7) if size > 127 else (size,))
                        rest = data[body:topic_end] + data[payload:end]
                        to.out.append(b"\x30" + head + rest)
                    touched.add(to)
            elif kind == SUBSCRIBE:
                place, codes = body + 2, b""
                while place < end:
                    after = place + 2 + (data[place] << 8 | data[place + 1])
                    wanted = data[place + 2 : after]
                    client.filters.add(wanted)
                    self.filters.setdefault(wanted, {})[client] = data[after]
                    codes += data[after : after + 1]
                    place = after + 1
                self.routes.clear()
                suback = bytes((0x90, 2 + len(codes))) + data[body : body + 2] + codes
                client.out.append(suback)
                touched.add(client)
            elif kind in (CONNECT, PINGREQ):
                client.out.append(CONNACK if kind == CONNECT else PINGRESP)
                touched.add(client)
            at = end
        client.rest = data[at:]

    def route(self, topic: bytes) -> list[tuple[Client, int]]:
        """Look for the subscribers of a topic, and remember them."""
        level = topic.rpartition(b"/")[0]
        qos: dict[Client, int] = {}
        for each in (topic, level + b"/#", level + b"/+", b"#"):
            for client, granted in self.filters.get(each, {}).items():
                qos[client] = max(granted, qos.get(client, 0))
        found = list(qos.items())
        self.routes[topic] = found
        return found


if __name__ == "__main__":
    Router(int(sys.argv[1])).serve()
