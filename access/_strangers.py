"""The log of peers that have not been let in: bounded, whatever they do."""

from __future__ import annotations

import logging
from typing import Any, Final

import attrs

from ._addresses import address_of
from ._lately import Lately

FIRST: Final = 5
"""Lines about one address and one kind of event in `WINDOW_SECONDS`; more are only counted."""

ALL: Final = 500
"""Lines in `WINDOW_SECONDS` about all addresses: 8 a second, some 2 KB."""

WINDOW_SECONDS: Final = 60.0
"""The interval of summaries of unlogged lines; journald's RateLimitIntervalSec is 30 s."""

ADDRESSES: Final = 256
"""Addresses and kinds that are counted apart; beyond, all others are counted together."""

OTHERS: Final = "other addresses"


@attrs.define(slots=True)
class _Said:
    lines: int = 0
    more: int = 0
    last: str = ""
    logger: logging.Logger | None = None


class StrangersLog:
    """Logs the first lines about an address and kind, and counts the others.

    Attributes:
        unsaid: Lines that were only counted, since the start.
    """

    def __init__(self) -> None:
        self.unsaid = 0
        self._lines = 0
        self._since = float("-inf")
        self._said: Lately[tuple[str, str], _Said] = Lately(_Said, ADDRESSES + 16)

    def log(
        self,
        logger: logging.Logger,
        level: int,
        peer: str,
        text: str,
        extra: dict[str, Any],
        now: float,
    ) -> None:
        """Log a line about a peer, or count it.

        Args:
            logger: The logger.
            level: Its level.
            peer: The peer, as `Link.peer`.
            text: The whole line.
            extra: Its fields; lines with the same `event` are of one kind.
            now: The time, in seconds.
        """
        if now - self._since >= WINDOW_SECONDS:
            self.sum_up(now)
        address = address_of(peer) or peer.rpartition("#")[0]
        event = str(extra["event"])
        key = address, event
        if key not in self._said and len(self._said) >= ADDRESSES:
            key = OTHERS, event
        said = self._said.of(key)
        if said.lines < FIRST and self._lines < ALL:
            said.lines += 1
            self._lines += 1
            logger.log(level, "%s", text, extra=extra)
        else:
            self.unsaid += 1
            said.more += 1
            said.last = text
            said.logger = logger

    def sum_up(self, now: float) -> None:
        """Log how many more lines there were, and begin anew."""
        seconds = now - self._since
        self._since = now
        self._lines = 0
        for (address, event), said in self._said.take_all():
            if said.logger is not None:
                said.logger.warning(
                    "%s: %d more like this one in %.0f s: %s",
                    address,
                    said.more,
                    seconds,
                    said.last,
                    extra={
                        "event": "more_like_it",
                        "peer": address,
                        "of": event,
                        "lines": said.more,
                        "seconds": seconds,
                    },
                )

    def each_tick(self, now: float) -> None:
        """Sum up when a window is over."""
        if len(self._said) and now - self._since >= WINDOW_SECONDS:
            self.sum_up(now)
