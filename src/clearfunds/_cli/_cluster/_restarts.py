"""Starting a process again when it has ended by itself."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import attrs
import trio

from clearfunds.pages._exposition import Family, format_labels

from ._ending import Ending
from ._fleet import AtEnd, Child

log = logging.getLogger("clearfunds.relay")

RESTARTS_MAX: Final = 5
SECONDS: Final = 60.0
"""A process that ends by itself so often within this time ends all. As often as systemd starts a
service again (StartLimitBurst=5); its ten seconds are too short for processes that need some for
each start."""

_RESTARTS: Final = Family(
    "clearfunds_process_restarts_total",
    "Times that a process of this relay (a worker, or the NATS server) has ended by itself and was "
    "started again.",
    "counter",
    ("process",),
)


@attrs.define(eq=False)
class Restarting:
    """A process that is started again when it ends by itself."""

    name: str
    """Its name."""
    has_started: bool = False
    """Whether it has worked once. If it ends before that, all end."""
    child: Child | None = None
    """The process; None: it is not there."""
    restarts: int = 0
    """How often it was started again."""
    _at: deque[float] = attrs.field(factory=lambda: deque[float](maxlen=RESTARTS_MAX))

    async def run(self, ending: Ending, start: Callable[[AtEnd], Awaitable[Child]]) -> None:
        """Start it, and again when it has ended, until cancelled.

        Args:
            ending: Is asked for when it must not be started again.
            start: Starts it.

        Raises:
            OSError: The program cannot be started.
        """
        while True:
            ended = trio.Event()

            def note(child: Child, ended: trio.Event = ended) -> None:
                self.child = None
                self._judge(child, ending)
                ended.set()

            self.child = await start(note)
            await ended.wait()
            self.restarts += 1

    def _judge(self, child: Child, ending: Ending) -> None:
        now = trio.current_time()
        self._at.append(now)
        if not self.has_started:
            ending.ask(child.epitaph())
        elif len(self._at) == RESTARTS_MAX and now - self._at[0] < SECONDS:
            often = f"for the {RESTARTS_MAX}th time within {SECONDS:g} s"
            ending.ask(f"{child.epitaph()}; {often}")
        else:
            why = child.epitaph()
            log.error(
                "%s; it is started again",
                why,
                extra={"event": "process_ended", "worker": self.name, "reason": why},
            )


def exposition(processes: Sequence[Restarting]) -> str:
    """Return the metric of restarts."""
    samples = (
        _RESTARTS.sample(format_labels({"process": each.name}), each.restarts) for each in processes
    )
    return "".join((_RESTARTS.head(), *samples))
