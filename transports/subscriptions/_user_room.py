"""How much room on disk one user's subscriptions and writers have, all together."""

from __future__ import annotations

from collections.abc import Callable

from ...accounts import Account, Limit
from .._tenants import Peer
from ._names import OWNED, owner_of, peer_of, prefix_of


class UserRoom:
    """Opens an account for each user, above those for what the user has at rest.

    What one durable subscription may have, all of its user's may have together: otherwise a second
    one would be enough to take what others have to keep.

    Args:
        above: Tells whose child a user's account is: the disk's, or the tenant's part of it.
        nbytes: How much each user may have; None: as much as those above.
    """

    def __init__(self, above: Callable[[Peer], Account], nbytes: int | None) -> None:
        self._above = above
        self._limit = Limit(items=None, bytes=nbytes)
        self._accounts: dict[str, Account] = {}

    def of(self, key: str) -> Account:
        """Return the account above that of a subscription, or a writer."""
        above = self._above(peer_of(key))
        if not key.startswith(OWNED):
            return above  # nobody's
        name = f"{above.name}/users/{prefix_of(owner_of(key)[0]).rstrip('/')}"
        if name not in self._accounts:
            self._accounts[name] = above.ledger.open(name, limit=self._limit, parent=above)
        return self._accounts[name]

    def close(self) -> None:
        """Close them, when nothing is left below them. Idempotent."""
        for account in self._accounts.values():
            account.close()
        self._accounts.clear()
