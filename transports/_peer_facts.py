"""Who a peer is, for people who look at it."""

from __future__ import annotations

import attrs


@attrs.frozen
class PeerFacts:
    """Who a peer is."""

    address: str
    """Its address and port."""
    protocol: str | None = None
    """Its protocol with the version, where there are several; None: there is one only."""
    user: str | None = None
    """Its user; None: it has none."""
    since: float | None = None
    """When it was let in, in Unix time; None: unknown."""
    subscriptions: tuple[str, ...] = ()
    """What it has subscribed to, the oldest first, as far as was asked for."""
    subscriptions_more: int = 0
    """Subscriptions that are left out."""
