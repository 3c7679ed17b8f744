"""The relays of a cluster: started, and ready when each of them knows all others."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from .._child import Announcement, relay_command
from .._errors import CommandFailedError
from .._page import Visitor, fetch_text
from .._printable import printable
from ._exposition import sum_of
from ._fleet import Child, Fleet
from ._ports import LOOPBACK

GRACE_SECONDS: Final = 5.0
"""`--grace` of the relays: time to deliver what is outstanding when they end."""

_START_SECONDS: Final = 60.0
# For all of them. A cold start of the interpreter on a small machine takes two, for each relay.

_PAUSE_SECONDS: Final = 0.05

_SHOWN: Final = ("WARNING", "ERROR", "CRITICAL")
# Levels of log lines that the user sees: a slow consumer is a warning.

_LINE_CHARACTERS: Final = 1_000
# Characters of a log line that the user sees.

_SAID_ALREADY: Final = "relay_left"
# The event that the others log when a relay has ended; the command itself says so.

_COMPLAINT: Final = "clearfunds relay: "
# The beginning of a relay's last line if it fails, which is part of the command's own last line.


@attrs.define(eq=False)
class Member:
    """A relay of the cluster."""

    name: str
    """Its name: `relay-1`."""
    addresses: Announcement = attrs.field(factory=Announcement)
    """The URLs of its listener and its pages, once it has printed them."""
    visitor: Visitor = attrs.field(factory=Visitor)
    """The login for its pages."""
    link: str | None = None
    """The address of its pages for a browser; None: the one that it has printed."""

    def log(self, child: Child, line: str) -> None:
        """Take a line of its log: show it to the user if it matters, as a line of text."""
        level, event, message = _parse(line)
        if level not in _SHOWN or event == _SAID_ALREADY:
            return
        child.remember(message.removeprefix(_COMPLAINT))
        if not message.startswith(_COMPLAINT):
            text = f"{self.name}: {message}"[:_LINE_CHARACTERS]
            print(printable(text), file=sys.stderr, flush=True)


def _parse(line: str) -> tuple[str, str, str]:
    """Return the level, the event and the message of a log line; another line is an error."""
    try:
        said: Any = json.loads(line)
        return str(said["level"]), str(said.get("event")), str(said["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return "ERROR", "", line


def members(count: int) -> list[Member]:
    """Return relays that have not been started yet."""
    return [Member(f"relay-{number}") for number in range(1, count + 1)]


async def start_relays(
    fleet: Fleet, relays: Sequence[Member], servers: Sequence[str], port: int
) -> None:
    """Start relays of a cluster, and wait until they know each other.

    Args:
        fleet: Has their processes.
        relays: Which ones.
        servers: The URLs of the NATS servers.
        port: The MQTT port of the first one; the next ones follow. 0: any ports.

    Raises:
        CommandFailedError: They do not get ready.
        OSError: A process cannot be started.
    """
    with trio.move_on_after(_START_SECONDS):
        for number, member in enumerate(relays):
            command = relay_command(_options(member.name, servers, port + number if port else 0))
            await fleet.start(member.name, command, log=member.log, hear=member.addresses.take)
        for member in relays:
            await until_it_knows(member, len(relays) - 1)
        return
    msg = f"the relays do not know each other after {_START_SECONDS:g} s"
    raise CommandFailedError(msg)


def _options(name: str, servers: Sequence[str], port: int) -> list[str]:
    return [
        *("--cluster", ",".join(servers), "--name", name),
        *("--listen", f"mqtt+tcp://{LOOPBACK}:{port}", "--http", f"{LOOPBACK}:0"),
        *("--grace", f"{GRACE_SECONDS:g}", "--log-format", "json"),
    ]


async def until_it_knows(member: Member, others: int) -> None:
    """Wait until a relay is ready and knows so many others."""
    while not member.addresses.is_ready or await _known_to(member) < others:  # noqa: ASYNC110
        await trio.sleep(_PAUSE_SECONDS)


async def _known_to(member: Member) -> float:
    try:
        text = await fetch_text(f"{member.addresses.http}/metrics", visitor=member.visitor)
        return sum_of("clearfunds_cluster_relays", text)
    except (OSError, CommandFailedError):
        return -1  # Its end, if it has ended, is noticed elsewhere.
