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

Kinds 64 to 95 belong to writers: see `_sink_frames`. The blocks are those of
`clearfunds.ranges.log`.
"""  # noqa: E501

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

import attrs

from ...transports._errors import RemoteProtocolError
from ...transports._need_data import NEED_DATA, NeedDataType
from ..log import (
    AfterGrace,
    DataLossError,
    FencedError,
    Head,
    OtherIncarnationError,
    Start,
    SubscriptionError,
)
from ._sink_frames import (
    FIRST_KIND,
    LAST_KIND,
    SinkKind,
    SinkRequest,
    encode_sink_request,
    parse_sink_request,
)

VERSION = 1
MAGIC = b"CLFR"

DEFAULT_MAX_FRAME_SIZE = 64 << 10
"""Bytes of one frame from a reader: an attachment with a hundred filters of 500 bytes."""

MAX_LOGIN_BYTES = 8 << 10
"""Bytes of one frame before its peer is let in: a name, and a password, which may be a token of a
few kB."""

AUTH_IS_KNOWN = 1
AUTH_IS_WANTED = 2
"""Flags of WELCOME."""

INCARNATION_BYTES = 16
UNKNOWN = bytes(INCARNATION_BYTES)


class Kind(enum.IntEnum):
    """The kinds of frames."""

    HELLO = 1
    WELCOME = 2
    ERROR = 3
    PING = 4
    PONG = 5
    AUTH = 6
    AUTHENTICATED = 7
    ATTACH = 16
    ATTACHED = 17
    DETACH = 18
    DETACHED = 19
    HEAD = 24
    HEAD_IS = 25
    FETCH = 26
    RECORDS = 27
    ACK = 28
    ACKED = 29
    DROP = 30
    DROPPED = 31
    REACH = 32
    REACHED = 33


class ErrorCode(enum.IntEnum):
    """The reason of an ERROR, for programs; its sentence is for people."""

    PROTOCOL = 1
    """The peer broke the protocol; the connection is closed."""
    REFUSED = 2
    """The request is not allowed, or names something unknown."""
    FENCED = 3
    """A newer reader has attached."""
    DATA_LOSS = 4
    """The messages no longer exist."""
    OTHER_INCARNATION = 5
    """The subscription was made anew: numbers have another meaning."""
    STORE = 6
    """The disk does not do its work; it may later."""
    NOT_STAGED = 7
    """The parts that a writer wants to commit are not staged here."""
    NOT_AUTHORIZED = 8
    """The relay does not let this peer in; the connection is closed."""


class Frame(NamedTuple):
    """A frame, not parsed."""

    kind: int
    request: int
    payload: bytes


@attrs.frozen(slots=True)
class Hello:
    """The client's first frame."""

    lowest: int
    highest: int


@attrs.frozen(slots=True)
class Auth:
    """The client's name and password."""

    user: str
    password: bytes = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Ping:
    """Ask for a PONG."""


@attrs.frozen(slots=True, kw_only=True)
class Attach:
    """Attach to a subscription, and make it if it does not exist."""

    name: str
    generation: int = 0
    incarnation: bytes = UNKNOWN
    filters: tuple[str, ...] = ()
    grace: float | None = None
    after_grace: AfterGrace | None = None
    durable: bool = False
    start: Start | None = None
    join: bool = False


@attrs.frozen(slots=True)
class Detach:
    """End an attachment."""

    handle: int


@attrs.frozen(slots=True)
class AskHead:
    """Ask which messages can be fetched."""

    handle: int


@attrs.frozen(slots=True)
class Fetch:
    """Ask for messages."""

    handle: int
    start: int
    end: int
    max_bytes: int


@attrs.frozen(slots=True)
class Ack:
    """Acknowledge everything below `upto`."""

    handle: int
    upto: int


@attrs.frozen(slots=True)
class Drop:
    """Forget the subscription."""

    handle: int


@attrs.frozen(slots=True)
class Reach:
    """Ask how many messages a number of bytes covers."""

    handle: int
    start: int
    max_bytes: int


Request: TypeAlias = (
    Hello | Auth | Ping | Attach | Detach | AskHead | Fetch | Ack | Drop | Reach | SinkRequest
)

_HEADER = Struct("<IB3xI")
_HELLO = Struct("<4sHH")
_WELCOME = Struct("<HHI")
_U16 = Struct("<H")
_ATTACH = Struct("<Q16sdBBBB")
_ATTACHED = Struct("<IIQQQQ16s")
_HANDLE = Struct("<I")
_HEAD_IS = Struct("<QQQQ")
_FETCH = Struct("<IIQQ")
_RECORDS = Struct("<QII")
_ACK = Struct("<IIQ")
_ACKED = Struct("<QQ")
_REACH = Struct("<IIQQ")
_REACHED = Struct("<Q")

_STARTS: tuple[Start | None, ...] = (None, Start.EARLIEST, Start.LATEST)
_AFTER: tuple[AfterGrace | None, ...] = (
    None,
    AfterGrace.HOLD,
    AfterGrace.DROP,
    AfterGrace.WRITE_OFF,
)

_REST = _HEADER.size - 4
"""The part of a frame's length that is not its kind's fields."""


class FrameReader:
    """Cuts frames from bytes, however they are split.

    Args:
        max_frame_size: Larger frames are refused.
    """

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self._max = max_frame_size
        self._buffer = b""
        self._position = 0
        self._returned = 0

    @property
    def unparsed_bytes(self) -> int:
        """Bytes received and not yet returned."""
        return len(self._buffer) - self._position

    @property
    def held_bytes(self) -> int:
        """Bytes received that are in memory."""
        return len(self._buffer)

    def let_go(self) -> None:
        """Release memory of frames that have been returned."""
        if self._position:
            self._buffer = self._buffer[self._position :]
            self._position = self._returned = 0

    def receive_data(self, data: bytes) -> None:
        """Take data that was read."""
        self._buffer = self._buffer[self._position :] + data if self.unparsed_bytes else data
        self._position = self._returned = 0

    def next_frame(self) -> Frame | NeedDataType:
        """Return the next complete frame.

        Raises:
            RemoteProtocolError: If it is larger than allowed, or too small for a frame.
        """
        buffer, at = self._buffer, self._position
        if len(buffer) - at < 4:
            return NEED_DATA
        length = int.from_bytes(buffer[at : at + 4], "little")
        if length < _REST or length + 4 > self._max:
            msg = (
                f"a frame of {length + 4} bytes: it has to have {_HEADER.size} at least, and "
                f"{self._max} are the limit here (max_frame_size)"
            )
            raise RemoteProtocolError(msg)
        if len(buffer) - at < length + 4:
            return NEED_DATA
        _, kind, request = _HEADER.unpack_from(buffer, at)
        self._returned = at
        self._position = end = at + 4 + length
        return Frame(kind, request, buffer[at + _HEADER.size : end])

    def put_back(self) -> None:
        """Make the last frame returned the next one again."""
        self._position = self._returned

    def allow(self, max_frame_size: int) -> None:
        """Accept frames up to this size, too."""
        self._max = max(self._max, max_frame_size)

    def close(self) -> None:
        """Forget data that was not returned."""
        self._buffer = b""
        self._position = self._returned = 0


class _Texts:
    """Reads the variable part of a frame."""

    def __init__(self, payload: bytes, at: int) -> None:
        self.payload = payload
        self.at = at

    def number(self) -> int:
        (value,) = _U16.unpack_from(self.payload, self.at)
        self.at += _U16.size
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
    """Parse a frame from a reader.

    Raises:
        RemoteProtocolError: If it is not a request of a reader, or is malformed.
    """
    try:
        request, size = _parse(frame)
    except (struct.error, ValueError) as exc:
        msg = f"a malformed {_name(frame.kind)} frame (kind {frame.kind}): {exc}"
        raise RemoteProtocolError(msg) from exc
    if size != len(frame.payload):
        msg = f"a {_name(frame.kind)} frame with {len(frame.payload) - size} bytes too many"
        raise RemoteProtocolError(msg)
    return request


def _name(kind: int) -> str:
    try:
        return SinkKind(kind).name if kind >= FIRST_KIND else Kind(kind).name
    except ValueError:
        return "unknown"


def _parse(frame: Frame) -> tuple[Request, int]:
    """Return a request, and the size of its part of the payload."""
    payload = frame.payload
    match frame.kind:
        case Kind.FETCH:
            handle, max_bytes, start, end = _FETCH.unpack_from(payload)
            return Fetch(handle, start, end, max_bytes), _FETCH.size
        case Kind.ACK:
            handle, _, upto = _ACK.unpack_from(payload)
            return Ack(handle, upto), _ACK.size
        case Kind.HEAD:
            return AskHead(*_HANDLE.unpack_from(payload)), _HANDLE.size
        case Kind.DETACH:
            return Detach(*_HANDLE.unpack_from(payload)), _HANDLE.size
        case Kind.DROP:
            return Drop(*_HANDLE.unpack_from(payload)), _HANDLE.size
        case Kind.REACH:
            handle, _, start, max_bytes = _REACH.unpack_from(payload)
            return Reach(handle, start, max_bytes), _REACH.size
        case Kind.PING:
            return Ping(), 0
        case Kind.HELLO:
            magic, lowest, highest = _HELLO.unpack_from(payload)
            if magic != MAGIC:
                raise ValueError(f"it begins with {magic!r}, not with {MAGIC!r}")
            return Hello(lowest, highest), _HELLO.size
        case Kind.ATTACH:
            return _parse_attach(payload)
        case Kind.AUTH:
            texts = _Texts(payload, 0)
            return Auth(texts.text(), texts.raw()), texts.at
        case kind if FIRST_KIND <= kind <= LAST_KIND:
            return parse_sink_request(kind, payload)
        case _:
            raise ValueError("a reader does not send that")


def _parse_attach(payload: bytes) -> tuple[Attach, int]:
    start: int
    after: int
    generation, incarnation, grace, start, after, durable, join = _ATTACH.unpack_from(payload)
    if start >= len(_STARTS) or after >= len(_AFTER) or durable > 1 or join > 1:
        raise ValueError(f"start {start}, after grace {after}, durable {durable}, join {join}")
    if math.isnan(grace):
        raise ValueError("its grace is not a number")
    texts = _Texts(payload, _ATTACH.size)
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
    return b"".join((_HEADER.pack(length, kind, request), *parts))


def encode_request(number: int, request: Request) -> bytes:
    """Return the frame of a request."""
    match request:
        case Hello(lowest, highest):
            return encode_frame(Kind.HELLO, number, _HELLO.pack(MAGIC, lowest, highest))
        case Ping():
            return encode_frame(Kind.PING, number)
        case Auth(user, password):
            raw = _text(user), _U16.pack(len(password)), password
            return encode_frame(Kind.AUTH, number, *raw)
        case Detach(handle):
            return encode_frame(Kind.DETACH, number, _HANDLE.pack(handle))
        case AskHead(handle):
            return encode_frame(Kind.HEAD, number, _HANDLE.pack(handle))
        case Fetch(handle, start, end, max_bytes):
            return encode_frame(Kind.FETCH, number, _FETCH.pack(handle, max_bytes, start, end))
        case Ack(handle, upto):
            return encode_frame(Kind.ACK, number, _ACK.pack(handle, 0, upto))
        case Drop(handle):
            return encode_frame(Kind.DROP, number, _HANDLE.pack(handle))
        case Reach(handle, start, max_bytes):
            return encode_frame(Kind.REACH, number, _REACH.pack(handle, 0, start, max_bytes))
        case Attach():
            fixed = _ATTACH.pack(
                request.generation,
                request.incarnation,
                -1.0 if request.grace is None else request.grace,
                _STARTS.index(request.start),
                _AFTER.index(request.after_grace),
                request.durable,
                request.join,
            )
            texts = [_text(request.name), _U16.pack(len(request.filters))]
            texts += map(_text, request.filters)
            return encode_frame(Kind.ATTACH, number, fixed, *texts)
        case _:
            kind, payload = encode_sink_request(request)
            return encode_frame(kind, number, payload)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _U16.pack(len(raw)) + raw


def encode_welcome(number: int, max_frame_size: int, flags: int = 0) -> bytes:
    """Return a WELCOME."""
    return encode_frame(Kind.WELCOME, number, _WELCOME.pack(VERSION, flags, max_frame_size))


def encode_error(number: int, code: ErrorCode, sentence: str) -> bytes:
    """Return an ERROR; a sentence that is too long for one is cut."""
    raw = sentence.encode(errors="backslashreplace")[:4096].decode(errors="ignore").encode()
    return encode_frame(Kind.ERROR, number, _U16.pack(code), _U16.pack(len(raw)), raw)


def code_of(fault: SubscriptionError) -> ErrorCode:
    """Return the code for a subscription's refusal."""
    match fault:
        case FencedError():
            return ErrorCode.FENCED
        case OtherIncarnationError():
            return ErrorCode.OTHER_INCARNATION
        case DataLossError():
            return ErrorCode.DATA_LOSS
        case _:
            return ErrorCode.REFUSED


def encode_attached(
    number: int, handle: int, generation: int, incarnation: bytes, head: Head, start: int
) -> bytes:
    """Return an ATTACHED."""
    fixed = _ATTACHED.pack(handle, 0, generation, head.low, head.next, start, incarnation)
    return encode_frame(Kind.ATTACHED, number, fixed)


def encode_head(number: int, head: Head, items: int, nbytes: int) -> bytes:
    """Return a HEAD_IS."""
    return encode_frame(Kind.HEAD_IS, number, _HEAD_IS.pack(*head, items, nbytes))


def encode_acked(number: int, head: Head) -> bytes:
    """Return an ACKED."""
    return encode_frame(Kind.ACKED, number, _ACKED.pack(*head))


def encode_reached(number: int, end: int) -> bytes:
    """Return a REACHED."""
    return encode_frame(Kind.REACHED, number, _REACHED.pack(end))


def encode_records(number: int, following: int, blocks: Sequence[bytes]) -> bytes:
    """Return the RECORDS of these blocks, up to before `following`."""
    sizes = Struct(f"<{len(blocks)}I{'4x' if len(blocks) % 2 else ''}").pack(*map(len, blocks))
    fixed = _RECORDS.pack(following, len(blocks), 0)
    return encode_frame(Kind.RECORDS, number, fixed, sizes, *blocks)
