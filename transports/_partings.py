"""What connections leave to be taken back: subscriptions, assertions, in steps.

A peer may stand for a hundred thousand things, and thousands of peers may leave at once. A
connection ends in one step all the same; the rest of what it stands for is taken back after that,
with others in between, on its own account (rule 2), which stays open until then: so the books and
the audit cover it. It is done when it is the connection's turn, as if it was still there.

What is told meanwhile to something that has ended is dropped by that, and repaid at once. Who comes
back under the same name waits until nothing is left of who it was (`of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

if TYPE_CHECKING:
    from ..accounts import Account
    from ..dataspace import Dataspace, Observation
    from ._flusher import Flusher
    from ._scheduler import Work

Steps: TypeAlias = Iterator[Callable[[], object]]

AT_ONCE: Final = 32
"""What is taken back in the step in which a connection ends: about a millisecond's worth. Most
connections stand for less."""


class Partings:
    """Those connections that have ended, of which something is still to be taken back.

    Args:
        flusher: Who sends what the others are told; its nursery outlives the connections.
        failed: Is told who has left and what went wrong; the rest is taken back all the same.
    """

    __slots__ = ("_failed", "_flusher", "_under_way")

    def __init__(self, flusher: Flusher, failed: Callable[[str, Exception], object]) -> None:
        self._flusher = flusher
        self._failed = failed
        # By name: how many of that name, and what is set when the last is done.
        self._under_way: dict[str, tuple[int, trio.Event]] = {}

    def __len__(self) -> int:
        """Return how many names something is still to be taken back for."""
        return len(self._under_way)

    def of(self, name: str) -> trio.Event | None:
        """Return what is set when nothing is left under a name; None if nothing is now."""
        under_way = self._under_way.get(name)
        return None if under_way is None else under_way[1]

    def take_back(
        self, name: str, account: Account, work: Work, steps: Steps, at_once: int = AT_ONCE
    ) -> None:
        """Take back what `steps` do: some of it now, and the rest when it is the turn of `work`.

        Args:
            name: Who has left.
            account: Who pays; it is open.
            work: Whose CPU time it takes.
            steps: Each is short, and takes something back in turns of its own.
            at_once: How many of them are done now.
        """
        self._go_on(name, steps, at_once)
        rest = next(steps, None)
        if rest is None:
            return
        steps = chain((rest,), steps)
        count, done = self._under_way.get(name) or (0, trio.Event())
        self._under_way[name] = count + 1, done
        # Before the account is closed, and not only when the task begins.
        stack = ExitStack()
        stack.callback(self._done, name)
        stack.enter_context(account.kept_open())
        self._flusher.nursery.start_soon(self._run, name, work, steps, stack)

    def _go_on(self, name: str, steps: Steps, most: int) -> bool:
        """Do some steps; whether that was all."""
        for _ in range(most):
            step = next(steps, None)
            if step is None:
                return True
            try:
                step()
            except Exception as exc:  # noqa: BLE001 (the others must not hear of it)
                self._failed(name, exc)
        return False

    async def _run(self, name: str, work: Work, steps: Steps, stack: ExitStack) -> None:
        """Do the rest with others in between; at once if that is cancelled."""
        with stack:
            done = False
            try:
                while not done:
                    await work.let_others()
                    while not done and not work.is_over():
                        done = self._go_on(name, steps, 1)
                    self._flusher.flush_now()
            finally:
                while not done:
                    done = self._go_on(name, steps, AT_ONCE)
                self._flusher.flush_now()
                work.end()

    def _done(self, name: str) -> None:
        count, done = self._under_way.pop(name)
        if count > 1:
            self._under_way[name] = count - 1, done
        else:
            done.set()


def unobserve_each(
    dataspace: Dataspace, account: Account, observations: Iterable[Observation]
) -> Steps:
    """End observations one by one, each in a turn of its own; for `Partings.take_back`."""
    return (partial(_unobserve, dataspace, account, each) for each in observations)


def _unobserve(dataspace: Dataspace, account: Account, observation: Observation) -> None:
    with account.turn() as turn:
        dataspace.unobserve(turn, observation)
