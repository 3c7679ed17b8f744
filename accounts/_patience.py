"""Nobody waits for ever in silence (rule 11).

A holder that makes no progress for its patience, while a reader waits for debt that it holds, is
dealt with by its policy. Looking is a plain function; `watch_patience` calls it now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import attrs
import trio

from ._account import Account
from ._holder import Holder, StuckPolicy
from ._ledger import Ledger

logger = logging.getLogger("clearfunds.accounts")

WATCH_SECONDS = 0.5
"""How often holders are looked at: a fortieth of the default patience."""

MAX_NAMED = 20
"""How many waiting accounts a log line names; the rest are counted."""


@attrs.frozen(slots=True)
class Stuck:
    """A holder whose patience has run out, and who waits on it."""

    holder: Holder
    """Who makes no progress."""
    waiting: tuple[str, ...]
    """The accounts whose readers wait for debt that it holds."""
    items: int
    """Events of theirs that it holds."""
    bytes: int
    """Their bytes."""
    idle_seconds: float
    """For how long it has made no progress while somebody waited on it."""

    def sentence(self) -> str:
        """Say it for the log."""
        names = ", ".join(self.waiting[:MAX_NAMED])
        if len(self.waiting) > MAX_NAMED:
            names += f" and {len(self.waiting) - MAX_NAMED} more"
        return (
            f"{self.holder.kind} {self.holder.name} made no progress for {self.idle_seconds:.1f} s "
            f"(patience {self.holder.patience:g} s) and holds {self.items} items, {self.bytes} "
            f"bytes that {names} wait{'s' if len(self.waiting) == 1 else ''} for"
        )


def _waiting_since(ledger: Ledger) -> dict[Account, dict[str, float]]:
    """Return, for each account at which somebody waits, who waits and since when."""
    waiting: dict[Account, dict[str, float]] = {}
    for waiter in ledger.waiters:
        if waiter.at is not None:
            since, name = waiting.setdefault(waiter.at, {}), waiter.account.name
            since[name] = min(since.get(name, waiter.since), waiter.since)
    return waiting


def overdue(ledger: Ledger, now: float, holders: Iterable[Holder] | None = None) -> list[Stuck]:
    """Return the holders whose patience has run out at `now`.

    Time counts from the holder's last progress, or from when the first of those who now wait on
    it began to, whichever is later: a holder on which nobody waits may take its time.
    """
    waiting = _waiting_since(ledger)
    if not waiting:
        return []
    stuck: list[Stuck] = []
    for holder in list(ledger.holders) if holders is None else holders:
        if now - holder.progressed_at < holder.patience:
            continue
        items = nbytes = 0
        since: dict[str, float] = {}
        for loan in holder.loans():
            held_for = [waiting[a] for a in loan.account.chain if a in waiting]
            if held_for:
                items += loan.items
                nbytes += loan.bytes
                for readers in held_for:
                    for name, began in readers.items():
                        since[name] = min(began, since.get(name, began))
        if since:
            idle = now - max(holder.progressed_at, min(since.values()))
            if idle >= holder.patience:
                stuck.append(Stuck(holder, tuple(sorted(since)), items, nbytes, idle))
    return stuck


async def watch_patience(ledger: Ledger, *, every: float = WATCH_SECONDS) -> None:
    """Deal with holders whose patience has run out, every `every` seconds, until cancelled.

    With `StuckPolicy.DISCONNECT` the holder is given up, its debt is `written_off`, and those who
    waited go on; with `StuckPolicy.WAIT` it is only named, once for each patience. Both are logged
    as one warning with who waits on whom, for how much, and since when. What has leaked is repaid
    on the way, so that readers do not wait for debt that nobody has.
    """
    named: dict[int, float] = {}
    while True:
        await trio.sleep(every)
        # Nobody may be left to do so: all who would take the next turn wait for what has leaked.
        ledger.drain()
        now = ledger.clock()
        stuck = overdue(ledger, now)
        named = {id(s.holder): named[id(s.holder)] for s in stuck if id(s.holder) in named}
        for each in stuck:
            holder = each.holder
            if holder.policy is StuckPolicy.DISCONNECT:
                logger.warning("%s; giving it up, its debt is written off", each.sentence())
                try:
                    holder.give_up(each.sentence())
                except Exception:
                    # One holder's fault must not leave everybody else's readers waiting.
                    logger.exception("%s %s could not be given up", holder.kind, holder.name)
            elif now - named.get(id(holder), -holder.patience) >= holder.patience:
                named[id(holder)] = now
                logger.warning("%s; its policy is to wait", each.sentence())
