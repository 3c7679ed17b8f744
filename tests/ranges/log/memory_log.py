"""A disk of a test's own: what is on it, when it is durable, and what is left after a crash."""

from __future__ import annotations

from collections.abc import Callable

from clearfunds.accounts import Confirm
from clearfunds.ranges.log import AtRest, SubscriptionLog, block_range, cut_block


class MemoryDisk:
    """What one process after another writes to; `crash` forgets what was not made durable."""

    def __init__(self) -> None:
        self.tickets = 0
        self.logs: dict[str, MemoryLog] = {}

    def open(self, name: str) -> SubscriptionLog:
        """The log of one name; what it had is still there."""
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = MemoryLog(self, name)
        return log

    def crash(self) -> None:
        """Lose what was not durable."""
        for log in list(self.logs.values()):
            log.restart()


class MemoryLog:
    """One subscription's place on it."""

    def __init__(self, disk: MemoryDisk, name: str) -> None:
        self.disk = disk
        self.name = name
        self.records: dict[int, bytes] = {}
        self.low = 1
        self.following = 1
        self.state = b""
        self.called_dirty = 0
        self.pending: list[tuple[int, Callable[[], None]]] = []

    def _later(self, change: Callable[[], None]) -> int:
        self.disk.tickets += 1
        self.pending.append((self.disk.tickets, change))
        return self.disk.tickets

    def dirty(self) -> None:
        self.called_dirty += 1

    def put(self, last: int, block: bytes, confirms: list[Confirm]) -> int:
        assert last >= self.following
        assert block_range(block)[1] == last + 1

        def change() -> None:
            self.records[last] = block
            self.following = last + 1

        return self._later(change)

    def done(self, first: int, last: int, low: int) -> None:
        def change() -> None:
            for number in [n for n in self.records if first <= n <= last]:
                del self.records[number]
            self.low = low

        self._later(change)

    def persist(self, state: bytes) -> None:
        self._later(lambda: setattr(self, "state", state))

    def drop(self) -> None:
        def change() -> None:
            self.records.clear()
            self.disk.logs.pop(self.name, None)

        self._later(change)

    # -- for tests ------------------------------------------------------------------------------

    def sync(self, count: int | None = None) -> int:
        """Make the first `count` changes durable (None: all); return the last one's ticket."""
        done, self.pending = (
            (self.pending, []) if count is None else (self.pending[:count], self.pending[count:])
        )
        for _, change in done:
            change()
        return done[-1][0] if done else 0

    def restart(self) -> None:
        self.pending.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of its records."""
        return sum(map(len, self.records.values()))

    def read(self, wanted: AtRest) -> list[bytes]:
        """What is on disk of a range, as blocks."""
        return [
            cut_block(self.records[last], wanted.start, wanted.end)
            for last in sorted(self.records)
            if last >= wanted.start and block_range(self.records[last])[0] < wanted.end
        ]
