"""Queues of a program of one's own, whose messages lie in JetStream."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from clearfunds.accounts import NO_LIMIT, Ledger, Limit
from clearfunds.cluster import ClusterError, ClusterSettings, open_replicated_shelves
from clearfunds.cluster._cluster import open_state
from clearfunds.cluster._lease import Lease
from clearfunds.persistence import Shelves
from clearfunds.transports._flusher import open_flusher
from clearfunds.transports._one_error import one_error
from clearfunds.transports.nats import JetStream, open_nats
from tests.cluster.members import until
from tests.nats_servers import NatsServer, needs_nats
from tests.persistence.shelves import Process
from tests.ports import lasting_port

pytestmark = needs_nats


@asynccontextmanager
async def process(
    settings: ClusterSettings, live_bytes: int | None = None
) -> AsyncGenerator[Process]:
    """Have books, and shelves in JetStream, for the length of a block."""
    ledger = Ledger()
    with one_error():
        async with (
            open_flusher() as flusher,
            open_replicated_shelves(settings, flusher, live_bytes=live_bytes) as shelves,
        ):
            disk = ledger.open("disk", limit=NO_LIMIT, at_rest="disk")
            publisher = ledger.open("publisher", limit=Limit(items=1000))
            yield Process(shelves, ledger, disk, publisher)


async def test_queues_are_there_elsewhere_as_they_were(nats: NatsServer) -> None:
    settings = ClusterSettings(nats.url, "p", secrets.token_hex(4))
    async with process(settings) as one:
        first, second = one.queue("first"), one.queue("second")
        heard = [one.publish(b"%d" % number, first, second) for number in range(20)]
        await until(lambda: all(each.done for each in heard))
        one.erase(second)
        assert isinstance(one.shelves, Shelves)
        directory = one.shelves.store.directory
    assert not directory.exists()
    async with process(settings) as two:
        first, second = two.queue("first"), two.queue("second")
        assert (len(first), len(second)) == (20, 0)
        two.audit()


async def test_a_name_that_a_relay_of_the_cluster_has_is_refused(nats: NatsServer) -> None:
    settings = ClusterSettings(nats.url, "p", secrets.token_hex(4))
    async with open_nats(nats.url) as client:
        lease = Lease(await open_state(JetStream(client), settings), "p")
        await lease.take()
        said = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.keep)
            try:
                async with process(settings):
                    pass
            except ClusterError as error:
                said = str(error)
            nursery.cancel_scope.cancel()
    assert "another relay of the cluster has the name 'p'" in said


async def test_a_limit_that_the_servers_do_not_have_is_said(nats: NatsServer) -> None:
    settings = ClusterSettings(nats.url, "p", secrets.token_hex(4))
    with pytest.raises(ClusterError, match=r"insufficient storage .* give its servers more room"):
        async with process(settings, 1 << 40):
            pass


async def test_a_server_that_is_not_there_is_said() -> None:
    settings = ClusterSettings(f"nats://alice:secret@127.0.0.1:{lasting_port()}", "p")
    with pytest.raises(ClusterError, match="the store cannot be opened at nats://127"):
        async with process(settings):
            pass
