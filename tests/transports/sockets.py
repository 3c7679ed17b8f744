"""Sockets that do what a kernel does seldom."""

from __future__ import annotations

import socket
from typing import Any


class GrudgingSocket(socket.socket):
    """A socket of which the kernel takes so much with each send, and everything afterwards.

    Nobody is at its other end.

    Args:
        takes: Bytes; 0: it would block.

    Attributes:
        taken: What it has taken.
    """

    def __init__(self, takes: list[int]) -> None:
        super().__init__()
        self.setblocking(False)
        self._takes = takes
        self.taken = bytearray()

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Take what the next of these says."""
        much = self._takes.pop(0) if self._takes else len(data)
        if not much:
            raise BlockingIOError
        self.taken.extend(data[:much])
        return min(much, len(data))


class ReluctantSocket(socket.socket):
    """One end of a pair, which takes so much with each send; everything where nothing is said.

    Attributes:
        takes: Bytes; 0: it would block.
    """

    takes: list[int]

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Take what the next of `takes` says."""
        much = self.takes.pop(0) if self.takes else len(data)
        if not much:
            raise BlockingIOError
        return super().send(memoryview(data)[:much], flags)


def reluctant_pair() -> tuple[ReluctantSocket, socket.socket]:
    """Return two ends that do not block, and have room for much."""
    near, far = socket.socketpair()
    reluctant = ReluctantSocket(near.family, near.type, near.proto, fileno=near.detach())
    reluctant.takes = []
    for sock in (reluctant, far):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    return reluctant, far
