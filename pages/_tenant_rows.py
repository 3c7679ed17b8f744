"""Tenants, for the pages: the sums of each tenant's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..access._account_tree import TENANT_PREFIX
from ..accounts._line import readers_of
from ._holdings import BREATH_EVERY

if TYPE_CHECKING:
    from ..accounts import Account, Ledger
    from ._cooperative import Pace


@attrs.define(eq=False)
class TenantSums:
    """One tenant, and the sums of the accounts below it."""

    account: Account
    users: int = 0
    """Its users that have accounts now."""
    accounts: int = 0
    """Accounts of connections and other accounts below it that cause its debt."""
    waiting: int = 0
    """Readers of theirs that wait now."""
    waiting_seconds: float = 0.0
    """How long the first of them has waited."""
    waited_seconds: float = 0.0
    """The total of all waits of readers of the present accounts."""

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self.account.name.removeprefix(TENANT_PREFIX)

    def row(self) -> dict[str, Any]:
        """Return its row of `/ledger.json`."""
        seen = self.account.statistics()
        return {
            "name": self.name,
            "account": self.account.name,
            "weight": seen.weight,
            "state": seen.state,
            "debt": {"items": seen.debt_items, "bytes": seen.debt_bytes},
            "limit": {"items": seen.limit_items, "bytes": seen.limit_bytes},
            "share": {"items": seen.share_items, "bytes": seen.share_bytes},
            "rate": {"items": seen.rate_items, "bytes": seen.rate_bytes},
            "users": self.users,
            "accounts": self.accounts,
            "waiting_readers": self.waiting,
            "waiting_seconds": round(self.waiting_seconds, 6),
            "waited_seconds": round(self.waited_seconds, 6),
        }


def is_tenant(account: Account) -> bool:
    """Whether an account is a tenant's: it has a shared limit, and so has its parent."""
    parent = account.parent
    return account.shared and parent is not None and parent.parent is None and parent.shared


async def tenants_of(ledger: Ledger, pace: Pace) -> list[TenantSums]:
    """Return the tenants, in the order of the configuration."""
    accounts = list(ledger.accounts.values())
    found = {each: TenantSums(each) for each in accounts if each.shared and is_tenant(each)}
    if not found:
        return []
    now = ledger.clock()
    for number, account in enumerate(accounts):
        if not number % BREATH_EVERY:
            await pace.breathe()
        chain = account.chain
        tenant = found.get(chain[-2]) if len(chain) > 2 else None
        if tenant is None:
            continue
        if account.shared:
            tenant.users += 1
            continue
        tenant.accounts += 1
        readers = readers_of(account)
        if readers:
            tenant.waiting += len(readers)
            longest = max(now - waiter.since for waiter in readers)
            tenant.waiting_seconds = max(tenant.waiting_seconds, longest)
        if account.waits:
            tenant.waited_seconds += sum(account.statistics().waited_by_reason.values())
    return list(found.values())
