"""What Trio alone costs for a client that connects: nothing is done for it.

It answers the first that a client says with CONNACK, whatever that was, and reads no further. As in
the relay each client has a task and a cancel scope, and sockets are used without Trio's streams.

    python benchmarks/peers/accepting_server.py PORT
"""

from __future__ import annotations

import socket
import sys

import trio

CONNACK = b"\x20\x02\x00\x00"
BACKLOG = 4096
AT_ONCE = 64
"""Connections that are accepted before their tasks run."""


async def welcome(sock: socket.socket) -> None:
    """Answer one client, and keep it until it leaves."""
    with sock, trio.CancelScope():
        while True:
            try:
                data = sock.recv(65_536)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(sock)
                continue
            except OSError:
                return
            if not data:
                return
            sock.send(CONNACK)
            await trio.lowlevel.wait_readable(sock)


async def main(port: int) -> None:
    """Accept clients for ever."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    async with trio.open_nursery() as nursery:
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(AT_ONCE):
                try:
                    sock, address = listener.accept()
                except BlockingIOError:
                    break
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                nursery.start_soon(welcome, sock, name=f"{address[0]}:{address[1]}")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
