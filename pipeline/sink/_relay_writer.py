"""Asking the relay, and saying what it was that could not be had."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import clearfunds.range_client as client
from clearfunds.range_client import RangeClientError
from clearfunds.sink_client import NotStagedError, SinkWriter, TornError

from .._errors import (
    AwayError,
    FencedError,
    OptionError,
    PipelineError,
    RefusedError,
    RelayError,
)
from ._options import WriteOptions


@contextmanager
def writing(options: WriteOptions, name: str) -> Generator[SinkWriter]:
    """Connect to the relay as the writer of this name, for as long as the block lasts.

    Each task has a connection of its own: if the task is cancelled, or its worker is killed, the
    relay learns of it by that, and throws away what was not staged as a whole.

    Raises:
        RelayError: For any `RangeClientError`, in the block, too.
    """
    try:
        with _writer(options, name) as writer:
            yield writer
    except RangeClientError as exc:
        raise sentence(options, name, exc) from exc


def _writer(options: WriteOptions, name: str) -> SinkWriter:
    try:
        return SinkWriter(
            options.host, options.port, name, timeout=options.timeout, access=options.access
        )
    except ValueError as exc:  # a file of certificates that cannot be used here
        raise OptionError(f"the relay cannot be asked so: {exc}") from exc


def sentence(options: WriteOptions, name: str, fault: RangeClientError) -> PipelineError:
    """Return what a fault of the client's means to who runs a query."""
    where = options.where
    match fault:
        case TornError():
            return AwayError(f"{fault}. Spark does so by itself, spark.task.maxFailures times")
        case client.AwayError():
            return AwayError(
                f"{fault}. Is it running there, with `--listen subscribe+tcp://...` on this very "
                "port (with `subscribe+tls`: option 'tls')? Started again from its checkpoint, the "
                "query writes the same batch again, and the relay takes it once"
            )
        case client.WrongAnswerError():
            return AwayError(
                f"what answers at {where} is no relay's listener for writers ({fault}); give the "
                "port of the one that it says as `subscribe+tcp://`, not that of MQTT or of its "
                "pages"
            )
        case client.FencedError():
            return FencedError(
                f"somebody else writes as {name!r} to the relay at {where} since: {fault}. Start "
                "the query again from its checkpoint, and only once; give each job a name of its "
                "own (option 'writer'), or none"
            )
        case NotStagedError():
            return RelayError(
                f"the relay at {where} has not all of the batch any more: {fault}. It was started "
                "again without a store (--store), or the batch took longer than it waits for one; "
                "nothing of it was published, and the query writes it again when it is started "
                "from its checkpoint"
            )
        case client.NotAuthorizedError():
            return RefusedError(
                f"the relay at {where} and this query do not agree who they are: {fault} (options "
                "'user', 'password', 'ca', 'certificate', 'key')"
            )
        case client.RefusedError():
            return RefusedError(f"the relay at {where} refuses: {fault}")
        case _:
            return RelayError(f"the relay at {where} cannot do it: {fault}")
