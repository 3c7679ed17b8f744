"""Publishing a decided batch to the dataspace.

Rows are published in runs (`_runs.py`), or one by one, as turns (transactions) that the writer's
account pays for, with a `Confirm`: a durable recipient confirms rows when they are on disk. A block
is over when all its rows, and those of the blocks before it, have been taken; then it is forgotten.
So after a crash only the last blocks are published again. Recipients that have rows of these
already are left out: each place on disk notes the row (`marks`) in the same write, and is written
to in the order of the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import attrs

from ...accounts import QuotaExceededError, Recipient, Turn
from ...dataspace._dataspace import Dataspace
from ...dataspace._events import Publication
from ._part import Block, Part
from ._runs import FrameRun, RunFinder, publish_run

if TYPE_CHECKING:
    from ..wire import Rows
    from ._sink import Sink


class RowConfirm:
    """One published row, or several, until everybody has taken them (`Confirm`).

    Attributes:
        publishing: Its batch.
        row: Its place in the batch; for several rows, that of the last.
        rows: The number of rows.
    """

    __slots__ = ("_block", "_expected", "publishing", "row", "rows")

    def __init__(self, publishing: Publishing, block: Block, row: int, rows: int = 1) -> None:
        self.publishing = publishing
        self.row = row
        self.rows = rows
        self._block = block
        self._expected = 1  # Its turn.
        block.pending += 1

    def expect(self) -> None:
        self._expected += 1

    def taken(self) -> None:
        """See `Confirm.taken`; also called when its turn is over."""
        self._expected -= 1
        if not self._expected:
            self.publishing.row_taken(self._block)

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`: that recipient does not get the row; the refusal is counted."""
        self.publishing.refused += self.rows
        self.publishing.why_refused = reason
        self.taken()


class _Fewer:
    """A turn that leaves out some recipients; for `Dataspace.route`."""

    __slots__ = ("_turn", "_wanted", "account", "on_undo")

    def __init__(self, turn: Turn, wanted: Callable[[Recipient], bool]) -> None:
        self._turn = turn
        self._wanted = wanted
        self.account = turn.account
        self.on_undo = turn.on_undo

    def deliver(self, holder: Recipient, item: Any, items: int, nbytes: int) -> None:
        if self._wanted(holder):
            self._turn.deliver(holder, item, items, nbytes)


class _Passing:
    """A dataspace that leaves out recipients that have the row already (`accounts.Router`)."""

    __slots__ = ("_dataspace", "_wanted")

    def __init__(self, dataspace: Dataspace, wanted: Callable[[Recipient], bool]) -> None:
        self._dataspace = dataspace
        self._wanted = wanted

    def route(self, turn: Turn, event: Any, nbytes: int | None) -> None:
        self._dataspace.route(cast("Turn", _Fewer(turn, self._wanted)), event, nbytes)


class Publishing:
    """A decided batch; made by its `Sink`.

    Args:
        sink: Its sink.
        batch: Its number.
        parts: Its parts, in order.
        marks: For places on disk, by name: the first row that each does not have.

    Attributes:
        batch: See above.
        parts: See above.
        marks: The places that have noted a row.
        durable: Whether it may begin: the decision would survive a crash.
        refused: Rows that a recipient refused.
        not_retained: Rows that could not become their topic's retained value.
        lost: Rows that could not be read from the disk.
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
        # Blocks that were published, but not taken by everybody.
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
        """The next block to be published; None: all have been published."""
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
        """Skip the current block: it cannot be read any more."""
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

    def publish(
        self, dataspace: Dataspace, rows: Rows, seconds: float, frame: FrameRun | None = None
    ) -> bool:
        """Publish rows of the current block for up to `seconds`, as long as there are funds.

        At least one. Returns whether that was the last of it.

        Args:
            dataspace: Where to.
            rows: The rows of the current block.
            seconds: See above.
            frame: Makes runs for recipients of QoS 0; None: these get one row after another.
        """
        found = self.current
        assert found is not None
        block = found[1]
        sink = self.sink
        account = sink.account
        clock = sink.ledger.clock
        until = clock() + seconds
        if not self._row:
            block.pending = 1
            self._under_way.append(found)
        base = self._before + block.first
        row = self._row
        # After a restart each recipient is asked whether it has the row already.
        finder = (
            None
            if self._known
            else RunFinder(dataspace, account, rows, sink.allows, frame is not None)
        )
        while True:
            run = None if finder is None else finder.find(row)
            if run is None:
                self._publish_row(dataspace, block, Publication(*rows[row]), base + row)
                row += 1
            else:
                sink.published_rows += run.end - row
                publish_run(
                    dataspace, account, rows, row, run, frame,
                    lambda last, count: sink.confirm_of(self, block, base + last, count),
                )  # fmt: skip
                row = run.end
            if row == rows.count or not account.debt_is_clear() or clock() >= until:
                break
        self._row = row
        sink.settled()  # This is progress.
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
            return
        router: Any = dataspace
        if self._known:
            router = _Passing(dataspace, lambda recipient: self._wants(recipient, row))
        sink.published_rows += 1
        confirm = sink.confirm_of(self, block, row)
        try:
            with sink.account.turn(publication, confirm=confirm) as turn:
                turn.publish(router, publication)
        except QuotaExceededError:
            # It was committed: present subscribers get it, though later ones will not.
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
        """Note that everybody has taken rows of a block, or that all of its rows are published."""
        block.pending -= 1
        under_way = self._under_way
        while under_way and not under_way[0][1].pending:
            self.sink.block_over(*under_way.popleft())
        self.end_if_over()

    def end_if_over(self) -> None:
        """Tell the sink if everybody has taken everything; also for a batch without rows."""
        if not self._under_way and self.current is None:
            self.sink.published(self)
