"""One batch of rows at a relay: staged by tasks, published whole by the driver, once.

Theory of operation. A task stages its partition as one part, under an attempt number of its own,
and returns which; nobody sees its rows yet. The driver says which parts the batch consists of, and
the relay decides in that moment, for good: these parts, in the order of the partitions. Parts of
attempts that failed, or came second, are not among them and are thrown away. The same batch of the
same writer is never taken again, so to write it again does nothing, whoever asks: a task that finds
its batch taken stages nothing at all.

What a task has to say to the driver travels in its message: the driver's side is another process,
made anew for each batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from clearfunds.sink_client import Staged

from .._errors import PipelineError
from ._options import WriteOptions
from ._relay_writer import writing
from ._rows import Columns, RecordBatch

ATTEMPT_BITS = 63
"""Attempts are drawn: Spark counts its own anew when a driver is started again, and what another
life has left behind under the same number must not be taken for what this one has staged."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has done.

    Attributes:
        writer: As whom.
        batch: For which batch.
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
    """Stage one task's rows, in their order; waits while the writer owes too much.

    Raises:
        RowError: If a row cannot be sent.
        RelayError: If the relay does not take them, or is away.
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
    """Let the relay publish what these tasks have staged; return as whom, if anything was.

    Args:
        options: Where the relay is.
        batch: Which batch Spark says this is; None: it does not say.
        messages: What all tasks have returned.

    Raises:
        RelayError: If the relay does not, or is away: then it may have done so nevertheless.
        PipelineError: If the messages are not of one batch.
    """
    written = list(_written(messages))
    if len(written) < len(messages):
        raise PipelineError(
            f"{len(messages) - len(written)} of {len(messages)} tasks have not said what they have "
            "written; nothing of the batch was published"
        )
    if not written:
        return None  # a batch without partitions
    first = written[0]
    if any(each.writer != first.writer or each.batch != first.batch for each in written) or (
        batch not in (None, first.batch)
    ):
        known = sorted({(each.writer, each.batch) for each in written})
        raise PipelineError(
            f"Spark's batch {batch} was written as {known} (writer, batch): what Spark tells its "
            "tasks is not what it tells its driver; nothing of it was published"
        )
    parts = [each.staged for each in written if each.staged is not None]
    if len(parts) == len(written):
        with writing(options, first.writer) as client:
            client.commit(first.batch, parts)
    # Else it was taken before; the relay has thrown away what others have staged meanwhile.
    return first.writer


def abort(options: WriteOptions, messages: Sequence[object]) -> None:
    """Throw away what these tasks have staged; nothing happens if the relay has taken it.

    What tasks have staged that say nothing any more, the relay throws away itself: with the next
    batch that it takes from this writer, or some time later.

    Raises:
        RelayError: If the relay is away.
    """
    for writer, batch in sorted({(each.writer, each.batch) for each in _written(messages)}):
        with writing(options, writer) as client:
            client.abort(batch)


def _written(messages: Iterable[object]) -> Iterator[Written]:
    return (each for each in messages if isinstance(each, Written))
