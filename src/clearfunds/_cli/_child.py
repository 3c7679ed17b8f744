"""Child processes of a command: a relay's command line, the environment, lines of output."""

import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs
import trio

from ._sources import PREFIX

LINE_BYTES: Final = 64 << 10
"""Maximum bytes of a line that is kept in memory until its end; the rest of it is dropped."""

_NEWLINE: Final = b"\n"


def program_command(argv: Sequence[str]) -> list[str]:
    """Return the command that runs `clearfunds ARGV` with this interpreter."""
    return [sys.executable, "-P", "-m", "clearfunds", *argv]


def relay_command(options: Sequence[str]) -> list[str]:
    """Return the command that runs `clearfunds relay` with this interpreter."""
    return program_command(["relay", *options])


def environment() -> dict[str, str]:
    """Return the environment without options of clearfunds.

    The configuration of the user's own relay must not change the relays that a command starts.
    """
    return {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}


@attrs.define(eq=False)
class Lines:
    """The lines of a stream, each with at most `LINE_BYTES`."""

    stream: trio.abc.ReceiveStream
    """The pipe to read."""
    _rest: bytes = b""
    _lines: deque[str] = attrs.field(factory=deque[str])

    async def next(self) -> str | None:
        """Return the next line; None at the end of the stream.

        Cancellation: no line is lost.
        """
        while not self._lines:
            piece = await self.stream.receive_some()
            if not piece:
                return None
            *lines, rest = (self._rest + piece).split(_NEWLINE)
            self._rest = rest[:LINE_BYTES]
            self._lines.extend(line[:LINE_BYTES].decode(errors="replace") for line in lines)
        return self._lines.popleft()


@attrs.define
class Announcement:
    """The addresses that a relay prints when it starts; empty until it has."""

    mqtt: str = ""
    """The URL of its listener, as `mqtt+tcp://127.0.0.1:41883`."""
    http: str = ""
    """The URL of its pages, as `http://127.0.0.1:39464`."""
    is_ready: bool = False
    """Whether the relay takes connections."""

    def take(self, line: str) -> None:
        """Take one line of the relay's stdout."""
        said: Any = json.loads(line)
        if isinstance(said, dict):
            fields = cast("dict[str, Any]", said)
            self.mqtt = fields.get("listening", self.mqtt)
            self.http = fields.get("http", self.http)
            self.is_ready = fields.get("ready", self.is_ready)
