"""The properties of MQTT 5 that travel with a message, for clients: content type, user properties.

Each is an identifier and a value (MQTT 5, section 3.3.2.3). Others that may be there are passed
over here: payload format, response topic, correlation data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

_FORMAT = 0x01
_CONTENT_TYPE = 0x03
_RESPONSE_TOPIC = 0x08
_CORRELATION = 0x09
_USER = 0x26

_LENGTH = struct.Struct(">H")
MAX_BYTES = 65_535
"""Limit of a text, in UTF-8."""


class MessageProperties(NamedTuple):
    """Properties of one message."""

    content_type: str | None = None
    user: tuple[tuple[str, str], ...] = ()
    """The user properties, in order; a name may be there more than once."""


def encode_properties(content_type: str | None, user: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return properties as they travel.

    Raises:
        ValueError: A text is too long, or has a NUL character.
    """
    parts: list[bytes] = []
    if content_type is not None:
        parts += (bytes((_CONTENT_TYPE,)), _text(content_type, "a content type"))
    for name, value in user:
        pair = _text(name, "a name of a user property"), _text(value, "a user property")
        parts += (bytes((_USER,)), *pair)
    return b"".join(parts)


def _text(text: str, what: str) -> bytes:
    raw = text.encode()
    if len(raw) > MAX_BYTES or b"\0" in raw:
        raise ValueError(
            f"{what} of {len(raw)} bytes: {MAX_BYTES} are the most, without NUL characters"
        )
    return _LENGTH.pack(len(raw)) + raw


def parse_properties(raw: bytes) -> MessageProperties:
    """Parse properties as they travel.

    Raises:
        ValueError: They are none.
    """
    content_type: str | None = None
    user: list[tuple[str, str]] = []
    at, end = 0, len(raw)

    def take() -> bytes:
        nonlocal at
        if at + 2 > end:
            raise ValueError("properties that are cut short")
        start = at + 2
        at = start + (raw[at] << 8 | raw[at + 1])
        if at > end:
            raise ValueError("properties that are cut short")
        return raw[start:at]

    while at < end:
        identifier = raw[at]
        at += 1
        if identifier == _USER:
            user.append((take().decode(), take().decode()))
        elif identifier == _CONTENT_TYPE:
            content_type = take().decode()
        elif identifier in (_RESPONSE_TOPIC, _CORRELATION):
            take()
        elif identifier == _FORMAT:
            at += 1
        else:
            raise ValueError(f"a property {identifier:#04x} does not travel with a message")
    return MessageProperties(content_type, tuple(user))
