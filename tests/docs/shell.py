"""The commands of a page, run by a shell; and a relay that one of them starts."""

from __future__ import annotations

import re
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.docs.blocks import blocks
from tests.ports import lasting_port

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

SECONDS: Final = 180
PORTS: Final = ("1883", "1884", "4222", "8080", "8081", "8082", "8883", "9100")

LOG: Final = "relay.log"


def blocks_of(page: str) -> list[str]:
    """Return the commands of a page, block by block."""
    return [each.code for each in blocks() if (each.page, each.language) == (page, "sh")]


def other_ports(text: str) -> str:
    """Return a page's text with ports that are free here in place of its own."""
    ports = {port: str(lasting_port()) for port in PORTS}
    return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: ports[found[0]], text)


def run(block: str, folder: Path, environment: dict[str, str]) -> str:
    # The shell goes on after `! command`, whatever it does; here it has to fail.
    text = re.sub(r"(?m)^(! (?:.*\\\n)*.*)$", r"\1 || exit 1", block)
    done = subprocess.run(
        ["bash", "-eu", "-c", text],
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
def relay(command: str, folder: Path, environment: dict[str, str]) -> Generator[int]:
    """Run a relay until the end of the block, with its log in a file; return its process id."""
    with (
        (folder / LOG).open("w", encoding="utf-8") as log,
        subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            is_ready = any('"ready": true' in line for line in process.stdout)
            assert is_ready, (folder / LOG).read_text("utf-8")
            yield process.pid
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def until_logged(text: str, folder: Path) -> None:
    """Wait until the relay's log has a text."""
    give_up = time.monotonic() + SECONDS
    while text not in (log := (folder / LOG).read_text("utf-8")):
        assert time.monotonic() < give_up, log
        time.sleep(0.05)
