"""Whose session is ended when nothing more may be kept: of those who have more than their share.

What one may keep for all is divided: between tenants, by what each was granted (`Tenant.kept`) or
else equally; a tenant's part between its users, equally; a user's between its sessions. Who is not
verified is a user of its own with each of its sessions. So somebody who leaves thousands of
sessions behind loses these, and what is kept for others, within their shares, stays.

Source: max-min fairness; as fair queueing drops from the longest queue (McKenney, 1990), when the
common buffer is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import attrs

T = TypeVar("T")

ENDED_AT_ONCE: Final = 32
"""How many sessions are ended in one step: a few milliseconds' worth."""


@attrs.frozen(slots=True)
class Kept:
    """What is kept for one session."""

    tenant: str
    """Whose: the tenant's name; "" for none."""
    user: str
    """Which user's, of the tenant."""
    bytes: int
    """How much."""
    wants: int = 0
    """And how much more the next that waits for room needs."""


def over_share(
    sessions: Iterable[T],
    kept_of: Callable[[T], Kept],
    granted: Mapping[str, int],
    limit: int,
    may_go: Callable[[T], bool],
    needed: int,
    most: int = ENDED_AT_ONCE,
) -> list[T]:
    """Return the sessions to end, those first that are most over their share.

    None of them is within it, or would be without those before it; so there may be none, and less
    than is needed.

    Args:
        sessions: All of them.
        kept_of: What is kept for each.
        granted: How many bytes a tenant was granted, where that was said.
        limit: How many bytes there may be in all.
        may_go: Whether a session may be ended: its client is away.
        needed: How many bytes there have to be room for.
        most: How many to return at most.
    """
    tenants: dict[str, int] = {}
    users: dict[tuple[str, str], int] = {}
    wanted: dict[str, int] = {}
    found: list[tuple[Kept, T]] = []
    for session in sessions:
        kept = kept_of(session)
        tenants[kept.tenant] = tenants.get(kept.tenant, 0) + kept.bytes
        wanted[kept.tenant] = wanted.get(kept.tenant, 0) + kept.wants
        of_user = kept.tenant, kept.user
        users[of_user] = users.get(of_user, 0) + kept.bytes
        if kept.bytes and may_go(session):
            found.append((kept, session))
    shares = _shares(tenants, granted, limit)
    counts: dict[str, int] = {}
    for (tenant, _), used in users.items():
        counts[tenant] = counts.get(tenant, 0) + (used > 0)

    def over(kept: Kept) -> tuple[float, float, int]:
        share = shares[kept.tenant]
        of_user = users[kept.tenant, kept.user] - share / counts[kept.tenant]
        return tenants[kept.tenant] - share, of_user, kept.bytes

    found.sort(key=lambda each: over(each[0]), reverse=True)
    ended: list[T] = []
    for kept, session in found:
        if needed <= 0 or len(ended) >= most:
            break
        over_tenant, over_user, _ = over(kept)
        if over_tenant + wanted[kept.tenant] >= 0 and over_user + kept.wants >= 0:
            ended.append(session)
            needed -= kept.bytes
            tenants[kept.tenant] -= kept.bytes
            users[kept.tenant, kept.user] -= kept.bytes
    return ended


def _shares(used: Mapping[str, int], granted: Mapping[str, int], limit: int) -> dict[str, float]:
    """Return what each tenant may have; those to whom nothing was granted divide the rest."""
    shares: dict[str, float] = {name: granted[name] for name in used if name in granted}
    others = [name for name, amount in used.items() if name not in granted and amount]
    rest = max(0.0, limit - sum(min(used[name], share) for name, share in shares.items()))
    shares.update(dict.fromkeys(used.keys() - shares.keys(), rest / max(1, len(others))))
    return shares
