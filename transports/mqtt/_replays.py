"""Retained publications that one client has still to be told of, because it has subscribed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...accounts import Account, Recipient
    from ...dataspace import Cursor, Publication, RetainedStore

REPLAY_STEP: Final = 64
"""Retained publications sent before anything else is done, at 10 us each."""

LOOKS_A_STEP: Final = 256
"""Topics looked at for that, whether they match or not, at 3 us each."""


class Replays:
    """The subscriptions of one client whose retained publications it has not all been told of."""

    __slots__ = ("_cursor", "_granted")

    def __init__(self) -> None:
        # By filter what was granted; and how far the first of them has got.
        self._granted: dict[str, int] = {}
        self._cursor: Cursor | None = None

    def __bool__(self) -> bool:
        return bool(self._granted)

    def add(self, text: str, granted: int) -> None:
        """Tell of what matches a filter, with the QoS that was granted at most."""
        self._granted[text] = granted

    def clear(self) -> None:
        """Tell of nothing more."""
        self._granted.clear()
        self._cursor = None

    def step(
        self, retained: RetainedStore, account: Account, holder_of: Callable[[int], Recipient]
    ) -> None:
        """Tell of some, as many as there is room for (rules 9 and 16); it takes about 1 ms at most.

        What is retained all the time is told once, whatever changes between steps.

        Args:
            retained: What there is.
            account: The subscriber's, who pays for it.
            holder_of: Tells who takes a publication of a QoS.
        """
        left = REPLAY_STEP
        for _ in range(LOOKS_A_STEP):
            if not self._granted:
                return
            found = self._next(retained)
            if found is None:
                continue
            kept, granted = found
            qos = min(kept.qos, granted)
            # One at a time, until there is no room: each costs what it costs.
            with account.turn() as turn:
                told = attrs.evolve(kept, qos=qos, retain=True)
                turn.send(holder_of(qos), told, nbytes=kept.nbytes)
            left -= 1
            if not left or not account.funds_are_clear():
                return

    def _next(self, retained: RetainedStore) -> tuple[Publication, int] | None:
        """Look at one topic for the first filter; return what is to be told, and what was granted.

        None if it is nothing, or if that filter has found all.
        """
        text, granted = next(iter(self._granted.items()))
        if self._cursor is None:
            self._cursor = retained.cursor(text)
        topic = self._cursor.step()
        if self._cursor.at_end:
            self._cursor = None
            del self._granted[text]
        kept = None if topic is None else retained.get(topic)
        return None if kept is None else (kept, granted)
