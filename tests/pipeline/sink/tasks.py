"""What Spark does with a writer, without Spark: tasks of a batch, in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from clearfunds.pipeline.sink import Written
from tests.pipeline.sink.tables import batch_of

COLUMNS = "topic string, value string"


def told(monkeypatch: pytest.MonkeyPatch, partition: int, **properties: str) -> None:
    """Let this process be a task's, that Spark has told this."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    TaskContext(partitionId=partition, localProperties=properties)


class Tasks:
    """Runs tasks of one query or of one job.

    Args:
        monkeypatch: What undoes it.
        writer: Whose; it is pickled for each task, as Spark does.
        query: The query's id.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        writer: DataSourceStreamArrowWriter | DataSourceArrowWriter,
        query: str = "query",
    ) -> None:
        self._monkeypatch = monkeypatch
        self.writer = writer
        self.query = query

    def write(self, batch: int, partition: int, rows: Iterable[tuple[str, str]]) -> Written:
        """Run one task; its rows come in record batches of up to three."""
        properties = {"sql.streaming.queryId": self.query, "streaming.sql.batchId": str(batch)}
        told(self._monkeypatch, partition, **properties)
        copy: Any = pickle.loads(pickle.dumps(self.writer))
        written = copy.write(_in_threes(rows))
        # As it travels to the driver's side.
        found = pickle.loads(pickle.dumps(written))
        assert isinstance(found, Written)
        return found


def _in_threes(rows: Iterable[tuple[str, str]]) -> Iterable[Any]:
    kept: list[tuple[str, str]] = []
    for row in rows:
        kept.append(row)
        if len(kept) == 3:
            yield _batch(kept)
            kept.clear()
    if kept:
        yield _batch(kept)


def _batch(rows: list[tuple[str, str]]) -> Any:
    return batch_of(COLUMNS, topic=[each[0] for each in rows], value=[each[1] for each in rows])
