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

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ROWS: Final = 1 << 16
"""Rows of one table that wait at most: 15 MB, and three seconds of the default allowance."""


@attrs.define(slots=True)
class Rows:
    """Rows of one weight, in order."""

    weight: int
    rows: list[tuple[Any, ...]]


class Sample:
    """The rows of one table that wait.

    The one who appends does so by himself, since it is done for each loan::

        if sample.skip:
            sample.skip -= 1
        else:
            sample.rows.append(row)
            if sample.one_in > 1 or len(sample.rows) >= sample.look_at:
                sample.appended()

    Attributes:
        rows: Where the next row is appended.
        skip: How many rows are passed over before the next is kept.
        one_in: One of how many is kept.
        look_at: How long `rows` may be before somebody has to look.
        passed_over: Rows that were, or will be by `skip`, not kept.
        kept: Rows that were kept, those in `rows` not counted.
    """

    __slots__ = (
        "_full", "_random", "_step", "_waiting", "kept", "look_at", "one_in", "passed_over", "rows",
        "skip", "thinned",
    )  # fmt: skip

    def __init__(self, step: int, full: Callable[[], object], random: Random) -> None:
        """Make one; `full` is called whenever `step` rows more were kept."""
        self._step = step
        self._full = full
        self._random = random
        self._waiting: list[Rows] = []
        self.rows: list[tuple[Any, ...]] = []
        self.skip = 0
        self.one_in = 1
        self.look_at = step
        self.passed_over = 0
        self.kept = 0
        self.thinned = 0

    def __len__(self) -> int:
        """Return how many rows wait."""
        return len(self.rows) + sum([len(each.rows) for each in self._waiting])

    @property
    def seen(self) -> int:
        """How many rows ever came."""
        return self.kept + len(self.rows) + self.passed_over - self.skip

    @property
    def sampled_out(self) -> int:
        """How many of them are not kept."""
        return self.passed_over - self.skip + self.thinned

    def appended(self) -> None:
        """See to what is next, after a row was appended."""
        if self.one_in > 1:
            self._draw()
        if len(self.rows) >= self.look_at:
            self.look_at = len(self.rows) + self._step
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
            self.kept += len(self.rows)
            self._waiting.append(Rows(self.one_in, self.rows))
            self.rows = []
        self.look_at = self._step

    def thin(self) -> None:
        """Give up half of what waits, by lot; what is left counts double."""
        self._put_aside()
        chance = self._random.random
        before = len(self)
        for each in self._waiting:
            each.rows = [row for row in each.rows if chance() < 0.5]
            each.weight *= 2
        self._waiting = [each for each in self._waiting if each.rows]
        self.thinned += before - len(self)

    def take(self) -> list[Rows]:
        """Take all that waits."""
        self._put_aside()
        taken, self._waiting = self._waiting, []
        return taken
