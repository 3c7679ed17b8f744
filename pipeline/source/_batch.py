"""Batch reads of a subscription's messages: they displace no other reader, and repay no debt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...ranges import client
from ...ranges.client import Head, RangeReader, Ticket
from .._errors import OptionError, PipelineError, plain, plainly
from ._moments import place_of
from ._offset import Position
from ._options import EARLIEST, BatchOptions, Moment, Word
from ._ranges import Range, cut, passed_over, read_range
from ._relay_reader import FETCH_BYTES, asking


class BatchReader(DataSourceReader):
    """Reads the messages of a subscription, once for each Spark action.

    Args:
        options: The options of the reader.
    """

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Ask for the messages present, and cut them into ranges."""
        options = self._options
        with (
            asking(options),
            RangeReader.join(
                options.host,
                options.port,
                Ticket(options.subscription),
                timeout=options.timeout,
                fetch_bytes=FETCH_BYTES,
                access=options.access,
            ) as reader,
        ):
            head = reader.head()
            start = self._place("starting", options.start, reader, head)
            end = self._place("ending", options.end, reader, head)
            if start < head.low:
                self._lost(start, head.low)
                start = head.low
            if options.repay:
                reader.ack(start)
            return cut(start, end, options.min_partitions, reader.ticket)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a range's record batches; in a worker."""
        # If there are no ranges, Spark makes a partition of its own.
        if isinstance(partition, Range):
            try:
                yield from read_range(self._options, partition)
            except PipelineError as error:
                raise plain(error) from None

    def _place(
        self, which: str, wanted: Position | Word | Moment, reader: RangeReader, head: Head
    ) -> int:
        if isinstance(wanted, Moment):
            return place_of(wanted, reader, head, f"{which}Timestamp")
        name = f"{which}Offsets"
        if not isinstance(wanted, Position):
            return head.low if wanted == EARLIEST else head.next
        subscription = self._options.subscription
        if wanted.incarnation not in (None, reader.ticket.incarnation.hex()):
            raise client.DataLossError(
                f"the option {name!r} is of another life of subscription {subscription!r}: it has "
                "been made anew since, and its numbers now mean other messages"
            )
        if wanted.number > head.next:
            msg = (
                f"the option {name!r} has number {wanted.number}, and subscription "
                f"{subscription!r} has had messages up to {head.next - 1} so far"
            )
            raise OptionError(msg)
        return wanted.number

    def _lost(self, start: int, low: int) -> None:
        why = "they were acknowledged, or discarded"
        if self._options.fail_on_data_loss:
            raise client.DataLossError(
                f"messages {start} to {low - 1} of subscription {self._options.subscription!r} are "
                f"not there any more: {why}"
            )
        passed_over(self._options, start, low, why)
