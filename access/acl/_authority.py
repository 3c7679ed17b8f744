"""Decides what each peer may publish and read: an access control list, tenants, and a default.

The decision on a topic, for a peer:
1. A rule of its user that denies the topic, or else one that allows the access.
2. A pattern that denies it, or else one that allows it (`AclRules.patterns_of`).
3. The default, where no rule matches: `deny`; `allow`; or `tenant`, which allows topics that do not
   belong to another tenant. A topic belongs to the tenants that have an entry with a filter for it.
4. Where the default allows and there are users, `$SYS/clearfunds/throttled/` is an exception: a
   client can read only about itself there.

Decisions are made when a route is found, a filter subscribed to, or a topic first published to, not
for each message, and are cached. Peers with the same rules share the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args
from weakref import WeakSet, WeakValueDictionary

from ...dataspace import FilterIndex
from ...dataspace._topics import topic_matches
from .._filters import covers, overlap
from .._tenants import NO_USER, Peer, TenantRules
from ._denied import Denied
from ._rules import Access, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...dataspace import Route
    from ._acl import Acl

AclDefault: TypeAlias = Literal["allow", "deny", "tenant"]
"""The decision for a topic that no rule matches."""

ACL_DEFAULTS: Final = get_args(AclDefault)

CACHED_BYTES: Final = 16 << 20
"""Bytes of the routes known to be writable, of all peers together; at this size all are forgotten.
As the cache of routes (`DEFAULT_CACHED_ROUTES`)."""

ROUTE_BYTES: Final = 1_024
"""Most bytes of such a route beside its topic, if nothing else keeps it."""

_READ: Final = int(Access.READ)
_WRITE: Final = int(Access.WRITE)


Rules: TypeAlias = tuple["Sequence[Rule]", "Sequence[Rule] | None"]
"""The rules of one peer: its user's own, and the patterns; see `AclRules.patterns_of`."""


class Authority:
    """The authorisation of a relay.

    Args:
        acl: The access control list, if there is one.
        default: The decision where no rule matches; None: `deny` with a list, otherwise `tenant`.
        tenants: Say which topics belong to which tenant, for the default `tenant`.
        own_notices: Returns the topic on which a client is told that it is not read; where there
            are users. None: everybody may read about everybody.

    Attributes:
        acl: See above.
        default: See above.
        denied: Counts of refusals.
        on_change: Called when the permissions have changed.
    """

    def __init__(
        self,
        acl: Acl | None = None,
        default: AclDefault | None = None,
        tenants: TenantRules | None = None,
        own_notices: Callable[[str], str] | None = None,
    ) -> None:
        self.acl = acl
        self.default: AclDefault = default or ("tenant" if acl is None else "deny")
        self.denied = Denied()
        self.on_change: Callable[[], object] | None = None
        self._tenants = TenantRules() if tenants is None else tenants
        if self.default == "tenant" and not self._tenants.own_topics:
            self.default = "allow"
        self._own_notices = own_notices
        self._rights: WeakSet[Rights] = WeakSet()
        self._rulings: WeakValueDictionary[tuple[object, ...], _Ruling] = WeakValueDictionary()
        self._own: WeakValueDictionary[str | None, _OwnRules] = WeakValueDictionary()
        self._cached = 0
        if acl is not None:
            acl.on_change.append(self._forget)

    def __repr__(self) -> str:
        return f"<Authority: {self.acl}, else {self.default}>"

    @property
    def restricts_writing(self) -> bool:
        """Whether some peer may not publish everything."""
        return self.acl is not None or self.default != "allow"

    @property
    def restricts_reading(self) -> bool:
        """Whether some peer may not read everything."""
        return self.restricts_writing or self._own_notices is not None

    def of(self, peer: Peer, client: str | None = None) -> Rights:
        """Return the rights of a peer; `client` is its identifier, if that is not `peer.client`.

        They follow changes of the rules.
        """
        rights = Rights(self, peer, peer.client if client is None else client)
        self._rights.add(rights)
        return rights

    def close(self) -> None:
        """Stop listening to changes."""
        self.on_change = None
        if self.acl is not None and self._forget in self.acl.on_change:
            self.acl.on_change.remove(self._forget)

    def _forget(self) -> None:
        """Forget all decisions: the rules have changed."""
        self._rulings.clear()
        self._own.clear()
        for rights in list(self._rights):
            rights.forget()
        self._cached = 0
        if self.on_change is not None:
            self.on_change()

    def ruling(self, rights: Rights) -> _Ruling:
        """Return the decisions for a peer and all others with its rules. For `Rights`."""
        peer, rules = rights.peer, None if self.acl is None else self.acl.rules
        by_client = self.default != "deny" or (rules is not None and rules.by_client)
        # The default tenant may depend on the listener, too.
        key = (peer.listener, peer.user, rights.client) if by_client else (peer.user,)
        ruling = self._rulings.get(key)
        if ruling is None:
            ruling = self._rulings[key] = _Ruling(self, rights)
        return ruling

    def own_rules(self, user: str | None) -> _OwnRules:
        """Return a user's own rules; the same for all its clients."""
        own = self._own.get(user)
        if own is None:
            rules = () if self.acl is None else self.acl.rules.users.get(user, ())
            own = self._own[user] = _OwnRules(rules)
        return own

    def default_of(self, peer: Peer, client: str) -> _Default:
        """Return the default for a peer, where no rule matches."""
        notices = "" if self._own_notices is None else self._own_notices("")
        own = "" if self._own_notices is None else self._own_notices(client)
        tenants = self._tenants if self.default == "tenant" else None
        return _Default(self.default != "deny", tenants, peer, notices, own)

    def remember(self, ruling: _Ruling, key: bytes, route: Route) -> None:
        """Cache a route, by its topic as encoded in packets; see `Rights.routes`."""
        size = len(key) + ROUTE_BYTES
        if self._cached + size > CACHED_BYTES:
            for each in list(self._rulings.values()):
                self.forget_routes(each)
            self._cached = 0  # entries of rulings that are gone
        self._cached += size
        ruling.nbytes += size
        ruling.routes[key] = route

    def forget_routes(self, ruling: _Ruling) -> None:
        """Forget the cached routes of some peers."""
        self._cached -= ruling.nbytes
        ruling.nbytes = 0
        ruling.routes.clear()


class Rights:
    """The present permissions of one peer.

    Attributes:
        peer: The peer.
        client: Its client identifier.
    """

    __slots__ = ("__weakref__", "_authority", "_before", "_ruling", "client", "peer")

    def __init__(self, authority: Authority, peer: Peer, client: str) -> None:
        self._authority = authority
        self.peer = peer
        self.client = client
        self._ruling: _Ruling | None = None
        self._before: Rules | None = None

    def __repr__(self) -> str:
        return f"<Rights of {self.peer.name}>"

    @property
    def denied(self) -> Denied:
        """Where refusals are counted."""
        return self._authority.denied

    def forget(self) -> None:
        """Forget all decisions. For `Authority`."""
        if self._ruling is not None:
            self._before = self._ruling.rules
        self._ruling = None

    def _decided(self) -> _Ruling:
        ruling = self._ruling
        if ruling is None:
            ruling = self._ruling = self._authority.ruling(self)
        return ruling

    def may_write(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        return self._decided().may_write(topic)

    def may_read(self, topic: str) -> bool:
        """Whether it may read publications to a topic."""
        return self._decided().may_read(topic)

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether there can be a topic that matches the filter and that it may read.

        A subscription is not refused because of topics that it may not read: `may_read` says which
        topics it gets. `$share/GROUP/` is not part of a filter.
        """
        return self._decided().may_subscribe(topic_filter)

    def may_read_all(self, topic_filter: str) -> bool:
        """Whether it may read everything that matches the filter.

        For shared subscriptions: any member may get any message of the group.
        """
        return self._decided().may_read_all(topic_filter)

    def allows(self, topic_filter: str) -> Callable[[str], bool] | None:
        """Return the test for topics that a subscription gets; None: all that match its filter."""
        authority = self._authority
        if authority.restricts_writing or (
            authority.restricts_reading and topic_filter.startswith("$")
        ):
            return self.may_read
        return None

    def routes(self, version: int) -> dict[bytes, Route]:
        """Return the cached routes, if `version` is still the version of all routes.

        The keys are topics that it may publish to, as encoded in packets: two bytes of length,
        UTF-8. Ask again whenever routes may have changed.
        """
        ruling = self._decided()
        if ruling.version != version:
            self._authority.forget_routes(ruling)
            ruling.version = version
        return ruling.routes

    def remember(self, key: bytes, route: Route) -> None:
        """Add a route to `routes`; for a caller that has checked that it may publish there."""
        self._authority.remember(self._decided(), key, route)

    @property
    def reads_less(self) -> bool:
        """Whether it may read less than before the last change of the rules, as far as known."""
        if self._before is None:
            return False  # it has read nothing yet
        return any(
            _takes_away(before, now)
            for before, now in zip(self._before, self._decided().rules, strict=True)
        )


class _OwnRules:
    """The own rules of one user, prepared for matching."""

    __slots__ = ("__weakref__", "index", "rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self.index: FilterIndex[int] = FilterIndex()
        for rule in rules:
            # Integers: they are compared for each topic that is decided on.
            self.index.add(rule.filter, int(rule.access))


class _Default:
    """The decision where no rule matches."""

    __slots__ = ("_allows", "_notices", "_own", "_peer", "_tenants")

    def __init__(
        self, allows: bool, tenants: TenantRules | None, peer: Peer, notices: str, own: str
    ) -> None:
        self._allows = allows
        self._tenants = tenants
        self._peer = peer
        self._notices = notices
        self._own = own

    def allows(self, topic: str) -> bool:
        """Whether both accesses are allowed, except for the server's notices about others."""
        if not self._allows:
            return False
        return self._tenants is None or not self._tenants.is_others(self._peer, topic)

    def lets_read(self, topic: str) -> bool:
        """Whether a topic may be read."""
        if self._notices and topic.startswith(self._notices) and topic != self._own:
            return False
        return self.allows(topic)

    def lets_subscribe(self, topic_filter: str) -> bool:
        """Whether some topic that matches a filter may be read."""
        if not self._allows:
            return False
        if self._notices and topic_filter.startswith(self._notices):
            return overlap(topic_filter, self._own)
        return self._tenants is None or not self._tenants.is_all_others(self._peer, topic_filter)

    def lets_read_all(self, topic_filter: str) -> bool:
        """Whether all topics that match a filter may be read."""
        if not self._allows or (self._notices and overlap(f"{self._notices}#", topic_filter)):
            return False
        return self._tenants is None or not self._tenants.is_partly_others(self._peer, topic_filter)


class _Ruling:
    """The decisions for all peers with the same rules.

    Attributes:
        routes: See `Rights.routes`.
        version: The version of the routes.
        nbytes: Their size in the cache.
    """

    __slots__ = (
        "__weakref__", "_default", "_own", "_patterns", "_read", "_written", "nbytes", "routes",
        "version",
    )  # fmt: skip

    def __init__(self, authority: Authority, rights: Rights) -> None:
        peer = rights.peer
        user = None if peer.user == NO_USER else peer.user
        acl = authority.acl
        self._own = authority.own_rules(user)
        self._patterns: Sequence[Rule] | None = ()
        if acl is not None:
            self._patterns = acl.rules.patterns_of(user, rights.client)
        self._default = authority.default_of(peer, rights.client)
        self.routes: dict[bytes, Route] = {}
        self.version = -1
        self.nbytes = 0
        # The last answers: many subscribers have the same rules, and are asked about one route.
        self._read: tuple[str, bool] = "", False
        self._written: tuple[str, bool] = "", False

    @property
    def rules(self) -> Rules:
        """The rules behind the decisions."""
        return self._own.rules, self._patterns

    def may_write(self, topic: str) -> bool:
        last, allowed = self._written
        if topic != last:
            said = self._by_rules(topic, _WRITE)
            allowed = self._default.allows(topic) if said is None else said
            self._written = topic, allowed
        return allowed

    def may_read(self, topic: str) -> bool:
        last, allowed = self._read
        if topic != last:
            said = self._by_rules(topic, _READ)
            allowed = self._default.lets_read(topic) if said is None else said
            self._read = topic, allowed
        return allowed

    def _by_rules(self, topic: str, access: int) -> bool | None:
        said = _decide(self._own.index.matching(topic), access)
        if said is not None:
            return said
        patterns = self._patterns
        if patterns is None:
            return False  # for a name that is dangerous in patterns, nothing else is allowed
        # No index: each client would have one of its own, and there are few patterns.
        return _decide((p.access for p in patterns if topic_matches(p.filter, topic)), access)

    def may_subscribe(self, topic_filter: str) -> bool:
        if not any(sign in topic_filter for sign in "+#"):
            return self.may_read(topic_filter)
        for rules in self.rules:
            if rules is None:
                return False
            about = [rule for rule in rules if overlap(rule.filter, topic_filter)]
            if any(not each.access and covers(each.filter, topic_filter) for each in about):
                return False
            if any(each.access & _READ for each in about):
                return True
        return self._default.lets_subscribe(topic_filter)

    def may_read_all(self, topic_filter: str) -> bool:
        for rules in self.rules:
            if rules is None:
                return False
            about = [rule for rule in rules if overlap(rule.filter, topic_filter)]
            if not all(rule.access for rule in about):
                return False
            if any(rule.access & _READ and covers(rule.filter, topic_filter) for rule in about):
                return True
        return self._default.lets_read_all(topic_filter)


def _takes_away(before: Sequence[Rule] | None, now: Sequence[Rule] | None) -> bool:
    """Whether rules let somebody read less than earlier ones did, as far as known."""
    if before is None or now is None:
        return now is None and bool(before)
    lost, new = set(before) - set(now), set(now) - set(before)
    return any(rule.access & _READ for rule in lost) or any(not rule.access for rule in new)


def _decide(found: Iterable[int], access: int) -> bool | None:
    """Return the decision of the rules that match a topic; None: they say nothing. Denials win."""
    allowed: bool | None = None
    for each in found:
        if not each:
            return False
        if each & access:
            allowed = True
    return allowed
