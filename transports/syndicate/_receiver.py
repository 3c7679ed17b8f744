"""Effects of a peer's turns: complete or none, and taken back when the peer leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ...accounts import Account, QuotaExceededError, TooManyDeliveriesError
from ...dataspace import TooManyShapesError
from .._errors import RemoteProtocolError
from ._entities import Withdrawal
from ._packets import Assert, Message, Retract, Sync, TurnEvent
from ._scan import ASSERT, MESSAGE, EventParts
from ._values import value_at, wire_value

if TYPE_CHECKING:
    from ...accounts import Turn as AccountTurn
    from .._partings import Steps
    from .._server import Counters
    from ._entities import Answer, Entity, Retractor
    from ._membrane import Membrane

TURN_EVENTS = 128
"""Most events in one turn: two milliseconds' worth. A larger packet becomes several turns, so that
unrelated connections do not wait for all of it."""

RETIRE_STEP = 64
"""Assertions of an ended connection that are retracted in one turn: about a millisecond's worth."""


class _Each(Protocol):
    """Handles the events in a slice of a packet."""

    def __call__(self, changes: _Changes, turn: AccountTurn, some: slice) -> None: ...


class Receiver:
    """Applies a peer's turns to their target entities. It is the `Source` of their events.

    A packet is one turn of the connection's account, unless it has more than `TURN_EVENTS` events.
    A fault ends the connection: nothing of its turn has happened, and all earlier turns have.

    Args:
        account: the account to charge.
        membrane: maps oids to entities.
        counters: where messages are counted.
        max_observations: most patterns that the peer may observe.
        max_deliveries: most deliveries that one of its packets may cause.
        complain: logs events that were ignored.
    """

    __slots__ = (
        "_after", "_awaited", "_complain", "_counters", "_live", "_max_deliveries",
        "_max_observations", "_membrane", "_observing", "account", "handle",
    )  # fmt: skip

    def __init__(
        self,
        account: Account,
        membrane: Membrane[Entity],
        counters: Counters,
        *,
        max_observations: int,
        max_deliveries: int,
        complain: Callable[[str], object],
    ) -> None:
        self.account = account
        self._membrane = membrane
        self._counters = counters
        self._max_observations = max_observations
        self._max_deliveries = max_deliveries
        self._complain = complain
        # The function that takes an assertion back, by handle.
        self._live: dict[int, Retractor] = {}
        self._observing = 0
        self.handle = 0
        self._after: list[Callable[[], None]] = []
        # Answers that the peer expects from others.
        self._awaited: set[Answer] = set()

    # -- turns ----------------------------------------------------------------------------------

    def take_parts(self, data: bytes, parts: list[EventParts], nbytes: int) -> Iterator[None]:
        """Handle a turn without references, as received: `nbytes` of `data`.

        It runs in steps of `TURN_EVENTS`.

        Raises:
            RemoteProtocolError: if a step fails; nothing of that step has happened.
        """

        def each(changes: _Changes, turn: AccountTurn, some: slice) -> None:
            membrane = self._membrane
            for part in parts[some]:
                oid, kind, start, end, handle = part
                if kind == MESSAGE:
                    self._counters.received += 1
                    entity = membrane.exported(oid)
                    if entity is not None:
                        entity.message(turn, value_at(data, start, end), self)
                elif kind == ASSERT:
                    event = Assert(value_at(data, start, end), handle)
                    self._assert(changes, turn, oid, event, plain=True)
                else:
                    self._retract(changes, turn, Retract(handle))

        return self._in_turns(each, len(parts), nbytes)

    def take_events(self, events: tuple[TurnEvent, ...], nbytes: int) -> Iterator[None]:
        """Handle a turn that needed decoding, in steps of `TURN_EVENTS`.

        Raises:
            RemoteProtocolError: if a step fails; nothing of that step has happened.
        """

        def each(changes: _Changes, turn: AccountTurn, some: slice) -> None:
            membrane = self._membrane
            for entry in events[some]:
                event = entry.event
                match event:
                    case Message():
                        self._counters.received += 1
                        received = membrane.receive_message(entry.oid, event)
                        if received is not None:
                            received[0].message(turn, wire_value(received[1]), self)
                    case Assert():
                        self._assert(changes, turn, entry.oid, event)
                    case Retract():
                        self._retract(changes, turn, event)
                    case Sync():
                        asked = membrane.receive_sync(entry.oid, event)
                        if asked is not None:
                            entity, pin = asked
                            entity.sync(turn, pin.entity, pin.release, self)

        return self._in_turns(each, len(events), nbytes)

    def _in_turns(self, each: _Each, events: int, nbytes: int) -> Iterator[None]:
        """Handle a packet in one turn, or in several if it has many events."""
        for start in range(0, max(1, events), TURN_EVENTS):
            some = slice(start, start + TURN_EVENTS)
            count = min(TURN_EVENTS, events - start)
            share = nbytes if count == events else nbytes * count // events
            self._in_turn(partial(each, some=some), count, share)
            yield

    def _in_turn(
        self, each: Callable[[_Changes, AccountTurn], None], events: int, nbytes: int
    ) -> None:
        """Handle some events of a packet in one turn, all or none."""
        changes = _Changes(self._live)
        try:
            with self.account.turn(items=max(1, events), nbytes=nbytes) as turn:
                turn.max_deliveries = self._max_deliveries
                each(changes, turn)
        except BaseException as exc:
            changes.undo()
            self._after.clear()
            if isinstance(exc, (QuotaExceededError, TooManyShapesError, TooManyDeliveriesError)):
                raise RemoteProtocolError(str(exc)) from None
            raise
        if self._after:
            after, self._after = self._after, []
            for action in after:
                action()

    def _assert(
        self,
        changes: _Changes,
        turn: AccountTurn,
        oid: int,
        event: Assert,
        *,
        plain: bool = False,
    ) -> None:
        standing = self._membrane.receive_assert(oid, event, plain=plain)
        if standing is None:
            return
        self.handle = event.handle
        value = standing.assertion if plain else wire_value(standing.assertion)
        retractor = standing.target.assert_(turn, value, self)
        if retractor is not None:
            changes.assert_(event.handle, retractor)

    def _retract(self, changes: _Changes, turn: AccountTurn, event: Retract) -> None:
        standing = self._membrane.receive_retract(event, keep=True)
        if standing is not None:
            # The entity may need the references until it knows of the retraction.
            self._after.append(partial(self._membrane.let_go, standing))
            retractor = changes.retract(event.handle)
            if retractor is not None:
                retractor(turn)

    # -- changes without a turn of their own: see `_flat_turns.py` --------------------------------

    def stands(self, handle: int, withdrawal: Withdrawal) -> None:
        """Note an assertion of the peer that stands already."""
        self._live[handle] = withdrawal

    def standing(self, handle: int) -> Withdrawal | None:
        """Return what takes an assertion back; None if it is not one to a dataspace."""
        retractor = self._live.get(handle)
        return retractor if isinstance(retractor, Withdrawal) else None

    def stands_no_more(self, handle: int) -> None:
        """Note that an assertion of the peer has been taken back."""
        del self._live[handle]

    def withdrawing(self) -> Steps:
        """Return the steps that retract all assertions of the peer."""
        for answer in list(self._awaited):
            answer.end()
        live = list(self._live.values())
        self._live.clear()
        return (
            partial(_retract_all, self.account, live[start : start + RETIRE_STEP])
            for start in range(0, len(live), RETIRE_STEP)
        )

    # -- see `Source` ---------------------------------------------------------------------------

    def observes(self) -> None:
        allowed = self._max_observations
        if self._observing >= allowed:
            raise RemoteProtocolError(
                f"more than {allowed} patterns are observed; retract those no longer needed, or "
                "raise the limit on subscriptions"
            )
        self._observing += 1

    def observes_no_more(self) -> None:
        self._observing -= 1

    def awaits(self, answer: Answer) -> None:
        self._awaited.add(answer)

    def awaits_no_more(self, answer: Answer) -> None:
        self._awaited.discard(answer)

    def afterwards(self, action: Callable[[], None]) -> None:
        self._after.append(action)

    def complain(self, what: str) -> None:
        self._complain(what)


class _Changes:
    """A packet's changes to the peer's assertions, to be undone if it fails."""

    __slots__ = ("_added", "_live", "_removed")

    def __init__(self, live: dict[int, Retractor]) -> None:
        self._live = live
        self._added: dict[int, None] = {}
        self._removed: list[tuple[int, Retractor]] = []

    def assert_(self, handle: int, retractor: Retractor) -> None:
        self._live[handle] = retractor
        self._added[handle] = None

    def retract(self, handle: int) -> Retractor | None:
        retractor = self._live.pop(handle, None)
        if retractor is not None:
            if handle in self._added:
                del self._added[handle]
            else:
                self._removed.append((handle, retractor))
        return retractor

    def undo(self) -> None:
        for handle in self._added:
            del self._live[handle]
        self._live.update(self._removed)


def _retract_all(account: Account, live: list[Retractor]) -> None:
    with account.turn() as turn:
        for retract in live:
            retract(turn)
