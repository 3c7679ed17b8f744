"""Servers whose sessions outlive their connections."""

from __future__ import annotations

import uuid

import pytest

from tests.transports.relay.brokers import Broker


@pytest.fixture
def broker(mosquitto: int) -> Broker:
    """Return a server, with names of the test's own."""
    # mosquitto's max_inflight_messages is 20 by default.
    return Broker(mosquitto, 20, f"clearfunds-{uuid.uuid4().hex}", lax_window=True)
