"""The computed tables of a report, usually small enough for one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._arrow import arrow

Row = dict[str, Any]


class Book:
    """Tables by name, each a `pyarrow.Table`; one that is missing has no rows.

    pyarrow sorts and sums: a table may have a million rows, of which a page shows ten.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = tables

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return every table with its name."""
        return self._tables.items()

    def count(self, name: str) -> int:
        """Return the number of rows of a table."""
        table = self._tables.get(name)
        return 0 if table is None else int(table.num_rows)

    def rows(self, name: str) -> list[Row]:
        """Return all rows, in their order."""
        table = self._tables.get(name)
        return [] if table is None else list(table.to_pylist())

    def top(self, name: str, by: str, most: int) -> list[Row]:
        """Return the rows with the highest values of a column, the highest first."""
        table = self._tables.get(name)
        if table is None or not table.num_rows:
            return []
        # Sorted by all columns, so that two reports of the same figures are equal.
        order = [(by, "descending")]
        order += [(other, "ascending") for other in table.column_names if other != by]
        return list(table.sort_by(order).slice(0, most).to_pylist())

    def total(self, name: str, column: str) -> float:
        """Return the sum of a column."""
        table = self._tables.get(name)
        if table is None or not table.num_rows:
            return 0.0
        return float(arrow("pyarrow.compute").sum(table[column]).as_py() or 0)

    def sums(self, name: str, key: str, column: str) -> dict[str, float]:
        """Return the sums of a column, grouped by another; the highest first."""
        table = self._tables.get(name)
        if table is None or not table.num_rows:
            return {}
        added = table.group_by(key).aggregate([(column, "sum")])
        pairs = zip(added[key].to_pylist(), added[f"{column}_sum"].to_pylist(), strict=True)
        known = [(each, float(value or 0)) for each, value in pairs if each is not None]
        return dict(sorted(known, key=lambda pair: (-pair[1], pair[0])))

    def where(self, name: str, column: str, values: Iterable[str]) -> list[Row]:
        """Return the rows whose column has one of these values."""
        table = self._tables.get(name)
        if table is None or not table.num_rows:
            return []
        pa = arrow("pyarrow")
        wanted = pa.array(list(values), pa.string())
        mask = arrow("pyarrow.compute").is_in(table[column], value_set=wanted)
        return list(table.filter(mask).to_pylist())
