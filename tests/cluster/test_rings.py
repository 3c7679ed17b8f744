"""Rings over three relays, with real connections: found on each relay, opened by one of them."""

from __future__ import annotations

import json
import socket
from contextlib import AsyncExitStack
from typing import Final

import pytest
import trio

from clearfunds.accounts import rings
from clearfunds.transports.mqtt import Publish, encode
from tests.cluster.test_relays import goes_there
from tests.nats_servers import NatsServer, needs_nats
from tests.transports.peers import BareClient, connected, fetch, log_of, running, until

pytestmark = [needs_nats, pytest.mark.rule(11)]

MESSAGE: Final = bytes(10_000)
BUFFER_BYTES: Final = 32 << 10
SERVED: Final = 2_000
"""More than the kernel and the relays keep for one connection, by far."""


async def play(client: BareClient, other: str) -> None:
    """Write to another one, and read only when all is written; then write for what comes."""
    message = encode(Publish(f"to/{other}", MESSAGE))
    try:
        await client.stream.send_all(message * SERVED)
        part = 0
        while data := await client.stream.receive_some(1 << 16):
            whole, part = divmod(part + len(data), len(message))
            await client.stream.send_all(message * whole)
    except trio.BrokenResourceError:
        pass


async def test_three_clients_of_three_relays_that_wait_on_each_other_are_a_ring(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("x", "y", "z")
    async with AsyncExitStack() as stack:
        relays = [
            await stack.enter_async_context(
                running(
                    name=f"r{number}",
                    cluster=nats.url,
                    profile="lossless",
                    patience=8.0,
                    limit_items=20,
                    grace=1.0,
                    http="127.0.0.1:0",
                )
            )
            for number in (1, 2, 3)
        ]
        clients: list[BareClient] = []
        for name, relay in zip(names, relays, strict=True):
            client = await stack.enter_async_context(
                connected(relay.port, name, receive_buffer=BUFFER_BYTES)
            )
            # Less than a segment of loopback would make it crawl.
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * BUFFER_BYTES)
            await client.subscribe(f"to/{name}")
            clients.append(client)
        for number, relay in enumerate(relays):
            await goes_there(relay, f"to/{names[(number + 1) % 3]}")
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                nursery.start_soon(play, client, names[(number + 1) % 3])
            await until(lambda: all(rings(relay.ledger) for relay in relays))
            assert not log_of(caplog, "made no progress")
            accounts = [relay.account(name).name for name, relay in zip(names, relays, strict=True)]
            for number, relay in enumerate(relays):
                page = json.loads(await fetch(f"{relay.addresses.http}/ledger.json"))
                (row,) = page["rings"]
                before = (number - 1) % 3
                via = f"via/r{before + 1}/{accounts[before]}"
                assert set(row["members"]) == {accounts[number], via}
            await until(lambda: log_of(caplog, "made no progress"), 30)
            (line,) = log_of(caplog, "made no progress")
            assert f"in a ring: {accounts[0]} waits on remote r2/{accounts[1]} (" in line
            await until(lambda: not relays[0].relay.mqtt.sessions)
            # The others have all, and nobody else is cut off.
            await until(
                lambda: (
                    not any(
                        account.debt_items
                        for relay in relays
                        for account in relay.ledger.accounts.values()
                    )
                ),
                60,
            )
            assert [list(relay.relay.mqtt.sessions) for relay in relays] == [[], ["y"], ["z"]]
            assert len(log_of(caplog, "made no progress")) == 1
            assert not any(rings(relay.ledger) for relay in relays)
            nursery.cancel_scope.cancel()
