"""Dead letters: what a queue has given up is published once more, elsewhere.

The deaths of a message travel beside it, not in it: while a dead letter's turn is handed over, the
queues that it reaches find them here. So any event can be one, and patterns see it as it was.

Source: RabbitMQ's rabbit_dead_letter.erl, for the order of deaths and for cycles.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import attrs

from ...accounts import Ledger, Router, Turn
from .._events import Publication
from ._message import Death, DeathReason


@attrs.frozen(slots=True)
class DeadLetter:
    """A message that a queue has given up."""

    event: Any
    """What was published."""
    queue: str
    """Which queue."""
    reason: DeathReason
    """Why."""
    deaths: tuple[Death, ...]
    """This death and those before, the latest first; one for each queue and reason."""
    nbytes: int
    """What it is charged for."""


DeadLetterRoute = Callable[[Turn, DeadLetter], object]
"""Notes in a turn, which the message's account pays for, where a dead letter goes."""


def dead_letter_to(router: Router, topic: str | None = None) -> DeadLetterRoute:
    """Return a route that publishes dead letters in `router`, a dataspace.

    A `Publication` is published under `topic` (None: under its own), never retained; anything else,
    for lack of a topic, as the `DeadLetter` that tells of it.
    """

    def route(turn: Turn, letter: DeadLetter) -> None:
        event = letter.event
        if isinstance(event, Publication):
            event = attrs.evolve(event, topic=topic or event.topic, retain=False)
            turn.publish(router, event)
        else:
            turn.publish(router, letter, nbytes=letter.nbytes)

    return route


def with_death(
    deaths: tuple[Death, ...], queue: str, reason: DeathReason, now: float
) -> tuple[Death, ...]:
    """Return `deaths` with one more, in front; one that was there before is counted up."""
    rest: list[Death] = []
    latest = Death(queue, reason, now)
    for death in deaths:
        if death.queue == queue and death.reason is reason:
            latest = attrs.evolve(death, count=death.count + 1)
        else:
            rest.append(death)
    return (latest, *rest)


def is_cycle(queue: str, deaths: tuple[Death, ...]) -> bool:
    """Whether a dead letter that arrives in `queue` has come back there all by itself.

    It has if it died there before, and no consumer has rejected it since.
    """
    for death in deaths:
        if death.reason is DeathReason.REJECTED:
            return False
        if death.queue == queue:
            return True
    return False


class Undertaker:
    """What is known, in one ledger, of the dead letter that is being handed over.

    Attributes:
        deaths: Its deaths; empty when what is being handed over is none.
    """

    __slots__ = ("__weakref__", "deaths")

    def __init__(self) -> None:
        self.deaths: tuple[Death, ...] = ()


_undertakers: weakref.WeakKeyDictionary[Ledger, Undertaker] = weakref.WeakKeyDictionary()


def undertaker_of(ledger: Ledger) -> Undertaker:
    """Return the one of a ledger."""
    undertaker = _undertakers.get(ledger)
    if undertaker is None:
        undertaker = _undertakers[ledger] = Undertaker()
    return undertaker


class Burial:
    """Hears whether those whom a dead letter has reached have taken responsibility for it.

    What has to survive a restart is erased here only when it is safe there: `done` is called once,
    when nobody is expected any more, with the sentence of the last who refused, or None.
    """

    __slots__ = ("_done", "_expected", "_open", "_refused")

    def __init__(self, done: Callable[[str | None], None]) -> None:
        self._done = done
        self._expected = 0
        self._open = True
        self._refused: str | None = None

    def expect(self) -> None:
        """See `Confirm.expect`."""
        self._expected += 1

    def taken(self) -> None:
        """See `Confirm.taken`."""
        self._expected -= 1
        self._look()

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`."""
        self._refused = reason
        self._expected -= 1
        self._look()

    def handed_over(self) -> None:
        """Note that everybody who is reached has been."""
        self._open = False
        self._look()

    def _look(self) -> None:
        if not self._open and not self._expected:
            self._done(self._refused)
