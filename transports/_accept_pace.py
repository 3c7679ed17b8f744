"""How fast one listener accepts connections, and whether it does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from ..access._connect_rate import ConnectRate

if TYPE_CHECKING:
    from collections.abc import Callable


class AcceptPace:
    """Bounds the rate at which one listener accepts; closed, it accepts none.

    A connection that is not accepted yet costs nothing here: it stands in the kernel's queue, first
    come first served, and its peer sees that it waits for an answer. No peer is refused.

    Args:
        rate: Connections a second, after a burst of a second's worth (`ConnectRate`); None: any
            number.
        clock: Seconds that never go back.

    Attributes:
        paused: How often accepting has paused for the rate.
    """

    def __init__(
        self, rate: int | None = None, clock: Callable[[], float] = trio.current_time
    ) -> None:
        self.paused = 0
        self._rate = ConnectRate(rate, math.inf, 1)
        self._clock = clock
        self._opened: trio.Event | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it accepts none for now."""
        return self._opened is not None

    def close(self) -> None:
        """Accept no more connections, until `open`. Idempotent."""
        if self._opened is None:
            self._opened = trio.Event()

    def open(self) -> None:
        """Accept connections again. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.set()

    async def until_open(self) -> None:
        """Wait while it is closed; no checkpoint if it is open."""
        while self._opened is not None:
            await self._opened.wait()

    def accepted(self) -> float:
        """Count an accepted connection; return the seconds to wait before the next."""
        wait = self._rate.wait("", self._clock()) or 0.0
        self.paused += wait > 0
        return wait
