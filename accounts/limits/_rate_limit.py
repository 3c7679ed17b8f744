"""Rate limit of input: a token bucket.

Like RFC 2697's committed bucket (section 3), with one difference: a packet is never split nor
turned away. So a source with any tokens left may bring in one packet more, which may take the
bucket below zero; then it waits until the bucket is above zero again. In the long run input does
not exceed the rate.

Rules of this file:
1. Tokens come in at the rate, up to the burst; a bucket begins full. There is one bucket for events
   and one for bytes, and both have to be above zero.
2. The input of root turns is charged to it, once. The work that input causes is limited by debt;
   input that causes nothing is limited only here.
3. No task fills it: each check computes the tokens that have come in meanwhile.
"""

from __future__ import annotations

import math
from typing import Any, Final

import attrs

BURST_SECONDS: Final = 1.0
"""Seconds of tokens that an idle source saves up by default: a rate per second then holds in each
second."""

RATE_TICK: Final = 0.001
"""Least seconds that a reader sleeps while it waits for tokens: as fine as a loop's timers."""

RATE_LIMIT: Final = "(rate limit)"
"""The name blamed, in a holder's place, when readers wait for tokens."""


def _above_zero(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        msg = f"{attribute.name} must be above 0, or None for no limit, not {value}"
        raise ValueError(msg)


@attrs.frozen(slots=True)
class RateLimit:
    """Rates of input per second, and the bursts allowed after idle time.

    Raises:
        ValueError: If one is not above zero, or a burst is given in a unit without a rate.
    """

    items_per_s: float | None = attrs.field(default=None, validator=_above_zero)
    """Events a second, or None for no limit in this unit."""
    bytes_per_s: float | None = attrs.field(default=None, validator=_above_zero)
    """Bytes a second, or None for no limit in this unit."""
    burst_items: float | None = attrs.field(default=None, validator=_above_zero)
    """Events that may come at once; None is those of a second, and at least one."""
    burst_bytes: float | None = attrs.field(default=None, validator=_above_zero)
    """Bytes that may come at once; None is those of a second."""

    def __attrs_post_init__(self) -> None:
        for unit, rate, burst in (
            ("items", self.items_per_s, self.burst_items),
            ("bytes", self.bytes_per_s, self.burst_bytes),
        ):
            if burst is not None and rate is None:
                msg = f"burst_{unit}={burst} needs {unit}_per_s: without it nothing is limited"
                raise ValueError(msg)

    def __str__(self) -> str:
        """Return the rates as text."""
        parts: list[str] = []
        if self.items_per_s is not None:
            parts.append(f"{self.items_per_s:g} items")
        if self.bytes_per_s is not None:
            parts.append(f"{self.bytes_per_s:g} bytes")
        return f"{' and '.join(parts) or 'any number'} a second"


class TokenBucket:
    """The tokens of one rate limit. Negative: so much input has come in beyond them.

    Args:
        limit: The rates and bursts.
        now: The time, by the caller's clock.

    Attributes:
        limit: As given.
        items: Events that may come in, infinite without a limit.
        bytes: The same in bytes.
    """

    __slots__ = ("_at", "_burst_bytes", "_burst_items", "bytes", "items", "limit")

    def __init__(self, limit: RateLimit, now: float) -> None:
        self.limit = limit
        self._at = now
        self._burst_items = _burst(limit.items_per_s, limit.burst_items, 1.0)
        self._burst_bytes = _burst(limit.bytes_per_s, limit.burst_bytes, 0.0)
        self.items = self._burst_items
        self.bytes = self._burst_bytes

    def take(self, items: int, nbytes: int) -> None:
        """Charge input."""
        self.items -= items
        self.bytes -= nbytes

    def fill(self, now: float) -> None:
        """Add the tokens that have come in until now; tokens above the burst are lost."""
        elapsed = now - self._at
        if elapsed > 0:
            self._at = now
            limit = self.limit
            if limit.items_per_s is not None:
                self.items = min(self._burst_items, self.items + elapsed * limit.items_per_s)
            if limit.bytes_per_s is not None:
                self.bytes = min(self._burst_bytes, self.bytes + elapsed * limit.bytes_per_s)

    def wait(self, now: float) -> float:
        """Return the seconds until input may come in; 0.0: now."""
        self.fill(now)
        if self.items > 0 and self.bytes > 0:
            return 0.0
        return max(
            RATE_TICK,
            _seconds(self.items, self.limit.items_per_s),
            _seconds(self.bytes, self.limit.bytes_per_s),
        )

    def room(self, now: float) -> tuple[float, float]:
        """Return the (items, bytes) that may come in before the next check; (-1, -1): none."""
        return (self.items, self.bytes) if not self.wait(now) else (-1, -1)

    def take_over(self, before: TokenBucket, now: float) -> None:
        """Begin with the tokens left in the bucket before: a new limit is no new burst."""
        before.fill(now)
        # Only in units with a rate: a unit without one is never filled, and would stay empty.
        if self.limit.items_per_s is not None:
            self.items = min(self.items, before.items)
        if self.limit.bytes_per_s is not None:
            self.bytes = min(self.bytes, before.bytes)


def _burst(rate: float | None, burst: float | None, least: float) -> float:
    if rate is None:
        return math.inf
    return max(least, rate * BURST_SECONDS) if burst is None else burst


def _seconds(tokens: float, rate: float | None) -> float:
    return 0.0 if rate is None or tokens > 0 else -tokens / rate
