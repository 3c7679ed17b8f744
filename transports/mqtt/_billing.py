"""Who pays for what one connection publishes: its own account, or by topic another tenant's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...dataspace import LONG_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ...accounts import Account
    from .._tenants import Membership, Tenant

CACHED_PAYERS: Final = 1_024
"""Topics of one connection of which it is remembered who pays for them."""


class Billing:
    """The accounts of one connection.

    Args:
        own: What pays for all that no other tenant pays for.
        membership: Says which tenant pays for a topic.
        open_other: Opens the account of the connection for what another tenant pays for. It is
            closed by who has called `close`.

    Attributes:
        own: See above.
        by_topic: Whether there may be others.
    """

    __slots__ = ("_by_key", "_membership", "_open_other", "_others", "by_topic", "own")

    def __init__(
        self, own: Account, membership: Membership, open_other: Callable[[Tenant], Account]
    ) -> None:
        self.own = own
        self.by_topic = membership.by_topic
        self._membership = membership
        self._open_other = open_other
        # By the tenant's name; and whoever it is, by the topic as it stands in a packet.
        self._others: dict[str, Account] = {}
        self._by_key: dict[bytes, Account] = {}

    @property
    def others(self) -> Collection[Account]:
        """Those of other tenants that have been met."""
        return self._others.values()

    def has(self, account: Account) -> bool:
        """Whether what an account pays for was published on this connection."""
        # Not `is`: an account that is traced has a stand-in.
        return account == self.own or account in self._others.values()

    def of(self, topic: str) -> Account:
        """Return who pays for a publication to a topic."""
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
        """Return who pays for a topic as it stands in a packet, its length in front."""
        payer = self._by_key.get(key)
        if payer is None:
            # What is no UTF-8 is refused in its turn.
            payer = self.of(key[2:].decode(errors="replace"))
            if len(key) <= LONG_TOPIC:
                if len(self._by_key) >= CACHED_PAYERS:
                    self._by_key.clear()
                self._by_key[key] = payer
        return payer

    def close(self) -> list[Account]:
        """Forget all but the own account; return the others, which are to be closed."""
        others = list(self._others.values())
        self._others.clear()
        self._by_key.clear()
        return others
