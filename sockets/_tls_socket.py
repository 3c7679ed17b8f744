"""A socket that encrypts its output and decrypts its input.

Python's own `ssl.SSLSocket` does not fit non-blocking sends: OpenSSL has already encrypted the data
that it could not write, and wants the same bytes again. An outlet would take them for unsent, and
might drop them.

Rules of this file:
1. Bytes are taken when the kernel has taken the whole record that contains them: so a loan is
   repaid no sooner than without TLS. Except for its last byte, a record counts as taken as soon as
   it is begun, so that the sender knows about it: that byte comes first in the next send.
2. This object buffers at most the rest of one record, and `ANSWERS_BYTES` of TLS's own messages,
   which are charged to nobody; and, of the input, one incomplete record.
"""

from __future__ import annotations

import contextlib
import errno
import ssl
from typing import TYPE_CHECKING, Any, Final

from ._layer import Layer, would_block

if TYPE_CHECKING:
    from ._layer import Connected

QUIET_BYTES: Final = 64 << 10
"""Most input without data: TLS's own messages, each of which makes OpenSSL derive new keys. 64
KiB of them hold the loop for 50 ms (measured)."""

RECORD_BYTES: Final = 16 << 10
"""The largest record [RFC 8446 section 5.1]."""

ANSWERS_BYTES: Final = 64 << 10
"""Most unsent messages of TLS itself: a certificate chain, or the answers to a peer that
changes its keys again and again and reads nothing."""


class TlsSocket(Layer):
    """See this file's docstring. Nothing can be sent or received before the handshake is over.

    Args:
        below: A connected, non-blocking socket; taken over, and not to be used elsewhere.
        context: Certificates, and the requirements for the peer's.
        server_side: Whether the peer is the one that has connected.
        server_hostname: The host name that a server's certificate must have; for a client.

    Raises:
        ValueError: The host name is invalid.
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
        # Encrypted data that the kernel has not taken; the last byte of the data to send, if its
        # record is among that.
        self._rest = b""
        self._last: int | None = None
        # State of the input: whether it has ended, or its fault.
        self._ended = False
        self._fault: OSError | None = None
        # Bytes of input since the last data.
        self._quiet = 0
        self._said = False

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The result of `ssl.SSLSocket.getpeercert`; None if the peer has shown none."""
        return self._tls.getpeercert() or None

    def shake_hands(self) -> bool:
        """Advance the handshake as far as possible; return whether it is over.

        Call it first, and again when input has arrived, or `unsent` data can be sent.

        Raises:
            ssl.SSLError: The two sides cannot agree; the peer was told, where TLS allows it.
            OSError: From the socket; also for the end of the stream.
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
        """Whether encrypted data waits to be sent."""
        return bool(self._rest)

    @property
    def is_at_end(self) -> bool:
        """Whether no more input will arrive, and `recv` says so at once."""
        return self._ended or self._fault is not None

    def recv(self, size: int, /) -> bytes:
        """Read and decrypt some data; b"" when the peer has ended its sending.

        Raises:
            BlockingIOError: There is no complete record.
            ssl.SSLError: The input is not TLS, or was changed on its way.
            OSError: From the socket; or the peer sends no data for too long.
        """
        if self._fault is not None:
            raise self._fault
        if not self._ended:
            try:
                came = self._below.recv(size)
            except BlockingIOError:
                # Data that arrived with the end of the handshake is all there is.
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
            # Data before the fault still counts.
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
            How many bytes of it have been taken. The rest must be passed again, and first.

        Raises:
            BlockingIOError: Nothing of it has been taken.
            OSError: From the socket; or `data` does not begin with the rest of the last send.
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
        """See `Connected.shutdown`; it also ends the sending by TLS."""
        self._say_the_end()
        super().shutdown(how)

    def close(self) -> None:
        """See `Connected.close`; it tells the peer by TLS, if that is possible."""
        if self.fileno() >= 0:
            self._say_the_end()
        super().close()

    def _say_the_end(self) -> None:
        # After an incomplete record, the message would be read as a part of the record.
        if self._rest or self._said:
            return
        self._said = True
        # After sending its own closure, OpenSSL waits for the peer's: nobody here does.
        with contextlib.suppress(OSError, ValueError):
            try:
                self._tls.unwrap()
            finally:
                self._pass_on()

    def _pass_on(self) -> None:
        """Send TLS's own messages, after data that waits already."""
        self._rest += self._outgoing.read()
        if self._rest and not self._push() and len(self._rest) > ANSWERS_BYTES:
            raise ConnectionAbortedError(errno.ECONNABORTED, "it reads nothing of TLS's messages")

    def _push(self) -> bool:
        """Send encrypted data; return whether the kernel has taken all of it."""
        try:
            sent = self._below.send(self._rest)
        except BlockingIOError:
            return False
        self._rest = self._rest[sent:]
        return not self._rest
