"""Rows as columns: what is appended in the hot path, turned into Arrow."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from ...accounts import Outcome
from ._tables import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._sample import Rows
    from ._tables import Column, Table

SECOND: Final = 1_000_000_000
"""In nanoseconds."""

HOUR: Final = 3600 * SECOND

_LABELS: Final[list[str]] = [outcome.label for outcome in Outcome]


class Columns:
    """Makes record batches of a table's rows.

    A row is a tuple with all of its columns in their order but for the timestamp and the weight,
    which are made here: moments are in seconds on the ledger's clock, an outcome is an `Outcome`.

    Args:
        table: Which table.
        offset_ns: What stands between the ledger's clock and the wall's.

    Attributes:
        moment: Which column of a row says when it was.
    """

    def __init__(self, table: Table, offset_ns: int) -> None:
        self._pa = arrow("pyarrow")
        self._pc = arrow("pyarrow.compute")
        self.schema = table.schema
        self._offset_ns = offset_ns
        self._given = [c for c in table.columns if c.type != "timestamp" and c.name != "weight"]
        self._weighted = table.columns[-1].name == "weight"
        self._unweighed = (
            self.schema.remove(len(self.schema) - 1) if self._weighted else self.schema
        )
        # The timestamp says the same as the last of the moments.
        self.moment = max(at for at, c in enumerate(self._given) if c.name in _MOMENTS)

    def hour_of(self, row: tuple[Any, ...]) -> int:
        """Return in which hour since 1970 a row belongs."""
        moment: float = row[self.moment]
        return (round(moment * SECOND) + self._offset_ns) // HOUR

    def pack(self, rows: Rows) -> None:
        """Make columns of what are tuples yet.

        Raises:
            Exception: Something is in there that Arrow has no room for; it is left out then.
        """
        some, rows.rows = rows.rows, []
        if not some:
            return
        hour_of = self.hour_of
        if hour_of(some[0]) == hour_of(some[-1]):
            rows.batches.append((hour_of(some[0]), self._batch(some)))
        else:
            parts = [(hour, list(part)) for hour, part in groupby(some, hour_of)]
            rows.batches += [(hour, self._batch(part)) for hour, part in parts]

    def weighed(self, batch: Any, weight: int) -> Any:
        """Return a batch as it is written: with the weight, if the table has one."""
        if not self._weighted:
            return batch
        pa = self._pa
        weights = pa.repeat(pa.scalar(float(weight)), batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, weights], schema=self.schema)

    def _batch(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        pa, pc = self._pa, self._pc
        made: list[Any] = []
        moment: Any = None
        values: tuple[Any, ...]
        for at, values in enumerate(zip(*rows, strict=True)):
            column = self._given[at]
            if column.name.endswith("_ns"):
                seconds = pa.array(values, pa.float64())
                array = pc.cast(pc.round(pc.multiply(seconds, float(SECOND))), pa.int64())
                array = pc.add(array, self._offset_ns)
                if at == self.moment:
                    moment = array
            elif values[0] == values[-1] and values.count(values[0]) == len(values):
                # Most columns say the same for a while: a third of the time.
                array = pa.repeat(self._scalar(values[0], column), len(values))
            elif column.name == "outcome":
                array = pa.array([_LABELS[value] for value in values], pa.string())
            elif column.type == "string":
                array = self._strings(values)
            else:
                array = pa.array(values, pa.int64())
            made.append(array)
        made.insert(0, pc.cast(pc.divide(moment, 1_000), self.schema.field(0).type))
        return pa.RecordBatch.from_arrays(made, schema=self._unweighed)

    def _scalar(self, value: Any, column: Column) -> Any:
        if column.name == "outcome":
            return self._pa.scalar(_LABELS[value], self._pa.string())
        if column.type == "string":
            return self._strings([value])[0]
        return self._pa.scalar(value, self._pa.int64())

    def _strings(self, values: Sequence[str | None]) -> Any:
        pa = self._pa
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:  # half a surrogate pair: Arrow's strings are UTF-8
            whole = [v and v.encode(errors="replace").decode() for v in values]
            return pa.array(whole, pa.string())


_MOMENTS: Final = frozenset({"at_ns", "settled_ns", "ended_ns"})
