"""Limits on debt: the high-water and low-water marks of backpressure."""

from typing import Any

import attrs

DEFAULT_LIMIT_ITEMS = 50_000
"""The batch written at a time is the limit divided by the fan-out. Measured: at a fan-out of 100 a
limit of 10,000 items takes a third more CPU than this one, at 1,000 three times as much. A higher
one gains nothing: from 168 bytes a message, the byte limit is reached first."""

DEFAULT_LIMIT_BYTES = 8 << 20
"""8 MiB, like the per-client soft limits of NATS and Redis (8 MiB of pending output)."""

UNLIMITED = 1 << 62
"""Stands for "no limit" in the comparisons of the hot path."""


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: int | None) -> None:
    if value is not None and not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        msg = f"{attribute.name} must be a whole number, or None for no limit, not {value!r}"
        raise TypeError(msg)
    if value is not None and not value >= 0:
        msg = f"{attribute.name} must be at least 0, or None for no limit, not {value}"
        raise ValueError(msg)


@attrs.frozen(slots=True)
class Limit:
    """High-water mark of an account's debt, above which its readers wait, and the lower mark.

    A reader waits when the debt is *above* the limit in either unit, like upstream's
    `SYNDICATE_CREDIT` (at the limit still passes). It goes on when the debt is *at or below* the
    lower mark in both. The distance between the two keeps readers from being woken for each
    single repayment.
    """

    items: int | None = attrs.field(default=DEFAULT_LIMIT_ITEMS, validator=_positive)
    """Events, or None for no limit in this unit."""
    bytes: int | None = attrs.field(default=DEFAULT_LIMIT_BYTES, validator=_positive)
    """Bytes, or None for no limit in this unit."""
    low_items: int | None = attrs.field(default=None, validator=_positive)
    """The lower mark in events; None is half of the limit."""
    low_bytes: int | None = attrs.field(default=None, validator=_positive)
    """The lower mark in bytes; None is half of the limit."""
    _marks: tuple[int, int, int, int] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        for unit, high, low in (
            ("items", self.items, self.low_items),
            ("bytes", self.bytes, self.low_bytes),
        ):
            if low is not None and (high is None or low > high):
                msg = f"low_{unit}={low} must not be above {unit}={high}"
                raise ValueError(msg)
        items = UNLIMITED if self.items is None else self.items
        nbytes = UNLIMITED if self.bytes is None else self.bytes
        low_items = items // 2 if self.low_items is None else self.low_items
        low_bytes = nbytes // 2 if self.low_bytes is None else self.low_bytes
        # Made once: accounts with the same limit share the numbers.
        object.__setattr__(self, "_marks", (items, nbytes, low_items, low_bytes))

    def marks(self) -> tuple[int, int, int, int]:
        """Return (items, bytes, low items, low bytes) as plain integers for comparisons."""
        return self._marks


NO_LIMIT = Limit(items=None, bytes=None)
"""No limit: readers never wait for the account's own debt."""


def check_limit(limit: object, name: str = "limit") -> None:
    """Check that an argument called `name` is a limit.

    Raises:
        TypeError: If not.
    """
    if not isinstance(limit, Limit):
        meant = f"Limit(items={limit})" if isinstance(limit, int) else "Limit(items=..., bytes=...)"
        msg = f"{name} is a Limit, not {limit!r}; write {name}={meant}"
        raise TypeError(msg)
