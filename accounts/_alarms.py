"""Alarms: when memory or the disk is short, all who publish wait, whatever they owe.

As RabbitMQ's resource alarms. Each kind is a small state machine with two marks:

    quiet --(the measure reaches the mark)--> up
    up --(the measure is back at the other mark)--> quiet

Rules of this file:
1. An alarm halts one account (`Account.halt`), the one above all: its readers and those of its
   descendants wait. Whoever is to be told what is there, acknowledges or repays, is not hindered.
2. Several may be up at a time; readers go on when the last is over.
3. Between the marks nothing changes: an alarm that stops publishers relieves what it measures, and
   without a distance it would be raised and cleared by each second sample.
4. Nothing is measured here: who watches gives samples and says what time it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from ._account import Account

logger = logging.getLogger("clearfunds.accounts")

MEMORY: Final = "memory"
"""The alarm for memory that the process uses. What is owed is in memory, so it is among what those
who repay can relieve: readers that wait for it wait for holders (rule 11 of the accounts)."""

DISK: Final = "disk"
"""The alarm for free space on the store's disk."""


@attrs.frozen(slots=True)
class Watermark:
    """Past which mark an alarm goes up, and at which it is over. Where `clear` is below `mark`, it
    is for too much of something, otherwise for too little.

    Raises:
        ValueError: If both are the same, or one is negative.
    """  # noqa: D205

    mark: int
    """The measure is above it, or below it, when the alarm goes up."""
    clear: int
    """The measure is at it, or beyond, when the alarm is over."""

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
        """Whether the alarm is for too much of what is measured."""
        return self.clear < self.mark

    def after(self, value: int, *, up: bool) -> bool:
        """Whether the alarm is up when `value` has been measured, if it has been `up` or not."""
        if self.against_much:
            return value > (self.clear if up else self.mark)
        return value < (self.clear if up else self.mark)


@attrs.frozen(slots=True)
class AlarmStatistics:
    """One alarm."""

    kind: str
    """`memory` or `disk`."""
    up: bool
    """Whether all who publish wait for it."""
    value: int | None
    """What was measured last, in bytes: of memory used, of disk free. None: nothing yet."""
    mark: int
    """Where it goes up."""
    clear: int
    """Where it is over."""
    raised: int
    """How often it has gone up."""
    seconds: float
    """For how long it has been up in all, what goes on included."""


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
        account: Whose readers wait, and whose descendants'.
        watermarks: Where each alarm goes up and is over, by its kind.

    Attributes:
        on_short: Is called with its kind for each measure while an alarm is up, and with how much
            is beyond where it is over: makes room if it can, and says in words for the log who
            holds what there is too much of. None: nobody does.
    """

    def __init__(self, account: Account, watermarks: dict[str, Watermark]) -> None:
        self.on_short: Callable[[str, int], str] | None = None
        self._account = account
        self._alarms = {kind: _Alarm(watermark) for kind, watermark in watermarks.items()}
        account.ledger.alarms.update(dict.fromkeys(watermarks, False))

    @property
    def up(self) -> tuple[str, ...]:
        """The kinds of those that are up."""
        return tuple(kind for kind, alarm in self._alarms.items() if alarm.up)

    def sample(self, kind: str, value: int) -> bool | None:
        """Take a measure; raise the alarm of that kind, or clear it, if it is time to.

        Logged at level WARNING, with the fields `event` (`alarm`), `kind`, `up`, `value`, `mark`,
        `clear`, `waiting` (readers that wait, for whatever), and at its end `seconds`.

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
        """End every alarm, whatever was measured: nobody watches any more."""
        for kind, alarm in self._alarms.items():
            if alarm.up:
                alarm.seconds += self._account.ledger.clock() - alarm.since
                alarm.up = self._account.ledger.alarms[kind] = False
                self._account.resume(kind)

    def statistics(self) -> tuple[AlarmStatistics, ...]:
        """Return how each of them stands."""
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
