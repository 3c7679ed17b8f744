"""The account charged for a publication: the connection's own, or another tenant's by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....dataspace import LONG_TOPIC

if TYPE_CHECKING:
    from collections.abc import Collection

    from ....access._tenants import Membership, Peer
    from ....accounts import Account
    from ._server import MqttServer

CACHED_PAYERS: Final = 1_024
"""Topics of one connection whose paying account is cached."""


class Billing:
    """The accounts that one connection's publications are charged to.

    Args:
        own: The connection's own account, charged unless another tenant pays.
        membership: Tells which tenant pays for a topic.
        server: Opens the connection's accounts with other tenants. The caller of `close` closes
            them.
        peer: The connection's client.

    Attributes:
        own: See above.
        by_topic: Whether other tenants may pay, by topic.
    """

    __slots__ = ("_by_key", "_membership", "_others", "_peer", "_server", "by_topic", "own")

    def __init__(
        self, own: Account, membership: Membership, server: MqttServer, peer: Peer
    ) -> None:
        self.own = own
        self.by_topic = membership.by_topic
        self._membership = membership
        self._server = server
        self._peer = peer
        # Accounts with other tenants, by the tenant's name; None: no topic has been asked for.
        self._others: dict[str, Account] | None = None
        # All payers, by the topic as it stands in a packet; likewise.
        self._by_key: dict[bytes, Account] | None = None

    @property
    def others(self) -> Collection[Account]:
        """The accounts opened with other tenants so far."""
        return () if self._others is None else self._others.values()

    def has(self, account: Account) -> bool:
        """Whether an account is charged for publications of this connection."""
        return account is self.own or account in self.others

    def of(self, topic: str) -> Account:
        """Return the account charged for a publication to a topic."""
        if not self.by_topic:
            return self.own
        tenant = self._membership.of_topic(topic)
        if tenant is None or tenant is self._membership.tenant:
            return self.own
        if self._others is None:
            self._others = {}
        payer = self._others.get(tenant.name)
        if payer is None:
            payer = self._server.open_account(self._peer, tenant, own=False)
            self._others[tenant.name] = payer
        return payer

    def of_key(self, key: bytes) -> Account:
        """Return the account charged for a topic as it stands in a packet, its length in front."""
        if self._by_key is None:
            self._by_key = {}
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
        others = list(self.others)
        self._others = self._by_key = None
        return others
