"""Each case holds for the relay, but for the listed differences, which the cases assert, too."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests import forks
from tests.ports import lasting_port
from tests.transports.amqp.oracle.play import Case, played
from tests.transports.amqp.oracle.scene import Server
from tests.transports.amqp.oracle.suite import ALL
from tests.transports.mqtt.users import user_line


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one relay for all cases."""
    port = lasting_port()
    folder = tmp_path_factory.mktemp("relay")
    log: Path = folder / "log"
    users = folder / "passwords"
    users.write_text(f"{user_line('guest', b'guest', 1)}\n")
    users.chmod(0o600)
    with log.open("w") as file:
        process = forks.start(
            "relay",
            "--listen",
            f"amqp+tcp://127.0.0.1:{port}",
            "--http",
            "127.0.0.1:0",
            "--passwords",
            str(users),
            "--wrong-password-delay",
            "0",
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    assert process.stdout is not None
    pages = ""
    for line in process.stdout:
        said = json.loads(line)
        pages = said.get("http", pages)
        if "ready" in said:
            break
    else:
        raise AssertionError(log.read_text())
    yield Server("clearfunds", port)
    _see_that_nothing_is_owed(f"{pages}/ledger.json")
    process.terminate()
    status = process.wait(20)
    process.stdout.close()
    assert status == 0
    assert "Traceback" not in log.read_text()


def _see_that_nothing_is_owed(url: str) -> None:
    """See that the books balance, and that the clients, who have left, owe nothing."""
    owed: object = None
    for _ in range(100):
        with urlopen(url) as answer:
            ledger: dict[str, Any] = json.load(answer)
        assert ledger["audit"]["balanced"], ledger["audit"]
        owed = ledger["totals"]["debt"]
        if owed == {"items": 0, "bytes": 0}:
            return
        time.sleep(0.05)
    raise AssertionError(owed)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_clearfunds(case: Case, relay: Server) -> None:
    played(case, relay)
