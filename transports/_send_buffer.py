"""The send buffer of a client: output that its stream has not taken yet."""

import trio

#: High-water mark for publications, in bytes; also the size of about one write. 64 KiB, as the
#: high-water mark of a stream in asyncio.
ROOM = 1 << 16
#: High-water mark for answers (PUBACK, PUBREL, ...); above it reading stops, too. It is far above
#: `ROOM`, so that a slow write alone does not stop the reading of acknowledgements. It exists
#: because a server that sends and never reads could fill the buffer.
ROOM_FOR_ACKS = 1 << 20


class SendBuffer:
    """Collects the data of one pass of the scheduler into one write.

    `put` does not check for room; the caller does that first.

    Attributes:
        unsent: bytes that are in no write yet.
        writing: whether a write is under way.
        last_written: the time of the last finished write, on Trio's clock.
        room: the tasks that wait for room; a new write wakes them.
    """

    __slots__ = (
        "_chunks",
        "_closed",
        "_flushed",
        "_put",
        "_something",
        "_written",
        "last_written",
        "room",
        "unsent",
        "writing",
    )

    def __init__(self) -> None:
        self.unsent = 0
        self.writing = False
        self.last_written = trio.current_time()
        self.room = trio.lowlevel.ParkingLot()
        self._chunks: list[bytes] = []
        # These two only grow, so that a task can tell when all data put so far has left.
        self._put = 0
        self._written = 0
        self._something = trio.lowlevel.ParkingLot()
        self._flushed = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def unwritten(self) -> int:
        """Bytes that the stream has not taken, including those of a write under way."""
        return self._put - self._written

    @property
    def has_room(self) -> bool:
        """Whether publications may be put."""
        return self.unsent < ROOM

    @property
    def has_room_for_acks(self) -> bool:
        """Whether answers that the protocol demands may be put."""
        return self.unsent < ROOM_FOR_ACKS

    def put(self, data: bytes) -> None:
        """Send `data` with the next write; after `close`, drop it."""
        if self._closed:
            return
        if not self._chunks:
            self._something.unpark()
        self._chunks.append(data)
        length = len(data)
        self.unsent += length
        self._put += length

    def close(self) -> None:
        """Drop unsent data, wake all waiting tasks and end `run`."""
        self._closed = True
        self._chunks.clear()
        self.unsent = 0
        for lot in (self._something, self.room, self._flushed):
            lot.unpark_all()

    async def wait_written(self) -> bool:
        """Wait until the stream has taken all data put so far; return False if it never will."""
        await trio.lowlevel.checkpoint()
        mark = self._put
        while self._written < mark:
            if self._closed:
                return False
            await self._flushed.park()
        return True

    async def run(self, stream: trio.abc.SendStream) -> None:
        """Write the data put, until closed. Exceptions of the stream pass through."""
        while not self._closed:
            if not self._chunks:
                await self._something.park()
                continue
            data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._chunks.clear()
            self.unsent = 0
            self.room.unpark_all()
            self.writing = True
            await stream.send_all(data)
            self.writing = False
            self._written += len(data)
            self.last_written = trio.current_time()
            self._flushed.unpark_all()
