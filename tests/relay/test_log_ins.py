"""Wrong passwords that are answered late, and who gets in first."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.access import Passwords, Tenant
from clearfunds.access._admission import Refusal
from clearfunds.access._guesses import DELAYS, FREE_OF_ADDRESS
from clearfunds.access._strangers import FIRST
from clearfunds.transports.mqtt import ConnAck, Connect, Will
from clearfunds.transports.mqtt.server._log_ins import CONCURRENT_CHECKS
from tests.relay.test_passwords import (
    BAD,
    QUICK,
    SLOW,
    attempt,
    both_ways,
    slow,
)
from tests.transports.peers import connected, dial, log_of, running, until

FULL = ConnAck(False, 3)


def wrong(client: str = "w", user: str = "bert") -> Connect:
    return Connect(client, username=user, password=b"guess")


@both_ways
async def test_a_wrong_password_is_answered_late_a_right_one_at_once(
    passwords: Passwords,
) -> None:
    async with running(passwords=passwords, wrong_password_delay=0.5) as relay:
        for _ in range(FREE_OF_ADDRESS):
            async with dial(relay.port) as client:
                assert await attempt(client, wrong()) == BAD
        async with dial(relay.port) as late:
            late.connection.send(wrong())
            began = trio.current_time()
            await late.send(wrong())
            await until(lambda: relay.relay.mqtt.log_ins.delayed == 1)
            async with connected(relay.port, "a", username="bert", password=b"secret"):
                assert await late.silent()
            await late.expect(BAD)
            assert trio.current_time() - began >= 0.5
            await late.expect(None)
        await relay.deserted()
        refused = relay.relay.admission.refused
        assert refused == {Refusal.PASSWORD: FREE_OF_ADDRESS + 1}
        assert len(relay.relay.admission.addresses) == 0


@both_ways
async def test_who_leaves_before_the_answer_leaves_only_a_count(passwords: Passwords) -> None:
    async with running(passwords=passwords) as relay:
        for _ in range(FREE_OF_ADDRESS):
            async with dial(relay.port) as client:
                assert await attempt(client, wrong()) == BAD
        async with dial(relay.port) as client:
            connect = Connect("w", username="bert", password=b"x", will=Will("w", b"1"))
            await client.stream.send_all(client.connection.send(connect))
            await until(lambda: relay.relay.mqtt.log_ins.delayed == 1)
        began = trio.current_time()
        await relay.deserted()
        assert trio.current_time() - began < DELAYS[0]
        assert relay.relay.admission.refused == {Refusal.PASSWORD: FREE_OF_ADDRESS + 1}


async def test_silence_until_an_answer_is_not_the_clients() -> None:
    """The answer comes after `connect_timeout`, which is not held against the client."""
    async with running(passwords=QUICK, connect_timeout=0.5, wrong_password_delay=1.5) as relay:
        for _ in range(FREE_OF_ADDRESS + 1):
            async with dial(relay.port) as client:
                assert await attempt(client, wrong()) == BAD
        assert relay.relay.mqtt.counters.timeouts == 0


async def test_what_is_logged_about_guesses_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running(passwords=QUICK, wrong_password_delay=0) as relay:
        for _ in range(50):
            async with dial(relay.port) as client:
                assert await attempt(client, wrong()) == BAD
        assert len(log_of(caplog, "is wrong (user bert)")) <= 2 * FIRST
        assert relay.relay.admission.strangers.unsaid >= 50 - FIRST
    assert log_of(caplog, "more like this one in")


async def test_checks_are_fair_by_address(tmp_path: Path) -> None:
    """A crowd from one address waits; who comes from elsewhere is next."""
    path = str(tmp_path / "mqtt")
    listen = ("mqtt+tcp://127.0.0.1:0", f"mqtt+unix://{path}")
    with slow() as passwords:
        async with running(passwords=passwords, listen=listen) as relay, AsyncExitStack() as stack:
            turns = relay.relay.mqtt.log_ins.turns
            for n in range(CONCURRENT_CHECKS + 20):
                one = await stack.enter_async_context(dial(relay.port))
                connect = Connect(f"c{n}", username=f"crowd{n}", password=b"secret")
                await one.stream.send_all(one.connection.send(connect))
            await until(lambda: turns.waiting == 20)
            other = await stack.enter_async_context(dial(path))
            connect = Connect("o", username="anna", password=b"secret")
            await other.stream.send_all(other.connection.send(connect))
            await until(lambda: turns.waiting == 21)
            passwords.go_on.set()
            await other.expect(ConnAck(False, 0))
            # One of the crowd may have had its turn before, for each thread.
            assert passwords.asked.index("anna") <= 2 * CONCURRENT_CHECKS + 1
            await until(lambda: len(passwords.asked) == CONCURRENT_CHECKS + 21)


async def test_too_many_that_wait_are_told_so() -> None:
    with slow() as passwords:
        async with running(passwords=passwords) as relay, AsyncExitStack() as stack:
            turns = relay.relay.mqtt.log_ins.turns
            turns.queue = 1
            for n in range(CONCURRENT_CHECKS + 1):
                one = await stack.enter_async_context(dial(relay.port))
                connect = Connect(f"c{n}", username=f"u{n}", password=b"secret")
                await one.stream.send_all(one.connection.send(connect))
            await until(lambda: turns.waiting == 1)
            last = await stack.enter_async_context(dial(relay.port))
            assert await attempt(last, Connect("l", username="anna", password=b"secret")) == FULL
            assert relay.relay.admission.refused == {Refusal.CHECKS: 1}


async def test_a_users_and_a_tenants_connections(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {
        "passwords": SLOW,
        "connections_per_user": 2,
        "tenant": (Tenant(name="press", client=("p*",), connections=1),),
    }
    async with running(**settings) as relay, AsyncExitStack() as stack:
        anna: dict[str, Any] = {"username": "anna", "password": b"secret"}
        one = await stack.enter_async_context(connected(relay.port, "p1", **anna))
        async with dial(relay.port) as client:
            connect = Connect("p2", username="bert", password=b"secret")
            assert await attempt(client, connect) == FULL
            await client.expect(None)
        async with connected(relay.port, "x", **anna):
            async with dial(relay.port) as client:
                assert await attempt(client, Connect("y", True, 0, "anna", b"secret")) == FULL
            # Who takes over its own connection takes its place, too.
            async with connected(relay.port, "p1", **anna):
                assert await one.gone() == []
        await until(lambda: not relay.relay.mqtt.open)
        async with connected(relay.port, "p2", username="bert", password=b"secret"):
            pass
        refused = relay.relay.admission.refused
        assert refused == {Refusal.TENANT: 1, Refusal.USER: 1}
    assert log_of(caplog, "tenant press has 1 connections, which is its limit (connections)")
    assert log_of(caplog, "user anna has 2 connections, which is its limit (connections_per_user)")


async def test_users_who_are_only_believed_are_not_counted() -> None:
    async with running(connections_per_user=1) as relay, AsyncExitStack() as stack:
        for n in range(3):
            await stack.enter_async_context(connected(relay.port, f"c{n}", username="anna"))
        assert len(relay.relay.admission.users) == 0


async def test_connections_above_the_rate_wait_and_those_that_would_too_long_are_refused(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = str(tmp_path / "mqtt")
    listen = ("mqtt+tcp://127.0.0.1:0", f"mqtt+unix://{path}")
    settings: dict[str, Any] = {"connect_rate": 4, "connect_timeout": 1.0, "listen": listen}
    async with running(**settings) as relay, AsyncExitStack() as stack:
        began = trio.current_time()
        crowd = [await stack.enter_async_context(dial(relay.port)) for _ in range(8)]
        for n, client in enumerate(crowd):
            await client.stream.send_all(client.connection.send(Connect(f"c{n}")))
        async with connected(path, "elsewhere"):
            pass
        for client in crowd:
            await client.expect(ConnAck(False, 0))
        assert trio.current_time() - began > 0.7
        assert relay.relay.admission.delayed >= 3
        for _ in range(20):
            await stack.enter_async_context(dial(relay.port))
        await until(lambda: relay.relay.admission.refused[Refusal.RATE] > 5)
        assert log_of(caplog, "its address connects too often (connect_rate)")


async def test_who_waits_for_its_turn_does_not_hold_up_a_stop() -> None:
    async with running(connect_rate=1, connect_timeout=30.0) as relay, AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(dial(relay.port))
        await until(lambda: relay.relay.admission.delayed == 9)
        began = trio.current_time()
        relay.stop.set()
        await until(lambda: not len(relay.relay.admission))
        assert trio.current_time() - began < 4
        assert relay.relay.mqtt.counters.accepted == 1
