"""A profile of the relay's CPU time: the share of the bookkeeping of debt.

The process samples its own user time (`sampled.py`). Each sample counts for the innermost Python
function, with all of the interpreter's work for it. The kernel's time is one sum, nearly all of it
for sending and receiving.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.servers import AnyServer, Relay

BOOKKEEPING_SHARE = 0.15
"""What the bookkeeping of debt may take of the relay's CPU time."""

PROGRAM = Path(__file__).with_name("sampled.py")

# Of what hands over and sends, all that is not the system call: what it costs is bookkeeping too.
OUTLETS = (
    "transports/_outlet.py",
    "transports/_consumer_queue.py",
    "transports/_direct_send.py",
)


class ProfileError(Exception):
    """The relay could not be profiled; the message says why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a sample was taken."""

    file: str
    """From the package's folder on, as in ``accounts/_loan.py``."""

    function: str

    @property
    def is_bookkeeping(self) -> bool:
        """Whether what is done there is the bookkeeping of debt."""
        return self.file.startswith("accounts/") or self.file in OUTLETS


@dataclasses.dataclass(frozen=True)
class Profile:
    """How many samples were taken where."""

    samples: collections.Counter[Place]
    user: float
    """The part of the CPU time that the samples are of; the rest is the kernel's."""

    @property
    def bookkeeping(self) -> float:
        """The share of the CPU time that goes into the bookkeeping of debt."""
        return sum(self.share(place) for place in self.samples if place.is_bookkeeping)

    def share(self, place: Place) -> float:
        """Return which share of the CPU time is spent there."""
        return self.user * self.samples[place] / self.samples.total()

    def rows(self, most: int = 20) -> list[list[str]]:
        """Return the places with most samples: share, function, file, whether it keeps books."""
        return [
            [
                f"{self.share(place):.1%}",
                place.function,
                place.file,
                "yes" if place.is_bookkeeping else "",
            ]
            for place, _ in self.samples.most_common(most)
        ]


def sampled(server: AnyServer, output: Path) -> Relay:
    """Return the relay as it is with the sampler in it, which writes there what it finds.

    Raises:
        ProfileError: It is not the relay of this checkout, or this is no system for it.
    """
    if not isinstance(server, Relay):
        raise ProfileError(f"only the relay of this checkout has a sampler, not {server.name}")
    if sys.platform != "linux":
        raise ProfileError("a timer for a process's user time is looked for on Linux only")
    return dataclasses.replace(server, program=(str(PROGRAM), str(output), "relay"))


def begin(pid: int) -> None:
    """Let a sampled relay begin to count."""
    os.kill(pid, signal.SIGUSR2)


def read(output: Path) -> Profile:
    """Read what a sampled relay, which has ended, has written.

    Raises:
        ProfileError: It has written nothing, or took no samples.
    """
    try:
        found: dict[str, Any] = json.loads(output.read_text())
    except FileNotFoundError as error:
        raise ProfileError("the relay has left no samples") from error
    samples: collections.Counter[Place] = collections.Counter()
    for file, function, count in found["samples"]:
        samples[Place(shortened(file), function)] += count
    if not samples:
        raise ProfileError("no samples were taken: the relay was idle")
    return Profile(samples, found["user"] / (found["user"] + found["system"]))


def shortened(file: str) -> str:
    """Leave out where a package is installed."""
    for folder in ("/site-packages/clearfunds/", "/site-packages/", "/clearfunds/"):
        if folder in file:
            return file.rpartition(folder)[2]
    return Path(file).name
