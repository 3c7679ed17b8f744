"""One accepted connection, as a raw non-blocking socket.

Trio's streams are not used here: their layers and the extra tasks cost twice the CPU (pipelined)
and twice the memory of an idle connection (`_flusher.py` has the figures).
"""

from __future__ import annotations

import enum
import ssl
from typing import TYPE_CHECKING, ClassVar

import attrs
import trio

from ..access._tenants import NO_USER
from ..sockets import common_name, said, shake_hands
from ._errors import RemoteProtocolError
from ._scheduler import SLICE_SECONDS

if TYPE_CHECKING:
    from ..sockets import TlsSocket
    from ..sockets._layer import Connected
    from ._input import InputBook
    from ._reactor import Reactor, Step
    from ._scheduler import Work

READ_BYTES = 64 << 10
"""Most bytes of one read; four times as much gained nothing."""

LITTLE_BYTES = 4 << 10
"""Most bytes of one read where parsing is expensive: many frames of a few bytes."""


class Ending(enum.Enum):
    """The reason why a connection ends, for protocols that can tell their peer."""

    LEFT = "the peer has left"
    STOPS = "this side stops"
    FAULT = "the peer has done something wrong"
    CUT = "this side has cut it"
    ERROR = "something has gone wrong on this side"


@attrs.frozen(slots=True)
class Voucher:
    """The word of another relay for a client that it has passed on."""

    is_verified: bool
    """Whether the client has proved to be the user that its CONNECT names."""
    expires_in: float | None = None
    """Seconds until its token expires; None: it has none."""
    last: bytes = b""
    """The last data of its enhanced authentication (MQTT 5)."""


class Link:
    """One accepted connection.

    Attributes:
        sock: The socket, or a layer on top of it; non-blocking.
        peer: The other side's address, for logs.
        scope: Cancelling it ends the connection's task; see `cut`.
        why: Why the connection was cut from this side, or None.
        ending: The kind of end it comes to, as things stand.
        fault: The peer's error in a layer below the protocol, if there is a layer; nothing more is
            received then.
        secure: Encrypts it; None: it is not encrypted. To be set before it is opened.
        opened: Whether anything can be received or sent; see `open`.
        read_bytes: Most bytes of one read; see `took_apart`.
        work: Charged with the CPU time of parsing received bytes; None: nobody counts it.
        user: The peer's name from its certificate, once it is open; None: it has shown none.
        book: Limits single reads while there is much unfinished input; None: nothing does.
    """

    __slots__ = (
        "_fd", "_just_begun", "_lent_to", "_maybe_more", "book", "closed", "ending", "fault",
        "opened", "peer", "read_bytes", "scope", "secure", "sock", "user", "why", "work",
    )  # fmt: skip

    says_goodbye: ClassVar[bool] = False
    """Whether both sides announce a connection's end, in a layer below the protocol."""

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
        self._just_begun = False
        self._lent_to: Reactor | None = None

    def __repr__(self) -> str:
        return f"<Link to {self.peer}>"

    @property
    def can_be_lent(self) -> bool:
        """Whether what is received is what stands in the socket: see `lend`."""
        return type(self) is Link and self.secure is None

    @property
    def voucher(self) -> Voucher | None:
        """The word of the relay that has passed the connection on; None: no relay has."""
        return None

    async def open(self) -> None:
        """Do the handshake that comes before receiving or sending: TLS's, if there is any.

        Cancellation: the connection is of no use any more.

        Raises:
            RemoteProtocolError: There is no agreement; the peer has been told.
            OSError: From the socket.
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
        except ValueError as exc:  # its names are not in any encoding
            raise RemoteProtocolError(f"the client's certificate cannot be read: {exc}") from exc
        if certificate is not None:
            self.user = common_name(certificate)
            if self.user is None or self.user == NO_USER:
                raise RemoteProtocolError("the client's certificate has no common name")

    async def receive(self) -> bytes:
        """Read available bytes, at most `READ_BYTES`; b"" at the end of the stream. A checkpoint.

        Cancellation: nothing is lost, the next call reads on. It waits before it reads, and never
        between that and returning: a reader that looks ahead is cancelled and goes on later.

        A failure of TLS ends the stream, too; `fault` says why.

        Raises:
            OSError: From the socket.
        """
        sock = self.sock
        if self._maybe_more:
            # After a full read there is likely more: reading at once saves an epoll round.
            if not self._just_begun:
                await trio.lowlevel.checkpoint()
            self._just_begun = False
        else:
            await trio.lowlevel.wait_readable(self._fd)
        size = self._read_size()
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

    async def receive_first(self, reactor: Reactor | None) -> bytes:
        """As `receive`, by a task that has just begun: no checkpoint if something is there.

        Most peers have spoken by the time that they are accepted. For the others `reactor` waits,
        if the link can be lent to one, which will watch the socket anyway: Trio would put it into
        its own epoll set, and take it out again.
        """
        if reactor is None:
            self._just_begun = True
            return await self.receive()
        size = self._read_size()
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            found = await self.lend(reactor, _leave)
            assert found is not None
            return found
        self._maybe_more = len(data) == size
        return data

    def _read_size(self) -> int:
        return self.read_bytes if self.book is None else min(self.read_bytes, self.book.read_bytes)

    async def lend(self, reactor: Reactor, step: Step) -> bytes | None:
        """Lend the socket: `reactor` reads it and does `step`, until that does not go on.

        Returns, on cancellation, and errors raised: see `Reactor.read`.
        """
        self._lent_to = reactor
        data = await reactor.read(self.sock, step)
        self._maybe_more = data is not None and len(data) == LITTLE_BYTES
        return data

    def took_apart(self, seconds: float) -> None:
        """Note how long it took to parse the last read: slow parsing makes reads smaller."""
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
        """Announce the end and its reason to the peer (`ending`, `why`), and wait for its answer.

        For links whose `says_goodbye` is set. The caller limits the time.

        Raises:
            OSError: From the socket.
        """

    def close(self) -> None:
        """Close the socket. Idempotent; never raises."""
        if self.closed:
            return
        self.closed = True
        if self._lent_to is not None:
            self._lent_to.closing(self._fd)
        # Tasks that still wait for it must hear of it before its number is reused.
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()


def _leave(data: bytes) -> None:
    """Leave what was read to the task: see `Step`."""
    del data
