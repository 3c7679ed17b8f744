"""Frames, server side [RFC 6455 section 5]: parses a client's, makes the server's.

Rules of this file:
1. `FrameReader.receive_data` raises nothing but `FrameError`, whatever the input.
2. How the input was split into reads changes neither the result nor the error.
3. A frame is refused at its header; nothing of a refused frame is collected.
4. The reader holds at most one incomplete message of `max_message_size` bytes (nothing of a
   stream), and one incomplete header or control frame.

wsproto's own reader takes 10 us for each frame, however short: a read full of empty pings, or
of one-byte fragments, kept the loop for a tenth of a second. Its unmasking of long payloads is the
fastest in Python, and is used here. The tests compare all this with wsproto's verdict.
"""

from __future__ import annotations

import struct
from typing import Final

from wsproto.frame_protocol import CloseReason, XorMaskerSimple

from .._errors import RemoteProtocolError

FAST_BYTES: Final = 8 << 10
"""The longest payload unmasked as one number: 1.4 us instead of 11 for a frame of 200
bytes; the same as wsproto's method for 8 KiB, half as fast for 64 KiB."""

MAX_CONTROL_BYTES: Final = 125
"""[RFC 6455 section 5.5]."""

MAX_REASON_BYTES: Final = MAX_CONTROL_BYTES - 2

_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_TWO_BYTES: Final = 126
_EIGHT_BYTES: Final = 127

_CONTINUATION: Final = 0x0
_TEXT: Final = 0x1
_BINARY: Final = 0x2
_CLOSE: Final = 0x8
_PING: Final = 0x9
_PONG: Final = 0xA
_WHOLE_BINARY: Final = _FINAL | _BINARY

_SHORT_HEADERS: Final = tuple(bytes((_WHOLE_BINARY, size)) for size in range(_TWO_BYTES))
_pack_medium_header = struct.Struct(">BBH").pack
_pack_long_header = struct.Struct(">BBQ").pack


class FrameError(RemoteProtocolError):
    """A fault in a client's frames.

    Attributes:
        code: The code to close with [RFC 6455 section 7.4.1].
    """

    def __init__(self, code: CloseReason, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameReader:
    """Parses the input after the handshake.

    Args:
        max_message_size: The largest message accepted, in bytes. None: there is no such limit, and
            no message is assembled: its parts are passed on at once.

    Attributes:
        ping: The payload of the last ping read; the owner answers it and takes it out.
        close_code: The code of the close frame, after which nothing is read; 1005 if it had none;
            None before it.
    """

    __slots__ = (
        "_assembling", "_final", "_held", "_left", "_masker", "_max_message_size", "_message",
        "close_code", "ping",
    )  # fmt: skip

    def __init__(self, max_message_size: int | None) -> None:
        self.ping: bytes | None = None
        self.close_code: int | None = None
        self._max_message_size = max_message_size
        # An incomplete header or control frame.
        self._held: bytes = b""
        # The incomplete message, and whether it has begun in fragments: only then may a
        # continuation come.
        self._message = bytearray()
        self._assembling = False
        # The frame that the input was cut in: its unmasking state, its remaining bytes, and
        # whether it is its message's last.
        self._masker: XorMaskerSimple | None = None
        self._left = 0
        self._final = False

    @property
    def collected_bytes(self) -> int:
        """Bytes held of an incomplete message."""
        return len(self._message)

    def drop(self) -> None:
        """Release everything held; nothing may be read afterwards."""
        self._held = b""
        self._message = bytearray()

    def stream(self) -> None:
        """Release the incomplete message; assemble no more messages from now on."""
        self._message = bytearray()
        self._max_message_size = None

    def receive_data(self, data: bytes, messages: list[bytes]) -> None:
        """Take data that was read; append the binary messages that are complete now.

        Raises:
            FrameError: With the messages before the fault appended.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        size = len(data)
        position = 0
        while position < size and self.close_code is None:
            if self._masker is not None:
                position = self._take_piece(self._masker, data, position, messages)
                continue
            start, end = self._bounds(data, position)
            if start > size:
                self._held = data[position:]
                return
            first = data[position]
            if end <= size and end - start <= FAST_BYTES:
                payload = _unmask(data, start, end)
                if first == _WHOLE_BINARY:
                    messages.append(payload)
                elif first & _CONTROL:
                    self._take_control(first & _OPCODE, payload)
                else:
                    self._take(payload, messages)
                    self._end_frame(first & _FINAL != 0, messages)
                position = end
            elif first & _CONTROL:
                self._held = data[position:]
                return
            else:
                self._masker = XorMaskerSimple(data[start - 4 : start])
                self._left = end - start
                self._final = first & _FINAL != 0
                position = start

    def _bounds(self, data: bytes, position: int) -> tuple[int, int]:
        """Check a frame's header, and return where its payload begins and ends.

        If the header is incomplete, the beginning is beyond the end of the data.
        """
        if len(data) - position < 2:
            return len(data) + 1, 0
        first = data[position]
        second = data[position + 1]
        if first != _WHOLE_BINARY or not second & _MASKED or self._assembling:
            self._judge(first, second)
        length = second & _LENGTH
        start = position + 6
        if length >= _TWO_BYTES:
            shortest = _TWO_BYTES if length == _TWO_BYTES else 1 << 16
            start += 2 if length == _TWO_BYTES else 8
            if start > len(data):
                return start, 0
            length = int.from_bytes(data[position + 2 : start - 4])
            if length >> 63:
                raise FrameError(
                    CloseReason.PROTOCOL_ERROR,
                    "a frame's length has its first bit set [RFC 6455 section 5.2]",
                )
            if length < shortest:
                raise FrameError(
                    CloseReason.PROTOCOL_ERROR,
                    "a frame's length was written with more bytes than it takes "
                    "[RFC 6455 section 5.2]",
                )
        elif start > len(data):
            return start, 0
        most = self._max_message_size
        if most is not None and not first & _CONTROL and length + len(self._message) > most:
            raise FrameError(
                CloseReason.MESSAGE_TOO_BIG,
                f"a message of {length + len(self._message)} bytes or more came; the limit is "
                f"{most}",
            )
        return start, start + length

    def _judge(self, first: int, second: int) -> None:
        """Refuse a frame by its first two bytes."""
        opcode = first & _OPCODE
        if not second & _MASKED:
            fault = "an unmasked frame came; a client must mask all [RFC 6455 section 5.1]"
        elif first & _RESERVED:
            fault = "a frame with a reserved bit came; no extension was agreed on [section 5.2]"
        elif opcode == _TEXT:
            raise FrameError(
                CloseReason.UNSUPPORTED_DATA,
                "a text frame came; only binary messages are understood here",
            )
        elif opcode in (_CLOSE, _PING, _PONG):
            if first & _FINAL and second & _LENGTH <= MAX_CONTROL_BYTES:
                return
            fault = "a control frame in fragments, or over 125 bytes, came [RFC 6455 section 5.5]"
        elif opcode == _CONTINUATION:
            if self._assembling:
                return
            fault = "a continuation came, and no message had begun [RFC 6455 section 5.4]"
        elif opcode == _BINARY:
            if not self._assembling:
                return
            fault = "a message began within another in fragments [RFC 6455 section 5.4]"
        else:
            fault = f"a frame with the unknown opcode {opcode:#x} came [RFC 6455 section 5.2]"
        raise FrameError(CloseReason.PROTOCOL_ERROR, fault)

    def _take_piece(
        self, masker: XorMaskerSimple, data: bytes, position: int, messages: list[bytes]
    ) -> int:
        """Take the available part of a long frame; return where it ends."""
        end = min(position + self._left, len(data))
        self._take(masker.process(bytearray(data[position:end])), messages)
        self._left -= end - position
        if not self._left:
            self._masker = None
            self._end_frame(self._final, messages)
        return end

    def _take(self, payload: bytes | bytearray, messages: list[bytes]) -> None:
        if self._max_message_size is None:
            messages.append(bytes(payload))
        else:
            self._message += payload

    def _end_frame(self, final: bool, messages: list[bytes]) -> None:
        self._assembling = not final
        if final and self._max_message_size is not None:
            messages.append(bytes(self._message))
            self._message = bytearray()

    def _take_control(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self.ping = payload
        elif opcode == _CLOSE:
            self.close_code = _close_code(payload)


def _unmask(data: bytes, start: int, end: int) -> bytes:
    """Return the payload in these bounds, unmasked by the key before it."""
    size = end - start
    keys = data[start - 4 : start] * ((size + 3) >> 2)
    from_bytes = int.from_bytes
    masked = from_bytes(data[start:end], "little")
    return (masked ^ from_bytes(keys[:size], "little")).to_bytes(size, "little")


def _close_code(payload: bytes) -> int:
    """Return the code of a close frame [RFC 6455 sections 5.5.1, 7.1.5 and 7.4]."""
    if not payload:
        return CloseReason.NO_STATUS_RCVD
    code = int.from_bytes(payload[:2])
    if len(payload) == 1 or not may_be_sent(code):
        raise FrameError(
            CloseReason.PROTOCOL_ERROR,
            f"a close frame with no valid code came: {payload[:2].hex(' ')} [section 7.4]",
        )
    try:
        payload[2:].decode()
    except UnicodeDecodeError as exc:
        raise FrameError(
            CloseReason.INVALID_FRAME_PAYLOAD_DATA,
            f"a close frame came whose reason is not UTF-8: {exc.reason}",
        ) from exc
    return code


def may_be_sent(code: int) -> bool:
    """Whether a close frame may have this code: a registered one, or one of a free range.

    1012 to 1014 were registered after RFC 6455.
    """
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def binary_frame(payload: bytes) -> bytes:
    """Make a message in one frame, with a header of 2, 4 or 10 bytes."""
    return binary_header(len(payload)) + payload


def binary_header(size: int) -> bytes:
    """Make the header of a message of `size` bytes in one frame."""
    if size < _TWO_BYTES:
        return _SHORT_HEADERS[size]
    if size < 1 << 16:
        return _pack_medium_header(_WHOLE_BINARY, _TWO_BYTES, size)
    return _pack_long_header(_WHOLE_BINARY, _EIGHT_BYTES, size)


def pong_frame(payload: bytes) -> bytes:
    """Make the answer to a ping."""
    return bytes((_FINAL | _PONG, len(payload))) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """Make a close frame; code 1005 makes one without content.

    The reason is cut to the space there is, and characters that cannot be encoded become "?":
    it must not keep a connection from being closed.
    """
    payload = b""
    if code != CloseReason.NO_STATUS_RCVD:
        cut = reason.encode(errors="replace")[:MAX_REASON_BYTES]
        payload = code.to_bytes(2) + cut.decode(errors="ignore").encode()
    return bytes((_FINAL | _CLOSE, len(payload))) + payload
