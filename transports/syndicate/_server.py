"""The Syndicate side of a relay: state shared by its sessions, and the clock for their credit."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any

import trio

from ...access._account_tree import AccountTree
from ...access._admission import Admission
from ...access._subscription_policies import SubscriptionPolicies
from ...accounts import Account
from ...dataspace import Dataspace
from .._flusher import Flusher
from .._link import Link
from .._server import Server
from .._settings import ServerSettings
from ._bindings import Bindings
from ._bindspace import Bindspace, new_dataspace
from ._entities import DataspaceEntity
from ._gatekeeper import Gatekeeper
from ._routes import Routes
from ._session import SyndicateSession
from ._vocabulary import Vocabulary

CREDIT_SECONDS = 0.1
"""Interval between checks for turns that are due credit; it should lag less than a second or so
(protocol.prs)."""


def _policies(settings: ServerSettings) -> SubscriptionPolicies:
    return SubscriptionPolicies(
        settings.subscription_policy, settings.policy_without_spilling, settings.patience
    )


class SyndicateServer(Server[ServerSettings, SyndicateSession]):
    """The state that the Syndicate sessions of one relay share.

    Attributes:
        vocabulary: Maps labels of records to classes.
        entity: The dataspace, as peers refer to it.
        gatekeeper: Gives references to those that show a sturdyref.
        bindspace: Binds names, and makes dataspaces, for those that have a reference to it.
        routes: Connections to other servers.
        nursery: Has the connections that the relay makes, for routes; None: it makes none.
        policies: The policies for slow consumers.
    """

    logger = logging.getLogger("clearfunds.transports.syndicate")

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: ServerSettings,
        vocabulary: Vocabulary | None = None,
        admission: Admission | None = None,
        tree: AccountTree | None = None,
    ) -> None:
        super().__init__(dataspace, flusher, account, settings, admission, tree)
        self.vocabulary = Vocabulary() if vocabulary is None else vocabulary
        # Set while some connection may be due credit: otherwise the clock need not wake up.
        self._somebody = trio.Event()
        self.entity = DataspaceEntity(dataspace, self.vocabulary)
        bindings = Bindings()
        space = new_dataspace(self.entity, settings)
        self.bindspace = Bindspace(space, bindings, settings)
        self.routes = self.bindspace.routes = Routes(self, space.dataspace)
        self.nursery: trio.Nursery | None = None
        self.gatekeeper = Gatekeeper(self.entity, self.bindspace, bindings, settings)
        self.entity.gatekeeper = self.gatekeeper
        self.bindspace.is_own = self.gatekeeper.is_own
        self.policies = _policies(settings)

    def adjust(self, settings: ServerSettings) -> None:
        """See `Server.adjust`."""
        self.policies = _policies(settings)
        self.gatekeeper.settings = self.bindspace.settings = settings
        super().adjust(settings)

    def handle(
        self,
        link: Link,
        listener: str,
        *,
        gatekeeper: bool = False,
        websocket: bool | None = False,
    ) -> Coroutine[Any, Any, None]:
        """Serve one accepted connection until it ends. Never raises but for `trio.Cancelled`.

        Args:
            link: The connection.
            listener: The listener's name.
            gatekeeper: Whether oid 0 is a gatekeeper; else it is the dataspace.
            websocket: Whether packets come in WebSocket messages; None: the first byte tells.
        """
        entry = self.gatekeeper if gatekeeper else self.entity
        make = partial(SyndicateSession, self, link, listener, entry=entry, websocket=websocket)
        return self.serve(link, make)

    def stop(self) -> None:
        """See `Server.stop`."""
        super().stop()
        self.routes.stop()

    async def keep_time(self) -> None:
        """Hold every connection to its deadline, and give credit when due, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().keep_time)
            while True:
                if not self.open:
                    self._somebody = trio.Event()
                    await self._somebody.wait()
                await trio.sleep(CREDIT_SECONDS)
                self.ledger.faults.call(None, "looking for credit that is due", self._give_credit)

    def ticks(self, now: float) -> Generator[None, None, None]:
        """See `Server.ticks`."""
        self.gatekeeper.tick(now)
        yield from super().ticks(now)

    def joined(self) -> None:
        self._somebody.set()

    def _give_credit(self) -> None:
        waiting = {s.account: s.turn_credit for s in self.open if s.turn_credit.uncredited}
        if not waiting:
            return
        oldest = dict.fromkeys(waiting, float("inf"))
        if any(account.debt_items for account in waiting):
            # One walk over all loans, for all connections.
            for _, loan in self.ledger.held():
                account = loan.account
                if account in oldest and loan.items and loan.opened < oldest[account]:
                    oldest[account] = loan.opened
        for account, credit in waiting.items():
            # One connection's fault must not end the clock of all.
            self.ledger.faults.call(account, "giving it credit", credit.give, oldest[account])
