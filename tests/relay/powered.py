"""Relays in this process, whose disk does as it is told: it fails, or forgets."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from clearfunds.persistence import open_shelves
from clearfunds.relay import Relay, RelayAddresses, RelaySettings, serve_relay
from clearfunds.transports._link import Link
from clearfunds.transports._listener import Listener
from tests.ports import lasting_port
from tests.store.disk import FakeDisk, refuse
from tests.transports.peers import RunningRelay

NOTHING_MORE = refuse(errno.EIO, "open", "write", "sync", "truncate", "delete", "read")


@asynccontextmanager
async def powered(disk: FakeDisk, **settings: Any) -> AsyncGenerator[RunningRelay]:
    """Run a relay for the length of a block; at its end the power fails."""
    made: list[Relay] = []
    links: list[Link] = []

    class Kept(Relay):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

        def _handler(self, listener: Listener) -> Callable[[Link], Awaitable[object]]:
            handle = super()._handler(listener)

            async def handle_with_power(link: Link) -> None:
                links.append(link)
                if disk.fault is not NOTHING_MORE:
                    await handle(link)

            return handle_with_power

    settings.setdefault("listen", (f"mqtt+tcp://127.0.0.1:{lasting_port()}",))
    settings.setdefault("fsync_interval", 0.02)
    settings.setdefault("disk_alarm", None)
    settings.setdefault("store", str(disk.directory))
    async with trio.open_nursery() as nursery:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clearfunds.relay._relay.Relay", Kept)
            shelves = partial(open_shelves, vfs=disk.name)
            patch.setattr("clearfunds.relay._persistence.open_shelves", shelves)
            addresses: RelayAddresses = await nursery.start(
                partial(serve_relay, RelaySettings(**settings))
            )
        relay = RunningRelay(made[0], addresses, trio.Event())
        relay.audit()
        yield relay
        relay.audit()
        # From here on it only does what it would not have done: nobody hears it any more.
        disk.fault = NOTHING_MORE
        for link in links:
            link.close()
        nursery.cancel_scope.cancel()
    for link in links:  # some that had not been looked at
        link.close()
    disk.fault = None
    disk.lose_power()
