"""Alarms: when memory or the disk is short, all publishers wait, whatever they owe.

They are like RabbitMQ's resource alarms. Each kind is a small state machine with two marks:

    quiet --(the measure reaches the mark)--> up
    up --(the measure is back at the other mark)--> quiet

Rules of this file:
1. An alarm halts one account (`Account.halt`), the root: its readers and those of its descendants
   wait. Deliveries, acknowledgements and repayments go on.
2. Several may be up at a time; readers go on when the last is over.
3. Between the marks nothing changes (hysteresis): an alarm that stops publishers lowers the very
   measure, and without a distance every second sample would raise or clear it.
4. Nothing is measured here: the caller gives samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from .._account import Account

logger = logging.getLogger("clearfunds.accounts")

MEMORY: Final = "memory"
"""The alarm for memory that the process uses. Debt is in memory, so repayments relieve it: readers
that wait for this alarm wait for holders (rule 11 of the accounts)."""

DISK: Final = "disk"
"""The alarm for free space on the store's disk."""


@attrs.frozen(slots=True)
class Watermark:
    """The marks at which an alarm goes up and is over. If `clear` is below `mark`, the alarm is for
    too much of something, otherwise for too little.

    Raises:
        ValueError: If both are the same, or one is negative.
    """  # noqa: D205

    mark: int
    """The alarm goes up when the measure is above it, or below it."""
    clear: int
    """The alarm is over when the measure is back at it, or beyond."""

    def __attrs_post_init__(self) -> None:
        if self.mark < 0 or self.clear < 0:
            msg = f"a watermark must not be negative: {self.mark}, {self.clear}"
            raise ValueError(msg)
        if self.mark == self.clear:
            msg = (
                f"an alarm at {self.mark} must be over at another mark, or each sample would raise "
                "or clear it"
            )
            raise ValueError(msg)

    @property
    def against_much(self) -> bool:
        """Whether the alarm is for too high a measure."""
        return self.clear < self.mark

    def after(self, value: int, *, up: bool) -> bool:
        """Whether the alarm is up after a measure of `value`, given whether it was `up` before."""
        if self.against_much:
            return value > (self.clear if up else self.mark)
        return value < (self.clear if up else self.mark)


@attrs.frozen(slots=True)
class AlarmStatistics:
    """The state of one alarm."""

    kind: str
    """`memory` or `disk`."""
    up: bool
    """Whether all publishers wait for it."""
    value: int | None
    """The last measure, in bytes: of memory used, of disk free. None: nothing yet."""
    mark: int
    """The measure at which it goes up."""
    clear: int
    """The measure at which it is over."""
    raised: int
    """How often it has gone up."""
    seconds: float
    """Total seconds that it has been up, a current alarm included."""


@attrs.define(slots=True)
class _Alarm:
    watermark: Watermark
    up: bool = False
    value: int | None = None
    raised: int = 0
    since: float = 0.0
    seconds: float = 0.0


_WORDS: Final = {
    MEMORY: ("memory is short", "bytes are in use"),
    DISK: ("the disk is nearly full", "bytes are free"),
}


class Alarms:
    """The alarms that halt one account.

    Args:
        account: The account whose readers, and its descendants' readers, wait.
        watermarks: The marks of each alarm, by its kind.

    Attributes:
        on_short: Called for each measure while an alarm is up, with the alarm's kind and the amount
            beyond its `clear` mark. It makes room if it can, and returns words for the log about
            the largest holders. None: nothing is called.
    """

    def __init__(self, account: Account, watermarks: dict[str, Watermark]) -> None:
        self.on_short: Callable[[str, int], str] | None = None
        self._account = account
        self._alarms = {kind: _Alarm(watermark) for kind, watermark in watermarks.items()}
        account.ledger.alarms.update(dict.fromkeys(watermarks, False))

    @property
    def up(self) -> tuple[str, ...]:
        """The kinds of the alarms that are up."""
        return tuple(kind for kind, alarm in self._alarms.items() if alarm.up)

    def sample(self, kind: str, value: int) -> bool | None:
        """Take a measure; raise or clear the alarm of that kind if it has passed a mark.

        Each change is logged at level WARNING, with the fields `event` (`alarm`), `kind`, `up`,
        `value`, `mark`, `clear`, `waiting` (readers that wait, for any reason), and at its end
        `seconds`.

        Returns:
            True if it has gone up, False if it is over, None if nothing has changed.
        """
        alarm = self._alarms[kind]
        alarm.value = value
        up = alarm.watermark.after(value, up=alarm.up)
        holders = ""
        if up and self.on_short is not None:
            holders = self.on_short(kind, abs(value - alarm.watermark.clear))
        if up == alarm.up:
            return None
        ledger = self._account.ledger
        now = ledger.clock()
        alarm.up = ledger.alarms[kind] = up
        if up:
            alarm.raised += 1
            alarm.since = now
            self._tell(kind, alarm, 0.0, holders)
            self._account.halt(kind)
        else:
            seconds = now - alarm.since
            alarm.seconds += seconds
            self._tell(kind, alarm, seconds)
            self._account.resume(kind)
        return up

    def clear_all(self) -> None:
        """End every alarm, whatever was measured: no more samples will come."""
        for kind, alarm in self._alarms.items():
            if alarm.up:
                alarm.seconds += self._account.ledger.clock() - alarm.since
                alarm.up = self._account.ledger.alarms[kind] = False
                self._account.resume(kind)

    def statistics(self) -> tuple[AlarmStatistics, ...]:
        """Return the state of each alarm."""
        now = self._account.ledger.clock()
        return tuple(
            AlarmStatistics(
                kind=kind,
                up=alarm.up,
                value=alarm.value,
                mark=alarm.watermark.mark,
                clear=alarm.watermark.clear,
                raised=alarm.raised,
                seconds=alarm.seconds + (now - alarm.since if alarm.up else 0.0),
            )
            for kind, alarm in self._alarms.items()
        )

    def _tell(self, kind: str, alarm: _Alarm, seconds: float, holders: str = "") -> None:
        waiting = len(self._account.ledger.waiters)
        watermark = alarm.watermark
        what, unit = _WORDS.get(kind, (kind, "is measured"))
        others = _and([each for each in self.up if each != kind])
        extra: dict[str, object] = {
            "event": "alarm",
            "kind": kind,
            "up": alarm.up,
            "account": self._account.name,
            "value": alarm.value,
            "mark": watermark.mark,
            "clear": watermark.clear,
            "waiting": waiting,
        }
        if alarm.up:
            if holders:
                extra["holders"] = holders
            logger.warning(
                "alarm: %s: %d %s, %s than %d; all who publish wait until it is %d%s",
                what,
                alarm.value,
                unit,
                "more" if watermark.against_much else "less",
                watermark.mark,
                watermark.clear,
                f"; {holders}" if holders else "",
                extra=extra,
            )
            return
        extra["seconds"] = round(seconds, 3)
        logger.warning(
            "alarm over after %.1f s: %d %s; %s",
            seconds,
            alarm.value,
            unit,
            f"the alarm of {others} is still up" if others else f"{waiting} that wait go on",
            extra=extra,
        )


def _and(words: Iterable[str]) -> str:
    return " and ".join(words)
