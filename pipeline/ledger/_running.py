"""Debt over time, and its peaks, over a stream: the state to keep, and for how long.

The journal writes a loan when it ends, so an account's debt at some moment is known only when all
loans of that moment have ended. Two things follow.

An interval is reported once, `horizon` after its end: few loans that were open in it end later.
Until then its changes are kept, each with its moment, since sums do not give the peak. After that
only one number is kept, the debt at the interval's end.

A loan that was open for longer than `horizon` cannot change the intervals reported. It counts from
the end of the last of them, and is in `late_items` of the next. Only the earlier rows were too low;
once the loan has ended all is right again, because it was both added and subtracted.

Why state, and not an aggregate of changes by window: a change that came after its window had closed
would be dropped. That is half of a loan, and the debt would be wrong for ever. Why not a merge into
a table for each batch: it would have to be read back for the sums, and somebody would have to look
after it. Why `applyInPandasWithState` of Spark's two ways: an account's state is one value, read
and replaced as a whole. It needs only pandas and any state store, where `transformWithState` would
need RocksDB and protobuf.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .._errors import OptionError, PipelineError
from ._columns import interval_ns, weighted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

_RESULT: Final = StructType(
    [
        StructField("at", TimestampType(), False),
        StructField("account", StringType(), False),
        StructField("debt_items", LongType(), False),
        StructField("debt_bytes", LongType(), False),
        StructField("peak_items", LongType(), False),
        StructField("peak_items_at_ns", LongType(), False),
        StructField("peak_bytes", LongType(), False),
        StructField("peak_bytes_at_ns", LongType(), False),
        StructField("late_items", LongType(), False),
    ]
)

#: One change in an interval that is not reported yet. `order` is its moment in ns, doubled, plus 1
#: for a repayment: of one moment, loans are made before others end.
_CHANGE: Final = np.dtype([("order", "<i8"), ("items", "<f8"), ("bytes", "<f8"), ("late", "<f8")])


_STATE: Final = StructType(
    [
        # The first moment that is not reported yet, and the debt just before it.
        StructField("told_ns", LongType()),
        StructField("items", DoubleType()),
        StructField("bytes", DoubleType()),
        # An array of `_CHANGE`.
        StructField("changes", BinaryType()),
    ]
)


def running_debt(
    settlements: DataFrame, every: str = "1 second", horizon: str = "1 minute"
) -> DataFrame:
    """Return each account's debt at the end of each interval, and its peak, over a stream.

    For streams, in append mode, from a table with a watermark on `settled` (as from `read_stream`).
    For the present debt, see the snapshots of statements.

    A row comes when the watermark is `horizon` past the end of its interval. The journal writes a
    loan when it ends: one that is open for longer than `horizon` counts from the first interval not
    yet reported, and is among its `late_items`. While no loan ends, the watermark stands still, and
    the last intervals are not reported.

    State for each account: the debt at the end of the last interval reported, and the changes of
    the last `horizon`, of 32 bytes each.

    Args:
        settlements: Loans that ended.
        every: The length of an interval, as `1 second`; a whole number of milliseconds.
        horizon: How long to wait for the loans of an interval to end.

    Returns:
        at (the end of the interval), account, debt_items, debt_bytes, and of the interval
        peak_items, peak_items_at_ns, peak_bytes, peak_bytes_at_ns; late_items. A row for each
        interval in which a loan was made or ended; the overall peak is the greatest of them.

    Raises:
        OptionError: `every` or `horizon` is no such interval.
        PipelineError: The table is not a stream.
    """
    step, wait = interval_ns(every), interval_ns(horizon)
    if step % 10**6 or wait % 10**6:
        msg = f"every={every!r} and horizon={horizon!r} must be whole numbers of milliseconds"
        raise OptionError(msg)
    if not settlements.isStreaming:
        msg = "running_debt() is for streams; for a batch, use debt_over_time() and peak_debt()"
        raise PipelineError(msg)
    rows = settlements.select(
        "settled",
        "account",
        "opened_ns",
        "settled_ns",
        weighted("items").alias("items"),
        weighted("bytes").alias("bytes"),
    )

    def account(key: Any, frames: Iterable[Any], state: Any) -> Iterator[Any]:
        pandas: Any = import_module("pandas")  # without types
        debt = RunningDebt(step, wait, *(state.get if state.exists else ()))
        for frame in frames:
            debt.add(*(frame[name].to_numpy() for name in _COLUMNS))
        now = state.getCurrentWatermarkMs()
        told = [(at, *key, *row) for at, *row in debt.tell(now)]
        state.update(debt.kept())
        due = debt.due_ms()
        if due is not None:
            state.setTimeoutTimestamp(due)
        if told:
            frame = pandas.DataFrame(told, columns=_RESULT.names)
            frame["at"] = pandas.to_datetime(frame["at"], unit="ns", utc=True)
            yield frame

    return rows.groupBy("account").applyInPandasWithState(
        account, _RESULT, _STATE, "append", GroupStateTimeout.EventTimeTimeout
    )


_COLUMNS: Final = ("opened_ns", "settled_ns", "items", "bytes")


class RunningDebt:
    """The debt of one account: the last one reported, and the changes since.

    Args:
        step_ns: The length of an interval.
        horizon_ns: How long after its end an interval is reported.
        told_ns: The first moment that is not reported yet.
        items: The debt just before that.
        nbytes: The same in bytes.
        changes: The changes since then, as `kept` returned them.
    """

    def __init__(
        self,
        step_ns: int,
        horizon_ns: int,
        told_ns: int = 0,
        items: float = 0.0,
        nbytes: float = 0.0,
        changes: bytes = b"",
    ) -> None:
        self._step = step_ns
        self._horizon = horizon_ns
        self._told = told_ns
        self._items = items
        self._bytes = nbytes
        self._parts: list[NDArray[Any]] = [np.frombuffer(changes, _CHANGE)]

    def add(
        self,
        opened_ns: NDArray[np.int64],
        settled_ns: NDArray[np.int64],
        items: NDArray[np.float64],
        nbytes: NDArray[np.float64],
    ) -> None:
        """Add the changes of some loans."""
        n = len(opened_ns)
        changes = np.zeros(2 * n, _CHANGE)
        changes["late"][:n] = np.where(opened_ns < self._told, items, 0.0)
        changes["order"][:n] = np.maximum(opened_ns, self._told) * 2
        changes["order"][n:] = np.maximum(settled_ns, self._told) * 2 + 1
        changes["items"] = np.concatenate([items, -items])
        changes["bytes"] = np.concatenate([nbytes, -nbytes])
        self._parts.append(changes)

    def tell(self, watermark_ms: int) -> list[tuple[int, int, int, int, int, int, int, int]]:
        """Return the rows of intervals that are due and had changes; forget these changes.

        A row is as in `running_debt`, without the account; `at` is in ns.
        """
        changes = np.sort(np.concatenate(self._parts), order="order", kind="stable")
        # The first moment of the interval that is not due.
        until = (watermark_ms * 10**6 - self._horizon) // self._step * self._step
        due = int(np.searchsorted(changes["order"], until * 2))
        self._parts = [changes[due:]]
        if not due:
            return []
        changes = changes[:due]
        ns = changes["order"] // 2
        numbers, starts = np.unique(ns // self._step, return_index=True)
        begins = numbers * self._step
        items, *high_items = _highest(changes["items"], self._items, ns, starts, begins)
        nbytes, *high_bytes = _highest(changes["bytes"], self._bytes, ns, starts, begins)
        late = np.add.reduceat(changes["late"], starts)
        self._told = int(begins[-1]) + self._step
        self._items, self._bytes = float(items[-1]), float(nbytes[-1])
        return list(
            zip(
                (begins + self._step).tolist(),
                *(np.rint(debt).astype("int64").tolist() for debt in (items, nbytes)),
                *(column.tolist() for column in (*high_items, *high_bytes)),
                np.rint(late).astype("int64").tolist(),
                strict=True,
            )
        )

    def kept(self) -> tuple[int, float, float, bytes]:
        """Return the state: the last arguments of the constructor."""
        return self._told, self._items, self._bytes, np.concatenate(self._parts).tobytes()

    def due_ms(self) -> int | None:
        """Return the watermark at which the next interval is due, or None if no change is left."""
        orders = np.concatenate(self._parts)["order"]
        if not len(orders):
            return None
        end = (int(orders.min()) // 2 // self._step + 1) * self._step
        return (end + self._horizon) // 10**6


def _highest(
    changes: NDArray[np.float64],
    debt: float,
    ns: NDArray[np.int64],
    starts: NDArray[np.intp],
    begins: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each interval, the debt at its end, its peak, and when that was first reached.

    Args:
        changes: The changes of the debt, in order.
        debt: The debt before them.
        ns: The moments of the changes.
        starts: The index of the first change of each interval.
        begins: When the intervals begin.
    """
    running = debt + np.cumsum(changes)
    ends = running[np.append(starts[1:], len(running)) - 1]
    before = np.append(debt, ends[:-1])
    most = np.maximum.reduceat(running, starts)
    # The first moment in each interval at which the debt is highest.
    at_top = np.flatnonzero(running == np.repeat(most, np.diff(np.append(starts, len(running)))))
    top_ns = ns[at_top[np.searchsorted(at_top, starts)]]
    high = np.rint(np.maximum(most, before)).astype("int64")
    return ends, high, np.where(most > before, top_ns, begins)
