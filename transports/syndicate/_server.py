"""The Syndicate side of a relay: what its sessions share, and the clocks that they are held to."""

from __future__ import annotations

import logging

import trio

from ...accounts import Account
from ...dataspace import Dataspace
from .._flusher import Flusher
from .._link import Link
from ._entities import DataspaceEntity, Entity, Gatekeeper
from ._session import Session
from ._settings import SyndicateCounters, SyndicateSettings
from ._vocabulary import Vocabulary

logger = logging.getLogger("clearfunds.transports.syndicate")

TICK_SECONDS = 0.5
"""How often deadlines are looked at: a thousand idle connections cost one task, not a thousand."""

CREDIT_SECONDS = 0.1
"""How often it is looked for whose turns credit is due; it should lag less than a second or so
(protocol.prs)."""


class SyndicateServer:
    """What the sessions of one relay share.

    Attributes:
        dataspace: Where their peers meet.
        account: Whose children their accounts are.
        vocabulary: Which classes stand for records of which labels.
        entity: The dataspace, as peers refer to it.
        open: Every connection.
        counters: What has happened since the start.
        stopping: Whether connections end as soon as everything they are owed has been sent.
        unflushed: A sentence for each that ended, while stopping, before it had.
    """

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: SyndicateSettings,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.dataspace = dataspace
        self.ledger = dataspace.ledger
        self.flusher = flusher
        self.account = account
        self.settings = settings
        self.vocabulary = Vocabulary() if vocabulary is None else vocabulary
        self.entity = DataspaceEntity(dataspace, self.vocabulary)
        self.open: set[Session] = set()
        self.counters = SyndicateCounters()
        self.stopping = False
        self.unflushed: list[str] = []
        self._full_logged = -1e9

    def __repr__(self) -> str:
        return f"<SyndicateServer: {len(self.open)} connections>"

    async def handle(
        self, link: Link, listener: str, *, gatekeeper: bool = False, websocket: bool = False
    ) -> None:
        """Serve one accepted connection until it ends. Never raises but for `trio.Cancelled`.

        Args:
            link: The connection.
            listener: The listener's name.
            gatekeeper: Whether oid 0 is a gatekeeper; else it is the dataspace.
            websocket: Whether packets come in WebSocket messages.
        """
        if len(self.open) >= self.settings.max_connections:
            self.counters.refused += 1
            now = self.ledger.clock()
            if now - self._full_logged >= 1.0:  # a flood must not become a flood of log lines
                self._full_logged = now
                logger.warning(
                    "%s refused: %d connections are open, which is the limit (max_connections)",
                    link.peer,
                    len(self.open),
                )
            link.close()
            return
        self.counters.accepted += 1
        entry = self._gatekeeper() if gatekeeper else self.entity
        session = Session(self, link, listener, entry=entry, websocket=websocket)
        self.open.add(session)
        try:
            await session.run()
        finally:
            self.open.discard(session)

    def stop(self) -> None:
        """End every connection as soon as everything it is owed has been sent."""
        self.stopping = True
        for session in list(self.open):
            session.cut("the relay stops")

    def _gatekeeper(self) -> Entity:
        settings = self.settings
        assert settings.key is not None, "a gatekeeper needs a key"
        return Gatekeeper(
            self.entity,
            oid=settings.oid,
            key=settings.key,
            accepted=settings.resolve_answer == "accepted",
            max_caveats_size=settings.max_caveats_size,
        )

    async def keep_time(self) -> None:
        """Hold every connection to its deadline, and give credit when due, until cancelled."""
        looked = self.ledger.clock()
        while True:
            await trio.sleep(CREDIT_SECONDS)
            now = self.ledger.clock()
            self._give_credit()
            if now - looked >= TICK_SECONDS:
                looked = now
                for session in list(self.open):
                    session.check_deadline(now)

    def _give_credit(self) -> None:
        waiting = {s.account: s for s in self.open if s.uncredited}
        if not waiting:
            return
        oldest = dict.fromkeys(waiting, float("inf"))
        if any(account.debt_items for account in waiting):
            # One walk over everything that is held, for all of them.
            for _, loan in self.ledger.held():
                account = loan.account
                if account in oldest and loan.items and loan.opened < oldest[account]:
                    oldest[account] = loan.opened
        for account, session in waiting.items():
            session.give_credit(oldest[account])
