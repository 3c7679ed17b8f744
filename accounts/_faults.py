"""Internal errors in the code of one connection, caught in a task that all connections share.

Shared tasks send to every outlet, tell every queue what is durable, hold every connection to its
deadline. They run code of each connection: a callback, a holder's method. An exception there must
not end the task, which would be the end of all connections, nor the turn of an uninvolved
publisher. It ends the connection that it belongs to, is logged with its traceback, and counted.

A server of connections says how to end one (`Faults.ends`). Without a server, as in your own
program, such an exception is raised like any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from ._loop import sleep

logger = logging.getLogger("clearfunds.accounts")

LOG_SECONDS: Final = 1.0
"""Least interval between log lines of faults that end no connection: one may recur with each
message."""

PAUSE_SECONDS: Final = 1.0
"""Delay before a failed shared task begins anew; like systemd's RestartSec for services."""

End: TypeAlias = Callable[[object, str, Exception], bool]
"""Takes the owner of the fault (a holder, a session, an account), the activity, and the fault: ends
the connection that the owner belongs to, and logs and counts that. False: not one of its own."""


class Faults:
    """The handling of internal errors of one process.

    Attributes:
        ends: Asked one after the other to end the connection at fault.
        unowned: Number of faults that ended no connection: those of a client that is away, or of a
            shared task. The `ends` count the others.
    """

    __slots__ = ("_logged_at", "_unlogged", "ends", "unowned")

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.unowned = 0
        self._logged_at = -LOG_SECONDS
        self._unlogged = 0

    def __repr__(self) -> str:
        return f"<Faults: {self.unowned} ended nobody>"

    def note(self, whose: object, doing: str, exc: Exception) -> None:
        """End the connection at fault. Call it where the exception was caught.

        Args:
            whose: The owner: a holder, a session, an account; None: no particular one.
            doing: The activity, such as "sending to it".
            exc: The fault.

        Raises:
            Exception: The fault itself, if `ends` is empty.
        """
        if not self.ends:
            raise exc
        for end in self.ends:
            if end(whose, doing, exc):
                return
        self.unowned += 1
        self._log(whose, doing, exc)

    def _log(self, whose: object, doing: str, exc: Exception) -> None:
        now = time.monotonic()
        if now - self._logged_at < LOG_SECONDS:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} more faults)" if self._unlogged else ""
        name = getattr(whose, "name", None)
        logger.error(
            "internal error%s, while %s%s",
            f" with {name}" if name else "",
            doing,
            more,
            exc_info=exc,
            extra={"event": "internal_error", "account": name, "reason": repr(exc)},
        )
        self._logged_at = now
        self._unlogged = 0

    def call(
        self, whose: object, doing: str, function: Callable[..., object], *args: object
    ) -> None:
        """Call a function that belongs to one connection; see `note`."""
        try:
            function(*args)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self.note(whose, doing, exc)

    async def keep_going(
        self, doing: str, run: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Run a shared task until it returns; begin it anew when it has failed.

        Cancellation: as `run`'s.
        """
        while True:
            try:
                await run(*args)
            except Exception as exc:  # noqa: BLE001 (as above)
                self.note(None, doing, exc)
            else:
                return
            await sleep(PAUSE_SECONDS)
