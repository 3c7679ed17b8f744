"""A disk of a test's own: steps in order, of which a crash leaves those that were durable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from clearfunds.accounts import Account, Confirm, Ledger, LoanedItem, LoanQueue, Outcome, lent
from clearfunds.ranges.sink import Part, RowConfirm, Sink, SinkLog
from clearfunds.ranges.wire import PartKey


class Contents:
    """What is on it."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        # Of each place: which part it is, and its blocks.
        self.places: dict[int, tuple[PartKey, dict[int, bytes]]] = {}
        self.whole: dict[PartKey, bytes] = {}
        self.marks: dict[str, tuple[int, int]] = {}
        self.taken: dict[str, list[bytes]] = {}


class MemoryDisk:
    """What one process after another writes to: one sink, and places that take its rows."""

    def __init__(self) -> None:
        self.ticket = self.durable = 0
        self.steps: list[tuple[int, Callable[[Contents], None]]] = []
        self.now = Contents()
        self.safe = Contents()
        self.next_place = 1

    def step(self, *changes: Callable[[Contents], None]) -> int:
        """Do something, all or nothing; return its ticket."""
        self.ticket += 1
        for change in changes:
            change(self.now)
            self.steps.append((self.ticket, change))
        return self.ticket

    def sync(self, count: int | None = None) -> int:
        """Make so many more tickets durable; return the last."""
        upto = self.ticket if count is None else min(self.ticket, self.durable + count)
        while self.steps and self.steps[0][0] <= upto:
            self.steps.pop(0)[1](self.safe)
        self.durable = upto
        return upto

    def crash(self) -> None:
        """Forget what was not durable."""
        self.steps.clear()
        now = self.now = Contents()
        safe = self.safe
        now.state, now.whole, now.marks = safe.state, dict(safe.whole), dict(safe.marks)
        now.places = {place: (key, dict(blocks)) for place, (key, blocks) in safe.places.items()}
        now.taken = {name: list(rows) for name, rows in safe.taken.items()}
        self.durable = self.ticket

    def parts(self) -> dict[PartKey, tuple[Part, int]]:
        """What `Sink.restore` wants; what never was whole is removed."""
        found: dict[PartKey, tuple[Part, int]] = {}
        for place, (key, blocks) in list(self.now.places.items()):
            value = self.now.whole.get(key)
            if value is None:
                self.step(lambda c, place=place: c.places.pop(place))  # type: ignore[misc]
                continue
            part = Part.restored(key, place, value)
            found[key] = part, min(blocks, default=len(part.blocks) + 1)
        return found


class Log(SinkLog):
    """The sink's place on it."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk

    def open_part(self, key: PartKey) -> int:
        old = [place for place, (known, _) in self.disk.now.places.items() if known == key]
        self._forget([(key, place) for place in old])
        place = self.disk.next_place
        self.disk.next_place += 1

        def change(contents: Contents) -> None:
            contents.places[place] = key, {}

        self.disk.step(change)
        return place

    def put(self, place: int, number: int, first: int, block: bytes) -> int:
        def change(contents: Contents) -> None:
            contents.places[place][1][number] = block

        return self.disk.step(change)

    def end_part(self, key: PartKey, value: bytes) -> int:
        def change(contents: Contents) -> None:
            contents.whole[key] = value

        return self.disk.step(change)

    def done(self, place: int, number: int) -> None:
        def change(contents: Contents) -> None:
            del contents.places[place][1][number]

        self.disk.step(change)

    def _forget(self, drop: Iterable[tuple[PartKey, int]]) -> None:
        self.disk.step(_without(drop))

    def settle(
        self,
        state: bytes,
        drop: Iterable[tuple[PartKey, int]] = (),
        marks: Iterable[str] = (),
    ) -> int:
        gone = set(marks)

        def change(contents: Contents) -> None:
            contents.state = state
            contents.marks = {n: mark for n, mark in contents.marks.items() if n not in gone}

        return self.disk.step(change, _without(drop))

    def forget(self, drop: Iterable[tuple[PartKey, int]] = ()) -> None:
        def change(contents: Contents) -> None:
            contents.state = None

        self.disk.step(change, _without(drop))


def _without(drop: Iterable[tuple[PartKey, int]]) -> Callable[[Contents], None]:
    gone = list(drop)

    def change(contents: Contents) -> None:
        for key, place in gone:
            del contents.places[place]
            contents.whole.pop(key, None)

    return change


class Row(RowConfirm):
    """A row whose places note that they have it; as the store's do."""

    def written(self, place: str) -> Callable[[Contents], None]:
        publishing, upto = self.publishing, self.row + 1
        publishing.marks.add(place)
        batch = publishing.batch

        def change(contents: Contents) -> None:
            contents.marks[place] = batch, upto

        return change


class Place(LoanQueue):
    """Who takes rows once they are on the disk; it writes them when it is told to.

    What it has is `MemoryDisk.now.taken`.
    """

    kind = "place"

    def __init__(self, ledger: Ledger, name: str, disk: MemoryDisk) -> None:
        super().__init__(ledger, name)
        self.disk = disk
        self.waiting: list[tuple[LoanedItem[Any], Confirm]] = []
        self.written: list[tuple[int, LoanedItem[Any], Confirm]] = []

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        confirm = self.ledger.confirming
        assert confirm is not None
        confirm.expect()
        loan = lent(account, item, items, nbytes, self, now)
        self.waiting.append((loan, confirm))

    def ready(self) -> None:
        pass

    def loans(self) -> Any:
        yield from (loan for loan, _ in self.waiting)
        yield from (loan for _, loan, _ in self.written)

    def give_up(self, why: str) -> None:
        raise AssertionError(why)

    def write(self, count: int) -> None:
        """Write some rows, each with its mark."""
        for loan, confirm in self.waiting[:count]:
            payload = loan.item.payload
            assert isinstance(confirm, Row)

            def change(contents: Contents, payload: bytes = payload) -> None:
                contents.taken.setdefault(self.name, []).append(payload)

            ticket = self.disk.step(change, confirm.written(self.name))
            self.written.append((ticket, loan, confirm))
        del self.waiting[:count]

    def durable(self, ticket: int) -> None:
        while self.written and self.written[0][0] <= ticket:
            _, loan, confirm = self.written.pop(0)
            loan.settle(outcome=Outcome.STORED)
            confirm.taken()

    def die(self) -> None:
        """End with the process."""
        for loan in list(self.loans()):
            loan.settle(outcome=Outcome.CANCELLED)
        self.waiting.clear()
        self.written.clear()
        self.ledger.unregister(self)


def block_of(disk: MemoryDisk, sink: Sink) -> bytes:
    """The block that is to be published next, from RAM or from the disk."""
    publishing = sink.publishing
    assert publishing is not None
    found = publishing.current
    assert found is not None
    part, block = found
    if block.data is not None:
        return block.data
    assert part.place is not None
    return disk.now.places[part.place][1][block.number]
