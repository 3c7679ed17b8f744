"""Prefetch: the consumer's own limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._consumer import Consumer


class PrefetchWindow:
    """Limit on unacknowledged deliveries of one consumer, or of several that share it.

    There is room as long as less than the limit is outstanding, in items and in bytes, so that the
    last message may overshoot the bytes, and one that is larger than the window is not stuck for
    ever. 0 is no limit, as in AMQP's basic.qos. Lowering it takes nothing back: it takes effect as
    acks arrive.

    Attributes:
        items: Messages that may be outstanding; 0: any number.
        nbytes: Bytes that may be; 0: any number.
        used_items: Messages that are outstanding.
        used_bytes: Their bytes.
        waiting: The consumers that wait for room here.
    """

    __slots__ = ("items", "nbytes", "used_bytes", "used_items", "waiting")

    def __init__(self, items: int = 0, nbytes: int = 0) -> None:
        self.used_items = self.used_bytes = 0
        self.waiting: dict[Consumer, None] = {}
        self.items = self.nbytes = 0
        self._set(items, nbytes)

    def __repr__(self) -> str:
        return (
            f"<PrefetchWindow: {self.used_items}/{self.items or 'any'} items, "
            f"{self.used_bytes}/{self.nbytes or 'any'} bytes, {len(self.waiting)} waiting>"
        )

    def _set(self, items: int, nbytes: int) -> None:
        if items < 0 or nbytes < 0:
            msg = f"a prefetch window has at least 0 items and bytes, not {items} and {nbytes}"
            raise ValueError(msg)
        self.items = items
        self.nbytes = nbytes

    @property
    def has_room(self) -> bool:
        """Whether one more message may be delivered."""
        return (not self.items or self.used_items < self.items) and (
            not self.nbytes or self.used_bytes < self.nbytes
        )

    def resize(self, items: int, nbytes: int = 0) -> None:
        """Change the limits; consumers that have room now go on at once.

        Raises:
            ValueError: If one is negative.
        """
        self._set(items, nbytes)
        for queue in {consumer.queue: None for consumer in self.let_on()}:
            queue.work()

    def take(self, nbytes: int) -> None:
        """Note one message more. For queues."""
        self.used_items += 1
        self.used_bytes += nbytes

    def release(self, nbytes: int, items: int = 1) -> None:
        """Note so many messages less. For queues, which then call `let_on`."""
        self.used_items -= items
        self.used_bytes -= nbytes

    def let_on(self) -> list[Consumer]:
        """Put waiting consumers back in line, if there is room. For queues.

        Returns:
            These consumers; their queues have work to do.
        """
        if not self.waiting or not self.has_room:
            return []
        resumed = list(self.waiting)
        self.waiting.clear()
        for consumer in resumed:
            consumer.queue.resume(consumer)
        return resumed
