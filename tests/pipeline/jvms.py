"""A session of Spark in this process, and how many processes may have one at a time."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

JVMS: Final = min((os.cpu_count() or 1) // 2 or 1, 4)
"""At a time: each keeps more than one core busy, and compiles all of Spark anew."""


class Jvm:
    """A session that starts when it is first asked for, and stays until the end of its turn."""

    def __init__(self) -> None:
        self._turn: int | None = None
        self._open = ExitStack()
        self._session: SparkSession | None = None

    def wait_for_turn(self, turns: Path) -> None:
        """Wait until fewer than `JVMS` processes have one; all of a test run share the folder."""
        while self._turn is None:
            for number in range(JVMS):
                fd = os.open(turns / f"jvm-{number}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(fd)
                else:
                    self._turn = fd
                    return
            time.sleep(0.1)

    def session(self, start: Callable[[], AbstractContextManager[SparkSession]]) -> SparkSession:
        """Return the session; start one if there is none."""
        if self._session is None:
            self._open.callback(_end_jvm)
            self._session = self._open.enter_context(start())
        return self._session

    def end_turn(self) -> None:
        """End session and JVM: connections that come and go would be leaks to other tests."""
        self._session = None
        self._open.close()
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None


def _end_jvm() -> None:
    from pyspark import SparkContext

    untyped: Any = SparkContext
    gateway = untyped._gateway
    if gateway is not None:
        gateway.shutdown()
        untyped._gateway = untyped._jvm = None
        # The JVM ends with its standard input.
        gateway.proc.stdin.close()
        gateway.proc.wait()
