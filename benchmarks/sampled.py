"""`clearfunds` with a built-in sampler of the user time of its process.

    python benchmarks/sampled.py OUTPUT relay --listen ...

From SIGUSR2 until it ends, the process is interrupted once for each `INTERVAL` of its user time,
and records the current function. The result is written as JSON: "user" and "system", the CPU
seconds since that signal, and "samples", [file, function, count].

The kernel's work is timed, not sampled. An external sampler (py-spy) has to stop the process for
each sample. In a virtual machine that happens nearly always where the process enters or leaves the
kernel: in such samples, hardly any time was spent elsewhere.

The interpreter handles a signal at the next call, return or jump backwards. So the time of a
builtin counts for its caller, and sometimes that of a short function, too.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from clearfunds.__main__ import main as clearfunds

INTERVAL: Final = 0.004
"""Seconds of user time: a tick of Linux as most are built (HZ=250), which a timer of this kind
cannot be finer than."""


class Sampler:
    """Counts in which function the process is, once for each interval of its user time."""

    def __init__(self) -> None:
        self._samples: collections.Counter[tuple[str, str]] = collections.Counter()
        self._begun: os.times_result | None = None

    def begin(self, _signal: int, _frame: FrameType | None) -> None:
        """Begin, or begin anew."""
        signal.signal(signal.SIGVTALRM, self._take)
        self._samples.clear()
        self._begun = os.times()
        signal.setitimer(signal.ITIMER_VIRTUAL, INTERVAL, INTERVAL)

    def _take(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._samples[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    def end(self, output: Path) -> None:
        """Stop, and write what was found; nothing if it has never begun."""
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        begun, ended = self._begun, os.times()
        if begun is None:
            return
        found = {
            "user": ended.user - begun.user,
            "system": ended.system - begun.system,
            "samples": [[*place, count] for place, count in self._samples.most_common()],
        }
        output.write_text(json.dumps(found))


def main() -> None:
    """Run `clearfunds` with the arguments after the first."""
    output = Path(sys.argv.pop(1))
    sampler = Sampler()
    signal.signal(signal.SIGUSR2, sampler.begin)
    try:
        clearfunds()
    finally:
        sampler.end(output)


if __name__ == "__main__":
    main()
