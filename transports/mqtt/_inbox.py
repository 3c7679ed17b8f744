"""The publications a client has received and nobody has taken yet."""

import collections

import trio

from ._packets import Publish


class Inbox:
    """A bounded buffer whose limits are kept by its filler: it stops reading while `full`.

    Attributes:
        max_messages: how many messages make it full.
        max_bytes: how many bytes of topics and payloads do.
        bytes_held: how many there are.
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
        """Whether either limit has been reached."""
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
        # Going on at half the limits makes one large read of what would be many small ones.
        if (
            self._drained
            and len(self._messages) * 2 <= self.max_messages
            and self.bytes_held * 2 <= self.max_bytes
        ):
            self._drained.unpark_all()
        return message

    def clear(self) -> None:
        """Drop all messages; wakes everybody."""
        self._messages.clear()
        self.bytes_held = 0
        self.arrived.unpark_all()
        self._drained.unpark_all()

    async def wait_drained(self) -> None:
        """Wait until half of it is free again. Whoever waits looks for himself whether it is."""
        await self._drained.park()
