"""Rows that wait to be written: a bounded list, and a fair sample if there are too many.

Rules of this file:
1. The probability of keeping a row is fixed before the row comes, and the row's weight is its
   inverse. So sums over rows times their weights are right on average.
2. Each row is chosen independently, at random. Every k-th row would always be the same
   subscriber's if k subscribers get every message in turn.
3. There are never more than `MAX_ROWS`. A full list discards half of its rows at random, and the
   others count double. So nothing has to wait, however long the disk fails.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any, Final

import attrs

from ._tables import arrow

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ROWS: Final = 1 << 16
"""Most rows of one table that wait: 5 MB, and two seconds of the default allowance."""

PACK: Final = 8192
"""Rows turned into columns at once, by the caller that appended the last one: a millisecond. In
another thread they would be in another core's cache, which costs more in all. Fewer at once cost
more for each, since the code that makes columns has to be fetched into the cache, too."""


@attrs.define(slots=True)
class Rows:
    """Rows of one weight, in order: first those in `batches`, then those in `rows`."""

    weight: int
    rows: list[Any]
    """Tuples; or the values of all rows, one after the other."""
    batches: list[tuple[int, Any]] = attrs.field(factory=list[tuple[int, Any]])
    """Rows as columns, without the weight, each with its hour."""
    width: int = 1
    """How many entries of `rows` are one row; 1 if they are tuples."""

    def __len__(self) -> int:
        """Return the number of rows."""
        packed: int = sum([batch.num_rows for _, batch in self.batches])
        return len(self.rows) // self.width + packed

    def thin(self, random: Random) -> None:
        """Discard half of them, at random; the others count double."""
        self.weight *= 2
        chance = random.random
        rows, width = self.rows, self.width
        starts = [at for at in range(0, len(rows), width) if chance() < 0.5]
        self.rows = [value for at in starts for value in rows[at : at + width]]
        if self.batches:
            pa = arrow("pyarrow")
            thinned: list[tuple[int, Any]] = []
            for hour, batch in self.batches:
                count = batch.num_rows
                # Each bit is one toss of a coin.
                coins = pa.py_buffer(random.randbytes((count + 7) // 8))
                kept = batch.filter(pa.Array.from_buffers(pa.bool_(), count, [None, coins]))
                if kept.num_rows:
                    thinned.append((hour, kept))
            self.batches = thinned


class Sample:
    """The waiting rows of one table.

    Callers append to it themselves, since they do so for each loan::

        if sample.skip:
            sample.skip -= 1
        else:
            sample.rows.append(row)  # of a `width`: sample.rows += row
            if sample.one_in > 1 or len(sample.rows) >= sample.look_at:
                sample.appended()

    Attributes:
        rows: Where the next row is appended: a list of tuples; or, if rows have a `width`, of their
            values, one after the other.
        skip: How many rows are left out before the next is kept.
        one_in: The k of sampling: one row in k is kept.
        look_at: The length of `rows` at which `appended` must be called.
        passed_over: Rows that were left out, or will be by `skip`.
        kept: Rows that were kept, without those in `rows`.
    """

    __slots__ = (
        "_full", "_pack", "_random", "_step", "_waiting", "_width", "kept", "look_at", "one_in",
        "passed_over", "rows", "skip", "thinned",
    )  # fmt: skip

    def __init__(
        self,
        step: int,
        full: Callable[[], object],
        random: Random,
        pack: Callable[[Rows], object] | None = None,
        width: int = 1,
    ) -> None:
        """Make an empty sample that calls `full` after each `step` rows kept.

        `pack` turns rows into batches, in place.
        """
        self._step = step
        self._full = full
        self._random = random
        self._pack = pack
        self._waiting: list[Rows] = []
        self._width = width
        self.rows: list[Any] = []
        self.skip = 0
        self.one_in = 1
        self.look_at = step * self._width
        self.passed_over = 0
        self.kept = 0
        self.thinned = 0

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self.rows) // self._width + sum(map(len, self._waiting))

    @property
    def seen(self) -> int:
        """How many rows have come in all."""
        return self.kept + len(self.rows) // self._width + self.passed_over - self.skip

    @property
    def sampled_out(self) -> int:
        """How many rows were not kept."""
        return self.passed_over - self.skip + self.thinned

    def appended(self) -> None:
        """Draw the next row to keep, and pack the rows, or call `full`, if due."""
        if self.one_in > 1:
            self._draw()
        if len(self.rows) >= self.look_at:
            self.look_at = len(self.rows) + self._step * self._width
            if len(self.rows) >= PACK * self._width:
                self._put_aside()
            self._full()

    def _draw(self) -> None:
        # The number of rows left out before the next is kept, from a geometric distribution: the
        # same as a draw for each row, at a fraction of the cost.
        self.skip = int(math.log(1.0 - self._random.random()) / math.log1p(-1 / self.one_in))
        self.passed_over += self.skip

    def keep_one_in(self, k: int) -> None:
        """Keep one row in `k` from now on."""
        if k == self.one_in:
            return
        self._put_aside()
        self.one_in = k
        # The distribution has no memory: the number for the next row may be drawn anew.
        self.passed_over -= self.skip
        self.skip = 0
        if k > 1:
            self._draw()

    def _put_aside(self) -> None:
        if self.rows:
            self.kept += len(self.rows) // self._width
            some = Rows(self.one_in, self.rows, width=self._width)
            self.rows = []
            if self._pack is not None:
                self._pack(some)
            last = self._waiting[-1] if self._waiting else None
            if last is not None and last.weight == some.weight and not last.rows:
                last.batches += some.batches
                last.rows = some.rows
            elif len(some):
                self._waiting.append(some)
        self.look_at = self._step * self._width

    def thin(self) -> None:
        """Discard half of the waiting rows, at random; the others count double."""
        self._put_aside()
        before = len(self)
        for each in self._waiting:
            each.thin(self._random)
        self._waiting = [each for each in self._waiting if len(each)]
        self.thinned += before - len(self)

    def take(self) -> list[Rows]:
        """Take all waiting rows."""
        self._put_aside()
        taken, self._waiting = self._waiting, []
        return taken
