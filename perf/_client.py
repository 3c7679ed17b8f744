"""A client of the generator's: it connects, comes back when it was cut off, and is pinged."""

from __future__ import annotations

import abc
import ssl
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..transports.mqtt import Granted
from ..transports.tls import said
from ._connect import KEEP_ALIVE, connect, send_all
from ._errors import PerfError
from ._scenario import Scenario, server_of, user_of
from ._tls import tls_of

if TYPE_CHECKING:
    from ..transports._layer import Connected

PING: Final = b"\xc0\x00"

KEPT_LOSSES: Final = 20
"""Of how many lost connections of one client it is known when they were; of the rest, how many."""


@attrs.define
class Loss:
    """A connection that was lost."""

    at: float
    """Seconds from the beginning of the run."""
    why: str


def clock_of(scenario: Scenario) -> Callable[[], int]:
    """Return the clock that is in the messages, in nanoseconds."""
    return time.time_ns if scenario.clock == "wall" else time.monotonic_ns


class Client(abc.ABC):
    """One connection, again and again.

    Args:
        tls: What it is encrypted with, where the server is one with TLS; None: what the scenario
            says is read for this client alone.

    Attributes:
        number: Which of its sort it is.
        run_id: What the messages of this run have in them, and those of others hardly ever.
        lost: The first of the connections that it lost.
        losses: How many it lost.
        granted: What the server lets it do, on the connection that is open.
    """

    def __init__(
        self,
        scenario: Scenario,
        number: int,
        kind: str,
        prefix: str,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.scenario = scenario
        self.number = number
        self.client_id = f"{prefix}-{kind}-{number}"
        self.run_id = zlib.crc32(prefix.encode()) & 0xFFFF
        self.now_ns = clock_of(scenario)
        self.lost: list[Loss] = []
        self.losses = 0
        self.granted = Granted()
        self._tls = tls_of(scenario) if tls is None else tls
        self._sock: Connected | None = None
        # Whether a packet has been begun and not yet sent in full.
        self._sending = False
        # Set when a ping has been sent in full of which only some was at first; None: none is.
        self._pinged: trio.Event | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._sock is not None

    def filters(self) -> list[tuple[str, int]]:
        """Return what it subscribes to."""
        return []

    def receive_buffer(self) -> int | None:
        """Return how large its socket's buffer is to be."""
        return None

    def prefetch(self) -> int | None:
        """Return how many messages it takes that it has not acknowledged."""
        return None

    async def open(self) -> None:
        """Connect.

        Raises:
            PerfError: It could not.
        """
        host, port = server_of(self.scenario.uri)
        opened = await connect(
            host,
            port,
            self.client_id,
            self.filters(),
            receive_buffer=self.receive_buffer(),
            version=self.scenario.version,
            prefetch=self.prefetch(),
            user=user_of(self.scenario.uri),
            tls=self._tls,
        )
        self._sock, self.granted = opened.sock, opened.granted
        try:
            self.opened(opened.rest)
        except PerfError:
            self.close()
            raise

    @abc.abstractmethod
    def opened(self, rest: bytes) -> None:
        """Begin anew, with what has been read already.

        Raises:
            PerfError: The server does not let it do what it is there for.
        """

    @abc.abstractmethod
    async def serve(self, sock: Connected) -> None:
        """Deal with the connection until it ends.

        Raises:
            OSError: It broke.
            PerfError: What came was no MQTT.
        """

    async def run(self, clock: Callable[[], float]) -> None:
        """Serve the connection that is open, and each one after it, until cancelled.

        Args:
            clock: Seconds from the beginning of the run.
        """
        while True:
            sock = self._sock
            if sock is not None:
                why = "the server closed the connection"
                try:
                    await self.serve(sock)
                except ssl.SSLError as error:
                    why = f"TLS: {said(error)}"
                except (OSError, PerfError) as error:
                    why = str(error)
                finally:
                    self.close()
                self.losses += 1
                if len(self.lost) < KEPT_LOSSES:
                    self.lost.append(Loss(clock(), why))
            if self.scenario.reconnect is None:
                await trio.sleep_forever()
            else:
                await trio.sleep(self.scenario.reconnect)
                with suppress(PerfError):
                    await self.open()

    def ping(self) -> bytes:
        """Say that it is alive, unless a packet is half sent: then that says so.

        Returns:
            What the kernel has not taken of it, for `finish_ping`: nothing else may come before.
        """
        sock = self._sock
        if sock is None or self._sending:
            return b""
        try:
            rest = PING[sock.send(PING) :]
        except OSError:
            return b""
        if rest:
            self._sending = True
            self._pinged = trio.Event()
        return rest

    async def finish_ping(self, rest: bytes) -> None:
        """Send the rest of a ping, however long that takes."""
        sock, pinged = self._sock, self._pinged
        if sock is None or pinged is None:
            return
        # Who reads hears of it, too.
        with suppress(OSError, trio.ClosedResourceError):
            await send_all(sock, rest)
        if pinged is self._pinged:
            self._sending = False
            self._pinged = None
        pinged.set()

    def close(self) -> None:
        """End the connection. Idempotent."""
        sock, self._sock = self._sock, None
        self._sending = False
        self._pinged = None
        if sock is not None:
            trio.lowlevel.notify_closing(sock)
            sock.close()


async def keep_alive(clients: list[Client]) -> None:
    """Ping now and then, as often as the most anxious of the servers wants it, until cancelled."""
    async with trio.open_nursery() as nursery:
        while True:
            told = (client.granted.keep_alive for client in clients)
            await trio.sleep(min([KEEP_ALIVE, *(each for each in told if each)]) / 2)
            for client in clients:
                rest = client.ping()
                if rest:
                    nursery.start_soon(client.finish_ping, rest)
