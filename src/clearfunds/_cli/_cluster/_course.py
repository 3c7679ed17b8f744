"""The course of a command that runs relays, and NATS servers for them, until its end.

1. Relays end before the NATS servers, and both before what runs beside them, as the page.
2. At the first signal the course ends in this order; at the second all processes are killed.
"""

import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import attrs
import trio

from .._errors import CommandFailedError
from ._ending import Ending, end_at_signals
from ._fleet import Fleet, open_fleet
from ._guard import open_guard

_SERVERS_END_SECONDS: Final = 10.0
# From SIGTERM to SIGKILL: NATS servers write what is in memory to disk.

_CLOSE_SECONDS: Final = 5.0
# The same for relays, besides twice their grace.


@attrs.frozen
class Course:
    """The tasks and processes of a command; each part ends after those below it."""

    beside: trio.Nursery
    """Tasks that run until all processes have ended."""
    servers: Fleet
    """The NATS servers."""
    relays: Fleet
    """The relays."""
    until_end: trio.Nursery
    """Tasks that run until the end is asked for."""
    ending: Ending
    """The end."""


async def run_course(
    start: Callable[[Course], Awaitable[None]],
    *,
    grace: float,
    signals: Sequence[signal.Signals],
    at_end: Callable[[Ending], object],
    at_once: Callable[[], object] = bool,
) -> int:
    """Start processes, run them until the end, and return the exit status: 1 for a second signal.

    Args:
        start: Starts everything.
        grace: `--grace` of the relays, in seconds.
        signals: Signals that ask for the end.
        at_end: Is called when the end begins.
        at_once: Is called at the second signal.

    Raises:
        CommandFailedError: A process has ended by itself, or `start` has failed.
    """
    ending = Ending()
    is_cut_short = True
    async with trio.open_nursery() as beside:

        def cut_short() -> None:
            at_once()
            beside.cancel_scope.cancel()

        await beside.start(end_at_signals, ending, cut_short, signals)
        async with (
            open_guard() as guard,
            open_fleet(ending, guard, _SERVERS_END_SECONDS) as servers,
            open_fleet(ending, guard, 2 * grace + _CLOSE_SECONDS) as relays,
        ):
            with ending.scope:
                async with trio.open_nursery() as until_end:
                    await start(Course(beside, servers, relays, until_end, ending))
                    await trio.sleep_forever()
            at_end(ending)
        is_cut_short = False
        beside.cancel_scope.cancel()
    if ending.fault is not None:
        raise CommandFailedError(ending.fault)
    return 1 if is_cut_short else 0
