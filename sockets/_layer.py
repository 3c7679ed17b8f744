"""Layers that a connection's bytes pass: a socket, or a layer on top of one that looks like it."""

from __future__ import annotations

import errno
import os
from typing import Any, Protocol


class Connected(Protocol):
    """The parts of a connected, non-blocking `socket.socket` that connections here use."""

    @property
    def family(self) -> int:
        """The address family."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once it is closed."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Read some: at most `size` bytes from the network, which a layer may make a few more."""
        ...

    def send(self, data: Any, /) -> int:
        """Send some, and return how many bytes of it have been taken; see `socket.socket.send`."""
        ...

    def shutdown(self, how: int, /) -> None:
        """See `socket.socket.shutdown`."""
        ...

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """See `socket.socket.setsockopt`."""
        ...

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        """See `socket.socket.getsockopt`."""
        ...

    def close(self) -> None:
        """See `socket.socket.close`. Idempotent."""
        ...


class Layer:
    """A `Connected` on top of another; it passes on what a kind of layer does not do itself.

    Args:
        below: The one below, taken over: do not use it any more.
    """

    __slots__ = ("_below",)

    def __init__(self, below: Connected) -> None:
        self._below = below

    @property
    def family(self) -> int:
        """See `Connected.family`."""
        return self._below.family

    def fileno(self) -> int:
        """See `Connected.fileno`."""
        return self._below.fileno()

    def recv(self, size: int, /) -> bytes:
        """See `Connected.recv`."""
        return self._below.recv(size)

    def shutdown(self, how: int, /) -> None:
        """See `Connected.shutdown`."""
        self._below.shutdown(how)

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """See `Connected.setsockopt`."""
        self._below.setsockopt(level, name, value)

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        """See `Connected.getsockopt`."""
        return self._below.getsockopt(level, name, size)

    def close(self) -> None:
        """See `Connected.close`."""
        self._below.close()


def would_block() -> BlockingIOError:
    """Make the exception of a socket call that would block."""
    return BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
