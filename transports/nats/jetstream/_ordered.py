"""Messages of a stream in order, without gaps, for a reader that keeps its own place [NATS ADR-17].

Each reader has a consumer in memory, without acknowledgements. When that is lost, with its server
for example, or a message is missing, the next consumer begins after the last message.
"""

from __future__ import annotations

import logging
import math
from types import TracebackType
from typing import Final, Self

import attrs
import trio

from ....sockets import TransportError
from ..._errors import LocalProtocolError
from ..client._errors import ConnectionLostError, NoAnswerError
from ._config import ConsumerConfig
from ._consuming import Messages
from ._errors import JetStreamError, NotFoundError
from ._jetstream import RETRY_PAUSE, JetStream
from ._message import Delivered

logger = logging.getLogger("clearfunds.transports.nats")

INACTIVE: Final = 60.0
"""Seconds after which the server ends the consumer of a reader that is gone."""


class OrderedMessages:
    """The messages of a stream, in order; use it in an `async with` block, and iterate over it.

    Args:
        js: JetStream.
        stream: The stream's name.
        config: Where to begin, and which subjects; the rest is set here.
        most: Messages to buffer.
        heartbeat: As for `Messages`.

    Attributes:
        pending: Messages that the stream still had for this reader by its last word: when reading
            began, with each message, and after a silence.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        config: ConsumerConfig,
        *,
        most: int = 500,
        heartbeat: float = 1.0,
    ) -> None:
        self.pending = 0
        self._js = js
        self._stream = stream
        self._config = attrs.evolve(
            config,
            name=None,
            durable=None,
            ack="none",
            max_deliver=1,
            memory=True,
            replicas=1,
            inactive_threshold=INACTIVE,
        )
        self._most = most
        self._heartbeat = heartbeat
        self._messages: Messages | None = None
        self._last: int | None = None
        self._expected = 1
        self._name = ""

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._messages is not None:
            self._messages.close()
        # The server ends the consumer by itself; so it may be slow, and this may be cancelled.
        with trio.move_on_after(self._heartbeat):
            try:
                await self._js.delete_consumer(self._stream, self._name)
            except TransportError as error:
                logger.debug("consumer %s of %s is left: %s", self._name, self._stream, error)

    async def _begin(self) -> None:
        config = self._config
        if self._last is not None:
            config = attrs.evolve(
                config, deliver="by_start_sequence", start_sequence=self._last + 1, start_time=None
            )
        info = await self._js.create_consumer(self._stream, config)
        if self._last is None and config.deliver == "new":
            self._last = info.delivered  # The next consumer begins there, if nothing comes before.
        self.pending = info.pending
        self._name = info.name
        self._expected = 1
        self._messages = Messages(
            self._js,
            self._stream,
            info.name,
            most=self._most,
            heartbeat=self._heartbeat,
            gapless=True,
        )
        self._messages.__enter__()

    async def receive(self) -> Delivered:
        """Take the next message. It waits over the loss of connections and servers, too.

        Cancellation: no message is lost.

        Raises:
            trio.EndOfChannel: The client has been left.
            NotFoundError: There is no such stream any more.
        """
        while True:
            found = await self.next()
            if found is not None:
                return found

    async def next(self) -> Delivered | None:
        """Take the next message, as `receive`.

        None: reading has begun anew, or has to, or `pending` messages have been counted again.
        """
        messages = self._messages
        try:
            if messages is None:
                await self._begin()
                return None
            # What is deleted before it is sent never comes, and no message tells of it.
            with trio.move_on_after(self._heartbeat if self.pending else math.inf) as silence:
                found = await messages.receive()
            if silence.cancelled_caught:
                info = await self._js.consumer_info(self._stream, self._name)
                self.pending = info.pending + info.sent - (self._expected - 1)
                return None
        except (JetStreamError, NoAnswerError, ConnectionLostError) as error:
            if messages is None:
                await self._look_for_stream()
                await trio.sleep(RETRY_PAUSE)
            else:
                self._end(f"{error}")
            return None
        except LocalProtocolError:
            if self._js.nats.has_been_left:
                raise trio.EndOfChannel from None
            raise
        if found.consumer_sequence != self._expected:
            self._end("a message is missing")
            return None
        self._expected += 1
        self._last = found.sequence
        self.pending = found.pending
        return found

    def _end(self, why: str) -> None:
        logger.info("reading %s begins anew: %s", self._stream, why)
        if self._messages is not None:
            self._messages.close()
            self._messages = None

    async def _look_for_stream(self) -> None:
        try:
            await self._js.stream_info(self._stream)
        except NotFoundError:
            raise
        except TransportError as error:  # the stream may come back
            logger.debug("no word of stream %s: %s", self._stream, error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivered:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
