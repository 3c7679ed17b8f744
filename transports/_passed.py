"""Calendar time that only passes: what expires is counted in seconds that have gone by.

The wall clock may be set at any time. A machine without a battery for its clock boots at the date
of its firmware, and is set right by NTP a minute later: by the wall clock, every session and every
message that expires would be over then. So a relay asks the wall clock once, and counts from there.

From one run to the next the count goes on where it was noted:

    same boot of the machine   by as much as the machine has been up since, whatever its clock says
    later, by the wall clock   by as much as that is later than when it was last believed
    earlier                    not at all: the clock is wrong, and nobody knows how long it was off

The wall clock is believed while it is not behind what it has said before. Sleeping counts: it is
CLOCK_BOOTTIME that is read, where there is one.

Source: systemd-timesyncd keeps a noted time in the same way, so that a clock never runs backwards
over a boot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import attrs

SECOND: Final = 1_000_000_000

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> int:
    """Return the nanoseconds since the machine was started, those included that it slept."""
    return time.clock_gettime_ns(_CLOCK)


def boot_id(proc: Path = Path("/proc")) -> str:
    """Return what names this boot of the machine; "" where nothing does."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@attrs.frozen(slots=True)
class Noted:
    """What is written down of a `PassedTime`; nanoseconds."""

    now: int
    """What it said."""
    wall: int
    """What the wall clock said when it was last believed."""
    at: int
    """What it said itself then."""
    boot: str
    """Which boot of the machine that was; "": unknown."""
    since_boot: int
    """How long the machine had been up."""

    @classmethod
    def of(cls, value: bytes) -> Self:
        """Read it.

        Raises:
            ValueError: If it is none.
        """
        try:
            found = cls(**json.loads(value))
        except (TypeError, RecursionError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from exc
        wanted = {"boot": str}
        for name, each in attrs.asdict(found).items():
            if type(each) is not wanted.get(name, int):
                raise ValueError(f"its {name} is {each!r}")
        return found

    def encode(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(attrs.asdict(self), separators=(",", ":")).encode()


class PassedTime:
    """A clock: call it for the seconds since 1970, as far as it knows them.

    Args:
        noted: What was written down of it in the run before; None: nothing was.
        wall: The wall clock, in nanoseconds since 1970.
        passed: How long the machine has been up, in nanoseconds.
        boot: Which boot this is; "": unknown.
    """

    def __init__(
        self,
        noted: Noted | None = None,
        *,
        wall: Callable[[], int] = time.time_ns,
        passed: Callable[[], int] = since_boot,
        boot: str | None = None,
    ) -> None:
        self._wall = wall
        self._passed = passed
        self._boot = boot_id() if boot is None else boot
        up, calendar = passed(), wall()
        now = calendar
        # When the wall clock was last believed, and what this one said then.
        self._believed = (calendar, calendar)
        if noted is not None:
            now = noted.now
            if self._boot and self._boot == noted.boot and up >= noted.since_boot:
                now += up - noted.since_boot
            elif calendar > noted.wall:
                now = max(now, noted.at + calendar - noted.wall)
            self._believed = (noted.wall, noted.at)
        self._offset = now - up

    def __call__(self) -> float:
        """Return the seconds since 1970."""
        return (self._passed() + self._offset) / SECOND

    def ns(self) -> int:
        """Return the same in nanoseconds."""
        return self._passed() + self._offset

    def not_before(self, seconds: float) -> None:
        """Let it say at least this from now on: something has been seen that was written then."""
        behind = int(seconds * SECOND) - self.ns()
        if behind > 0:
            self._offset += behind

    def note(self) -> Noted:
        """Return what to write down of it, for the next run."""
        calendar, now = self._wall(), self.ns()
        if calendar >= self._believed[0]:
            self._believed = (calendar, now)
        wall, at = self._believed
        return Noted(now, wall, at, self._boot, self._passed())
