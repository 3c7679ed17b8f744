"""An iterator over deliveries: a queue's consumer for a task."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

from ...accounts._loop import Lot, checkpoint
from ._channel import Channel
from ._errors import QueueDeletedError
from ._prefetch import PrefetchWindow

if TYPE_CHECKING:
    from ._channel import Delivery
    from ._queue import Queue


class QueueStream:
    """A queue's consumer as an async iterator; made by `Queue.consumer`.

    Deliveries that nobody has received yet are outstanding, too: `prefetch` counts both. Closing it
    (or leaving its `with` block) puts everything outstanding on its channel back into the queue; on
    a channel that it was given, only deliveries that were not received.

    Attributes:
        channel: The channel of its acknowledgements.
    """

    def __init__(
        self,
        queue: Queue,
        window: PrefetchWindow,
        *,
        channel: Channel | None = None,
        exclusive: bool = False,
    ) -> None:
        self._lot = Lot()
        self._deliveries: deque[Delivery] = deque()
        self._ended: str | None = None
        self._own_channel = channel is None
        self.channel = Channel(f"of {queue.name}") if channel is None else channel
        self._consumer = queue.consume(
            self._put,
            window=window,
            channel=self.channel,
            exclusive=exclusive,
            on_cancelled=self._end,
        )
        self._consumer.on_channel_closed = self._end

    def __repr__(self) -> str:
        return f"<QueueStream of {self._consumer.queue.name}: {len(self._deliveries)} to receive>"

    def _put(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        if self._lot:
            self._lot.unpark()

    def _end(self, why: str) -> None:
        if self._ended is not None:
            return
        self._ended = why
        # All of it has gone back, or with the queue.
        self._deliveries.clear()
        self._lot.unpark_all()

    async def receive(self) -> Delivery:
        """Wait for the next delivery, and take it.

        Several tasks may receive from one stream; each delivery goes to one of them.

        Cancellation: always a checkpoint, before anything is taken, so no delivery is ever lost.

        Raises:
            QueueDeletedError: When the stream or its channel is closed, or the queue has ended it.
        """
        await checkpoint()
        while not self._deliveries:
            if self._ended is not None:
                raise QueueDeletedError(self._ended)
            await self._lot.park()
        delivery = self._deliveries.popleft()
        if self._deliveries and self._lot:
            # Another task may have been passed over while this one was being woken.
            self._lot.unpark()
        return delivery

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        try:
            return await self.receive()
        except QueueDeletedError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Consume no more; unfinished deliveries go back into the queue. Idempotent."""
        if self._ended is not None:
            return
        unread = list(self._deliveries)
        self._end(f"the stream of queue {self._consumer.queue.name} is closed")
        if self._own_channel:
            self.channel.close()
            return
        self._consumer.cancel()
        for delivery in unread:
            if delivery.tag in self.channel.unacked:
                delivery.nack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
