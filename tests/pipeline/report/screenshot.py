"""Record a busy minute and take a picture of its report: `python -m ...screenshot FOLDER`.

A relay with a journal, three who publish and five who read, of whom an archive is slow for the
second third of the time. Takes two minutes, and port 1883. FOLDER gets the journal, the report, and
report.png as it is in docs/.
"""

from __future__ import annotations

import argparse
import io
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import trio

from tests.pages.chromium import browsing
from tests.pipeline.relays import RelayProcess
from tests.pipeline.report.clients import Client
from tests.transports.mqtt import wire

PACES: Final = {"newsroom": 400, "ticker": 250, "station-7": 120}
"""Events a second."""

READS: Final = {
    "archive": "#",
    "search": "newsroom/#",
    "map": "station-7/#",
    "dashboard": "ticker/#",
    "mirror": "#",
}
SECONDS: Final = 60
SLOW: Final = (20, 40)
SLOW_PACE: Final = 300_000
"""Bytes a second that the archive takes when it is slow."""


class Source(Client):
    """Publishes in little bursts of uneven size."""

    def run(self) -> None:
        rng = random.Random(self.name)
        pace = PACES[self.name]
        while not self.ended.is_set():
            burst = rng.randrange(1, pace // 10)
            topics = [f"{self.name}/{rng.choice('abc')}" for _ in range(burst)]
            payloads = [rng.randbytes(rng.randrange(200, 2_000)) for _ in range(burst)]
            self.sock.sendall(b"".join(map(wire.publish, topics, payloads)))
            self.ended.wait(burst / pace)


class Reader(Client):
    """Takes all that comes, but for the archive in its slow time."""

    def run(self) -> None:
        self.sock.sendall(wire.subscribe(1, (READS[self.name], 0)))
        began = time.monotonic()
        while not self.ended.is_set():
            self.sock.recv(1 << 14)
            if self.name == "archive" and SLOW[0] < time.monotonic() - began < SLOW[1]:
                self.ended.wait((1 << 14) / SLOW_PACE)


def record(journal: Path) -> None:
    """Let them go on for a minute."""
    options = ("--journal", str(journal), "--limit-items", "1000", "--grace", "0.2")
    with RelayProcess(*options, mqtt=1883) as relay, ExitStack() as clients:
        for name in READS:
            clients.enter_context(Reader(relay.mqtt, name))
        for name in PACES:
            clients.enter_context(Source(relay.mqtt, name))
        threading.Event().wait(SECONDS)


async def take(page: Path, picture: Path) -> None:
    """Take the upper part of the page, as a reader sees it first."""
    async with browsing() as browser:
        tab = await browser.open(page.as_uri(), width=1100, height=1770)
        await trio.sleep(1)
        data = await tab.screenshot()
        if find_spec("PIL") is not None:
            image_module: Any = import_module("PIL.Image")
            small = io.BytesIO()
            image_module.open(io.BytesIO(data)).convert("RGB").quantize(128, dither=0).save(
                small, "PNG", optimize=True
            )
            data = small.getvalue()
        await trio.Path(picture).write_bytes(data)


def main(folder: Path) -> None:
    journal, out = folder / "journal", folder / "report"
    if not journal.exists():
        record(journal)
    command = [sys.executable, "-m", "clearfunds", "report", str(journal), "--out", str(out)]
    subprocess.run(command, check=True)
    trio.run(take, out / "report.html", folder / "report.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
