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

import attrs
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


@attrs.frozen(eq=False)
class _Rest:
    """What is left of one connection."""

    name: str
    steps: Steps
    stack: ExitStack = attrs.field(factory=ExitStack)
    """What comes after it."""


class Partings:
    """Those connections that have ended, of which something is still to be taken back.

    Args:
        flusher: Who sends what the others are told; its nursery outlives the connections.
        failed: Is told who has left and what went wrong; the rest is taken back all the same.
    """

    __slots__ = ("_failed", "_flusher", "_rests", "_under_way")

    def __init__(self, flusher: Flusher, failed: Callable[[str, Exception], object]) -> None:
        self._flusher = flusher
        self._failed = failed
        # By name: how many of that name, and what is set when the last is done.
        self._under_way: dict[str, tuple[int, trio.Event]] = {}
        # What is left to be done, in the order in which they left.
        self._rests: dict[_Rest, None] = {}

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
        count, done = self._under_way.get(name) or (0, trio.Event())
        self._under_way[name] = count + 1, done
        # Before the account is closed, and not only when the task begins.
        parting = _Rest(name, chain((rest,), steps))
        parting.stack.callback(self._done, parting)
        parting.stack.enter_context(account.kept_open())
        self._rests[parting] = None
        self._flusher.nursery.start_soon(self._run, parting, work)

    def finish(self) -> None:
        """Take back at once all that is left: nothing but that goes on any more."""
        while self._rests:
            self._finish(next(iter(self._rests)))

    def _finish(self, rest: _Rest) -> None:
        with rest.stack:
            while not self._go_on(rest.name, rest.steps, AT_ONCE):
                pass

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

    async def _run(self, rest: _Rest, work: Work) -> None:
        """Do the rest with others in between; at once if that is cancelled."""
        try:
            while rest in self._rests:
                await work.let_others()
                while rest in self._rests and not work.is_over():
                    if self._go_on(rest.name, rest.steps, 1):
                        rest.stack.close()
                self._flusher.flush_now()
        finally:
            if rest in self._rests:
                self._finish(rest)
            self._flusher.flush_now()
            work.end()

    def _done(self, rest: _Rest) -> None:
        del self._rests[rest]
        count, done = self._under_way.pop(rest.name)
        if count > 1:
            self._under_way[rest.name] = count - 1, done
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
