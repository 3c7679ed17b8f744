"""A log with a bound: a storm of events is not a storm of lines."""

import logging
import time
from collections.abc import Callable
from typing import Final

import attrs

LINES_A_SECOND: Final = 100
"""Of one kind; journald lets a service write 10,000 lines in 30 s, of all kinds together."""

WINDOW_SECONDS: Final = 1.0
"""The interval in which lines are counted, and of the lines that say how many were left out."""

AUDIT: Final = ".audit"
"""The end of the names of loggers for an operator's actions, each of which has its line."""

KINDS: Final = 256
"""Kinds that are counted apart; all others are counted together. The project has about a hundred,
but lines of other packages may have no `event`, and texts that a peer has made."""

Kind = tuple[str, int, str]
"""A logger's name, a level, and the `event`, or else the text without its values."""

_OTHERS: Final = "other events"


@attrs.define(slots=True)
class _Seen:
    lines: int = 0
    more: int = 0
    last: logging.LogRecord | None = None


class LimitedHandler(logging.Handler):
    """Passes on the first lines of each kind in a second, and counts the rest.

    Once a second there is one line for each kind of which lines were left out, at their level, with
    their number and the last of them (event `more_like_it`). So nothing is left out in silence.

    Args:
        target: The handler that writes the lines.
        lines: Lines of one kind in a second.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        target: logging.Handler,
        lines: int = LINES_A_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.target = target
        self.lines = lines
        self._clock = clock
        self._since = clock()
        self._seen: dict[Kind, _Seen] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a line on, or count it."""
        if record.name.endswith(AUDIT):  # Only the holders of a token make these.
            self.target.handle(record)
            return
        self._end_window()
        kind = record.name, record.levelno, str(getattr(record, "event", record.msg))
        if kind not in self._seen and len(self._seen) >= KINDS:
            kind = "", record.levelno, _OTHERS
        seen = self._seen.setdefault(kind, _Seen())
        if seen.lines < self.lines:
            seen.lines += 1
            self.target.handle(record)
        else:
            seen.more += 1
            seen.last = record

    def sum_up(self) -> None:
        """Log how many lines were left out, if the second is over."""
        self.acquire()  # other threads log, too
        try:
            self._end_window()
        finally:
            self.release()

    def flush(self) -> None:
        """Log how many lines were left out, now."""
        self._tell(self._clock())
        self.target.flush()

    def _end_window(self) -> None:
        now = self._clock()
        if now - self._since >= WINDOW_SECONDS:
            self._tell(now)

    def _tell(self, now: float) -> None:
        seconds, self._since = now - self._since, now
        seen, self._seen = self._seen, {}
        for (_, level, of), each in seen.items():
            if each.last is None:
                continue
            values = {
                "name": each.last.name,
                "levelno": level,
                "levelname": logging.getLevelName(level),
                "msg": "and %s more like this in the last %s: %s",
                "args": (f"{each.more:,}", _seconds(seconds), each.last.getMessage()),
                "event": "more_like_it",
                "of": of,
                "lines": each.more,
                "seconds": round(seconds, 3),
            }
            self.target.handle(logging.makeLogRecord(values))


def _seconds(seconds: float) -> str:
    return "second" if round(seconds, 1) == WINDOW_SECONDS else f"{seconds:.1f} s"


async def keep_summing_up(limited: LimitedHandler) -> None:
    """Log once a second how many lines were left out, until cancelled."""
    # Here, because other commands log, too, and do without it.
    from ..transports._ticker import next_tick

    while True:
        await next_tick(WINDOW_SECONDS)
        limited.sum_up()
