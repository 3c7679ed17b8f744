"""The program of the guard: kills processes when its stdin ends; see `_guard.py`.

Each line of stdin is `+PID` or `-PID`. It runs alone, on the standard library, to start in no time.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress


def those_left(lines: Iterable[str]) -> set[int]:
    """Return the processes that were added and not removed, when the lines have ended."""
    left: set[int] = set()
    for line in lines:
        change = left.add if line.startswith("+") else left.discard
        change(int(line[1:]))
    return left


def main() -> None:
    """Wait for the end of stdin, then kill the processes that are left."""
    for pid in those_left(sys.stdin):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
