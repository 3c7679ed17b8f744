"""Requests of a writer to the relay, with an explanation of each error."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ...ranges import client
from ...ranges.client import NotStagedError, RangeError, SinkWriter, TornError
from .. import _faults as faults
from .._errors import OptionError, PipelineError, QueryFencedError, RelayAwayError, RelayError
from ._options import WriteOptions


@contextmanager
def writing(options: WriteOptions, name: str) -> Generator[SinkWriter]:
    """Connect to the relay as the writer of this name, for the length of the block.

    Each task has its own connection. If the task is cancelled, or its worker is killed, the
    connection closes, and the relay discards the rows of a part that was not staged completely.

    Raises:
        RelayError: For any `RangeError`, also one in the block.
    """
    try:
        with _writer(options, name) as writer:
            yield writer
    except RangeError as exc:
        raise sentence(options, name, exc) from exc


def _writer(options: WriteOptions, name: str) -> SinkWriter:
    try:
        return SinkWriter(
            options.host, options.port, name, timeout=options.timeout, access=options.access
        )
    except ValueError as exc:  # a file of certificates that cannot be used here
        raise OptionError(f"the relay cannot be asked so: {exc}") from exc


def sentence(options: WriteOptions, name: str, fault: RangeError) -> PipelineError:
    """Return the error, for the user of a query, that explains a fault of the client."""
    where = options.where
    match fault:
        case TornError():
            return RelayAwayError(f"{fault}. Spark does so by itself, spark.task.maxFailures times")
        case client.FencedError():
            return QueryFencedError(
                f"another writer has taken the name {name!r} at the relay at {where}: {fault}. "
                "Start the query again from its checkpoint, and only once; give each job its own "
                "name (option 'writer'), or none"
            )
        case NotStagedError():
            return RelayError(
                f"the relay at {where} has not all of the batch any more: {fault}. It was started "
                "again without a store (--store), or the batch took longer than it waits for one; "
                "nothing of it was published, and the query writes it again when it is started "
                "from its checkpoint"
            )
        case _:
            goes_on = "writes the same batch again, and the relay takes it once"
            return faults.sentence(where, "writers", goes_on, fault)
