"""One batch of rows at a relay: tasks stage its parts, the driver publishes all of them, once.

Theory of operation. A task stages its partition as one part, under its own attempt number, and
returns that number; no subscriber sees its rows yet. The driver lists the parts of the batch, and
in that moment the relay commits these parts, in the order of the partitions. Parts of failed or
second attempts are not among them, and are discarded. The relay never takes the same batch of the
same writer again, so writing it again does nothing, for any caller: a task whose batch has been
taken stages nothing at all.

A task passes its result to the driver in its commit message: the driver's side is another process,
started for each batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from ...ranges.client import Staged
from .._errors import PipelineError
from ._options import WriteOptions
from ._relay_writer import writing
from ._rows import Columns, RecordBatch

ATTEMPT_BITS = 63
"""Attempt numbers are random: Spark's own count restarts with a driver, and the parts that an
earlier driver left behind under the same number must not be taken for this driver's."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of one task.

    Attributes:
        writer: The writer's name.
        batch: The batch.
        staged: The part; None: the relay has taken the batch already.
    """

    writer: str
    batch: int
    staged: Staged | None


def stage(
    options: WriteOptions,
    columns: Columns,
    writer: str,
    batch: int,
    rows: Iterator[RecordBatch],
) -> Written:
    """Stage one task's rows, in order; waits while the writer owes too much (backpressure).

    Raises:
        RowError: If a row cannot be sent.
        RelayError: If the relay refuses them, or is away.
    """
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    with writing(options, writer) as client:
        last = client.last_committed()
        if last is not None and batch <= last:
            return Written(writer, batch, None)
        attempt = secrets.randbits(ATTEMPT_BITS)
        with client.stager(batch, partition, attempt) as stager:
            taken = 0
            for each in rows:
                messages = columns.messages(each, taken)
                taken += len(messages.values)
                stager.write_columns(messages.topics, messages.values, messages.flags)
            return Written(writer, batch, stager.complete())


def commit(options: WriteOptions, batch: int | None, messages: Sequence[object]) -> str | None:
    """Let the relay publish the parts of these tasks; return the writer's name, or None.

    None: the batch has no partitions.

    Args:
        options: The relay's address.
        batch: The number that Spark gives the batch; None: it gives none.
        messages: The messages of all tasks.

    Raises:
        RelayError: If the relay refuses, or is away; in that case it may have published them.
        PipelineError: If the messages are not of one batch.
    """
    written = list(_written(messages))
    if len(written) < len(messages):
        raise PipelineError(
            f"{len(messages) - len(written)} of {len(messages)} tasks have not said what they have "
            "written; no row of the batch was published"
        )
    if not written:
        return None  # a batch without partitions
    first = written[0]
    if any(each.writer != first.writer or each.batch != first.batch for each in written) or (
        batch not in (None, first.batch)
    ):
        known = sorted({(each.writer, each.batch) for each in written})
        raise PipelineError(
            f"Spark's batch {batch} was written as {known} (writer, batch): Spark's tasks and its "
            "driver have different batch numbers; no row of it was published"
        )
    parts = [each.staged for each in written if each.staged is not None]
    if len(parts) == len(written):
        with writing(options, first.writer) as client:
            client.commit(first.batch, parts)
    # Else the batch was taken before; the relay has discarded parts staged since.
    return first.writer


def abort(options: WriteOptions, messages: Sequence[object]) -> None:
    """Discard the parts of these tasks; nothing happens if the relay has taken the batch.

    The relay itself discards the parts of tasks that returned no message: with the next batch that
    it takes from this writer, or some time later.

    Raises:
        RelayError: If the relay is away.
    """
    for writer, batch in sorted({(each.writer, each.batch) for each in _written(messages)}):
        with writing(options, writer) as client:
            client.abort(batch)


def _written(messages: Iterable[object]) -> Iterator[Written]:
    return (each for each in messages if isinstance(each, Written))
