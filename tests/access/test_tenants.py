"""Tenants: which entry says whose a connection is, and each of its publications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.access import Tenant
from clearfunds.access._patterns import Patterns
from clearfunds.access._shares import fits
from clearfunds.access._tenants import (
    CACHED_TOPICS,
    Peer,
    TenantRules,
    identity,
    peer_of,
    peer_of_older,
    printable,
)
from clearfunds.dataspace import LONG_TOPIC, TopicFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

PRESS = Peer("mqtt:1883", "press", "newsroom")


def tenant_of(entries: Sequence[Tenant], peer: Peer = PRESS, topic: str | None = None) -> str:
    membership = TenantRules(entries).of(peer)
    tenant = membership.tenant if topic is None else membership.of_topic(topic)
    return "" if tenant is None else tenant.name


def a(**conditions: object) -> Tenant:
    fields: dict[str, Any] = {
        key: value if isinstance(value, tuple | bool) else (value,)
        for key, value in conditions.items()
    }
    return Tenant(name="a", **fields)


B = Tenant(name="b", default=True)


@pytest.mark.parametrize(
    ("entry", "matches"),
    [
        (a(user="press"), True),
        (a(user="pres?"), True),
        (a(user="pr*"), True),
        (a(user=("x", "press")), True),
        (a(user=("x", "y*")), False),
        (a(user="Press"), False),
        (a(user="res"), False),
        (a(client="news*"), True),
        (a(client="mqtt:1883/press/newsroom"), False),
        (a(listener="mqtt:1883"), True),
        (a(listener="mqtt:*"), True),
        (a(listener="syndicate:*"), False),
        (a(user="press", client="newsroom", listener="mqtt:*"), True),
        (a(user="press", client="x", listener="mqtt:*"), False),
        (a(topic="#"), False),
        (a(default=True, user="x"), False),
    ],
)
def test_all_that_an_entry_asks_for_has_to_be_so(entry: Tenant, matches: bool) -> None:
    b = () if entry.default else (B,)
    wanted = "a" if matches or entry.default else "b"
    assert tenant_of([entry, *b]) == wanted
    assert tenant_of([Tenant(name="c", user=("press",)), entry]) == "c"


def test_without_a_match_or_a_default_it_is_nobodys() -> None:
    assert tenant_of([a(user="x")]) == ""
    assert tenant_of([]) == ""


def test_no_user_is_a_user_called_so() -> None:
    assert tenant_of([a(user="-")], Peer("mqtt:1883", "-", "x")) == "a"


ORDERED = (
    Tenant(name="ops", client=("audit-*",)),
    Tenant(name="weather", topic=("weather/#", "+/sky")),
    Tenant(name="press", user=("press",)),
    Tenant(name="shop", topic=("press/shop",), user=("press", "guest")),
    Tenant(name="rest", default=True),
)


@pytest.mark.parametrize(
    ("user", "client", "topic", "tenant"),
    [
        ("press", "a", None, "press"),
        ("press", "a", "press/x", "press"),
        ("press", "a", "weather/x", "weather"),
        ("press", "a", "weather", "weather"),
        ("press", "a", "my/sky", "weather"),
        # Below the entry that matches all of what they do.
        ("press", "a", "press/shop", "press"),
        ("press", "audit-7", "weather/x", "ops"),
        ("guest", "a", "press/shop", "shop"),
        ("guest", "a", "press/shop/x", "rest"),
        ("guest", "a", None, "rest"),
        ("other", "a", "press/shop", "rest"),
        # [MQTT-4.7.2-1]
        ("guest", "a", "$x/sky", "rest"),
    ],
)
def test_the_first_that_matches(user: str, client: str, topic: str | None, tenant: str) -> None:
    assert tenant_of(ORDERED, Peer("mqtt:1", user, client), topic) == tenant


def test_an_entry_may_be_of_a_tenant_that_another_is_of() -> None:
    entries = [Tenant(name="a", user=("x",), weight=2.0), Tenant(name="a", topic=("t/#",), items=9)]
    rules = TenantRules(entries)
    assert rules.tenants.keys() == {"a"}
    (joined,) = rules.tenants.values()
    assert (joined.weight, joined.items, joined.bytes) == (2.0, 9, None)
    assert tenant_of(entries, Peer("m", "x", "c")) == "a"
    assert tenant_of(entries, Peer("m", "y", "c"), "t/1") == "a"
    assert tenant_of(entries, Peer("m", "y", "c"), "u") == ""


def test_peers_that_the_same_entries_match_share_what_is_known_of_topics() -> None:
    rules = TenantRules(ORDERED)
    one = rules.of(Peer("m", "guest", "a"))
    assert rules.of(Peer("n", "guest", "b")) is one
    assert rules.of(Peer("n", "other", "b")) is not one
    assert not rules.of(Peer("n", "x", "audit-1")).by_topic
    assert one.by_topic


def test_what_is_known_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearfunds.access._tenants.CACHED_TOPICS", 10)
    membership = TenantRules(ORDERED).of(Peer("m", "guest", "a"))
    for number in range(50):
        membership.of_topic(f"weather/{number}")
        membership.of_topic(f"x/{number}")
    assert len(membership._cached) == 10  # pyright: ignore[reportPrivateUsage]
    assert CACHED_TOPICS > 10


def test_the_tenant_of_a_long_topic_is_looked_up_each_time() -> None:
    """What is remembered is counted by number, and is to be bounded in bytes."""
    by_topic = Tenant(name="weather", topic=("weather/#",))
    membership = TenantRules([by_topic]).of(Peer("mqtt:1", "-", "c"))
    cached = membership._cached  # pyright: ignore[reportPrivateUsage]
    for topic in ("weather/x", "weather/" + "x" * LONG_TOPIC):
        for _ in range(2):
            tenant = membership.of_topic(topic)
            assert tenant is not None
            assert tenant.name == "weather"
    assert list(cached) == ["weather/x"]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (({"name": ""},), "'' cannot be a tenant's name"),
        (({"name": "a/b", "user": ("x",)},), "without /"),
        (({"name": "a\n", "user": ("x",)},), "printable"),
        (({"name": "a"},), "no client belongs to tenant a"),
        (({"name": "a", "user": ("x", "")},), "a pattern of user is empty"),
        (({"name": "a", "topic": ("x#",)},), "# must be alone"),
        (({"name": "a", "user": ("x",), "weight": 0.0},), "weight must be above 0"),
        (({"name": "a", "user": ("x",), "weight": float("inf")},), "weight must be above 0"),
        (({"name": "a", "user": ("x",), "items": 0},), "items must be above 0"),
        (({"name": "a", "user": ("x",), "users": False, "user_rate": 1.0},), "users is false"),
        (
            ({"name": "a", "user": ("x",), "items": 1}, {"name": "a", "user": ("y",), "items": 2}),
            "tenant a: items is 1 in one entry and 2 in another",
        ),
        (
            ({"name": "a", "default": True}, {"name": "b", "default": True}),
            "tenants a and b cannot both be the default",
        ),
    ],
)
def test_what_makes_no_sense_is_said_so(entries: Sequence[dict[str, Any]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TenantRules([Tenant(**entry) for entry in entries])


def test_users_have_accounts_if_anything_is_said_of_them() -> None:
    assert not a(user="x").has_users
    assert Tenant(name="a", user=("x",), users=True).has_users
    assert Tenant(name="a", user=("x",), user_rate_bytes=1.0).has_users


@pytest.mark.parametrize(
    "peer",
    [
        Peer("mqtt:1883", "-", "c"),
        Peer("mqtt:1883", "a/b", "c/d/e"),
        Peer("mqtt:/run/relay.sock", "u", "c/d"),
        Peer("syndicate:9", "-", "127.0.0.1:77"),
        Peer("mqtt:1", "u", ""),
    ],
)
def test_a_name_is_taken_apart_again(peer: Peer) -> None:
    assert peer_of(peer.name, peer.client) == peer


# -- beside what the words say --------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "c", "ab"])
GLOBS = st.sampled_from(["a", "b", "?", "*", "a*", "[ab]"])
TOPICS = st.sampled_from(["t", "t/a", "t/b", "u"])
FILTERS = st.sampled_from(["t", "t/#", "+/a", "#", "u"])


@st.composite
def entries_of(draw: st.DrawFn) -> Tenant:
    name = draw(WORDS)
    conditions: dict[str, Any] = {
        field: draw(st.lists(GLOBS, max_size=2).map(tuple))
        for field in ("user", "client", "listener")
    }
    conditions["topic"] = draw(st.lists(FILTERS, max_size=2).map(tuple))
    if not any(conditions.values()):
        conditions["user"] = ("*",)
    return Tenant(name=name, default=name == "c" and draw(st.booleans()), **conditions)


@settings(max_examples=150, deadline=None)
@given(st.lists(entries_of(), max_size=6), WORDS, WORDS, WORDS, TOPICS)
def test_it_is_the_first_in_order(
    entries: list[Tenant], user: str, client: str, listener: str, topic: str
) -> None:
    peer = Peer(listener, user, client)

    def matches(entry: Tenant, topic: str | None) -> bool:
        if not entry.is_conditional:
            return False
        for patterns, text in ((entry.user, user), (entry.client, client)):
            if patterns and not any(Patterns([each]).matches(text) for each in patterns):
                return False
        if entry.listener and not Patterns(entry.listener).matches(listener):
            return False
        if not entry.topic:
            return True
        return topic is not None and any(TopicFilter(f).matches(topic) for f in entry.topic)

    default = next((entry.name for entry in entries if entry.default), "")
    for each in (None, topic):
        wanted = next((entry.name for entry in entries if matches(entry, each)), default)
        assert tenant_of(entries, peer, each) == wanted


names = st.text(st.sampled_from("a@/%\\\n"), max_size=5)


@given(names, names, names, names)
def test_no_two_peers_have_one_name_or_one_identity(
    user: str, client: str, other_user: str, other_client: str
) -> None:
    one, other = Peer("l", user, client), Peer("l", other_user, other_client)
    assert (one.name == other.name) == (one == other)
    assert peer_of(one.name, client) == one
    known = identity(client, user)
    assert (known == identity(other_client, other_user)) == (one == other)
    # Who is not verified has no way to be known by another's.
    assert known != identity(other_client, None)
    assert (identity(client, None) == identity(other_client, None)) == (client == other_client)
    assert (printable(client) == printable(other_client)) == (client == other_client)


@pytest.mark.parametrize("listener", ["mqtt:1883", "mqtt:/run/relay.sock"])
def test_a_listener_may_have_a_path(listener: str) -> None:
    peer = Peer(listener, "team/bob", "a/b")
    assert peer_of(peer.name, "a/b") == peer
    older = f"{listener}/bob/a/b"
    assert peer_of_older(older, "a/b") == Peer(listener, "bob", "a/b")


@given(st.integers(1, 40))
def test_no_user_takes_all_that_there_is(most: int) -> None:
    mine = 0
    while fits(mine, mine, most):
        mine += 1
    assert mine < most or most < 9
    # Somebody else still gets one, where there is more than one at all.
    assert fits(0, mine, most) or most < 9
    assert mine >= most * 8 // 9
