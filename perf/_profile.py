"""Load profiles: the number of messages due by a given time, at rates that change in a cycle.

`RATE:SECONDS`, several of them separated by commas, is a cycle, as in `--variable-rate` of
RabbitMQ's PerfTest; `FROM-TO:SECONDS` is a ramp within it, and a rate alone holds for ever.

A message is due at a certain moment, whether it can be sent then or not. Latency counts from that
moment: a generator that waits until it can send, and counts from there, leaves out just the
messages that had to wait (Gil Tene calls it coordinated omission).
"""

from __future__ import annotations

import math
import re
from typing import Final

import attrs

from ._errors import ScenarioError

_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_SLACK: Final = 1e-9
"""Rounding error of sums of fractions, in messages."""

_STEP: Final = re.compile(rf"({_NUMBER})(?:-({_NUMBER}))?:({_NUMBER})")


@attrs.frozen
class Step:
    """A stretch of a profile."""

    first: float
    """Messages a second at its beginning."""
    last: float
    """Messages a second at its end."""
    seconds: float
    """Its length."""

    @property
    def count(self) -> float:
        """The number of messages due in all of it."""
        return (self.first + self.last) / 2 * self.seconds

    def due(self, at: float) -> float:
        """Return the number of messages due until `at` seconds from its beginning."""
        return self.first * at + (self.last - self.first) / (2 * self.seconds) * at * at

    def time_of(self, count: float) -> float:
        """Return the time when `count` messages are due, in seconds from its beginning."""
        slope = (self.last - self.first) / self.seconds
        # Of the two ways to write the root, this one holds without a slope, too.
        under = max(self.first * self.first + 2 * slope * count, 0.0)
        below = self.first + math.sqrt(under)
        # Of tiny rates the rounding is larger than the rates are.
        return min(max(2 * count / below, 0.0), self.seconds) if below else 0.0


@attrs.frozen
class Profile:
    """The number of messages that one publisher is to publish, by time.

    Args:
        steps: The steps of a cycle, in order; at least one message has to be due in them.
    """

    steps: tuple[Step, ...]
    seconds: float = attrs.field(init=False)
    """Length of a cycle."""
    count: float = attrs.field(init=False)
    """Messages due in a cycle."""

    def __attrs_post_init__(self) -> None:
        """Compute the sums of a cycle."""
        object.__setattr__(self, "seconds", sum(step.seconds for step in self.steps))
        object.__setattr__(self, "count", sum(step.count for step in self.steps))
        if not self.count > 0:
            raise ScenarioError("a profile without a message: one of its rates has to be above 0")

    @classmethod
    def parse(cls, text: str) -> Profile:
        """Read `1000`, or `1000:10,0:5`, or `0-1000:10,1000:20`.

        Raises:
            ScenarioError: It is not a profile.
        """
        if re.fullmatch(_NUMBER, text):
            return cls((Step(float(text), float(text), 1.0),))
        steps: list[Step] = []
        for part in text.split(","):
            match = _STEP.fullmatch(part.strip())
            if match is None or not float(match[3]) > 0:
                msg = (
                    f'"{part.strip()}" is not RATE:SECONDS or FROM-TO:SECONDS, in messages a '
                    'second of each publisher ("1000:10,0:5")'
                )
                raise ScenarioError(msg)
            first = float(match[1])
            last = first if match[2] is None else float(match[2])
            steps.append(Step(first, last, float(match[3])))
        return cls(tuple(steps))

    def due(self, at: float) -> int:
        """Return the number of messages due by `at`, in seconds (`time_of` is `at` or less)."""
        if at < 0:
            return 0
        cycles, rest = divmod(at, self.seconds)
        total = cycles * self.count
        for step in self.steps:
            total += step.due(min(rest, step.seconds))
            rest -= step.seconds
            if rest <= 0:
                break
        whole = math.floor(total + _SLACK)
        return whole + 1 if self.time_of(whole) <= at else whole

    def time_of(self, number: int) -> float:
        """Return the time when message `number`, from 0, is due, in seconds."""
        cycles, rest = divmod(float(number), self.count)
        at = cycles * self.seconds
        for step in self.steps:
            if step.count and rest < step.count - _SLACK:
                return at + step.time_of(rest)
            rest -= step.count
            at += step.seconds
        return at

    def mean_rate(self) -> float:
        """Return the messages a second, averaged over a whole cycle."""
        return self.count / self.seconds
