"""A walk over the tags of binary Preserves: it finds the end of a value and the parts of a turn.

Rules:

1. The bytes of a value found here can be forwarded unchanged: every user of the `preserves` library
   can read them. Values that the library refuses are refused here, and always with
   `RemoteProtocolError`.
2. An incomplete value is scanned once, however many pieces it arrives in.
3. A value that is invalid or too large is refused at the first byte that shows it.

Theory of operation. `Scanner.find_end` steps from tag to tag. `frames` holds the open values: for a
compound its tag, which waits for an end marker, and for a prefix the number of values that it still
takes (an embedded one, an annotation and its value two). When the input ends too soon, the place is
stored as an offset from the start of the value, which stays valid when the bytes are moved. `marks`
notes where compounds close near the surface; from those and the first bytes of an event,
`event_parts` finds its parts without a second walk.

Equal members of a set and equal keys of a mapping cannot be told from the tags: `keyed` says that
there are sets or mappings, and that the library has to check them (`_connection.py` does that).

Source: https://preserves.dev/preserves-binary.html, and for the tag of annotations, 0x85, version
0.996.3 of the library.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .._errors import RemoteProtocolError

#: Default limit on the size of a packet, as for MQTT here, and for the same reason: the wire format
#: has no limit, and EMQX's 1 MiB has to pass with its wrapping.
DEFAULT_MAX_PACKET_SIZE = 2 << 20

#: Default limit on the nesting of values; as .NET's System.Text.Json (`MaxDepth`).
#: A turn takes three levels before the body of a message begins.
DEFAULT_MAX_DEPTH = 64

#: Largest integer, in bytes: the modulus of an RSA key of 4,096 bits, with its sign.
#: The library takes quadratic time in this, and linear stack.
MAX_INTEGER_SIZE = 513

FALSE = 0x80
TRUE = 0x81
END = 0x84
ANNOTATION = 0x85
EMBEDDED = 0x86
DOUBLE = 0x87
INTEGER = 0xB0
STRING = 0xB1
BYTES = 0xB2
SYMBOL = 0xB3
RECORD = 0xB4
SEQUENCE = 0xB5
SET = 0xB6
DICTIONARY = 0xB7

# A length in five groups of seven bits goes up to 32 GiB.
_MAX_LENGTH_GROUPS = 5

ASSERT = ord("A")
RETRACT = ord("R")
MESSAGE = ord("M")

_EVENT_FRAMES = (SEQUENCE, RECORD)
_LABEL_OF_ONE_BYTE = bytes((RECORD, SYMBOL, 1))

# The beginning of an event, up to its body: five tags at the cost of one.
_event_head = re.compile(
    rb"\xb5\xb0(?:\x00|\x01.|\x02..|\x03...)\xb4\xb3\x01[AMRS]", re.DOTALL
).match


class Scanner:
    """Finds the ends of values, one after the other.

    Attributes:
        embedded: whether the last value found has references in it.
        annotated: whether it has annotations in it.
        keyed: whether it has a set or a mapping in it.
        marks: where compounds ended that are nested no deeper than a field of an event,
            relative to the start of the last value found; the next search overwrites it.
    """

    __slots__ = (
        "_annotated",
        "_embedded",
        "_frames",
        "_keyed",
        "_max_depth",
        "_max_size",
        "_offset",
        "_opened",
        "_prefixed",
        "annotated",
        "embedded",
        "keyed",
        "marks",
    )

    def __init__(
        self,
        *,
        max_packet_size: int = DEFAULT_MAX_PACKET_SIZE,
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> None:
        """Make a scanner that stands at the start of a value.

        Args:
            max_packet_size: the largest value, in bytes.
            max_depth: its deepest nesting; prefixes count like compounds.
        """
        self._max_size = max_packet_size
        self._max_depth = max_depth
        self._frames: list[int] = []
        self._offset = 0
        # Just after the tag of the last compound opened: a record that ends there has no label.
        self._opened = 0
        # The number of frames that are prefixes.
        self._prefixed = 0
        self._annotated = False
        self._embedded = False
        self._keyed = False
        self.annotated = False
        self.embedded = False
        self.keyed = False
        self.marks: list[int] = []

    def find_end(self, data: bytes | bytearray, start: int) -> int | None:
        """Find the end of the value that begins at `start`.

        After None, call it again with more of the same value, with its new `start`.

        Returns:
            Where the value ends in `data`; None if it is incomplete.

        Raises:
            RemoteProtocolError: if it is invalid, too large or too deep. Neither the scanner nor
                the input can be used any further.
        """
        limit = start + self._max_size
        stop = len(data)
        if stop > limit:
            stop = limit
        frames = self._frames
        marks = self.marks
        at = start + self._offset
        opened = start + self._opened
        prefixed = self._prefixed
        depth = len(frames)
        max_depth = self._max_depth
        heads = max_depth > 2
        if at == start:
            marks.clear()
            if heads and at < stop and data[at] == SEQUENCE:
                frames.append(SEQUENCE)
                depth = 1
                at += 1
                opened = at
                if head := _event_head(data, at, stop):
                    frames += _EVENT_FRAMES
                    depth = 3
                    at = head.end()
        while at < stop:
            tag = data[at]
            if INTEGER <= tag <= SYMBOL:
                if at + 1 >= stop:
                    break
                length = data[at + 1]
                body = at + 2
                if length >= 128:
                    long = _long_length(data, at + 1, stop)
                    if long is None:
                        break
                    length, body = long
                end = body + length
                if tag == INTEGER and length > MAX_INTEGER_SIZE:
                    raise RemoteProtocolError(
                        f"an integer of {length} bytes at byte {at - start} of a packet; at most "
                        f"{MAX_INTEGER_SIZE} are accepted"
                    )
                if end > stop:
                    if end > limit:
                        raise self._too_large(end - start)
                    break
                if tag & 1:  # a string or a symbol
                    text = data[body:end]
                    if not text.isascii():
                        _check_utf8(text, at - start)
                at = end
            elif tag == END:
                frame = frames.pop() if depth else 0
                if frame < END:
                    raise RemoteProtocolError(
                        f"an end marker without a beginning at byte {at - start} of a packet"
                    )
                if at == opened and frame == RECORD:
                    raise RemoteProtocolError(f"a record without a label at byte {at - start - 1}")
                at += 1
                depth -= 1
                if depth < 4:
                    marks.append(at - start)
                    if depth == 1 and heads and not prefixed:
                        if head := _event_head(data, at, stop):
                            frames += _EVENT_FRAMES
                            depth = 3
                            at = head.end()
                        continue
            elif RECORD <= tag <= DICTIONARY:
                if depth >= max_depth:
                    raise self._too_deep(at - start)
                frames.append(tag)
                depth += 1
                at += 1
                opened = at
                if tag >= SET:
                    self._keyed = True
                continue
            elif FALSE <= tag <= TRUE:
                at += 1
            elif tag == DOUBLE:
                if at + 1 >= stop:
                    break
                if data[at + 1] != 8:
                    raise RemoteProtocolError(
                        f"a double of {data[at + 1]} bytes at byte {at - start}; it has 8"
                    )
                if at + 10 > stop:
                    if at + 10 > limit:
                        raise self._too_large(at + 10 - start)
                    break
                at += 10
            elif ANNOTATION <= tag <= EMBEDDED:
                if depth >= max_depth:
                    raise self._too_deep(at - start)
                if tag == EMBEDDED:
                    self._embedded = True
                    frames.append(1)
                else:
                    self._annotated = True
                    frames.append(2)
                prefixed += 1
                depth += 1
                at += 1
                continue
            else:
                raise RemoteProtocolError(
                    f"byte {at - start} of a packet is {tag:#04x}, which begins no Preserves value"
                )
            while prefixed and frames[-1] < END:
                if frames[-1] > 1:
                    frames[-1] -= 1
                    break
                frames.pop()
                depth -= 1
                prefixed -= 1
            if not depth:
                self.annotated = self._annotated
                self.embedded = self._embedded
                self.keyed = self._keyed
                self._annotated = False
                self._embedded = False
                self._keyed = False
                self._offset = 0
                self._opened = 0
                self._prefixed = 0
                return at
        if stop == limit:
            raise self._too_large(self._max_size + 1)
        self._offset = at - start
        self._opened = opened - start
        self._prefixed = prefixed
        return None

    def _too_large(self, size: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"a packet of {size} bytes or more, at most {self._max_size} are accepted here; send "
            "smaller ones or raise the limit on the packet size"
        )

    def _too_deep(self, at: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"a packet is nested more than {self._max_depth} deep at byte {at}; send a flatter one "
            "or raise the limit on the depth"
        )


def _long_length(data: bytes | bytearray, at: int, stop: int) -> tuple[int, int] | None:
    """Return a length of several bytes and where it ends; None if it is incomplete."""
    length = 0
    for group in range(_MAX_LENGTH_GROUPS):
        if at >= stop:
            return None
        byte = data[at]
        at += 1
        length |= (byte & 127) << 7 * group
        if byte < 128:
            return length, at
    raise RemoteProtocolError(
        f"a length in a packet takes more than {_MAX_LENGTH_GROUPS} bytes; this is not Preserves"
    )


def _check_utf8(text: bytes | bytearray, at: int) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError(
            f"a string or symbol at byte {at} of a packet is not UTF-8: {exc.reason}"
        ) from None


class EventParts(NamedTuple):
    """The places of the parts of one event of a turn, as offsets in the buffer."""

    oid: int
    """The oid of its target."""
    kind: int
    """`ASSERT`, `RETRACT` or `MESSAGE`."""
    start: int
    """Where the body begins: an assertion, a message's body, the handle to retract."""
    end: int
    """Where the body ends."""
    handle: int
    """The handle that is asserted or retracted; 0 for the other kinds."""


def event_parts(data: bytes | bytearray, start: int, marks: list[int]) -> list[EventParts] | None:
    """Split a turn into its events.

    Args:
        data: a buffer with a packet in which a `Scanner` found no fault.
        start: where that packet begins.
        marks: the scanner's `marks` for it.

    Returns:
        The events; or None if it is not a plain turn: another packet, one with annotations, or with
        an event whose body is a reference, such as a sync. Those need full decoding.
    """
    if data[start] != SEQUENCE:
        return None
    events: list[EventParts] = []
    at = start + 1
    mark = 0
    last = len(marks) - 1  # the end of the turn
    while mark < last:
        # [oid <kind body handle?>]
        if data[at] != SEQUENCE or data[at + 1] != INTEGER or data[at + 2] >= 128:
            return None
        event = at + 3 + data[at + 2]
        oid = int.from_bytes(data[at + 3 : event], "big", signed=True)
        if data[event : event + 3] != _LABEL_OF_ONE_BYTE:
            return None
        kind = data[event + 3]
        body = event + 4
        tag = data[body]
        if RECORD <= tag <= DICTIONARY:
            body_end = start + marks[mark]
            mark += 1
        elif INTEGER <= tag <= SYMBOL:
            body_end = atom_end(data, body)
        elif FALSE <= tag <= TRUE:
            body_end = body + 1
        elif tag == DOUBLE:
            body_end = body + 10
        else:
            return None
        handle = 0
        event_end = body_end
        if kind == ASSERT:
            if data[body_end] != INTEGER or data[body_end + 1] >= 128:
                return None
            event_end = body_end + 2 + data[body_end + 1]
            handle = int.from_bytes(data[body_end + 2 : event_end], "big", signed=True)
        elif kind == RETRACT:
            if tag != INTEGER or data[body + 1] >= 128:
                return None
            handle = int.from_bytes(data[body + 2 : body_end], "big", signed=True)
        elif kind != MESSAGE:
            return None
        # The end markers of the event and of the pair must follow: otherwise there are more parts.
        if mark >= last or start + marks[mark + 1] != event_end + 2:
            return None
        events.append(EventParts(oid, kind, body, body_end, handle))
        mark += 2
        at = event_end + 2
    return events if at + 1 == start + marks[last] else None


def atom_end(data: bytes | bytearray, at: int) -> int:
    """Return where an atom with a length ends; the scanner has found it complete."""
    length = data[at + 1]
    if length < 128:
        return at + 2 + length
    length, body = _long_length(data, at + 1, len(data)) or (0, at)
    return body + length
