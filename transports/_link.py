"""One accepted connection, as a raw non-blocking socket.

Trio's streams are not used here: their layers and the extra tasks cost twice the CPU (pipelined)
and twice the memory of an idle connection (`_flusher.py` has the figures).
"""

from __future__ import annotations

import enum
import ssl
from typing import TYPE_CHECKING, ClassVar

import trio

from ._errors import RemoteProtocolError
from ._scheduler import SLICE_SECONDS
from ._tenants import NO_USER
from .tls import common_name, said, shake_hands

if TYPE_CHECKING:
    from ._input import InputBook
    from ._layer import Connected
    from ._scheduler import Work
    from .tls import TlsSocket

READ_BYTES = 64 << 10
"""The most that one read takes; four times as much gained nothing."""

LITTLE_BYTES = 4 << 10
"""The most that one read takes where it is dear to take apart: many frames of a few bytes."""


class Ending(enum.Enum):
    """Why a connection ends, for who can tell its peer."""

    LEFT = "the peer has left"
    STOPS = "this side stops"
    FAULT = "the peer has done something wrong"
    CUT = "this side has cut it"
    ERROR = "something has gone wrong on this side"


class Link:
    """One accepted connection.

    Attributes:
        sock: The socket, or what is on top of it; non-blocking.
        peer: The other side's address, for people.
        scope: Cancelling it ends the connection's task; see `cut`.
        why: Why the connection was cut from this side, or None.
        ending: What sort of an end it comes to, as things stand.
        fault: How the peer broke what its bytes are wrapped in, if they are in anything; nothing
            more is received then.
        secure: What encrypts it; None: nothing does. To be set before it is opened.
        opened: Whether anything can be received or sent; see `open`.
        read_bytes: The most that one read takes; see `took_apart`.
        work: Whose CPU time it takes to take apart what is received; None: nobody counts it.
        user: Who the peer is, by its certificate, once it is open; None: it has shown none.
        book: Says how much may be read at once while there is much unfinished input; None: nobody
            does.
    """

    __slots__ = (
        "_fd", "_maybe_more", "book", "closed", "ending", "fault", "opened", "peer", "read_bytes",
        "scope", "secure", "sock", "user", "why", "work",
    )  # fmt: skip

    says_goodbye: ClassVar[bool] = False
    """Whether a connection's end is something that both sides say, below what they speak."""

    def __init__(self, sock: Connected, peer: str) -> None:
        self.sock = sock
        # Trio would ask for it each time.
        self._fd = sock.fileno()
        self.peer = peer
        self.scope = trio.CancelScope()
        self.why: str | None = None
        self.ending = Ending.STOPS
        self.fault: RemoteProtocolError | None = None
        self.secure: TlsSocket | None = None
        self.opened = False
        self.user: str | None = None
        self.closed = False
        self.read_bytes = READ_BYTES
        self.work: Work | None = None
        self.book: InputBook | None = None
        self._maybe_more = True

    def __repr__(self) -> str:
        return f"<Link to {self.peer}>"

    async def open(self) -> None:
        """Do what comes before anything can be received or sent: TLS's handshake, if there is any.

        Cancellation: the connection is of no use any more.

        Raises:
            RemoteProtocolError: There is no agreement; the peer has been told.
            OSError: As the socket has it.
        """
        if self.secure is not None:
            await self._shake_hands(self.secure)
        self.opened = True

    async def _shake_hands(self, secure: TlsSocket) -> None:
        try:
            await shake_hands(secure)
        except ssl.SSLError as exc:
            raise RemoteProtocolError(f"the TLS handshake failed: {said(exc)}") from exc
        try:
            certificate = secure.peer_certificate
        except ValueError as exc:  # its names are in no encoding that there is
            raise RemoteProtocolError(f"the client's certificate cannot be read: {exc}") from exc
        if certificate is not None:
            self.user = common_name(certificate)
            if self.user is None or self.user == NO_USER:
                raise RemoteProtocolError("the client's certificate has no common name")

    async def receive(self) -> bytes:
        """Read what there is, at most `READ_BYTES`; b"" at the end of the stream. A checkpoint.

        Cancellation: nothing is lost, the next call reads on. It waits before it reads, and never
        between that and returning: a reader that looks ahead is cancelled and goes on later.

        Where TLS fails that is the end, too; `fault` says why.

        Raises:
            OSError: As the socket has it.
        """
        sock = self.sock
        if self._maybe_more:
            # After a full read there is likely more: reading at once spares an epoll round.
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._fd)
        size = self.read_bytes
        if self.book is not None and self.book.read_bytes < size:
            size = self.book.read_bytes
        while True:
            try:
                data = sock.recv(size)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fd)
            except ssl.SSLError as exc:
                self.fault = RemoteProtocolError(f"TLS has failed: {said(exc)}")
                return b""
            else:
                self._maybe_more = len(data) == size
                if self.secure is not None and self.secure.is_at_end:
                    self._maybe_more = True  # the socket itself need not become readable for that
                return data

    def took_apart(self, seconds: float) -> None:
        """Note how long it took to take apart what was received last: less is read then."""
        if self.work is not None:
            self.work.charge(seconds)
        if seconds > SLICE_SECONDS:
            self.read_bytes = LITTLE_BYTES
        elif seconds < SLICE_SECONDS / 32:
            self.read_bytes = READ_BYTES

    def cut(self, why: str) -> None:
        """End the connection from this side, for the reason given (the first one counts)."""
        if self.why is None:
            self.why = why
            self.scope.cancel()

    async def say_goodbye(self) -> None:
        """Say to the peer that this is the end, and why (`ending`, `why`); hear it say so, too.

        For links whose `says_goodbye` is set. The caller says for how long at most.

        Raises:
            OSError: As the socket has it.
        """

    def close(self) -> None:
        """Close the socket. Idempotent; never raises."""
        if self.closed:
            return
        self.closed = True
        # Tasks that still wait for it must hear of it before its number is reused.
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()
