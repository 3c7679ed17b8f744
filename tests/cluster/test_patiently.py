"""JetStream is asked again while its servers find each other, and not where it has said no."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from clearfunds.cluster._patiently import JOIN_SECONDS, patiently
from clearfunds.transports import TransportError
from clearfunds.transports.nats import JetStreamError, NoAnswerError

TRANSIENT = [
    JetStreamError(503, 10_008, "JetStream system temporarily unavailable"),
    JetStreamError(400, 10_005, "no suitable peers for placement"),
    NoAnswerError("no answer"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=str)
async def test_it_is_asked_until_it_answers(
    error: TransportError, autojump_clock: MockClock
) -> None:
    left = 5

    async def ask() -> str:
        nonlocal left
        left -= 1
        if left:
            raise error
        return "there"

    assert await patiently(ask) == "there"
    assert 1 < trio.current_time() < JOIN_SECONDS


@pytest.mark.parametrize("error", TRANSIENT, ids=str)
async def test_not_for_ever(error: TransportError, autojump_clock: MockClock) -> None:
    async def ask() -> str:
        raise error

    with pytest.raises(type(error)):
        await patiently(ask)
    assert JOIN_SECONDS < trio.current_time() < JOIN_SECONDS + 2


async def test_a_refusal_is_final(autojump_clock: MockClock) -> None:
    async def ask() -> str:
        raise JetStreamError(400, 10_074, "replicas > 1 not supported in non-clustered mode")

    with pytest.raises(JetStreamError, match="non-clustered"):
        await patiently(ask)
    assert trio.current_time() == 0
