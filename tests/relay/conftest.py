"""Servers whose sessions outlive their connections."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.relay.brokers import Broker
from tests.transports.conftest import mosquitto, mosquitto_tls
from tests.transports.peers import running

__all__ = ["broker", "foreign", "mosquitto", "mosquitto_tls"]


@pytest.fixture(params=["mosquitto", "relay", "store"])
def foreign(request: pytest.FixtureRequest) -> int | str:
    """Return the port of a foreign server, or how our own keeps its sessions."""
    if request.param == "mosquitto":
        port: int = request.getfixturevalue("mosquitto")
        return port
    return str(request.param)


@pytest.fixture
async def broker(foreign: int | str, tmp_path: Path) -> AsyncGenerator[Broker]:
    """Run the servers, one after the other, with names of the test's own."""
    prefix = f"clearfunds-{uuid.uuid4().hex}"
    if isinstance(foreign, int):
        # mosquitto's max_inflight_messages is 20 by default.
        yield Broker(foreign, 20, prefix, lax_window=True)
        return
    store = str(tmp_path / "store") if foreign == "store" else None
    async with running(store=store, fsync_interval=0.0) as relay:
        lag = 0.0 if store is None else 0.1
        yield Broker(relay.port, relay.relay.settings.max_inflight, prefix, lag=lag)
        relay.audit()
