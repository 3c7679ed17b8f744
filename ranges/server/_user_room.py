"""A disk quota for each user: the subscriptions and writers of one user together."""

from __future__ import annotations

from collections.abc import Callable

from ...access._tenants import Peer
from ...accounts import Account, Limit
from ._names import OWNED, owner_of, peer_of, prefix_of


class UserRoom:
    """Opens an account for each user, above the accounts of the user's data at rest.

    A user's durable subscriptions together may have as much as one alone: otherwise a second one
    would be enough to take space that others need.

    Args:
        above: Returns the parent of a user's account: the disk's, or the tenant's part of it.
        nbytes: The limit of each user; None: the limit of the parent.
    """

    def __init__(self, above: Callable[[Peer], Account], nbytes: int | None) -> None:
        self._above = above
        self._limit = Limit(items=None, bytes=nbytes)
        self._accounts: dict[str, Account] = {}

    def of(self, key: str) -> Account:
        """Return the parent of the account of a subscription or a writer."""
        above = self._above(peer_of(key))
        if not key.startswith(OWNED):
            return above  # it has no owner
        name = f"{above.name}/users/{prefix_of(owner_of(key)[0]).rstrip('/')}"
        if name not in self._accounts:
            self._accounts[name] = above.ledger.open(name, limit=self._limit, parent=above)
        return self._accounts[name]

    def close(self) -> None:
        """Close the accounts, when nothing is left below them. Idempotent."""
        for account in self._accounts.values():
            account.close()
        self._accounts.clear()
