"""A batch that is decided, on its way into the dataspace.

Each row is one turn that the writer's account pays for, and its own `Confirm`: who takes what it
has on disk says so when it is there. A block is over when all its rows have been taken, and those
of the blocks before it; it is forgotten then, so after a crash only the last ones are published
again. Who has something of these already is passed over: together with what it writes, each place
on disk notes the row (`marks`), and one place is written to in the order of the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import attrs

from ...accounts import QuotaExceededError, Recipient, Turn
from .._dataspace import Dataspace
from .._events import Publication
from ._part import Block, Part

if TYPE_CHECKING:
    from ._rows import Rows
    from ._sink import Sink


class RowConfirm:
    """One row that has been published, until everybody has taken it (`Confirm`).

    Attributes:
        publishing: What it is of.
        row: Its place in the batch.
    """

    __slots__ = ("_block", "_expected", "publishing", "row")

    def __init__(self, publishing: Publishing, block: Block, row: int) -> None:
        self.publishing = publishing
        self.row = row
        self._block = block
        self._expected = 1  # its turn

    def expect(self) -> None:
        """See `Confirm.expect`."""
        self._expected += 1

    def taken(self) -> None:
        """See `Confirm.taken`; also that its turn is over."""
        self._expected -= 1
        if not self._expected:
            self.publishing.row_taken(self._block)

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`: who does so does without it; it is counted."""
        self.publishing.refused += 1
        self.publishing.why_refused = reason
        self.taken()


class _Fewer:
    """A turn that does not deliver to some; for `Dataspace.route`."""

    __slots__ = ("_turn", "_wanted", "account", "on_undo")

    def __init__(self, turn: Turn, wanted: Callable[[Recipient], bool]) -> None:
        self._turn = turn
        self._wanted = wanted
        self.account = turn.account
        self.on_undo = turn.on_undo

    def deliver(self, holder: Recipient, item: Any, items: int, nbytes: int) -> None:
        """See `Turn.deliver`."""
        if self._wanted(holder):
            self._turn.deliver(holder, item, items, nbytes)


class _Passing:
    """A dataspace, but for who has something already (`accounts.Router`)."""

    __slots__ = ("_dataspace", "_wanted")

    def __init__(self, dataspace: Dataspace, wanted: Callable[[Recipient], bool]) -> None:
        self._dataspace = dataspace
        self._wanted = wanted

    def route(self, turn: Turn, event: Any, nbytes: int | None) -> None:
        """See `Router.route`."""
        self._dataspace.route(cast("Turn", _Fewer(turn, self._wanted)), event, nbytes)


class Publishing:
    """A decided batch; made by its `Sink`.

    Args:
        sink: Whose.
        batch: Which.
        parts: What is to be published, in order.
        marks: Of places on disk, by name: up to before which row they have it all already.

    Attributes:
        batch: See above.
        parts: See above.
        marks: The places that have noted something.
        durable: Whether it may begin: the decision would survive a crash.
        refused: Rows that somebody would not take.
        not_retained: Rows that could not become their topic's value.
        lost: Rows that could not be read from the disk any more.
    """

    def __init__(
        self, sink: Sink, batch: int, parts: list[Part], marks: dict[str, int] | None = None
    ) -> None:
        self.sink = sink
        self.batch = batch
        self.parts = parts
        self.marks: set[str] = set()
        self.durable = False
        self.refused = 0
        self.why_refused = ""
        self.not_retained = 0
        self.lost = 0
        self._known = {} if marks is None else marks
        self.marks.update(self._known)
        # Blocks that were handed over, of which not everything has been taken.
        self._under_way: deque[tuple[Part, Block]] = deque()
        self._part = 0
        self._place = 0
        self._row = 0
        # Rows of the parts before the current one.
        self._before = 0

    def __repr__(self) -> str:
        return f"<Publishing batch {self.batch} of {self.sink.sink}>"

    # -- handing over ---------------------------------------------------------------------------

    @property
    def current(self) -> tuple[Part, Block] | None:
        """What is to be published next; None: it has all been handed over."""
        while self._part < len(self.parts):
            part = self.parts[self._part]
            blocks = part.blocks
            while self._place < len(blocks) and blocks[self._place].over:
                self._place += 1
            if self._place < len(blocks):
                return part, blocks[self._place]
            self._before += part.rows
            self._part += 1
            self._place = 0
        return None

    def lose(self) -> None:
        """Pass the current block over: it is not to be found any more."""
        found = self.current
        assert found is not None
        self.lost += found[1].count
        found[1].pending = 1
        self._under_way.append(found)
        self._end(found[1])

    def _end(self, block: Block) -> None:
        self._place += 1
        self._row = 0
        self.row_taken(block)

    def publish(self, dataspace: Dataspace, rows: Rows, seconds: float) -> bool:
        """Publish rows of the current block, as long as there are funds, and for so long.

        One in any case. Returns whether that was the last of it.
        """
        found = self.current
        assert found is not None
        block = found[1]
        sink = self.sink
        account = sink.account
        clock = sink.ledger.clock
        until = clock() + seconds
        if not self._row:
            block.pending = rows.count + 1
            self._under_way.append(found)
        base = self._before + block.first
        row = self._row
        while True:
            self._publish_row(dataspace, block, rows[row], base + row)
            row += 1
            if row == rows.count or not account.debt_is_clear() or clock() >= until:
                break
        self._row = row
        sink.settled()  # this is progress
        if row < rows.count:
            return False
        self._end(block)
        return True

    def _publish_row(
        self, dataspace: Dataspace, block: Block, publication: Publication, row: int
    ) -> None:
        sink = self.sink
        if sink.allows is not None and not sink.allows(publication.topic):
            self.refused += 1
            self.why_refused = f"it may not publish to {publication.topic!r}"
            self.row_taken(block)
            return
        router: Any = dataspace
        if self._known:
            router = _Passing(dataspace, lambda recipient: self._wants(recipient, row))
        confirm = sink.confirm_of(self, block, row)
        try:
            with sink.account.turn(publication, confirm=confirm) as turn:
                turn.publish(router, publication)
        except QuotaExceededError:
            # It was committed: who is there gets it, though it cannot be kept for who comes later.
            self.not_retained += 1
            publication = attrs.evolve(publication, retain=False)
            with sink.account.turn(publication, confirm=confirm) as turn:
                turn.publish(router, publication)
        confirm.taken()

    def _wants(self, recipient: Recipient, row: int) -> bool:
        place = self.sink.place_of(recipient)
        return place is None or row >= self._known.get(place, 0)

    # -- taken ----------------------------------------------------------------------------------

    def row_taken(self, block: Block) -> None:
        """Note that a row of a block has been taken by all, or that all have been handed over."""
        block.pending -= 1
        under_way = self._under_way
        while under_way and not under_way[0][1].pending:
            self.sink.block_over(*under_way.popleft())
        self.end_if_over()

    def end_if_over(self) -> None:
        """Say so if everybody has taken everything; also of a batch without rows."""
        if not self._under_way and self.current is None:
            self.sink.published(self)
