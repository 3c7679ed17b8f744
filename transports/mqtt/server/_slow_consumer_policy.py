"""Policies for slow consumers among MQTT clients, by client and by topic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from ....access._subscription_policies import PolicyRule, PolicyRules, SubscriptionPolicies
from ....access._topic_rules import EVERY_TOPIC
from ....accounts import Holder, Profile
from ....dataspace import TopicFilter
from ....persistence._spool import SPOOL_PREFIX, Spool
from ..._outlet_backlog import ConsumerPolicy
from ._droppable import QOS_ZERO

if TYPE_CHECKING:
    from ..._outlet import Outlet
    from ._server import MqttServer


SLOW_CONSUMER: Final = "slow-consumer"
"""A user property of SUBSCRIBE: with `Profile.LIVE` as its value, nobody waits for the client."""

MAX_LIVE: Final = 128
"""Filters of one client that are looked through for each topic; with more, all its messages are."""


class ConsumerPolicies:
    """One relay's policies for its slow MQTT clients.

    Args:
        server: The server; its settings have the policies.
    """

    __slots__ = ("_can_spill", "_others", "_policies", "_server", "_spools")

    def __init__(self, server: MqttServer) -> None:
        self._server = server
        self._spools = 0
        self._set_up(can_spill=False)

    def _set_up(self, *, can_spill: bool) -> None:
        settings = self._server.settings
        default = settings.policy if can_spill else settings.policy_without_spilling
        self._can_spill = can_spill
        self._policies = SubscriptionPolicies(
            settings.subscription_policy, default, settings.patience
        )
        # For all clients without a rule.
        self._others = self._consumer_policy(self._policies.of())

    def adjust(self) -> None:
        """Take the policies of the server's settings; `begin` applies them to a client."""
        self._set_up(can_spill=self._can_spill)

    def _consumer_policy(self, rules: PolicyRules) -> ConsumerPolicy:
        settings = self._server.settings
        open_spool = self._open_spool if self._can_spill else None
        return ConsumerPolicy(rules, QOS_ZERO, open_spool, settings.behind_limit)

    def begin(self, outlet: Outlet, *names: str, live: Collection[str] = ()) -> None:
        """Apply the policies for a client with these names to its outlet.

        Args:
            outlet: Its outlet.
            names: Its account's, and its client identifier.
            live: The filters for which it said that nobody must wait for it.

        Raises:
            UnfitPolicyError: If a policy is to spill, but the relay has no persistent sessions.
        """
        can_spill = self._server.persistent_sessions is not None
        if self._can_spill != can_spill:
            self._set_up(can_spill=can_spill)
        outlet.retain_limit = self._server.settings.retain_limit
        more: list[tuple[TopicFilter, PolicyRule]] = []
        if live:
            rule = PolicyRule.of(Profile.LIVE, self._server.settings.patience)
            filters = sorted(live) if len(live) <= MAX_LIVE else [EVERY_TOPIC]
            more = [(TopicFilter(each), rule) for each in filters]
        rules = self._policies.of(*names, more=more)
        others = self._others
        outlet.deal_by(others if rules is others.rules else self._consumer_policy(rules))

    def _open_spool(
        self,
        holder: Holder,
        on_more: Callable[[], object],
        on_over: Callable[[str], object],
    ) -> Spool:
        sessions, settings = self._server.persistent_sessions, self._server.settings
        assert sessions is not None
        # A new name each time: a client of the same name may come before the spool is erased.
        self._spools += 1
        name = f"{SPOOL_PREFIX}{self._spools}/{holder.name}"
        client_id = next(
            (each.client_id for each in self._server.sessions.values() if each.name == holder.name),
            "",
        )
        account, part = sessions.open_spill(name, holder.name, client_id)
        return Spool(
            holder,
            sessions.persistence,
            account,
            name,
            on_more=on_more,
            on_over=on_over,
            full_patience=settings.patience,
            part=part,
        )
