"""The wire protocol of subscriptions: frames and their contents. Bytes in, requests out.

A frame is a length (u32, of the rest), a kind (u8), three zeros, a request number (u32) and the
fields of its kind. All integers are little-endian, like the columns of a block; texts are UTF-8
after a u16 with their length. The client begins with HELLO, and then sends AUTH if WELCOME has flag 2.
After that, each request gets an answer with
its number: the one named here, or ERROR. Requests of one connection are answered in order, except
that acknowledgements and the like overtake fetches for which the client itself leaves no room.
A client that is not let in gets an ERROR (`NOT_AUTHORIZED`) and the connection is closed.

| kind | | fields |
|---|---|---|
| 1 | HELLO | `CLFR`, lowest and highest version (u16, u16) |
| 2 | WELCOME | version (u16), flags (u16: 1 AUTH is supported, 2 AUTH must come next; an older relay sends zero), largest frame accepted after that (u32) |
| 3 | ERROR | code (u16, `ErrorCode`), sentence |
| 4, 5 | PING, PONG | nothing |
| 6, 7 | AUTH, AUTHENTICATED | the user's name, the password (bytes after a u16 with their length); nothing. Once, and before anything else |
| 16 | ATTACH | generation (u64, 0: a new one), incarnation (16 bytes, zeros: not known), grace in seconds (f64, negative: not given), start (u8: 0 not given, 1 earliest, 2 latest), after grace (u8: 0 not given, 1 hold, 2 drop, 3 write off), durable (u8), join (u8: 1 to read along, without keeping it attached; with generation 0, along with any generation), name, number of filters (u16), filters |
| 17 | ATTACHED | handle (u32), zero (u32), generation, low, next, start (u64 each), incarnation |
| 18, 19 | DETACH, DETACHED | handle; nothing |
| 24 | HEAD | handle |
| 25 | HEAD_IS | low, next, messages and bytes that count as debt (u64 each) |
| 26 | FETCH | handle, most bytes (u32), start, end (u64 each) |
| 27 | RECORDS | the number after the last (u64), number of blocks (u32), zero (u32), their sizes (u32 each, zeros up to a multiple of 8), blocks |
| 28 | ACK | handle, zero (u32), upto (u64) |
| 29 | ACKED | low, next (u64 each) |
| 30, 31 | DROP, DROPPED | handle; nothing: the subscription is forgotten |
| 32 | REACH | handle, zero (u32), start, most bytes (u64 each) |
| 33 | REACHED | the number after the last of the messages from `start` on that have that many bytes (u64) |

Kinds 64 to 95 belong to writers: see `_sink_frames`. `_block` describes the blocks.
"""  # noqa: E501

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from . import layouts
from ._errors import ErrorCode
from ._kinds import Kind
from ._requests import (
    Ack,
    AfterGrace,
    AskHead,
    Attach,
    Auth,
    Detach,
    Drop,
    Fetch,
    Head,
    Hello,
    Ping,
    Reach,
    Start,
)
from ._sink_frames import SinkRequest, encode_sink_request, parse_sink_request

VERSION = 1
MAGIC = b"CLFR"

AUTH_IS_KNOWN = 1
AUTH_IS_WANTED = 2
"""Flags of WELCOME; an older relay sends none."""

MAX_TEXT_BYTES = 65_535
"""Limit of the protocol for a name or a filter, in bytes; a relay allows less."""

_FIRST_OF_WRITERS = Kind.OPEN
_LAST_OF_WRITERS = 95

_STARTS: tuple[Start | None, ...] = (None, *Start)
_AFTER: tuple[AfterGrace | None, ...] = (None, *AfterGrace)

_REST = layouts.HEADER.size - 4
"""The part of a frame's length that is not its kind's fields."""


class Frame(NamedTuple):
    """A frame, not parsed."""

    kind: int
    request: int
    payload: bytes


Request: TypeAlias = (
    Hello | Auth | Ping | Attach | Detach | AskHead | Fetch | Ack | Drop | Reach | SinkRequest
)


class _Texts:
    """Reads the variable part of a frame."""

    def __init__(self, payload: bytes, at: int) -> None:
        self.payload = payload
        self.at = at

    def number(self) -> int:
        (value,) = layouts.U16.unpack_from(self.payload, self.at)
        self.at += layouts.U16.size
        return int(value)

    def raw(self) -> bytes:
        length = self.number()
        raw = self.payload[self.at : self.at + length]
        if len(raw) < length:
            raise ValueError("a text is cut short")
        self.at += length
        return raw

    def text(self) -> str:
        return self.raw().decode()


def parse_request(frame: Frame) -> Request:
    """Parse a frame from a client.

    Raises:
        ValueError: If it is not a request, or is malformed.
    """
    try:
        request, size = _parse(frame)
    except (struct.error, ValueError) as exc:
        msg = f"a malformed {_name(frame.kind)} frame (kind {frame.kind}): {exc}"
        raise ValueError(msg) from exc
    if size != len(frame.payload):
        msg = f"a {_name(frame.kind)} frame with {len(frame.payload) - size} bytes too many"
        raise ValueError(msg)
    return request


def _name(kind: int) -> str:
    try:
        return Kind(kind).name
    except ValueError:
        return "unknown"


def _parse(frame: Frame) -> tuple[Request, int]:
    """Return a request, and the size of its part of the payload."""
    payload = frame.payload
    match frame.kind:
        case Kind.FETCH:
            handle, max_bytes, start, end = layouts.FETCH.unpack_from(payload)
            return Fetch(handle, start, end, max_bytes), layouts.FETCH.size
        case Kind.ACK:
            handle, _, upto = layouts.ACK.unpack_from(payload)
            return Ack(handle, upto), layouts.ACK.size
        case Kind.HEAD:
            return AskHead(*layouts.HANDLE.unpack_from(payload)), layouts.HANDLE.size
        case Kind.DETACH:
            return Detach(*layouts.HANDLE.unpack_from(payload)), layouts.HANDLE.size
        case Kind.DROP:
            return Drop(*layouts.HANDLE.unpack_from(payload)), layouts.HANDLE.size
        case Kind.REACH:
            handle, _, start, max_bytes = layouts.REACH.unpack_from(payload)
            return Reach(handle, start, max_bytes), layouts.REACH.size
        case Kind.PING:
            return Ping(), 0
        case Kind.HELLO:
            magic, lowest, highest = layouts.HELLO.unpack_from(payload)
            if magic != MAGIC:
                raise ValueError(f"it begins with {magic!r}, not with {MAGIC!r}")
            return Hello(lowest, highest), layouts.HELLO.size
        case Kind.ATTACH:
            return _parse_attach(payload)
        case Kind.AUTH:
            texts = _Texts(payload, 0)
            return Auth(texts.text(), texts.raw()), texts.at
        case kind if _FIRST_OF_WRITERS <= kind <= _LAST_OF_WRITERS:
            return parse_sink_request(kind, payload)
        case _:
            raise ValueError("a reader does not send that")


def _parse_attach(payload: bytes) -> tuple[Attach, int]:
    start: int
    after: int
    generation, incarnation, grace, start, after, durable, join = layouts.ATTACH.unpack_from(
        payload
    )
    if start >= len(_STARTS) or after >= len(_AFTER) or durable > 1 or join > 1:
        raise ValueError(f"start {start}, after grace {after}, durable {durable}, join {join}")
    if math.isnan(grace):
        raise ValueError("its grace is not a number")
    texts = _Texts(payload, layouts.ATTACH.size)
    name = texts.text()
    filters = tuple([texts.text() for _ in range(texts.number())])
    attach = Attach(
        name=name,
        generation=generation,
        incarnation=incarnation,
        filters=filters,
        grace=None if grace < 0 else grace,
        after_grace=_AFTER[after],
        durable=bool(durable),
        start=_STARTS[start],
        join=bool(join),
    )
    return attach, texts.at


# -- output --------------------------------------------------------------------------------------


def encode_frame(kind: int, request: int, *parts: bytes) -> bytes:
    """Return a frame with these parts, joined."""
    length = _REST + sum(map(len, parts))
    return b"".join((layouts.HEADER.pack(length, kind, request), *parts))


def encode_request(number: int, request: Request) -> bytes:
    """Return the frame of a request."""
    match request:
        case Hello(lowest, highest):
            return encode_frame(Kind.HELLO, number, layouts.HELLO.pack(MAGIC, lowest, highest))
        case Ping():
            return encode_frame(Kind.PING, number)
        case Auth(user, password):
            raw = encode_text(user), layouts.U16.pack(len(password)), password
            return encode_frame(Kind.AUTH, number, *raw)
        case Detach(handle):
            return encode_frame(Kind.DETACH, number, layouts.HANDLE.pack(handle))
        case AskHead(handle):
            return encode_frame(Kind.HEAD, number, layouts.HANDLE.pack(handle))
        case Fetch(handle, start, end, max_bytes):
            return encode_frame(
                Kind.FETCH, number, layouts.FETCH.pack(handle, max_bytes, start, end)
            )
        case Ack(handle, upto):
            return encode_frame(Kind.ACK, number, layouts.ACK.pack(handle, 0, upto))
        case Drop(handle):
            return encode_frame(Kind.DROP, number, layouts.HANDLE.pack(handle))
        case Reach(handle, start, max_bytes):
            return encode_frame(Kind.REACH, number, layouts.REACH.pack(handle, 0, start, max_bytes))
        case Attach():
            fixed = layouts.ATTACH.pack(
                request.generation,
                request.incarnation,
                -1.0 if request.grace is None else request.grace,
                _STARTS.index(request.start),
                _AFTER.index(request.after_grace),
                request.durable,
                request.join,
            )
            texts = [encode_text(request.name), layouts.U16.pack(len(request.filters))]
            texts += map(encode_text, request.filters)
            return encode_frame(Kind.ATTACH, number, fixed, *texts)
        case _:
            kind, payload = encode_sink_request(request)
            return encode_frame(kind, number, payload)


def encode_text(text: str, what: str = "a name or a filter") -> bytes:
    """Return a text after its length.

    Raises:
        ValueError: It is too long for the protocol.
    """
    raw = text.encode()
    if len(raw) > MAX_TEXT_BYTES:
        raise ValueError(f"{what} of {len(raw)} bytes: {MAX_TEXT_BYTES} are the most")
    return layouts.U16.pack(len(raw)) + raw


def encode_welcome(number: int, max_frame_size: int, flags: int = 0) -> bytes:
    """Return a WELCOME."""
    return encode_frame(Kind.WELCOME, number, layouts.WELCOME.pack(VERSION, flags, max_frame_size))


def encode_error(number: int, code: ErrorCode, sentence: str) -> bytes:
    """Return an ERROR; a sentence that is too long for one is cut."""
    raw = sentence.encode(errors="backslashreplace")[:4096].decode(errors="ignore").encode()
    return encode_frame(Kind.ERROR, number, layouts.U16.pack(code), layouts.U16.pack(len(raw)), raw)


def encode_attached(
    number: int, handle: int, generation: int, incarnation: bytes, head: Head, start: int
) -> bytes:
    """Return an ATTACHED."""
    fixed = layouts.ATTACHED.pack(handle, 0, generation, head.low, head.next, start, incarnation)
    return encode_frame(Kind.ATTACHED, number, fixed)


def encode_head(number: int, head: Head, items: int, nbytes: int) -> bytes:
    """Return a HEAD_IS."""
    return encode_frame(Kind.HEAD_IS, number, layouts.HEAD_IS.pack(*head, items, nbytes))


def encode_acked(number: int, head: Head) -> bytes:
    """Return an ACKED."""
    return encode_frame(Kind.ACKED, number, layouts.ACKED.pack(*head))


def encode_reached(number: int, end: int) -> bytes:
    """Return a REACHED."""
    return encode_frame(Kind.REACHED, number, layouts.REACHED.pack(end))


def encode_records(number: int, following: int, blocks: Sequence[bytes]) -> bytes:
    """Return the RECORDS of these blocks, up to before `following`."""
    sizes = Struct(f"<{len(blocks)}I{'4x' if len(blocks) % 2 else ''}").pack(*map(len, blocks))
    fixed = layouts.RECORDS.pack(following, len(blocks), 0)
    return encode_frame(Kind.RECORDS, number, fixed, sizes, *blocks)
