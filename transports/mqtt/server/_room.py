"""The choice of persistent sessions to end when the quota is full: those above their fair share.

The quota is divided between tenants, by the quota that each was granted (`Tenant.kept`) or else
equally; a tenant's part equally between its users; a user's part between its sessions. Each session
of an unverified client counts as its own user. So a client that leaves thousands of sessions behind
loses these, and the messages of others, within their shares, stay.

Source: max-min fairness; as fair queueing drops from the longest queue (McKenney, 1990), when the
common buffer is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import attrs

T = TypeVar("T")

ENDING_BATCH: Final = 32
"""Sessions ended in one step: a few milliseconds' worth."""


@attrs.frozen(slots=True)
class RoomTaken:
    """The room that one session takes."""

    tenant: str
    """The name of its tenant; "" for none."""
    user: str
    """Its user within the tenant."""
    bytes: int
    """Bytes stored for it."""
    wants: int = 0
    """Further bytes that its next waiting message needs."""


def over_share(
    sessions: Iterable[T],
    taken_by: Callable[[T], RoomTaken],
    granted: Mapping[str, int],
    limit: int,
    may_go: Callable[[T], bool],
    needed: int,
    most: int = ENDING_BATCH,
) -> list[T]:
    """Return the sessions to end; those farthest above their share come first.

    No session is ended that is within its share, or would be after the earlier ones end. So the
    list may be empty, and make less room than needed.

    Args:
        sessions: All sessions.
        taken_by: Returns the room that a session takes.
        granted: Bytes granted to a tenant, if it has its own quota.
        limit: The most bytes in all.
        may_go: Whether a session may be ended: its client is away.
        needed: Bytes of room to make.
        most: The most sessions to return.
    """
    tenants: dict[str, int] = {}
    users: dict[tuple[str, str], int] = {}
    wanted: dict[str, int] = {}
    found: list[tuple[RoomTaken, T]] = []
    for session in sessions:
        taken = taken_by(session)
        tenants[taken.tenant] = tenants.get(taken.tenant, 0) + taken.bytes
        wanted[taken.tenant] = wanted.get(taken.tenant, 0) + taken.wants
        of_user = taken.tenant, taken.user
        users[of_user] = users.get(of_user, 0) + taken.bytes
        if taken.bytes and may_go(session):
            found.append((taken, session))
    shares = _shares(tenants, granted, limit)
    counts: dict[str, int] = {}
    for (tenant, _), used in users.items():
        counts[tenant] = counts.get(tenant, 0) + (used > 0)

    def over(taken: RoomTaken) -> tuple[float, float, int]:
        share = shares[taken.tenant]
        of_user = users[taken.tenant, taken.user] - share / counts[taken.tenant]
        return tenants[taken.tenant] - share, of_user, taken.bytes

    found.sort(key=lambda each: over(each[0]), reverse=True)
    ended: list[T] = []
    for taken, session in found:
        if needed <= 0 or len(ended) >= most:
            break
        over_tenant, over_user, _ = over(taken)
        if over_tenant + wanted[taken.tenant] >= 0 and over_user + taken.wants >= 0:
            ended.append(session)
            needed -= taken.bytes
            tenants[taken.tenant] -= taken.bytes
            users[taken.tenant, taken.user] -= taken.bytes
    return ended


def _shares(used: Mapping[str, int], granted: Mapping[str, int], limit: int) -> dict[str, float]:
    """Return the share of each tenant; tenants without a grant divide the rest."""
    shares: dict[str, float] = {name: granted[name] for name in used if name in granted}
    others = [name for name, amount in used.items() if name not in granted and amount]
    rest = max(0.0, limit - sum(min(used[name], share) for name, share in shares.items()))
    shares.update(dict.fromkeys(used.keys() - shares.keys(), rest / max(1, len(others))))
    return shares
