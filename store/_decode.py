"""Decoding the bytes of an extent into messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, cast

from ._changes import Body
from ._errors import CorruptRecordError
from ._queue import Columns, Record
from ._records import MOVE, PUT, Head, Run, embedded, pieces, read_payload, read_run
from ._scan import heads

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ._changes import Puts
    from ._extents import Extent


class _Tuple(tuple[Any, ...]):
    __slots__ = ()
    __new__ = tuple.__new__  # pyright: ignore


class _Read(_Tuple, Record):
    """A record, made from a tuple at half of the cost, because no function is called for it.

    For that, the first base has to be one that is made as tuples are: the interpreter takes the
    way to make an object from there.
    """

    __slots__ = ()
    __new__ = tuple.__new__  # type: ignore[assignment]  # pyright: ignore


_Read.__name__ = Record.__name__
_make = cast("Callable[[Iterable[Any]], Record]", _Read)


def runs_of(
    salt: int, queue: int, extent: Extent, data: bytes
) -> tuple[list[tuple[Head, Run, bytes]], bool]:
    """Return the runs in the bytes of an extent, and whether all of them are whole.

    Damaged runs are left out.
    """
    found: list[tuple[Head, Run, bytes]] = []
    whole = True
    for at, head in heads(salt, data):
        if head.kind not in (PUT, MOVE) or head.queue != queue:
            continue
        if head.first > extent.last or head.last < extent.first:
            continue
        try:
            payload = read_payload(head, data, at)
        except CorruptRecordError:
            whole = False
            continue
        found.append((head, read_run(head, payload)[0], payload))
    return found, whole


def columns_of(
    head: Head,
    run: Run,
    payload: bytes,
    ranges: Iterable[tuple[int, int]],
    bodies: Mapping[int, bytes],
) -> list[Columns]:
    """Return the messages of a run whose numbers are in `ranges`.

    `bodies` has the shared bodies.
    """
    found: list[Columns] = []
    header_blob = run.blob
    lengths = embedded(run)
    count = run.count
    headers_end = header_blob + (
        run.headers * count if isinstance(run.headers, int) else sum(run.headers)
    )
    for low, high in ranges:
        if low > head.last or high < head.first:
            continue
        low, high = max(low, head.first), min(high, head.last)
        start, stop = _indices(head.first, count, run.offsets, low, high)
        if start >= stop:
            continue
        seqs: Sequence[int]
        if run.offsets is None:
            seqs = range(head.first + start, head.first + stop)
        else:
            seqs = [head.first + offset for offset in run.offsets[start:stop]]
        headers = pieces(payload, header_blob, run.headers, start, stop)
        own = pieces(payload, headers_end, lengths, start, stop)
        if run.shared is not None:
            shared = run.shared[start:stop]
            own = [bodies[ref] if ref else body for ref, body in zip(shared, own, strict=True)]
        found.append(Columns(seqs, headers, own, _sizes(run.sizes, start, stop)))
    return found


def _sizes(sizes: int | array[int], start: int, stop: int) -> Sequence[int]:
    return [sizes] * (stop - start) if isinstance(sizes, int) else sizes[start:stop]


def records_of(columns: Columns) -> list[Record]:
    """Return the messages one by one."""
    return list(map(_make, zip(*columns, strict=True)))


def _indices(
    first: int, count: int, offsets: array[int] | None, low: int, high: int
) -> tuple[int, int]:
    if offsets is None:
        return low - first, min(high - first + 1, count)
    return bisect_left(offsets, low - first), bisect_right(offsets, high - first)


def pending_columns(puts: Puts, start: int, stop: int) -> Columns:
    """Return messages that are not written yet."""
    bodies = puts.bodies[start:stop]
    if puts.shared:
        bodies = [body.data if isinstance(body, Body) else body for body in bodies]
    return Columns(
        puts.seqs[start:stop],
        puts.headers[start:stop],
        cast("list[bytes]", bodies),
        _sizes(puts.sizes, start, stop),
    )
