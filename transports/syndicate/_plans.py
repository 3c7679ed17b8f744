"""Plans: whom flat messages and assertions concern, decided on their bytes.

Patterns look at constants in few places of a record. So records of one label and number of fields,
with the same bytes in those places, concern the same observers, whatever else they say: one look at
the index makes the `Plan` for all of them. What an observer captures of a flat record is the record
itself or some of its fields, which are forwarded as they came.

A plan holds until an observer comes or goes. One is made when the same kind is seen for the second
time since: where observers come and go all the time, nothing is spent on plans.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from ...dataspace import Endpoint, Sight, sights
from ._flat import FlatEvent, flat_body, is_canonical
from ._port import Port
from ._runs import MESSAGE_HEAD, ToldAs
from ._values import Encoded, encode_integer, encoded

if TYPE_CHECKING:
    from ...dataspace import Dataspace
    from ._vocabulary import Vocabulary

MAX_PLANS: Final = 1_024
"""Most plans of a dataspace; then all are forgotten."""

MAX_CAPTURES: Final = 8
"""Captures of an observer of what goes by a plan: for more the observer pays a part itself
(`dataspace._telling`)."""

MAX_REMEMBERED: Final = 256
"""Most bytes of what is remembered of a record: of an assertion that comes and goes, and comes
again, or of what decides about records that are alike. Nobody is charged for it."""

Pieces: TypeAlias = tuple[tuple[int, int], ...]
"""What an observer captures: fields, from one number to another; (-1, -1) for the record."""


@attrs.frozen(slots=True, eq=False)
class Plan:
    """The observers that some records concern."""

    ports: tuple[Port, ...]
    """Their ports, each of another peer."""
    told: tuple[tuple[ToldAs, bytes, Pieces], ...]
    """For each kind of port, what a message to it begins with, and what it shows."""
    endpoints: tuple[tuple[Endpoint, tuple[Port, ...]], ...]
    """The same ports, by endpoint."""


@attrs.frozen(slots=True, eq=False)
class Seen:
    """An assertion, as observers see it."""

    value: Encoded
    key: Hashable
    """Its identity."""
    ports: tuple[Port, ...]
    """The ports of all observers, each of another peer."""
    sights: tuple[Sight, ...]
    told: tuple[tuple[bytes, tuple[Port, ...]], ...]
    """For each sight, what it shows, as it travels, and the ports that are told so."""


@attrs.define(slots=True, eq=False)
class _Kind:
    """The plans for the records of one label and number of fields."""

    decide: tuple[int, ...] | None
    """The fields whose content decides; None: there are no plans for these records."""
    plans: dict[tuple[bytes, ...], Plan | None] = attrs.field(
        factory=dict[tuple[bytes, ...], "Plan | None"]
    )


class Plans:
    """The plans of one dataspace."""

    __slots__ = ("_count", "_dataspace", "_kinds", "_seen", "_version", "_vocabulary")

    def __init__(self, dataspace: Dataspace, vocabulary: Vocabulary) -> None:
        self._dataspace = dataspace
        self._vocabulary = vocabulary
        self._version = -1
        self._kinds: dict[tuple[bytes, int], _Kind | None] = {}
        self._seen: dict[bytes, Seen] = {}
        self._count = 0

    def forget(self) -> None:
        """Forget all plans: an observer leaves, and nothing is to keep it."""
        self._kinds.clear()
        self._seen.clear()
        self._count = 0

    def of(self, data: bytes, event: FlatEvent) -> Plan | None:
        """Return the plan for the body of an event; None if it needs a closer look."""
        places = event.places
        if self._version != self._dataspace.version or self._count > MAX_PLANS:
            self._version = self._dataspace.version
            self.forget()
        if places[0] - event.start > MAX_REMEMBERED:
            return None
        name = data[event.start : places[0]], len(places)
        kind = self._kinds.get(name)
        if kind is None:
            if name not in self._kinds:
                self._count += 1
                self._kinds[name] = None  # it has been seen once
                return None
            kind = self._kinds[name] = self._kind(data, event)
        decide = kind.decide
        if decide is None:
            return None
        key: tuple[bytes, ...] = ()
        if decide:
            key = tuple([data[places[at] : places[at + 1]] for at in decide])
        try:
            return kind.plans[key]
        except KeyError:
            plan = self._plan(data[event.start : event.end])
            if sum(map(len, key)) <= MAX_REMEMBERED:
                self._count += 1
                kind.plans[key] = plan
            return plan

    def seen(self, data: bytes, event: FlatEvent) -> Seen | None:
        """Return what observers see of an assertion; None if it needs a closer look."""
        body = data[event.start : event.end]
        if self._version == self._dataspace.version and (seen := self._seen.get(body)) is not None:
            return seen
        plan = self.of(data, event)
        if plan is None:
            return None
        value = Encoded(body)
        known = is_canonical(data, event.places)
        key = ("preserves", body) if known else value.pattern_identity()
        found = sights(value, key, [endpoint for endpoint, _ in plan.endpoints])
        told: list[tuple[bytes, tuple[Port, ...]]] = []
        for sight, (_, ports) in zip(found, plan.endpoints, strict=True):
            raw = encoded(sight.shown)
            assert raw is not None, "there is no reference in it"
            told.append((raw, ports))
        seen = Seen(value, key, plan.ports, found, tuple(told))
        if len(body) <= MAX_REMEMBERED:
            self._count += 1
            self._seen[body] = seen
        return seen

    def seen_again(self, body: bytes) -> Seen | None:
        """Return what observers see of an assertion that stands, by its bytes; as `seen`."""
        if self._version == self._dataspace.version and (seen := self._seen.get(body)) is not None:
            return seen
        event = flat_body(body)
        return None if event is None else self.seen(body, event)

    def _kind(self, data: bytes, event: FlatEvent) -> _Kind:
        value = Encoded(data[event.start : event.end])
        label = value.pattern_kind
        if self._vocabulary.class_of(label) is not None:
            return _Kind(None)
        fields = len(event.places) - 1
        deciding = self._dataspace.deciding(label)
        return _Kind(tuple([at for at in range(fields) if at in deciding]))

    def _plan(self, body: bytes) -> Plan | None:
        endpoints: list[tuple[Endpoint, tuple[Port, ...]]] = []
        ports: dict[object, Port] = {}
        told: dict[ToldAs, tuple[bytes, Pieces]] = {}
        for endpoint in self._dataspace.concerned(Encoded(body)):
            captures = endpoint.captures
            if captures is None or len(captures) > MAX_CAPTURES:
                return None
            pieces = _pieces(captures)
            if pieces is None:
                return None
            here: list[Port] = []
            for observation in endpoint.observers:
                port: Any = observation.holder
                if type(port) is not Port or port.caveats or port.sender in ports:
                    return None
                ports[port.sender] = port
                here.append(port)
                if port.told_as not in told:
                    oid = encode_integer(port.told_as[0])
                    told[port.told_as] = b"".join((b"\xb5", oid, MESSAGE_HEAD, b"\xb5")), pieces
            endpoints.append((endpoint, tuple(here)))
        return Plan(
            tuple(ports.values()),
            tuple([(told_as, *of) for told_as, of in told.items()]),
            tuple(endpoints),
        )


def _pieces(captures: Sequence[tuple[Any, ...]]) -> Pieces | None:
    """Return what of a flat record has these paths; None if that is neither it nor its fields."""
    pieces: list[tuple[int, int]] = []
    for path in captures:
        if path == ():
            pieces.append((-1, -1))
        elif len(path) != 1 or not isinstance(path[0], int):
            return None
        elif pieces and pieces[-1][1] == path[0]:
            pieces[-1] = pieces[-1][0], path[0] + 1  # they stand side by side
        else:
            pieces.append((path[0], path[0] + 1))
    return tuple(pieces)


def shown(data: bytes, event: FlatEvent, pieces: Pieces) -> bytes:
    """Return what is captured of the body of an event."""
    places = event.places
    if len(pieces) == 1 and pieces[0][0] >= 0:
        return data[places[pieces[0][0]] : places[pieces[0][1]]]
    return b"".join(
        [
            data[event.start : event.end] if first < 0 else data[places[first] : places[after]]
            for first, after in pieces
        ]
    )
