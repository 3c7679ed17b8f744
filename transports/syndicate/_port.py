"""The way of events for a peer's entity into the outlet of the peer's connection.

All events of one commit for one peer are sent as one turn (`Gathering`), split only where it would
be too large for one packet. Each distinct delivery of a run of messages is framed once
(`_runs.py`).

Source: syndicate-rs, relay.rs (TunnelRelay) for the events, and for one turn a commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ...accounts import Account, Holder, Outcome, Recipient
from ...dataspace import Asserted, Batch, Retracted
from .._errors import LocalProtocolError
from ._packets import TurnEvent
from ._runs import RUNS, ToldAs
from ._sturdy import Caveat

if TYPE_CHECKING:
    from ...accounts.trace._notes import Notes
    from ._entities import Answer, Proxy
    from ._sender import Sender
    from ._values import WireValue

MAX_TURN_BYTES = 256 << 10
"""Size at which a turn is split: a replay of many thousand assertions would be larger than a peer
accepts in one packet. As much as one send."""

HANDLELESS = -1
"""The handle of a value that was never asserted, because a caveat did not let it through."""


@attrs.define(slots=True, eq=False)
class Made:
    """An assertion to a peer, by its handle there."""

    handle: int = HANDLELESS


@attrs.frozen(slots=True, eq=False)
class Make:
    """Assert `value`."""

    value: WireValue
    made: Made


@attrs.frozen(slots=True, eq=False)
class Unmake:
    """Retract an assertion."""

    made: Made


@attrs.frozen(slots=True, eq=False)
class Ask:
    """Ask for a sync on behalf of another peer."""

    answer: Answer


class NobodyPort(Recipient):
    """A recipient that ignores everything."""

    __slots__ = ()

    @property
    def run_place(self) -> object:
        """See `Recipient.run_place`: it takes every run."""
        return self

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        account.repay(items, nbytes, Outcome.DROPPED)

    def ready(self) -> None:
        """Do nothing."""


class Port(Recipient):
    """Tells one entity of a peer about its observations, or passes on events for it.

    It takes runs of messages, the tuple that an observer's pattern captures, `Asserted` and
    `Retracted` of such tuples, or `Make`, `Unmake`, `Ask` and a message's value.

    Attributes:
        sender: the way out to the peer.
        target: the entity.
        caveats: apply to every event first, the newest last.
        told_as: the entity's oid and the captures of its observation's pattern. For runs.
    """

    __slots__ = ("_shown", "caveats", "sender", "target", "told_as")

    gathers = True

    def __init__(self, sender: Sender, target: Proxy, caveats: tuple[Caveat, ...] = ()) -> None:
        self.sender = sender
        self.target = target
        self.caveats = caveats
        self.told_as: ToldAs = target.oid, ()
        # Keyed by the identity of the object itself: the dataspace retracts the same object. The
        # entry keeps the object, so that its id is not reused meanwhile.
        self._shown: dict[int, tuple[Any, Made]] = {}

    def __repr__(self) -> str:
        return f"<Port to {self.target!r}>"

    @property
    def run_place(self) -> object:
        """See `Recipient.run_place`: two of a peer's observers share one turn."""
        return None if self.caveats else self.sender

    @property
    def last_holder(self) -> Holder:
        sender = self.sender
        return sender.outlet if sender.credited is None else sender.credited

    @property
    def hears_of_its_end(self) -> bool:
        """See `Recipient.hears_of_its_end`: an assertion to a peer is live until retracted."""
        return not self.sender.gone and self.target.known

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        sender = self.sender
        if sender.gone or not self.target.known:
            sender.outlet.turn_away(account, items, nbytes, Outcome.DROPPED)
            self._drop(item)
            return
        try:
            if isinstance(item, RUNS):
                sender.put_run(self, account, item, nbytes, now)
                return
            if type(item) is Batch:
                sender.put_batch(self, account, item, nbytes, now)
                return
            event = self._event(item)
        except LocalProtocolError as exc:
            state = isinstance(item, (Asserted, Retracted))
            sender.unsayable(account, items, nbytes, exc, state=state)
            self._drop(item)
            return
        except Exception as exc:  # noqa: BLE001 (must not surface in the sender's turn)
            sender.failed(account, items, nbytes, exc)
            self._drop(item)
            return
        if event is None:
            sender.outlet.turn_away(account, items, nbytes, Outcome.DROPPED)
            return
        sender.gathering.add(account, event, items, nbytes, now)

    def _drop(self, item: Any) -> None:
        """Note that the peer will not be told of `item`."""
        if isinstance(item, Ask):
            item.answer.end()
        elif isinstance(item, Retracted):
            self._shown.pop(id(item.value), None)

    def _event(self, item: Any) -> TurnEvent | bytes | None:
        writer = self.sender.writer
        target = self.target
        kind: Any = item.__class__  # five times as quick as `match`
        if kind is tuple:
            return writer.message(target, item, self.caveats)
        if kind is Asserted:
            made = Made()
            self._shown[id(item.value)] = item.value, made
            return writer.assertion(target, item.value, made, self.caveats)
        if kind is Retracted:
            return writer.retraction(self._shown.pop(id(item.value))[1])
        if kind is Make:
            return writer.assertion(target, item.value, item.made, self.caveats)
        if kind is Unmake:
            return writer.retraction(item.made)
        if kind is Ask:
            return writer.sync(target, item.answer)
        return writer.message(target, item, self.caveats)

    # -- assertions that are told in runs ---------------------------------------------------------

    @property
    def takes_state(self) -> bool:
        """Whether `shows` and `hides` can be called: the peer is there, and has room."""
        sender = self.sender
        return not sender.gone and self.target.known and sender.writer.may_assert

    def shows(self, shown: Any, raw: bytes) -> bytes:
        """Return the event that tells of an assertion: of `shown`, which travels as `raw`."""
        made = Made()
        self._shown[id(shown)] = shown, made
        return self.sender.writer.plain_assertion(self.target, raw, made)

    def hides(self, shown: Any) -> bytes | None:
        """Return the event that tells that it has gone; None if the peer did not hear of it."""
        found = self._shown.pop(id(shown), None)
        if found is None or found[1].handle == HANDLELESS:
            return None
        return self.sender.writer.plain_retraction(found[1])

    def gathered(self) -> None:
        self.sender.gathering.seal()

    def ready(self) -> None:
        self.sender.outlet.ready()


class Gathering:
    """The events of one commit for one peer, until all are in."""

    __slots__ = (
        "_account", "_events", "_items", "_nbytes", "_now", "_sender", "_size", "_trace",
    )  # fmt: skip

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._account: Account | None = None
        self._trace: Notes | None = None
        self._events: list[TurnEvent | bytes] = []
        self._items = 0
        self._nbytes = 0
        self._size = 0
        self._now = 0.0

    def add(
        self, account: Account, event: TurnEvent | bytes, items: int, nbytes: int, now: float
    ) -> None:
        """Add an event, for which `account` has been charged."""
        size = len(event) if isinstance(event, bytes) else nbytes
        # Copies that the peer's own patterns cause are charged to the peer (`dataspace._telling`).
        if self._events and (self._size + size > MAX_TURN_BYTES or account is not self._account):
            self.seal()
        self._account = account
        self._trace = account.tracing
        self._events.append(event)
        self._items += items
        self._nbytes += nbytes
        self._size += size
        self._now = now

    def seal(self) -> None:
        """Put the events into the outlet, as one turn."""
        account = self._account
        if account is None:
            return
        events, items, nbytes = self._events, self._items, self._nbytes
        self._account = None
        self._events = []
        self._items = self._nbytes = self._size = 0
        trace, self._trace = self._trace, None
        sender, under = self._sender, account.under_trace
        try:
            under(trace, sender.put_turn, account, events, items, nbytes, self._now)
        except Exception as exc:  # noqa: BLE001 (whatever it is: nobody holds it)
            under(trace, sender.failed, account, items, nbytes, exc)
