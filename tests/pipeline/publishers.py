"""Publishers that want to be quick, over MQTT; each is a thread that is made to wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.pipeline.relays import SECONDS
from tests.transports.mqtt import wire


def until(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait for something; return what it is."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it has not come to pass"
        time.sleep(0.02)
    return found


class Flood:
    """Publishes numbered messages as fast as its connection takes them.

    With QoS 0 nobody tells it to wait: the relay does not read on, and TCP does the rest. It keeps
    its connection until the end of the block, so that its account stays in the books.

    Args:
        port: Where the relay listens for MQTT.
        topic: Where to.
        count: How many.
        name: Its client id.
        filling: Bytes behind the number.

    Attributes:
        sent: How many the kernel has taken.
        seconds: How long that has taken, when it is over.
    """

    def __init__(
        self, port: int, topic: str, count: int, name: str = "flood", filling: bytes = b""
    ) -> None:
        self.topic = topic
        self.sent = 0
        self.seconds: float | None = None
        self._count = count
        self._filling = filling
        self._sock = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self._sock.sendall(wire.connect(name))
        assert self._sock.recv(4, socket.MSG_WAITALL) == wire.ACCEPTED
        self._sock.settimeout(None)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def value(self, number: int) -> bytes:
        """Return what is in a message."""
        return b"%d" % number + self._filling

    @property
    def values(self) -> list[bytes]:
        """Return what is in all of them."""
        return [self.value(number) for number in range(self._count)]

    def _run(self) -> None:
        began = time.monotonic()
        try:
            for first in range(0, self._count, 20):
                numbers = range(first, min(first + 20, self._count))
                self._sock.sendall(
                    b"".join(wire.publish(self.topic, self.value(each)) for each in numbers)
                )
                self.sent = numbers.stop
        except OSError:
            return  # the relay was killed, or the test is over
        self.seconds = time.monotonic() - began

    def close(self) -> None:
        """End the connection, whatever was not sent."""
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS)
        self._sock.close()
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
