"""One Syndicate connection without any I/O: bytes in, packets out.

Rules:

1. No input makes `next_packet` or `decode` raise anything but `RemoteProtocolError`; after one the
   connection is closed and says the same again.
2. How the input was cut into pieces changes neither the packets nor the error.
3. A packet is refused at the first byte that tells that it will be; an oversized one is not
   collected.
4. The input held is at most one incomplete packet and what came with its last piece; collecting it
   takes time in proportion to its size, in however many pieces it comes.
5. What goes out is written as the last packet that came in was: in binary until one came in text.

Theory of operation. There is no handshake, and both sides do the same. `_buffer` is the last thing
received, unchanged, and `_position` is how far it has been cut into packets; one that is cut in two
by the end of a read is collected in a `bytearray`, while the scanner goes on where it stood.

A packet comes as a `Frame`, its bytes and where they are; who only forwards need not decode it.

    OPEN --<error> received or sent, a fault, close()--> CLOSED
    CLOSED by a fault: one <error> may still be sent, to say what was wrong
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
    """Whether anything may still come and go."""

    OPEN = "open"
    CLOSED = "closed"


_SPACES = frozenset(b" \t\r\n\v\f")
# How a packet may begin: a turn, a record, #f; annotated or, in text, with a comment.
_BINARY_BEGINS = frozenset({SEQUENCE, RECORD, FALSE, ANNOTATION})
_TEXT_BEGINS = frozenset(b"[<#@")


class Frame(NamedTuple):
    """One packet as it came, well-formed but not decoded."""

    data: bytes
    """The buffer that it came in."""
    start: int
    end: int
    text: bool
    """Whether it is written as text."""
    embedded: bool
    """Whether there may be references in it, which mean nothing to anybody but this connection, or
    annotations, which mean nothing to anybody."""
    parts: list[EventParts] | None
    """Its events, if it is a plain turn: then bodies without references can be forwarded."""
    packet: Packet | None
    """What it says, if that had to be decoded already."""

    def __bytes__(self) -> bytes:
        return self.data[self.start : self.end]


class Connection:
    """The protocol of one connection, for either side.

    Attributes:
        state: whether anything may still come and go.
        text: whether packets are written as text at present.
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
            max_depth: how deep values in a packet may be nested, the packet itself included.
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
        # Whose packet has begun to come; None between packets.
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
        """How much input is held. When the peer has closed its side: what it cut off."""
        collected = 0 if self._collected is None else len(self._collected)
        return collected + len(self._buffer) - self._position

    @property
    def held_bytes(self) -> int:
        """How much is in memory of what has been received: what has been cut may be, too."""
        return len(self._buffer) + (0 if self._collected is None else len(self._collected))

    def let_go(self) -> None:
        """Let go of input of which nothing is left to be cut."""
        if self._position and self._position >= len(self._buffer) and self._collected is None:
            self._buffer = b""
            self._position = 0

    def receive_data(self, data: bytes) -> None:
        """Take what has been read from the peer; `next_frame` gives what is in it.

        Never raises. Take out what is complete before the next call, or the input held grows by
        what is given here. A closed connection drops it.
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
        """Take the next packet out of the input, as it came.

        Returns:
            A frame, or `NEED_DATA`. A connection that was closed without a fault says `NEED_DATA`
            for ever.

        Raises:
            RemoteProtocolError: the peer broke the protocol; send an `Error` with what the
                exception says, and close the connection.
        """
        if self._fault is not None:
            raise self._fault
        try:
            if self._scanner is None and self._collected is None:
                # What nearly all packets are, without a detour.
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
            # Whether all keys and members are different takes the library to tell.
            decode_binary(data[start:end])
        parts = event_parts(data, start, scanner.marks)
        if parts is None:
            return self._decoded(data, start, end)
        embedded = scanner.embedded or scanner.annotated
        return Frame(data, start, end, False, embedded, parts, None)

    def _decoded(self, data: bytes, start: int, end: int) -> Frame:
        # It is not a plain turn, so there is no saying yet that it is a packet at all.
        packet = decode(data[start:end])
        if isinstance(packet, Error):
            self.close()
        return Frame(data, start, end, self.text, True, None, packet)

    def buffered(self) -> tuple[bytes, int] | None:
        """Return the input and where in it the next packet begins; None within a packet.

        For who can tell whole packets from what they begin with, and then calls `skip_to`.
        """
        if self._scanner is None and self._collected is None and self.state is State.OPEN:
            return self._buffer, self._position
        return None

    def skip_to(self, position: int) -> None:
        """Go on at `position`: what is before it was packets in binary, and has been dealt with."""
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
        """Note a fault that was found beyond this layer, by the membrane say."""
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
