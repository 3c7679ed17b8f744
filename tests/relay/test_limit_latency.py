"""`--limit-latency`: the limits of connections' accounts are moved."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds.access import AccountLimit
from clearfunds.accounts import DEFAULT_FLOOR, LatencyLimit, Ledger, Limit
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports._listener import UNSENT_BYTES, ListenURL, open_listeners

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from clearfunds.accounts import Account

CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05"


@asynccontextmanager
async def relay(settings: RelaySettings) -> AsyncGenerator[tuple[int, Ledger]]:
    """Run a relay; yield its port and its books."""
    books: list[Ledger] = []

    @asynccontextmanager
    async def companion(ledger: Ledger) -> AsyncGenerator[None]:
        books.append(ledger)
        yield

    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        addresses = await nursery.start(
            partial(serve_relay, settings, stop=stop, companion=companion)
        )
        yield int(addresses.listening[0].rpartition(":")[2]), books[0]
        stop.set()


async def connected(port: int, ledger: Ledger, name: str) -> tuple[trio.SocketStream, Account]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(CONNECT + name.encode())
    assert await stream.receive_some(4) == b"\x20\x02\x00\x00"
    return stream, ledger.accounts[f"mqtt:{port}/-/{name}"]


async def test_the_limits_of_connections_are_moved_up_to_those_that_are_given() -> None:
    settings = RelaySettings(
        listen=("mqtt+tcp://127.0.0.1:0",),
        limit_latency=0.25,
        limit_items=500,
        account_limit=(AccountLimit("fixed", 7),),
    )
    async with relay(settings) as (port, ledger):
        stream, account = await connected(port, ledger, "moved")
        other, fixed = await connected(port, ledger, "fixed")
        async with stream, other:
            assert fixed.control is None
            assert fixed.limit.items == 7
            control = account.control
            assert control is not None
            assert account.limit == DEFAULT_FLOOR
            assert control.statistics().target_seconds == 0.25
            # Who comes back while it still owes is not measured anew.
            account.borrow(1, 1)
            await stream.send_all(b"\xe0\x00")
            assert await stream.receive_some(1) == b""
        again, same = await connected(port, ledger, "moved")
        async with again:
            assert same is account
            assert same.control is control
            account.repay(1, 1)
            # It is given a chance: `watch_limits` runs, and nobody is in the way.
            for _ in range(20):
                publication = b"\x30\x05\x00\x01t42" * 2_000
                await again.send_all(publication)
                await trio.sleep(0.02)
        assert (account.limit.items or 0) > 20


async def test_without_it_they_stay() -> None:
    settings = RelaySettings(listen=("mqtt+tcp://127.0.0.1:0",))
    async with relay(settings) as (port, ledger):
        stream, account = await connected(port, ledger, "fixed")
        async with stream:
            assert account.control is None
            assert account.limit == Limit()


def test_it_has_to_be_above_nothing() -> None:
    with pytest.raises(ValueError, match="limit_latency must be above 0 seconds"):
        RelaySettings(limit_latency=0.0)


@pytest.mark.skipif(
    not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such option"
)
async def test_little_is_kept_by_the_kernel_of_who_is_accepted() -> None:
    (listener,) = await open_listeners(ListenURL("mqtt", "tcp", "127.0.0.1", 0))
    with listener:
        listener.keep_little_unsent()
        with socket.create_connection(("127.0.0.1", listener.url.port)):
            await trio.lowlevel.wait_readable(listener.sock)
            accepted, _ = listener.sock.accept()
            with accepted:
                option = socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT
                assert accepted.getsockopt(*option) == UNSENT_BYTES


def test_a_ceiling_below_the_floor_is_the_floor() -> None:
    # As the relay makes it of a limit that is given and lower.
    policy = LatencyLimit(1.0, floor=Limit(items=2, bytes=100), ceiling=Limit(items=2, bytes=100))
    account = Ledger().open("tiny")
    account.limit_by(policy)
    assert account.limit == Limit(items=2, bytes=100)
