"""Batch writes, one job each: `df.write.format("clearfunds")`."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .._errors import RelayError, plainly
from ._options import WriteOptions
from ._relay_writer import writing
from ._rows import Columns
from ._staging import abort, commit, stage


class BatchWriter(DataSourceArrowWriter):
    """Writes one job's rows, all or none.

    A job has a unique name, which the relay forgets when the job is over. A job with a given name
    and number is written once, however often it runs.

    Args:
        options: The options of the writer.
        columns: The columns of a message.

    Attributes:
        name: The writer's name at the relay.
    """

    def __init__(self, options: WriteOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._batch = options.batch or 0
        # Spark pickles this object, both for the tasks and for the driver's side.
        self.name = options.writer or f"spark-{uuid.uuid4()}"

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows; in a worker."""
        return stage(self._options, self._columns, self.name, self._batch, iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows that the tasks have staged; in a process of the driver."""
        if commit(self._options, None, messages) is not None:
            # The job is done, even if the relay forgets its name only later.
            with contextlib.suppress(RelayError):
                self._forget()

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the rows that the tasks have staged, unless they were published."""
        if self._options.writer is None:
            self._forget()
        else:
            abort(self._options, messages)

    def _forget(self) -> None:
        if self._options.writer is None:
            with writing(self._options, self.name) as client:
                client.forget()
