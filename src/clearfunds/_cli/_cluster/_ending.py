"""The end of a cluster: asked for by a signal, or caused by a process that has ended."""

import signal
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio


@attrs.define(eq=False)
class Ending:
    """The first reason for which the cluster ends."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """The block that runs until the end is asked for."""
    fault: str | None = None
    """A sentence about the process that has ended by itself; None: the user wants the end."""

    @property
    def is_asked_for(self) -> bool:
        """Whether the cluster is ending."""
        return self.scope.cancel_called

    def ask(self, fault: str | None = None) -> None:
        """End the cluster; only the first reason counts."""
        if not self.is_asked_for:
            self.fault = fault
            self.scope.cancel()


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask for the end."""

_TERMINAL_GONE: Final = signal.SIGHUP
# By default it would end this process at once, and the cluster's processes would stay.


def with_hang_up() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command in a terminal, unless it runs under nohup."""
    ignored = signal.getsignal(_TERMINAL_GONE) is signal.SIG_IGN
    return SIGNALS if ignored else (*SIGNALS, _TERMINAL_GONE)


async def end_at_signals(
    ending: Ending,
    at_once: Callable[[], object],
    numbers: Sequence[signal.Signals] = SIGNALS,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Ask for the end at the first signal, and call `at_once` at the second; until cancelled."""
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for _ in signals:
            if ending.is_asked_for:
                at_once()
            ending.ask()
