"""Tenants: the owners of connections, and of each of their publications.

An operator configures a list of entries, and the first that matches counts. An entry matches a
connection if all its conditions hold: the user's name, the client identifier, the listener; of
several patterns for one of these, any. One that names topics is for publications: it matches those
to such topics, of the connections that it matches otherwise. So

    1. client=audit-*               tenant ops
    2. topic=weather/#              tenant weather
    3. user=press                   tenant press

has weather pay for the publications of `press` to `weather/x`, and press for everything else that
`press` causes; and ops for the publications of `audit-7` to any topic. An entry may be of a tenant
that an earlier one is of: then either makes it so. A peer that no entry matches belongs to the
default tenant, if there is one, and else to no tenant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

import attrs

from ..dataspace import LONG_TOPIC, FilterIndex, PatternError, TopicFilter
from ._filters import covers, overlap
from ._patterns import Patterns

CACHED_TOPICS: Final = 16_384
"""Topics whose tenant is cached, for each kind of connection; as many as routes
(`DEFAULT_CACHED_ROUTES`)."""

NO_USER: Final = "-"
"""Stands for a missing user's name."""


@attrs.frozen(slots=True)
class Peer:
    """A peer's identity, for naming its accounts and finding its tenant."""

    listener: str
    """The listener's label, as `mqtt:1883`."""
    user: str
    """The user's name; `NO_USER` without one."""
    client: str
    """A client identifier; without one, the address it comes from."""
    name: str = attrs.field(init=False, eq=False, repr=False)
    """The name of its account; no two peers have the same.

    A listener's label and a client's name may have a `/`; in a user's it stands as in URLs.
    """

    def __attrs_post_init__(self) -> None:
        name = f"{self.listener}/{as_part(self.user)}/{self.client}"
        object.__setattr__(self, "name", name)


def as_part(user: str) -> str:
    """Return a user's name as a part of another one, without `/`; no two names become one."""
    return user.replace("%", "%25").replace("/", "%2F")


def peer_of(name: str, client: str) -> Peer:
    """Parse the name of a client's account."""
    listener, _, user = name.removesuffix(f"/{client}").rpartition("/")
    return Peer(listener, user.replace("%2F", "/").replace("%25", "%"), client)


def peer_of_older(name: str, client: str) -> Peer:
    """Parse a name from when a user's `/` stood there as it is: a store may have such names.

    Where a listener's label and a user's name both have one, the user's is taken to have none.
    """
    rest = name.removesuffix(f"/{client}")
    if rest.partition("/")[0].endswith(":"):  # a path, which has them itself
        listener, _, user = rest.rpartition("/")
    else:
        listener, _, user = rest.partition("/")
    return Peer(listener, user, client)


_VERIFIED: Final = "@"


def identity(client: str, user: str | None) -> str:
    """Return the key of a client: its identifier, and its user if that has been verified.

    Each verified user has identifiers of its own: nobody can take over another user's, or keep it
    from its owner. Users that are not verified share theirs.
    """
    if user is not None:
        return f"{_VERIFIED}{as_part(user).replace(_VERIFIED, '%40')}/{client}"
    return _VERIFIED + client if client.startswith(_VERIFIED) else client


def printable(name: str) -> str:
    """Return a name that a peer has chosen, fit for a log line and a label.

    No two names become one: a backslash is doubled.
    """
    if name.isprintable() and "\\" not in name:
        return name
    return name.encode("unicode_escape").decode()


def _check_name(_: object, __: object, name: str) -> None:
    if not name or not name.isprintable() or "/" in name:
        msg = (
            f"{name!r} cannot be a tenant's name: it has to be printable and without /, as "
            "accounts are called tenant/NAME"
        )
        raise ValueError(msg)


def _positive(self: Tenant, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ValueError(f"tenant {self.name}: {attribute.name} must be above 0, not {value}")


def _check_patterns(self: Tenant, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for pattern in value:
        if not pattern:
            raise ValueError(f"tenant {self.name}: a pattern of {attribute.name} is empty")
        if attribute.name == "topic":
            try:
                TopicFilter(pattern)
            except PatternError as exc:
                raise ValueError(f"tenant {self.name}: {exc}") from exc


def _patterns() -> Any:
    return attrs.field(default=(), converter=tuple, validator=_check_patterns)


def _amount() -> Any:
    return attrs.field(default=None, validator=_positive)


@attrs.frozen(slots=True, kw_only=True)
class Tenant:
    """One entry: a tenant, and its limits. Amounts that are None are not set.

    In patterns `*` is any text, `/` included, `?` any character, `[ab]` one of some, `[*]` an
    asterisk. Topics are matched by MQTT's filters.

    Raises:
        ValueError: If it makes no sense; the message says why.
    """

    name: str = attrs.field(validator=_check_name)
    """The tenant's. Its account is called `tenant/NAME`."""
    user: tuple[str, ...] = _patterns()
    """For users' names; `-` is no name."""
    client: tuple[str, ...] = _patterns()
    """For client identifiers; for a Syndicate peer's address; for the name of a writer of
    batches."""
    listener: tuple[str, ...] = _patterns()
    """For listeners' names, as `mqtt:1883`, `mqtt:/run/relay.sock`."""
    topic: tuple[str, ...] = _patterns()
    """Topic filters: the entry is for publications to topics that they match."""
    default: bool = False
    """Whether it is for all peers that no entry matches."""
    weight: float | None = _amount()
    """Its share beside others' while the server owes too much; 1 if it is not set."""
    items: int | None = _amount()
    """Events that all of it together may owe."""
    bytes: int | None = _amount()
    """Bytes that all of it together may owe."""
    rate: float | None = _amount()
    """Events a second that all of it together may publish."""
    rate_bytes: float | None = _amount()
    """Their bytes."""
    users: bool | None = None
    """Whether its users have accounts of their own between it and their connections, and so equal
    shares; also if any of the settings for users is set."""
    user_items: int | None = _amount()
    """Events that all connections of one of its users may owe."""
    user_bytes: int | None = _amount()
    """Bytes that they may owe."""
    user_rate: float | None = _amount()
    """Events a second that they may publish."""
    user_rate_bytes: float | None = _amount()
    """Their bytes."""
    kept: int | None = _amount()
    """Bytes that may be at rest, on disk or else in RAM, for its clients' sessions."""
    connections: int | None = _amount()
    """MQTT clients of it that may be connected at a time; by default eight times the number of free
    places."""
    latency: float | None = _amount()
    """Target age in seconds for the debt of each of its connections: the connection's limit follows
    from that, unless an account limit names it."""

    def __attrs_post_init__(self) -> None:
        if self.users is False and any(getattr(self, name) is not None for name in _OF_USERS):
            raise ValueError(f"tenant {self.name}: users is false, but a limit for users is given")

    @property
    def has_users(self) -> bool:
        """Whether its users have accounts of their own."""
        return bool(self.users) or any(getattr(self, name) is not None for name in _OF_USERS)

    @property
    def is_conditional(self) -> bool:
        """Whether it has conditions."""
        return bool(self.user or self.client or self.listener or self.topic)


_OF_USERS: Final = ("user_items", "user_bytes", "user_rate", "user_rate_bytes")
_AMOUNTS: Final = (
    *(
        "weight",
        "items",
        "bytes",
        "rate",
        "rate_bytes",
        "users",
        *_OF_USERS,
        "kept",
        "connections",
        "latency",
    ),
)


class _Entry:
    """An entry, made ready for matching."""

    __slots__ = ("asked", "tenant", "topics")

    def __init__(self, entry: Tenant, tenant: Tenant) -> None:
        self.tenant = tenant
        self.topics = entry.topic
        self.asked = [
            (field, Patterns(patterns))
            for field, patterns in (
                ("user", entry.user), ("client", entry.client), ("listener", entry.listener),
            )
            if patterns
        ]  # fmt: skip

    def matches(self, peer: Peer) -> bool:
        """Whether a peer meets its conditions, whatever it publishes."""
        return all(pattern.matches(getattr(peer, field)) for field, pattern in self.asked)


class Membership:
    """The tenants of all peers that the same entries match.

    Attributes:
        tenant: The tenant that pays for all but some publications; None: no tenant.
        by_topic: Whether publications may be another tenant's.
    """

    __slots__ = ("__weakref__", "_cached", "_index", "_of_place", "by_topic", "tenant")

    def __init__(self, tenant: Tenant | None, by_topic: Sequence[_Entry] = ()) -> None:
        self.tenant = tenant
        self.by_topic = bool(by_topic)
        self._index: FilterIndex[int] = FilterIndex()
        self._of_place = [entry.tenant for entry in by_topic]
        for place, entry in enumerate(by_topic):
            for topic_filter in entry.topics:
                self._index.add(topic_filter, place)
        self._cached: dict[str, Tenant | None] = {}

    def __repr__(self) -> str:
        name = None if self.tenant is None else self.tenant.name
        return f"<Membership: {name}, {len(self._of_place)} by topic>"

    def of_topic(self, topic: str) -> Tenant | None:
        """Return the tenant that pays for publications to a topic."""
        if not self.by_topic:
            return self.tenant
        cached = self._cached
        try:
            return cached[topic]
        except KeyError:
            pass
        place = min(self._index.matching(topic), default=None)
        tenant = self.tenant if place is None else self._of_place[place]
        if len(topic) <= LONG_TOPIC:
            if len(cached) >= CACHED_TOPICS:
                del cached[next(iter(cached))]
            cached[topic] = tenant
        return tenant


class TenantRules:
    """The entries of an operator, the first that matches counting.

    Args:
        entries: The entries, in order.

    Attributes:
        tenants: The tenants, by name, each with all its settings.

    Raises:
        ValueError: If they contradict each other, or one can never match; the message says which.
    """

    def __init__(self, entries: Sequence[Tenant] = ()) -> None:
        self.tenants: dict[str, Tenant] = {}
        for entry in entries:
            known = self.tenants.get(entry.name)
            self.tenants[entry.name] = entry if known is None else _joined(known, entry)
        self._default: Tenant | None = None
        for entry in entries:
            if not entry.default:
                continue
            if self._default is not None and self._default.name != entry.name:
                msg = f"tenants {self._default.name} and {entry.name} cannot both be the default"
                raise ValueError(msg)
            self._default = self.tenants[entry.name]
        conditional = {entry.name for entry in entries if entry.is_conditional}
        for name, tenant in self.tenants.items():
            if name not in conditional and tenant is not self._default:
                msg = (
                    f"no client belongs to tenant {name}: give user, client, listener or topic, or "
                    "make it the default"
                )
                raise ValueError(msg)
        self._entries = [_Entry(e, self.tenants[e.name]) for e in entries if e.is_conditional]
        self._memberships: WeakValueDictionary[tuple[int, ...], Membership] = WeakValueDictionary()
        self._topics: FilterIndex[_Entry] = FilterIndex()
        for each in self._entries:
            for topic_filter in each.topics:
                self._topics.add(topic_filter, each)

    def __repr__(self) -> str:
        return f"<TenantRules: {len(self.tenants)} tenants, {len(self._entries)} entries>"

    @property
    def own_topics(self) -> bool:
        """Whether some topics belong to tenants."""
        return len(self._topics) > 0

    def is_others(self, peer: Peer, topic: str) -> bool:
        """Whether a topic belongs to tenants, and to none that the peer belongs to.

        A topic is a tenant's if an entry of it has a filter for the topic. The peer belongs to the
        tenant that pays for it, and to one whose entry for the topic has a condition that the peer
        meets: its user, its client identifier or its listener.
        """
        found = list(self._topics.matching(topic))
        return bool(found) and not self._is_one_of(peer, found)

    def is_topic_of(self, name: str | None, topic: str) -> bool:
        """Whether a topic is nobody's, or that tenant's; None: the default tenant."""
        tenant = self._default if name is None else self.tenants[name]
        found = [entry.tenant for entry in self._topics.matching(topic)]
        return not found or tenant in found

    def is_all_others(self, peer: Peer, topic_filter: str) -> bool:
        """Whether certainly every topic that matches a filter is others'; see `is_others`."""
        about = [
            (filter_, entry)
            for entry in self._entries
            for filter_ in entry.topics
            if overlap(filter_, topic_filter)
        ]
        return any(covers(f, topic_filter) for f, _ in about) and not self._is_one_of(
            peer, [entry for _, entry in about]
        )

    def is_partly_others(self, peer: Peer, topic_filter: str) -> bool:
        """Whether some topic that matches a filter may be others'; see `is_others`."""
        about = [e for e in self._entries if any(overlap(f, topic_filter) for f in e.topics)]
        return not all(self._is_one_of(peer, [each]) for each in about)

    def _is_one_of(self, peer: Peer, entries: Sequence[_Entry]) -> bool:
        own = self.of(peer).tenant
        return any(e.tenant is own or (e.asked and e.matches(peer)) for e in entries)

    def of(self, peer: Peer) -> Membership:
        """Return the membership of a peer."""
        by_topic: list[int] = []
        base = -1
        for place, entry in enumerate(self._entries):
            if entry.matches(peer):
                if not entry.topics:
                    base = place
                    break
                by_topic.append(place)
        key = (base, *by_topic)
        found = self._memberships.get(key)
        if found is None:
            tenant = self._default if base < 0 else self._entries[base].tenant
            found = Membership(tenant, [self._entries[place] for place in by_topic])
            self._memberships[key] = found
        return found


def _joined(known: Tenant, entry: Tenant) -> Tenant:
    said: dict[str, Any] = {}
    for field in _AMOUNTS:
        old, new = getattr(known, field), getattr(entry, field)
        if old is not None and new is not None and old != new:
            msg = f"tenant {entry.name}: {field} is {old} in one entry and {new} in another"
            raise ValueError(msg)
        said[field] = new if old is None else old
    return attrs.evolve(known, **said)


def same_members(some: Sequence[Tenant], others: Sequence[Tenant]) -> bool:
    """Whether two lists of entries differ only in amounts that may change in a running relay.

    What a connection belongs to, and where its messages are at rest, is found when it comes, and
    holds for all that it leaves behind. A moving limit (`latency`) has to have been one before.
    """
    return [_lasting(each) for each in some] == [_lasting(each) for each in others]


def _lasting(entry: Tenant) -> tuple[object, ...]:
    return (
        *(entry.name, entry.user, entry.client, entry.listener, entry.topic, entry.default),
        *(entry.has_users, entry.latency, entry.kept is None),
    )


def check_tenants(_: object, __: object, entries: tuple[Tenant, ...]) -> None:
    """Raise ValueError if entries cannot stand together; see `TenantRules`."""
    TenantRules(entries)
