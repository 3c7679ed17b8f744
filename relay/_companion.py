"""Companions of a relay that look at its ledger, such as a journal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from prometheus_client.registry import Collector

from ..accounts import Ledger

Companion: TypeAlias = Callable[[Ledger], AbstractAsyncContextManager[Collector | None]]
"""Called with the ledger and entered before anybody can connect; left when every connection has
ended and all debt is settled. It may have metrics, which the relay's pages show, or None."""


@asynccontextmanager
async def nothing(_: Ledger) -> AsyncGenerator[None]:
    """Do nothing beside a relay."""
    yield None
