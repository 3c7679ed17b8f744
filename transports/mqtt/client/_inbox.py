"""The buffer of publications that a client has received and its user has not taken yet."""

import collections

import trio

from ..codec._packets import Publish


class Inbox:
    """A bounded buffer. The task that fills it keeps its limits: it stops reading while `full`.

    Attributes:
        max_messages: the number of messages at which it is full.
        max_bytes: the bytes of topics and payloads at which it is full.
        bytes_held: the bytes of topics and payloads in it.
        arrived: the tasks that wait for a message.
    """

    __slots__ = ("_drained", "_messages", "arrived", "bytes_held", "max_bytes", "max_messages")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        if max_messages < 1 or max_bytes < 1:
            raise ValueError(
                f"a client must buffer at least one message of one byte, not {max_messages} "
                f"messages of {max_bytes} bytes: it would never read its socket"
            )
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.bytes_held = 0
        self.arrived = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self._messages: collections.deque[Publish] = collections.deque()

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Publish:
        return self._messages[index]

    @property
    def full(self) -> bool:
        """Whether it has reached either limit."""
        return len(self._messages) >= self.max_messages or self.bytes_held >= self.max_bytes

    def put(self, message: Publish) -> None:
        """Add a message and wake one task that waits for it."""
        self._messages.append(message)
        self.bytes_held += len(message.topic) + len(message.payload)
        if self.arrived:
            self.arrived.unpark()

    def take(self) -> Publish:
        """Remove the oldest message."""
        message = self._messages.popleft()
        self.bytes_held -= len(message.topic) + len(message.payload)
        # Reading again only at half the limits makes one large read out of many small ones.
        if (
            self._drained
            and len(self._messages) * 2 <= self.max_messages
            and self.bytes_held * 2 <= self.max_bytes
        ):
            self._drained.unpark_all()
        return message

    def clear(self) -> None:
        """Drop all messages, and wake all waiting tasks."""
        self._messages.clear()
        self.bytes_held = 0
        self.arrived.unpark_all()
        self._drained.unpark_all()

    async def wait_drained(self) -> None:
        """Wait until half of it is free again, or it is cleared; the caller must check `full`."""
        await self._drained.park()
