"""Slow-consumer policies for the outlets of your own server: each event's bytes are one frame.

Rules of this file:
1. A frame is kept, dropped or spilled as a whole.
2. Bytes that stand for several events (a `Batch`) are one frame, too, without a key: where frames
   of a key replace each other, nothing replaces these. Deliveries joined with such bytes before the
   connection was relieved are one frame with them: how many events each stands for is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from ..access._subscription_policies import PolicyRule, PolicyRules
from ..accounts import Holder, LoanQueue, StuckPolicy, UnfitPolicyError
from ..persistence._spool import Spool
from ._backlog_messages import Frame
from ._flusher import Flusher
from ._outlet_backlog import ConsumerPolicy, Several

logger = logging.getLogger("clearfunds.transports")


class WholeFrames:
    """Takes each chunk for one frame that may be dropped, as `._backlog_messages.Framing`.

    Args:
        key: Returns the conflation key of a frame; a frame for which it fails is its own key.
    """

    __slots__ = ("_key",)

    def __init__(self, key: Callable[[bytes], bytes] | None = None) -> None:
        self._key = key

    @staticmethod
    def may_drop(chunk: bytes) -> bool:
        del chunk
        return True

    def frames(self, chunk: bytes, start: int = 0) -> Iterator[Frame]:
        if isinstance(chunk, Several):
            yield chunk, start, len(chunk), chunk.items
        else:
            yield self._key_of(chunk), start, len(chunk), 1

    def _key_of(self, frame: bytes) -> bytes | None:
        if self._key is None:
            return None
        try:
            key = self._key(frame)
            hash(key)
        except Exception:
            logger.exception("the key function of an outlet failed for a frame")
            return frame
        return key


def policy_for_frames(
    name: str,
    flusher: Flusher,
    policy: StuckPolicy,
    patience: float,
    key: Callable[[bytes], bytes] | None,
) -> ConsumerPolicy | None:
    """Return what an outlet called `name` needs for `policy`; None: nothing.

    Raises:
        UnfitPolicyError: If it is to conflate, and there is no `key`.
    """
    if not policy.relieves:
        return None
    if policy is StuckPolicy.CONFLATE and key is None:
        msg = f"outlet {name} cannot conflate when it is stuck: it needs a key= for its frames"
        raise UnfitPolicyError(msg)

    conflates, spills = policy is StuckPolicy.CONFLATE, policy is StuckPolicy.SPILL
    return ConsumerPolicy(
        PolicyRules(PolicyRule(policy, patience)),
        WholeFrames(key if conflates else None),
        partial(_open_spool, flusher) if spills else None,
        whole=True,
    )


def _open_spool(
    flusher: Flusher,
    holder: Holder,
    on_more: Callable[[], object],
    on_over: Callable[[str], object],
) -> Spool:
    """Open a place in memory, within the limit of the backlog of `holder` (`OpenSpool`)."""
    assert isinstance(holder, LoanQueue)
    backlog = holder.backlog
    assert backlog is not None
    # Opened once more: the spool closes it, and so does the backlog.
    account = holder.ledger.open(backlog.account.name, parent=backlog.above)
    shelves = flusher.shelves
    shelves.faults = holder.ledger.faults
    return Spool(holder, shelves, account, account.name, on_more=on_more, on_over=on_over)
