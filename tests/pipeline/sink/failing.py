"""The format clearfunds with things that go wrong, when a file says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import WriterCommitMessage

from clearfunds.pipeline._data_source import ClearFundsDataSource
from clearfunds.pipeline.sink import StreamWriter, stream_writer

# Spark's workers do not know the tests' modules.
_pickling: Any = cloudpickle
_pickling.register_pickle_by_value(sys.modules[__name__])

OPTION = "folder"

BEFORE_WRITE = "before-write"
IN_WRITE = "in-write"
AFTER_WRITE = "after-write"
BEFORE_COMMIT = "before-commit"
AFTER_COMMIT = "after-commit"
HALT = "halt"
"""Wait in `commit`, before anything, until this file is gone; `halted` is there meanwhile."""
HALTED = "halted"


class FailingWriter(StreamWriter):
    """Fails at places for which there is a file; each file is for one failure."""

    folder: Path

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage one task's rows, perhaps."""
        self._fail(BEFORE_WRITE)
        written = super().write(self._cut(iterator))
        self._fail(AFTER_WRITE)
        return written

    def _cut(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            yield batch
            self._fail(IN_WRITE)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit, perhaps."""
        self._fail(BEFORE_COMMIT)
        if (self.folder / HALT).exists():
            (self.folder / HALTED).touch()
            while (self.folder / HALT).exists():
                time.sleep(0.02)
        super().commit(messages, batchId)
        self._fail(AFTER_COMMIT)

    def _fail(self, name: str) -> None:
        place = self.folder / name
        if place.exists():
            place.unlink()
            raise RuntimeError(f"it was to fail {name}")


class FailingDataSource(ClearFundsDataSource):
    """Writes as the format `clearfunds` does, but for what the option `folder` says."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "clearfunds_failing"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return what writes a stream."""
        told = {name: text for name, text in self.options.items() if name != OPTION}
        made = stream_writer(told, schema, overwrite)
        made.__class__ = FailingWriter
        vars(made)["folder"] = Path(self.options[OPTION])
        return made
