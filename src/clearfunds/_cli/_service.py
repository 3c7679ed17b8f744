"""systemd: it is told when the relay is ready, reloads and ends, and that its loop is alive.

Source: sd_notify(3) and systemd.service(5), `Type=notify` and `WatchdogSec=`.
"""

import logging
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

log = logging.getLogger("clearfunds.relay")

BEATS: Final = 3
"""How often systemd hears of the loop within its time: one beat may be late by a third of it."""


@attrs.frozen
class Service:
    """The way to systemd; without one (`address` is None) nothing is told."""

    address: str | None = None
    """The name of its socket, as in `NOTIFY_SOCKET`."""
    watchdog: float | None = None
    """Seconds without a sign of life after which systemd ends the service; None: it does not."""

    @classmethod
    def from_environment(cls) -> "Service":
        """Read the variables that systemd sets, and take them away from processes started later."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        micros = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        is_ours = not pid or pid == str(os.getpid())
        watchdog = int(micros) / 1e6 if micros.isdecimal() and is_ours else None
        return cls(address, watchdog or None)

    def tell(self, *lines: str) -> None:
        """Tell systemd something, as `READY=1`; it is never waited for."""
        if self.address is None:
            return
        name = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), name)
        except OSError as error:
            log.debug("systemd is not told %s: %s", lines[0], error)

    def ready(self, addresses: str) -> None:
        """Tell that the relay serves its addresses."""
        self.tell("READY=1", f"STATUS=listening on {addresses}")

    def stopping(self) -> None:
        """Tell that it ends."""
        self.tell("STOPPING=1", "STATUS=sending what is owed")

    @contextmanager
    def reloading(self) -> Generator[None]:
        """Tell that files are read again, in this block."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")
        try:
            yield
        finally:
            self.tell("READY=1")

    async def keep_alive(self) -> None:
        """Give a sign of life again and again, until cancelled: it comes from the event loop."""
        if self.address is None or self.watchdog is None:
            return
        while True:
            self.tell("WATCHDOG=1")
            await trio.sleep(self.watchdog / BEATS)
