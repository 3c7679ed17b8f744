"""Signals that a program started by a test must hear, whoever started the tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def heard(
    number: signal.Signals,
    how: signal.Handlers | Callable[[int, FrameType | None], None] = signal.SIG_DFL,
) -> Generator[None]:
    """Handle a signal so for a while if it is ignored.

    What a process ignores the programs that it starts ignore too: SIGINT in the background of a
    shell without job control, SIGHUP under nohup.
    """
    ignored = signal.getsignal(number) is signal.SIG_IGN
    if ignored:
        signal.signal(number, how)
    try:
        yield
    finally:
        if ignored:
            signal.signal(number, signal.SIG_IGN)
