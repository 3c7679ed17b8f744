"""Consecutive messages that are sealed, written and forgotten together."""

from __future__ import annotations

from array import array
from typing import Any

from ...accounts import Account, Confirm, LoanedItem
from ...dataspace._events import ColumnRun
from ._rows import Row

CHUNK_BYTES = 64 << 10
"""Size at which a chunk is sealed: that of one read of a connection, and large enough that the cost
of each block, 20 us, is little for each of its rows."""

ROW_BYTES = 20
"""Bytes of a row in the columns besides its key and its value."""


class Tail:
    """The growing chunk: columns, and a loan for each account in it."""

    __slots__ = (
        "code_of", "codes", "confirms", "first", "flags", "key_lengths", "keys", "loans", "names",
        "nbytes", "properties", "property_lengths", "times", "value_lengths", "values",
    )  # fmt: skip

    def __init__(self, first: int) -> None:
        self.first = first
        self.times: array[int] = array("q")
        self.codes: array[int] = array("I")
        self.key_lengths: array[int] = array("I")
        self.value_lengths: array[int] = array("I")
        self.keys = bytearray()
        self.values = bytearray()
        self.flags = bytearray()
        # Only up to the last message that has some.
        self.property_lengths: array[int] = array("I")
        self.properties = bytearray()
        self.names: list[bytes] = []
        self.code_of: dict[Account, int] = {}
        self.loans: list[LoanedItem[Any]] = []
        self.confirms: list[Confirm] = []
        self.nbytes = 0

    def __len__(self) -> int:
        """Return its number of messages."""
        return len(self.codes)

    def add_account(self, account: Account, loan: LoanedItem[Any]) -> int:
        """Add the first loan of an account in this chunk, or a traced one; return its code."""
        code = len(self.loans)
        if loan.trace is None:
            self.code_of[account] = code
        self.loans.append(loan)
        name = account.name.encode(errors="backslashreplace")
        self.names.append(name)
        self.nbytes += len(name)
        return code

    def add_run(self, columns: tuple[list[bytes], list[bytes]], code: int, time: int) -> None:
        """Add the columns of a run, all of the account with this code."""
        keys, values = columns
        lengths = [*map(len, keys)], [*map(len, values)]
        run = ColumnRun(*lengths, b"".join(keys), b"".join(values), bytes(len(keys)))
        self.add_columns(run, code, time)

    def add_columns(self, run: ColumnRun, code: int, time: int) -> None:
        """Add a run, all of the account with this code."""
        count = run.count
        self.times.extend(array("q", (time,)) * count)
        self.codes.extend(array("I", (code,)) * count)
        self.key_lengths.extend(run.key_lengths)
        self.value_lengths.extend(run.value_lengths)
        self.keys += run.keys
        self.values += run.values
        self.flags += run.qos
        self.nbytes += run.nbytes + count * ROW_BYTES

    def add_row(self, row: Row, code: int, time: int) -> None:
        """Add a message of the account with this code."""
        key, value, flags, properties = row
        self.times.append(time)
        self.codes.append(code)
        self.key_lengths.append(len(key))
        self.value_lengths.append(len(value))
        self.keys += key
        self.values += value
        self.flags.append(flags)
        self.nbytes += len(key) + len(value) + ROW_BYTES
        if properties:
            lengths = self.property_lengths
            lengths.frombytes(bytes(4 * (len(self.codes) - 1 - len(lengths))))
            lengths.append(len(properties))
            self.properties += properties
            self.nbytes += len(properties)


class Chunk:
    """A sealed chunk.

    Attributes:
        first: The number of its first message.
        end: The number after its last.
        before: Bytes of the blocks of all earlier chunks, ever.
        upto: The same with its own.
        block: Its messages; None if they are only on disk.
        loans: Its publishers' loans, by code; empty when it is at rest.
        confirms: Confirms to call when it is at rest, or dealt with.
        at_rest: Whether it is on disk, and the subscription's own account owes for it.
        rest_items: Its messages that are still owed for, while it is at rest.
        rest_bytes: Their bytes on disk.
        ticket: The log's ticket for its write.
    """

    __slots__ = (
        "at_rest", "before", "block", "confirms", "end", "first", "loans", "rest_bytes",
        "rest_items", "ticket", "upto",
    )  # fmt: skip

    def __init__(self, first: int, end: int, block: bytes | None, before: int, nbytes: int) -> None:
        self.first = first
        self.end = end
        self.before = before
        self.upto = before + nbytes
        self.block = block
        self.loans: list[LoanedItem[Any]] = []
        self.confirms: list[Confirm] = []
        self.at_rest = False
        self.rest_items = 0
        self.rest_bytes = 0
        self.ticket: int | None = None

    def __repr__(self) -> str:
        where = "at rest" if self.at_rest else "in RAM"
        return f"<Chunk {self.first}..{self.end}: {where}>"

    def confirm(self) -> None:
        """Call the confirms, once."""
        confirms, self.confirms = self.confirms, []
        for confirm in confirms:
            confirm.taken()
