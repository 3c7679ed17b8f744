"""How many connections there may be, and how fast: by address, user and tenant."""

from __future__ import annotations

import logging
import socket

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access._addresses import address_of
from clearfunds.access._admission import Admission, Refusal
from clearfunds.access._connect_rate import ConnectRate
from clearfunds.access._shares import GREED
from clearfunds.access._strangers import ADDRESSES, ALL, FIRST, WINDOW_SECONDS, StrangersLog
from clearfunds.transports._listener import Listener, ListenURL, open_listeners
from tests.transports.peers import connected, running


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:55", "10.0.0.1"),
        ("::1:55", "::/64"),
        ("2001:db8:1:2:3:4:5:6:55", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9:55", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:55", "fe80::/64"),
        ("::ffff:10.0.0.1:55", "10.0.0.1"),
        ("/run/relay.sock#7", None),
        ("odd", ""),
    ],
)
def test_what_stands_for_a_subscriber_of_the_network(peer: str, address: str | None) -> None:
    assert address_of(peer) == address


# -- shares ---------------------------------------------------------------------------------------


def fill(admission: Admission, peer: str) -> int:
    """Connect until there is no more room for a peer; return how often it has."""
    count = 0
    while admission.come(f"{peer}:{count}") is None:
        count += 1
    return count


def test_one_address_cannot_have_all() -> None:
    admission = Admission(300)
    assert fill(admission, "10.0.0.6") == 267
    assert admission.refused == {Refusal.ADDRESS: 1}
    assert admission.come("10.0.0.1:1") is None
    assert fill(admission, "2001:db8::6") > 0
    assert admission.come("/run/relay.sock#7") is None


def test_where_there_are_few_each_may_have_all() -> None:
    admission = Admission(GREED)
    assert fill(admission, "10.0.0.6") == GREED
    assert admission.refused == {Refusal.ALL: 1}


def test_a_number_takes_the_place_of_the_share() -> None:
    admission = Admission(300, per_address=5)
    assert fill(admission, "10.0.0.6") == 5
    assert fill(admission, "10.0.0.7") == 5


def test_who_leaves_makes_room() -> None:
    admission = Admission(300, per_address=1)
    one = "10.0.0.6:1"
    assert admission.come(one) is None
    why = admission.come("10.0.0.6:2")
    assert why is not None
    assert why == "10.0.0.6 has 1 connections, which is its limit (connections_per_address)"
    admission.leave(one)
    assert len(admission) == len(admission.addresses) == 0
    assert admission.come("10.0.0.6:2") is None


def test_users_and_tenants_have_limits_too() -> None:
    admission = Admission(300, per_user=2)
    for n in range(10):
        assert admission.come(f"10.0.0.{n}:1") is None
    assert [admission.let_in("alice", None, None) is None for _ in range(3)] == [True, True, False]
    assert [admission.let_in(None, "press", 2) is None for _ in range(3)] == [True, True, False]
    assert admission.let_in("bob", "press", 2) is not None
    assert admission.users.of("bob") == 0  # not counted as his either
    assert admission.refused == {Refusal.USER: 1, Refusal.TENANT: 2}
    admission.let_go("alice", None)
    admission.let_go(None, "press")
    assert admission.let_in("alice", "press", 2) is None
    for _ in range(2):
        admission.let_go("alice", "press")
    assert len(admission.users) == len(admission.tenants) == 0


@given(st.integers(1, 60), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=300))
def test_the_counts_are_those_of_the_connections(limit: int, steps: list[tuple[int, bool]]) -> None:
    admission = Admission(limit)
    here: dict[int, list[str]] = {n: [] for n in range(5)}
    for who, comes in steps:
        if comes:
            one = f"10.0.0.{who}:1"
            first = not here[who] and len(admission) < limit
            if admission.come(one) is None:
                here[who].append(one)
            else:
                assert not first
        elif here[who]:
            admission.leave(here[who].pop())
        assert len(admission) == sum(map(len, here.values())) <= limit
        assert all(admission.addresses.of(f"10.0.0.{n}") == len(here[n]) for n in here)


# -- how fast -------------------------------------------------------------------------------------


def test_a_seconds_worth_comes_at_once_and_the_others_at_the_rate() -> None:
    rate = ConnectRate(100, 2.0)
    waits = [rate.wait("a", 7.0) for _ in range(302)]
    assert waits[:100] == [0.0] * 100
    assert waits[100] == pytest.approx(0.01)
    assert waits[299] == pytest.approx(2.0)
    assert waits[300:] == [None, None]
    assert rate.wait("b", 7.0) == 0.0
    assert rate.wait(None, 7.0) == 0.0
    assert rate.wait("a", 8.0) == pytest.approx(1.01)
    assert rate.wait("a", 100.0) == 0.0


def test_without_a_rate_nobody_waits() -> None:
    rate = ConnectRate(None, 2.0)
    assert not any(rate.wait("a", 0.0) for _ in range(100_000))


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    rate = ConnectRate(1, 2.0, remembered=10)
    for n in range(1_000):
        assert rate.wait(str(n), 0.0) == 0.0
    assert len(rate) == 10


@given(st.integers(1, 50), st.lists(st.floats(0, 3), max_size=100))
def test_they_begin_at_the_rate_and_in_order(persecond: int, gaps: list[float]) -> None:
    rate = ConnectRate(persecond, 5.0)
    now = 0.0
    begun: list[float] = []
    for gap in gaps:
        now += gap
        wait = rate.wait("a", now)
        if wait is not None:
            assert 0 <= wait <= 5.0
            begun.append(now + wait)
    assert begun == sorted(begun)
    for n in range(len(begun) - 2 * persecond):
        # A burst, and a second's worth at the rate.
        assert begun[n + 2 * persecond] - begun[n] >= 1 - 1e-6


# -- what is logged -------------------------------------------------------------------------------

LOGGER = logging.getLogger("clearfunds.transports.test")


def say(log: StrangersLog, peer: str, now: float, event: str = "closed") -> None:
    log.log(LOGGER, logging.WARNING, peer, f"{peer} {event}: why", {"event": event}, now)


def test_the_first_lines_are_said_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = StrangersLog()
    for n in range(1_000):
        say(log, f"10.0.0.6:{n}", 5.0)
    say(log, "10.0.0.6:1", 5.0, "left")
    say(log, "10.0.0.1:1", 5.0)
    assert len(caplog.records) == FIRST + 2
    assert log.unsaid == 1_000 - FIRST
    caplog.clear()
    log.each_tick(5.0 + WINDOW_SECONDS - 1)
    assert not caplog.records
    log.each_tick(5.0 + WINDOW_SECONDS)
    (line,) = caplog.messages
    assert line == "10.0.0.6: 995 more like this one in 60 s: 10.0.0.6:999 closed: why"
    (record,) = caplog.records
    assert vars(record)["lines"] == 995
    caplog.clear()
    say(log, "10.0.0.6:1", 70.0)
    assert len(caplog.records) == 1


def test_many_addresses_share_what_may_be_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = StrangersLog()
    for n in range(10_000):
        say(log, f"10.{n // 256}.{n % 256}.1:1", 0.0)
        say(log, f"10.{n // 256}.{n % 256}.1:1", 0.0)
    assert FIRST + ADDRESSES <= len(caplog.records) <= ALL
    said = len(caplog.records)
    log.sum_up(60.0)
    assert len(caplog.records) - said <= ADDRESSES + 1
    assert log.unsaid == 20_000 - said
    assert "other addresses: " in caplog.text


# -- keep-alive -----------------------------------------------------------------------------------


KEPT_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


async def test_keep_alive_reaches_accepted_sockets() -> None:
    url = ListenURL.parse("mqtt+tcp://127.0.0.1:0", ("mqtt",))
    (listener,) = await open_listeners(url)
    listener.keep_alive(60.0)
    with listener, socket.create_connection(listener.sock.getsockname()):
        while True:
            try:
                sock, _ = listener.sock.accept()
                break
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener.sock)
        with sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            for option, value in KEPT_ALIVE:
                assert sock.getsockopt(socket.IPPROTO_TCP, option) == value


@pytest.mark.parametrize("seconds", [None, 0.1, 60.0])
async def test_a_relay_keeps_tcp_alive(seconds: float | None) -> None:
    asked: list[float] = []

    def keep_alive(self: Listener, seconds: float) -> None:
        asked.append(seconds)
        real(self, seconds)

    real = Listener.keep_alive
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Listener, "keep_alive", keep_alive)
        async with running(tcp_keep_alive=seconds) as relay, connected(relay.port, "a"):
            pass
    assert asked == ([] if seconds is None else [seconds])
