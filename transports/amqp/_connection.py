"""The receiving half of one AMQP connection: from bytes to commands. No I/O.

Rules of this file:
1. A command is a method, with its content if it has one. Commands of one channel come in order;
   contents of different channels may be interleaved, and each comes when it is complete.
2. A publication whose frames lie in one read takes one pass: three heads are unpacked, and its
   parts sliced. All others are put together frame by frame.
3. On a channel that this side is closing everything is passed over, until the peer agrees; and on
   a connection likewise.
4. Nothing but `RemoteProtocolError` is raised, whatever the bytes, and mostly `AmqpError`, of which
   the peer is told. Where that does not `ends_connection`, only its channel is at fault, and
   parsing goes on; otherwise nothing more is to be parsed.

Source: AMQP 0-9-1, sections 2.2.4, 2.3.5 and 4.2; rabbit_reader.erl, rabbit_command_assembler.erl
of RabbitMQ 3.10.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from pamqp.commands import Basic, Channel, Connection

from .._errors import RemoteProtocolError
from .._need_data import NEED_DATA, NeedData
from ._field_tables import MalformedError
from ._frames import (
    BASIC,
    BODY,
    END,
    FRAME_BYTES,
    FRAME_HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
)
from ._methods import FROM_CLIENTS, METHODS, decode_method
from ._replies import NO_METHOD, AmqpError, Code, Method

if TYPE_CHECKING:
    from pamqp import base

MAX_ROUTES: Final = 256
"""Exchanges and routing keys, as bytes, whose decoded form is remembered by one connection."""

_CONTENT: Final = struct.Struct(">BHIHHQ")
_CONTENT_BYTES: Final = _CONTENT.size
_ACK: Final = struct.Struct(">QB")
_NUMBER: Final = struct.Struct(">Q")
_SIZE: Final = struct.Struct(">I")
_UP_TO_SIZE: Final = FRAME_BYTES - 1 + 4
"""The bytes of a header frame before the size of the body."""
_ACK_FRAME: Final = FRAME_BYTES + 13
_ACK_HEAD: Final = 11
"""The bytes of a basic.ack before the delivery tag."""
_INDEX: Final = struct.Struct(">HH")

_PUBLISH: Final = b"\x00\x3c\x00\x28"
_BASIC_ACK: Final = b"\x00\x3c\x00\x50"
_ACK_BYTES: Final = 13

_CONTENT_HEADER: Final = f"content header for class {BASIC}"

_ENDINGS: Final = (Connection.Close, Connection.CloseOk)


class State(enum.Enum):
    """The progress of a connection."""

    HEADER = "waits for the protocol header"
    START = "waits for connection.start-ok"
    SECURE = "waits for connection.secure-ok"
    TUNE = "waits for connection.tune-ok"
    OPENING = "waits for connection.open"
    OPEN = "open"
    CLOSING = "waits for connection.close-ok"
    CLOSED = "closed"


_EXPECTED: Final[dict[State, type[base.Frame]]] = {
    State.START: Connection.StartOk,
    State.SECURE: Connection.SecureOk,
    State.TUNE: Connection.TuneOk,
    State.OPENING: Connection.Open,
}


@attrs.define(slots=True, eq=False)
class Publish:
    """A basic.publish with its content."""

    channel: int
    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool
    properties: bytes
    """Flags and list, as they came."""
    body: bytes


@attrs.define(slots=True, eq=False)
class Ack:
    """A basic.ack."""

    channel: int
    tag: int
    multiple: bool


@attrs.define(slots=True, eq=False)
class Command:
    """Any other method."""

    channel: int
    method: base.Frame


@attrs.define(slots=True, eq=False)
class Greeting:
    """The protocol header: the first that a client says."""


Received: TypeAlias = Publish | Ack | Command | Greeting


@attrs.define(slots=True, eq=False)
class _Content:
    """A publication of which something is still to come."""

    route: tuple[str, str, int]
    properties: bytes | None = None
    """None: the header frame has not come."""
    missing: int = 0
    """Bytes of the body."""
    pieces: list[bytes] = attrs.field(factory=list[bytes])
    nbytes: int = 0


class _Channel:
    """What is known of an open channel.

    Attributes:
        idle: Whether a publication may begin: none has begun, and the channel is not being closed.
        closing: Whether this side has closed it, and the peer has not agreed yet.
        content: The publication that has begun.
    """

    __slots__ = ("closing", "content", "idle")

    def __init__(self) -> None:
        self.idle = True
        self.closing = False
        self.content: _Content | None = None


class WrongProtocolError(AmqpError):
    """The peer does not speak this version: it is sent the protocol header that it should send."""

    def __init__(self, data: bytes) -> None:
        super().__init__(
            Code.FRAME_ERROR,
            f"the connection begins with {data!r}, not with the protocol header of AMQP 0-9-1",
        )


class ConnectionInput:
    """The receiving half of one connection.

    Args:
        max_first_size: Most bytes of a frame before frame sizes have been negotiated.
        max_message_size: Most bytes of a publication's body.

    Attributes:
        state: The connection's progress; whoever answers moves it on.
        channel_max: The highest number of a channel.
        buffer: Bytes of which those up to `position` have been parsed.
        position: See above.
    """

    __slots__ = (
        "_assembled", "_channels", "_last", "_max_message_size", "_max_payload", "_routes",
        "_starts", "buffer", "channel_max", "position", "state",
    )  # fmt: skip

    def __init__(self, *, max_first_size: int, max_message_size: int) -> None:
        self.state = State.HEADER
        self.channel_max = 0
        self.buffer = b""
        self.position = 0
        self._max_payload = max_first_size - FRAME_BYTES
        self._max_message_size = max_message_size
        self._channels: dict[int, _Channel] = {}
        self._routes: dict[bytes, tuple[str, str, int]] = {}
        # Bytes of contents that are not complete.
        self._assembled = 0
        # The command that came last, if it is a publication that lies in `buffer` as a whole; and
        # the starts of its method frame and its header frame there.
        self._last: Publish | None = None
        self._starts = (0, 0)

    def __repr__(self) -> str:
        return f"<ConnectionInput: {self.state.value}, {len(self._channels)} channels>"

    @property
    def held_bytes(self) -> int:
        """The bytes of input in memory."""
        return len(self.buffer) - self.position + self._assembled

    @property
    def unparsed(self) -> int:
        """The bytes that have come and are not parsed."""
        return len(self.buffer) - self.position

    def receive_data(self, data: bytes) -> None:
        """Take bytes, to be parsed by `next_command`."""
        if self.state is State.CLOSED:
            return
        if self.position < len(self.buffer):
            self.buffer = self.buffer[self.position :] + data
        else:
            self.buffer = data
        self.position = 0
        self._last = None

    def let_go(self) -> None:
        """Let go of what has been parsed."""
        self._last = None
        self.buffer = self.buffer[self.position :]
        self.position = 0

    def close(self) -> None:
        """Parse nothing more."""
        self.state = State.CLOSED
        self.buffer = b""
        self.position = self._assembled = 0
        self._channels.clear()

    def tuned(self, channel_max: int, frame_max: int) -> None:
        """Note what has been negotiated; 0: no limit on the size of frames."""
        self.channel_max = channel_max
        self._max_payload = frame_max - FRAME_BYTES if frame_max else 1 << 32

    # -- channels ----------------------------------------------------------------------------------

    def channel_closing(self, channel: int) -> None:
        """Note that this side closes a channel: pass over all that comes, until the peer agrees."""
        known = self._channels.get(channel)
        if known is not None:
            known.closing = True
            known.idle = False
            self._drop_content(known)

    def channel_closed(self, channel: int) -> None:
        """Note that a channel is closed: the peer has closed it."""
        known = self._channels.pop(channel, None)
        if known is not None:
            self._drop_content(known)

    def is_open(self, channel: int) -> bool:
        """Whether a channel is open and not being closed by this side."""
        known = self._channels.get(channel)
        return known is not None and not known.closing

    def _drop_content(self, known: _Channel) -> None:
        if known.content is not None:
            self._assembled -= known.content.nbytes
            known.content = None

    # -- parsing -----------------------------------------------------------------------------------

    def next_command(self) -> Received | NeedData:
        """Return the next command; `NEED_DATA` if it has not come as a whole.

        Raises:
            RemoteProtocolError: If what comes next is against the protocol; mostly `AmqpError`.
        """
        while True:
            buffer = self.buffer
            at = self.position
            end = len(buffer)
            if self.state is State.HEADER:
                return self._greeting()
            if end - at < FRAME_HEAD.size:
                if self.state is not State.CLOSED and end > at:
                    self._check_kind(buffer[at])
                return NEED_DATA
            kind, channel, size = FRAME_HEAD.unpack_from(buffer, at)
            after = at + FRAME_BYTES + size
            if size > self._max_payload:
                self._check_kind(kind)
                raise self._too_large(kind, channel, size)
            if after > end:
                self._check_kind(kind)
                return NEED_DATA
            if buffer[after - 1] != END:
                raise AmqpError(
                    Code.FRAME_ERROR,
                    f"a frame of type {kind} on channel {channel}, with {size} bytes, ends with "
                    f"{buffer[after - 1]:#04x} and not with 0xce: its size is wrong",
                )
            self.position = after
            if kind == METHOD:
                index = buffer[at + 7 : at + 11]
                known = self._channels.get(channel)
                if known is not None and known.idle and self.state is State.OPEN:
                    if index == _PUBLISH:
                        route = self._route(buffer[at + 11 : after - 1], channel)
                        whole = self._publication(channel, route, after)
                        if whole is not None:
                            self._last, self._starts = whole, (at, after)
                            return whole
                        known.content = _Content(route)
                        known.idle = False
                        continue
                    if index == _BASIC_ACK and size == _ACK_BYTES:
                        tag, multiple = _ACK.unpack_from(buffer, at + 11)
                        self._last = None
                        return Ack(channel, tag, bool(multiple & 1))
                self._last = None
                command = self._method(channel, buffer[at + 7 : after - 1])
                if command is not None:
                    return command
            elif kind in (HEADER, BODY):
                publication = self._take_content(kind, channel, at + 7, after - 1)
                if publication is not None:
                    return publication
            elif kind != HEARTBEAT:
                self._check_kind(kind)
            elif size:
                raise AmqpError(Code.FRAME_ERROR, f"a heartbeat is empty, not {size} bytes")
            elif channel:
                # Section 4.2.7 of the specification.
                raise AmqpError(Code.FRAME_ERROR, f"a heartbeat on channel {channel}, not 0")

    def _greeting(self) -> Greeting | NeedData:
        data = self.buffer[self.position : self.position + len(PROTOCOL_HEADER)]
        if data != PROTOCOL_HEADER[: len(data)]:
            raise WrongProtocolError(data)
        if len(data) < len(PROTOCOL_HEADER):
            return NEED_DATA
        self.position += len(PROTOCOL_HEADER)
        return Greeting()

    @staticmethod
    def _check_kind(kind: int) -> None:
        if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
            raise AmqpError(Code.FRAME_ERROR, f"there are no frames of type {kind}")

    def _too_large(self, kind: int, channel: int, size: int) -> AmqpError:
        return AmqpError(
            Code.FRAME_ERROR,
            f"a frame of type {kind} on channel {channel} has {size} bytes, more than the "
            f"{self._max_payload} that were negotiated",
        )

    def _route(self, arguments: bytes, channel: int) -> tuple[str, str, int]:
        """Return exchange, routing key and flags of a basic.publish."""
        route = self._routes.get(arguments)
        if route is not None:
            return route
        try:
            method = decode_method(Basic.Publish, _PUBLISH + arguments)
        except MalformedError as exc:
            raise AmqpError(Code.SYNTAX_ERROR, str(exc), (BASIC, 40), channel) from None
        assert isinstance(method, Basic.Publish)
        route = method.exchange, method.routing_key, arguments[-1]
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        self._routes[arguments] = route
        return route

    def _publication(self, channel: int, route: tuple[str, str, int], at: int) -> Publish | None:
        """Return a publication whose content follows, at `at`, as a whole; None: it does not."""
        buffer = self.buffer
        end = len(buffer)
        if at + _CONTENT_BYTES >= end:
            return None
        kind, its_channel, size, class_id, _, nbytes = _CONTENT.unpack_from(buffer, at)
        body_at = at + FRAME_BYTES + size
        if (
            kind != HEADER
            or its_channel != channel
            or class_id != BASIC
            or size < 14
            or size > self._max_payload
            or nbytes > self._max_message_size
            or body_at > end
            or buffer[body_at - 1] != END
        ):
            return None
        properties = buffer[at + _CONTENT_BYTES : body_at - 1]
        if not nbytes:
            self.position = body_at
            body = b""
        else:
            after = body_at + FRAME_BYTES + nbytes
            if after > end:
                return None
            kind, its_channel, size = FRAME_HEAD.unpack_from(buffer, body_at)
            if (
                kind != BODY
                or its_channel != channel
                or size != nbytes
                or size > self._max_payload
                or buffer[after - 1] != END
            ):
                return None
            body = buffer[body_at + 7 : after - 1]
            self.position = after
        exchange, key, flags = route
        return Publish(channel, exchange, key, bool(flags & 1), bool(flags & 2), properties, body)

    def following(self, said: Publish, most: int, nbytes: int) -> list[bytes]:
        """Take the publications that come next and differ from `said` in their bodies alone.

        Args:
            said: The command that came last.
            most: How many.
            nbytes: How many bytes of bodies; the last one may overshoot it.

        Returns:
            Their bodies.
        """
        if self._last is not said or not said.body:
            return []
        buffer = self.buffer
        end = len(buffer)
        method_at, header_at = self._starts
        size_at = header_at + _UP_TO_SIZE - method_at
        head = buffer[method_at : header_at + _UP_TO_SIZE]
        properties_at = header_at + _CONTENT_BYTES
        # Up to the size of the body frame.
        middle = buffer[properties_at : properties_at + len(said.properties) + 4]
        middle_at = size_at + 8
        body_size_at = middle_at + len(middle)
        body_at = body_size_at + 4
        most_bytes = min(self._max_payload, self._max_message_size)
        bodies: list[bytes] = []
        at = self.position
        while len(bodies) < most and nbytes >= 0 and buffer.startswith(head, at):
            if at + body_at >= end or not buffer.startswith(middle, at + middle_at):
                break
            (size,) = _NUMBER.unpack_from(buffer, at + size_at)
            after = at + body_at + size + 1
            if (
                not 0 < size <= most_bytes
                or after > end
                or _SIZE.unpack_from(buffer, at + body_size_at)[0] != size
                or buffer[after - 1] != END
            ):
                break
            bodies.append(buffer[at + body_at : after - 1])
            nbytes -= size
            at = after
        self.position = at
        return bodies

    def following_acks(self, channel: int) -> list[int]:
        """Take the single acknowledgements of a channel that come next; return their tags."""
        buffer = self.buffer
        at = self.position
        head = FRAME_HEAD.pack(METHOD, channel, _ACK_BYTES) + _BASIC_ACK
        tags: list[int] = []
        end = len(buffer) - _ACK_FRAME
        while at <= end and buffer.startswith(head, at):
            if not buffer.startswith(b"\0\xce", at + _ACK_FRAME - 2):
                break  # it is one for many, or malformed
            tags += _NUMBER.unpack_from(buffer, at + _ACK_HEAD)
            at += _ACK_FRAME
        self.position = at
        return tags

    def _take_content(self, kind: int, channel: int, start: int, end: int) -> Publish | None:
        """Take a header or body frame; return the publication that it completes."""
        if self.state in (State.CLOSING, State.CLOSED):
            return None
        if not channel:
            raise AmqpError(Code.FRAME_ERROR, "there is content on channel 0, the connection's")
        known = self._channels.get(channel)
        if known is not None and known.closing:
            return None
        content = None if known is None else known.content
        if known is None or content is None:
            raise self._unexpected("method frame", "non method frame", channel, NO_METHOD)
        buffer = self.buffer
        if kind == HEADER:
            if content.properties is not None:
                raise self._unexpected("content body", "non content body frame", channel)
            if end - start < 14:
                raise AmqpError(
                    Code.FRAME_ERROR, "a content header ends within its fields", (BASIC, 40)
                )
            class_id, _, nbytes = struct.unpack_from(">HHQ", buffer, start)
            if class_id != BASIC:
                raise self._unexpected(_CONTENT_HEADER, f"one for class {class_id}", channel)
            if nbytes > self._max_message_size:
                raise AmqpError(
                    Code.PRECONDITION_FAILED,
                    f"message size {nbytes} is larger than configured max size "
                    f"{self._max_message_size}",
                    (BASIC, 40),
                    channel,
                )
            content.properties = buffer[start + 12 : end]
            content.missing = nbytes
            content.nbytes = len(content.properties)
            self._assembled += content.nbytes
        else:
            if content.properties is None:
                raise self._unexpected(_CONTENT_HEADER, "non content header frame", channel)
            size = end - start
            if size > content.missing:
                raise AmqpError(
                    Code.FRAME_ERROR,
                    f"the body of a message has {size - content.missing} bytes more than its "
                    "header says",
                    (BASIC, 40),
                )
            content.missing -= size
            content.pieces.append(buffer[start:end])
            content.nbytes += size
            self._assembled += size
        if content.missing:
            return None
        exchange, key, flags = content.route
        properties = content.properties
        self._drop_content(known)
        known.idle = True
        return Publish(
            channel, exchange, key, bool(flags & 1), bool(flags & 2), properties,
            b"".join(content.pieces),
        )  # fmt: skip

    @staticmethod
    def _unexpected(
        expected: str, got: str, channel: int, method: Method = (BASIC, 40)
    ) -> AmqpError:
        text = f"expected {expected}, got {got} instead"
        return AmqpError(Code.UNEXPECTED_FRAME, text, method, channel)

    def _method(self, channel: int, payload: bytes) -> Command | None:
        """Return a method; None: it is passed over."""
        if self.state is State.CLOSED:
            return None
        if len(payload) < 4:
            raise AmqpError(Code.FRAME_ERROR, "a method frame ends within the method's number")
        method_id: Method = _INDEX.unpack_from(payload)
        cls = METHODS.get(method_id[0] << 16 | method_id[1])
        if self.state is State.CLOSING and cls not in _ENDINGS:
            return None
        known = self._channels.get(channel)
        if known is not None and known.closing and cls not in (Channel.Close, Channel.CloseOk):
            return None
        if cls is None or cls not in FROM_CLIENTS:
            raise AmqpError(
                Code.COMMAND_INVALID,
                f"clients have no method {method_id[1]} of class {method_id[0]}",
                method_id,
                channel,
            )
        self._check_place(channel, known, cls, method_id)
        try:
            method = decode_method(cls, payload)
        except MalformedError as exc:
            raise AmqpError(Code.SYNTAX_ERROR, str(exc), method_id, channel) from None
        if cls is Channel.Open:
            self._channels[channel] = _Channel()
        elif cls is Channel.CloseOk:
            if known is not None and known.closing:
                del self._channels[channel]
            return None
        return Command(channel, method)

    def _check_place(
        self, channel: int, known: _Channel | None, cls: type[base.Frame], method_id: Method
    ) -> None:
        """Check that a method may come now, on this channel."""
        is_of_connection = method_id[0] == 10
        expected = _EXPECTED.get(self.state)
        if expected is not None:
            text = f"{cls.name} on channel {channel}, where {expected.name} was expected"
            if channel:
                raise RemoteProtocolError(text)  # as RabbitMQ, which says nothing either
            if not (cls is expected or cls in _ENDINGS):
                raise AmqpError(Code.COMMAND_INVALID, text, method_id)
        elif not channel:
            if not is_of_connection:
                raise AmqpError(
                    Code.COMMAND_INVALID, f"{cls.name} on channel 0, which is the connection's",
                    method_id,
                )  # fmt: skip
            if cls in (Connection.StartOk, Connection.SecureOk, Connection.TuneOk, Connection.Open):
                raise AmqpError(
                    Code.COMMAND_INVALID, f"{cls.name} on a connection that is open", method_id
                )
        elif is_of_connection:
            raise AmqpError(
                Code.COMMAND_INVALID, f"{cls.name} on channel {channel}, and not on 0", method_id
            )
        elif cls is Channel.Open:
            self._check_new(channel, known, method_id)
        elif known is None:
            if cls is Channel.CloseOk:
                return
            raise AmqpError(Code.CHANNEL_ERROR, "expected 'channel.open'", method_id)
        elif known.content is not None:
            if known.content.properties is None:
                raise self._unexpected(_CONTENT_HEADER, "non content header frame", channel)
            raise self._unexpected("content body", "non content body frame", channel)

    def _check_new(self, channel: int, known: _Channel | None, method_id: Method) -> None:
        if known is not None:
            raise AmqpError(Code.CHANNEL_ERROR, "second 'channel.open' seen", method_id)
        count, most = len(self._channels), self.channel_max
        if count >= most or channel > most:
            text = f"number of channels opened ({count}) has reached the negotiated channel_max"
            if count < most:
                text = f"channel {channel} is above the negotiated channel_max"
            raise AmqpError(Code.NOT_ALLOWED, f"{text} ({most})", method_id)
