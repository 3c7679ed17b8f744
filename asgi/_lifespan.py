"""A hub that runs for as long as an ASGI program does."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from ..streams import Hub


def lifespan(hub: Hub) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """Return the lifespan of a program that uses `hub`: `FastAPI(lifespan=lifespan(hub))`."""

    @asynccontextmanager
    async def run(app: object) -> AsyncGenerator[None]:
        del app
        async with hub:
            yield

    return run
