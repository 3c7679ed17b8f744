"""A fan-out that is done in one step: what sockets take at once is queued nowhere.

The last run of a read has nothing after it that it could be sent with, so there is no reason to
hand it to every outlet first and to have each send afterwards: it is written to one socket after
another. It is charged before the first of them, and repaid, for those who took all of it, after the
last, in one sum each; nobody can look in between. Whatever is not as simple as that goes the
ordinary way, `commit_run`: an outlet with something queued, one that is behind, another kind of
holder, the rest of what a socket did not take.

Measured with one message in flight to nine subscribers: 2,200 instead of 3,750 bytecodes a message.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..accounts import Outcome, commit_run
from ._flusher import OUTLETS_A_STEP
from ._outlet import SEND_BYTES, Outlet

if TYPE_CHECKING:
    from ..accounts import Account, Recipient
    from ..dataspace import Batch


def commit_and_send(
    account: Account, holders: Collection[Recipient], batch: Batch, items: int, nbytes: int
) -> None:
    """Do a whole root turn as `commit_run` does, and send what can be sent at once.

    For who has nothing more to hand over before it calls `Flusher.flush`, which sees to the rest.
    Never raises: what goes wrong with an outlet's connection ends that connection.
    """
    ledger = account.ledger
    raw = batch.raw
    if (
        ledger.recorder is not None  # is told of each loan
        or account.tracers is not None
        or len(holders) > OUTLETS_A_STEP  # others have a turn in between
        or nbytes > SEND_BYTES
    ):
        commit_run(account, holders, batch, items, nbytes)
        return
    account.borrow_run(items, nbytes, len(holders))
    taken = 0
    one: Outlet | None = None
    try:
        for holder in holders:
            # Exactly this kind: others count what they are handed. Who is blocked has a queue.
            if type(holder) is Outlet and not (holder.queue or holder.diverted):
                try:
                    sent = holder.sock.send(raw)
                except BlockingIOError:
                    sent = 0
                except OSError as exc:
                    holder.fail(exc)
                    sent = 0
                if sent == nbytes:
                    taken += 1
                    one = holder
                else:
                    holder.hold_rest(account, batch, items, sent)
            else:
                holder.hold(account, batch, items, nbytes, ledger.clock())
    finally:
        if one is not None:
            one.ages.counts[0] += taken * items  # for no time at all
            account.repay(taken * items, taken * nbytes, Outcome.DELIVERED, one)
