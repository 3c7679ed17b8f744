"""Cases: functions that take a `Scene` and see how a server behaves; and how they are played."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator
from typing import Final

import attrs

from tests.transports.amqp.oracle.differences import DIFFERENCES
from tests.transports.amqp.oracle.raw import SECONDS
from tests.transports.amqp.oracle.scene import Scene, Server


@attrs.frozen
class Case:
    """A piece of AMQP's behaviour, with the expectation written in it."""

    name: str
    """The area, which is the name of its module, and the function's name."""
    body: Callable[[Scene], None]


CASES: Final[list[Case]] = []
"""All that were registered; `suite` registers them all."""


def case(body: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """Register a case."""
    area = body.__module__.rpartition(".")[2]
    CASES.append(Case(f"{area}.{body.__name__}", body))
    return body


def played(case: Case, server: Server) -> None:
    """Play a case; an error if the server behaves otherwise than expected."""
    scene = Scene(server, case.name)
    with _ending_in_time():
        try:
            case.body(scene)
        finally:
            scene.close()
    assert scene.asked == (case.name in DIFFERENCES), "in the table, but the same on both"


@contextlib.contextmanager
def _ending_in_time() -> Generator[None]:
    """Interrupt the block when it takes too long: pika waits for an answer without end."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("no answer")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2 * SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
