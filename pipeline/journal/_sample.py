"""Rows that wait to be written: bounded, and where there are too many, a fair sample of them.

Rules of this file:
1. Every row is kept with a probability that was settled before it came, and has its inverse for a
   weight: so whatever is summed over rows, times their weights, is right on average.
2. Each row is chosen for itself, by lot. Every k-th would always be the same subscriber's, where k
   of them get everything in turn.
3. There are never more than `MAX_ROWS`. What is full gives up half of what it has, by lot, and what
   is left counts double. So nothing has to wait, however long the disk is away.
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
"""Rows of one table that wait at most: 5 MB, and two seconds of the default allowance."""

PACK: Final = 8192
"""Rows that are made columns of at once, by the one who appended the last: a millisecond. In
another thread they would be in another core's cache, and that costs more in all; fewer at once
cost more for each, since what makes columns of them has to be fetched into the cache, too."""


@attrs.define(slots=True)
class Rows:
    """Rows of one weight, in order: first those in `batches`, then those in `rows`."""

    weight: int
    rows: list[Any]
    """Tuples; or the values of all rows, one after the other."""
    batches: list[tuple[int, Any]] = attrs.field(factory=list[tuple[int, Any]])
    """Rows as columns, without the weight, each with the hour that it belongs to."""
    width: int = 1
    """How many of `rows` are one row; 1 where they are tuples."""

    def __len__(self) -> int:
        """Return how many rows there are."""
        packed: int = sum([batch.num_rows for _, batch in self.batches])
        return len(self.rows) // self.width + packed

    def thin(self, random: Random) -> None:
        """Give up half of them, by lot; the others count double."""
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
                # Each bit is a coin of its own.
                coins = pa.py_buffer(random.randbytes((count + 7) // 8))
                kept = batch.filter(pa.Array.from_buffers(pa.bool_(), count, [None, coins]))
                if kept.num_rows:
                    thinned.append((hour, kept))
            self.batches = thinned


class Sample:
    """The rows of one table that wait.

    The one who appends does so by himself, since it is done for each loan::

        if sample.skip:
            sample.skip -= 1
        else:
            sample.rows.append(row)  # of a `width`: sample.rows += row
            if sample.one_in > 1 or len(sample.rows) >= sample.look_at:
                sample.appended()

    Attributes:
        rows: Where the next row is appended: a list of tuples; or, if rows have a `width`, of their
            values, one after the other.
        skip: How many rows are passed over before the next is kept.
        one_in: One of how many is kept.
        look_at: How long `rows` may be before somebody has to look.
        passed_over: Rows that were, or will be by `skip`, not kept.
        kept: Rows that were kept, those in `rows` not counted.
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
        """Make one; `full` is called whenever `step` rows more were kept.

        `pack` makes batches of rows, in place.
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
        """How many rows ever came."""
        return self.kept + len(self.rows) // self._width + self.passed_over - self.skip

    @property
    def sampled_out(self) -> int:
        """How many of them are not kept."""
        return self.passed_over - self.skip + self.thinned

    def appended(self) -> None:
        """See to what is next, after a row was appended."""
        if self.one_in > 1:
            self._draw()
        if len(self.rows) >= self.look_at:
            self.look_at = len(self.rows) + self._step * self._width
            if len(self.rows) >= PACK * self._width:
                self._put_aside()
            self._full()

    def _draw(self) -> None:
        # How many fail before the first that does not, where one in `one_in` does not: as throwing
        # the dice for each of them, at a fraction of the cost.
        self.skip = int(math.log(1.0 - self._random.random()) / math.log1p(-1 / self.one_in))
        self.passed_over += self.skip

    def keep_one_in(self, k: int) -> None:
        """Keep one row in `k` from now on."""
        if k == self.one_in:
            return
        self._put_aside()
        self.one_in = k
        # Lots have no memory: what was drawn for the next row may be drawn anew.
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
        """Give up half of what waits, by lot; what is left counts double."""
        self._put_aside()
        before = len(self)
        for each in self._waiting:
            each.thin(self._random)
        self._waiting = [each for each in self._waiting if len(each)]
        self.thinned += before - len(self)

    def take(self) -> list[Rows]:
        """Take all that waits."""
        self._put_aside()
        taken, self._waiting = self._waiting, []
        return taken
