"""Where the relay's time goes, by py-spy: how much of it is the bookkeeping of debt.

Each sample is put down to one place: the system call it was in, if it was in one of those that move
bytes; otherwise the innermost Python function, with all the interpreter's work for it.
"""

from __future__ import annotations

import collections
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

RATE = 250
"""Samples a second: enough for one in a hundred after three seconds, and py-spy keeps up."""

BOOKKEEPING_SHARE = 0.15
"""What the bookkeeping of debt may take of the profile."""

# The system calls under which bytes move, and the wait for them, as libc names them.
SYSTEM_CALLS = ("send", "recv", "sendmsg", "writev", "epoll_wait", "epoll_ctl", "accept4")

# Of what hands over and sends, all that is not the system call: what it costs is bookkeeping too.
OUTLETS = ("transports/_outlet.py", "transports/_at_once.py")


class ProfileError(Exception):
    """The relay could not be profiled; the message says why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a sample was taken."""

    file: str
    """From the package's folder on, as in ``accounts/_loan.py``; ``(system)`` for a system call."""

    function: str

    @property
    def is_bookkeeping(self) -> bool:
        """Whether what is done there is the bookkeeping of debt."""
        return self.file.startswith("accounts/") or self.file in OUTLETS


@dataclasses.dataclass(frozen=True)
class Profile:
    """How many samples were taken where."""

    samples: collections.Counter[Place]

    @property
    def bookkeeping(self) -> float:
        """The share of the samples that were taken in the bookkeeping of debt."""
        total = self.samples.total()
        return sum(n for place, n in self.samples.items() if place.is_bookkeeping) / total

    def rows(self, most: int = 20) -> list[list[str]]:
        """Return the places with most samples: share, function, file, whether it keeps books."""
        total = self.samples.total()
        return [
            [
                f"{count / total:.1%}",
                place.function,
                place.file,
                "yes" if place.is_bookkeeping else "",
            ]
            for place, count in self.samples.most_common(most)
        ]


def find() -> str:
    """Return where py-spy is: beside this Python, or on the PATH.

    Raises:
        ProfileError: It is nowhere.
    """
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise ProfileError(f"--profile needs py-spy: {sys.executable} -m pip install py-spy")
    return found


def start(program: str, pid: int, seconds: float, output: Path) -> subprocess.Popen[bytes]:
    """Begin to sample a process; the output is there when py-spy has ended by itself."""
    options = {
        "--pid": pid,
        "--duration": max(1, round(seconds)),
        "--rate": RATE,
        "--format": "raw",
        "--output": output,
    }
    command = [program, "record", "--native", "--full-filenames"]
    command += [str(word) for pair in options.items() for word in pair]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[bytes], output: Path) -> Profile:
    """Wait for py-spy and read what it wrote.

    Raises:
        ProfileError: It failed (it needs the right to trace the process), or took no samples.
    """
    said, _ = process.communicate(timeout=60)
    if process.returncode != 0:
        raise ProfileError(f"py-spy failed: {said.decode(errors='replace').strip()}")
    profile = Profile(read(output.read_text()))
    if not profile.samples:
        raise ProfileError("py-spy took no samples: the relay was idle")
    return profile


def read(raw: str) -> collections.Counter[Place]:
    """Read py-spy's raw format: a stack, outermost frame first, and a count on each line."""
    samples: collections.Counter[Place] = collections.Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        samples[place_of(stack.split(";"))] += int(count)
    return samples


def place_of(frames: list[str]) -> Place:
    """Return what a stack is put down to. A frame reads ``function (file:line)``."""
    innermost = frames[-1].partition(" (")[0].removeprefix("__libc_").lstrip("_")
    if innermost in SYSTEM_CALLS:
        return Place("(system)", innermost)
    for frame in reversed(frames):
        function, _, where = frame.rpartition(" (")
        file, _, _line = where.rstrip(")").rpartition(":")
        if file.endswith(".py"):
            return Place(shortened(file), function)
    return Place("(interpreter)", frames[-1].partition(" (")[0])


def shortened(file: str) -> str:
    """Leave out where a package is installed."""
    for folder in ("/clearfunds/", "/site-packages/"):
        if folder in file:
            return file.rpartition(folder)[2]
    return Path(file).name
