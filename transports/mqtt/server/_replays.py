"""Retained publications still to be sent to a new subscriber."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....access.acl import Rights
    from ....accounts import Account, Recipient
    from ....dataspace import Cursor, Publication, RetainedStore

REPLAY_STEP: Final = 64
"""Retained publications sent in one step, at 10 us each."""

LOOKS_A_STEP: Final = 256
"""Topics checked in one step, whether they match or not, at 3 us each."""


class Replays:
    """The subscriptions of one client whose retained publications are not all sent yet.

    Attributes:
        granted: These, by filter, with the QoS granted. None or empty: there are none.
    """

    __slots__ = ("_cursor", "granted")

    def __init__(self) -> None:
        self.granted: dict[str, int] | None = None
        # The position of the first filter's replay.
        self._cursor: Cursor | None = None

    def add(self, text: str, granted: int) -> None:
        """Begin to send the publications that match a filter, with the granted QoS at most."""
        if self.granted is None:
            self.granted = {}
        self.granted[text] = granted

    def clear(self) -> None:
        """Send no more."""
        self.granted = None
        self._cursor = None

    def step(
        self,
        retained: RetainedStore,
        account: Account,
        holder_of: Callable[[int], Recipient],
        rights: Rights | None = None,
    ) -> None:
        """Send some, as many as there is room for (rules 9 and 16); it takes about 1 ms at most.

        A publication that stays retained is sent once, whatever changes between steps.

        Args:
            retained: The retained publications.
            account: The subscriber's account, which is charged.
            holder_of: Returns the recipient of publications of a QoS.
            rights: The subscriber's right to read; None: everything.
        """
        left = REPLAY_STEP
        for _ in range(LOOKS_A_STEP):
            if not self.granted:
                return
            found = self._next(retained, self.granted)
            if found is None:
                continue
            publication, granted = found
            if rights is not None and not rights.may_read(publication.topic):
                continue
            qos = min(publication.qos, granted)
            # One at a time, because each one's cost decides whether there is room for the next.
            with account.turn() as turn:
                told = attrs.evolve(publication, qos=qos, retain=True)
                turn.send(holder_of(qos), told, nbytes=publication.nbytes)
            left -= 1
            if not left or not account.funds_are_clear():
                return

    def _next(
        self, retained: RetainedStore, filters: dict[str, int]
    ) -> tuple[Publication, int] | None:
        """Check one topic for the first filter; return a publication to send, and its highest QoS.

        None if there is no such publication, or if that filter has found all.
        """
        text, granted = next(iter(filters.items()))
        if self._cursor is None:
            self._cursor = retained.cursor(text)
        topic = self._cursor.step()
        if self._cursor.at_end:
            self._cursor = None
            del filters[text]
        publication = None if topic is None else retained.get(topic)
        return None if publication is None else (publication, granted)
