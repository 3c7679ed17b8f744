"""A stream: what Spark asks of it, in which order, and when publishers are repaid for it.

Theory of operation. For each run of a query Spark makes a process beside its driver with one
`StreamReader`, which it asks for offsets and ranges; that one attaches to the subscription. What
reads the ranges are copies of it in the workers, which read along with its ticket.

Rules of this file:
1. A batch is repaid when Spark asks for the one after it: `latestOffset(start, ...)` comes with the
   `start` that Spark has written down as done, so all below it is. Not in `commit`: that is called
   only when a next batch has been planned, and there may never be one, because its publishers wait
   for being repaid. They would wait for each other for ever.
2. To have been read is not to have been repaid: Spark reads a batch again when it fails, when the
   query is started again, or for each action that it has.
3. Nothing depends on `stop`, which Spark rarely calls; the connection's end says it.
4. Only what is configuration is pickled; whoever has no connection makes one when it needs it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import clearfunds.range_client as client
from clearfunds.range_client import Head, RangeClientError, RangeReader, Ticket

from .._errors import DataLossError, OptionError
from ._offset import Offset, Position
from ._options import StreamOptions
from ._ranges import Range, cut, logger, passed_over, read_range
from ._relay_reader import FETCH_BYTES, asking, sentence

T = TypeVar("T")

IDLE_PAUSES = (0.005, 0.01, 0.02, 0.03, 0.03)
"""Seconds between looks for something new before Spark is told that there is nothing: it would ask
again after 10 ms, and asking costs it more than us."""

HEARTBEAT_SECONDS = 10.0
"""How often the relay is asked whether it is there while Spark is busy with a batch, so that a
reader whose connection broke is back within its grace; at least four times within it."""

BEAT_SECONDS = 1.0
"""For so long the heart tries at a time: whoever needs an answer meanwhile has to wait for it."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one subscription for one query.

    Args:
        options: What it was told.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._owner: RangeReader | None = None
        self._heart: _Heart | None = None
        # What `availableNow` reads up to, and nothing beyond it.
        self._target: Offset | None = None
        self._repaid = 0

    def __reduce__(self) -> tuple[type[StreamReader], tuple[StreamOptions]]:
        return type(self), (self._options,)

    # -- what Spark asks for ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query begins that has no checkpoint.

        Spark asks more than once; the relay keeps the answer.
        """
        return self._asked(self._initial).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much one batch may have; what else limits it is seen to in `latestOffset`."""
        options = self._options
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note up to where this run reads."""
        self._target = self._asked(lambda owner: self._offset(owner, owner.head().next))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Repay everything below `start`, and return where the next batch ends."""
        begun = self._written(start)
        return self._asked(lambda owner: self._latest(owner, begun, limit), begun).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how far there is something, and what is owed, for the query's progress."""
        owner = self._owner
        if owner is None:
            return None
        try:
            standing = owner.standing()
        except RangeClientError:
            return None  # what is only told must not end a query
        shown = self._offset(owner, standing.next).to_json()
        return shown | {"owedMessages": standing.items, "owedBytes": standing.bytes}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a batch into ranges. After a start from a checkpoint this is what comes first."""
        begun, ended = self._written(start), self._written(end)
        return self._asked(lambda owner: self._ranges(owner, begun, ended), ended)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a range's record batches; in a worker."""
        assert isinstance(partition, Range)
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Repay everything below `end`, with `ackMode` as `commit`; else it has been already."""
        done = self._written(end)
        owner = self._owner
        if owner is None or self._incarnation(owner) != done.incarnation:
            return
        if not self._options.eager and done.number > self._repaid:
            with asking(self._options):
                self._repay(owner, done.number)

    def stop(self) -> None:
        """Detach. Idempotent."""
        if self._heart is not None:
            self._heart.stop()
        if self._owner is not None:
            self._owner.close()
        self._heart = self._owner = None

    # -- the subscription ------------------------------------------------------------------------

    def _asked(self, ask: Callable[[RangeReader], T], known: Offset | None = None) -> T:
        """Ask the relay, attaching first if need be; again after a loss that may be passed over.

        Args:
            ask: What to ask.
            known: What Spark has written down, if it has: which life of the subscription it knows.
        """
        options = self._options
        for _ in range(3):
            fresh = self._owner is None
            with asking(options):
                owner = self._owner or self._attach(known)
            try:
                return ask(owner)
            except client.DataLossError as exc:
                lost: RangeClientError = exc
            except client.RefusedError as exc:
                if fresh or not self._is_gone(owner):
                    raise sentence(options, exc) from exc
                lost = client.DataLossError(str(exc))
            except RangeClientError as exc:
                raise sentence(options, exc) from exc
            if options.fail_on_data_loss:
                raise sentence(options, lost) from lost
            logger.warning("%s; what was not read is passed over (failOnDataLoss)", lost)
            self.stop()
        msg = f"subscription {options.subscription!r} at {options.where} is lost again and again"
        raise DataLossError(msg)

    def _attach(self, known: Offset | None) -> RangeReader:
        options = self._options
        start = options.start
        try:
            owner = RangeReader(
                options.host,
                options.port,
                options.subscription,
                filters=options.filters,
                start=None if isinstance(start, Position) else start,
                durable=options.durable,
                grace=options.grace,
                after_grace=options.after_grace,
                timeout=options.timeout,
                fetch_bytes=FETCH_BYTES,
                access=options.access,
            )
        except ValueError as exc:  # a text that is longer than the protocol has room for
            raise OptionError(f"the relay cannot be asked so: {exc}") from exc
        if (
            known is not None
            and options.fail_on_data_loss
            and owner.ticket.generation == 1
            and known.incarnation != self._incarnation(owner)
        ):
            raise self._refuse(owner)
        self._owner = owner
        self._repaid = 0
        if self._target is not None and self._target.incarnation != self._incarnation(owner):
            self._target = self._offset(owner, owner.head().next)
        self._heart = _Heart(owner, options.grace)
        return owner

    def _is_gone(self, owner: RangeReader) -> bool:
        """Find out whether the relay refuses because the subscription was dropped."""
        options = self._options
        try:
            with RangeReader.join(
                options.host,
                options.port,
                Ticket(options.subscription),
                timeout=options.timeout,
                access=options.access,
            ) as other:
                return other.ticket.incarnation != owner.ticket.incarnation
        except client.RefusedError:
            return True

    def _refuse(self, owner: RangeReader) -> client.DataLossError:
        """Return what is wrong with a subscription that the checkpoint is not of."""
        if owner.ticket.generation == 1:
            # This query has made it just now: without a reader it would hold publishers up.
            owner.drop()
            self.stop()
        return self._made_anew()

    def _made_anew(self) -> client.DataLossError:
        options = self._options
        return client.DataLossError(
            f"subscription {options.subscription!r} at {options.where} is not the one that the "
            "checkpoint is of: it was dropped, or the relay was started anew without a store, and "
            "what had not been read is lost"
        )

    def _written(self, found: dict[str, Any]) -> Offset:
        """Take an offset that Spark has written down."""
        offset = Offset.of(found)
        if offset.subscription != self._options.subscription:
            msg = (
                f"the checkpoint is of subscription {offset.subscription!r}, and the option "
                f"'subscription' is {self._options.subscription!r}: give back the name, or a "
                "checkpointLocation of its own"
            )
            raise OptionError(msg)
        return offset

    @staticmethod
    def _incarnation(owner: RangeReader) -> str:
        return owner.ticket.incarnation.hex()

    def _offset(self, owner: RangeReader, number: int) -> Offset:
        return Offset(self._incarnation(owner), self._options.subscription, number)

    # -- offsets ---------------------------------------------------------------------------------

    def _initial(self, owner: RangeReader) -> Offset:
        start = self._options.start
        if not isinstance(start, Position):
            return self._offset(owner, owner.start)
        head = owner.head()
        if start.incarnation is not None:
            begun = Offset(start.incarnation, self._options.subscription, start.number)
            return self._offset(owner, self._there(owner, begun, head))
        if start.number > head.next:
            msg = (
                f"the option 'startingOffsets' has number {start.number}, and subscription "
                f"{self._options.subscription!r} has had messages up to {head.next - 1} so far"
            )
            raise OptionError(msg)
        return self._offset(owner, self._there(owner, self._offset(owner, start.number), head))

    def _there(self, owner: RangeReader, start: Offset, head: Head) -> int:
        """Return the first message from `start` on that is there.

        Raises:
            DataLossError: The client's; if it is not the first, and that may not be.
        """
        if start.incarnation != self._incarnation(owner):
            if self._options.fail_on_data_loss:
                raise self._refuse(owner)
            logger.warning("%s: begun at message %d", self._made_anew(), head.low)
            return head.low
        if start.number >= head.low:
            return start.number
        why = "they were acknowledged by another reader, or given up"
        if self._options.fail_on_data_loss:
            raise client.DataLossError(
                f"messages {start.number} to {head.low - 1} of subscription "
                f"{self._options.subscription!r} are not there any more: {why}"
            )
        passed_over(self._options, start.number, head.low, why)
        return head.low

    def _repay(self, owner: RangeReader, number: int) -> Head:
        head = owner.ack(number)
        self._repaid = number
        return head

    def _latest(self, owner: RangeReader, start: Offset, limit: ReadLimit) -> Offset:
        known = start.incarnation == self._incarnation(owner)
        if known and self._options.eager and start.number > self._repaid:
            head = self._repay(owner, start.number)
        else:
            head = owner.head()
        at = self._there(owner, start, head)
        if self._target is not None:
            end = min(head.next, max(at, self._target.number))
        else:
            end = self._something_new(owner, at, head.next)
        if end <= at:
            return self._offset(owner, at)
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(owner, at, end, limit)
        return self._offset(owner, end)

    @staticmethod
    def _something_new(owner: RangeReader, at: int, end: int) -> int:
        for pause in IDLE_PAUSES:
            if end > at:
                break
            time.sleep(pause)
            end = owner.head().next
        return end

    def _limited(self, owner: RangeReader, at: int, end: int, limit: ReadLimit) -> int:
        """Return where a batch ends: Spark hands over one limit, and there may be two."""
        rows = [self._options.max_rows]
        nbytes = [self._options.max_bytes]
        if isinstance(limit, ReadMaxRows):
            rows.append(limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            nbytes.append(limit.max_bytes)
        end = min([end, *(at + each for each in rows if each is not None)])
        most = [each for each in nbytes if each is not None]
        return min(end, owner.reach(at, min(most))) if most else end

    def _ranges(self, owner: RangeReader, start: Offset, end: Offset) -> list[Range]:
        options = self._options
        head = owner.head()
        if end.incarnation != self._incarnation(owner):
            if options.fail_on_data_loss:
                raise self._refuse(owner)
            logger.warning("%s: a batch up to message %d", self._made_anew(), end.number - 1)
            return []
        at = self._there(owner, start, head)
        return cut(at, end.number, options.min_partitions, owner.ticket)


class _Heart:
    """Asks for a sign of life now and then, in a thread that ends with what it is for."""

    def __init__(self, owner: RangeReader, grace: float | None) -> None:
        self._owner = owner
        self._stopped = threading.Event()
        self._every = HEARTBEAT_SECONDS if grace is None else min(HEARTBEAT_SECONDS, grace / 4)
        thread = threading.Thread(target=self._beat, name="clearfunds-heartbeat", daemon=True)
        thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(max(0.1, self._every)):
            try:
                self._owner.ping(BEAT_SECONDS)
            except client.AwayError:
                continue  # it is tried again; who needs an answer will say it
            except RangeClientError:
                return  # out for good, and so will the next request be

    def stop(self) -> None:
        self._stopped.set()
