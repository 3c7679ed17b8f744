"""Dead letters: messages that a queue has given up are published once more, elsewhere.

The deaths of a message travel beside it, not in it: while a dead letter's turn is handed over, the
queues that it reaches find them in its confirm. So any event can be a dead letter, and patterns see
it as it was; and an event that is published because of it is a message of its own.

Source: RabbitMQ's rabbit_dead_letter.erl, for the order of deaths and for cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ...accounts import CountedConfirm, Router, Turn
from .._events import Publication
from ._message import Death, DeathReason


@attrs.frozen(slots=True)
class DeadLetter:
    """A message that a queue has given up."""

    event: Any
    """The published event."""
    queue: str
    """The name of that queue."""
    reason: DeathReason
    """The reason."""
    deaths: tuple[Death, ...]
    """This death and those before, the latest first; one for each queue and reason."""
    nbytes: int
    """The bytes that it is charged for."""


DeadLetterRoute = Callable[[Turn, DeadLetter], object]
"""Publishes a dead letter in a turn, which the message's account pays for."""


def dead_letter_to(router: Router, topic: str | None = None) -> DeadLetterRoute:
    """Return a route that publishes dead letters in `router`, a dataspace.

    A `Publication` is published under `topic` (None: under its own), never retained, and without
    expiry; anything else, having no topic, as the `DeadLetter` that describes it.
    """

    def route(turn: Turn, letter: DeadLetter) -> None:
        event = letter.event
        if isinstance(event, Publication):
            event = attrs.evolve(
                event,
                topic=topic or event.topic,
                retain=False,
                was_retained=False,
                # Otherwise a consumer of expired messages would never see it (as RabbitMQ).
                expires=None,
            )
            turn.publish(router, event)
        else:
            turn.publish(router, letter, nbytes=letter.nbytes)

    return route


def with_death(
    deaths: tuple[Death, ...], queue: str, reason: DeathReason, now: float
) -> tuple[Death, ...]:
    """Return `deaths` with one more, in front; the count of one that was there before is raised."""
    rest: list[Death] = []
    latest = Death(queue, reason, now)
    for death in deaths:
        if death.queue == queue and death.reason is reason:
            latest = attrs.evolve(death, count=death.count + 1)
        else:
            rest.append(death)
    return (latest, *rest)


def is_cycle(queue: str, deaths: tuple[Death, ...]) -> bool:
    """Whether a dead letter that arrives in `queue` has come back without a consumer's doing.

    It has if it died there before, and no consumer has rejected it since.
    """
    for death in deaths:
        if death.reason is DeathReason.REJECTED:
            return False
        if death.queue == queue:
            return True
    return False


class Burial(CountedConfirm):
    """The confirm of a dead letter: tells whether it is safe at its destination.

    A message that has to survive a restart is erased here only when it is safe there: `done` is
    called once, when no more answers are expected, with the sentence of the last holder that
    refused, or None.

    Attributes:
        deaths: Those of the message, for the queues that it reaches.
    """

    __slots__ = ("_done", "_refused", "_waits", "deaths")

    def __init__(
        self, deaths: tuple[Death, ...], done: Callable[[str | None], None], *, waits: bool
    ) -> None:
        self.expected = 1
        self.deaths = deaths
        self._done = done
        self._waits = waits
        self._refused: str | None = None

    def taken(self) -> None:
        """See `Confirm.taken`."""
        self.expected -= 1
        self._look()

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`."""
        self._refused = reason
        self.expected -= 1
        self._look()

    def handed_over(self) -> None:
        """Note that all recipients are reached. A message that need not be safe is done then."""
        self.expected -= 1
        if self._waits:
            self._look()
        else:
            self._done(self._refused)

    def _look(self) -> None:
        if self._waits and not self.expected:
            self._done(self._refused)
