"""Pauses of publishers, in which the consumers of their queue have the relay's time.

A publisher brings as many messages in one read as are there; consumers have as few as their
prefetch at a time. With equal shares of the relay's time the publisher is ahead, and the queue
grows without need. Source: RabbitMQ's rabbit_amqqueue_process.erl, where acknowledgements come
before publications (`prioritise_cast`, `consumer_bias`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from ...dataspace.exchanges import HostQueue

LAG_SHARE: Final = 0.02
"""The share of its consumers' lag that a publisher pauses for after each step (2 ms)."""

MAX_PAUSE_SECONDS: Final = 0.005
"""At most so long: it may still publish 50,000 messages a second."""


@attrs.frozen(slots=True)
class Pause:
    """A wait of some milliseconds; a `Hold` of a session."""

    seconds: float

    async def wait(self) -> object:
        """Wait. Cancellation: at any time."""
        await trio.sleep(self.seconds)
        return None


class Pausing:
    """The pauses of one publisher.

    Attributes:
        queue: A queue that it has published to since the last pause.
    """

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: HostQueue | None = None

    def pause(self) -> Pause | None:
        """Return the pause that is due; None: it may go on."""
        queue, self.queue = self.queue, None
        lag = 0.0 if queue is None else queue.lag()
        return Pause(min(LAG_SHARE * lag, MAX_PAUSE_SECONDS)) if lag else None
