"""Shipments and receipts as bytes.

A shipment is a head in JSON, and its events behind it, in a binary form that leaves payloads and
runs of publications as they are. A receipt is JSON alone. What is larger than a message of NATS may
be goes in parts.

    S <length of head: 4 bytes> <head> <events>
    R <receipt>
    P <number: 4 bytes> <index: 2 bytes> <count: 2 bytes> <part of one of the above>

Whatever bytes come, decoding them raises nothing but `RemoteProtocolError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from struct import Struct, error
from typing import Any, Final

from ..accounts import Trace
from ..dataspace import Batch, Publication
from ..dataspace.hops import Held, Identity, Parcel, Path, Ranges, Receipt, Shipment
from ..transports import LocalProtocolError, RemoteProtocolError
from ..transports.mqtt.server._runs import publications
from ._trace_codec import read_number, read_text, read_trace, trace_values

SHIPMENT: Final = b"S"
RECEIPT: Final = b"R"
PART: Final = b"P"

MAX_PARTS: Final = 256
"""Parts of one message: with 1 MiB each, the default of NATS, as much as MQTT's largest packet."""

_HEAD: Final = Struct(">I")
_PART: Final = Struct(">IHH")
_PUBLICATION: Final = Struct(">BHIId")
"""Flags; the bytes of topic, properties and payload; when it expires, or below 0: never."""
_RUN: Final = Struct(">BII")
"""Flags; the number of publications; their bytes."""

_QOS: Final = 0x03
_RETAIN: Final = 0x04
_WAS_RETAINED: Final = 0x08
_IS_RUN: Final = 0x80
_IS_ALIKE: Final = 0x40

NO_STEPS: Final[dict[int, int]] = {}

_FAULTS: Final = (ValueError, TypeError, LookupError, AttributeError, error, RecursionError)
"""What decoding bytes of any kind may raise."""


def encode(message: Shipment | Receipt) -> bytes:
    """Return a shipment or a receipt as bytes.

    Raises:
        LocalProtocolError: An event has no such form.
    """
    if isinstance(message, Receipt):
        return _encode_receipt(message)
    try:
        return _encode_shipment(message)
    except _FAULTS as exc:
        msg = f"an event cannot be sent to another relay: {exc!r}"
        raise LocalProtocolError(msg) from exc


def _encode_shipment(message: Shipment) -> bytes:
    chains: dict[tuple[str, ...], int] = {}
    parcels: list[list[Any]] = []
    traced: list[tuple[int, int]] = []
    body: list[bytes] = []
    for parcel in message.parcels:
        chain = chains.setdefault(parcel.above, len(chains))
        pieces = list(_encode_events(parcel.events))
        size = sum(map(len, pieces))
        parcels.append(
            [
                *(parcel.number, parcel.origin, chain, parcel.items, parcel.nbytes),
                *(size, int(parcel.asks), parcel.of),
            ]
        )
        body += pieces
        if parcel.steps:
            traced.append((parcel.number, parcel.steps))
    values: dict[str, Any] = {
        "epoch": message.epoch,
        "number": message.number,
        "life": message.life,
        "floor": message.floor,
        "first": message.first,
        "chains": list(chains),
        "parcels": parcels,
        "waiting": None if message.waiting is None else sorted(message.waiting),
        "carried": message.carried,
        "erased": message.erased,
    }
    if traced:
        values["traced"] = traced
    head = json.dumps(values, separators=(",", ":")).encode()
    return b"".join((SHIPMENT, _HEAD.pack(len(head)), head, *body))


def _encode_receipt(receipt: Receipt) -> bytes:
    held = receipt.held
    values: dict[str, Any] = {
        "epoch": receipt.epoch,
        "life": receipt.life,
        "number": receipt.number,
        "received": receipt.received,
        "settled": receipt.settled,
        "held": None if held is None else [(h.first, h.last, h.holder, h.owner) for h in held],
        "taken": receipt.taken,
        "seen": receipt.seen,
    }
    if receipt.waits:
        values["waits"] = receipt.waits
    if receipt.traces:
        values["traces"] = [(parcel, trace_values(trace)) for parcel, trace in receipt.traces]
    return RECEIPT + json.dumps(values, separators=(",", ":")).encode()


def _encode_events(events: Iterable[Any]) -> Iterator[bytes]:
    for event in events:
        if isinstance(event, Batch):
            yield _RUN.pack(_IS_RUN | event.alike * _IS_ALIKE, event.count, event.nbytes)
            yield event.raw
            continue
        topic = event.topic.encode()
        flags = event.qos | event.retain * _RETAIN | event.was_retained * _WAS_RETAINED
        yield _PUBLICATION.pack(
            flags,
            len(topic),
            len(event.properties),
            len(event.payload),
            -1.0 if event.expires is None else event.expires,
        )
        yield topic
        yield event.properties
        yield event.payload


def decode(data: bytes) -> Shipment | Receipt:
    """Return the shipment or the receipt that these bytes are.

    Raises:
        RemoteProtocolError: They are neither.
    """
    kind = data[:1]
    try:
        if kind == RECEIPT:
            return _decode_receipt(json.loads(data[1:]))
        if kind == SHIPMENT:
            return _decode_shipment(data)
    except _FAULTS as exc:
        msg = f"another relay has sent what cannot be read: {exc!r}"
        raise RemoteProtocolError(msg) from exc
    msg = f"another relay has sent a message of an unknown kind: {kind!r}"
    raise RemoteProtocolError(msg)


def _decode_shipment(data: bytes) -> Shipment:
    start = 1 + _HEAD.size
    (length,) = _HEAD.unpack_from(data, 1)
    head = json.loads(data[start : start + length])
    chains = [tuple(read_text(name) for name in chain) for chain in head["chains"]]
    at = start + length
    parcels: list[Parcel] = []
    steps = _steps(head["traced"]) if "traced" in head else NO_STEPS
    for parcel, origin, chain, items, nbytes, size, asks, of in head["parcels"]:
        end = at + read_number(size)
        if end > len(data):
            msg = f"the events of parcel {parcel} are cut off"
            raise ValueError(msg)
        parcels.append(
            Parcel(
                read_number(parcel),
                read_text(origin),
                chains[read_number(chain)],
                tuple(_decode_events(data, at, end)),
                read_number(items),
                read_number(nbytes),
                bool(read_number(asks)),
                None if of is None else _identity(of),
                steps.get(parcel, 0) if steps else 0,
            )
        )
        at = end
    waiting = head["waiting"]
    return Shipment(
        read_number(head["epoch"]),
        read_number(head["number"]),
        read_number(head["life"]),
        read_number(head["floor"]),
        read_number(head["first"]),
        tuple(parcels),
        None if waiting is None else frozenset(read_text(name) for name in waiting),
        read_number(head["carried"]),
        None if head["erased"] is None else _identity(head["erased"]),
    )


def _decode_events(data: bytes, at: int, end: int) -> Iterator[Publication | Batch]:
    while at < end:
        if data[at] & _IS_RUN:
            flags, count, size = _RUN.unpack_from(data, at)
            at += _RUN.size
            raw = data[at : at + size]
            at += size
            yield Batch(raw, count, publications, alike=bool(flags & _IS_ALIKE))
            continue
        flags, topic_size, properties_size, payload_size, expires = _PUBLICATION.unpack_from(
            data, at
        )
        at += _PUBLICATION.size
        properties_at = at + topic_size
        payload_at = properties_at + properties_size
        topic = data[at:properties_at].decode()
        at = payload_at + payload_size
        if at > end:
            msg = f"a publication on {topic!r} is cut off"
            raise ValueError(msg)
        yield Publication(
            topic,
            data[payload_at:at],
            flags & _QOS,
            bool(flags & _RETAIN),
            data[properties_at:payload_at],
            None if expires < 0 else expires,
            bool(flags & _WAS_RETAINED),
        )
    if at != end:
        msg = "events are longer than their parcel"
        raise ValueError(msg)


def _decode_receipt(values: Any) -> Receipt:
    held = values["held"]
    return Receipt(
        read_number(values["epoch"]),
        read_number(values["life"]),
        read_number(values["number"]),
        read_number(values["received"]),
        _ranges(values["settled"]),
        None
        if held is None
        else tuple(
            Held(
                read_number(first),
                read_number(last),
                read_text(holder),
                None if owner is None else read_text(owner),
            )
            for first, last, holder, owner in held
        ),
        _ranges(values["taken"]),
        read_number(values["seen"]),
        _waits(values["waits"]) if "waits" in values else (),
        _traces(values["traces"]) if "traces" in values else (),
    )


def _steps(value: Any) -> dict[int, int]:
    return {read_number(parcel): read_number(left) for parcel, left in value}


def _identity(value: Any) -> Identity:
    epoch, number = value
    is_boxed = type(epoch) is int and epoch < 0
    return -read_number(-epoch) if is_boxed else read_number(epoch), read_number(number)


def _traces(value: Any) -> tuple[tuple[int, Trace], ...]:
    return tuple((read_number(parcel), read_trace(trace)) for parcel, trace in value)


def _waits(value: Any) -> tuple[tuple[str, tuple[Path, ...]], ...]:
    return tuple((read_text(owner), tuple(_path(path) for path in paths)) for owner, paths in value)


def _path(value: Any) -> Path:
    return tuple((read_text(relay), read_text(name)) for relay, name in value)


def _ranges(value: Any) -> Ranges:
    return tuple((read_number(first), read_number(last)) for first, last in value)


def in_parts(data: bytes, most: int, number: int) -> Iterator[bytes]:
    """Yield a message in parts of at most `most` bytes; as it is if it is no longer.

    `number` tells it from the one before.

    Raises:
        LocalProtocolError: There would be more than `MAX_PARTS`.
    """
    if len(data) <= most:
        yield data
        return
    room = most - 1 - _PART.size
    count = -(-len(data) // room)
    if count > MAX_PARTS:
        msg = f"{len(data)} bytes would be {count} messages of NATS, and {MAX_PARTS} are the most"
        raise LocalProtocolError(msg)
    for index in range(count):
        part = data[index * room : (index + 1) * room]
        yield b"".join((PART, _PART.pack(number & 0xFFFFFFFF, index, count), part))


class Joiner:
    """Joins the parts of one sender's messages, which come in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._number = -1

    def take(self, data: bytes) -> Shipment | Receipt | None:
        """Take a message or a part of one; return what is whole now, or None.

        A message of which a part is missing is forgotten: it comes again.

        Raises:
            RemoteProtocolError: It is no such thing.
        """
        if data[:1] != PART:
            return decode(data)
        try:
            number, index, count = _PART.unpack_from(data, 1)
        except error as exc:
            msg = "another relay has sent a part of a message without a number"
            raise RemoteProtocolError(msg) from exc
        if count > MAX_PARTS:
            msg = f"another relay sends a message in {count} parts; {MAX_PARTS} are the most"
            raise RemoteProtocolError(msg)
        parts = self._parts
        if not index:
            parts.clear()
            self._number = number
        elif number != self._number or index != len(parts):
            return None
        parts.append(data[1 + _PART.size :])
        if len(parts) < count:
            return None
        whole = b"".join(parts)
        parts.clear()
        self._number = -1
        return decode(whole)
