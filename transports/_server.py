"""One protocol's side of a relay: what its sessions share, and the clocks that they are held to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import attrs

from ..accounts import Account
from ..dataspace import Dataspace
from ._account_tree import AccountTree
from ._flusher import Flusher
from ._link import Link
from ._outlet import Outlet
from ._partings import Partings, Steps
from ._scheduler import Work
from ._settings import ServerSettings
from ._ticks import next_tick

if TYPE_CHECKING:
    from ._session import Session

TICK_SECONDS = 0.5
"""How often deadlines are looked at: a thousand idle connections cost one task, not a thousand."""

SettingsT = TypeVar("SettingsT", bound=ServerSettings)
SessionT = TypeVar("SessionT", bound="Session[Any, Any]")


@attrs.define(slots=True)
class Counters:
    """What has happened since the start; totals that never fall."""

    accepted: int = 0
    """Connections accepted."""
    refused: int = 0
    """Connections closed at once, because there were too many; and what asked to be let in and was
    refused: MQTT's CONNECTs."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol."""
    timeouts: int = 0
    """Connections closed because the peer was silent for too long."""
    internal_errors: int = 0
    """Faults of the relay's own, each of which has ended a connection; logged with its trace. Those
    that have ended none are in `Faults.unowned`."""
    received: int = 0
    """Messages received: MQTT's publications."""
    received_bytes: int = 0
    """Bytes read from sockets."""
    rejected: int = 0
    """Messages that were not routed: not allowed where they were sent to, or over a quota."""


class Admission:
    """How many connections there may be at a time, of all protocols that share it.

    Attributes:
        limit: How many.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: list[set[Any]] = []

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(map(len, self._open))

    def covers(self, connections: set[Any]) -> None:
        """Count what is in this set, too, from now on."""
        self._open.append(connections)


class Server(Generic[SettingsT, SessionT]):
    """What the sessions of one protocol share. Each protocol has its own, with a `handle`.

    Attributes:
        logger: What is to be said of their peers.
        dataspace: Where their peers meet.
        ledger: The books.
        flusher: Who sends.
        account: The account above all of theirs.
        tree: Where below it their accounts are.
        settings: What peers may make grow, and how long they may take.
        open: Every connection, from its acceptance to its end.
        counters: What has happened since the start.
        stopping: Whether connections end as soon as everything they are owed has been sent.
        partings: What connections that have ended leave to be taken back.
        unflushed: A sentence for each that ended, while stopping, before it had.
        make_outlet: Makes the way out of each; to be set before anybody connects.
    """

    logger: ClassVar[logging.Logger]

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: SettingsT,
        admission: Admission | None = None,
        tree: AccountTree | None = None,
    ) -> None:
        self.dataspace = dataspace
        self.ledger = dataspace.ledger
        self.flusher = flusher
        self.account = account
        self.tree = AccountTree(account) if tree is None else tree
        self.settings = settings
        self.open: set[SessionT] = set()
        limit = settings.max_connections
        self._admission = Admission(limit) if admission is None else admission
        self._admission.covers(self.open)
        self.counters = Counters()
        self.partings = Partings(flusher, self._not_taken_back)
        self.stopping = False
        self.unflushed: list[str] = []
        self.make_outlet: Callable[..., Outlet] = Outlet
        self._full_logged = -1e9
        self.ledger.faults.ends.append(self._end)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.open)} connections>"

    def _admits(self, link: Link) -> bool:
        """Count one more connection; close it and return False if there are too many."""
        if len(self._admission) < self._admission.limit:
            self.counters.accepted += 1
            return True
        self.counters.refused += 1
        now = self.ledger.clock()
        if now - self._full_logged >= 1.0:  # a flood must not become a flood of log lines
            self._full_logged = now
            self.logger.warning(
                "%s refused: %d connections are open, which is the limit (max_connections)",
                link.peer,
                len(self._admission),
                extra={"event": "refused", "peer": link.peer, "connections": len(self._admission)},
            )
        link.close()
        return False

    def _begun(self, link: Link, make: Callable[[], SessionT]) -> SessionT | None:
        """Make a session; None, with its link closed, if that fails: accepting goes on."""
        try:
            return make()
        except Exception as exc:  # noqa: BLE001 (the nursery is of all connections)
            link.close()
            self.ledger.faults.note(None, f"letting {link.peer} connect", exc)
            return None

    def _end(self, whose: object, doing: str, exc: Exception) -> bool:
        """End the connection whose fault it is, if it is one of these; see `Faults`."""
        session = next((each for each in self.open if each.has(whose)), None)
        if session is None:
            return False
        session.fault(doing, exc)
        return True

    def take_back(self, name: str, account: Account, steps: Steps) -> None:
        """Take back what somebody has left who is not connected any more; see `Partings`."""
        self.partings.take_back(name, account, Work(self.flusher.scheduler), steps)

    def _not_taken_back(self, name: str, fault: Exception) -> None:
        self.ledger.faults.note(None, f"taking back what {name} has left", fault)

    def stop(self) -> None:
        """End every connection as soon as everything it is owed has been sent."""
        self.stopping = True
        for session in list(self.open):
            session.cut("the relay stops")

    async def keep_time(self) -> None:
        """Hold every connection to its deadline, until cancelled."""
        while True:
            await next_tick(TICK_SECONDS)
            now = self.ledger.clock()
            call = self.ledger.faults.call
            for session in list(self.open):
                call(session, "looking at its deadline", session.check_deadline, now)
            call(None, "doing what is due", self.each_tick, now)

    def joined(self) -> None:
        """Note that a connection has been added to `open`."""

    def each_tick(self, now: float) -> None:
        """Do what else is due at `now`, on the ledger's clock."""
