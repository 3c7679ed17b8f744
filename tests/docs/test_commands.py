"""Commands in the how-to pages work: each block is copied from the page and run, in its order.

A block that ends with `clearfunds relay` starts that relay; on pages without one there is a relay
at 127.0.0.1:9100, with MQTT and AMQP. The ports are others here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.ports import lasting_port
from tests.programs import needs

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 60
BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORTS: Final = ("1884", "9100")

STANDARD: Final = (
    "clearfunds relay --listen mqtt://127.0.0.1:1884 --listen amqp+tcp://127.0.0.1:0 "
    "--http 127.0.0.1:9100 --store store\n"
)


def blocks_of(page: str) -> list[str]:
    return BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `clearfunds` is the command of this Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "clearfunds"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m clearfunds "$@"\n', "utf-8")
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if "CLEARFUNDS" not in name}
    return {**kept, "PATH": f"{folder}:{kept['PATH']}"}


def run(block: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-eu", "-c", block],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def relay(command: str, folder: Path, environment: dict[str, str]) -> Generator[None]:
    """Run a relay until the end of the block."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert any('"ready": true' in line for line in process.stdout), process.communicate()
            yield
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def run_page(page: str, folder: Path, environment: dict[str, str]) -> list[str]:
    """Run the blocks of a page; return what they printed."""
    blocks = blocks_of(page)
    if not any("clearfunds relay" in block for block in blocks):
        blocks.insert(0, STANDARD)
    ports = {port: str(lasting_port()) for port in PORTS}
    printed: list[str] = []
    with ExitStack() as stack:
        for block in blocks:
            text = re.sub("|".join(PORTS), lambda found: ports[found[0]], block)
            before, starts, command = text.rpartition("clearfunds relay")
            if starts:
                printed.append(run(before, folder, environment))
                stack.enter_context(relay(starts + command, folder, environment))
            else:
                printed.append(run(text, folder, environment))
    return printed


@needs("bash", "curl")
@pytest.mark.parametrize("page", ["alerts.md", "health.md", "http.md"])
def test_the_commands_of_a_page_work(
    page: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    assert len(run_page(page, tmp_path, environment)) > 1


@needs("bash", "mosquitto_passwd", "mosquitto_pub", "mosquitto_sub")
def test_a_move_from_mosquitto(tmp_path: Path, environment: dict[str, str]) -> None:
    _, there, copied = run_page("mosquitto.md", tmp_path, environment)
    assert there.splitlines()[0] == "hello"
    assert copied == "news/today hello\n"


@needs("bash")
def test_the_files_of_a_relay(tmp_path: Path, environment: dict[str, str]) -> None:
    blocks = blocks_of("files.md")
    run(blocks[0], tmp_path, environment)
    assert (tmp_path / "users").read_text("utf-8").startswith("newsroom:SCRAM-SHA-256$")
    # A store that a relay has written.
    ports = {port: str(lasting_port()) for port in PORTS}
    command = re.sub("|".join(PORTS), lambda found: ports[found[0]], STANDARD)
    with relay(command, tmp_path, environment):
        pass
    assert (tmp_path / "store/clearfunds-store").is_file()
    run(blocks[1], tmp_path, environment)
