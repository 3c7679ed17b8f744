"""Rows as columns: what is appended in the hot path is turned into Arrow in a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...accounts import Outcome
from ._tables import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._tables import Table

SECOND: Final = 1_000_000_000
"""In nanoseconds."""

HOUR: Final = 3600 * SECOND

_LABELS: Final = [outcome.label for outcome in Outcome]


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
        # The timestamp says the same as the last of the moments.
        self.moment = max(at for at, c in enumerate(self._given) if c.name in _MOMENTS)

    def hour_of(self, row: tuple[Any, ...]) -> int:
        """Return in which hour since 1970 a row belongs."""
        moment: float = row[self.moment]
        return (round(moment * SECOND) + self._offset_ns) // HOUR

    def batch(self, rows: Sequence[tuple[Any, ...]], weight: int) -> Any:
        """Return rows, of which there is at least one, as a `pyarrow.RecordBatch`."""
        pa, pc = self._pa, self._pc
        made: list[Any] = []
        moment: Any = None
        for at, values in enumerate(zip(*rows, strict=True)):
            column = self._given[at]
            if column.name.endswith("_ns"):
                seconds = pa.array(values, pa.float64())
                array = pc.cast(pc.round(pc.multiply(seconds, float(SECOND))), pa.int64())
                array = pc.add(array, self._offset_ns)
                if at == self.moment:
                    moment = array
            elif column.name == "outcome":
                array = pa.array([_LABELS[value] for value in values], pa.string())
            elif column.type == "string":
                array = self._strings(values)
            else:
                array = pa.array(values, pa.int64())
            made.append(array)
        made.insert(0, pc.cast(pc.divide(moment, 1_000), self.schema.field(0).type))
        if self._weighted:
            made.append(pa.repeat(pa.scalar(float(weight)), len(rows)))
        return pa.RecordBatch.from_arrays(made, schema=self.schema)

    def _strings(self, values: Sequence[str | None]) -> Any:
        pa = self._pa
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:  # half a surrogate pair: Arrow's strings are UTF-8
            whole = [v and v.encode(errors="replace").decode() for v in values]
            return pa.array(whole, pa.string())


_MOMENTS: Final = frozenset({"at_ns", "settled_ns", "ended_ns"})
