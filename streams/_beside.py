"""One task beside a block, for as long as both last."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


@asynccontextmanager
async def beside(job: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Run `job` beside the block; the end of either cancels the other.

    A single exception is raised as it is, not in a group.
    """

    async def run() -> None:
        await job()
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            yield
            group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        if len(several.exceptions) == 1:
            raise several.exceptions[0] from None
        raise
