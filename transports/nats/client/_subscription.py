"""A subscription with a buffer, for the tasks of a program."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import trio

from ..codec._messages import Message
from ._errors import RefusedError

logger = logging.getLogger("clearfunds.transports.nats")

MAX_BUFFERED: Final = 512 << 10
MAX_BUFFERED_BYTES: Final = 64 << 20
"""As nats.go's `DefaultSubPendingMsgsLimit` and `DefaultSubPendingBytesLimit`."""


class Subscription:
    """The messages of a subject; `NatsClient.subscribe` makes one. Use it in a `with` block.

    Iterating yields messages; several tasks may do so, and each message goes to one of them.

    A server of NATS sends to all subscribers at once, and disconnects a client that does not read.
    So a full buffer drops new messages, as in the other clients. Where nothing may be lost, read
    from a stream: a consumer of JetStream sends what it was asked for.

    Attributes:
        subject: The subject, which may have wildcards.
        missed: Messages dropped because the buffer was full.
    """

    def __init__(
        self,
        subject: str,
        subscribe: Callable[[Self], Callable[[], None]],
        max_buffered: int,
        max_buffered_bytes: int,
    ) -> None:
        if max_buffered < 1 or max_buffered_bytes < 1:
            raise ValueError("a subscription has to buffer at least one message of one byte")
        self.subject = subject
        self.missed = 0
        self._subscribe = subscribe
        self._unsubscribe: Callable[[], None] | None = None
        self._max = max_buffered
        self._max_bytes = max_buffered_bytes
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._lot = trio.lowlevel.ParkingLot()
        self._ended = False
        self._refused: str | None = None
        self._is_dropping = False

    def __repr__(self) -> str:
        return f"<Subscription to {self.subject}: {len(self)} buffered, {self.missed} missed>"

    def __len__(self) -> int:
        """Return the number of buffered messages."""
        return len(self._messages)

    def __enter__(self) -> Self:
        if self._unsubscribe is not None or self._ended:
            raise ValueError(f"{self!r} has been entered before")
        self._unsubscribe = self._subscribe(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription, and drop what it has buffered. Idempotent."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._messages.clear()
        self._bytes = 0
        self.end()

    def deliver(self, message: Message) -> None:
        """Take a message that the server sent; the client calls this."""
        size = message.size
        # A message larger than the limit fits into an empty buffer, or it would never come.
        if len(self._messages) >= self._max or (
            self._messages and self._bytes + size > self._max_bytes
        ):
            self.missed += 1
            if not self._is_dropping:
                self._is_dropping = True
                logger.warning(
                    "the buffer of a subscription to %s is full, with %d messages of %d bytes in "
                    "all: it drops those that come, until there is room",
                    self.subject, len(self._messages), self._bytes,
                )  # fmt: skip
            return
        self._is_dropping = False
        self._messages.append(message)
        self._bytes += size
        if self._lot:
            self._lot.unpark()

    def end(self, refused: str | None = None) -> None:
        """Note that nothing more comes; the client calls this."""
        self._ended = True
        self._refused = refused
        self._lot.unpark_all()

    def receive_nowait(self) -> Message:
        """Take the next message, without waiting.

        Raises:
            trio.WouldBlock: There is none yet.
            trio.EndOfChannel, RefusedError: As `receive`.
        """
        if self._messages:
            message = self._messages.popleft()
            self._bytes -= message.size
            return message
        if self._refused is not None:
            raise RefusedError(self._refused)
        if self._ended:
            raise trio.EndOfChannel
        if self._unsubscribe is None:
            raise ValueError("a subscription is used in its `with` block")
        raise trio.WouldBlock

    async def receive(self) -> Message:
        """Take the next message. It waits over the loss of a connection, too.

        Cancellation: no message is lost.

        Raises:
            trio.EndOfChannel: The subscription or its client has been left.
            RefusedError: The server does not allow this subscription.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self.receive_nowait()
            except trio.WouldBlock:
                await self._lot.park()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
