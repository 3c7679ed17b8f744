"""The blocks of one sink from staging until all rows are taken: who owes for each, and where it is.

With a log, a block waits for room at rest, is written, and is at rest when that is durable; until
then the writer's account owes for it. Without a log it is at rest at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from ...accounts import Account, Holder, LoanAtRest, LoanedItem, Outcome
from ._log import SinkLog
from ._part import Block, Part


class BlockBuffer:
    """The blocks of one sink, and the loans for them.

    Args:
        sink: Their holder.
        account: The writer's account: for blocks on their way to rest.
        rest: The sink's own account: for blocks at rest.
        log: Its place on the disk; None: everything is in RAM.
        cache_bytes: Bytes at rest on disk that stay in RAM, too.

    Attributes:
        rest: The loan for everything at rest.
    """

    __slots__ = (
        "_account", "_cache_bytes", "_cached_bytes", "_log", "_sink", "_unwritten", "_writing",
        "_writing_bytes", "_writing_items", "rest",
    )  # fmt: skip

    def __init__(
        self, sink: Holder, account: Account, rest: Account, log: SinkLog | None, cache_bytes: int
    ) -> None:
        self.rest = LoanAtRest(rest, sink)
        self._sink = sink
        self._account = account
        self._log = log
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        # Blocks without room at rest, with their parts; and those being written.
        self._unwritten: deque[tuple[Part, Block]] = deque()
        self._writing: deque[Block] = deque()
        self._writing_items = 0
        self._writing_bytes = 0

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield all loans here."""
        if self.rest.loan is not None:
            yield self.rest.loan
        for block in self._writing:
            if block.loan is not None:
                yield block.loan
        for _, block in self._unwritten:
            if block.loan is not None:
                yield block.loan

    @property
    def waits_for_room(self) -> bool:
        """Whether blocks wait for room at rest."""
        return any(block.loan is not None for _, block in self._unwritten)

    # -- to rest --------------------------------------------------------------------------------

    def add(self, part: Part, block: Block) -> None:
        """Take the next block of a part."""
        if self._log is None:
            self.lay_to_rest(block)
        else:
            block.loan = LoanedItem(self._account, None, block.count, block.nbytes, self._sink)
            self._unwritten.append((part, block))
            self.write()

    def write(self) -> None:
        """Hand unwritten blocks to the log, as far as there is room at rest."""
        log, unwritten = self._log, self._unwritten
        while unwritten:
            assert log is not None
            part, block = unwritten[0]
            if block.loan is not None:
                if not self._has_room(block):
                    return  # Until others make room, or the patience ends.
                assert part.place is not None
                assert block.data is not None
                block.ticket = log.put(part.place, block.number, block.first, block.data)
                self._writing.append(block)
                self._writing_items += block.count
                self._writing_bytes += block.nbytes
            unwritten.popleft()
            if part.complete and block is part.blocks[-1] and not part.failed:
                self.end_part(part)

    def _has_room(self, block: Block) -> bool:
        items, nbytes = self.rest.account.room()
        return (
            items - self._writing_items >= block.count
            and nbytes - self._writing_bytes >= block.nbytes
        )

    def end_part(self, part: Part) -> None:
        """Write that a part is complete, as soon as all its blocks are written."""
        log = self._log
        if log is not None and all(block.ticket is not None for block in part.blocks):
            log.end_part(part.key, part.value())
            part.noted = True

    def durable(self, ticket: int) -> None:
        """Everything up to this ticket of the log's is on disk: it is at rest from now on."""
        writing = self._writing
        while writing and (writing[0].ticket or 0) <= ticket:
            block = writing.popleft()
            self._writing_items -= block.count
            self._writing_bytes -= block.nbytes
            loan, block.loan = block.loan, None
            if loan is None:
                continue
            if block.thrown_away is not None:
                loan.settle(outcome=block.thrown_away)
                continue
            self.lay_to_rest(block)
            loan.settle(outcome=Outcome.STORED)
            if self._cached_bytes + block.nbytes > self._cache_bytes:
                block.data = None
            else:
                self._cached_bytes += block.nbytes

    def lay_to_rest(self, block: Block) -> None:
        """Charge the account for rows at rest, before the writer is repaid."""
        block.at_rest = True
        block.since = self._sink.ledger.clock()
        self.rest.add(block.count, block.nbytes, block.since)

    # -- the end of blocks ----------------------------------------------------------------------

    def taken(self, part: Part, block: Block) -> None:
        """Repay a block: all its rows have been taken."""
        if block.at_rest:
            self._leave_rest(block)
            self._settle_rest(block.count, block.nbytes, block.since, Outcome.DELIVERED)
        elif block.loan is not None:
            # Everybody had taken it before it was durable, though not before its decision was.
            loan, block.loan = block.loan, None
            loan.settle()
        if self._log is not None and part.place is not None:
            self._log.done(part.place, block.number)
            self.write()

    def discard(self, blocks: Iterable[Block], outcome: Outcome) -> None:
        """End the loans of blocks of one part; the caller frees its place in the log."""
        items = nbytes = 0
        since = 0.0
        for block in blocks:
            loan = block.loan
            if block.at_rest:
                since = since or block.since
                items += block.count
                nbytes += block.nbytes
                self._leave_rest(block)
            elif loan is not None:
                block.data = None
                if block.ticket is None:
                    block.loan = None
                    loan.settle(outcome=outcome)
                else:
                    # The log has it, in memory, until it is written: without this, a writer that
                    # stages and aborts faster than the disk would owe nothing for it.
                    block.thrown_away = outcome
        if items:
            # In one sum: there may be tens of thousands of blocks.
            self._settle_rest(items, nbytes, since, outcome)

    def _leave_rest(self, block: Block) -> None:
        block.at_rest = False
        if self._log is not None and block.data is not None:
            self._cached_bytes -= block.nbytes
        block.data = None

    def _settle_rest(self, items: int, nbytes: int, since: float, outcome: Outcome) -> None:
        loan = self.rest.loan
        assert loan is not None
        # Some of it may always be at rest, but not for as long as the loan exists.
        before, loan.opened = loan.opened, since
        self.rest.settle(items, nbytes, outcome)
        if outcome is not Outcome.DELIVERED:
            loan.opened = before  # Blocks end in order: the rest came no sooner.

    def close(self) -> None:
        """End all loans; data on disk stays."""
        at_rest = Outcome.CANCELLED if self._log is None else Outcome.STORED
        for loan in list(self.loans()):
            # On disk, no account of this process owes for it any more.
            loan.settle(outcome=at_rest if loan is self.rest.loan else Outcome.CANCELLED)
        self.rest.loan = None
        self._writing.clear()
        self._unwritten.clear()
