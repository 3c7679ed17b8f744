"""Messages of a pull consumer, as many as there is room for [NATS ADR-13, ADR-37]."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import trio

from ....sockets import TransportError
from ..._errors import LocalProtocolError
from ..client._client import NO_RESPONDERS
from ..client._errors import ConnectionLostError, NoAnswerError, RefusedError
from ..codec._messages import Message
from ..codec._numbers import number
from ._config import NANOSECONDS
from ._errors import JetStreamError, NotFoundError
from ._jetstream import RETRY_PAUSE, JetStream, token
from ._message import Delivered, delivered

IDLE_HEARTBEAT: Final = 100
NO_MESSAGES: Final = 404
EXPIRED: Final = 408
CONFLICT: Final = 409
"""Statuses that end a request for messages, or tell that it stands."""
UNAVAILABLE: Final = 503
"""The code of an error that passes: nobody leads the stream just now, for example."""

PASSING: Final = (
    "leadership change",
    "server shutdown",
    "message size exceeds maxbytes",
    "batch completed",
)
"""Conflicts after which to ask again; the others are errors (nats-server `consumer.go`)."""


class Messages:
    """The messages of a consumer; use it in a `with` block, and iterate over it.

    It asks for as many as it may buffer, and for more when half of them are taken: so a program
    that takes no messages gets none, and the stream keeps them. It asks again when a request is
    lost: with a connection, a leader, or a server.

    Args:
        js: JetStream.
        stream, consumer: Their names; the consumer has to exist.
        most: Messages to buffer, and to ask for.
        expires: Seconds that a request stands.
        heartbeat: Seconds without a message after which the server says that a request stands;
            after twice as many, it is lost.
        gapless: Whether to raise `ConnectionLostError` where messages may be missing: for a
            consumer without acknowledgements, which sends none of them again.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        consumer: str,
        *,
        most: int = 500,
        expires: float = 30.0,
        heartbeat: float = 5.0,
        gapless: bool = False,
    ) -> None:
        if most < 1 or not 0 < 2 * heartbeat <= expires:
            raise ValueError(
                "ask for at least one message, and for a heartbeat within half of what a request "
                f"stands, not {most}, {heartbeat:g} s, {expires:g} s"
            )
        self._js = js
        self._stream = token(stream)
        self._consumer = token(consumer)
        self._subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = js.nats.new_inbox()
        self._most = most
        self._expires = expires
        self._heartbeat = heartbeat
        self._buffer: deque[Delivered] = deque()
        self._gapless = gapless
        # The consumer's sequence of the last message that has come.
        self._came = 0
        self._asked = 0
        self._last_asked = 0
        self._heard_at = 0.0
        self._lot = trio.lowlevel.ParkingLot()
        # Nobody has answered; and before the next request, a pause is due.
        self._is_deserted = False
        self._has_to_pause = False
        self._error: TransportError | None = None
        self._end: Callable[[], None] | None = None
        self._ended = False

    def __repr__(self) -> str:
        return f"<Messages of {self._consumer} of {self._stream}: {len(self._buffer)} buffered>"

    def __enter__(self) -> Self:
        if self._end is not None or self._ended:
            raise ValueError(f"{self!r} has been entered before")
        self._end = self._js.nats.subscribe_with(
            self._inbox, self._deliver, self._finish, resumed=self._resumed
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take no more; the consumer sends buffered ones again after its `ack_wait`. Idempotent."""
        if self._end is not None:
            self._end()
            self._end = None
        self._buffer.clear()
        self._finish(None)

    async def receive(self) -> Delivered:
        """Take the next message. It waits over the loss of a connection, too.

        Cancellation: no message is lost.

        Raises:
            trio.EndOfChannel: This has been closed, or the client left.
            NotFoundError: There is no such consumer any more.
            JetStreamError: The consumer refuses requests.
            TransportError: As `JetStream.call`, which looks whether the consumer is there.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if self._buffer:
                taken = self._buffer.popleft()
                self._ask()
                return taken
            if self._error is not None:
                raise self._error
            if self._ended or self._end is None:
                raise trio.EndOfChannel
            try:
                await self._wait_to_ask()
            except LocalProtocolError:
                if self._js.nats.has_been_left:
                    raise trio.EndOfChannel from None
                raise
            if self._buffer or self._error is not None or self._ended:
                continue
            self._ask()
            # Not since the last message: nobody may have looked for a while.
            self._heard_at = max(self._heard_at, trio.current_time() - self._heartbeat)
            with trio.move_on_at(self._heard_at + 2 * self._heartbeat) as scope:
                await self._lot.park()
            if scope.cancelled_caught and self._heard_at + 2 * self._heartbeat <= scope.deadline:
                self._asked = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivered:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    # --- inside -----------------------------------------------------------------------------------

    async def _wait_to_ask(self) -> None:
        if self._has_to_pause:
            self._has_to_pause = False
            await trio.sleep(RETRY_PAUSE)
        if self._is_deserted:
            self._is_deserted = False
            try:
                await self._js.consumer_info(self._stream, self._consumer)
            except (NoAnswerError, ConnectionLostError):
                self._is_deserted = True
            except JetStreamError as error:
                if error.code != UNAVAILABLE:
                    raise
                self._is_deserted = True
        await self._js.nats.wait_for_room()

    def _ask(self) -> None:
        room = self._most - len(self._buffer) - self._asked
        if 2 * room < self._most or self._ended:
            return
        try:
            self._js.nats.publish_nowait(
                self._subject, request_body(room, self._expires, self._heartbeat), reply=self._inbox
            )
        except trio.WouldBlock:
            return  # `receive` waits for room when all that is buffered is taken.
        self._asked += room
        self._last_asked = room
        self._heard_at = trio.current_time()

    def _deliver(self, message: Message) -> None:
        self._heard_at = trio.current_time()
        if not message.reply.startswith("$JS.ACK."):
            self._note_status(message)
            self._lot.unpark_all()
            return
        self._asked = max(0, self._asked - 1)
        # Requests may stand that were taken for lost. Beyond that, nobody has asked for it.
        if len(self._buffer) < 2 * self._most:
            found = delivered(message, self._js.nats.publish_nowait)
            self._came = found.consumer_sequence
            self._buffer.append(found)
            self._lot.unpark()

    def _note_status(self, message: Message) -> None:
        status = message.status
        if status == IDLE_HEARTBEAT:
            sent = message.headers.get("Nats-Last-Consumer")
            if self._gapless and sent is not None and number(sent) > self._came:
                self._error = ConnectionLostError("messages that were sent have not come")
            return
        if status == NO_RESPONDERS:
            self._asked = 0
            self._is_deserted = self._has_to_pause = True
            return
        if message.headers.description.lower().startswith("exceeded maxwaiting"):
            self._asked = max(0, self._asked - self._last_asked)
            self._has_to_pause = True
            return
        error = refusal_of(message)
        if error is not None:
            self._error = error
            return
        left = message.headers.get("Nats-Pending-Messages")
        came_to_an_end = self._asked if left is None else number(left)
        self._asked = max(0, self._asked - came_to_an_end)

    def _resumed(self) -> None:
        self._asked = 0
        if self._gapless:
            self._error = ConnectionLostError("what was sent to the last connection may be lost")
        self._lot.unpark_all()

    def _finish(self, refused: str | None) -> None:
        self._ended = True
        if refused is not None:
            self._error = RefusedError(refused)
        self._lot.unpark_all()


def request_body(most: int, expires: float | None, heartbeat: float | None = None) -> bytes:
    """Return the JSON of a request for messages; without `expires`: for those there are now."""
    body: dict[str, Any] = {"batch": most}
    if expires is None:
        body["no_wait"] = True
    else:
        body["expires"] = round(expires * NANOSECONDS)
    if heartbeat is not None:
        body["idle_heartbeat"] = round(heartbeat * NANOSECONDS)
    return json.dumps(body).encode()


def refusal_of(message: Message) -> JetStreamError | None:
    """Return the error that a status says, if it is more than the end of a request."""
    status, words = message.headers.status or 0, message.headers.description
    if status in (NO_MESSAGES, EXPIRED) or words.lower().startswith(PASSING):
        return None
    if "deleted" in words.lower():
        return NotFoundError(status, 0, words)
    return JetStreamError(status, 0, words)


async def fetch(
    js: JetStream, stream: str, consumer: str, most: int, *, wait: float | None = None
) -> list[Delivered]:
    """Return the next messages of a consumer, up to so many.

    Args:
        js: JetStream.
        stream, consumer: Their names.
        most: The most messages.
        wait: Seconds to wait until there are as many; None: return those that there are now.

    Cancellation: the consumer sends the messages again after its `ack_wait`.

    Raises:
        NotFoundError: There is no such consumer.
        JetStreamError: The consumer refuses the request.
        ConnectionLostError: The connection ended before any had come.
        NoAnswerError: There is no connection.
        TransportError: As `JetStream.call`.
    """
    nats = js.nats
    found: list[Delivered] = []
    over = trio.Event()
    deserted = False
    error: TransportError | None = None

    def deliver(message: Message) -> None:
        nonlocal deserted, error
        if message.reply.startswith("$JS.ACK."):
            found.append(delivered(message, nats.publish_nowait))
            if len(found) >= most:
                over.set()
        elif message.status == NO_RESPONDERS:
            deserted = True
            over.set()
        elif message.status != IDLE_HEARTBEAT:
            error = refusal_of(message)
            over.set()

    def end(why: str | None) -> None:
        nonlocal error
        error = RefusedError(why or "this NATS client has been left")
        over.set()

    def lost() -> None:
        nonlocal error
        error = ConnectionLostError("the connection ended while messages were fetched")
        over.set()

    subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{token(stream)}.{token(consumer)}"
    error = NoAnswerError(f"no messages of {consumer} could be fetched: there is no connection")
    # The server says when it is over, unless its answer is lost with its leader.
    with trio.move_on_after((wait or 0) + 5):
        await nats.wait_for_room()
        error = None
        inbox = nats.new_inbox()
        unsubscribe = nats.subscribe_with(inbox, deliver, end, resumed=lost)
        try:
            nats.publish_nowait(subject, request_body(most, wait), reply=inbox)
            await over.wait()
        finally:
            unsubscribe()
    if deserted:
        await js.consumer_info(stream, consumer)
    if error is not None and not found:
        raise error
    return found
