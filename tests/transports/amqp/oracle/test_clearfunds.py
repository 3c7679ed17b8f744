"""Each case holds for the relay, but for the listed differences, which the cases assert, too."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forks
from tests.ports import lasting_port
from tests.transports.amqp.oracle.play import Case, played
from tests.transports.amqp.oracle.scene import Server
from tests.transports.amqp.oracle.suite import CASES


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one relay for all cases."""
    port = lasting_port()
    log: Path = tmp_path_factory.mktemp("relay") / "log"
    with log.open("w") as file:
        process = forks.start(
            "relay",
            "--listen",
            f"amqp+tcp://127.0.0.1:{port}",
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    assert process.stdout is not None
    for line in process.stdout:
        if "ready" in line:
            break
    else:
        raise AssertionError(log.read_text())
    yield Server("clearfunds", port)
    process.terminate()
    status = process.wait(20)
    process.stdout.close()
    assert status == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_clearfunds(case: Case, relay: Server) -> None:
    played(case, relay)
