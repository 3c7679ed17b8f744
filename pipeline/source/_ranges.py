"""Ranges of messages: cutting a batch into them, and reading one, in a Spark worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import InputPartition

from ...ranges import client
from ...ranges.client import RangeError, Ticket
from ._columns import BATCH_BYTES, BATCH_ROWS, Columns
from ._options import ReadOptions
from ._relay_reader import along, forget, sentence

logger = logging.getLogger("clearfunds.pipeline.source")

ROWS_A_RANGE = 50_000
"""Least messages of a range, without `minPartitions`: a task costs Spark some ten milliseconds,
little beside the time to read them."""

MOST_RANGES = 16
"""Most ranges of a batch, without `minPartitions`: the cores of an ordinary machine."""


class Range(InputPartition):
    """Messages from `start` to before `end`, for one task.

    Attributes:
        start: The number of the first.
        end: The number after the last.
        ticket: The ticket to read along with the reader that is attached.
    """

    def __init__(self, start: int, end: int, ticket: Ticket) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end
        self.ticket = ticket


def cut(start: int, end: int, parts: int | None, ticket: Ticket) -> list[Range]:
    """Cut a range into equal ones, in order; an empty range into none."""
    rows = end - start
    if rows <= 0:
        return []
    if parts is None:
        parts = min(MOST_RANGES, -(-rows // ROWS_A_RANGE))
    parts = min(parts, rows)
    edges = [start + rows * part // parts for part in range(parts + 1)]
    return [Range(a, b, ticket) for a, b in pairwise(edges)]


def read_range(options: ReadOptions, wanted: Range) -> Iterator[Any]:
    """Yield the messages of a range as record batches; Spark may read a range several times.

    Memory holds one batch and two of the relay's answers, however large the range is.

    Raises:
        RelayError: The messages cannot be read; it says why.
        MissingError: If pyarrow is not installed here.
    """
    columns = Columns(options.columns, wanted.ticket.incarnation.hex())
    at = wanted.start
    waiting: list[Any] = []
    rows = nbytes = 0
    while at < wanted.end:
        try:
            for block in along(options, wanted.ticket).fetch(at, wanted.end):
                waiting.append(columns.batch(block))
                at = block.end
                rows += block.count
                nbytes += len(block.keys) + len(block.values)
                if rows >= BATCH_ROWS or nbytes >= BATCH_BYTES:
                    yield columns.join(waiting)
                    waiting.clear()
                    rows = nbytes = 0
            if at < wanted.end:
                raise client.DataLossError(
                    f"messages {at} to {wanted.end - 1} of subscription {options.subscription} "
                    "have not come, though the relay had announced them"
                )
        except RangeError as exc:
            at = _go_on(options, wanted, at, exc)
    if waiting:
        yield columns.join(waiting)


def _go_on(options: ReadOptions, wanted: Range, at: int, fault: RangeError) -> int:
    """Return the next message to read after a loss that may be skipped.

    Raises:
        RelayError: If the fault is no loss, or the loss may not be skipped.
    """
    if not isinstance(fault, client.DataLossError) or options.fail_on_data_loss:
        forget(options, wanted.ticket)
        raise sentence(options, fault) from fault
    try:
        low = along(options, wanted.ticket).head().low
    except client.DataLossError:
        low = wanted.end  # the subscription was made anew: these messages are gone
    except RangeError as exc:
        raise sentence(options, exc) from exc
    # The relay has no message there, as it said before, and never will.
    following = min(low, wanted.end) if low > at else wanted.end
    passed_over(options, at, following, str(fault))
    return following


def passed_over(options: ReadOptions, start: int, end: int, why: str) -> None:
    """Log that messages are skipped, as `failOnDataLoss` is false."""
    logger.warning(
        "subscription %s at %s: messages %d to %d are lost, and skipped: %s",
        options.subscription,
        options.where,
        start,
        end - 1,
        why,
    )
