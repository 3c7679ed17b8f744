"""Requests of a reader to the relay, with an explanation of each error.

Spark's workers keep connections by process: a worker runs one task after another, and each task
has its own pickled reader. A socket must not be shared across a fork, so a process uses only
connections that it has made itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from ...ranges import client
from ...ranges.client import Access, RangeError, RangeReader, Ticket
from .. import _faults as faults
from .._errors import MessagesLostError, OptionError, PipelineError, QueryFencedError
from ._options import ReadOptions

FETCH_BYTES = 1 << 20
"""Bytes of one answer; a worker has two in memory at a time. The client's default is the same."""

MOST_CACHED = 8
"""Most connections that one process keeps: it may run tasks of several queries."""

_cached: dict[tuple[int, str, int, Access, Ticket], RangeReader] = {}
_lock = threading.Lock()


@contextmanager
def asking(options: ReadOptions) -> Generator[None]:
    """Turn faults of the client into errors of the pipeline that explain them.

    Raises:
        RelayError: For any `RangeError`.
    """
    try:
        yield
    except RangeError as exc:
        raise sentence(options, exc) from exc
    except PipelineError:
        raise
    except ValueError as exc:  # a file of certificates that cannot be used here
        raise OptionError(f"the relay cannot be asked so: {exc}") from exc


def sentence(options: ReadOptions, fault: RangeError) -> PipelineError:
    """Return the error, for the user of a query, that explains a fault of the client."""
    name, where = options.subscription, options.where
    match fault:
        case client.FencedError():
            return QueryFencedError(
                f"another query reads from subscription {name!r} of the relay at {where} now: "
                f"{fault}. Give each query its own subscription (option 'subscription')"
            )
        case client.DataLossError():
            return MessagesLostError(
                f"{fault}. To skip the lost messages, set the option 'failOnDataLoss' to false"
            )
        case _:
            return faults.sentence(where, "readers", "goes on where it was", fault)


def _key_of(options: ReadOptions, ticket: Ticket) -> tuple[int, str, int, Access, Ticket]:
    return os.getpid(), options.host, options.port, options.access, ticket


def along(options: ReadOptions, ticket: Ticket) -> RangeReader:
    """Return this process's reader that reads along with the owner of this ticket.

    Raises:
        RangeError: If a new connection is needed, and the relay refuses it, or is away.
    """
    key = _key_of(options, ticket)
    with _lock:
        reader = _cached.pop(key, None)
        if reader is None:
            reader = RangeReader.join(
                options.host,
                options.port,
                ticket,
                timeout=options.timeout,
                fetch_bytes=FETCH_BYTES,
                access=options.access,
            )
        _cached[key] = reader  # moved to the end: the most recently used
        for old in list(_cached)[: max(0, len(_cached) - MOST_CACHED)]:
            left = _cached.pop(old)
            if old[0] == key[0]:  # a parent process's connections are the parent's to close
                left.close()
        return reader


def forget(options: ReadOptions, ticket: Ticket) -> None:
    """Close this process's reader of a ticket, if it has one."""
    with _lock:
        reader = _cached.pop(_key_of(options, ticket), None)
    if reader is not None:
        reader.close()
