"""The programs of rabbitmq.md, range-readers.md and sinks.md, with a relay."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from clearfunds._cli import run
from tests.docs.blocks import code_of
from tests.ports import lasting_port

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest

SECONDS: Final = 60


@contextmanager
def python(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """Run Python until the end of the block."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def relay(*options: str) -> Generator[None]:
    with python("-m", "clearfunds", "relay", "--log-level", "error", *options) as process:
        assert process.stdout is not None
        assert any('"ready": true' in line for line in process.stdout)
        yield


def test_a_program_of_rabbitmq_publishes(capsys: pytest.CaptureFixture[str]) -> None:
    port, http = lasting_port(), lasting_port()
    program = code_of("rabbitmq.md", changes={'"127.0.0.1"': f'"127.0.0.1", {port}'})
    with relay("--listen", f"amqp+tcp://127.0.0.1:{port}", "--http", f"127.0.0.1:{http}"):
        subprocess.run([sys.executable, "-c", program], timeout=SECONDS, check=True)
        assert run(["queues", "list", f"http://127.0.0.1:{http}", "--json"]) == 0
    listed = capsys.readouterr().out
    assert "jobs" in listed
    assert json.loads(listed)


def test_a_reader_reads_the_batch_of_a_writer() -> None:
    port = str(lasting_port())
    reads = code_of(
        "range-readers.md",
        changes={
            "7700": port,
            "plant/#": "means/#",
            "    at = reader.start\n": "    at = reader.start\n    print('attached', flush=True)\n",
            " ...\n": " print(row.key.decode(), row.value.decode(), flush=True)\n",
        },
    )
    writes = code_of("sinks.md", changes={"7700": port})
    with (
        relay("--listen", f"subscribe+tcp://127.0.0.1:{port}"),
        python("-c", reads) as reader,
    ):
        assert reader.stdout is not None
        assert reader.stdout.readline() == "attached\n"
        subprocess.run([sys.executable, "-c", writes], timeout=SECONDS, check=True)
        rows = [reader.stdout.readline() for _ in range(3)]
    assert rows == ["means/plant-1 20.5\n", "means/plant-2 21\n", "means/plant-3 19\n"]
