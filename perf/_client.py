"""A client of the generator: it connects, reconnects after a loss, and sends pings."""

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

from ..sockets import said
from ..transports import RemoteProtocolError, TransportError
from ..transports._connecting import send_all
from ..transports.mqtt import ConnectionLostError, Disconnect, Granted, PingReq, decode5, encode
from ..transports.mqtt.client._errors import why_disconnected
from ..transports.mqtt.codec._frames import DISCONNECT
from ._connect import KEEP_ALIVE, connect
from ._errors import PerfError
from ._scenario import Scenario, server_of
from ._tls import tls_of

if TYPE_CHECKING:
    from ..sockets._layer import Connected

PING: Final = encode(PingReq())

KEPT_LOSSES: Final = 20
"""Lost connections of one client that are listed with time and reason; the rest is counted."""


@attrs.define
class Loss:
    """A lost connection."""

    at: float
    """Seconds from the beginning of the run."""
    why: str


def clock_of(scenario: Scenario) -> Callable[[], int]:
    """Return the clock for the times in the messages, in nanoseconds."""
    return time.time_ns if scenario.clock == "wall" else time.monotonic_ns


def disconnected(body: bytes) -> TransportError:
    """Return the error for the body of a server's DISCONNECT, which only MQTT 5 has."""
    try:
        packet = decode5(DISCONNECT, body)
    except RemoteProtocolError as error:
        return error
    assert isinstance(packet, Disconnect)
    return ConnectionLostError(why_disconnected(packet))


class Client(abc.ABC):
    """One client with its connection, which it opens again after a loss.

    Args:
        tls: The TLS context, for a server with TLS; None: this client reads the scenario's files
            itself.

    Attributes:
        number: Its number among the clients of its kind.
        run_id: Identifies the messages of this run; those of other runs hardly ever have it.
        lost: The first of its lost connections.
        losses: Number of lost connections.
        granted: The server's limits for it, on the open connection.
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
        # Whether a packet is sent in part.
        self._sending = False
        # Set when a partly sent ping has been sent in full. None: no ping is partly sent.
        self._pinged: trio.Event | None = None

    @property
    def connected(self) -> bool:
        """Whether it is connected."""
        return self._sock is not None

    def filters(self) -> list[tuple[str, int]]:
        """Return its subscriptions."""
        return []

    def receive_buffer(self) -> int | None:
        """Return the size of its socket's receive buffer."""
        return None

    def prefetch(self) -> int | None:
        """Return its prefetch: the largest number of unacknowledged messages."""
        return None

    async def open(self) -> None:
        """Connect.

        Raises:
            PerfError: The connection failed.
        """
        server = server_of(self.scenario.uri)
        password = None if server.password is None else server.password.encode()
        opened = await connect(
            server.host,
            server.port,
            self.client_id,
            self.filters(),
            receive_buffer=self.receive_buffer(),
            version=self.scenario.version,
            prefetch=self.prefetch(),
            user=(server.username, password),
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
        """Begin anew on a new connection, with the bytes that were read already.

        Raises:
            PerfError: The server does not allow the load that it is to make.
        """

    @abc.abstractmethod
    async def serve(self, sock: Connected) -> None:
        """Serve the connection until it ends.

        Raises:
            OSError: The connection broke.
            TransportError: The server sent something other than MQTT, or disconnected it.
        """

    async def run(self, clock: Callable[[], float]) -> None:
        """Serve the open connection, and each one after it, until cancelled.

        Args:
            clock: Returns seconds from the beginning of the run.
        """
        while True:
            sock = self._sock
            if sock is not None:
                why = "the server closed the connection"
                try:
                    await self.serve(sock)
                except ssl.SSLError as error:
                    why = f"TLS: {said(error)}"
                except (OSError, TransportError) as error:
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
        """Send a ping, unless a packet is partly sent: the rest of it shows that it is alive.

        Returns:
            the rest that the kernel has not taken, for `finish_ping`: send nothing before it.
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
        """Send the rest of a ping, without a time limit."""
        sock, pinged = self._sock, self._pinged
        if sock is None or pinged is None:
            return
        # The reading task notices an error, too.
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
    """Ping periodically, as often as the shortest keep-alive asks for, until cancelled."""
    async with trio.open_nursery() as nursery:
        while True:
            told = (client.granted.keep_alive for client in clients)
            await trio.sleep(min([KEEP_ALIVE, *(each for each in told if each)]) / 2)
            for client in clients:
                rest = client.ping()
                if rest:
                    nursery.start_soon(client.finish_ping, rest)
