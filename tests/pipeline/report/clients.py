"""MQTT clients that block, each with a thread of its own."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.pipeline.relays import SECONDS
from tests.transports.mqtt import wire


class Client:
    """A client for as long as a block lasts; what it does is in `run`.

    Attributes:
        name: Its client id.
        sock: Its connection.
        ended: Set when the block ends; `run` is to return then.
    """

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.ended = threading.Event()
        self.sock = socket.socket()
        # What lies in buffers of the kernel is nobody's debt: the less, the more is recorded. And
        # segments as on an Ethernet: loopback's of 64 KiB make buffers that fall by a megabyte.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
        self.sock.settimeout(SECONDS)
        self.sock.connect(("127.0.0.1", port))
        self.sock.sendall(wire.connect(name))
        assert self.sock.recv(4, socket.MSG_WAITALL) == wire.ACCEPTED
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with suppress(OSError):  # the block's end cuts it off
            self.run()

    def run(self) -> None:
        """Do what it is for, until `ended`, or until the socket fails."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.ended.set()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS)
        self.sock.close()
        assert not self._thread.is_alive()
