"""An AMQP 0-9-1 client that sends whatever frames it is given, for cases that pika forbids."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Final, TypeVar

import attrs
from pamqp import base, commands, frame, header
from pamqp.heartbeat import Heartbeat

HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT, BODY, HEARTBEAT = 1, 2, 3, 8
END: Final = b"\xce"
SECONDS: Final = 15.0
"""More than any answer takes on a busy machine. RabbitMQ keeps a connection that is not yet open
for three seconds after an error (`SILENT_CLOSE_DELAY` in rabbit_reader.erl)."""

CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}

Method = TypeVar("Method", bound=base.Frame)


@attrs.frozen
class Frame:
    """A frame as it came."""

    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> base.Frame | None:
        """The method that it holds; None for other kinds."""
        if self.kind != METHOD:
            return None
        _, _, decoded = frame.unmarshal(packed(self.kind, self.channel, self.payload))
        assert isinstance(decoded, base.Frame)
        return decoded

    def __str__(self) -> str:
        method = self.method
        shown = f"kind {self.kind}, {self.payload[:80]!r}" if method is None else repr(dict(method))
        name = "" if method is None else method.name
        return f"{name} on channel {self.channel}: {shown}"


@attrs.frozen
class Content:
    """A message that came: its method, its properties as bytes, and its body."""

    method: base.Frame
    header: bytes
    """The payload of the content header from the property flags on."""
    pieces: tuple[bytes, ...]
    """The payloads of its body frames."""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def properties(self) -> commands.Basic.Properties:
        """Its properties, decoded."""
        payload = struct.pack(">HHQ", commands.Basic.frame_id, 0, len(self.body)) + self.header
        _, _, decoded = frame.unmarshal(packed(CONTENT, 1, payload))
        assert isinstance(decoded, header.ContentHeader)
        return decoded.properties


def packed(kind: int, channel: int, payload: bytes, end: bytes = END) -> bytes:
    """Return a frame's bytes."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method_bytes(class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """Return the payload of a method frame."""
    return struct.pack(">HH", class_id, method_id) + arguments


def plain(user: str = "guest", password: str = "guest") -> str:
    """Return the response of the mechanism PLAIN."""
    return f"\0{user}\0{password}"


class Raw:
    """A connection of which each frame is sent by hand."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending = bytearray()
        self.frame_max = 131_072

    # ---- Out ------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._sock.sendall(data)

    def method(self, method: base.Frame, channel: int = 1) -> None:
        """Send a method."""
        self.send(frame.marshal(method, channel))

    def content(
        self,
        body: bytes = b"",
        *,
        exchange: str = "",
        key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        properties: commands.Basic.Properties | bytes | None = None,
        channel: int = 1,
        piece: int | None = None,
    ) -> None:
        """Publish a message in one write.

        Args:
            properties: The properties, or the bytes of their flags and list.
            piece: Bytes of a body frame's payload; None: as many as the frame limit permits.
        """
        publish = commands.Basic.Publish(
            exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
        )
        piece = piece or self.frame_max - 8
        self.send(
            frame.marshal(publish, channel)
            + content_header(len(body), properties, channel)
            + b"".join(
                packed(BODY, channel, body[start : start + piece])
                for start in range(0, len(body), piece)
            )
        )

    def end(self) -> None:
        """Close the socket without a word."""
        self._sock.close()

    # ---- In -------------------------------------------------------------------------------------

    def read(self) -> Frame | None:
        """Return the next frame, or None when the server has closed the socket.

        Raises:
            TimeoutError: Nothing came for `SECONDS`.
        """
        head = self.bytes(7)
        if len(head) < 7:
            return None
        kind, channel, size = struct.unpack(">BHI", head)
        rest = self.bytes(size + 1)
        if len(rest) < size + 1:
            return None
        assert rest[-1:] == END, f"a frame ends with {rest[-1:]!r}"
        return Frame(kind, channel, rest[:-1])

    def bytes(self, count: int) -> bytes:
        """Return so many bytes, or fewer when the server has closed the socket."""
        while len(self._pending) < count:
            # A server that closes while bytes of ours are on their way answers with a reset.
            with contextlib.suppress(ConnectionError):
                if data := self._sock.recv(1 << 16):
                    self._pending += data
                    continue
            break
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken

    def next(self) -> Frame:
        """Return the next frame but heartbeats; an error if there is none."""
        while True:
            found = self.read()
            assert found is not None, "the server has closed the socket"
            if found.kind != HEARTBEAT:
                return found

    def expect(self, kind: type[Method], channel: int = 1) -> Method:
        """Return the next method, which has to be of this kind and on this channel."""
        found = self.next()
        method = found.method
        assert isinstance(method, kind), f"{kind.__name__} expected, got {found}"
        assert found.channel == channel, found
        return method

    def message(self, kind: type[base.Frame], channel: int = 1) -> Content:
        """Return the next message, which has to come by this method and on this channel."""
        method = self.expect(kind, channel)
        head = self.next()
        assert (head.kind, head.channel) == (CONTENT, channel), head
        class_id, weight, size = struct.unpack_from(">HHQ", head.payload)
        assert (class_id, weight) == (60, 0)
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < size:
            piece = self.next()
            assert (piece.kind, piece.channel) == (BODY, channel), piece
            pieces.append(piece.payload)
        return Content(method, head.payload[12:], tuple(pieces))

    def call(self, method: base.Frame, answer: type[Method], channel: int = 1) -> Method:
        """Send a method and return its answer."""
        self.method(method, channel)
        return self.expect(answer, channel)

    def refused(self, code: int, text: str = "", *, method: tuple[int, int] | None = None) -> str:
        """Take the server's `connection.close`, answer it, and see the socket closed.

        Args:
            code: The reply code that it has to have.
            text: How the reply text has to begin.
            method: The class and method of the offender, if they matter.

        Returns:
            The reply text.
        """
        closed = self.expect(commands.Connection.Close, 0)
        assert (closed.reply_code, closed.reply_text[: len(text)]) == (code, text), dict(closed)
        if method is not None:
            assert (closed.class_id, closed.method_id) == method, dict(closed)
        with contextlib.suppress(ConnectionError):
            self.method(commands.Connection.CloseOk(), 0)
        self.closed()
        return closed.reply_text

    def queue(self, channel: int = 1, **options: Any) -> str:
        """Declare an exclusive queue with a name that the server makes; return that name."""
        declare = commands.Queue.Declare(exclusive=True, **options)
        name = self.call(declare, commands.Queue.DeclareOk, channel).queue
        assert name is not None
        return name

    def get(self, queue: str, channel: int = 1) -> Content:
        """Take a message that is ready, for good."""
        self.method(commands.Basic.Get(queue=queue, no_ack=True), channel)
        return self.message(commands.Basic.GetOk, channel)

    def channel_refused(
        self, code: int, text: str = "", *, method: tuple[int, int] | None = None, channel: int = 1
    ) -> str:
        """Take the server's `channel.close` and answer it; as `refused`."""
        closed = self.expect(commands.Channel.Close, channel)
        assert (closed.reply_code, closed.reply_text[: len(text)]) == (code, text), dict(closed)
        if method is not None:
            assert (closed.class_id, closed.method_id) == method, dict(closed)
        self.method(commands.Channel.CloseOk(), channel)
        return closed.reply_text

    def closed(self) -> None:
        """See that the server closes the socket, and says nothing more."""
        found = self.read()
        while found is not None and found.kind == HEARTBEAT:
            found = self.read()
        assert found is None, str(found)

    # ---- Negotiation ----------------------------------------------------------------------------

    def greet(self) -> commands.Connection.Start:
        """Send the protocol header and return the server's answer."""
        self.send(HEADER)
        return self.expect(commands.Connection.Start, 0)

    def log_in(
        self,
        response: str | None = None,
        *,
        mechanism: str = "PLAIN",
        capabilities: dict[str, bool] | None = None,
    ) -> None:
        """Greet, and answer with credentials; what the server says next is left to the caller."""
        self.greet()
        able = CAPABILITIES if capabilities is None else capabilities
        self.method(
            commands.Connection.StartOk(
                {"product": "raw", "capabilities": dict(able)},
                mechanism,
                plain() if response is None else response,
                "en_US",
            ),
            0,
        )

    def tune(
        self, channel_max: int | None = None, frame_max: int | None = None, heartbeat: int = 0
    ) -> commands.Connection.Tune:
        """Take the server's `tune` and answer it, with its own values where none is given."""
        tune = self.expect(commands.Connection.Tune, 0)
        self.frame_max = tune.frame_max if frame_max is None else frame_max
        self.method(
            commands.Connection.TuneOk(
                tune.channel_max if channel_max is None else channel_max,
                self.frame_max,
                heartbeat,
            ),
            0,
        )
        return tune

    def open(
        self,
        *,
        vhost: str = "/",
        channels: int = 1,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat: int = 0,
        capabilities: dict[str, bool] | None = None,
    ) -> Raw:
        """Open the connection and the first channels; return it."""
        self.log_in(capabilities=capabilities)
        self.tune(channel_max, frame_max, heartbeat)
        self.call(commands.Connection.Open(vhost), commands.Connection.OpenOk, 0)
        for number in range(1, channels + 1):
            self.open_channel(number)
        return self

    def open_channel(self, channel: int) -> None:
        """Open a channel."""
        self.call(commands.Channel.Open(), commands.Channel.OpenOk, channel)

    def alive(self) -> None:
        """See that the connection still answers: open and close a channel that nobody uses."""
        self.open_channel(77)
        self.close_channel(77)

    def close_channel(self, channel: int = 1) -> None:
        """Close a channel."""
        self.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk, channel)

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self.send(frame.marshal(Heartbeat(), 0))


def content_header(
    size: int, properties: commands.Basic.Properties | bytes | None = None, channel: int = 1
) -> bytes:
    """Return the frame that announces a body of so many bytes."""
    if isinstance(properties, bytes):
        return packed(CONTENT, channel, struct.pack(">HHQ", 60, 0, size) + properties)
    return frame.marshal(header.ContentHeader(0, size, properties), channel)
