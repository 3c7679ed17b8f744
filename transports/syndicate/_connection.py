"""One Syndicate connection without any I/O: bytes in, packets out.

Rules:

1. `next_packet` and `decode` raise nothing but `RemoteProtocolError`, whatever the input. After
   one, the connection is closed and raises the same again.
2. How the input was split into reads changes neither the packets nor the error.
3. A packet is refused at the first byte that makes it invalid; an oversized one is not collected.
4. The connection holds at most one incomplete packet and the rest of the last read. Collecting a
   packet takes time in proportion to its size, however many reads it takes.
5. Output is in the syntax of the last packet received: binary until a packet in text arrives.

Theory of operation. There is no handshake, and both sides do the same. `_buffer` is the last data
received, unchanged, and `_position` is how far it has been cut into packets. A packet that a read
cuts in two is collected in a `bytearray`; the scanner resumes where it stopped.

A packet arrives as a `Frame`: its bytes and their place. Forwarding it needs no decoding.

    OPEN --<error> received or sent, a fault, close()--> CLOSED
    CLOSED by a fault: one <error> may still be sent, with the reason
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from .._errors import LocalProtocolError, RemoteProtocolError
from .._need_data import NEED_DATA, NeedDataType
from ._packets import Error, Packet, decode, encode
from ._preserves import decode_binary
from ._scan import (
    ANNOTATION,
    DEFAULT_MAX_DEPTH,
    DEFAULT_MAX_PACKET_SIZE,
    FALSE,
    RECORD,
    SEQUENCE,
    EventParts,
    Scanner,
    event_parts,
)
from ._scan_text import DEFAULT_MAX_TEXT_SIZE, TextScanner


class State(enum.Enum):
    """Whether packets may still be sent and received."""

    OPEN = "open"
    CLOSED = "closed"


_SPACES = frozenset(b" \t\r\n\v\f")
# How a packet may begin: a turn, a record, #f; annotated or, in text, with a comment.
_BINARY_BEGINS = frozenset({SEQUENCE, RECORD, FALSE, ANNOTATION})
_TEXT_BEGINS = frozenset(b"[<#@")


class Frame(NamedTuple):
    """One packet as received: well-formed, but not decoded."""

    data: bytes
    """The buffer that contains it."""
    start: int
    end: int
    text: bool
    """Whether it is in the text syntax."""
    embedded: bool
    """Whether it may have references, which only this connection understands, or annotations, which
    nobody does."""
    parts: list[EventParts] | None
    """Its events, if it is a plain turn: bodies without references can then be forwarded."""
    packet: Packet | None
    """The decoded packet, if finding it required decoding."""

    def __bytes__(self) -> bytes:
        return self.data[self.start : self.end]


class Connection:
    """The protocol of one connection, for either side.

    Attributes:
        state: whether packets may still be sent and received.
        text: whether packets are currently sent in the text syntax.
    """

    __slots__ = (
        "_binary_scanner",
        "_buffer",
        "_collected",
        "_error_owed",
        "_fault",
        "_max_depth",
        "_max_packet_size",
        "_max_text_size",
        "_position",
        "_scanner",
        "_text_scanner",
        "state",
        "text",
    )

    def __init__(
        self,
        *,
        max_packet_size: int = DEFAULT_MAX_PACKET_SIZE,
        max_text_size: int = DEFAULT_MAX_TEXT_SIZE,
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> None:
        """Make a connection that has neither sent nor received anything.

        Args:
            max_packet_size: the largest packet accepted, in bytes.
            max_text_size: the largest packet in text accepted, in bytes.
            max_depth: the deepest nesting of values in a packet, the packet included.
        """
        self.state = State.OPEN
        self.text = False
        self._buffer = b""
        self._position = 0
        self._collected: bytearray | None = None
        self._binary_scanner = Scanner(max_packet_size=max_packet_size, max_depth=max_depth)
        self._text_scanner = TextScanner(
            max_text_size=min(max_text_size, max_packet_size), max_depth=max_depth
        )
        # The scanner of a packet that has begun to arrive; None between packets.
        self._scanner: Scanner | TextScanner | None = None
        self._fault: RemoteProtocolError | None = None
        self._error_owed = False

    def __repr__(self) -> str:
        mode = "text" if self.text else "binary"
        return (
            f"<syndicate.Connection {self.state.value}, {mode}, "
            f"{self.unparsed_bytes} bytes unparsed>"
        )

    @property
    def unparsed_bytes(self) -> int:
        """Bytes of input held. After the peer has closed its side: of an incomplete packet."""
        collected = 0 if self._collected is None else len(self._collected)
        return collected + len(self._buffer) - self._position

    @property
    def held_bytes(self) -> int:
        """Bytes of received data in memory, including what has already been cut into packets."""
        return len(self._buffer) + (0 if self._collected is None else len(self._collected))

    def let_go(self) -> None:
        """Release input that is fully cut into packets."""
        if self._position and self._position >= len(self._buffer) and self._collected is None:
            self._buffer = b""
            self._position = 0

    def receive_data(self, data: bytes) -> None:
        """Take data read from the peer; `next_frame` returns the packets in it.

        Never raises. Take out all complete packets before the next call: otherwise the input held
        grows by the size of `data`. A closed connection drops the data.
        """
        if self.state is State.CLOSED:
            return
        if self._collected is not None:
            self._collected += data
        elif self._position >= len(self._buffer):
            self._buffer = data
            self._position = 0
        else:
            self._collected = bytearray(memoryview(self._buffer)[self._position :])
            self._collected += data
            self._buffer = b""
            self._position = 0

    def next_frame(self) -> Frame | NeedDataType:
        """Take the next packet out of the input, not decoded.

        Returns:
            A frame, or `NEED_DATA`. A connection that was closed without a fault always returns
            `NEED_DATA`.

        Raises:
            RemoteProtocolError: the peer broke the protocol; send an `Error` with the
                exception's text, and close the connection.
        """
        if self._fault is not None:
            raise self._fault
        try:
            if self._scanner is None and self._collected is None:
                # The fast path for nearly all packets.
                buffer = self._buffer
                start = self._position
                if start < len(buffer) and buffer[start] == SEQUENCE:
                    scanner = self._binary_scanner
                    end = scanner.find_end(buffer, start)
                    if end is None:
                        self._scanner = scanner
                        return NEED_DATA
                    return self._whole_binary(buffer, start, end)
            return self._next_frame()
        except RemoteProtocolError as exc:
            self._fail(exc)
            raise

    def _next_frame(self) -> Frame | NeedDataType:
        data = self._buffer if self._collected is None else self._collected
        start = self._position
        scanner = self._scanner
        if scanner is None:
            size = len(data)
            while start < size and data[start] in _SPACES:
                start += 1
            self._position = start
            if start >= size:
                # Only white space was collected, or nothing.
                self._buffer, self._position, self._collected = b"", 0, None
                return NEED_DATA
            scanner = self._begin(data[start])
        end = scanner.find_end(data, start)
        if end is None:
            self._scanner = scanner
            return NEED_DATA
        self._scanner = None
        if self._collected is not None:
            self._buffer = bytes(self._collected)
            self._collected = None
        if scanner is self._binary_scanner:
            return self._whole_binary(self._buffer, start, end)
        self._position = end
        self.text = True
        return self._decoded(self._buffer, start, end)

    def _whole_binary(self, data: bytes, start: int, end: int) -> Frame:
        scanner = self._binary_scanner
        self._position = end
        self.text = False
        if scanner.keyed:
            # Only the library can tell whether all keys and members are different.
            decode_binary(data[start:end])
        parts = event_parts(data, start, scanner.marks)
        if parts is None:
            return self._decoded(data, start, end)
        embedded = scanner.embedded or scanner.annotated
        return Frame(data, start, end, False, embedded, parts, None)

    def _decoded(self, data: bytes, start: int, end: int) -> Frame:
        # It is not a plain turn: only decoding tells whether it is a packet at all.
        packet = decode(data[start:end])
        if isinstance(packet, Error):
            self.close()
        return Frame(data, start, end, self.text, True, None, packet)

    def buffered(self) -> tuple[bytes, int] | None:
        """Return the input and where in it the next packet begins; None within a packet.

        A caller that recognises whole packets by their beginning then calls `skip_to`.
        """
        if self._scanner is None and self._collected is None and self.state is State.OPEN:
            return self._buffer, self._position
        return None

    def skip_to(self, position: int) -> None:
        """Continue at `position`: the caller has handled the binary packets before it."""
        self._position = position
        self.text = False

    def next_packet(self) -> Packet | NeedDataType:
        """Take the next packet out of the input, decoded; otherwise as `next_frame`.

        After an `Error` the connection is closed.
        """
        frame = self.next_frame()
        return frame if frame is NEED_DATA else self.decode(frame)

    def decode(self, frame: Frame) -> Packet:
        """Decode a frame of this connection.

        Raises:
            RemoteProtocolError: as `next_frame`.
        """
        if frame.packet is not None:
            return frame.packet
        try:
            return decode(bytes(frame))
        except RemoteProtocolError as exc:
            self._fail(exc)
            raise

    def send(self, packet: Packet) -> bytes:
        """Encode a packet for the peer; an `Error` closes the connection.

        Raises:
            LocalProtocolError: if the connection is closed, or the packet cannot be encoded.
        """
        if self.state is State.CLOSED and not (self._error_owed and isinstance(packet, Error)):
            raise LocalProtocolError(
                f"cannot send {type(packet).__name__}: the connection is closed"
            )
        encoded = encode(packet, text=self.text)
        if isinstance(packet, Error):
            self.close()
        return encoded

    def fail(self, fault: RemoteProtocolError) -> None:
        """Note a fault that another layer found, such as the membrane."""
        if self.state is State.OPEN:
            self._fail(fault)

    def close(self) -> None:
        """Note that this side has closed the connection; drops the input. Idempotent."""
        self.state = State.CLOSED
        self._error_owed = False
        self._drop_input()

    def _begin(self, first_byte: int) -> Scanner | TextScanner:
        if first_byte in _BINARY_BEGINS:
            return self._binary_scanner
        if first_byte in _TEXT_BEGINS:
            return self._text_scanner
        raise RemoteProtocolError(
            f"a packet begins with byte {first_byte:#04x}; it must be a turn, a record or #f, in "
            "binary or text Preserves"
        )

    def _fail(self, fault: RemoteProtocolError) -> None:
        self._fault = fault
        self.state = State.CLOSED
        self._error_owed = True
        self._drop_input()

    def _drop_input(self) -> None:
        self._buffer = b""
        self._position = 0
        self._collected = None
        self._scanner = None
