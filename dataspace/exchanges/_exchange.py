"""Exchanges and their bindings: the four types of AMQP, and what each of them routes by.

An exchange knows its own bindings only; `VirtualHost` follows them from exchange to exchange.

Source: AMQP 0-9-1, sections 3.1.3 and 3.1.4; RabbitMQ's rabbit_exchange_type_direct.erl, _fanout,
_topic and _headers.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs

from ._errors import precondition_failed
from ._tables import NO_ARGUMENTS, Table, encode_table, is_integer, shown, type_name, value_key
from ._topic_patterns import NODE_BYTES, CacheBudget, TopicPatterns, words_of

if TYPE_CHECKING:
    from ._declared_queue import DeclaredQueue

BINDING_BYTES: Final = 700
"""The memory of a binding besides its key and its arguments (measured: 480 to 970)."""

EXCHANGE_BYTES: Final = 700
"""The memory of an exchange besides its name and its arguments (measured: 500 to 700)."""


class Kind(enum.StrEnum):
    """The types of exchanges, by AMQP's names."""

    DIRECT = "direct"
    """Routes to bindings whose key is the routing key."""
    FANOUT = "fanout"
    """Routes to all bindings."""
    TOPIC = "topic"
    """Routes to bindings whose key, with wildcards, matches the routing key."""
    HEADERS = "headers"
    """Routes to bindings whose arguments match the message's headers."""


Destination: TypeAlias = "DeclaredQueue | Exchange"

Headers: TypeAlias = Callable[[], Table]
"""Returns the headers of the message that is routed; parsed when an exchange asks for them."""


@attrs.frozen(slots=True, eq=False)
class Binding:
    """One binding: messages of an exchange that match go to a destination."""

    source: Exchange
    destination: Destination
    key: str
    arguments: Table
    text: str
    """The arguments as text: two bindings are the same if these and all the others are."""
    nbytes: int
    """The memory that it takes, about."""

    @property
    def identity(self) -> tuple[Destination, str, str]:
        """What tells it apart from the others of its source."""
        return self.destination, self.key, self.text


class Exchange(abc.ABC):
    """One exchange.

    Attributes:
        name: Its name; in the messages of errors with its virtual host's.
        durable: Whether it survives a restart.
        auto_delete: Whether it is deleted when its last binding has gone.
        internal: Whether clients cannot publish to it.
        arguments: As it was declared.
        alternate: The name of the exchange that gets what it cannot route; None: no exchange.
        bindings: Its bindings, those of which it is the source.
        incoming: The bindings of which it is the destination.
        onward: The number of `bindings` to exchanges.
        nbytes: The memory that it takes, about.
    """

    __slots__ = (
        "__weakref__", "alternate", "arguments", "auto_delete", "bindings", "durable", "incoming",
        "internal", "name", "nbytes", "onward",
    )  # fmt: skip

    kind: ClassVar[Kind]
    what: ClassVar[str] = "exchange"

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table = NO_ARGUMENTS,
        alternate: str | None = None,
        nbytes: int = 0,
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.alternate = alternate
        self.bindings: dict[tuple[Destination, str, str], Binding] = {}
        self.incoming: dict[Binding, None] = {}
        self.onward: int = 0
        self.nbytes: int = nbytes

    def __repr__(self) -> str:
        return f"<{self.kind} exchange {self.name}: {len(self.bindings)} bindings>"

    @property
    def is_plain(self) -> bool:
        """Whether whatever it routes goes to queues, and nothing elsewhere."""
        return not self.onward and self.alternate is None

    def check_arguments(self, arguments: Table) -> None:  # noqa: B027 (most take any)
        """Check the arguments of a binding.

        Raises:
            HostError: If it cannot have these.
        """

    def memory_of(self, key: str, text: str) -> int:
        """Return the memory of a binding, about."""
        return BINDING_BYTES + 2 * (len(key) + len(text))

    def bind(self, destination: Destination, key: str, arguments: Table) -> Binding:
        """Return a binding to be added."""
        text = encode_table(arguments)
        return Binding(self, destination, key, arguments, text, self.memory_of(key, text))

    def add(self, binding: Binding) -> None:
        """Add a binding that is not there."""
        self.bindings[binding.identity] = binding
        self.onward += isinstance(binding.destination, Exchange)
        binding.destination.incoming[binding] = None
        self._add(binding)

    def remove(self, binding: Binding) -> None:
        """Remove a binding that is there."""
        del self.bindings[binding.identity]
        self.onward -= isinstance(binding.destination, Exchange)
        del binding.destination.incoming[binding]
        self._remove(binding)

    @abc.abstractmethod
    def _add(self, binding: Binding) -> None:
        """Add a binding to the index."""

    @abc.abstractmethod
    def _remove(self, binding: Binding) -> None:
        """Remove a binding from the index."""

    @abc.abstractmethod
    def match(self, key: str, headers: Headers) -> Collection[Destination]:
        """Return the destinations of a message with this routing key and headers, each once."""


class DirectExchange(Exchange):
    """Routes to bindings whose key is the routing key."""

    __slots__ = ("_by_key",)

    kind = Kind.DIRECT

    def __init__(self, name: str, **more: object) -> None:
        super().__init__(name, **more)  # type: ignore[arg-type]
        self._by_key: dict[str, dict[Destination, int]] = {}

    def _add(self, binding: Binding) -> None:
        _count(self._by_key.setdefault(binding.key, {}), binding.destination)

    def _remove(self, binding: Binding) -> None:
        destinations = self._by_key[binding.key]
        _discount(destinations, binding.destination)
        if not destinations:
            del self._by_key[binding.key]

    def match(self, key: str, headers: Headers) -> Collection[Destination]:
        return self._by_key.get(key, ())


class FanoutExchange(Exchange):
    """Routes to all bindings."""

    __slots__ = ("_all",)

    kind = Kind.FANOUT

    def __init__(self, name: str, **more: object) -> None:
        super().__init__(name, **more)  # type: ignore[arg-type]
        self._all: dict[Destination, int] = {}

    def _add(self, binding: Binding) -> None:
        _count(self._all, binding.destination)

    def _remove(self, binding: Binding) -> None:
        _discount(self._all, binding.destination)

    def match(self, key: str, headers: Headers) -> Collection[Destination]:
        return self._all


class TopicExchange(Exchange):
    """Routes to bindings whose key, with wildcards, matches the routing key."""

    __slots__ = ("_patterns",)

    kind = Kind.TOPIC

    def __init__(self, name: str, *, cache: CacheBudget | None = None, **more: object) -> None:
        super().__init__(name, **more)  # type: ignore[arg-type]
        self._patterns: TopicPatterns[Destination] = TopicPatterns(cache)

    def memory_of(self, key: str, text: str) -> int:
        return super().memory_of(key, text) + NODE_BYTES * len(words_of(key))

    def _add(self, binding: Binding) -> None:
        self._patterns.add(binding.key, binding.destination)

    def _remove(self, binding: Binding) -> None:
        self._patterns.remove(binding.key, binding.destination)

    def match(self, key: str, headers: Headers) -> Collection[Destination]:
        return self._patterns.matching(key)


_MATCH: Final = "x-match"
_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


@attrs.frozen(slots=True, eq=False)
class _Criteria:
    """The wanted headers of one binding."""

    binding: Binding
    wants_all: bool
    present: tuple[str, ...]
    """Headers that have to be there, with any value."""
    equal: tuple[tuple[str, Hashable], ...]
    """Headers that have to have a value."""

    def match(self, found: Mapping[str, Hashable]) -> bool:
        """Whether all of them are met."""
        return all(name in found for name in self.present) and all(
            name in found and found[name] == value for name, value in self.equal
        )


def criteria_of(binding: Binding) -> _Criteria:
    """Return the wanted headers of a binding.

    Arguments that begin with `x-` count only with `all-with-x` and `any-with-x`; `x-match` never.
    """
    match = binding.arguments.get(_MATCH, "all")
    with_x = isinstance(match, str) and match.endswith("-with-x")
    present: list[str] = []
    equal: list[tuple[str, Hashable]] = []
    for name, value in binding.arguments.items():
        if name == _MATCH or (name.startswith("x-") and not with_x):
            continue
        if value is None:
            present.append(name)
        else:
            equal.append((name, value_key(value)))
    wants_all = match in ("all", "all-with-x")
    return _Criteria(binding, wants_all, tuple(present), tuple(equal))


class HeadersExchange(Exchange):
    """Routes to bindings whose arguments match the message's headers.

    A binding that wants any of several headers is found by each of them. One that wants all is
    found by one, and then compared; so the cost grows with the bindings that share that one.
    """

    __slots__ = ("_by_header", "_by_value", "_criteria", "_without")

    kind = Kind.HEADERS

    def __init__(self, name: str, **more: object) -> None:
        super().__init__(name, **more)  # type: ignore[arg-type]
        self._criteria: dict[Binding, _Criteria] = {}
        self._by_value: dict[tuple[str, Hashable], dict[_Criteria, None]] = {}
        self._by_header: dict[str, dict[_Criteria, None]] = {}
        # Those that want all of no headers.
        self._without: dict[_Criteria, None] = {}

    def check_arguments(self, arguments: Table) -> None:
        if _MATCH not in arguments:
            return
        match = arguments[_MATCH]
        if not isinstance(match, str):
            value = shown(match) if is_integer(match) or isinstance(match, bool) else repr(match)
            raise precondition_failed(
                f"Invalid x-match field type {type_name(match)} (value {value}); expected longstr"
            )
        if match not in _MATCHES:
            raise precondition_failed(
                f'Invalid x-match field value <<"{match}">>; '
                "expected all, any, all-with-x, or any-with-x"
            )

    def _places(self, criteria: _Criteria) -> list[dict[_Criteria, None]]:
        """Return the tables in which a binding stands; new ones where there are none."""
        equal = [self._by_value.setdefault(pair, {}) for pair in criteria.equal]
        if criteria.wants_all:
            if equal:
                return equal[:1]
            if not criteria.present:
                return [self._without]
            return [self._by_header.setdefault(criteria.present[0], {})]
        return equal + [self._by_header.setdefault(name, {}) for name in criteria.present]

    def _prune(self, criteria: _Criteria) -> None:
        for pair in criteria.equal:
            if not self._by_value.get(pair, True):
                del self._by_value[pair]
        for name in criteria.present:
            if not self._by_header.get(name, True):
                del self._by_header[name]

    def _add(self, binding: Binding) -> None:
        criteria = self._criteria[binding] = criteria_of(binding)
        for place in self._places(criteria):
            place[criteria] = None
        self._prune(criteria)

    def _remove(self, binding: Binding) -> None:
        criteria = self._criteria.pop(binding)
        for place in self._places(criteria):
            place.pop(criteria, None)
        self._prune(criteria)

    def match(self, key: str, headers: Headers) -> Collection[Destination]:
        if not self.bindings:
            return ()
        found = {name: value_key(value) for name, value in headers().items()}
        destinations: dict[Destination, None] = {}
        places = [self._without]
        for pair in found.items():
            places += (self._by_value.get(pair, {}), self._by_header.get(pair[0], {}))
        for place in places:
            for criteria in place:
                if not criteria.wants_all or criteria.match(found):
                    destinations[criteria.binding.destination] = None
        return destinations


def _count(counts: dict[Destination, int], destination: Destination) -> None:
    counts[destination] = counts.get(destination, 0) + 1


def _discount(counts: dict[Destination, int], destination: Destination) -> None:
    counts[destination] -= 1
    if not counts[destination]:
        del counts[destination]


CLASSES: Final[Mapping[str, type[Exchange]]] = {
    Kind.DIRECT: DirectExchange,
    Kind.FANOUT: FanoutExchange,
    Kind.TOPIC: TopicExchange,
    Kind.HEADERS: HeadersExchange,
}

PREDECLARED: Final[tuple[tuple[str, Kind], ...]] = (
    ("amq.direct", Kind.DIRECT),
    ("amq.fanout", Kind.FANOUT),
    ("amq.topic", Kind.TOPIC),
    ("amq.headers", Kind.HEADERS),
    ("amq.match", Kind.HEADERS),
)
"""The exchanges that are always there, durable; AMQP 0-9-1, section 3.1.3. RabbitMQ's other ones
are for its own log, and not here."""
