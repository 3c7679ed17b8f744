"""Asking JetStream again while its servers choose a leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from ..transports import TransportError
from ..transports.nats import (
    ConnectionLostError,
    JetStreamError,
    NoAnswerError,
    NoRespondersError,
)

JOIN_SECONDS: Final = 15.0
"""A relay that starts waits so long for JetStream to answer: an election takes about five."""
RETRY_SECONDS: Final = 0.5
UNAVAILABLE: Final = 503
"""The code of JetStream's answer while it has no leader."""
NO_PEERS: Final = 10_005
"""The error code of its answer while it does not see enough servers for the replicas."""

T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer, for `JOIN_SECONDS` at most.

    Raises:
        TransportError: As `ask`: its last one, or at once what is no want of an answer.
    """
    deadline = trio.current_time() + JOIN_SECONDS
    while True:
        try:
            return await ask()
        except (ConnectionLostError, NoAnswerError, NoRespondersError) as exc:
            error: TransportError = exc
        except JetStreamError as exc:
            if exc.code != UNAVAILABLE and exc.error_code != NO_PEERS:
                raise
            error = exc
        if trio.current_time() > deadline:
            raise error
        await trio.sleep(RETRY_SECONDS)
