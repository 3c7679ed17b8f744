"""Log lines about access to the pages: granted and refused.

A scraper asks for the same page every few seconds, for years, and a flood of requests must not
flood the log. So each combination of address, user, page and answer is logged when it is new, and
then at most every `REPEAT_SECONDS`, with the number of repetitions. At most `LINES_BURST` lines are
written at once and `LINES_PER_SECOND` in the long run: the rest is counted. Answers and refusals
have separate budgets, so that refused requests cannot hide others.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

import attrs
import trio

log = logging.getLogger("clearfunds.pages")

REPEAT_SECONDS: Final = 3600.0
LINES_BURST: Final = 20
LINES_PER_SECOND: Final = 0.2

KNOWN_MAX: Final = 512
"""Combinations remembered; the ones not seen for longest are forgotten."""

TEXT_MAX: Final = 200
"""Characters of a user's name, and of a reason."""

NO_PAGE: Final = "a page that is not there"
"""Stands for all unknown paths: otherwise each would be new."""

A_CHANGE: Final = "a change"
"""Stands for the paths of all requests that change something: they have names of accounts."""


@attrs.frozen
class Look:
    """An answer to a request."""

    address: str
    """The client's address, without the port."""
    user: str
    path: str
    """The path of the page, or `NO_PAGE`; empty if it could not be parsed."""
    status: int


@attrs.define
class _Known:
    """When a combination was last logged, and its number of repetitions since."""

    at: float
    times: int = 0


class _Lines:
    """The budget of log lines, and the number of lines beyond it."""

    def __init__(self) -> None:
        self._left = float(LINES_BURST)
        self._at = trio.current_time()
        self.untold = 0

    def take(self, now: float) -> bool:
        """Take a line from the budget, if there is one."""
        self._left = min(LINES_BURST, self._left + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._left < 1:
            self.untold += 1
            return False
        self._left -= 1
        return True


class Looks:
    """The log of access by the rules of this file's docstring."""

    def __init__(self) -> None:
        self._known: OrderedDict[Look, _Known] = OrderedDict()
        self._answers, self._refusals = _Lines(), _Lines()

    def __len__(self) -> int:
        """Return the number of combinations remembered."""
        return len(self._known)

    def note(self, look: Look, peer: str, reason: str = "") -> None:
        """Log an answer, within the budget.

        Args:
            look: The answer.
            peer: The client's address, with the port.
            reason: The reason of a refusal.
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
            f" ({untold} other lines were left out)" if untold else "",
            extra=fields,
        )
