"""One attempt at one partition of a batch: blocks of rows, whole or not yet."""

from __future__ import annotations

import json
from typing import NamedTuple

from ...accounts import LoanedItem, Outcome


class PartKey(NamedTuple):
    """Which part."""

    batch: int
    partition: int
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt} at partition {self.partition} of batch {self.batch}"


class Block:
    """Some rows of a part.

    Attributes:
        first: The place of its first row in the part.
        count: How many rows.
        nbytes: How large it is.
        number: Which block of its part it is, from 1 on.
        data: It; None if it is only on disk.
        loan: What its writer owes for it; None when it is at rest, or over.
        at_rest: Whether it is owed for at rest.
        since: Since when.
        ticket: When it has been handed to the log: what that gave for it.
        pending: While it is published: rows that not everybody has taken, and itself.
        over: Whether all of them have been.
        thrown_away: Why it is of no use any more, while it is written all the same.
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
        key: Which.
        owner: Who stages it: a connection, which no other one may mix with.
        place: Its place on the disk; None without one.
        blocks: What is in it.
        rows: How many rows.
        nbytes: Bytes of its blocks.
        cost: What they count for.
        crc: Of its blocks, one after another.
        complete: Whether it is whole.
        noted: Whether that has been handed to the log.
        failed: Why it will never be; None if it may.
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
        """Return what is kept of it, beside its blocks, when it is whole."""
        sizes = [[block.count, block.nbytes] for block in self.blocks]
        return json.dumps([self.crc, sizes], separators=(",", ":")).encode()

    @classmethod
    def restored(cls, key: PartKey, place: int, value: bytes) -> Part:
        """Return the part that `value` was kept of.

        Raises:
            ValueError: If it is not that.
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
