"""TCP, TLS, Unix and WebSocket listeners by URL."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import sys
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import SplitResult, urlsplit

import attrs
import trio

from ..sockets import TransportError, trouble_with_listening
from ._accept_pace import AcceptPace
from ._link import Link

if TYPE_CHECKING:
    from ..sockets._layer import Connected

logger = logging.getLogger("clearfunds.transports")

BACKLOG = 4096
"""Connections the kernel keeps until they are accepted; as Linux's own somaxconn."""

ACCEPTS_A_STEP = 64
"""How many connections are accepted before other tasks may run."""

ACCEPT_PAUSE_SECONDS = 0.1
"""The pause when there is no descriptor left to accept with, as in `trio.serve_listeners`."""

UNSENT_BYTES = 16 << 10
"""Unsent bytes that the kernel may keep for a slow peer, where little should lie there: the value
that web servers have set for HTTP/2 (net.ipv4.tcp_notsent_lowat)."""

DEFAULT_UNSENT_BYTES = 1 << 20
"""The same where nothing else is said; as Envoy's per_connection_buffer_limit_bytes. Without it the
kernel takes up to 4 MB (net.ipv4.tcp_wmem), which no scheduler can put in another order. Measured
with nine subscribers that got as much as there was, on a busy machine: 128 KiB cost a quarter more
CPU per delivery, 512 KiB a seventh, 1 MiB nothing."""

TRANSPORTS = ("tcp", "tls", "unix", "ws", "wss")
"""The transports of listeners. To the listener all but `unix` are TCP: handshakes are the link's,
or the session's."""

WEBSOCKET_PROTOCOLS = ("mqtt", "syndicate")
"""The protocols that can be spoken over WebSocket. Readers of ranges are no browsers: theirs
cannot."""

GATEKEEPER_PROTOCOLS = ("syndicate",)
"""The protocols whose URLs may end in `?gatekeeper`."""

SHORT: Final = {
    "mqtt": ("mqtt", "tcp", 1883),
    "mqtts": ("mqtt", "tls", 8883),
    "amqp": ("amqp", "tcp", 5672),
    "amqps": ("amqp", "tls", 5671),
}
"""The schemes that clients write, with the ports that are registered for them."""

_GATEKEEPER = "gatekeeper"

_MAX_PATH = 103 if sys.platform == "darwin" else 107
"""Bytes of a Unix socket's path: the size of `sun_path`, less the zero at its end."""


class ListenError(TransportError, OSError):
    """A listener cannot be opened; the message says which, why, and what to do."""


class ListenURLError(TransportError, ValueError):
    """Something is not a URL to listen on; the message says what to write."""


@attrs.frozen(slots=True)
class ListenURL:
    """A parsed `protocol+tcp://host:port`, with tls, ws or wss for tcp, or `protocol+unix:///path`.

    Or, as clients write it, `mqtt://host`, `mqtts://host`, `amqp://host`, `amqps://host`, with a
    port or without one.

    `?gatekeeper` at its end: a peer that connects meets a gatekeeper, and passes it with a
    sturdyref.
    """

    protocol: str
    transport: str
    host: str = ""
    port: int = 0
    path: str = ""
    gatekeeper: bool = False

    @property
    def is_websocket(self) -> bool:
        """Whether the protocol is spoken over WebSocket."""
        return self.transport in ("ws", "wss")

    @property
    def is_secure(self) -> bool:
        """Whether it is encrypted, by TLS."""
        return self.transport in ("tls", "wss")

    @property
    def is_public(self) -> bool:
        """Whether other machines may reach it: it is not on a loopback address or a Unix socket."""
        if self.transport == "unix" or self.host == "localhost":
            return False
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:  # a name
            return True

    @classmethod
    def parse(cls, url: str, protocols: tuple[str, ...]) -> ListenURL:
        """Parse a URL.

        Raises:
            ListenURLError: If it is not one of these protocols over a transport that it can be
                spoken over, or has unknown parts.
        """
        try:
            parts = urlsplit(url)
            return cls._from_parts(url, parts, protocols)
        except ListenURLError:
            raise
        except ValueError as exc:
            msg = (
                f"cannot listen on {url!r}: a port is a number from 0 to 65535, and an IPv6 "
                "address stands in brackets"
            )
            raise ListenURLError(msg) from exc

    @classmethod
    def _from_parts(cls, url: str, parts: SplitResult, protocols: tuple[str, ...]) -> ListenURL:
        default_port: int | None = None
        if parts.scheme in SHORT:
            protocol, transport, default_port = SHORT[parts.scheme]
        else:
            protocol, _, transport = parts.scheme.partition("+")
        if protocol not in protocols or transport not in TRANSPORTS:
            raise ListenURLError(
                f"cannot listen on {url!r}: it must begin with one of {_known(protocols)}"
            )
        if not _can_speak(protocol, transport):
            msg = (
                f"cannot listen on {url!r}: {protocol} does not run over WebSocket; write "
                f"{protocol}+tcp://host:port, {protocol}+tls://host:port or "
                f"{protocol}+unix:///absolute/path"
            )
            raise ListenURLError(msg)
        gatekeeper = cls._gatekeeper(url, parts, protocol, transport)
        if transport == "unix":
            if parts.netloc or not parts.path:
                msg = f"cannot listen on {url!r}: write {protocol}+unix:///absolute/path"
                raise ListenURLError(msg)
            if len(os.fsencode(parts.path)) > _MAX_PATH:
                msg = (
                    f"cannot listen on {url!r}: the path of a socket has {_MAX_PATH} bytes at "
                    "most; give a shorter one"
                )
                raise ListenURLError(msg)
            return cls(protocol, transport, path=parts.path, gatekeeper=gatekeeper)
        form = f"{protocol}+{transport}://host:port"
        if parts.path not in ("", "/") or parts.username is not None:
            msg = f"cannot listen on {url!r}: write {form} and nothing more"
            raise ListenURLError(msg)
        port = default_port if parts.port is None else parts.port
        if parts.hostname is None or port is None:
            msg = f"cannot listen on {url!r}: write {form} (port 0: any free)"
            raise ListenURLError(msg)
        return cls(protocol, transport, parts.hostname, port, gatekeeper=gatekeeper)

    @staticmethod
    def _gatekeeper(url: str, parts: SplitResult, protocol: str, transport: str) -> bool:
        where = "/absolute/path" if transport == "unix" else "host:port"
        form = f"{protocol}+{transport}://{where}"
        if protocol not in GATEKEEPER_PROTOCOLS:
            if parts.query or parts.fragment:
                msg = f"cannot listen on {url!r}: write {form} and nothing more"
                raise ListenURLError(msg)
            return False
        if parts.fragment or parts.query not in ("", _GATEKEEPER):
            msg = f"cannot listen on {url!r}: write {form}, with ?{_GATEKEEPER} or nothing more"
            raise ListenURLError(msg)
        return parts.query == _GATEKEEPER

    def __str__(self) -> str:
        query = f"?{_GATEKEEPER}" if self.gatekeeper else ""
        if self.transport == "unix":
            return f"{self.protocol}+unix://{self.path}{query}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}+{self.transport}://{host}:{self.port}{query}"


def _known(protocols: tuple[str, ...]) -> str:
    """Return what a URL may begin with."""
    short = [f"{scheme}://" for scheme, (protocol, _, _) in SHORT.items() if protocol in protocols]
    long = [f"{p}+{t}://" for p in protocols for t in TRANSPORTS if _can_speak(p, t)]
    return ", ".join(short + long)


def _can_speak(protocol: str, transport: str) -> bool:
    return transport not in ("ws", "wss") or protocol in WEBSOCKET_PROTOCOLS


class Listener:
    """One open listening socket; a context manager that closes it.

    Attributes:
        url: The URL, with the real port.
        sock: The socket; non-blocking.
    """

    def __init__(self, url: ListenURL, sock: socket.socket) -> None:
        self.url = url
        self.sock = sock

    def __repr__(self) -> str:
        return f"<Listener {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def label(self) -> str:
        """A short name for accounts and logs, as `mqtt:1883` or `mqtt:/run/relay.sock`."""
        return f"{self.url.protocol}:{self.url.path or self.url.port}"

    def keep_little_unsent(self, nbytes: int = UNSENT_BYTES) -> None:
        """Let the kernel take no more for a peer than it can send, and `nbytes`.

        Bytes that it has taken count as finished, however long they lie there, and nothing can
        overtake them: for each slow peer hundreds of KiB by default, and as much again at once when
        a third of that has gone. For connections over TCP that are accepted from now on; where the
        system cannot do it, nothing happens.
        """
        if self.url.transport != "unix" and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, nbytes)

    def listen(self) -> None:
        """Begin to listen; clients wait for `accept_into` from now on."""
        self.sock.listen(BACKLOG)

    def keep_alive(self, seconds: float) -> None:
        """Let the kernel detect peers whose machines have silently gone (TCP keep-alive).

        For connections over TCP that are accepted from now on, where the system can do it. After
        half of the time without a byte the kernel probes the peer three times; after all of it the
        connection breaks.
        """
        if self.url.transport == "unix":
            return
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        interval = max(1, round(seconds / 6))
        values = {"IDLE": max(1, round(seconds / 2)), "INTVL": interval, "CNT": 3}
        for name, value in values.items():
            option = getattr(socket, f"TCP_KEEP{name}", None)
            if option is not None:
                self.sock.setsockopt(socket.IPPROTO_TCP, option, value)

    async def serve(self, handler: Callable[[Link], Awaitable[object]]) -> None:
        """Accept until it is closed; run `handler(link)` in a task for each connection.

        The tasks live in a nursery of this call, and so end with it. An exception from a handler
        ends this call: handlers deal with their peers' faults, and close the link.
        """
        async with trio.open_nursery() as nursery:
            await self.accept_into(nursery, handler)

    async def accept_into(
        self,
        nursery: trio.Nursery,
        handler: Callable[[Link], Awaitable[object]],
        make_link: Callable[[Connected, str], Link] = Link,
        pace: AcceptPace | None = None,
    ) -> None:
        """Accept until it is closed; run `handler(link)` in `nursery` for each connection.

        `make_link` makes the link of an accepted socket and its peer's address. `pace` says how
        fast connections are accepted; None: as they come.

        Cancelling this stops accepting; the connections go on.
        """
        pace = AcceptPace() if pace is None else pace
        # A connection and the closing may be found in one look of the loop, in either order.
        while self.sock.fileno() >= 0:
            try:
                await trio.lowlevel.wait_readable(self.sock)
            except trio.ClosedResourceError:
                return
            for _ in range(ACCEPTS_A_STEP):
                await pace.until_open()
                try:
                    sock, address = self.sock.accept()
                except BlockingIOError:
                    break
                except OSError as exc:
                    if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                        logger.warning(
                            "%s: cannot accept for now: %s",
                            self.url,
                            exc,
                            extra={
                                "event": "cannot_accept",
                                "listener": str(self.url),
                                "reason": exc.strerror,
                            },
                        )
                        await trio.sleep(ACCEPT_PAUSE_SECONDS)
                    break  # any other error concerns only the connection that has gone already
                if self.url.transport != "unix":
                    peer = f"{address[0]}:{address[1]}"
                else:
                    peer = f"{self.url.path}#{sock.fileno()}"
                link = self._link_to(sock, peer, make_link)
                if link is not None:
                    nursery.start_soon(handler, link, name=f"{self.label} {peer}")
                pause = pace.accepted()
                if pause:
                    await trio.sleep(pause)

    def _link_to(
        self, sock: socket.socket, peer: str, make_link: Callable[[Connected, str], Link]
    ) -> Link | None:
        """Make the link of an accepted connection; None if that fails: it alone is closed."""
        try:
            sock.setblocking(False)
            if self.url.transport != "unix":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return make_link(sock, peer)
        except Exception as exc:
            sock.close()
            level = logging.INFO if isinstance(exc, OSError) else logging.ERROR
            logger.log(
                level, "%s: the connection of %s could not be opened", self.url, peer,
                exc_info=exc, extra={"event": "cannot_open", "listener": str(self.url)},
            )  # fmt: skip
            return None

    def close(self) -> None:
        """Stop listening; removes a Unix socket's file. Idempotent."""
        if self.sock.fileno() < 0:
            return
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()
        if self.url.transport == "unix":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.url.path)


async def open_listeners(url: ListenURL, *, shared: bool = False) -> list[Listener]:
    """Open the listeners of one URL: one, or one for each address of its host.

    Args:
        url: The URL.
        shared: Share the port with other processes (SO_REUSEPORT), where it is TCP's. The kernel
            sends such a listener connections from `Listener.listen` on, and others listen at once.

    Raises:
        ListenError: If that cannot be done; none stays open then.
    """
    if shared and not hasattr(socket, "SO_REUSEPORT"):
        msg = f"cannot listen on {url}: this system cannot share a port (it has no SO_REUSEPORT)"
        raise ListenError(msg)
    listeners: list[Listener] = []
    try:
        if url.transport == "unix":
            return [_listen_unix(url)]
        found = await trio.socket.getaddrinfo(
            url.host, url.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(found):
            port = listeners[0].url.port if listeners else address[1]
            listeners.append(
                _listen_tcp(url, family, (address[0], port, *address[2:]), shared=shared)
            )
    except OSError as exc:
        for listener in listeners:
            listener.close()
        why = trouble_with_listening(exc, at_path=url.transport == "unix")
        raise ListenError(f"cannot listen on {url}: {why}") from exc
    return listeners


def _listen_tcp(
    url: ListenURL, family: int, address: tuple[object, ...], *, shared: bool
) -> Listener:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.setblocking(False)
        listener = Listener(attrs.evolve(url, port=sock.getsockname()[1]), sock)
        if not shared:
            listener.listen()
        return listener
    except BaseException:
        sock.close()
        raise


def _listen_unix(url: ListenURL) -> Listener:
    _remove_stale(url.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(url.path)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        return Listener(url, sock)
    except BaseException:
        sock.close()
        raise


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody listens on any more; leave anything else alone."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        os.unlink(path)
    finally:
        probe.close()
