"""Runs: messages that differ in one atom, recognised and framed anew without decoding.

A publisher's messages are much alike: `[[0 <M <Says "tony" "...">>]]` again and again. A `Template`
is made from one of them: all bytes up to the tag of the body's last atom, a string or a byte
string, and all bytes after the atom. A packet with the same beginning and end is as well-formed,
has the same target, and concerns the same observers as long as no pattern has a constant in the
atom's place. So neither tags nor patterns need checking: the atom's length says where it ends,
because Preserves is self-delimiting.

An observer is told fixed bytes, the atom, and fixed bytes, again by the template. Framing a run is
one `join` for each distinct delivery. A run continues from template to template while the observers
are the same, as MQTT's do from topic to topic.

Source: our own; MQTT's runs (`mqtt/_runs.py`) also forward a range at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...dataspace import Destinations, Path, look_up
from ._packets import Message, Turn, decode
from ._preserves import Value, decode_binary
from ._scan import BYTES, RECORD, SEQUENCE, STRING, EventParts
from ._values import Encoded, encode_integer, encoded, places_of

ToldAs = tuple[int, tuple[Path, ...]]
"""Describes an observer: its oid, and the paths that it captures."""

Layout = tuple[bytes, bytes | None]
"""The bytes before the atom, and those after it; None if the observer is not shown the atom."""

MESSAGE_HEAD = b"\xb4\xb3\x01M"
"""The beginning of an event that is a message."""

_ENDS = b"\x84\x84\x84"

MAX_TEMPLATES = 64
"""Most kinds of messages of one connection that are recognised at a time."""

MAX_PREFIX = 1 << 10
"""Longest beginning of a message to recognise, in bytes."""

MAX_PREFIX_SIZES = 8
"""Most different lengths of those beginnings: each length costs a lookup."""


class Template:
    """The common part of some of a connection's messages.

    Attributes:
        prefix: a packet up to and including the tag of the atom.
        suffix: the bytes after the atom.
        text: whether the atom is a string, which must be valid UTF-8.
        oid: the target of the messages.
        version: the dataspace's version when the observers were found.
        destinations: the ports of the observers.
        layouts: the layout for each of them, by its `Port.told_as`.
    """

    __slots__ = ("destinations", "layouts", "oid", "prefix", "suffix", "text", "version")

    def __init__(
        self,
        prefix: bytes,
        suffix: bytes,
        oid: int,
        version: int,
        destinations: Destinations,
        layouts: Mapping[ToldAs, Layout],
    ) -> None:
        self.prefix = prefix
        self.suffix = suffix
        self.text = prefix[-1] == STRING
        self.oid = oid
        self.version = version
        self.destinations = destinations
        self.layouts = layouts


class Templates:
    """The templates of one connection; the oldest is dropped when there are too many.

    A template is made when the same beginning is seen for the second time: a client that never
    repeats itself costs no template for each message.
    """

    __slots__ = ("_by_size", "_known", "_seen")

    def __init__(self) -> None:
        self._known: dict[bytes, Template] = {}
        self._by_size: dict[int, dict[bytes, Template]] = {}
        # Beginnings without a template, with the version of the dataspace at the time.
        self._seen: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, buffer: bytes, position: int) -> Template | None:
        """Return the template of the packet that begins at `position`."""
        for size, templates in self._by_size.items():
            template = templates.get(buffer[position : position + size])
            if template is not None:
                return template
        return None

    def wants(self, prefix: bytes, version: int) -> bool:
        """Whether to make a template for this beginning; notes that it was seen."""
        if len(prefix) > MAX_PREFIX:
            return False
        if len(prefix) not in self._by_size and len(self._by_size) >= MAX_PREFIX_SIZES:
            return False
        seen = self._seen
        refused = seen.get(prefix)
        if refused is None:
            if len(seen) >= MAX_TEMPLATES:
                del seen[next(iter(seen))]
            seen[prefix] = -1
            return False
        return refused != version

    def refuse(self, prefix: bytes, version: int) -> None:
        """Note that this beginning can have no template, until something changes."""
        self._seen[prefix] = version

    def add(self, template: Template) -> None:
        """Keep a template."""
        prefix = template.prefix
        self.discard(prefix)
        if len(self._known) >= MAX_TEMPLATES:
            self.discard(next(iter(self._known)))
        self._known[prefix] = template
        self._by_size.setdefault(len(prefix), {})[prefix] = template

    def discard(self, prefix: bytes) -> None:
        """Forget a template, if it exists."""
        if self._known.pop(prefix, None) is not None:
            templates = self._by_size[len(prefix)]
            del templates[prefix]
            if not templates:
                del self._by_size[len(prefix)]

    def clear(self) -> None:
        """Forget all templates."""
        self._known.clear()
        self._by_size.clear()
        self._seen.clear()


class MessageRun:
    """Consecutive messages that concern the same ports.

    Attributes:
        destinations: the ports.
        segments: messages of one template each: the template, and their atoms.
        count: the number of messages.
        nbytes: their bytes as received.
    """

    __slots__ = ("_chunks", "count", "destinations", "nbytes", "segments")

    def __init__(self, destinations: Destinations) -> None:
        self.destinations = destinations
        self.segments: list[tuple[Template, list[bytes]]] = []
        self.count = 0
        self.nbytes = 0
        self._chunks: dict[ToldAs, bytes] = {}

    @property
    def turns(self) -> int:
        """The number of turns that they are told in: one for each."""
        return self.count

    def __repr__(self) -> str:
        return f"<MessageRun of {self.count}, {self.nbytes} bytes>"

    def chunk(self, told_as: ToldAs) -> bytes:
        """Return the packets, joined, that tell a port of all messages."""
        chunk = self._chunks.get(told_as)
        if chunk is None:
            pieces: list[bytes] = []
            for template, atoms in self.segments:
                before, after = template.layouts[told_as]
                if after is None:
                    pieces.append(before * len(atoms))
                elif len(atoms) == 1:
                    pieces += (before, atoms[0], after)
                else:
                    pieces += (before, (after + before).join(atoms), after)
            chunk = self._chunks[told_as] = b"".join(pieces)
        return chunk

    def first(self) -> Value:
        """Return the body of the first message, to describe the run with."""
        template, atoms = self.segments[0]
        packet = decode(template.prefix + atoms[0] + template.suffix)
        assert isinstance(packet, Turn)
        message = packet.events[0].event
        assert isinstance(message, Message)
        return message.body

    def packets(self, told_as: ToldAs) -> list[bytes]:
        """Return the packets one by one."""
        packets: list[bytes] = []
        for template, atoms in self.segments:
            before, after = template.layouts[told_as]
            if after is None:
                packets += [before] * len(atoms)
            else:
                packets += [before + atom + after for atom in atoms]
        return packets


class SingleMessage:
    """One message that no template fits, as a run.

    Attributes:
        count: 1.
        nbytes: its bytes as received.
        turns: 1.
    """

    __slots__ = ("_body", "_chunks", "_value", "count", "nbytes", "turns")

    def __init__(self, body: bytes, value: Any, nbytes: int) -> None:
        self._body = body
        self._value = value
        self._chunks: dict[ToldAs, bytes] = {}
        self.count = self.turns = 1
        self.nbytes = nbytes

    def chunk(self, told_as: ToldAs) -> bytes:
        chunk = self._chunks.get(told_as)
        if chunk is None:
            oid, captures = told_as
            pieces = [b"\xb5\xb5", encode_integer(oid), MESSAGE_HEAD, b"\xb5"]
            for capture in captures:
                shown = self._body if capture == () else encoded(look_up(self._value, capture))
                assert shown is not None, "there is no reference in it"
                pieces.append(shown)
            pieces.append(b"\x84" + _ENDS)
            chunk = self._chunks[told_as] = b"".join(pieces)
        return chunk

    def first(self) -> Value:
        return decode_binary(self._body)

    def packets(self, told_as: ToldAs) -> list[bytes]:
        return [self.chunk(told_as)]


class FlatRun:
    """Consecutive turns that are told packet by packet; see `_flat_turns.py`.

    Attributes:
        count: the number of events.
        events: the number of events of each packet.
        nbytes: the bytes charged for them to each recipient.
        told: the packets, by what describes the observer.
        body: that of the first event, to describe the run with.
    """

    __slots__ = ("body", "count", "events", "nbytes", "told")

    def __init__(self, told: dict[ToldAs, list[bytes]], body: bytes) -> None:
        self.told = told
        self.body = body
        self.count = self.nbytes = 0
        self.events: list[int] = []

    @property
    def turns(self) -> int:
        return len(self.events)

    def chunk(self, told_as: ToldAs) -> bytes:
        packets = self.told[told_as]
        return packets[0] if len(packets) == 1 else b"".join(packets)

    def first(self) -> Value:
        return decode_binary(self.body)

    def packets(self, told_as: ToldAs) -> list[bytes]:
        return self.told[told_as]


RUNS = (MessageRun, SingleMessage, FlatRun)
AnyRun = MessageRun | SingleMessage | FlatRun


def varying_atom(body: bytes) -> tuple[int, tuple[int, ...]] | None:
    """Return the place of the tag of a body's last atom, and its path; None if there is none.

    The atom is a string or a byte string: the body itself, the last field of a record, or the last
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
    destinations: Destinations,
    told: Iterable[ToldAs],
    version: int,
) -> Template | None:
    """Return the template of a packet with one message, for the observers that it concerns.

    `told` describes them. None if a template cannot express what one of them is told: the atom is
    shown twice, for example.
    """
    body = data[parts.start : parts.end]
    varying = varying_atom(body)
    if varying is None:
        return None
    at, path = varying
    layouts: dict[ToldAs, Layout] = {}
    for told_as in told:
        if told_as not in layouts:
            layout = _layout(told_as, body, at, path)
            if layout is None:
                return None
            layouts[told_as] = layout
    tag = parts.start + at
    # The atom is the last part of the body; the body's end marker follows it, if it has one.
    suffix = data[parts.end - bool(path) : end]
    return Template(data[start : tag + 1], suffix, parts.oid, version, destinations, layouts)


def _layout(told_as: ToldAs, body: bytes, at: int, path: tuple[int, ...]) -> Layout | None:
    oid, captures = told_as
    before: list[bytes] = [b"\xb5\xb5", encode_integer(oid), MESSAGE_HEAD, b"\xb5"]
    after: list[bytes] | None = None
    value = Encoded(body)  # once: it caches the parts that patterns look at
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
    buffer: bytes,
    start: int,
    templates: Templates,
    version: int,
    room: tuple[int, int],
    max_packet_size: int,
) -> tuple[MessageRun, int, bool] | None:
    """Find the run of messages that begins at `start`.

    Each is checked before it is admitted (rule 9): it is admitted while the cost of the messages
    before it leaves the debt at or below the limit, in items and bytes. A message costs its input
    and a copy for each observer.

    Args:
        buffer: the data that was read.
        start: where a packet begins.
        templates: the templates of the connection.
        version: the dataspace's; templates of another version are outdated.
        room: how much the account may still borrow before its readers wait; see `Account.room`.
        max_packet_size: larger packets are left to `Connection`, which refuses them.

    Returns:
        The run, with a count of 0 if there is no room at all; where it ends; and whether it was cut
        because the account has no more room. None if no template fits the packet at `start`.
    """
    size = len(buffer)
    room_items, room_bytes = room
    position = start
    run: MessageRun | None = None
    max_count = count = 0
    last_start = start - 1
    cut = False
    while position < size and not cut:
        template = templates.find(buffer, position)
        if template is None or template.version != version:
            break
        if run is None:
            run = MessageRun(template.destinations)
            price = len(template.destinations.holders) + 1
            if room_items >= 0 and room_bytes >= 0:
                max_count = 1 + room_items // price
                last_start = start + room_bytes // price
        elif template.destinations is not run.destinations:
            break
        prefix = template.prefix
        suffix = template.suffix
        to_atom = len(prefix)
        to_next = len(suffix)
        text = template.text
        atoms: list[bytes] = []
        while True:
            if count >= max_count or position > last_start:
                cut = True
                break
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
                    break  # an overlong encoding, which must not be passed on
            stop = content + length
            if not buffer.startswith(suffix, stop) or stop + to_next - position > max_packet_size:
                break
            if text and not _is_text(buffer[content:stop]):
                break
            atoms.append(buffer[at:stop])
            count += 1
            position = stop + to_next
            if not buffer.startswith(prefix, position):
                break
        if not atoms:
            break
        run.segments.append((template, atoms))
    if run is None or not (count or cut):
        return None
    run.count = count
    run.nbytes = position - start
    return run, position, cut


def _is_text(content: bytes) -> bool:
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
