"""Frames written: methods by pamqp, and those of the hot path by hand.

A frame: its type, its channel, the size of its payload, the payload, and the octet 0xCE. A content
is a method, a header frame with the size of the body and the properties, and as many body frames as
the frame size makes necessary.

Source: AMQP 0-9-1, section 4.2.3.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ._field_tables import short_string
from ._replies import Code, Method, shortened

if TYPE_CHECKING:
    from pamqp import base

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
END: Final = 0xCE
END_BYTE: Final = b"\xce"

FRAME_HEAD: Final = struct.Struct(">BHI")
"""Type, channel, size of the payload."""

FRAME_BYTES: Final = FRAME_HEAD.size + 1
"""Bytes of a frame beside its payload."""

MIN_FRAME_SIZE: Final = 4_096
"""Every peer takes frames of that size (section 4.2.3, frame-min-size)."""

HEARTBEAT_FRAME: Final = FRAME_HEAD.pack(HEARTBEAT, 0, 0) + END_BYTE

BASIC: Final = 60

_METHOD_HEAD: Final = struct.Struct(">BHIHH")
_METHOD_INDEX: Final = struct.Struct(">BHII")
_CONTENT: Final = struct.Struct(">BHIHHQ")
_ACK: Final = struct.Struct(">BHIHHQBB")
_LONG: Final = struct.Struct(">I")
_LONGS: Final = struct.Struct(">II")
_CLOSE: Final = struct.Struct(">HH")

_BASIC_ACK: Final = 80
_BASIC_NACK: Final = 120
_CONNECTION_CLOSE: Final = (10, 50)
_CHANNEL_CLOSE: Final = (20, 40)


def frame_of(channel: int, method: Method, *arguments: bytes) -> bytes:
    """Return a method frame whose arguments are bytes already."""
    payload = b"".join(arguments)
    return _METHOD_HEAD.pack(METHOD, channel, 4 + len(payload), *method) + payload + END_BYTE


def method_frame(channel: int, method: base.Frame) -> bytes:
    """Return a frame with a method of pamqp's; for methods without names that a peer chooses.

    Those have to be what pamqp thinks that names are.
    """
    arguments = method.marshal()
    head = _METHOD_INDEX.pack(METHOD, channel, 4 + len(arguments), method.index)
    return head + arguments + END_BYTE


def ack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """Return a basic.ack: one message, or all up to it."""
    return _ACK.pack(METHOD, channel, 13, BASIC, _BASIC_ACK, tag, multiple, END)


def nack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """Return a basic.nack, which tells a publisher that nobody is responsible for its message."""
    return _ACK.pack(METHOD, channel, 13, BASIC, _BASIC_NACK, tag, multiple, END)


def close_frame(channel: int, code: Code, text: str, method: Method) -> bytes:
    """Return a channel.close, or with channel 0 a connection.close."""
    said = shortened(text)
    return frame_of(
        channel,
        _CHANNEL_CLOSE if channel else _CONNECTION_CLOSE,
        code.to_bytes(2, "big"),
        bytes((len(said),)),
        said,
        _CLOSE.pack(*method),
    )


def declare_ok_frame(channel: int, queue: str, messages: int, consumers: int) -> bytes:
    """Return a queue.declare-ok."""
    return frame_of(channel, (50, 11), short_string(queue), _LONGS.pack(messages, consumers))


def named_frame(channel: int, method: Method, name: str, *more: bytes) -> bytes:
    """Return a method that begins with a name: consume-ok, cancel, cancel-ok."""
    return frame_of(channel, method, short_string(name), *more)


def return_frame(channel: int, code: Code, exchange: str, key: str) -> bytes:
    """Return a basic.return; its content follows it."""
    return frame_of(
        channel, (60, 50), code.to_bytes(2, "big"), short_string(code.name),
        short_string(exchange), short_string(key),
    )  # fmt: skip


def get_ok_frame(
    channel: int, tag: int, redelivered: bool, exchange: str, key: str, left: int
) -> bytes:
    """Return a basic.get-ok; its content follows it."""
    return frame_of(
        channel, (60, 71), tag.to_bytes(8, "big"), b"\1" if redelivered else b"\0",
        short_string(exchange), short_string(key), _LONG.pack(left),
    )  # fmt: skip


def content_frames(channel: int, properties: bytes, body: bytes, frame_size: int) -> list[bytes]:
    """Return the frames of a content behind its method, in pieces; `body` is not copied if it fits.

    Args:
        channel: The channel.
        properties: Flags and list of properties.
        body: The body.
        frame_size: Most bytes of one frame; 0: any number.
    """
    size = len(body)
    head = (
        _CONTENT.pack(HEADER, channel, 12 + len(properties), BASIC, 0, size) + properties + END_BYTE
    )
    if not size:
        return [head]
    most = frame_size - FRAME_BYTES if frame_size else size
    if size <= most:
        return [head + FRAME_HEAD.pack(BODY, channel, size), body, END_BYTE]
    pieces = [head]
    for start in range(0, size, most):
        piece = body[start : start + most]
        pieces.append(FRAME_HEAD.pack(BODY, channel, len(piece)))
        pieces.append(piece)
        pieces.append(END_BYTE)
    return pieces
