"""What tests of paging share: a keeper that does as it is told, around one backing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clearfunds.dataspace.queues import Backing, Marks, MemoryShelf, Message, Rates

WALL = 1.7e9


class Desk:
    """A queue without accounts, consumers or limits: only what a backing needs of it."""

    def __init__(
        self, factory: Callable[[Desk], Backing], shelf: MemoryShelf | None = None
    ) -> None:
        self._shelf = shelf
        self._rates = Rates(0.0)
        self.full = False
        self.lost_count = 0
        self.by_seq: dict[int, Message] = {}
        self.next_seq = 1
        self.pending: dict[int, Message] = {}
        self.backing = factory(self)
        if shelf is not None:
            shelf.recover(self)

    # -- a keeper -------------------------------------------------------------------------------

    @property
    def shelf(self) -> MemoryShelf | None:
        return self._shelf

    @property
    def rates(self) -> Rates:
        return self._rates

    def write(self, message: Message) -> bool:
        if message.ticket is not None:
            return True
        if self._shelf is None or self.full:
            return False
        message.ticket = self._shelf.put(message)
        self.by_seq[message.seq] = message
        return True

    def unsynced(self, seq: int) -> Message | None:
        return self.by_seq.get(seq)

    def lost(self, count: int) -> None:
        self.lost_count += count

    # -- what a shelf tells ---------------------------------------------------------------------

    def durable(self, ticket: int) -> None:
        for message in list(self.by_seq.values()):
            assert message.ticket is not None
            if message.ticket <= ticket:
                del self.by_seq[message.seq]
                message.at_rest = True
        self.backing.durable(ticket)

    def paged_in(self, messages: Sequence[Message]) -> None:
        self.backing.paged_in(messages)

    def recovered(
        self, first_seq: int, next_seq: int, count: int, nbytes: int, marks: Marks
    ) -> None:
        self.next_seq = next_seq
        self.backing.recovered(first_seq, next_seq, count)

    # -- what happens to a queue ----------------------------------------------------------------

    def new(self, size: int = 5000, *, persistent: bool = False) -> Message:
        message = Message(
            seq=self.next_seq,
            event=f"event {self.next_seq}",
            size=size,
            persistent=persistent,
            enqueued=WALL,
        )
        self.next_seq += 1
        if persistent:
            self.write(message)
        return message

    def publish(self, n: int = 1, size: int = 5000, *, persistent: bool = False) -> None:
        for _ in range(n):
            self.backing.publish(self.new(size, persistent=persistent))

    def fetch_now(self) -> Message | None:
        """Take what is there without waiting."""
        message = self.backing.fetch()
        if message is not None:
            assert message.event == f"event {message.seq}"
        return message

    def fetch(self) -> Message | None:
        """Take the first message, however often the shelf has to be asked."""
        for _ in range(self.backing.ready + 100):
            message = self.fetch_now()
            if message is not None or not self.backing.waiting:
                return message
            assert self._shelf is not None
            assert self._shelf.answer()
        raise AssertionError("it reads and reads")

    def take(self, n: int = 1) -> list[int]:
        """Deliver some; they are to be acked."""
        taken: list[int] = []
        for _ in range(n):
            message = self.fetch()
            if message is None:
                break
            self.deliver(message)
            taken.append(message.seq)
        return taken

    def deliver(self, message: Message) -> None:
        message.deliveries += 1
        message.pending = True
        self.pending[message.seq] = message
        self.backing.pending(message)

    def ack(self, seqs: Sequence[int]) -> None:
        messages = [self.pending.pop(seq) for seq in seqs]
        self.backing.forget(messages)
        self.finish(messages)

    def finish(self, messages: Sequence[Message]) -> None:
        for message in messages:
            message.pending = False
            message.finished = True
        if self._shelf is not None:
            self._shelf.done([message.seq for message in messages if message.written])

    def requeue(self, seqs: Sequence[int]) -> None:
        messages = [self.pending.pop(seq) for seq in seqs]
        for message in messages:
            message.pending = False
            message.redelivered = True
        self.backing.requeue(messages)

    def purge(self) -> int:
        here, on_shelf = self.backing.purge()
        self.finish(here)
        if self._shelf is not None:
            self._shelf.done(on_shelf)
        return len(here)
