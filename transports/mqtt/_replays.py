"""Retained publications that one client has still to be told of, because it has subscribed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...accounts import Account, Recipient
    from ...dataspace import RetainedStore
    from ..acl import Rights

REPLAY_STEP: Final = 256
"""Retained publications sent before anything else of this connection is looked at."""


class Replays:
    """The subscriptions of one client whose retained publications it has not all been told of."""

    __slots__ = ("_granted", "_topics")

    def __init__(self) -> None:
        # By filter what was granted; and how far the first of them has got.
        self._granted: dict[str, int] = {}
        self._topics: Iterator[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._granted)

    def add(self, text: str, granted: int) -> None:
        """Tell of what matches a filter, with the QoS that was granted at most."""
        self._granted[text] = granted

    def clear(self) -> None:
        """Tell of nothing more."""
        self._granted.clear()
        self._topics = None

    def step(
        self,
        retained: RetainedStore,
        account: Account,
        holder_of: Callable[[int], Recipient],
        rights: Rights | None = None,
    ) -> None:
        """Tell of some of the first one's, as many as there is room for (rules 9 and 16).

        Args:
            retained: What there is.
            account: The subscriber's, who pays for it.
            holder_of: Tells who takes a publication of a QoS.
            rights: What the subscriber may read; None: everything.
        """
        text, granted = next(iter(self._granted.items()))
        if self._topics is None:
            self._topics = iter(retained.topics(text))
        # One at a time, until there is no room: each costs what it costs.
        for _ in range(REPLAY_STEP):
            topic = next(self._topics, None)
            if topic is None:
                self._topics = None
                del self._granted[text]
                return
            if rights is not None and not rights.may_read(topic):
                continue
            kept = retained.get(topic)
            if kept is None:
                continue  # removed since
            qos = min(kept.qos, granted)
            with account.turn() as turn:
                told = attrs.evolve(kept, qos=qos, retain=True)
                turn.send(holder_of(qos), told, nbytes=kept.nbytes)
            if not account.funds_are_clear():
                return
