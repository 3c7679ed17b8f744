"""Asking the relay, and saying what it was that could not be had.

Connections of Spark's workers are kept by process: a worker runs one task after another, and each
has a reader of its own that was pickled. A socket must not be shared across a fork, so a process
looks only at those that it has made itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

import clearfunds.range_client as client
from clearfunds.range_client import RangeClientError, RangeReader, Ticket
from clearfunds.relay_client import Access

from .._errors import (
    AwayError,
    DataLossError,
    FencedError,
    OptionError,
    PipelineError,
    RefusedError,
    RelayError,
)
from ._options import ReadOptions

FETCH_BYTES = 1 << 20
"""Bytes of one answer; two are in a worker's memory at a time. As the client's own default."""

MOST_KEPT = 8
"""Connections that one process keeps: it may run tasks of several queries."""

_kept: dict[tuple[int, str, int, Access, Ticket], RangeReader] = {}
_lock = threading.Lock()


@contextmanager
def asking(options: ReadOptions) -> Generator[None]:
    """Turn what comes of asking the relay into a sentence of the pipeline's.

    Raises:
        RelayError: For any `RangeClientError`.
    """
    try:
        yield
    except RangeClientError as exc:
        raise sentence(options, exc) from exc
    except PipelineError:
        raise
    except ValueError as exc:  # a file of certificates that cannot be used here
        raise OptionError(f"the relay cannot be asked so: {exc}") from exc


def sentence(options: ReadOptions, fault: RangeClientError) -> PipelineError:
    """Return what a fault of the client's means to who runs a query."""
    name, where = options.subscription, options.where
    match fault:
        case client.AwayError():
            return AwayError(
                f"{fault}. Is it running there, with `--listen subscribe+tcp://...` on this very "
                "port (with `subscribe+tls`: option 'tls')? Started again from its checkpoint, the "
                "query goes on where it was"
            )
        case client.WrongAnswerError():
            return AwayError(
                f"what answers at {where} is no relay's listener for readers ({fault}); give the "
                "port of the one that it says as `subscribe+tcp://`, not that of MQTT or of its "
                "pages"
            )
        case client.FencedError():
            return FencedError(
                f"another query reads from subscription {name!r} of the relay at {where} since: "
                f"{fault}. Give each query a subscription of its own (option 'subscription')"
            )
        case client.DataLossError():
            return DataLossError(
                f"{fault}. To go on with what there is, set the option 'failOnDataLoss' to false"
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


def _key_of(options: ReadOptions, ticket: Ticket) -> tuple[int, str, int, Access, Ticket]:
    return os.getpid(), options.host, options.port, options.access, ticket


def along(options: ReadOptions, ticket: Ticket) -> RangeReader:
    """Return this process's reader that reads along with who has this ticket.

    Raises:
        RangeClientError: If there is none yet, and the relay does not let it, or is away.
    """
    key = _key_of(options, ticket)
    with _lock:
        reader = _kept.pop(key, None)
        if reader is None:
            reader = RangeReader.join(
                options.host,
                options.port,
                ticket,
                timeout=options.timeout,
                fetch_bytes=FETCH_BYTES,
                access=options.access,
            )
        _kept[key] = reader  # the last one is that which was used last
        for old in list(_kept)[: max(0, len(_kept) - MOST_KEPT)]:
            left = _kept.pop(old)
            if old[0] == key[0]:  # what a parent has made is the parent's
                left.close()
        return reader


def forget(options: ReadOptions, ticket: Ticket) -> None:
    """Close this process's reader of a ticket, if there is one: it is of no use any more."""
    with _lock:
        reader = _kept.pop(_key_of(options, ticket), None)
    if reader is not None:
        reader.close()
