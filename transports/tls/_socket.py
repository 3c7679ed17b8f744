"""A socket of which all that is sent goes out encrypted, and all that comes is decrypted.

Python's own `ssl.SSLSocket` will not do where sends do not block: what OpenSSL could not write it
has encrypted all the same, and it wants the same bytes again. An outlet would take them for unsent,
and might drop them.

Rules of this file:
1. Bytes are taken when the kernel has taken the whole record that they are in: so a loan is repaid
   no sooner than it would be without TLS. But for its last byte, a record counts as taken as soon
   as it is begun, so that who sends knows that it is: that byte comes first in what is sent next.
2. What waits here is at most the rest of one record, and `ANSWERS_BYTES` of what OpenSSL says of
   itself, for which nobody owes; and, of what came, a record that is not complete.
"""

from __future__ import annotations

import contextlib
import errno
import ssl
from typing import TYPE_CHECKING, Any, Final

from .._layer import Layer, would_block

if TYPE_CHECKING:
    from .._layer import Connected

QUIET_BYTES: Final = 64 << 10
"""What may come that says nothing: TLS's own messages, of which each has OpenSSL make new keys. 64
KiB of them hold the loop for 50 ms (measured)."""

RECORD_BYTES: Final = 16 << 10
"""The most that a record may have [RFC 8446 section 5.1]."""

ANSWERS_BYTES: Final = 64 << 10
"""What may wait of what TLS itself has to say: a certificate chain, or the answers to a peer that
changes its keys again and again and reads nothing."""


class TlsSocket(Layer):
    """See this file's docstring. Nothing can be sent or received before the handshake is over.

    Args:
        below: A connected, non-blocking socket; taken over, and of no use to anybody else.
        context: Certificates, and what is wanted of the peer's.
        server_side: Whether the peer is the one that has connected.
        server_hostname: Whose certificate a server has to have; for a client.

    Raises:
        ValueError: The host's name is none.
    """

    __slots__ = (
        "_ended", "_fault", "_incoming", "_last", "_outgoing", "_quiet", "_rest", "_said", "_tls",
    )  # fmt: skip

    def __init__(
        self,
        below: Connected,
        context: ssl.SSLContext,
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        super().__init__(below)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        # What is encrypted and has not been taken by the kernel; the last byte of what was to be
        # sent, if it is in there.
        self._rest = b""
        self._last: int | None = None
        # Of what comes: whether it has ended, or how it was wrong.
        self._ended = False
        self._fault: OSError | None = None
        # How much of it has said nothing since something was last said.
        self._quiet = 0
        self._said = False

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """What `ssl.SSLSocket.getpeercert` would return; None if the peer has not shown any."""
        return self._tls.getpeercert() or None

    def shake_hands(self) -> bool:
        """Go on with the handshake as far as can be gone; return whether it is over.

        To be called first, and again when something has come, or `unsent` can be sent.

        Raises:
            ssl.SSLError: There can be no agreement; the peer has been told, where TLS can say so.
            OSError: As the socket has it; the end of the stream, too.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._pass_on()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._pass_on()
                raise
            else:
                self._pass_on()
                return True
            try:
                came = self._below.recv(RECORD_BYTES)
            except BlockingIOError:
                return False
            if not came:
                raise ConnectionResetError(errno.ECONNRESET, "it ended within the TLS handshake")
            self._incoming.write(came)

    @property
    def unsent(self) -> bool:
        """Whether something waits that has been encrypted."""
        return bool(self._rest)

    @property
    def is_at_end(self) -> bool:
        """Whether nothing more will come, and `recv` says so at once."""
        return self._ended or self._fault is not None

    def recv(self, size: int, /) -> bytes:
        """Read and decrypt some; b"" when the peer has said that it sends no more.

        Raises:
            BlockingIOError: Nothing is there of which a record is complete.
            ssl.SSLError: What came is no TLS, or was changed on its way.
            OSError: As the socket has it; or the peer says nothing for too long.
        """
        if self._fault is not None:
            raise self._fault
        if not self._ended:
            try:
                came = self._below.recv(size)
            except BlockingIOError:
                # What came together with the last of the handshake is all that there is.
                if not self._incoming.pending:
                    raise
            else:
                if came:
                    self._incoming.write(came)
                    self._quiet += len(came)
                else:
                    self._ended = True
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(RECORD_BYTES):
                pieces.append(piece)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            # What came before it counts.
            self._fault = error
        if self._outgoing.pending:
            try:
                self._pass_on()
            except OSError as error:
                self._fault = self._fault or error
        if pieces:
            self._quiet = 0
        else:
            if self._fault is None and self._quiet > QUIET_BYTES:
                self._fault = ConnectionAbortedError(
                    errno.ECONNABORTED, "it has sent nothing but TLS's own messages for too long"
                )
            if self._fault is not None:
                raise self._fault
            if not self._ended:
                raise would_block()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: Any, /) -> int:
        """Encrypt and send some of `data`; see rule 1 of this file.

        Returns:
            How many bytes of it have been taken. What has not has to be given again, and first.

        Raises:
            BlockingIOError: Nothing of it has been taken.
            OSError: As the socket has it; or it is not what had to be given.
        """
        if self._fault is not None:
            raise ConnectionAbortedError(errno.ECONNABORTED, "TLS has failed")
        if self._rest and not self._push():
            raise would_block()
        rest = memoryview(data)
        size = len(rest)
        taken = 0
        if self._last is not None and size:
            if rest[0] != self._last:
                raise OSError(errno.EPROTO, "something else is sent within a record")
            self._last = None
            taken = 1
        while taken < size:
            piece = rest[taken : taken + RECORD_BYTES]
            self._tls.write(piece)
            self._rest = self._outgoing.read()
            taken += len(piece)
            if not self._push():
                self._last = piece[-1]
                taken -= 1
                if not taken:
                    raise would_block()
                break
        return taken

    def shutdown(self, how: int, /) -> None:
        """See `Connected.shutdown`; the peer is told by TLS, too, that no more is sent."""
        self._say_the_end()
        super().shutdown(how)

    def close(self) -> None:
        """See `Connected.close`; the peer is told that this is the end, if it can be."""
        if self.fileno() >= 0:
            self._say_the_end()
        super().close()

    def _say_the_end(self) -> None:
        # After a record that is not complete it would be read as a part of that.
        if self._rest or self._said:
            return
        self._said = True
        # As soon as that is said it waits for the peer to say the same: nobody here does.
        with contextlib.suppress(OSError, ValueError):
            try:
                self._tls.unwrap()
            finally:
                self._pass_on()

    def _pass_on(self) -> None:
        """Send what TLS itself has to say, after what waits already."""
        self._rest += self._outgoing.read()
        if self._rest and not self._push() and len(self._rest) > ANSWERS_BYTES:
            raise ConnectionAbortedError(
                errno.ECONNABORTED, "it reads nothing of what TLS has to say"
            )

    def _push(self) -> bool:
        """Send what has been encrypted; return whether the kernel has taken all of it."""
        try:
            sent = self._below.send(self._rest)
        except BlockingIOError:
            return False
        self._rest = self._rest[sent:]
        return not self._rest
