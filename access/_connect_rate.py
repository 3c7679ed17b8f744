"""The rate at which one address may open connections."""

from __future__ import annotations

from typing import Final

import attrs

from ._lately import REMEMBERED, Lately

DEFAULT_CONNECT_RATE: Final = 1_000
"""Connections a second from one address; EMQX's `max_conn_rate` for a listener. A client that
connects costs the relay 0.2 ms of CPU time, with TLS 0.7."""

DEFAULT_LISTENER_CONNECT_RATE: Final = 2_000
"""Connections a second of one listener: twice those of one address, and two fifths of a core."""


@attrs.define(slots=True)
class _Bucket:
    due: float = float("-inf")
    """The time at which all connections so far would have come at the rate."""


class ConnectRate:
    """Returns how long the next connection of an address waits.

    A token bucket for each address that holds a second's worth, kept as one time: the generic cell
    rate algorithm (ITU-T I.371). Connections above the rate are not refused: each has a place in
    its address's line, as long as its turn comes within `longest`.

    Args:
        rate: Connections a second; None: any number.
        longest: Seconds that a connection may wait.
        remembered: Addresses that are remembered; one that is not has a full bucket.
    """

    def __init__(self, rate: float | None, longest: float, remembered: int = REMEMBERED) -> None:
        self.rate = rate
        self._longest = longest
        self._buckets: Lately[str, _Bucket] = Lately(_Bucket, remembered)

    def __len__(self) -> int:
        """Return the number of remembered addresses."""
        return len(self._buckets)

    def wait(self, address: str | None, now: float) -> float | None:
        """Return the seconds that the next connection waits; None: too long, it is refused.

        A connection that is refused takes no place in the line.
        """
        rate = self.rate
        if rate is None or address is None:
            return 0.0
        bucket = self._buckets.of(address)
        each = 1 / rate
        due = max(bucket.due, now) + each
        wait = due - now - max(1.0, each)
        if wait > self._longest:
            return None
        bucket.due = due
        return max(0.0, wait)
