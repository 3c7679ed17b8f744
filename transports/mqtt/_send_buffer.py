"""What a client has said and its stream has not taken yet."""

import trio

#: How much may wait before those who publish wait; also about what one write takes: as the
#: high-water mark of a stream in asyncio, 64 KiB.
ROOM = 1 << 16
#: How much may wait before even answers (PUBACK, PUBREL, ...) wait, and with them the reading. Far
#: above `ROOM`, so that a slow write alone does not keep acknowledgements from being read; there at
#: all because a server that talks and never listens could fill the buffer.
ROOM_FOR_ANSWERS = 1 << 20


class SendBuffer:
    """Collects what is put into it during one pass of the scheduler into one write.

    `put` takes whatever it is given; whoever puts looks for room first.

    Attributes:
        unsent: bytes that no write has taken up.
        writing: whether the stream has been given a write that it has not finished.
        last_written: when it last finished one, on Trio's clock.
        room: the tasks that wait for room; woken when a write takes up what there is.
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
        # These two count for ever, so that one can tell when what was put by now has left.
        self._put = 0
        self._written = 0
        self._something = trio.lowlevel.ParkingLot()
        self._flushed = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def unwritten(self) -> int:
        """Bytes that the stream has not taken, those of a write that is going on included."""
        return self._put - self._written

    @property
    def has_room(self) -> bool:
        """Whether those who publish may put something."""
        return self.unsent < ROOM

    @property
    def has_room_for_answers(self) -> bool:
        """Whether something may be put that the protocol demands."""
        return self.unsent < ROOM_FOR_ANSWERS

    def put(self, data: bytes) -> None:
        """Say `data` with the next write; after `close`, never."""
        if self._closed:
            return
        if not self._chunks:
            self._something.unpark()
        self._chunks.append(data)
        length = len(data)
        self.unsent += length
        self._put += length

    def close(self) -> None:
        """Drop what is unsent, wake all who wait and let `run` end."""
        self._closed = True
        self._chunks.clear()
        self.unsent = 0
        for lot in (self._something, self.room, self._flushed):
            lot.unpark_all()

    async def wait_written(self) -> bool:
        """Wait until the stream has taken all that was put so far; False if it never will."""
        await trio.lowlevel.checkpoint()
        mark = self._put
        while self._written < mark:
            if self._closed:
                return False
            await self._flushed.park()
        return True

    async def run(self, stream: trio.abc.SendStream) -> None:
        """Write what is put, until closed. What the stream raises is passed on."""
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
