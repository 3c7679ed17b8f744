"""The account charged for a publication: the connection's own, or another tenant's by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....dataspace import LONG_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ....access._tenants import Membership, Tenant
    from ....accounts import Account

CACHED_PAYERS: Final = 1_024
"""Topics of one connection whose paying account is cached."""


class Billing:
    """The accounts that one connection's publications are charged to.

    Args:
        own: The connection's own account, charged unless another tenant pays.
        membership: Tells which tenant pays for a topic.
        open_other: Opens the connection's account with another tenant. The caller of `close` closes
            that account.

    Attributes:
        own: See above.
        by_topic: Whether other tenants may pay, by topic.
    """

    __slots__ = ("_by_key", "_membership", "_open_other", "_others", "by_topic", "own")

    def __init__(
        self, own: Account, membership: Membership, open_other: Callable[[Tenant], Account]
    ) -> None:
        self.own = own
        self.by_topic = membership.by_topic
        self._membership = membership
        self._open_other = open_other
        # Accounts with other tenants, by the tenant's name.
        self._others: dict[str, Account] = {}
        # All payers, by the topic as it stands in a packet.
        self._by_key: dict[bytes, Account] = {}

    @property
    def others(self) -> Collection[Account]:
        """The accounts opened with other tenants so far."""
        return self._others.values()

    def has(self, account: Account) -> bool:
        """Whether an account is charged for publications of this connection."""
        return account is self.own or account in self._others.values()

    def of(self, topic: str) -> Account:
        """Return the account charged for a publication to a topic."""
        if not self.by_topic:
            return self.own
        tenant = self._membership.of_topic(topic)
        if tenant is None or tenant is self._membership.tenant:
            return self.own
        payer = self._others.get(tenant.name)
        if payer is None:
            payer = self._others[tenant.name] = self._open_other(tenant)
        return payer

    def of_key(self, key: bytes) -> Account:
        """Return the account charged for a topic as it stands in a packet, its length in front."""
        payer = self._by_key.get(key)
        if payer is None:
            # Malformed UTF-8 is refused later, in its turn.
            payer = self.of(key[2:].decode(errors="replace"))
            if len(key) <= LONG_TOPIC:
                if len(self._by_key) >= CACHED_PAYERS:
                    self._by_key.clear()
                self._by_key[key] = payer
        return payer

    def close(self) -> list[Account]:
        """Forget all accounts but the connection's own; return the others, for closing."""
        others = list(self._others.values())
        self._others.clear()
        self._by_key.clear()
        return others
