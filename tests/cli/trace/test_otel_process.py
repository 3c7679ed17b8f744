"""A relay as a process that exports spans, as the environment of OpenTelemetry says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import SECONDS
from tests.cli.peers import PUBLISH, connect, subscribe_to_all

if TYPE_CHECKING:
    from tests.cli.conftest import RelayUnderTest


def test_samples_are_exported(
    start_relay: Callable[..., RelayUnderTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    relay = start_relay("--listen", "mqtt+tcp://127.0.0.1:0", "--otel-every", "0.1")
    port = relay.mqtt_port()
    with connect(port, b"sub") as subscriber, connect(port, b"pub") as publisher:
        subscribe_to_all(subscriber)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            publisher.sendall(PUBLISH)
            time.sleep(0.02)
            subscriber.recv(4096)
    relay.process.terminate()
    assert relay.process.wait(SECONDS) == 0
    said = relay.rest()
    assert '"name": "turn"' in said
    assert '"name": "loan outlet"' in said
    assert f'"clearfunds.account": "mqtt:{port}/-/pub"' in said
    assert f'"clearfunds.holder": "mqtt:{port}/-/sub"' in said
    assert '"clearfunds.outcome": "delivered"' in said
    assert '"service.name": "clearfunds"' in said
