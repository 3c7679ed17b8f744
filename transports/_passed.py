"""Calendar time that only passes: expiry is counted in seconds that have gone by.

The wall clock may be set at any time. A machine without a battery for its clock boots at the date
of its firmware, and is set right by NTP a minute later: by the wall clock, every session and every
message that expires would be over then. So a relay reads the wall clock once, and counts from
there.

From one run to the next the count goes on where it was noted:

    same boot of the machine   by as much as the machine has been up since, whatever its clock says
    later, by the wall clock   by as much as that is later than when it was last believed
    earlier                    not at all: the clock is wrong, and nobody knows how long it was off

The wall clock is believed while it is not behind what it has said before. Sleeping counts: the
clock is CLOCK_BOOTTIME, where there is one.

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
    """Return an identifier of this boot of the machine; "" if there is none."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@attrs.frozen(slots=True)
class Noted:
    """The saved state of a `PassedTime`; nanoseconds."""

    now: int
    """Its time."""
    wall: int
    """The wall clock when it was last believed."""
    at: int
    """Its own time then."""
    boot: str
    """The boot of the machine; "": unknown."""
    since_boot: int
    """The time for which the machine had been up."""

    @classmethod
    def of(cls, value: bytes) -> Self:
        """Decode it.

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
        """Encode it as bytes."""
        return json.dumps(attrs.asdict(self), separators=(",", ":")).encode()


class PassedTime:
    """A clock: call it for the seconds since 1970, as far as it knows them.

    Args:
        noted: The saved state of the run before; None: there is none.
        wall: The wall clock, in nanoseconds since 1970.
        passed: How long the machine has been up, in nanoseconds.
        boot: This boot; "": unknown.
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
        # The time when the wall clock was last believed, and this clock's time then.
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
        """Let it return at least this from now on: something written then has been seen."""
        behind = int(seconds * SECOND) - self.ns()
        if behind > 0:
            self._offset += behind

    def note(self) -> Noted:
        """Return the state to save for the next run."""
        calendar, now = self._wall(), self.ns()
        if calendar >= self._believed[0]:
            self._believed = (calendar, now)
        wall, at = self._believed
        return Noted(now, wall, at, self._boot, self._passed())
