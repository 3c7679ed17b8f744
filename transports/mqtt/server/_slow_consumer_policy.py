"""Policies for slow consumers among MQTT clients, by client and by topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....access._subscription_policies import SubscriptionPolicies
from ....accounts import Holder, Limit
from ....persistence._spool import SPOOL_PREFIX, Spool
from ..._outlet_backlog import ConsumerPolicy
from ._droppable import QOS_ZERO

if TYPE_CHECKING:
    from ..._outlet import Outlet
    from ._persistent_sessions import PersistentSessions
    from ._server import MqttServer


class ConsumerPolicies:
    """One relay's policies for its slow MQTT clients.

    Args:
        server: The server; its settings have the policies.
    """

    __slots__ = ("_others", "_policies", "_server", "_spools")

    def __init__(self, server: MqttServer) -> None:
        settings = server.settings
        self._server = server
        self._policies = SubscriptionPolicies(settings.subscription_policy, settings.policy)
        self._others: ConsumerPolicy | None = None
        self._spools = 0

    def begin(self, outlet: Outlet, *names: str) -> None:
        """Apply the policies for a client with these names to its outlet.

        Raises:
            UnfitPolicyError: If a policy is to spill, but the relay has no persistent sessions.
        """
        rules = self._policies.of(*names)
        settings = self._server.settings
        outlet.retain_limit, limit = settings.retain_limit, settings.behind_limit
        sessions = self._server.persistent_sessions
        open_spool = None if sessions is None else self._open_spool
        if rules.only is None or rules.only != self._policies.default:
            outlet.deal_by(ConsumerPolicy(rules, QOS_ZERO, open_spool, limit))
            return
        others = self._others
        if others is None or (others.open_spool is None) != (sessions is None):
            others = self._others = ConsumerPolicy(rules, QOS_ZERO, open_spool, limit)
        outlet.deal_by(others)

    def _open_spool(
        self,
        holder: Holder,
        on_more: Callable[[], object],
        on_over: Callable[[str], object],
    ) -> Spool:
        sessions = self._server.persistent_sessions
        assert sessions is not None
        # A new name each time: a client of the same name may come before the spool is erased.
        self._spools += 1
        name = f"{SPOOL_PREFIX}{self._spools}/{holder.name}"
        client_id = next(
            (each.client_id for each in self._server.sessions.values() if each.name == holder.name),
            "",
        )
        above = sessions.at_rest_of(holder.name, client_id)
        account = self._server.ledger.open(name, limit=_limit(sessions), parent=above)
        return Spool(holder, sessions.persistence, account, name, on_more=on_more, on_over=on_over)


def _limit(sessions: PersistentSessions) -> Limit:
    return Limit(items=sessions.settings.max_queued, bytes=sessions.settings.max_queued_bytes)
