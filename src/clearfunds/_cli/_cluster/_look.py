"""Looking at all relays: at most once a second, whatever the number of browsers.

1. A relay that does not answer within a second is shown as one that does not answer.
2. The answers have a maximum size, and the ledger's page is asked for its first rows only.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from .._errors import CommandFailedError
from .._page import fetch_json, fetch_text
from ._relays import Member
from ._view import Answer, cluster_view

EVERY_SECONDS: Final = 1.0
"""Seconds between two looks: as often as the page asks."""

ANSWER_SECONDS: Final = 1.0
"""Time for a relay's answer."""

_ANSWER_BYTES: Final = 4 << 20
# The first rows are below 200 KB with names of the maximum length; metrics have a constant size.

_TOP: Final = 40
# Accounts and holders; rows of those who wait have a limit of their own.


@attrs.frozen
class Look:
    """All relays at one time."""

    answers: tuple[Answer, ...]
    """The answer of each relay, in order."""
    at: float
    """When the look began, on Trio's clock."""
    time: float = attrs.field(factory=time.time)
    """When it ended, in seconds since 1970."""

    def page(self) -> dict[str, Any]:
        """Return the content of `/cluster.json`."""
        return {"time": round(self.time, 3), **cluster_view(self.answers)}

    def expositions(self) -> dict[str, str | None]:
        """Return the metrics of each relay; None for one that does not answer."""
        return {answer.name: answer.metrics for answer in self.answers}


class Looks:
    """Looks at relays when somebody asks, and no more often than `EVERY_SECONDS`."""

    def __init__(self, relays: Sequence[Member]) -> None:
        self._relays = relays
        self._lock = trio.Lock()
        self._last: Look | None = None

    async def latest(self) -> Look:
        """Return a look that is not older than `EVERY_SECONDS`.

        Cancellation: another one who waits looks instead.
        """
        async with self._lock:
            now = trio.current_time()
            if self._last is None or now - self._last.at >= EVERY_SECONDS:
                self._last = Look(await self._look(), now)
            return self._last

    async def _look(self) -> tuple[Answer, ...]:
        answers: dict[str, Answer] = {}

        async def ask(member: Member) -> None:
            answers[member.name] = await _ask(member)

        async with trio.open_nursery() as nursery:
            for member in self._relays:
                nursery.start_soon(ask, member)
        return tuple(answers[member.name] for member in self._relays)


async def _ask(member: Member) -> Answer:
    http, visitor = member.addresses.http, member.visitor
    link = http if member.link is None else member.link
    answer = Answer(member.name, member.addresses.mqtt, link)
    if not member.addresses.is_ready:
        return attrs.evolve(answer, fault="it is starting")
    fault = f"no answer within {ANSWER_SECONDS:g} s"
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            url = f"{http}/ledger.json?top={_TOP}"
            ledger: Any = await fetch_json(url, visitor=visitor, most=_ANSWER_BYTES)
            url = f"{http}/metrics"
            metrics = await fetch_text(url, visitor=visitor, most=_ANSWER_BYTES)
            return attrs.evolve(answer, ledger=ledger, metrics=metrics)
        except CommandFailedError as error:
            fault = str(error)
    return attrs.evolve(answer, fault=fault)
