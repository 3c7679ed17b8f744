"""One attempt at one partition of a batch: blocks of rows, complete or not."""

from __future__ import annotations

import json

from ...accounts import LoanedItem, Outcome
from ..wire import PartKey


class Block:
    """Rows of a part.

    Attributes:
        first: The place of its first row in the part.
        count: The number of rows.
        nbytes: Its size in bytes.
        number: Its number in the part, from 1 on.
        data: Its bytes; None if they are only on disk.
        loan: The writer's loan for it; None when it is at rest, or over.
        at_rest: Whether the account for rows at rest owes for it.
        since: The time since which it is owed for.
        ticket: The log's ticket for its write.
        pending: During publication: confirms that are not over, plus one for itself.
        over: Whether all rows have been taken.
        thrown_away: The outcome, if it was discarded while it is being written.
    """

    __slots__ = (
        "at_rest", "count", "data", "first", "loan", "nbytes", "number", "over", "pending",
        "since", "thrown_away", "ticket",
    )  # fmt: skip

    def __init__(
        self, first: int, count: int, nbytes: int, number: int, data: bytes | None
    ) -> None:
        self.first = first
        self.count = count
        self.nbytes = nbytes
        self.number = number
        self.data = data
        self.loan: LoanedItem[None] | None = None
        self.at_rest = False
        self.since = 0.0
        self.ticket: int | None = None
        self.pending = 0
        self.over = False
        self.thrown_away: Outcome | None = None

    def __repr__(self) -> str:
        where = "at rest" if self.at_rest else "over" if self.loan is None else "in RAM"
        return f"<Block of rows {self.first}..{self.first + self.count}: {where}>"


class Part:
    """One attempt at one partition of a batch.

    Attributes:
        key: Its identity.
        owner: The connection that stages it; others must not mix with it.
        place: Its place on the disk; None without one.
        blocks: Its blocks.
        rows: The number of rows.
        nbytes: Bytes of its blocks.
        cost: Bytes that they count for.
        crc: Checksum of its blocks, one after another.
        complete: Whether it is complete.
        noted: Whether the log has been told so.
        failed: Why it will never be complete; None if it may.
    """

    __slots__ = (
        "blocks", "complete", "cost", "crc", "failed", "key", "nbytes", "noted", "owner", "place",
        "rows",
    )  # fmt: skip

    def __init__(self, key: PartKey, owner: object, place: int | None) -> None:
        self.key = key
        self.owner = owner
        self.place = place
        self.blocks: list[Block] = []
        self.rows = 0
        self.nbytes = 0
        self.cost = 0
        self.crc = 0
        self.complete = False
        self.noted = False
        self.failed: str | None = None

    def __repr__(self) -> str:
        state = "failed" if self.failed else "whole" if self.complete else "not whole"
        return f"<Part {self.key}: {self.rows} rows, {state}>"

    def value(self) -> bytes:
        """Return the record that is kept of a complete part, beside its blocks."""
        sizes = [[block.count, block.nbytes] for block in self.blocks]
        return json.dumps([self.crc, sizes], separators=(",", ":")).encode()

    @classmethod
    def restored(cls, key: PartKey, place: int, value: bytes) -> Part:
        """Return the part of a record that `value` made.

        Raises:
            ValueError: It is no such record.
        """
        part = cls(key, None, place)
        try:
            part.crc, sizes = json.loads(value)
            for number, (count, nbytes) in enumerate(sizes, 1):
                part.blocks.append(Block(part.rows, int(count), int(nbytes), number, None))
                part.rows += int(count)
                part.nbytes += int(nbytes)
        except (TypeError, ValueError) as exc:
            raise ValueError(f"the record of {key} is none: {exc!r}") from exc
        part.complete = part.noted = True
        return part
