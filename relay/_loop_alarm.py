"""The alarm for a late event loop: newcomers wait, so that those who are there are served.

A relay that has more to do than its core can takes every connection's turn later and later; each
new connection costs a log-in, a TLS handshake perhaps, and makes it worse. So while the loop stays
late, first no new connections are accepted (they wait in the kernel's queue), and if that is not
enough, new publishers are not read: connections that had published nothing since the alarm went up,
and those that came after. Those who publish go on, as far as their debt allows.

    quiet --(late by more than the mark)--> NO_CONNECTIONS
    NO_CONNECTIONS --(late by more than twice the mark)--> NO_PUBLISHERS
    NO_PUBLISHERS --(late by the mark or less)--> NO_CONNECTIONS
    NO_CONNECTIONS --(late by half of the mark or less)--> quiet

One step a measurement, and a distance between up and down (hysteresis), as the alarms for memory
have. One long step of the loop is no overload: the measure is the least of the latest `LATEST`
(a standing delay, as CoDel's, RFC 8289).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from ..accounts._cooperative import STEP, with_pauses
from ..accounts._ticker import following

if TYPE_CHECKING:
    from ..accounts import Account, Ledger
    from ..transports._accept_pace import AcceptPace

logger = logging.getLogger("clearfunds.relay")

LOOP: Final = "loop"
"""The alarm's name, where it makes a publisher wait."""

DEFAULT_LOOP_LAG: Final = 1.0
"""Seconds. node-toobusy has 70 ms, for requests that can go to another server; a connection cannot,
and steps of a second are within this relay's limits (`--max-turn-deliveries`)."""

EVERY_SECONDS: Final = 0.5
"""The interval of measurements, as that of the metric; node-toobusy's, too."""

LATEST: Final = 4
"""Measurements of which the least counts: two seconds' worth, or more if the loop is late."""

STRETCH_SECONDS: Final = 0.002
"""Longest walk over the connections before other tasks may run."""

QUIET, NO_CONNECTIONS, NO_PUBLISHERS = range(3)

_WORDS: Final = {
    NO_CONNECTIONS: "no new connections are accepted",
    NO_PUBLISHERS: "no new connections are accepted, and no new publishers are read",
}


def level_after(level: int, late: float, mark: float) -> int:
    """Return the alarm's level after a measurement.

    Args:
        level: The level before: `QUIET`, `NO_CONNECTIONS` or `NO_PUBLISHERS`.
        late: Seconds by which the loop is late.
        mark: Seconds above which the alarm goes up.
    """
    if level == QUIET:
        return NO_CONNECTIONS if late > mark else QUIET
    if level == NO_CONNECTIONS:
        if late > 2 * mark:
            return NO_PUBLISHERS
        return QUIET if late <= mark / 2 else NO_CONNECTIONS
    return NO_CONNECTIONS if late <= mark else NO_PUBLISHERS


class LoopAlarm:
    """The alarm, and its effects.

    Args:
        ledger: Its `troubles` have a sentence while the alarm is up.
        mark: Seconds above which it goes up.
        paces: The listeners, to be closed.
        accounts: Returns the accounts of all connections.

    Attributes:
        level: `QUIET`, `NO_CONNECTIONS` or `NO_PUBLISHERS`.
        raised: How often it has gone up.
    """

    def __init__(
        self,
        ledger: Ledger,
        mark: float,
        paces: Sequence[AcceptPace],
        accounts: Callable[[], Iterable[Account]],
    ) -> None:
        self.level = QUIET
        self.raised = 0
        self._ledger = ledger
        self._mark = mark
        self._paces = paces
        self._accounts = accounts
        self._since = 0.0
        self._latest: deque[float] = deque(maxlen=LATEST)
        # What the connections' accounts had ever borrowed when it went up; those that wait.
        self._borrowed: dict[Account, int] = {}
        self._halted: set[Account] = set()

    def measured(self, late: float) -> None:
        """Take a measurement, in seconds; the alarm goes one step up or down if it has to.

        Each change is logged, with the fields `event` (`loop_alarm`), `level`, `up`, `late` and
        `mark` in seconds, and, when it is over, `seconds`.
        """
        self._latest.append(late)
        if len(self._latest) < LATEST:
            return
        standing = min(self._latest)
        level = level_after(self.level, standing, self._mark)
        if self.level or level:
            self._ledger.troubles.pop(LOOP, None)
        if level:
            self._ledger.troubles[LOOP] = (
                f"the event loop is {standing:.1f} s late: {_WORDS[level]}"
            )
        if level != self.level:
            self._change(level, standing)

    def _change(self, level: int, late: float) -> None:
        before, self.level = self.level, level
        now = self._ledger.clock()
        extra: dict[str, object] = {
            "event": "loop_alarm",
            "level": level,
            "up": level > before,
            "late": round(late, 3),
            "mark": self._mark,
        }
        if before == QUIET:
            self.raised += 1
            self._since = now
            for pace in self._paces:
                pace.close()
        elif level == QUIET:
            seconds = now - self._since
            self._end()
            logger.warning(
                "alarm over after %.1f s: the event loop is %.1f s late; connections are accepted",
                seconds, late, extra={**extra, "seconds": round(seconds, 3)},
            )  # fmt: skip
            return
        elif level < before:
            self._resume()
        logger.warning(
            "alarm: the event loop stays %.1f s late: %s until it is %.1f s or less",
            late, _WORDS[level], self._mark / (3 - level), extra=extra,
        )  # fmt: skip

    def hold_newcomers(self) -> Generator[None]:
        """Note who publishes when the alarm has gone up; later, let all others wait. In steps."""
        noting = self.level == NO_CONNECTIONS and not self._borrowed
        if not noting and self.level != NO_PUBLISHERS:
            return
        for number, account in enumerate(list(self._accounts()), 1):
            if not number % STEP:
                yield
            if noting:
                self._borrowed[account] = _borrowed(account)
            elif self._borrowed.get(account) in (None, _borrowed(account)):
                account.halt(LOOP)
                self._halted.add(account)

    def _resume(self) -> None:
        halted, self._halted = self._halted, set()
        for account in halted:
            account.resume(LOOP)

    def _end(self) -> None:
        self._borrowed.clear()
        self._resume()
        for pace in self._paces:
            pace.open()

    def close(self) -> None:
        """End the alarm, whatever was measured: no more measurements will come."""
        self.level = QUIET
        self._ledger.troubles.pop(LOOP, None)
        self._end()


def _borrowed(account: Account) -> int:
    """Return what a connection's account has ever borrowed, with those of its topics."""
    return account.borrowed_items + sum(each.borrowed_items for each in account.below or ())


async def watch_loop(alarm: LoopAlarm) -> None:
    """Measure how late the loop wakes a task that sleeps, until cancelled; the alarm is over then.

    Raises:
        trio.Cancelled: As usual.
    """
    try:
        while True:
            due = following(trio.current_time(), EVERY_SECONDS)
            await trio.sleep_until(due)
            alarm.measured(max(0.0, trio.current_time() - due))
            if alarm.level:
                await with_pauses(alarm.hold_newcomers(), STRETCH_SECONDS)
    finally:
        alarm.close()
