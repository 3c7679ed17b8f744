"""Runs: messages that differ in one atom, found and framed anew without decoding them.

A publisher's messages are much alike: `[[0 <M <Says "tony" "...">>]]` again and again. A `Template`
is made from one of them: all its bytes up to the tag of the body's last atom, a string or a byte
string, and all that follow the atom. Another packet that begins and ends so is as well-formed, is
for the same entity, and concerns the same observers as long as no pattern has a constant where the
atom stands. So neither the tags are walked over nor the patterns looked at: where the atom ends is
told by its length, which is what makes Preserves self-delimiting.

What an observer is told is, by the template again, fixed bytes, the atom, and fixed bytes. Framing
a run is one `join` for each distinct delivery.

Source: our own; the idea of a range forwarded at once is that of MQTT's runs (`mqtt/_runs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...dataspace import look_up
from ._scan import BYTES, RECORD, SEQUENCE, STRING, EventParts
from ._values import Encoded, encode_integer, encoded, places_of

if TYPE_CHECKING:
    from ._port import Port

Layout = tuple[bytes, bytes | None]
"""What stands before the atom, and what after it; None if it is not shown at all."""

MESSAGE_HEAD = b"\xb4\xb3\x01M"
"""How an event begins that is a message."""

_ENDS = b"\x84\x84\x84"


class Template:
    """What a connection's messages have in common.

    Attributes:
        prefix: a packet up to and including the tag of the atom.
        suffix: what follows the atom.
        text: whether the atom is a string, to be valid UTF-8.
        oid: for whom the messages are.
        version: the dataspace's, when the observers were found.
        ports: whom it concerns.
        layouts: how each of them is told.
    """

    __slots__ = ("layouts", "oid", "ports", "prefix", "suffix", "text", "version")

    def __init__(
        self,
        prefix: bytes,
        suffix: bytes,
        oid: int,
        version: int,
        layouts: Mapping[Port, Layout],
    ) -> None:
        self.prefix = prefix
        self.suffix = suffix
        self.text = prefix[-1] == STRING
        self.oid = oid
        self.version = version
        self.ports = tuple(layouts)
        self.layouts = layouts


class MessageRun:
    """Messages of one template that follow each other.

    Attributes:
        count: how many.
        nbytes: their bytes as they came.
    """

    __slots__ = ("_atoms", "_chunks", "_template", "count", "nbytes")

    def __init__(self, template: Template, atoms: list[bytes], nbytes: int) -> None:
        self.count = len(atoms)
        self.nbytes = nbytes
        self._template = template
        self._atoms = atoms
        self._chunks: dict[Layout, bytes] = {}

    def __repr__(self) -> str:
        return f"<MessageRun of {self.count}, {self.nbytes} bytes>"

    def chunk(self, port: Port) -> bytes:
        """Return the packets, one after the other, that tell `port` of all messages."""
        layout = self._template.layouts[port]
        chunk = self._chunks.get(layout)
        if chunk is None:
            before, after = layout
            if after is None:
                chunk = before * self.count
            else:
                chunk = b"".join((before, (after + before).join(self._atoms), after))
            self._chunks[layout] = chunk
        return chunk

    def packets(self, port: Port) -> list[bytes]:
        """Return them one by one."""
        before, after = self._template.layouts[port]
        if after is None:
            return [before] * self.count
        return [before + atom + after for atom in self._atoms]


def varying_atom(body: bytes) -> tuple[int, tuple[int, ...]] | None:
    """Return where the tag of a body's last atom stands, and its path; None if there is none.

    That is a string or a byte string: the body itself, the last field of a record, or the last
    element of a sequence.
    """
    if body[0] in (STRING, BYTES):
        return 0, ()
    if body[0] not in (RECORD, SEQUENCE):
        return None
    places = places_of(body)
    if len(places) < 2 or body[places[-2]] not in (STRING, BYTES):
        return None
    return places[-2], (len(places) - 2,)


def make_template(
    data: bytes,
    start: int,
    end: int,
    parts: EventParts,
    ports: Sequence[Port],
    version: int,
) -> Template | None:
    """Return the template of a packet with one message, for those whom it concerns.

    None if there is no telling them by one: the atom is shown twice, say.
    """
    body = data[parts.start : parts.end]
    varying = varying_atom(body)
    if varying is None:
        return None
    at, path = varying
    layouts: dict[Port, Layout] = {}
    known: dict[tuple[int, Any], Layout] = {}
    value: Any = Encoded(body) if path else MISSING_BODY
    for port in ports:
        captures = port.captures
        oid = port.target.oid
        layout = known.get((oid, captures))
        if layout is None:
            layout = _layout(oid, captures, body, at, path, value)
            if layout is None:
                return None
            known[oid, captures] = layout
        layouts[port] = layout
    tag = parts.start + at
    # The atom is the last thing in the body, which its end markers follow, if it has any.
    suffix = data[parts.end - bool(path) : end]
    return Template(data[start : tag + 1], suffix, parts.oid, version, layouts)


MISSING_BODY: Any = None
"""Stands for a body that is but the atom: nothing else of it can be captured."""


def _layout(
    oid: int,
    captures: tuple[tuple[Any, ...], ...],
    body: bytes,
    at: int,
    path: tuple[int, ...],
    value: Any,
) -> Layout | None:
    before: list[bytes] = [b"\xb5\xb5", encode_integer(oid), MESSAGE_HEAD, b"\xb5"]
    after: list[bytes] | None = None
    for capture in captures:
        if capture in ((), path):
            if after is not None:
                return None
            whole = capture == ()
            before.append(body[: at + 1] if whole else body[at : at + 1])
            after = [b"\x84"] if whole and path else []
        else:
            fixed = encoded(look_up(value, capture))
            if fixed is None:
                return None
            (before if after is None else after).append(fixed)
    last = before if after is None else after
    last.append(b"\x84" + _ENDS)
    return b"".join(before), None if after is None else b"".join(after)


def find_run(
    buffer: bytes, start: int, template: Template, room: tuple[int, int], max_packet_size: int
) -> tuple[list[bytes], int, bool]:
    """Find the run of messages of a template that begins at `start`.

    Each is looked at before it is admitted (rule 9): it is, while what the ones before it cost
    leaves the debt at or below the limit, in items and bytes, where one costs its input and a copy
    for each observer.

    Args:
        buffer: what was read.
        start: where a packet begins.
        template: what it is to be like.
        room: what the account may still borrow before its readers wait; see `Account.room`.
        max_packet_size: larger packets are left to `Connection`, which refuses them.

    Returns:
        The atoms, each with its length before it; where the run ends; and whether it was cut
        because the account has no more room.
    """
    prefix = template.prefix
    suffix = template.suffix
    to_atom = len(prefix)
    to_next = len(suffix)
    text = template.text
    size = len(buffer)
    price = len(template.ports) + 1
    room_items, room_bytes = room
    max_count = 1 + room_items // price if room_items >= 0 else 0
    last_start = start + room_bytes // price if room_bytes >= 0 else start - 1
    atoms: list[bytes] = []
    position = start
    while buffer.startswith(prefix, position):
        if len(atoms) >= max_count or position > last_start:
            return atoms, position, True
        at = position + to_atom
        if at + 2 > size:
            break
        length = buffer[at]
        content = at + 1
        if length >= 128:
            byte = buffer[content]
            content += 1
            length = (length & 127) | (byte & 127) << 7
            if byte >= 128:
                if content >= size or not 0 < buffer[content] < 128:
                    break
                length |= buffer[content] << 14
                content += 1
            elif not byte:
                break  # a length that is longer than it need be, to be copied by nobody
        stop = content + length
        if not buffer.startswith(suffix, stop) or stop + to_next - position > max_packet_size:
            break
        atom = buffer[at:stop]
        if text and not _is_text(buffer[content:stop]):
            break
        atoms.append(atom)
        position = stop + to_next
    return atoms, position, False


def _is_text(content: bytes) -> bool:
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
