"""A consumer: a queue pushes messages to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._prefetch import PrefetchWindow

if TYPE_CHECKING:
    from ...accounts import Account
    from ._channel import Channel, Delivery
    from ._serving import ServingQueue


class Consumer:
    """A receiver of pushed messages, while its windows have room; made by `Queue.consume`.

    Attributes:
        queue: The queue that it consumes from.
        channel: The channel of its acknowledgements.
        window: Its own prefetch window, besides its channel's.
        callback: Called with each delivery.
        on_cancelled: Called with a sentence if the queue ends it: deleted, or given up.
        on_channel_closed: Called with a sentence when its channel is closed, for any reason, and it
            ends with it; None unless somebody sets it.
        take_run: Called in place of `callback` with a whole run: the account, the run, the tag of
            its first delivery. Only with `no_ack`; None, the initial value: there is none.
        no_ack: Whether deliveries are settled as soon as they are made.
        exclusive: Whether it is the only one.
        cancelled: Whether it gets nothing more.
        delivered: The number of messages that it got.
        progressed_at: The time when one of its deliveries was last settled, or when it had none
            before; on the ledger's clock.
        outstanding: The number of its unacknowledged deliveries.
    """

    __slots__ = (
        "__weakref__", "callback", "cancelled", "channel", "delivered", "exclusive", "no_ack",
        "on_cancelled", "on_channel_closed", "outstanding", "progressed_at", "queue", "take_run",
        "window",
    )  # fmt: skip

    def __init__(
        self,
        queue: ServingQueue,
        callback: Callable[[Delivery], object],
        channel: Channel,
        window: PrefetchWindow,
        *,
        no_ack: bool,
        exclusive: bool,
        on_cancelled: Callable[[str], object] | None,
    ) -> None:
        self.queue = queue
        self.callback = callback
        self.channel = channel
        self.window = window
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.on_cancelled = on_cancelled
        self.on_channel_closed: Callable[[str], object] | None = None
        self.take_run: Callable[[Account, Any, int], object] | None = None
        self.cancelled = False
        self.delivered = 0
        self.outstanding = 0
        self.progressed_at = queue.ledger.clock()

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled else f"{self.outstanding} unacked"
        return f"<Consumer of {self.queue.name}: {state}>"

    def full_window(self) -> PrefetchWindow | None:
        """Return one of its two windows that has no room; None if both have."""
        if not self.window.has_room:
            return self.window
        shared = self.channel.window
        return shared if shared is not None and not shared.has_room else None

    def cancel(self) -> None:
        """Stop deliveries. Those it has stay outstanding on its channel. Idempotent."""
        if not self.cancelled:
            self.queue.retire(self)
            self.queue.consumer_gone()
