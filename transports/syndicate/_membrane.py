"""The two tables of references of a connection: exported and imported.

Rules:

1. A reference is known while a live assertion contains it, as the target or within, counted once
   for each occurrence; or while it is pinned: a well-known one, or the peer of an unanswered sync.
2. A message cannot introduce a reference: nothing would say when to forget it.
3. Each sender chooses its own handles. Asserting a handle that is in use is an error; retracting
   one that is not in use does nothing.
4. An event for an oid that is not exported does nothing; a reference to one is the inert entity.
5. A refused event leaves the tables unchanged.

Theory of operation. *Exported* are the references that this side gave to the peer, *imported*
those that the peer gave to this side; in each table, an oid stands for one entity. The session
chooses the entities: any hashable objects, including proxies of another peer's. Received values
have `WireRef`s in their `Embedded`s, which become entities; sent values the other way round.

Source: syndicate-rs, relay.rs (membranes); `protocol.prs`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import attrs

from .._errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from ._packets import Assert, Message, Retract, Sync, TurnEvent, WireRef
from ._preserves import Embedded, Value, map_embedded

Entity = TypeVar("Entity", bound=Hashable)

#: Default limits on the references in each table and on the live assertions in each direction.
#: AMQP 0-9-1 can number as many channels in one connection, and MQTT as many packet identifiers.
#: No known peer needs more of anything at a time.
DEFAULT_MAX_REFERENCES = 65_536
DEFAULT_MAX_ASSERTIONS = 65_536


@attrs.define(slots=True, eq=False)
class _Entry(Generic[Entity]):
    oid: int
    entity: Entity
    count: int = 0


class _Table(Generic[Entity]):
    """Oids and entities, one to one, with a reference count for each."""

    __slots__ = (
        "_error", "_forget", "_limit", "_name", "by_entity", "by_oid", "forgotten", "next_oid",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        limit: int,
        error: type[ProtocolError],
        forget: Callable[[Entity], object] | None = None,
    ) -> None:
        self.by_oid: dict[int, _Entry[Entity]] = {}
        self.by_entity: dict[Entity, _Entry[Entity]] = {}
        self.next_oid = 0
        self.forgotten = 0
        self._forget = forget
        self._name = name
        self._limit = limit
        self._error = error

    def add(self, entity: Entity, oid: int) -> _Entry[Entity]:
        if len(self.by_oid) >= self._limit:
            raise self._error(
                f"more than {self._limit} references are {self._name}; retract those no longer "
                "needed, or raise the limit"
            )
        entry = _Entry(oid, entity)
        self.by_oid[oid] = entry
        self.by_entity[entity] = entry
        return entry

    def allot(self, entity: Entity) -> _Entry[Entity]:
        while self.next_oid in self.by_oid:
            self.next_oid += 1
        entry = self.add(entity, self.next_oid)
        self.next_oid += 1
        return entry

    def release(self, entry: _Entry[Entity]) -> None:
        entry.count -= 1
        if entry.count == 0:
            del self.by_oid[entry.oid]
            del self.by_entity[entry.entity]
            self.forgotten += 1
            if self._forget is not None:
                self._forget(entry.entity)


_Hold = tuple[_Table[Entity], _Entry[Entity]]


class Pin(Generic[Entity]):
    """Keeps a reference known until it is released."""

    __slots__ = ("_held", "entity")

    def __init__(self, entity: Entity, held: list[_Hold[Entity]]) -> None:
        self.entity = entity
        self._held = held

    def __repr__(self) -> str:
        return f"<Pin of {self.entity!r}{'' if self._held else ', released'}>"

    def release(self) -> None:
        """Forget the reference, unless something else holds it. Idempotent."""
        _release_all(self._held)


def _release_all(held: list[_Hold[Entity]]) -> None:
    while held:
        table, entry = held.pop()
        table.release(entry)


@attrs.frozen(slots=True, eq=False)
class Standing(Generic[Entity]):
    """An assertion that the peer made and has not retracted."""

    handle: int
    target: Entity
    assertion: Value
    """The assertion, with entities in its `Embedded`s."""
    held: list[_Hold[Entity]] = attrs.field(repr=False)


@attrs.frozen(slots=True)
class MembraneStatistics:
    """Numbers of references and assertions of one connection."""

    exported: int
    """References to this side's entities that the peer knows."""
    imported: int
    """References to the peer's entities that this side knows."""
    assertions_received: int
    """The peer's live assertions."""
    assertions_sent: int
    """Live assertions made to the peer."""


class Membrane(Generic[Entity]):
    """The references and assertions of one connection, seen from one side."""

    __slots__ = (
        "_attenuate",
        "_exported",
        "_imported",
        "_inert",
        "_max_received",
        "_max_sent",
        "_next_handle",
        "_proxy",
        "_received",
        "_sent",
    )

    def __init__(
        self,
        *,
        proxy: Callable[[int], Entity],
        attenuate: Callable[[Entity, tuple[Value, ...]], Entity],
        inert: Entity,
        forget: Callable[[Entity], object] | None = None,
        max_exported: int = DEFAULT_MAX_REFERENCES,
        max_imported: int = DEFAULT_MAX_REFERENCES,
        max_received: int = DEFAULT_MAX_ASSERTIONS,
        max_sent: int = DEFAULT_MAX_ASSERTIONS,
    ) -> None:
        """Make a membrane with empty tables.

        Args:
            proxy: makes the entity that stands for the peer's entity with this oid; a new one each
                time.
            attenuate: makes an entity that puts caveats before one of this side's; the caveats
                are as received (`_sturdy.py`). Its exceptions are passed on.
            inert: the entity that stands for references to nothing.
            forget: called with each of the peer's entities that is no longer known.
            max_exported: most references to this side's entities that the peer may know.
            max_imported: most references to the peer's entities that this side may know.
            max_received: most live assertions of the peer.
            max_sent: most live assertions made to the peer.
        """
        self._proxy = proxy
        self._attenuate = attenuate
        self._inert = inert
        self._max_received = max_received
        self._max_sent = max_sent
        self._exported: _Table[Entity] = _Table("exported", max_exported, LocalProtocolError)
        self._imported: _Table[Entity] = _Table(
            "imported", max_imported, RemoteProtocolError, forget
        )
        self._received: dict[int, Standing[Entity]] = {}
        self._sent: dict[int, tuple[int, list[_Hold[Entity]]]] = {}
        self._next_handle = 1

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<Membrane {s.exported} exported, {s.imported} imported, "
            f"{s.assertions_received} assertions received, {s.assertions_sent} sent>"
        )

    def statistics(self) -> MembraneStatistics:
        """Return the numbers of known references and of live assertions."""
        return MembraneStatistics(
            len(self._exported.by_oid),
            len(self._imported.by_oid),
            len(self._received),
            len(self._sent),
        )

    # -- well-known references ------------------------------------------------------------------

    def export(self, entity: Entity, oid: int = 0) -> Pin[Entity]:
        """Export `entity` to the peer as `oid`, until the pin is released.

        Raises:
            LocalProtocolError: if that oid or that entity is already known, or too many are.
        """
        if oid in self._exported.by_oid or entity in self._exported.by_entity:
            raise LocalProtocolError(f"oid {oid} or {entity!r} is exported already")
        return self._pin(self._exported, self._exported.add(entity, oid))

    def import_(self, oid: int = 0) -> Pin[Entity]:
        """Assume that the peer exports `oid`, until the pin is released.

        Raises:
            RemoteProtocolError: if the peer's table is full.
        """
        entry = self._imported.by_oid.get(oid)
        if entry is None:
            entry = self._imported.add(self._proxy(oid), oid)
        return self._pin(self._imported, entry)

    def _pin(self, table: _Table[Entity], entry: _Entry[Entity]) -> Pin[Entity]:
        entry.count += 1
        return Pin(entry.entity, [(table, entry)])

    # -- what the peer sends --------------------------------------------------------------------

    @property
    def forgotten(self) -> int:
        """Exported references forgotten so far; while it is unchanged, oids mean the same."""
        return self._exported.forgotten

    def exported(self, oid: int) -> Entity | None:
        """Return the entity that an event is for; None if the event has to be ignored."""
        entry = self._exported.by_oid.get(oid)
        return None if entry is None else entry.entity

    def receive_assert(
        self, oid: int, event: Assert, *, plain: bool = False
    ) -> Standing[Entity] | None:
        """Note an assertion of the peer; `plain` says that it has no references.

        Returns:
            The live assertion; None if the event has to be ignored.

        Raises:
            RemoteProtocolError: if the handle is in use, or there are too many live assertions.
        """
        if event.handle in self._received:
            raise RemoteProtocolError(
                f"handle {event.handle} is asserted again before it is retracted; use another one"
            )
        target = self._exported.by_oid.get(oid)
        if target is None:
            return None
        if len(self._received) >= self._max_received:
            raise RemoteProtocolError(
                f"more than {self._max_received} assertions are live; retract those no longer "
                "needed, or raise the limit"
            )
        held: list[_Hold[Entity]] = []
        self._hold(self._exported, target, held)
        assertion = event.assertion if plain else self._from_wire(event.assertion, held)
        standing = Standing(event.handle, target.entity, assertion, held)
        self._received[event.handle] = standing
        return standing

    def receive_retract(self, event: Retract, *, keep: bool = False) -> Standing[Entity] | None:
        """Note a retraction of the peer.

        Args:
            event: the retraction.
            keep: whether the assertion's references stay known until `let_go`.

        Returns:
            The assertion that was live until now, the same object as before; None if there was
            none.
        """
        standing = self._received.pop(event.handle, None)
        if standing is not None and not keep:
            _release_all(standing.held)
        return standing

    def let_go(self, standing: Standing[Entity]) -> None:
        """Forget the references of a retracted assertion, unless something else holds them."""
        _release_all(standing.held)

    def receive_message(self, oid: int, event: Message) -> tuple[Entity, Value] | None:
        """Translate a message.

        Returns:
            The target and the body; None if the message has to be ignored.

        Raises:
            RemoteProtocolError: if it has a reference that is not known.
        """
        target = self._exported.by_oid.get(oid)
        if target is None:
            return None
        return target.entity, self._from_wire(event.body, None)

    def receive_sync(self, oid: int, event: Sync) -> tuple[Entity, Pin[Entity]] | None:
        """Note the peer of a sync; release the pin when it has its answer.

        Returns:
            The entity to ask, and the entity to answer; None if the event has to be ignored.

        Raises:
            RemoteProtocolError: if the peer's table is full.
        """
        target = self._exported.by_oid.get(oid)
        if target is None:
            return None
        held: list[_Hold[Entity]] = []
        self._hold(self._exported, target, held)
        peer = self._from_wire(Embedded(event.peer), held)
        return target.entity, Pin(peer.embeddedValue, held)

    # -- what is sent to the peer ---------------------------------------------------------------

    def plain_assert(self, target: Entity) -> tuple[int, int]:
        """Note an assertion without references at one of the peer's entities.

        Returns:
            The oid of the target, and the assertion's handle.

        Raises:
            LocalProtocolError: as `send_assert`.
        """
        entry, held = self._new_assertion(target)
        handle = self._next_handle
        self._next_handle += 1
        self._sent[handle] = (entry.oid, held)
        return entry.oid, handle

    def _new_assertion(self, target: Entity) -> tuple[_Entry[Entity], list[_Hold[Entity]]]:
        entry = self._target(target)
        if len(self._sent) >= self._max_sent:
            raise LocalProtocolError(
                f"more than {self._max_sent} assertions to one peer are live; raise the limit"
            )
        held: list[_Hold[Entity]] = []
        self._hold(self._imported, entry, held)
        return entry, held

    def oid_of(self, target: Entity) -> int:
        """Return the oid that addresses one of the peer's entities.

        Raises:
            LocalProtocolError: if `target` is not imported.
        """
        return self._target(target).oid

    def send_assert(self, target: Entity, assertion: Value) -> TurnEvent:
        """Make the event that asserts something at one of the peer's entities.

        Raises:
            LocalProtocolError: if `target` is not imported, or there are too many live assertions.
        """
        entry, held = self._new_assertion(target)
        body = self._to_wire(assertion, held)
        handle = self._next_handle
        self._next_handle += 1
        self._sent[handle] = (entry.oid, held)
        return TurnEvent(entry.oid, Assert(body, handle))

    def send_retract(self, handle: int) -> TurnEvent:
        """Make the event that retracts the assertion with `handle`.

        Raises:
            LocalProtocolError: if there is no assertion with that handle.
        """
        return TurnEvent(self.plain_retract(handle), Retract(handle))

    def plain_retract(self, handle: int) -> int:
        """Note the retraction of the assertion with `handle`; return the oid of its target.

        Raises:
            LocalProtocolError: if there is no assertion with that handle.
        """
        sent = self._sent.pop(handle, None)
        if sent is None:
            raise LocalProtocolError(f"no assertion has handle {handle}")
        oid, held = sent
        _release_all(held)
        return oid

    @property
    def may_send(self) -> bool:
        """Whether one more assertion to the peer may be live."""
        return len(self._sent) < self._max_sent

    def may_receive(self, handle: int) -> bool:
        """Whether the peer may assert something with this handle: it is free, and not too much."""
        return handle not in self._received and len(self._received) < self._max_received

    def send_message(self, target: Entity, body: Value) -> TurnEvent:
        """Make the event that sends a message to one of the peer's entities.

        Raises:
            LocalProtocolError: if `target` is not imported, or the body has a reference that the
                peer does not know yet: first assert something that contains it.
        """
        return TurnEvent(self._target(target).oid, Message(self._to_wire(body, None)))

    def send_sync(self, target: Entity, peer: Entity) -> tuple[TurnEvent, Pin[Entity]]:
        """Make the event that asks one of the peer's entities to answer `peer`.

        Returns:
            The event, and the pin to release when the answer has come.

        Raises:
            LocalProtocolError: if `target` is not imported, or too many references are exported.
        """
        entry = self._target(target)
        held: list[_Hold[Entity]] = []
        self._hold(self._imported, entry, held)
        wire = self._to_wire(Embedded(peer), held)
        return TurnEvent(entry.oid, Sync(wire.embeddedValue)), Pin(peer, held)

    # -- the end --------------------------------------------------------------------------------

    def disconnect(self) -> list[Standing[Entity]]:
        """Forget everything; return the peer's live assertions, the oldest first."""
        standing = list(self._received.values())
        for one in standing:
            _release_all(one.held)
        for _, held in self._sent.values():
            _release_all(held)
        self._received.clear()
        self._sent.clear()
        return standing

    # -- references -----------------------------------------------------------------------------

    def _target(self, target: Entity) -> _Entry[Entity]:
        entry = self._imported.by_entity.get(target)
        if entry is None:
            raise LocalProtocolError(f"{target!r} is not the peer's entity, or is unknown by now")
        return entry

    def _hold(
        self, table: _Table[Entity], entry: _Entry[Entity], held: list[_Hold[Entity]]
    ) -> None:
        entry.count += 1
        held.append((table, entry))

    def _from_wire(self, value: Value, held: list[_Hold[Entity]] | None) -> Value:
        """Translate a received value; `held` is None if it must not introduce references."""

        def translate(ref: WireRef) -> Embedded:
            table = self._imported if ref.mine else self._exported
            entry = table.by_oid.get(ref.oid)
            if entry is None and not ref.mine:
                return Embedded(self._inert)
            if entry is None:
                if held is None:
                    raise RemoteProtocolError(
                        f"a message brings the reference #:[0 {ref.oid}], which no assertion has; "
                        "assert something with it first, and keep that asserted"
                    )
                entry = table.add(self._proxy(ref.oid), ref.oid)
            if held is not None:
                self._hold(table, entry, held)
            if ref.caveats:
                return Embedded(self._attenuate(entry.entity, ref.caveats))
            return Embedded(entry.entity)

        try:
            return map_embedded(translate, value)
        except ValueError:
            # Two keys of a mapping, or a key and itself, are the same reference.
            self._give_back(held)
            raise RemoteProtocolError(
                "two keys of a dictionary, or members of a set, are the same reference"
            ) from None
        except BaseException:
            self._give_back(held)
            raise

    def _to_wire(self, value: Value, held: list[_Hold[Entity]] | None) -> Value:
        """Translate a value to send; `held` is None if it must not introduce references."""

        def translate(entity: Entity) -> Embedded:
            table = self._imported
            entry = table.by_entity.get(entity)
            if entry is None:
                table = self._exported
                entry = table.by_entity.get(entity)
                if entry is None and held is None:
                    raise LocalProtocolError(
                        f"a message cannot bring {entity!r} to a peer that does not know it; "
                        "assert something with it first, and keep that asserted"
                    )
                if entry is None:
                    entry = table.allot(entity)
            if held is not None:
                self._hold(table, entry, held)
            return Embedded(WireRef(table is self._exported, entry.oid))

        try:
            return map_embedded(translate, value)
        except BaseException:
            self._give_back(held)
            raise

    @staticmethod
    def _give_back(held: list[_Hold[Entity]] | None) -> None:
        if held is not None:
            _release_all(held)
