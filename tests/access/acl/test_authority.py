"""What peers may: by rules, by tenants, by default."""

from __future__ import annotations

import pytest

from clearfunds.access import Tenant
from clearfunds.access._tenants import NO_USER, Peer, TenantRules
from clearfunds.access.acl import Acl, Authority, Rights, parse_acl
from clearfunds.access.acl._authority import ROUTE_BYTES
from clearfunds.dataspace._routes import Routes
from clearfunds.relay._throttle_notices import topic_of

A = Routes().of("a")


def rights(authority: Authority, user: str = NO_USER, client: str = "c") -> Rights:
    return authority.of(Peer("mqtt:1883", user, client))


TENANTS = TenantRules(
    [
        Tenant(name="press", user=("anna",), topic=()),
        Tenant(name="press", topic=("news/#",)),
        Tenant(name="weather", topic=("weather/#",), client=("station-*",)),
    ]
)


def test_what_no_rule_allows_is_denied() -> None:
    authority = Authority(Acl.from_text("user anna\ntopic read a\n"))
    anna = rights(authority, "anna")
    assert anna.may_read("a")
    assert not anna.may_write("a")
    assert not rights(authority, "bert").may_read("a")
    assert not rights(Authority(Acl.from_text(""))).may_read("a")


def test_the_default_holds_where_no_rule_matches() -> None:
    acl = "user anna\ntopic read a\ntopic deny b\npattern deny %u/x\n"
    anna = rights(Authority(Acl.from_text(acl), "allow"), "anna")
    assert anna.may_write("a")
    assert anna.may_write("c")
    assert not anna.may_write("b")
    assert not anna.may_read("anna/x")


def test_without_a_list_tenants_have_their_own_topics() -> None:
    authority = Authority(None, None, TENANTS)
    anna, bert = rights(authority, "anna"), rights(authority, "bert")
    station = rights(authority, "bert", "station-1")
    assert anna.may_write("news/x")
    assert not bert.may_write("news/x")
    assert not bert.may_read("news/x")
    assert station.may_write("weather/x")
    assert not anna.may_write("weather/x")
    assert all(each.may_write("lobby") for each in (anna, bert, station))
    assert bert.may_subscribe("#")
    assert not bert.may_subscribe("news/+")
    assert anna.may_subscribe("news/+")


def test_without_tenants_and_list_everything_is_allowed() -> None:
    authority = Authority()
    assert not authority.restricts_reading
    assert rights(authority).may_write("a")
    assert rights(authority).allows("#") is None


def test_a_client_hears_of_its_own_throttling_alone() -> None:
    authority = Authority(own_notices=topic_of)
    anna = rights(authority, "anna", "c+1")
    assert anna.may_read(topic_of("c+1"))
    assert not anna.may_read(topic_of("c"))
    assert anna.may_subscribe("$SYS/clearfunds/throttled/#")
    assert not anna.may_subscribe(topic_of("c"))
    assert anna.allows("$SYS/#") is not None
    assert anna.allows("#") is None
    # A list may say otherwise.
    acl = Acl.from_text("user operator\ntopic read $SYS/#\n")
    authority = Authority(acl, "allow", own_notices=topic_of)
    assert rights(authority, "operator").may_read(topic_of("c+1"))
    assert not rights(authority, "anna").may_read(topic_of("c+1"))


@pytest.mark.parametrize(
    ("topic_filter", "allowed"),
    [
        ("a/b", True),
        ("a/c", False),
        ("a/c/#", False),
        ("#", True),
        ("+/b", True),
        ("w/#", False),
        ("w", False),
        ("x/#", False),
        ("$x/#", False),
        ("p/anna/#", True),
        ("p/bert/#", False),
    ],
)
def test_a_filter_is_refused_if_nothing_of_it_may_be_read(topic_filter: str, allowed: bool) -> None:
    acl = (
        "user anna\ntopic read a/#\ntopic deny a/c/#\ntopic write w/#\npattern read p/%u/#\n"
        "user bert\ntopic read x/#\n"
    )
    anna = rights(Authority(Acl.from_text(acl)), "anna")
    assert anna.may_subscribe(topic_filter) is allowed


def test_rights_follow_the_rules() -> None:
    acl = Acl.from_text("user anna\ntopic a\n")
    authority = Authority(acl)
    anna = rights(authority, "anna")
    assert anna.may_write("a")
    anna.remember(b"\0\1a", A)
    assert anna.routes(7) == {}
    anna.remember(b"\0\1a", A)
    assert anna.routes(7) == {b"\0\1a": A}
    assert anna.routes(8) == {}
    anna.remember(b"\0\1a", A)
    acl.replace(parse_acl("user anna\ntopic a\nuser bert\ntopic b\n"))
    assert not anna.reads_less
    assert anna.routes(8) == {}
    acl.replace(parse_acl("user anna\ntopic b\n"))
    assert anna.reads_less
    assert (anna.may_write("a"), anna.may_write("b")) == (False, True)
    authority.close()
    assert not acl.on_change


def test_users_share_what_is_known_unless_patterns_tell_clients_apart() -> None:
    acl = Acl.from_text("user anna\ntopic a\n")
    authority = Authority(acl)
    one, other = rights(authority, "anna", "1"), rights(authority, "anna", "2")
    assert one.may_write("a")
    assert other.may_write("a")
    assert one.routes(1) == {}
    one.remember(b"\0\1a", A)
    assert other.routes(1) == {b"\0\1a": A}
    acl.replace(parse_acl("pattern write %c\n"))
    assert (one.may_write("1"), other.may_write("1")) == (True, False)


def test_what_is_known_of_all_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{Authority.__module__}.CACHED_BYTES", 10 * (ROUTE_BYTES + 4))
    authority = Authority(Acl.from_text("topic #\nuser anna\ntopic #\n"))
    one, other = rights(authority), rights(authority, "anna")
    assert one.routes(1) == other.routes(1) == {}
    for number in range(100):
        for each in (one, other):
            assert each.may_write("t")
            each.remember(b"%04d" % number, A)
            assert 0 < len(one.routes(1)) + len(other.routes(1)) <= 10
    assert one.routes(2) == other.routes(2) == {}
    for number in range(10):
        one.remember(b"%04d" % number, A)
    assert len(one.routes(2)) == 10
