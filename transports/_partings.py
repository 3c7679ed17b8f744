"""Stepwise removal of an ended connection's subscriptions and assertions.

A peer may have a hundred thousand of them, and thousands of peers may leave at once. A connection
ends in one step all the same. The rest is taken back after that, with others in between, on its own
account (rule 2), which stays open until then: so the ledger and the audit cover it. Each step is
done when it is the connection's turn, as if it was still there.

An ended holder drops events that it gets meanwhile, and they are repaid at once. A client that
comes back under the same name waits until nothing of its former connection is left (`of`).
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

BATCH: Final = 32
"""Steps done when a connection ends: about a millisecond's worth. Most connections need fewer."""


@attrs.frozen(eq=False)
class _Rest:
    """The remaining steps of one connection."""

    name: str
    steps: Steps
    stack: ExitStack = attrs.field(factory=ExitStack)
    """Callbacks for the end."""


class Partings:
    """Ended connections with something still to be taken back.

    Args:
        flusher: Sends the notifications to others; its nursery outlives the connections.
        failed: Called with the name and the error; the rest is taken back all the same.
    """

    __slots__ = ("_failed", "_flusher", "_rests", "_under_way")

    def __init__(self, flusher: Flusher, failed: Callable[[str, Exception], object]) -> None:
        self._flusher = flusher
        self._failed = failed
        # By name: the number with that name, and the event that is set when the last is done.
        self._under_way: dict[str, tuple[int, trio.Event]] = {}
        # The remaining work, in the order in which they left.
        self._rests: dict[_Rest, None] = {}

    def __len__(self) -> int:
        """Return the number of names with something still to be taken back."""
        return len(self._under_way)

    def of(self, name: str) -> trio.Event | None:
        """Return the event that is set when nothing is left under a name; None if nothing is."""
        under_way = self._under_way.get(name)
        return None if under_way is None else under_way[1]

    def take_back(
        self, name: str, account: Account, work: Work, steps: Steps, batch: int = BATCH
    ) -> None:
        """Run `steps`: some of them now, and the rest when it is the turn of `work`.

        Args:
            name: The name of the ended connection.
            account: The account that pays; it is open.
            work: Charged with the CPU time.
            steps: Each is short, and takes something back in turns of its own.
            batch: The number of them to do now.
        """
        self._go_on(name, steps, batch)
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
        """Do all remaining steps at once: nothing else goes on any more."""
        while self._rests:
            self._finish(next(iter(self._rests)))

    def _finish(self, rest: _Rest) -> None:
        with rest.stack:
            while not self._go_on(rest.name, rest.steps, BATCH):
                pass

    def _go_on(self, name: str, steps: Steps, most: int) -> bool:
        """Do some steps; return whether that was all."""
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
