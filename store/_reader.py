"""Reading the messages that the index lists, in any thread."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ._decode import columns_of, runs_of
from ._errors import CorruptRecordError
from ._intervals import Intervals
from ._names import segment_name
from ._queue import OnDisk
from ._records import MOVE, PUT, read_head, read_payload, read_run
from ._scan import heads

if TYPE_CHECKING:
    from ._bodies import Place
    from ._extents import Extent
    from ._handles import Handles
    from ._index import Index
    from ._queue import Columns, Plan
    from ._records import Head, Run

#: Extents that stay in memory after a read, if they are no larger than this.
_RECENT: Final = 16
_RECENT_BYTES: Final = 80 << 10


class Reader:
    """Reads messages from segments. It raises `FileNotFoundError` for a removed segment."""

    def __init__(self, index: Index, handles: Handles) -> None:
        self._index = index
        self._handles = handles
        self._recent: dict[tuple[int, int, int, int], list[tuple[Head, Run, bytes]]] = {}

    def places(self, plan: Plan) -> dict[int, Place]:
        """Return the places of the shared bodies of a plan. Call it under the lock."""
        found: dict[int, Place] = {}
        for piece in plan:
            if isinstance(piece, OnDisk):
                for body in piece.bodies:
                    place = self._index.bodies.where(body)
                    if place is not None:
                        found[body] = place
        return found

    def read(self, queue_id: int, piece: OnDisk, places: dict[int, Place]) -> list[Columns]:
        """Return the messages of a piece of a plan.

        Raises:
            OSError: The disk fails.
            CorruptRecordError: Some of it is corrupt.
        """
        bodies: dict[int, bytes] = {}
        for body in piece.bodies:
            if body not in places:
                msg = "a body that it shares with others is gone"
                raise CorruptRecordError(msg)
            bodies[body] = self._body(places[body])
        found: list[Columns] = []
        for head, run, payload in self._runs(queue_id, piece.extent):
            found += columns_of(head, run, payload, piece.ranges, bodies)
        number = sum([len(columns.seqs) for columns in found])
        if number != piece.number:
            msg = f"{number} of {piece.number} messages are what was written"
            raise CorruptRecordError(msg)
        return found

    def _runs(self, queue_id: int, extent: Extent) -> list[tuple[Head, Run, bytes]]:
        """Return the runs of an extent; a reader that goes in order asks for some of them again."""
        key = (extent.segment, extent.offset, extent.length, queue_id)
        runs = self._recent.get(key)
        if runs is None:
            with self._handles.use(segment_name(extent.segment)) as file:
                data = file.pread(extent.length, extent.offset)
            runs, whole = runs_of(self._salt(extent.segment), queue_id, extent, data)
            if whole and extent.length <= _RECENT_BYTES:
                with self._index.lock:
                    self._recent[key] = runs
                    if len(self._recent) > _RECENT:
                        del self._recent[next(iter(self._recent))]
        return runs

    def _body(self, place: Place) -> bytes:
        with self._handles.use(segment_name(place.segment)) as file:
            data = file.pread(place.length, place.offset)
        return read_payload(read_head(self._salt(place.segment), data, 0), data, 0)

    def _salt(self, number: int) -> int:
        segment = self._index.segments.get(number)
        if segment is None:
            raise FileNotFoundError
        return segment.salt

    def readable(self, queue_id: int, extent: Extent) -> tuple[Intervals, bytes]:
        """Return the numbers of the readable messages of an extent, and its bytes unchanged.

        Raises:
            OSError: The disk fails.
        """
        with self._handles.use(segment_name(extent.segment)) as file:
            data = file.pread(extent.length, extent.offset)
        found = Intervals()
        for at, head in heads(self._salt(extent.segment), data):
            if head.kind not in (PUT, MOVE) or head.queue != queue_id:
                continue
            with suppress(CorruptRecordError):
                run, _ = read_run(head, read_payload(head, data, at))
                for index in range(run.count):
                    seq = run.first + (index if run.offsets is None else run.offsets[index])
                    if run.shared is None or self._has_body(run.shared[index]):
                        found.add(seq, seq)
        return found, data

    def _has_body(self, body: int) -> bool:
        with self._index.lock:
            place = self._index.bodies.where(body) if body else None
        if place is None:
            return not body
        try:
            self._body(place)
        except (CorruptRecordError, FileNotFoundError):
            return False
        return True
