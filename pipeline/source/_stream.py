"""A stream: Spark's calls, their order, and the moment when a batch is repaid.

Theory of operation. For each run of a query, Spark starts a process beside its driver with one
`StreamReader`, and asks it for offsets and ranges; this reader attaches to the subscription.
Copies of it in the workers read the ranges, along with its ticket.

Rules of this file:
1. A batch is repaid when Spark asks for the next one: `latestOffset(start, ...)` passes the `start`
   that Spark has recorded as done, so everything below it is done. `commit` would be too late:
   Spark calls it only once it has planned another batch. There may never be one, because the
   publishers wait to be repaid. That would be a deadlock.
2. Reading does not repay: Spark reads a batch again when it fails, when the query starts again, or
   for each of its actions.
3. Nothing depends on `stop`, which Spark rarely calls; the end of the connection is enough.
4. Only configuration is pickled; a copy without a connection makes one when it needs it.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
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

from ...ranges import client
from ...ranges.client import Head, RangeError, RangeReader, Ticket
from .._errors import MessagesLostError, OptionError, PipelineError, plain, plainly
from ._moments import place_of
from ._offset import Offset, Position
from ._options import EARLIEST, MAX_TRIGGER_DELAY, Moment, StreamOptions, Word
from ._ranges import Range, cut, logger, passed_over, read_range
from ._relay_reader import FETCH_BYTES, asking, sentence

T = TypeVar("T")

IDLE_PAUSES = (0.005, 0.01, 0.02, 0.03, 0.03)
"""Seconds between checks for new messages before Spark is told that there are none: it would ask
again after 10 ms, and asking costs Spark more than us."""

HEARTBEAT_SECONDS = 10.0
"""Interval of keep-alive requests while Spark is busy with a batch, so that a reader whose
connection broke is back within its grace; at least four are sent within the grace."""

QUIET_SECONDS = 10.0
"""A batch that waits for more messages (`minOffsetsPerTrigger`) begins when none has come for this
long: it may be what their publishers wait for."""

BEAT_SECONDS = 1.0
"""Longest try of one keep-alive request: other requests have to wait for it."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one subscription for one query.

    Args:
        options: The options of the reader.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._owner: RangeReader | None = None
        self._heart: _Heart | None = None
        # The end of the run with `availableNow`: no message beyond it is read.
        self._target: Offset | None = None
        self._repaid = 0
        # The place of `startingTimestamp`: the same for each time that Spark asks.
        self._begun: Offset | None = None
        # When a batch was last planned, and when the last message was seen to have come.
        self._planned_at = -math.inf
        self._last_came = (0, 0.0)

    def __reduce__(self) -> tuple[type[StreamReader], tuple[StreamOptions]]:
        return type(self), (self._options,)

    # -- what Spark asks for ---------------------------------------------------------------------

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the place where a query without a checkpoint begins.

        Spark asks more than once; the relay keeps the answer.
        """
        return self._asked(self._initial).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of one batch that Spark knows; `latestOffset` applies the others."""
        options = self._options
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the place where this run ends."""
        self._target = self._asked(lambda owner: self._offset(owner, owner.head().next))

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Repay everything below `start`, and return the end of the next batch."""
        begun = self._written(start)
        return self._asked(lambda owner: self._latest(owner, begun, limit), begun).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest message and the debt, for the query's progress."""
        owner = self._owner
        if owner is None:
            return None
        try:
            standing = owner.standing()
        except RangeError:
            return None  # a mere report must not end a query
        shown = self._offset(owner, standing.next).to_json()
        return shown | {"owedMessages": standing.items, "owedBytes": standing.bytes}

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a batch into ranges. After a start from a checkpoint, Spark calls this first."""
        begun, ended = self._written(start), self._written(end)
        return self._asked(lambda owner: self._ranges(owner, begun, ended), ended)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a range's record batches; in a worker."""
        assert isinstance(partition, Range)
        try:
            yield from read_range(self._options, partition)
        except PipelineError as error:
            raise plain(error) from None

    @plainly
    def commit(self, end: dict[str, Any]) -> None:
        """Repay everything below `end`, if `ackMode` is `commit`; else it is repaid already."""
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
        """Ask the relay, attaching first if needed; ask again after a loss that may be skipped.

        Args:
            ask: The request.
            known: The offset that Spark has recorded, if any: its life of the subscription.
        """
        options = self._options
        for _ in range(3):
            fresh = self._owner is None
            with asking(options):
                owner = self._owner or self._attach(known)
            try:
                return ask(owner)
            except client.DataLossError as exc:
                lost: RangeError = exc
            except client.RefusedError as exc:
                if fresh or not self._is_gone(owner):
                    raise sentence(options, exc) from exc
                lost = client.DataLossError(str(exc))
            except RangeError as exc:
                raise sentence(options, exc) from exc
            if options.fail_on_data_loss:
                raise sentence(options, lost) from lost
            logger.warning("%s; messages that were not read are skipped (failOnDataLoss)", lost)
            self.stop()
        msg = f"subscription {options.subscription!r} at {options.where} is lost again and again"
        raise MessagesLostError(msg)

    def _attach(self, known: Offset | None) -> RangeReader:
        options = self._options
        try:
            owner = RangeReader(
                options.host,
                options.port,
                options.subscription,
                filters=options.filters,
                start=self._word(),
                durable=options.durable,
                grace=options.grace,
                after_grace=options.after_grace,
                timeout=options.timeout,
                fetch_bytes=FETCH_BYTES,
                access=options.access,
            )
        except ValueError as exc:  # a string that is too long for the protocol
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
        """Return whether the relay refuses because the subscription was dropped."""
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
        """Return the error for a subscription that is not the checkpoint's."""
        if owner.ticket.generation == 1:
            # This query has made it just now: without a reader it would block publishers.
            owner.drop()
            self.stop()
        return self._made_anew()

    def _made_anew(self) -> client.DataLossError:
        options = self._options
        return client.DataLossError(
            f"subscription {options.subscription!r} at {options.where} is not the one that the "
            "checkpoint is of: it was dropped, or the relay was started anew without a store, and "
            "messages that had not been read are lost"
        )

    def _written(self, found: dict[str, Any]) -> Offset:
        """Parse an offset that Spark has recorded, and check its subscription."""
        offset = Offset.of(found)
        if offset.subscription != self._options.subscription:
            msg = (
                f"the checkpoint is of subscription {offset.subscription!r}, and the option "
                f"'subscription' is {self._options.subscription!r}: give back the name, or another "
                "checkpointLocation"
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
        if isinstance(start, Moment):
            if self._begun is None or self._begun.incarnation != self._incarnation(owner):
                number = place_of(start, owner, owner.head(), "startingTimestamp")
                self._begun = self._offset(owner, number)
            return self._begun
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
        """Return the first message present from `start` on.

        Raises:
            DataLossError: The client's; if messages are missing, and may not be skipped.
        """
        if start.incarnation != self._incarnation(owner):
            if self._options.fail_on_data_loss:
                raise self._refuse(owner)
            logger.warning("%s: begun at message %d", self._made_anew(), head.low)
            return head.low
        if start.number >= head.low:
            return start.number
        why = "they were acknowledged by another reader, or discarded"
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
        if end <= at or self._is_too_little(at, end):
            return self._offset(owner, at)
        self._planned_at = time.monotonic()
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(owner, at, end, limit)
        return self._offset(owner, end)

    def _is_too_little(self, at: int, end: int) -> bool:
        """Whether to wait for more messages (`minOffsetsPerTrigger`)."""
        options = self._options
        if options.min_rows is None or self._target is not None or end - at >= options.min_rows:
            return False
        now = time.monotonic()
        if self._last_came[0] != end:
            self._last_came = end, now
        most = MAX_TRIGGER_DELAY if options.max_delay is None else options.max_delay
        return now - self._planned_at < most and now - self._last_came[1] < QUIET_SECONDS

    def _word(self) -> Word | None:
        """Return the place where a new subscription begins, if that is a word."""
        start = self._options.start
        if isinstance(start, Moment):
            return EARLIEST
        return None if isinstance(start, Position) else start

    @staticmethod
    def _something_new(owner: RangeReader, at: int, end: int) -> int:
        for pause in IDLE_PAUSES:
            if end > at:
                break
            time.sleep(pause)
            end = owner.head().next
        return end

    def _limited(self, owner: RangeReader, at: int, end: int, limit: ReadLimit) -> int:
        """Return the end of a batch: Spark passes one limit, and there may be two."""
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
    """Sends keep-alive requests, in a thread that ends with its reader.

    The thread has only a weak reference to the reader: one that nobody uses any more and nobody has
    closed is collected, and is not kept attached for ever.
    """

    def __init__(self, owner: RangeReader, grace: float | None) -> None:
        self._stopped = threading.Event()
        weakref.finalize(owner, self.stop)
        every = HEARTBEAT_SECONDS if grace is None else min(HEARTBEAT_SECONDS, grace / 4)
        thread = threading.Thread(
            target=_beat,
            args=(weakref.ref(owner), self._stopped, max(0.1, every)),
            name="clearfunds-heartbeat",
            daemon=True,
        )
        thread.start()

    def stop(self) -> None:
        self._stopped.set()


def _beat(owner: weakref.ref[RangeReader], stopped: threading.Event, every: float) -> None:
    while not stopped.wait(every):
        reader = owner()
        if reader is None:
            return
        try:
            reader.ping(BEAT_SECONDS)
        except client.AwayError:
            pass  # tried again; a request that needs an answer reports the error
        except RangeError:
            return  # displaced for good: the next request will report it
        finally:
            del reader
