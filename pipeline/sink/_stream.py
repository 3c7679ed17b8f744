"""Streaming writes: `df.writeStream.format("clearfunds")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from .._errors import PipelineError, plainly
from ._options import WriteOptions
from ._rows import Columns
from ._staging import abort, commit, stage

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
"""Local properties that Spark's `StreamExecution` and `MicroBatchExecution` set for tasks, since
Spark 2.0. The checkpoint keeps a query's id and the numbers of its batches, so they are the same
when the query starts again from it."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query exactly once.

    Args:
        options: The options of the writer.
        columns: The columns of a message.
    """

    def __init__(self, options: WriteOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows; in a worker."""
        name = _property(QUERY, "the query's id")
        if self._options.writer is not None:
            name = f"{self._options.writer}/{name}"
        number = _property(BATCH, "the batch's number")
        return stage(self._options, self._columns, name, int(number), iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the rows that the tasks have staged; in a process of the driver."""
        commit(self._options, batchId, messages)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard the rows that the tasks have staged, unless they were published."""
        abort(self._options, messages)


def _property(name: str, what: str) -> str:
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    if not found:
        raise PipelineError(
            f"Spark does not tell its tasks {what} (the local property {name}), without which a "
            "batch cannot be told from one that was written before; write with foreachBatch, and "
            "in it with df.write and the options 'writer' and 'batch'"
        )
    return found
