"""Paths of waits that go on at other relays: how rings over several are found.

A relay knows which of its readers wait for holders of which other relays, and is told by these what
the peers of such holders wait for in turn. It tells that on to the relays whose publishers wait for
its own readers. So a path goes backwards along the waits, from relay to relay, until it has come to
where it began: path-pushing (Obermarck 1982, "Distributed Deadlock Detection Algorithm"), without
his total order of members; all relays of a ring see it, and open it one after the other
(`Holder.ring_rank`).

A path is told on only where its reader could not go on even if all but the holders that stand still
repaid everything, as with rings on one relay (`accounts.watch`). No account is on it twice, so what
was once told does not go round for ever.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Final

from ...accounts.watch._waits_for import RING_SECONDS, Standstill
from ._remote_holder import RemoteHolder
from ._wire import Path

if TYPE_CHECKING:
    from ...accounts import Account, Ledger

MAX_PATHS: Final = 4
"""Paths that are told of one account."""

MAX_PATH: Final = 32
"""Accounts on a path: four on each of eight relays."""

MAX_STEPS: Final = 64
"""Accounts that are looked at for the paths of one."""

MAX_BRANCHES: Final = 16
"""Holders, those with the most first, that are looked at of each."""


class WaitPaths:
    """The paths of a relay's readers that wait.

    Args:
        ledger: The books of the relay.
        me: Its name.
    """

    def __init__(self, ledger: Ledger, me: str) -> None:
        self._ledger = ledger
        self._me = me
        self._graph: Standstill | None = None
        # The accounts at which readers wait for holders of other relays, and for which.
        self._beyond: dict[Account, list[RemoteHolder]] = {}
        self._stays: set[Account] = set()

    def clear(self) -> None:
        """Forget all."""
        self._graph = None
        self._beyond, self._stays = {}, set()

    def look_in_steps(self, remotes: Iterable[RemoteHolder]) -> Generator[None]:
        """Find out who waits for whom now; `of` tells the paths from then on."""
        now = self._ledger.clock()
        graph = Standstill(self._ledger, now, RING_SECONDS)
        yield from graph.look()
        beyond: dict[Account, list[RemoteHolder]] = {}
        kept: dict[Account, list[int]] = {}
        for at, arrows in graph.arrows.items():
            yield
            for arrow in arrows:
                if not isinstance(arrow.on.holder, RemoteHolder):
                    _add(kept, at, arrow.on.items, arrow.on.bytes)
        for remote in list(remotes) if graph.arrows else ():
            if now - remote.progressed_at < RING_SECONDS or not remote.paths:
                continue
            shares = yield from graph.held_up_by(remote)
            for at, (items, nbytes) in shares.items():
                _add(kept, at, items, nbytes)
                beyond.setdefault(at, []).append(remote)
        self._graph = graph
        self._beyond = beyond
        self._stays = {at for at, (items, nbytes) in kept.items() if graph.stays(at, items, nbytes)}

    def of(self, account: Account) -> tuple[Path, ...]:
        """Return on whom the reader of an account waits, to the accounts of other relays."""
        graph = self._graph
        if graph is None or not self._beyond:
            return ()
        start = (self._me, account.name)
        found: dict[Path, None] = {}
        seen = {account}
        todo: list[tuple[Account, Path]] = [(account, ())]
        for _ in range(MAX_STEPS):
            if not todo or len(found) >= MAX_PATHS:
                break
            each, before = todo.pop(0)
            for at in graph.stands.get(each, ()):
                if at not in self._stays:
                    continue
                for remote in self._beyond.get(at, ())[:MAX_BRANCHES]:
                    for path in remote.paths:
                        found[_joined(start, before, path)] = None
                for arrow in graph.arrows[at][:MAX_BRANCHES]:
                    owner = arrow.owner
                    if isinstance(arrow.on.holder, RemoteHolder) or owner in seen:
                        continue
                    seen.add(owner)
                    todo.append((owner, (*before, (self._me, owner.name))))
        return tuple(found)[:MAX_PATHS]


def _add(kept: dict[Account, list[int]], at: Account, items: int, nbytes: int) -> None:
    total = kept.setdefault(at, [0, 0])
    total[0] += items
    total[1] += nbytes


def _joined(start: tuple[str, str], before: Path, beyond: Path) -> Path:
    """Return one path behind another, up to where it comes back to itself."""
    path = list(before)
    for each in beyond:
        if each == start or each in path or len(path) >= MAX_PATH:
            break
        path.append(each)
    return tuple(path)
