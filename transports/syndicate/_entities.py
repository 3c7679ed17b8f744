"""Entities that references point to: the dataspace, or a peer's entity.

Rules:

1. An event reaches an entity within the turn of its packet, on the account of the connection that
   brought it. The effects that the entity notes in that turn happen at the commit, or not at all.
2. `assert_` returns a function that takes the assertion back. It is called once, in a later turn
   or in the same one.
3. An entity ignores events that it does not understand, unless the sender has to be told:
   `RemoteProtocolError` ends the sender's connection.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...accounts import Turn, measure
from ...dataspace import Assertion, CapturesOnly, Dataspace, Observation, PatternError, take_apart
from .._errors import RemoteProtocolError
from ._flat import FlatEvent
from ._patterns import pattern_from_wire
from ._plans import MAX_REMEMBERED, Plans
from ._port import Ask, Made, Make, NobodyPort, Port, Unmake
from ._preserves import Embedded, Record, Symbol, Value
from ._sturdy import (
    Caveat,
    Refusal,
    attenuate_value,
    compile_caveats,
    deciding_fields,
    max_attenuated_size,
)
from ._values import Decoded, Encoded, WireValue, label_kind, library_value, wire_value
from ._vocabulary import Vocabulary

if TYPE_CHECKING:
    from ...accounts import Account, Recipient
    from ._membrane import Pin
    from ._session import SyndicateSession

Retractor: TypeAlias = Callable[[Turn], None]
"""Takes an assertion back in the given turn."""

_OBSERVE = label_kind(Symbol("Observe"))
RESOLVE = label_kind(Symbol("resolve"))

MAX_PASSING = 1_024
"""Most kinds of records for which it is remembered whether caveats let them through."""

MAX_PATTERN_PARTS = 1_000
"""Most places that one pattern may check or capture: each message is checked in all of them."""

_NOTHING = Record(Symbol("reject"), (Record(Symbol("_"), ()),))

_numbers = count(1)


class Source(Protocol):
    """The connection that brought an event."""

    @property
    def account(self) -> Account:
        """The connection's account."""
        ...

    @property
    def handle(self) -> int:
        """The handle of the assertion that is being made."""
        ...

    def observes(self) -> None:
        """Count one more observation.

        Raises:
            RemoteProtocolError: if it has too many.
        """
        ...

    def observes_no_more(self) -> None:
        """Count one observation less."""
        ...

    def awaits(self, answer: Answer) -> None:
        """Note that another peer has to answer for this connection."""
        ...

    def awaits_no_more(self, answer: Answer) -> None:
        """Note that the answer is no longer expected."""
        ...

    def afterwards(self, action: Callable[[], None]) -> None:
        """Call `action` when the packet's turn has been committed."""
        ...

    def complain(self, what: str) -> None:
        """Log an event that was ignored."""
        ...


class Entity(abc.ABC):
    """The target of a reference. Equal only to itself.

    Attributes:
        number: unique in this process; references to the entity are compared by it.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = next(_numbers)

    @abc.abstractmethod
    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor | None:
        """Take an assertion; None if there is nothing to take back later."""

    @abc.abstractmethod
    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Take a message."""

    def sync(self, turn: Turn, peer: Entity, done: Callable[[], None], source: Source) -> None:
        """Send `#t` to `peer` when all earlier events have been handled, then call `done`."""
        peer.message(turn, True, source)
        source.afterwards(done)

    def port(self, caveats: Sequence[Caveat] = ()) -> Recipient:
        """Return the recipient that the dataspace tells when this entity observes something.

        Only a peer's entity can observe: an observer in this process would be a turn within a turn.
        `caveats` apply to everything it is told, the newest last.
        """
        return NobodyPort()


class Inert(Entity):
    """The entity that does nothing."""

    __slots__ = ()

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Ignore it."""

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Ignore it."""

    def sync(self, turn: Turn, peer: Entity, done: Callable[[], None], source: Source) -> None:
        """Never answer: there is no entity that could have handled the earlier events."""
        source.afterwards(done)


class DataspaceEntity(Entity):
    """A dataspace, as peers know it.

    `<Observe pattern #:observer>` observes. Everything else is state, or a message to route.
    Records whose label is in the vocabulary are instances of its classes.

    Attributes:
        dataspace: the dataspace.
        vocabulary: maps labels of records to classes.
        gatekeeper: answers `<resolve step #:k>`, as a client that expects a gatekeeper asserts it
            here; None: that is state, too.
    """

    __slots__ = ("dataspace", "gatekeeper", "plans", "vocabulary")

    def __init__(self, dataspace: Dataspace, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.dataspace = dataspace
        self.vocabulary = vocabulary
        self.plans = Plans(dataspace, vocabulary)
        self.gatekeeper: Entity | None = None

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor | None:
        """See `Entity.assert_`.

        Raises:
            RemoteProtocolError: if it observes an invalid pattern, or too many patterns; or if it
                does not fit its label.
        """
        if isinstance(value, Decoded):  # a reference is in it
            kind = value.pattern_kind
            if kind in (_OBSERVE, RESOLVE):
                fields = value.content.fields
                if len(fields) == 2 and isinstance(fields[1], Embedded):
                    if kind == _OBSERVE:
                        other = fields[1].embeddedValue
                        return self._observe(turn, value, fields[0], other, source)
                    if self.gatekeeper is not None:
                        return self.gatekeeper.assert_(turn, value, source)
        return Withdrawal(self, self.dataspace.assert_(turn, self.vocabulary.known(value)))

    def _observe(
        self, turn: Turn, value: Decoded, pattern: Value, observer: Entity, source: Source
    ) -> Retractor:
        try:
            wanted = CapturesOnly(pattern_from_wire(pattern, self.vocabulary))
        except PatternError as exc:
            raise RemoteProtocolError(f"a pattern cannot be observed: {exc}") from None
        skeleton = take_apart(wanted)
        captures = skeleton.captures or ()
        parts = sum(1 + len(keys) for _, _, keys in skeleton.shape.groups)
        parts += len(skeleton.constants) + len(captures)
        if parts > MAX_PATTERN_PARTS:
            raise RemoteProtocolError(
                f"a pattern looks at {parts} places, at most {MAX_PATTERN_PARTS} are allowed; "
                "capture a value that contains them"
            )
        source.observes()
        port = observer.port()
        if isinstance(port, Port):
            port.told_as = port.target.oid, captures
        else:
            source.complain("an observer is not a peer's own entity; it will get no events")
        observation = self.dataspace.observe(turn, wanted, port, value=value)
        return partial(self._unobserve, observation, source)

    def _unobserve(self, observation: Observation, source: Source, turn: Turn) -> None:
        source.observes_no_more()
        self.plans.forget()
        self.dataspace.unobserve(turn, observation)

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        """See `Entity.message`.

        Raises:
            RemoteProtocolError: if it does not fit its label.
        """
        turn.publish(self.dataspace, self.vocabulary.known(value))


class Withdrawal:
    """Takes an assertion to a dataspace back; see `Retractor`."""

    __slots__ = ("assertion", "entity")

    def __init__(self, entity: DataspaceEntity, assertion: Assertion) -> None:
        self.entity = entity
        self.assertion = assertion

    def __call__(self, turn: Turn) -> None:
        self.entity.dataspace.retract(turn, self.assertion)


class Proxy(Entity):
    """An entity that a peer exports.

    Attributes:
        session: the peer's connection.
        oid: its number in the peer's table.
        known: whether the peer still has it: the number may stand for another entity later.
    """

    __slots__ = ("_direct", "known", "oid", "session")

    def __init__(self, session: SyndicateSession, oid: int) -> None:
        super().__init__()
        self.session = session
        self.oid = oid
        self.known = True
        self._direct: Port | None = None

    def __repr__(self) -> str:
        return f"<Proxy of oid {self.oid} of {self.session.name}>"

    def port(self, caveats: Sequence[Caveat] = ()) -> Port:
        return Port(self.session.sender, self, tuple(caveats))

    def _port(self) -> Port:
        if self._direct is None:
            self._direct = self.port()
        return self._direct

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor:
        made = Made()
        turn.send(self._port(), Make(value, made), nbytes=measure(value))
        return partial(self._retract, made)

    def _retract(self, made: Made, turn: Turn) -> None:
        turn.send(self._port(), Unmake(made), nbytes=0)

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        turn.send(self._port(), value, nbytes=measure(value))

    def sync(self, turn: Turn, peer: Entity, done: Callable[[], None], source: Source) -> None:
        """See `Entity.sync`: the peer answers it."""
        answer = Answer(peer, done, source)
        source.awaits(answer)
        turn.send(self._port(), Ask(answer), nbytes=0)


class Answer(Entity):
    """The recipient of a peer's answer to a sync that it was asked on behalf of another peer."""

    __slots__ = ("_done", "_peer", "_pin", "_session", "_source")

    def __init__(self, peer: Entity, done: Callable[[], None], source: Source) -> None:
        super().__init__()
        self._source = source
        self._peer: Entity | None = peer
        self._done = done
        self._pin: Pin[Entity] | None = None
        self._session: SyndicateSession | None = None

    def asked(self, session: SyndicateSession, pin: Pin[Entity]) -> None:
        """Note the connection that will answer; `pin` keeps this entity known until then."""
        self._session, self._pin = session, pin
        session.asked(self)

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Ignore it."""

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        """Pass the answer on."""
        if self._peer is not None:
            self._peer.message(turn, True, source)
            source.afterwards(self.end)

    def end(self) -> None:
        """Forget both sides. Idempotent."""
        if self._peer is not None:
            self._peer = None
            self._done()
            self._source.awaits_no_more(self)
        if self._pin is not None:
            self._pin.release()
        if self._session is not None:
            self._session.answered(self)


class Attenuated(Entity):
    """An entity behind caveats, which let only part of the events through.

    Attenuating it again extends one list of caveats; the limit on their size applies to the list.

    Attributes:
        entity: the entity behind the caveats.
        values: the caveats, the newest last.
        caveats: the same, compiled.
    """

    __slots__ = ("_decide", "_max_caveats_size", "_passing", "caveats", "entity", "values")

    def __init__(self, entity: Entity, caveats: Sequence[Value], *, max_caveats_size: int) -> None:
        super().__init__()
        inner: Entity = entity
        if isinstance(entity, Attenuated):
            caveats = (*entity.values, *caveats)
            inner = entity.entity
        self.entity: Entity = inner
        self._max_caveats_size = max_caveats_size
        self.caveats = compile_caveats(caveats, max_size=max_caveats_size)
        refused = any(isinstance(caveat, Refusal) for caveat in self.caveats)
        # A list that lets nothing through does not grow any further.
        self.values: tuple[Value, ...] = (_NOTHING,) if refused else tuple(caveats)
        fields = deciding_fields(self.values)
        self._decide = None if fields is None else tuple(sorted(fields.items()))
        self._passing: dict[tuple[bytes, ...], bool] = {}

    def passes(self, data: bytes, event: FlatEvent) -> bool:
        """Whether the body of an event gets through unchanged; False if that is not certain.

        It is not looked into where one like it has been: with the same label and number of fields,
        and the same in the fields that the caveats look at.
        """
        decide = self._decide
        places = event.places
        if decide is None or len(places) > 255:
            return False
        key = [data[event.start : places[0]], bytes((len(places),))]
        for field, by_content in decide:
            if field < len(places) - 1:
                start = places[field]
                key.append(data[start : places[field + 1] if by_content else start + 1])
        alike = tuple(key)
        passes = self._passing.get(alike)
        if passes is None:
            if len(self._passing) >= MAX_PASSING:
                self._passing.clear()
            value = Encoded(data[event.start : event.end])
            passes = self._through(value) is value
            if sum(map(len, alike)) <= MAX_REMEMBERED:
                self._passing[alike] = passes
        return passes

    def _through(self, value: WireValue) -> WireValue | None:
        return through(self.caveats, value, self._attenuate)

    def _attenuate(self, entity: Entity, caveats: tuple[Value, ...]) -> Entity:
        return Attenuated(entity, caveats, max_caveats_size=self._max_caveats_size)

    def assert_(self, turn: Turn, value: WireValue, source: Source) -> Retractor | None:
        let_through = self._through(value)
        if let_through is None:
            return None
        return self.entity.assert_(turn, let_through, source)

    def message(self, turn: Turn, value: WireValue, source: Source) -> None:
        let_through = self._through(value)
        if let_through is not None:
            self.entity.message(turn, let_through, source)

    def sync(self, turn: Turn, peer: Entity, done: Callable[[], None], source: Source) -> None:
        """See `Entity.sync`: a sync has no content to attenuate."""
        self.entity.sync(turn, peer, done, source)

    def port(self, caveats: Sequence[Caveat] = ()) -> Recipient:
        return self.entity.port((*self.caveats, *caveats))


def through(
    caveats: Sequence[Caveat],
    value: WireValue,
    attenuate: Callable[[Entity, tuple[Value, ...]], Entity],
) -> WireValue | None:
    """Return the part of a wire value that caveats let through; None for nothing."""
    size = max_attenuated_size(measure(value))
    before = library_value(value)
    passed = attenuate_value(caveats, before, attenuate, max_size=size)
    if passed is before:
        return value  # unchanged: it need not be encoded again
    return None if passed is None else wire_value(passed)
