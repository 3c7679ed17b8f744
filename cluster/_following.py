"""Following a bucket for as long as a relay is in its cluster."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from ..transports import TransportError
from ..transports.nats import Entry, KeyValue
from ._patiently import RETRY_SECONDS

logger = logging.getLogger("clearfunds.cluster")


async def follow(
    bucket: KeyValue,
    trouble: str,
    *,
    begin: Callable[[], object],
    note: Callable[[Entry], Awaitable[object]],
    whole: Callable[[], Awaitable[object]],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Look at all of a bucket, and then at its changes; look again when that has broken off.

    Args:
        bucket: The bucket.
        trouble: What is wrong when it breaks off, for the log.
        begin: Called before each look at all of it.
        note: Called with each entry.
        whole: Called when all that was there has been noted.
        task_status: Told when that has been so for the first time; if nobody waits for that, it
            need not succeed.

    Raises:
        TransportError: As `KeyValue.watch`, before it has started, if somebody waits for that.
    """
    started = task_status is trio.TASK_STATUS_IGNORED
    while True:
        begin()
        try:
            async with bucket.watch() as changes:
                async for entry in changes:
                    if entry is not None:
                        await note(entry)
                        continue
                    await whole()
                    if not started:
                        started = True
                        task_status.started()
        except TransportError as exc:
            if not started:
                raise
            logger.warning("%s: %s", trouble, exc)
        await trio.sleep(RETRY_SECONDS)
