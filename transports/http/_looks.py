"""Lines in the log about who has looked at what, and who was refused.

A scraper asks for the same page every few seconds, for years, and whoever floods the pages must not
flood the log. So the log is told of each address, user, page and answer when it is new, and then at
most every `REPEAT_SECONDS`, with how many there were in between; and of no more than `LINES_BURST`
at once and `LINES_PER_SECOND` in the long run: the rest is counted. Answers and refusals have lines
of their own, so that those who are refused cannot hide those who are not.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

import attrs
import trio

log = logging.getLogger("clearfunds.transports.http")

REPEAT_SECONDS: Final = 3600.0
LINES_BURST: Final = 20
LINES_PER_SECOND: Final = 0.2

KNOWN_MAX: Final = 512
"""Of those that the log has been told of; those who have not looked for longest are forgotten."""

TEXT_MAX: Final = 200
"""Characters of a user's name, and of a reason."""

NO_PAGE: Final = "a page that is not there"
"""Stands for all of their paths, or each would be something new."""


@attrs.frozen
class Look:
    """An answer that somebody got."""

    address: str
    """Where it was asked for, without the port."""
    user: str
    path: str
    """What was asked for: a page's path, or `NO_PAGE`; empty if that could not be read."""
    status: int


@attrs.define
class _Known:
    """When the log was told of a look, and how many there were since."""

    at: float
    times: int = 0


class _Lines:
    """How many lines there may be now, and how many there would have been."""

    def __init__(self) -> None:
        self._left = float(LINES_BURST)
        self._at = trio.current_time()
        self.untold = 0

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self._left = min(LINES_BURST, self._left + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._left < 1:
            self.untold += 1
            return False
        self._left -= 1
        return True


class Looks:
    """See this file's docstring."""

    def __init__(self) -> None:
        self._known: OrderedDict[Look, _Known] = OrderedDict()
        self._answers, self._refusals = _Lines(), _Lines()

    def __len__(self) -> int:
        """Return of how many the log has been told, as far as is known."""
        return len(self._known)

    def note(self, look: Look, peer: str, reason: str = "") -> None:
        """Tell the log of an answer, unless it has been told enough.

        Args:
            look: What was answered to whom.
            peer: Its address, with the port.
            reason: Why it was refused, if it was.
        """
        now = trio.current_time()
        known = self._known.get(look)
        if known is not None and now - known.at < REPEAT_SECONDS:
            known.times += 1
            self._known.move_to_end(look)
            return
        lines = self._refusals if look.status >= 400 else self._answers
        if not lines.take(now):
            return
        times = 1 if known is None else known.times + 1
        self._known[look] = _Known(now)
        self._known.move_to_end(look)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self._tell(look, peer, reason, times, lines.untold)
        lines.untold = 0

    def _tell(self, look: Look, peer: str, reason: str, times: int, untold: int) -> None:
        path, user, reason = look.path, look.user[:TEXT_MAX], reason[:TEXT_MAX]
        fields: dict[str, object] = {
            "event": "looked",
            "peer": peer,
            "user": user,
            "path": path,
            "status": look.status,
            "times": times,
        }
        if look.status >= 400:
            fields |= {"event": "request_refused", "reason": reason}
        what = f"asked for {path} and got {look.status}" if path else f"got {look.status}"
        log.log(
            logging.WARNING if look.status in (401, 403, 421, 429) else logging.INFO,
            "HTTP: %s (user %s) %s%s%s%s",
            peer,
            user,
            what,
            f": {reason}" if reason else "",
            "" if times == 1 else f"; {times} times since the last such line",
            f" (nothing was said of {untold} others)" if untold else "",
            extra=fields,
        )
