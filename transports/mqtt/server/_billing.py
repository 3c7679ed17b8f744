"""The account charged for a publication: the connection's own, or by topic another one.

That is another tenant's, or one of the topic's own below the connection's (`_topic_accounts.py`).
Where topics have accounts, the connection's is shared among them: a topic above its share waits, or
is refused, for its own debt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....access._tenants import printable
from ....dataspace import LONG_TOPIC

if TYPE_CHECKING:
    from collections.abc import Collection

    from ....access._tenants import Membership, Peer
    from ....access._topic_accounts import TopicPrefixes
    from ....accounts import Account
    from ._server import MqttServer

OTHER_TOPICS: Final = "(other topics)"
"""Behind a connection's name: the account of topics without an account of their own."""

CACHED_PAYERS: Final = 1_024
"""Topics of one connection whose paying account is cached."""


class Billing:
    """The accounts that one connection's publications are charged to.

    Args:
        own: The connection's own account, charged unless another tenant or a topic's account pays.
        membership: Tells which tenant pays for a topic.
        server: Opens the connection's accounts with other tenants. The caller of `close` closes
            them.
        peer: The connection's client.
        prefixes: Tells which topics have accounts of their own; None: none have.

    Attributes:
        own: See above.
        peer: See above.
        by_topic: Whether it depends on the topic.
    """

    __slots__ = (
        "_by_key", "_membership", "_others", "_prefixes", "_server", "_topics", "by_topic", "own",
        "peer",
    )  # fmt: skip

    def __init__(
        self,
        own: Account,
        membership: Membership,
        server: MqttServer,
        peer: Peer,
        prefixes: TopicPrefixes | None = None,
    ) -> None:
        self.own = own
        self.by_topic = membership.by_topic or prefixes is not None
        self._prefixes = prefixes
        # The accounts of topics, by what stands behind the connection's name.
        self._topics: dict[str, Account] | None = None
        if prefixes is not None:
            self._topics = {}
            own.shared = True
        self._membership = membership
        self._server = server
        self.peer = peer
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
        return account is self.own or account.parent is self.own or account in self.others

    def of(self, topic: str) -> Account:
        """Return the account charged for a publication to a topic."""
        if not self.by_topic:
            return self.own
        tenant = self._membership.of_topic(topic)
        if tenant is None or tenant is self._membership.tenant:
            return self.own if self._topics is None else self._of_topic(self._topics, topic)
        if self._others is None:
            self._others = {}
        payer = self._others.get(tenant.name)
        if payer is None:
            payer = self._server.open_account(self.peer, tenant, own=False)
            self._others[tenant.name] = payer
        return payer

    def _of_topic(self, accounts: dict[str, Account], topic: str) -> Account:
        """Return the account of a topic, or that of all that have none of their own."""
        prefix = None if self._prefixes is None else self._prefixes.of(topic)
        name = OTHER_TOPICS if prefix is None else f"topic {printable(prefix)}"
        server = self._server
        if name not in accounts and len(accounts) >= server.settings.max_topic_accounts:
            name = OTHER_TOPICS
        account = accounts.get(name)
        if account is None:
            account = accounts[name] = server.open_topic_account(self.own, name)
        return account

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
        """Forget all accounts but the connection's own; return those of tenants, for closing."""
        others = list(self.others)
        for account in () if self._topics is None else self._topics.values():
            account.close()
        self._topics = None
        self._others = self._by_key = None
        return others
