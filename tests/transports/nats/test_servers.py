"""The addresses of a cluster's servers: which is next, and after which pause."""

from __future__ import annotations

import pytest

from clearfunds.transports import LocalProtocolError
from clearfunds.transports.nats.client._login import Login
from clearfunds.transports.nats.client._servers import (
    LONGEST_PAUSE,
    ServerAddress,
    ServerPool,
)
from clearfunds.transports.nats.codec._subjects import check_subject


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("nats://a", ServerAddress("a", 4222)),
        ("a:5", ServerAddress("a", 5)),
        ("tls://a:5/", ServerAddress("a", 5, tls=True)),
        ("nats://[::1]:5", ServerAddress("::1", 5)),
        ("nats://ann:p%40ss@a", ServerAddress("a", 4222, login=Login(user="ann", password="p@ss"))),
        ("nats://secret@a", ServerAddress("a", 4222, login=Login(token="secret"))),
    ],
)
def test_an_address_is_read(url: str, address: ServerAddress) -> None:
    assert ServerAddress.parse(url) == address


@pytest.mark.parametrize(
    "url", ["http://a", "nats://", "nats://a:port", "nats://a/b", "nats://a:0x1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(LocalProtocolError, match="is no address of a NATS server"):
        ServerAddress.parse(url)


def test_a_password_is_not_shown() -> None:
    address = ServerAddress.parse("nats://ann:secret@a")
    assert "secret" not in f"{address} {address!r}"


def test_one_that_failed_is_tried_after_the_others_and_ever_later() -> None:
    pool = ServerPool("a,b", shuffle=False)
    assert [pool.next()[0].host for _ in range(2)] == ["a", "b"]
    a, b = ServerAddress("a", 4222), ServerAddress("b", 4222)
    pool.failed(a, 10.0)
    assert pool.next() == (b, 0.0)
    pauses: list[float] = []
    for _ in range(20):
        pool.failed(a, 10.0)
        pool.failed(b, 1_000.0)
        address, not_before = pool.next()
        assert address == a
        pauses.append(not_before - 10.0)
    assert all(pause <= LONGEST_PAUSE for pause in pauses)
    assert pauses[-1] >= LONGEST_PAUSE / 2 > pauses[0]
    pool.worked(a)
    assert pool.next() == (a, 0.0)


def test_servers_that_another_names_come_and_go_but_not_those_that_were_given() -> None:
    pool = ServerPool("nats://ann:x@a,b", shuffle=False)
    a = next(iter(pool))
    pool.learn(["a:4222", "c:1", "d:2", "ws://e"], a)
    assert [each.host for each in pool] == ["a", "b", "c", "d"]
    assert [each.login for each in pool] == [a.login, None, a.login, a.login]
    assert [each.tls_name for each in pool] == [None, None, "a", "a"]
    pool.learn([], a)
    assert len(pool) == 4
    pool.learn(["d:2"], a)
    assert [each.host for each in pool] == ["a", "b", "d"]


def test_no_server_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at least one"):
        ServerPool(" , ")


@pytest.mark.parametrize("subject", ["a", "a.b", "$JS.API", "a.b-c_d"])
def test_a_subject(subject: str) -> None:
    assert check_subject(subject) == subject


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("", "it is empty"),
        ("a b", "a blank"),
        ("a\r\nPUB b 0", "a blank or a control"),
        ("a..b", "a token between dots is empty"),
        (".a", "empty"),
        ("a.*", "wildcards are for subscriptions"),
        ("a.>", "wildcards are for subscriptions"),
    ],
)
def test_what_is_no_subject_is_refused(subject: str, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        check_subject(subject)


def test_wildcards_are_for_subscriptions() -> None:
    for subject in ("*", ">", "a.*.b", "a.>"):
        assert check_subject(subject, wildcards=True) == subject
    with pytest.raises(LocalProtocolError, match="has to be the last token"):
        check_subject("a.>.b", wildcards=True)
