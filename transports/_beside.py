"""What runs beside a relay and looks at its books, as a journal does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from prometheus_client.registry import Collector

from ..accounts import Ledger

Beside: TypeAlias = Callable[[Ledger], AbstractAsyncContextManager[Collector | None]]
"""Given the books before anybody can connect, it is entered; left when every connection has ended
and what was owed is settled. It may have metrics, which the relay's pages show, or None."""


@asynccontextmanager
async def nothing(_: Ledger) -> AsyncGenerator[None]:
    """Do nothing beside a relay."""
    yield None
