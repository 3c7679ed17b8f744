"""What a reader's or a writer's user may read and publish: as much of that as is asked for here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .._tenants import Peer


class Rights(Protocol):
    """What one peer may; right also after the rules have changed."""

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether there may be a topic that matches the filter and that it may read."""
        ...

    def may_write(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        ...

    def allows(self, topic_filter: str) -> Callable[[str], bool] | None:
        """Return what says which topics a subscription gets; None: all that match its filter."""
        ...


class Authority(Protocol):
    """Who decides."""

    def of(self, peer: Peer, client: str | None = None) -> Rights:
        """Return what a peer may."""
        ...
