"""The accounts of a relay as a tree: server, tenants, their users, connections.

    server
        tenant/press                    a tenant; with a limit, a weight, a rate of its own
            tenant/press/newsroom       one of its users, if its users have accounts
                mqtt:1883/newsroom/a    a connection
        mqtt:1883/-/b                   a connection without a tenant

Levels without configuration are left out. The server's account, the tenants' and the users' share
their limits fairly among the accounts below them (`Ledger.open(shared=True)`).

A connection has an account for each tenant that pays for something it does. One is for the tenant
that it belongs to, with the connection's name. There is one more for each other tenant whose topics
it publishes to, with `@TENANT` behind the name, opened when the first such publication comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..accounts import DEFAULT_FLOOR, Account, LatencyLimit, Limit, RateLimit
from ..accounts.limits._latency_limit import LatencyControl
from ._account_limits import AccountLimits, AccountRate
from ._patterns import FirstMatch
from ._tenants import NO_USER, Membership, Peer, Tenant, TenantRules, as_part

TENANT_PREFIX = "tenant/"
"""The prefix of a tenant's account, before its name; `/USER` behind that is one of its users."""

NOBODY = Membership(None)
"""The membership of every peer where there are no tenants."""


class AccountTree:
    """Opens the accounts of connections at their places in the tree.

    Args:
        server: The account above all of them.
        tenants: The operator's entries.
        rates: Rate limits of connections, by the names of their accounts.
        latency: Target age for the debt of a connection, in seconds, unless its tenant has another:
            its limit then adapts (`LatencyLimit`). None: it stays as it is.
        fixed: Limits of some accounts, by their names; these do not adapt.

    Attributes:
        server: See above.
        rules: The entries, ready for matching.
        tenants: The accounts of the tenants, by name; open until `close_all`.
    """

    def __init__(
        self,
        server: Account,
        tenants: Sequence[Tenant] = (),
        rates: Sequence[AccountRate] = (),
        *,
        latency: float | None = None,
        fixed: AccountLimits | None = None,
    ) -> None:
        self.server = server
        self._latency = latency
        self._fixed = AccountLimits() if fixed is None else fixed
        self.rules = TenantRules(tenants)
        self._rates = _first_match(rates)
        self.tenants: dict[str, Account] = {}
        # Their amounts, which may change; who belongs to them does not.
        self._amounts = self.rules.tenants
        # Accounts of users with something that outlives their connections.
        self._users: dict[str, Account] = {}
        for tenant in self.rules.tenants.values():
            account = server.ledger.open(TENANT_PREFIX + tenant.name, parent=server, shared=True)
            _set_amounts(account, tenant)
            self.tenants[tenant.name] = account
        self._levels = frozenset(self.tenants.values())

    def __repr__(self) -> str:
        return f"<AccountTree: {len(self.tenants)} tenants>"

    @property
    def moves_limits(self) -> bool:
        """Whether some limits adapt: then `watch_limits` has to run."""
        tenants = self.rules.tenants.values()
        return self._latency is not None or any(each.latency is not None for each in tenants)

    def amounts_of(self, tenant: Tenant) -> Tenant:
        """Return a tenant with the amounts that it has now; see `adjust`."""
        return self._amounts[tenant.name]

    def adjust(
        self,
        tenants: Sequence[Tenant],
        rates: Sequence[AccountRate],
        fixed: AccountLimits | None,
    ) -> None:
        """Put other amounts into force, for the accounts of tenants and their users at once.

        The connections' accounts follow by `adjust_connection`. The arguments are those of the
        constructor; `tenants` may differ in their amounts only (`same_members`).
        """
        self._amounts = TenantRules(tenants).tenants
        self._rates = _first_match(rates)
        self._fixed = AccountLimits() if fixed is None else fixed
        for tenant in self._amounts.values():
            account = self.tenants[tenant.name]
            _set_amounts(account, tenant)
            for below in account.below or ():
                if below.name.startswith(f"{account.name}/"):
                    _set_users_amounts(below, tenant)

    def adjust_connection(self, account: Account, peer: Peer, limit: Limit) -> None:
        """Set the limit and the rate of an account of a connection, after `adjust`.

        A limit that adapts gets `limit` as its upper bound.
        """
        names = account.name, peer.name, peer.client
        self._set_limit(account, names, limit)
        for below in account.below or ():
            below.limit = account.limit
        self._set_rate(account, names)

    def _set_limit(self, account: Account, names: tuple[str, ...], limit: Limit) -> None:
        latency = None if self._fixed.names(*names) else self._latency_of(account)
        control = account.control
        if latency is None:
            account.limit_by(None)
            account.limit = limit
        elif not isinstance(control, LatencyControl) or control.policy.ceiling != limit:
            account.limit_by(_adapting(latency, limit))

    def _latency_of(self, account: Account) -> float | None:
        """Return the latency that the limit of a connection's account follows, if it adapts."""
        for above in account.chain:
            if above in self._levels:
                latency = self.rules.tenants[above.name.removeprefix(TENANT_PREFIX)].latency
                return self._latency if latency is None else latency
        return self._latency

    def _set_rate(self, account: Account, names: tuple[str, ...]) -> None:
        items_and_bytes = self._rates.of(*names)
        _set_rate(account, None if items_and_bytes is None else rate_limit(*items_and_bytes))

    def of(self, peer: Peer) -> Membership:
        """Return the membership of a peer and of its publications."""
        return self.rules.of(peer) if self.tenants else NOBODY

    def parent_of(self, peer: Peer) -> Account:
        """Return the parent of an account that exists whether its user is connected or not.

        Such accounts are those of writers of batches, and those for messages kept in RAM for a
        reader of ranges. Their listeners are not known. The user's own account, where there is one,
        stays open until `close_all`.
        """
        tenant = self.of(peer).tenant
        if tenant is None:
            return self.server
        if not tenant.has_users or peer.user == NO_USER:
            return self.tenants[tenant.name]
        name = f"{TENANT_PREFIX}{tenant.name}/{peer.user}"
        if name not in self._users:
            self._users[name] = self._open_above(tenant, peer.user)
        return self._users[name]

    def open_below(self, names: Sequence[str], name: str, limit: Limit) -> Account:
        """Open an account whose parents on another relay have these names; `close` closes it.

        Both have the same tenants, if they are configured alike; a tenant that is not known here is
        left out.
        """
        above = self.server
        for each in reversed(names):
            tenant_name, _, user = each.removeprefix(TENANT_PREFIX).partition("/")
            tenant = self.rules.tenants.get(tenant_name)
            if each.startswith(TENANT_PREFIX) and tenant is not None:
                has_user = user and tenant.has_users
                above = self._open_user(tenant, user) if has_user else self.tenants[tenant_name]
                break
        return self.server.ledger.open(name, limit=limit, parent=above)

    def open(
        self, peer: Peer, tenant: Tenant | None, limit: Limit | None = None, *, own: bool = True
    ) -> Account:
        """Open the account of a connection for the things that `tenant`, or no tenant, pays for.

        Accounts are known by name: a client that comes back finds its debt waiting (rule 14). Debt
        stays with the tenant under which it was caused: where the account of that name is known
        under another one, because two peers' names look alike, this one gets the tenant's name
        behind its own.

        Args:
            peer: The owner of the connection.
            tenant: The tenant that pays.
            limit: The connection's limit, or its upper bound where the limit adapts; None: as it
                is, or the usual.
            own: Whether it is for the tenant that the peer belongs to.
        """
        ledger = self.server.ledger
        label = "server" if tenant is None else tenant.name
        above = self._open_above(tenant, peer.user)
        name = peer.name if own else f"{peer.name}@{label}"
        while (known := ledger.accounts.get(name)) is not None and known.parent != above:
            name = f"{name}@{label}"
        account = ledger.open(name, limit=limit if known is None else None, parent=above)
        names = name, peer.name, peer.client
        if limit is not None and (known is not None or self.moves_limits):
            self._set_limit(account, names, limit)
        if len(self._rates) or account.rate is not None:
            self._set_rate(account, names)
        return account

    def close(self, account: Account) -> None:
        """Close an account from `open`, and the accounts above that it opened."""
        above = account.parent
        account.close()
        if above is not None and above.parent in self._levels:
            above.close()

    def _open_above(self, tenant: Tenant | None, user: str) -> Account:
        if tenant is None:
            return self.server
        if not tenant.has_users:
            return self.tenants[tenant.name]
        return self._open_user(tenant, as_part(user))

    def _open_user(self, tenant: Tenant, user: str) -> Account:
        above = self.tenants[tenant.name]
        account = self.server.ledger.open(f"{above.name}/{user}", parent=above, shared=True)
        _set_users_amounts(account, self.amounts_of(tenant))
        return account

    def close_all(self) -> None:
        """Close the tenants' accounts, when the connections have ended. Idempotent."""
        for account in (*self._users.values(), *self.tenants.values()):
            account.close()
        self._users.clear()


def _first_match(rates: Sequence[AccountRate]) -> FirstMatch[tuple[float | None, float | None]]:
    return FirstMatch((rate.pattern, (rate.items, rate.bytes)) for rate in rates)


def _set_amounts(account: Account, tenant: Tenant) -> None:
    account.limit = Limit(items=tenant.items, bytes=tenant.bytes)
    account.weight = 1.0 if tenant.weight is None else tenant.weight
    _set_rate(account, rate_limit(tenant.rate, tenant.rate_bytes))


def _set_users_amounts(account: Account, tenant: Tenant) -> None:
    account.limit = Limit(items=tenant.user_items, bytes=tenant.user_bytes)
    _set_rate(account, rate_limit(tenant.user_rate, tenant.user_rate_bytes))


def _set_rate(account: Account, rate: RateLimit | None) -> None:
    # The same one stays: otherwise a client that comes back would have a second's worth at once
    # each time.
    if account.rate != rate:
        account.rate = rate


def _adapting(latency: float, limit: Limit) -> LatencyLimit:
    floor = Limit(
        items=_least(DEFAULT_FLOOR.items, limit.items),
        bytes=_least(DEFAULT_FLOOR.bytes, limit.bytes),
    )
    return LatencyLimit(latency, floor=floor, ceiling=limit)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def rate_limit(items: float | None, nbytes: float | None) -> RateLimit | None:
    """Return a rate limit a second; None if there is none in either unit."""
    if items is None and nbytes is None:
        return None
    return RateLimit(items_per_s=items, bytes_per_s=nbytes)
