"""Flat packets: turns whose events are flat records, read in one pass.

Most events are records of a few atoms: `<Says "tony" "hello">`, `<Present 4711>`. Such packets need
no stack of open values, and where their fields begin is what routing them needs. So this is a
second, narrower scanner: what it takes is what `_scan.py` finds well-formed, with the same parts;
everything else it leaves to that, without saying why.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ._scan import (
    ASSERT,
    DOUBLE,
    END,
    FALSE,
    INTEGER,
    MESSAGE,
    RECORD,
    RETRACT,
    SEQUENCE,
    SYMBOL,
    TRUE,
)

DEPTH: Final = 4
"""How deep flat packets are nested: the turn, the pair, the event, the record."""

MOST_EVENTS: Final = 128
"""Events of a flat packet: as many as one turn may have (`_receiver.TURN_EVENTS`)."""

# The beginning of an event, up to its body or handle.
_head = re.compile(rb"\xb5\xb0(\x00|\x01.|\x02..|\x03...)\xb4\xb3\x01([AMR])", re.DOTALL).match


class FlatEvent(NamedTuple):
    """One event, or several equal messages in a row, as offsets in the buffer."""

    oid: bytes
    """The oid of its target, as it travels: its length in a byte, and its bytes."""
    kind: int
    """`ASSERT`, `RETRACT` or `MESSAGE`."""
    start: int
    """Where its body begins."""
    end: int
    """Where it ends."""
    places: list[int]
    """Where the fields of the body begin, and where the last one ends; none of a retraction."""
    handle: int
    """The handle that is asserted or retracted."""
    times: int
    """How often it is repeated, itself included."""


def flat_packet(data: bytes, start: int) -> tuple[list[FlatEvent], int] | None:
    """Read the packet that begins at `start`.

    Returns:
        Its events, and where it ends; None if it is incomplete, or not flat, or malformed, or has
        more than `MOST_EVENTS` events.
    """
    try:
        return _flat_packet(data, start) if data[start] == SEQUENCE else None
    except (IndexError, UnicodeDecodeError):
        return None  # it ends too soon, or has to be refused


def _flat_packet(data: bytes, start: int) -> tuple[list[FlatEvent], int] | None:
    events: list[FlatEvent] = []
    count = 0
    at = start + 1
    while True:
        head = _head(data, at)
        if head is None:
            return (events, at + 1) if events and data[at] == END else None
        begin = head.end()
        kind = data[begin - 1]
        if kind == RETRACT:
            places: list[int] = []
            end = begin
        else:
            found = _fields(data, begin)
            if found is None:
                return None
            places = found
            end = places[-1] + 1
        handle = 0
        after = end
        if kind != MESSAGE:
            if data[end] != INTEGER or data[end + 1] > 8:
                return None
            after = end + 2 + data[end + 1]
            handle = int.from_bytes(data[end + 2 : after], "big", signed=True)
        if data[after : after + 2] != b"\x84\x84":
            return None
        times = 1
        event = at
        at = after + 2
        if kind == MESSAGE and data[at] != END:
            raw = data[event:at]
            while data.startswith(raw, at):
                at += len(raw)
                times += 1
        count += times
        if count > MOST_EVENTS:
            return None
        events.append(FlatEvent(head[1], kind, begin, end, places, handle, times))


def _fields(data: bytes, start: int) -> list[int] | None:
    """Return where the fields of a flat record begin, and where the last one ends."""
    if data[start] != RECORD or data[start + 1] != SYMBOL:
        return None
    length = data[start + 2]
    at = start + 3 + length
    if length >= 128 or not data[start + 3 : at].isascii():
        return None
    places = [at]
    while True:
        tag = data[at]
        if INTEGER <= tag <= SYMBOL:
            length = data[at + 1]
            content = at + 2
            if length >= 128:
                more = data[content]
                if tag == INTEGER or not 0 < more < 128:
                    return None
                length = (length & 127) | more << 7
                content += 1
            at = content + length
            if tag & 1:  # a string or a symbol
                text = data[content:at]
                if not text.isascii():
                    text.decode()
        elif tag == END:
            return places
        elif FALSE <= tag <= TRUE:
            at += 1
        elif tag == DOUBLE and data[at + 1] == 8:
            at += 10
        else:
            return None
        places.append(at)


def flat_body(body: bytes) -> FlatEvent | None:
    """Return an event with this body, a well-formed value; None if it is not a flat record."""
    if body[0] != RECORD:
        return None
    places = _fields(body, 0)
    return None if places is None else FlatEvent(b"", ASSERT, 0, len(body), places, 0, 1)


def is_canonical(data: bytes, places: list[int]) -> bool:
    """Whether a flat record is in canonical form, so that equal ones have equal bytes.

    False may also mean that this is not certain.
    """
    for at in places[:-1]:
        tag = data[at]
        if tag == DOUBLE:
            return False  # the library decides about what is not a number
        if tag == INTEGER and (length := data[at + 1]):
            first = data[at + 2]
            if length == 1:
                if not first:
                    return False
            elif first in (0, 255) and (data[at + 3] ^ first) < 128:
                return False  # a byte that only repeats the sign
    return True
