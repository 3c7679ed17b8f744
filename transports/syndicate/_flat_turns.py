"""Flat turns: messages and changes of state, handled in runs without a look at the index for each.

A run is of consecutive flat packets (`_flat.py`): of messages that concern the same observers, by
their plans (`_plans.py`), or of assertions that come and go, one in each packet. Every packet is
told as a turn of its own, but the run is one turn of the account (rule 4: one run of packets
already validated), handed over once to each observer's connection.

Everything else is left to the general path, unchanged, and ends the run: packets that are refused,
too; observers that are not a peer's own entities, or that attenuate what they are told; two
observers on one connection, which share a turn; a quota that is used up. A change of state is made
as soon as nothing can fail any more; what observers have to be told of it is delivered at the end
of the run, before anything else happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...accounts import QuotaExceededError
from ...dataspace import Assertion
from ._entities import Attenuated, DataspaceEntity, Withdrawal
from ._flat import DEPTH, FlatEvent, flat_packet
from ._packets import Assert, Retract
from ._plans import Plan, Seen, shown
from ._runs import FlatRun, Templates, ToldAs
from ._scan import ASSERT, BYTES, MESSAGE, STRING
from ._values import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...accounts import Account
    from ...accounts import Turn as AccountTurn
    from .._scheduler import Work
    from .._server import Counters
    from .._settings import ServerSettings
    from ._connection import Connection
    from ._entities import Entity
    from ._membrane import Membrane
    from ._port import Port
    from ._receiver import Receiver

LOOK_PACKETS = 16
"""Packets handled between two looks at the clock: a quarter of a millisecond's worth."""


class FlatTurns:
    """Handles the flat packets of one connection.

    Args:
        account: the account to charge.
        connection: is told the syntax that the peer speaks.
        membrane: maps oids to entities.
        receiver: has the peer's live assertions.
        templates: recognise messages that differ in their last atom only; those are not for here.
        entity: the dataspace that templates are for.
        counters: where messages are counted.
        settings: the limits on packets.
        work: the work of the connection, whose time is bounded.
    """

    __slots__ = (
        "_account", "_connection", "_counters", "_entity", "_max_deliveries", "_max_packet_size",
        "_membrane", "_receiver", "_templates", "_work",
    )  # fmt: skip

    def __init__(
        self,
        account: Account,
        connection: Connection,
        membrane: Membrane[Entity],
        receiver: Receiver,
        templates: Templates,
        entity: DataspaceEntity,
        counters: Counters,
        settings: ServerSettings,
        work: Work,
    ) -> None:
        self._account = account
        self._connection = connection
        self._membrane = membrane
        self._receiver = receiver
        self._templates = templates
        self._entity = entity
        self._counters = counters
        self._max_packet_size = settings.max_packet_size if settings.max_depth >= DEPTH else 0
        self._max_deliveries = settings.max_turn_deliveries
        self._work = work

    def forward(self, buffer: bytes, position: int, most: int | None = None) -> tuple[int, int]:
        """Handle the flat packets at `position`, each if there are funds before it (rule 9).

        With `most`, that many at the most, without a look at the clock.

        Returns:
            The number of packets handled, and where they end.
        """
        account = self._account
        if account.opens <= 0:
            return 0, position
        templates = self._templates
        room_items, room_bytes = account.room()
        size = len(buffer)
        packets = 0
        run: _Messages | _States | None = None
        try:
            while position < size and room_items >= 0 and room_bytes >= 0:
                if packets and templates and templates.find(buffer, position) is not None:
                    break
                found = flat_packet(buffer, position)
                if found is None:
                    break
                self._connection.text = False  # a peer may observe what it says itself
                events, end = found
                nbytes = end - position
                if nbytes > self._max_packet_size:
                    break
                if events[0].kind == MESSAGE:
                    of = self._plan(buffer, position, events)
                    if of is None:
                        break
                    entity, plan = of
                    messages = run if isinstance(run, _Messages) and run.plan is plan else None
                    if messages is None:
                        if run is not None:
                            run.commit()
                        run = messages = _Messages(account, entity, plan)
                    items = messages.add(buffer, events, nbytes)
                    copies = items * len(plan.ports)
                    self._counters.received += items
                else:
                    if len(events) > 1:
                        break
                    states = run if isinstance(run, _States) else None
                    if states is None:
                        if run is not None:
                            run.commit()
                        run = states = _States(account)
                    changed = self._change(buffer, events[0], states, nbytes)
                    if changed is None:
                        break
                    copies, items = changed, 1
                room_items -= items + copies
                room_bytes -= nbytes * (1 + copies)
                position = end
                packets += 1
                if most is not None:
                    if packets == most:
                        break
                elif not packets % LOOK_PACKETS and self._work.is_over():
                    break
        finally:
            # Also after a fault of our own: what has been changed has to be told.
            if run is not None:
                run.commit()
        return packets, position

    # -- messages -------------------------------------------------------------------------------

    def _plan(
        self, buffer: bytes, position: int, events: Sequence[FlatEvent]
    ) -> tuple[DataspaceEntity, Plan] | None:
        """Return what one plan is for of all events of a packet; None if there is none."""
        first = events[0]
        entity = self._target(buffer, first)
        if entity is None:
            return None
        plan = entity.plans.of(buffer, first)
        if plan is None:
            return None
        if len(events) == 1:
            if first.times == 1:
                if self._is_wanted(buffer, position, first):
                    return None
            elif first.times * len(plan.ports) > self._max_deliveries:
                return None
            return entity, plan
        count = 0
        for event in events:
            count += event.times
            if event is first:
                continue
            if event.kind != MESSAGE or event.oid != first.oid:
                return None
            if self._target(buffer, event) is None or entity.plans.of(buffer, event) is not plan:
                return None
        return None if count * len(plan.ports) > self._max_deliveries else (entity, plan)

    def _target(self, buffer: bytes, event: FlatEvent) -> DataspaceEntity | None:
        """Return the dataspace that an event reaches; None if it goes elsewhere, or is changed."""
        entity = self._membrane.exported(int.from_bytes(event.oid[1:], "big", signed=True))
        if type(entity) is DataspaceEntity:
            return entity
        if type(entity) is Attenuated and entity.passes(buffer, event):
            behind = entity.entity
            return behind if type(behind) is DataspaceEntity else None
        return None

    def _is_wanted(self, buffer: bytes, position: int, event: FlatEvent) -> bool:
        """Whether a template is to be made of this message, which others are like."""
        places = event.places
        if len(places) < 2 or buffer[places[-2]] not in (STRING, BYTES):
            return False
        entity = self._membrane.exported(int.from_bytes(event.oid[1:], "big", signed=True))
        if entity is not self._entity:
            return False
        version = self._entity.dataspace.version
        return self._templates.wants(buffer[position : places[-2] + 1], version)

    # -- state ----------------------------------------------------------------------------------

    def _change(self, buffer: bytes, event: FlatEvent, run: _States, nbytes: int) -> int | None:
        """Make one change of state; return the copies that tell of it.

        None if it is one for the general path: nothing has happened then.
        """
        if event.kind == ASSERT:
            return self._appears(buffer, event, run, nbytes)
        return self._disappears(event, run, nbytes)

    def _appears(self, buffer: bytes, event: FlatEvent, run: _States, nbytes: int) -> int | None:
        membrane = self._membrane
        handle = event.handle
        entity = self._target(buffer, event)
        if entity is None or not membrane.may_receive(handle):
            return None
        seen = entity.plans.seen(buffer, event)
        if seen is None or not _all_take_state(seen):
            return None
        value = seen.value
        account = self._account
        size = len(value.raw)
        try:
            account.standing().check(1, size)
        except QuotaExceededError:
            return None
        oid = int.from_bytes(event.oid[1:], "big", signed=True)
        membrane.receive_assert(oid, Assert(value, handle), plain=True)
        assertion = Assertion(value, account, size, seen.key)
        self._receiver.stands(handle, Withdrawal(entity, assertion))
        run.add(value.raw, nbytes)
        copies = 0
        for at, appeared in entity.dataspace.changes.appear(assertion, seen.sights):
            raw, ports = seen.told[at]
            for port in ports:
                run.tell(port, port.shows(appeared, raw))
            copies += len(ports)
        return copies

    def _disappears(self, event: FlatEvent, run: _States, nbytes: int) -> int | None:
        handle = event.handle
        withdrawal = self._receiver.standing(handle)
        if withdrawal is None:
            return None
        entity, assertion = withdrawal.entity, withdrawal.assertion
        value = assertion.value
        if not assertion.standing or type(value) is not Encoded:
            return None
        seen = entity.plans.seen_again(value.raw)
        if seen is None or not _all_take_state(seen):
            return None
        self._membrane.receive_retract(Retract(handle))
        self._receiver.stands_no_more(handle)
        run.add(value.raw, nbytes)
        copies = 0
        for at, gone in entity.dataspace.changes.disappear(assertion, seen.sights):
            for port in seen.told[at][1]:
                told = port.hides(gone)
                if told is not None:
                    run.tell(port, told)
                    copies += 1
        return copies


def _all_take_state(seen: Seen) -> bool:
    return all(port.takes_state for port in seen.ports)


class _Messages:
    """A run of packets with messages for the same observers."""

    __slots__ = ("_account", "_entity", "_run", "plan")

    def __init__(self, account: Account, entity: DataspaceEntity, plan: Plan) -> None:
        self._account = account
        self._entity = entity
        self.plan = plan
        told: dict[ToldAs, list[bytes]] = {told_as: [] for told_as, _, _ in plan.told}
        self._run = FlatRun(told, b"")

    def add(self, buffer: bytes, events: Sequence[FlatEvent], nbytes: int) -> int:
        """Add a packet; return the number of its messages."""
        plan = self.plan
        run = self._run
        first = events[0]
        if not run.count:
            run.body = buffer[first.start : first.end]
        if len(events) == 1 and first.times == 1:
            count = 1
            for told_as, begin, pieces in plan.told:
                packet = b"\xb5" + begin + shown(buffer, first, pieces) + b"\x84\x84\x84\x84"
                run.told[told_as].append(packet)
        else:
            count = sum([event.times for event in events])
            for told_as, begin, pieces in plan.told:
                packet = b"".join(
                    [
                        (begin + shown(buffer, event, pieces) + b"\x84\x84\x84") * event.times
                        for event in events
                    ]
                )
                run.told[told_as].append(b"\xb5" + packet + b"\x84")
        run.count += count
        run.events.append(count)
        run.nbytes += nbytes
        return count

    def commit(self) -> None:
        """Route the run. Idempotent."""
        run, self._run = self._run, FlatRun({}, b"")
        if run.count:
            self._entity.dataspace.route_run(self._account, run, self.plan.ports)


class _States:
    """A run of packets with one change of state each."""

    __slots__ = ("_account", "_body", "_items", "_nbytes", "_told")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._body = b""
        self._items = 0
        self._nbytes = 0
        # For each connection: a port of it, and the packets.
        self._told: dict[object, tuple[Port, list[bytes]]] = {}

    def add(self, body: bytes, nbytes: int) -> None:
        """Count a packet."""
        self._body = self._body or body
        self._items += 1
        self._nbytes += nbytes

    def tell(self, port: Port, event: bytes) -> None:
        """Tell a port's peer, in a turn of its own."""
        packet = b"\xb5" + event + b"\x84"
        told = self._told.get(port.sender)
        if told is None:
            self._told[port.sender] = port, [packet]
        else:
            told[1].append(packet)

    def commit(self) -> None:
        """Deliver what has to be told, in one turn. Idempotent."""
        items, self._items = self._items, 0
        if items:
            with self._account.turn(items=items, nbytes=self._nbytes) as turn:
                turn.act(self._deliver)

    def _deliver(self, turn: AccountTurn) -> None:
        for port, packets in self._told.values():
            run = FlatRun({port.told_as: packets}, self._body)
            run.count = len(packets)
            run.events = [1] * run.count
            run.nbytes = sum(map(len, packets))
            turn.deliver(port, run, run.count, run.nbytes)
