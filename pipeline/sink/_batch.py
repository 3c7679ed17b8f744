"""One job: `df.write.format("clearfunds")`."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .._errors import RelayError
from ._options import WriteOptions
from ._relay_writer import writing
from ._rows import Columns
from ._staging import abort, commit, stage


class BatchWriter(DataSourceArrowWriter):
    """Writes one job's rows, whole or not at all.

    A job has a name of its own, which the relay forgets when the job is over; one that was given a
    name and a number is written once, however often it is run.

    Args:
        options: What it was told.
        columns: Where in the rows a message is.

    Attributes:
        name: As whom it writes.
    """

    def __init__(self, options: WriteOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._batch = options.batch or 0
        # Spark pickles this object for the tasks and for the driver's side alike.
        self.name = options.writer or f"spark-{uuid.uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows; in a worker."""
        return stage(self._options, self._columns, self.name, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged; in a process of the driver's."""
        if commit(self._options, None, messages) is not None:
            # It is done, whether the relay forgets its name now or some time later.
            with contextlib.suppress(RelayError):
                self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what the tasks have staged, if it was not published."""
        if self._options.writer is None:
            self._forget()
        else:
            abort(self._options, messages)

    def _forget(self) -> None:
        if self._options.writer is None:
            with writing(self._options, self.name) as client:
                client.forget()
