"""The packets of the Syndicate protocol, and their encoding.

Peers exchange packets; most of them are turns, which carry events::

    Packet = Turn / Error / Extension / Nop       Turn = [[oid event] ...]
    Event  = <A assertion handle> / <R handle> / <M body> / <S peer>

The values in them are those of `_preserves.py`; an `Embedded` contains a `WireRef` here.

Source: syndicate-protocols, protocol.prs and sturdy.prs (WireRef).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, TypeGuard

import attrs

from .._errors import LocalProtocolError, RemoteProtocolError
from ._preserves import (
    Embedded,
    Record,
    Symbol,
    Value,
    decode_binary,
    decode_text,
    encode_binary,
    encode_text,
    is_tuple,
    map_embedded,
)


@attrs.frozen(slots=True)
class WireRef:
    """A reference in its wire form: `#:[0 oid]`, or `#:[1 oid caveat ...]`.

    Iterating gives that sequence: the library writes and compares it that way.
    """

    mine: bool
    """Whether the sender exports it; otherwise the receiver does."""
    oid: int
    """Its number in the exporter's table."""
    caveats: tuple[Value, ...] = ()
    """The caveats on a reference to the receiver's own entity, the newest last; `mine` has none."""

    def __iter__(self) -> Iterator[Value]:
        yield 0 if self.mine else 1
        yield self.oid
        yield from self.caveats


@attrs.frozen(slots=True)
class Assert:
    """An assertion: live until its handle is retracted or the connection ends."""

    assertion: Value
    handle: int
    """Chosen by the sender."""


@attrs.frozen(slots=True)
class Retract:
    """Ends the assertion with this handle."""

    handle: int


@attrs.frozen(slots=True)
class Message:
    """A message: it has no duration."""

    body: Value


@attrs.frozen(slots=True)
class Sync:
    """Asks the receiver to send `#t` to `peer` when all earlier events have been handled."""

    peer: WireRef


Event: TypeAlias = Assert | Retract | Message | Sync


@attrs.frozen(slots=True)
class TurnEvent:
    """One event and its target."""

    oid: int
    """An oid that the receiver exported."""
    event: Event


@attrs.frozen(slots=True)
class Turn:
    """Events that take effect together."""

    events: tuple[TurnEvent, ...]


@attrs.frozen(slots=True)
class Error:
    """The last packet of a connection: the reason for its end."""

    message: str
    detail: Value = False


@attrs.frozen(slots=True)
class Nop:
    """The packet that does nothing; it shows that the peer is alive."""


@attrs.frozen(slots=True)
class Extension:
    """Any other record, such as `<do ...>`: a receiver that does not know it ignores it."""

    label: Value
    fields: tuple[Value, ...]


Packet: TypeAlias = Turn | Error | Extension | Nop

_ERROR = Symbol("error")
_ASSERT = Symbol("A")
_RETRACT = Symbol("R")
_MESSAGE = Symbol("M")
_SYNC = Symbol("S")


class _Embeddings:
    """Translates the references in one packet for the library.

    syndicate-py 0.19.3 wraps the peer of a sync twice, `#:#:[0 2]`. That is accepted there and
    nowhere else, so references that are wrapped twice are counted.
    """

    __slots__ = ("doubles",)

    def __init__(self) -> None:
        self.doubles = 0

    def __call__(self, value: Value) -> Any:
        if isinstance(value, Embedded) and isinstance(value.embeddedValue, WireRef):
            self.doubles += 1
            return value
        return _wire_ref(value)


def _wire_ref(value: Value) -> WireRef:
    if is_tuple(value) and len(value) >= 2 and _is_int(value[0]) and _is_int(value[1]):
        if value[0] == 0 and len(value) == 2:
            return WireRef(True, value[1])
        if value[0] == 1:
            if any(map(_has_reference, value[2:])):
                raise RemoteProtocolError(
                    "a caveat has a reference in it, which is not allowed there"
                )
            return WireRef(False, value[1], value[2:])
    raise RemoteProtocolError("a reference must be #:[0 oid] or #:[1 oid caveat ...] (WireRef)")


def _has_reference(value: Value) -> bool:
    found: list[Value] = []

    def note(content: Value) -> Value:
        found.append(content)
        return Embedded(content)

    map_embedded(note, value)
    return bool(found)


def _is_int(value: Value) -> TypeGuard[int]:
    return type(value) is int


def decode(data: bytes) -> Packet:
    """Decode one packet that takes all of `data`, in binary or, by its first byte, in text.

    For untrusted data, `_scan.py` or `_scan_text.py` must first have found that it is one value:
    the library does not limit its input.

    Raises:
        RemoteProtocolError: if it is not a packet.
    """
    embeddings = _Embeddings()
    if data[:1] < b"\x80":
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise RemoteProtocolError(f"a packet in text is not UTF-8: {exc.reason}") from None
        value = decode_text(text, embeddings)
    else:
        value = decode_binary(data, embeddings)
    packet = _packet(value, embeddings)
    if embeddings.doubles:
        raise RemoteProtocolError("a reference within a reference; only a sync's peer may be one")
    return packet


def _packet(value: Value, embeddings: _Embeddings) -> Packet:
    if is_tuple(value):
        return Turn(tuple([_turn_event(pair, embeddings) for pair in value]))
    if isinstance(value, Record):
        fields = value.fields
        if value.key == _ERROR and len(fields) == 2 and isinstance(fields[0], str):
            return Error(fields[0], fields[1])
        return Extension(value.key, fields)
    if value is False:
        return Nop()
    raise RemoteProtocolError(
        f"a packet must be a turn, a record or #f (Packet), not {_kind(value)}"
    )


def _turn_event(pair: Value, embeddings: _Embeddings) -> TurnEvent:
    if is_tuple(pair) and len(pair) == 2 and _is_int(pair[0]) and isinstance(pair[1], Record):
        return TurnEvent(pair[0], _event(pair[1], embeddings))
    raise RemoteProtocolError(f"a turn is made of [oid event] (TurnEvent), not of {_kind(pair)}")


def _event(record: Record, embeddings: _Embeddings) -> Event:
    fields = record.fields
    if record.key == _MESSAGE and len(fields) == 1:
        return Message(fields[0])
    if record.key == _ASSERT and len(fields) == 2 and _is_int(fields[1]):
        return Assert(fields[0], fields[1])
    if record.key == _RETRACT and len(fields) == 1 and _is_int(fields[0]):
        return Retract(fields[0])
    if record.key == _SYNC and len(fields) == 1 and isinstance(fields[0], Embedded):
        peer = fields[0].embeddedValue
        if isinstance(peer, Embedded):
            peer = peer.embeddedValue
            embeddings.doubles -= 1
        return Sync(peer)
    raise RemoteProtocolError(
        "an event must be <A assertion handle>, <R handle>, <M body> or <S #:peer> (Event), not "
        f"{str(record.key)[:20]!r} with {len(fields)} fields"
    )


def _kind(value: Value) -> str:
    return f"a {type(value).__name__}"


def to_value(packet: Packet) -> Value:
    """Return the value that encodes a packet."""
    match packet:
        case Turn(events):
            return tuple([(entry.oid, event_value(entry.event)) for entry in events])
        case Error(message, detail):
            return Record(_ERROR, (message, detail))
        case Extension(label, fields):
            return Record(label, fields)
        case Nop():
            return False


def event_value(event: Event) -> Record:
    """Return the record that encodes an event."""
    match event:
        case Assert(assertion, handle):
            return Record(_ASSERT, (assertion, handle))
        case Retract(handle):
            return Record(_RETRACT, (handle,))
        case Message(body):
            return Record(_MESSAGE, (body,))
        case Sync(peer):
            return Record(_SYNC, (Embedded(peer),))


def encode_event(entry: TurnEvent) -> bytes:
    """Encode one event and its target, as an element of a turn in binary.

    Raises:
        LocalProtocolError: as `encode`.
    """
    return encode_binary((entry.oid, event_value(entry.event)), _checked_ref)


def encode(packet: Packet, *, text: bool = False) -> bytes:
    r"""Encode a packet; in text it ends with `\n`.

    Raises:
        LocalProtocolError: if a part of it is not a Preserves value, or a reference in it is
            not a `WireRef`.
    """
    value = to_value(packet)
    if not text:
        return encode_binary(value, _checked_ref)
    try:
        return (encode_text(value, _checked_ref) + "\n").encode("utf-8")
    except UnicodeEncodeError as exc:
        raise LocalProtocolError(f"a string cannot be written as UTF-8: {exc.reason}") from None


def _checked_ref(value: Any) -> WireRef:
    if not isinstance(value, WireRef):
        raise LocalProtocolError(
            f"{value!r} cannot be sent: the membrane has to make a WireRef of it"
        )
    return value
