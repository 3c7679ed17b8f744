"""Faults of our own in code that belongs to one connection, met by a task that all share.

One task sends to every outlet, tells every queue what is durable, holds every connection to its
deadline. Between two connections it runs code of each: a callback, a holder's method. What that
raises must end neither the task, which would be the end of everybody, nor the turn of whoever
happened to publish. It ends the connection that it belongs to; it is logged with its trace, and
counted.

Who serves connections says how one is ended (`Faults.ends`). Where nobody does, as in a program of
one's own without a server, such an exception is raised as any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio

logger = logging.getLogger("clearfunds.accounts")

LOG_SECONDS: Final = 1.0
"""How often at most a fault is logged that ends nobody: it may come back with each message."""

PAUSE_SECONDS: Final = 1.0
"""After so long a task that all share, and that has failed, begins anew; as systemd's RestartSec is
set for services."""

End: TypeAlias = Callable[[object, str, Exception], bool]
"""Given whose fault it is (a holder, a session, an account), what was being done, and the fault:
ends the connection that this belongs to, and logs and counts that. False: it is none of its own."""


class Faults:
    """What is done about the faults of one process.

    Attributes:
        ends: Asked one after the other to end whose fault it is.
        unowned: How many faults have ended nobody: those of a client that is away, or of a task
            that all share. What the others have ended they have counted.
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
        """End whose fault it is. To be called where it was caught.

        Args:
            whose: A holder, a session, an account; None: nobody's in particular.
            doing: What was being done, as "sending to it".
            exc: The fault.

        Raises:
            Exception: The fault itself, if there is nobody who ends connections.
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
        """Call a function of one connection's; see `note`."""
        try:
            function(*args)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self.note(whose, doing, exc)

    async def keep_going(
        self, doing: str, run: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Run a task that all share until it returns; begin it anew when it has failed.

        Cancellation: as `run`'s.
        """
        while True:
            try:
                await run(*args)
            except Exception as exc:  # noqa: BLE001 (as above)
                self.note(None, doing, exc)
            else:
                return
            await trio.sleep(PAUSE_SECONDS)
