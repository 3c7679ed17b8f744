"""A real relay, as a process, with the ports that it has chosen."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import urllib.request
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tests import forks

SECONDS = 30
"""More than a start or an end takes on a busy machine."""


class RelayProcess:
    """A relay that listens for MQTT and for readers of ranges, and has pages.

    Attributes:
        process: The process; it is killed, if need be, at the end of the block.
        mqtt: The port for MQTT.
        ranges: The port of `subscribe+tcp`.
        http: The pages' URL.
        log: The lines it has logged so far.
    """

    def __init__(self, *options: str, mqtt: int = 0, ranges: int = 0) -> None:
        self.process = forks.start(
            *("relay", "--http", "127.0.0.1:0"),
            *("--listen", f"mqtt+tcp://127.0.0.1:{mqtt}"),
            *("--listen", f"subscribe+tcp://127.0.0.1:{ranges}"),
            *options,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        self.mqtt: int = 0
        self.ranges: int = 0
        self.http = ""
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def _wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if said.get("ready"):
                return
            if "http" in said:
                self.http = said["http"]
            else:
                url = urlsplit(str(said["listening"]))
                assert url.port is not None
                if url.scheme.startswith("mqtt"):
                    self.mqtt = url.port
                else:
                    self.ranges = url.port
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        raise AssertionError("the relay did not start: " + "".join(self.log))

    def page(self, path: str) -> bytes:
        """Return what is at `path`, as `/metrics`."""
        with urllib.request.urlopen(self.http.rstrip("/") + path, timeout=SECONDS) as answer:
            body: bytes = answer.read()
        return body

    def ledger(self) -> dict[str, Any]:
        """Return what the books say."""
        books: dict[str, Any] = json.loads(self.page("/ledger.json"))
        return books

    def kill(self) -> None:
        """End it as a power cut of its own would."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """End it in an orderly way, as an operator does; returns its status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._reap()

    def _reap(self) -> int:
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
