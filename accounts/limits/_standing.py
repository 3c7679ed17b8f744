"""Standing state is a quota, not debt (rule 16).

Retained messages and assertions stay until they are retracted. As debt they would throttle their
owner for ever; uncharged they would grow without bound. So each owner has a quota for them. The
quota goes by the owner's name and outlives the owner's connections, as retained messages do.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from .._errors import QuotaExceededError

DEFAULT_STANDING_ITEMS = 100_000
"""One owner's assertions and retained messages: a tenth of the million that one relay of a few
GiB can keep."""

DEFAULT_STANDING_BYTES = 64 << 20
"""64 MiB: eight times the default limit of an account's debt."""


DEFAULT_STANDING_SHAPES = 100
"""Number of different arrangements of wildcards and constants in one owner's filters and patterns:
each published message is looked up once for each. Twice the subscriptions that AWS IoT Core allows
a connection; most clients have less than ten."""


@attrs.frozen(slots=True)
class Quota:
    """Quota of standing state for one owner."""

    items: int | None = DEFAULT_STANDING_ITEMS
    """Assertions and retained messages, or None for no limit."""
    bytes: int | None = DEFAULT_STANDING_BYTES
    """Bytes, or None for no limit."""
    shapes: int | None = DEFAULT_STANDING_SHAPES
    """Different shapes of topic filters and patterns, or None for no limit."""


@attrs.define(slots=True, eq=False)
class AllStanding:
    """The standing state of all owners of one ledger, in figures."""

    items: int = 0
    bytes: int = 0
    owners: set[Standing] = attrs.field(factory=set["Standing"], repr=False)
    """Owners with standing state; the ledger forgets those without."""


@attrs.define(slots=True, eq=False)
class Standing:
    """The standing state of one owner, in figures."""

    owner: str
    quota: Quota
    items: int = 0
    bytes: int = 0
    all: AllStanding = attrs.field(factory=AllStanding, repr=False)
    """The totals that it is a part of."""
    shapes: dict[Hashable, int] = attrs.field(factory=dict[Hashable, int], repr=False)
    """Counts of its topic filters and patterns by shape."""

    def check(self, items: int, nbytes: int) -> None:
        """Check that `items` more and `nbytes` more are allowed.

        Raises:
            QuotaExceededError: If not.
        """
        quota = self.quota
        if items > 0 and quota.items is not None and self.items + items > quota.items:
            msg = (
                f"{self.owner} may keep {quota.items} assertions and retained messages and has "
                f"{self.items}; take some back, or raise the quota"
            )
            raise QuotaExceededError(msg)
        if nbytes > 0 and quota.bytes is not None and self.bytes + nbytes > quota.bytes:
            msg = (
                f"{self.owner} may keep {quota.bytes} bytes of assertions and retained messages, "
                f"has {self.bytes} and asks for {nbytes} more; take some back, or raise the quota"
            )
            raise QuotaExceededError(msg)

    def add(self, items: int, nbytes: int) -> None:
        """Count new standing state, without a check: also for undoing a removal."""
        self.items += items
        self.bytes += nbytes
        self.all.items += items
        self.all.bytes += nbytes
        self.all.owners.add(self)

    def release(self, items: int, nbytes: int) -> None:
        """Count standing state that was retracted."""
        self.items -= items
        self.bytes -= nbytes
        self.all.items -= items
        self.all.bytes -= nbytes
        self._forget()

    def check_shape(self, shape: Hashable) -> None:
        """Check that one more filter or pattern of this shape is allowed.

        Raises:
            QuotaExceededError: If it would be one shape too many.
        """
        most = self.quota.shapes
        if most is not None and len(self.shapes) >= most and shape not in self.shapes:
            msg = (
                f"{self.owner} has filters or patterns of {most} different shapes, which is the "
                "limit; have their wildcards and constants in the same places, or raise the quota"
            )
            raise QuotaExceededError(msg)

    def add_shape(self, shape: Hashable) -> None:
        """Count one more filter or pattern of this shape, without a check."""
        self.shapes[shape] = self.shapes.get(shape, 0) + 1
        self.all.owners.add(self)

    def release_shape(self, shape: Hashable) -> None:
        """Count one filter or pattern less of this shape."""
        self.shapes[shape] -= 1
        if not self.shapes[shape]:
            del self.shapes[shape]
            self._forget()

    def _forget(self) -> None:
        if not self.items and not self.bytes and not self.shapes:
            self.all.owners.discard(self)
