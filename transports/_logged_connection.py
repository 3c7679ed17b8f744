"""The log lines about one connection: its peer was let in, broke a rule, or was closed for a fault.

Rules of this file:
1. A line has names only, no objects: a log record may be kept for long.
2. A peer can cause lines of two kinds as often as it likes, those about strangers and complaints:
   no more of them are logged than somebody can read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ._link import Ending

if TYPE_CHECKING:
    from ._link import Link
    from ._server import Server

WARN_SECONDS = 1.0
"""How often at most one connection's faults are logged, where they do not end it."""

NEVER_WARNED: Final = -WARN_SECONDS

ServerT = TypeVar("ServerT", bound="Server[Any, Any]")


class LoggedConnection(Generic[ServerT]):
    """One peer's connection, as the log names it.

    Attributes:
        name: What an operator knows it by: `listener/user/client`.
    """

    __slots__ = ("__weakref__", "_known", "_link", "_server", "_unsaid", "_warned", "name")

    def __init__(self, server: ServerT, link: Link, name: str) -> None:
        self._server = server
        self._link = link
        self.name = name
        # Whether its peer has said anything yet that this protocol has.
        self._known = False
        self._warned = NEVER_WARNED
        self._unsaid = 0

    @property
    def peer(self) -> str:
        """Its peer's address and port."""
        return self._link.peer

    @property
    def _who(self) -> str:
        """The peer, for the log."""
        return self.name

    @property
    def _account_name(self) -> str | None:
        """Whose account its peer's work is on, for the log; None if it is not known yet."""
        return self.name

    @property
    def _is_stranger(self) -> bool:
        """Whether its peer has not been let in, or has said nothing yet."""
        return not self._known

    def _fields(self, event: str, reason: str | None = None) -> dict[str, object]:
        """Return what a log line about the peer has for its `extra=`. No objects, only names."""
        fields: dict[str, object] = {
            "event": event,
            "account": self._account_name,
            "peer": self._link.peer,
        }
        if reason is not None:
            fields["reason"] = reason
        return fields

    def _note_known(self) -> None:
        """Note that its peer has been let in, under its name."""
        self._known = True
        ledger = self._server.ledger
        ledger.timelines.came(self.name, ledger.clock(), self.peer)

    def _say_connected(self) -> None:
        """Note that its peer has been let in, and log it."""
        self._note_known()
        extra = self._fields("connected")
        self._server.logger.info("%s connected from %s", self.name, self.peer, extra=extra)

    def _log(self, level: int, event: str, text: str, reason: str) -> None:
        """Log a line about its peer; about strangers not more than can be read."""
        extra = self._fields(event, reason)
        if self._is_stranger:
            self._server.log_stranger(level, self._link.peer, text, extra)
        else:
            self._server.logger.log(level, "%s", text, extra=extra)

    def complain(self, what: str) -> None:
        """Log what the peer did wrong and may go on doing: not more often than it can be read."""
        now = self._server.ledger.clock()
        if now - self._warned < WARN_SECONDS:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more like it)" if self._unsaid else ""
        self._server.logger.warning(
            "%s: %s%s", self.name, what, more, extra=self._fields("complaint", what)
        )
        self._warned = now
        self._unsaid = 0

    def fault(self, doing: str, exc: Exception) -> None:
        """End the connection for a fault of our own. Its trace is logged, once."""
        server = self._server
        server.counters.internal_errors += 1
        link = self._link
        if link.ending is not Ending.ERROR:
            link.ending = Ending.ERROR
            server.logger.error(
                "%s closed for an error of the relay's, while %s",
                self._who,
                doing,
                exc_info=exc,
                extra=self._fields("closed", f"internal error: {exc!r}"),
            )
        link.cut("internal error")
