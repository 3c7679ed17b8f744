"""Collectors whose figures need a walk."""

from __future__ import annotations

from abc import abstractmethod

from prometheus_client.registry import Collector


class WalkedCollector(Collector):
    """A collector that computes figures beforehand, in steps."""

    @abstractmethod
    async def look(self) -> None:
        """Compute figures for `collect`, unless the last ones are fresh enough for their cost.

        On cancellation, earlier figures stay.
        """
