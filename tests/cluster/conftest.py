"""A NATS server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.nats_servers import NatsServer, nats_server


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def own_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    """A server that the test may end."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server
