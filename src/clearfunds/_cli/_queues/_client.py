"""A small AMQP 0-9-1 client: one connection, one channel, one request at a time."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

import attrs
import trio
from pamqp import base, commands, exceptions, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader, ProtocolHeader

from clearfunds.sockets import trouble, trouble_with_connecting

from .._errors import CommandFailedError, UsageError
from .._printable import printable

PORT: Final = 5672
SECURE_PORT: Final = 5671
_PLAIN: Final = ("amqp", "amqp+tcp")
_SECURE: Final = ("amqps", "amqp+tls")
SECONDS: Final = 20.0
"""Seconds for one answer."""
CHUNK: Final = 64 << 10
FRAME_OVERHEAD: Final = 8
CHANNEL: Final = 1
_WHICH: Final = "is that its port for AMQP?"

_ADVICE: Final = {
    403: "check the user and the password in --url, and what that user may do",
    404: "check the name: `clearfunds queues list` has the queues",
    405: "that queue belongs to another connection alone",
    530: "check the virtual host at the end of --url",
}
"""What to do about a reply code of AMQP 0-9-1."""

T = TypeVar("T", bound=base.Frame)


@attrs.frozen
class Place:
    """The address of a broker: a parsed `amqp://USER:PASSWORD@HOST:PORT/VHOST`."""

    host: str
    port: int
    user: str
    password: str = attrs.field(repr=False)
    virtual_host: str
    is_secure: bool

    @classmethod
    def parse(cls, uri: str) -> Place:
        """Parse a URL; by default the user is `guest`, and the virtual host `/`, as for clients.

        `amqp+tcp` and `amqp+tls`, as a relay has them, are `amqp` and `amqps`; `HOST` and
        `HOST:PORT` are without TLS.

        Raises:
            UsageError: It is none.
        """
        try:
            parts = urlsplit(uri if "://" in uri else f"amqp://{uri}")
            if parts.scheme not in (*_PLAIN, *_SECURE) or not parts.hostname:
                raise ValueError
            is_secure = parts.scheme in _SECURE
            return cls(
                parts.hostname,
                parts.port or (SECURE_PORT if is_secure else PORT),
                unquote(parts.username or "guest"),
                unquote(parts.password or "guest"),
                unquote(parts.path[1:]) or "/",
                is_secure,
            )
        except ValueError:
            msg = "--url takes amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS"
            raise UsageError(msg) from None


@attrs.frozen
class Got:
    """A message that was got from a queue."""

    tag: int
    header: ContentHeader
    body: bytes
    left: int
    """Messages that are left in the queue."""


class Client:
    """A connection to a broker; made by `open_client`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._frames: deque[tuple[int, Any]] = deque()
        self._most = 128 << 10

    async def log_in(self, place: Place) -> None:
        """Open the connection and its channel.

        Raises:
            CommandFailedError: The broker refuses.
        """
        await self._stream.send_all(ProtocolHeader(0, 9, 1).marshal())
        await self._answer(commands.Connection.Start)
        response = f"\0{place.user}\0{place.password}"
        start = commands.Connection.StartOk(
            client_properties={
                "product": "clearfunds",
                "capabilities": {"authentication_failure_close": True, "basic.nack": True},
            },
            mechanism="PLAIN",
            response=response,
            locale="en_US",
        )
        tune = await self._ask(start, commands.Connection.Tune, 0)
        self._most = tune.frame_max or self._most
        await self._send(commands.Connection.TuneOk(tune.channel_max, self._most, 0), 0)
        opening = commands.Connection.Open(place.virtual_host)
        await self._ask(opening, commands.Connection.OpenOk, 0)
        await self._ask(commands.Channel.Open(), commands.Channel.OpenOk)

    async def purge(self, queue: str) -> int:
        """Delete the ready messages of a queue; return how many they were.

        Raises:
            CommandFailedError: The broker refuses.
        """
        done = await self._ask(commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)
        return done.message_count or 0

    async def check(self, queue: str) -> int:
        """Return how many messages of a queue are ready.

        Raises:
            CommandFailedError: There is none, or it is another connection's own.
        """
        asked = commands.Queue.Declare(queue=queue, passive=True)
        return (await self._ask(asked, commands.Queue.DeclareOk)).message_count or 0

    async def confirm(self) -> None:
        """Have the broker confirm what is published from now on."""
        await self._ask(commands.Confirm.Select(), commands.Confirm.SelectOk)

    async def get(self, queue: str) -> Got | None:
        """Take the first message of a queue; None: it is empty.

        Raises:
            CommandFailedError: The broker refuses.
        """
        await self._send(commands.Basic.Get(queue=queue))
        answer = await self._either(commands.Basic.GetOk, commands.Basic.GetEmpty)
        if not isinstance(answer, commands.Basic.GetOk):
            return None
        header = cast("ContentHeader", await self._next())
        body = bytearray()
        while len(body) < header.body_size:
            body += cast("ContentBody", await self._next()).value
        return Got(answer.delivery_tag or 0, header, bytes(body), answer.message_count or 0)

    async def publish(self, queue: str, got: Got) -> None:
        """Publish a message into a queue, and wait until the broker confirms it.

        Raises:
            CommandFailedError: It does not take it.
        """
        publish = commands.Basic.Publish(exchange="", routing_key=queue, mandatory=True)
        header = ContentHeader(body_size=len(got.body), properties=got.header.properties)
        pieces = [frame.marshal(publish, CHANNEL), frame.marshal(header, CHANNEL)]
        room = self._most - FRAME_OVERHEAD
        for at in range(0, len(got.body), room):
            pieces.append(frame.marshal(ContentBody(got.body[at : at + room]), CHANNEL))
        await self._stream.send_all(b"".join(pieces))
        answer = await self._either(commands.Basic.Ack, commands.Basic.Nack)
        if not isinstance(answer, commands.Basic.Ack):
            raise CommandFailedError(f"queue {printable(queue)} takes no more messages")

    async def ack(self, tag: int) -> None:
        """Acknowledge a message that was got."""
        await self._send(commands.Basic.Ack(delivery_tag=tag))

    async def close(self) -> None:
        """Close the connection in order: what was acknowledged has come."""
        closing = commands.Connection.Close(200, "", 0, 0)
        await self._ask(closing, commands.Connection.CloseOk, 0)

    async def _ask(self, method: base.Frame, answer: type[T], channel: int = CHANNEL) -> T:
        await self._send(method, channel)
        return await self._answer(answer)

    async def _send(self, method: base.Frame, channel: int = CHANNEL) -> None:
        await self._stream.send_all(frame.marshal(method, channel))

    async def _answer(self, wanted: type[T]) -> T:
        """Return the next method, which has to be of that class."""
        return cast("T", await self._either(wanted))

    async def _either(self, *wanted: type[base.Frame]) -> base.Frame:
        """Return the next method, which has to be of one of these classes."""
        while True:
            found = await self._next()
            if isinstance(found, wanted):
                return found
            if isinstance(found, commands.Connection.Close | commands.Channel.Close):
                advice = _ADVICE.get(found.reply_code or 0, "its log says more")
                msg = f"the broker refuses: {printable(str(found.reply_text))}; {advice}"
                raise CommandFailedError(msg)
            if isinstance(found, commands.Basic.Return):
                raise CommandFailedError("the queue to move to has gone")
            if isinstance(found, commands.Connection.Blocked | commands.Connection.Unblocked):
                continue
            raise CommandFailedError(f"the broker answers with {type(found).__name__}")

    async def _next(self) -> Any:
        """Return the next frame that is no heartbeat.

        Raises:
            CommandFailedError: There is none, or it is none.
        """
        while True:
            try:
                size, _, found = frame.unmarshal(bytes(self._received))
            except exceptions.UnmarshalingException:
                pass
            except (ValueError, KeyError) as exc:
                raise CommandFailedError(f"the broker does not speak AMQP 0-9-1; {_WHICH}") from exc
            else:
                if isinstance(found, ProtocolHeader):
                    raise CommandFailedError(f"the broker does not speak AMQP 0-9-1; {_WHICH}")
                del self._received[:size]
                if type(found).__name__ != "Heartbeat":
                    return found
                continue
            with trio.move_on_after(SECONDS) as waiting:
                data = await self._stream.receive_some(CHUNK)
                if not data:
                    raise CommandFailedError(f"the broker has closed the connection; {_WHICH}")
                self._received += data
            if waiting.cancelled_caught:
                raise CommandFailedError(f"the broker does not answer within {SECONDS:g} s")


@asynccontextmanager
async def open_client(place: Place, context: ssl.SSLContext | None) -> AsyncGenerator[Client]:
    """Be connected to a broker for the length of a block.

    Raises:
        CommandFailedError: There is none, or it refuses.
    """
    where = f"{place.host}:{place.port}"
    try:
        if place.is_secure:
            opened: trio.abc.Stream = await trio.open_ssl_over_tcp_stream(
                place.host, place.port, ssl_context=context
            )
        else:
            opened = await trio.open_tcp_stream(place.host, place.port)
    except UnicodeError as exc:
        raise CommandFailedError(f"{place.host} is no name of a host: check it") from exc
    except OSError as exc:
        raise CommandFailedError(f"cannot reach {where}: {trouble_with_connecting(exc)}") from exc
    async with opened as stream:
        client = Client(stream)
        try:
            await client.log_in(place)
            yield client
            await client.close()
        except trio.BrokenResourceError as exc:
            cause = exc.__cause__
            why = trouble(cause) if isinstance(cause, ssl.SSLError) else "it breaks off"
            raise CommandFailedError(f"{where}: {why}") from exc
