"""The cost of TLS: CPU time of a delivery and of a connection, memory of an idle connection.

The relay and mosquitto, each without TLS and with it (1.3, a P-256 certificate), in turn:

    one at a time    2,000 messages a second to nine subscribers: one record for each message
    pipelined        as many as the generator publishes: a record has many of them
    connecting       a thousand clients, one after the other; then they are idle

CPU time is the server's, on its own core. The generator is `clearfunds perf`.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from statistics import median
from typing import Final

import attrs
import trio
import trustme

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import Cores
from benchmarks.idle import connect, resident_kib
from benchmarks.journal import cpu_seconds
from benchmarks.servers import (
    SHALLOW,
    AnyServer,
    Relay,
    Running,
    Server,
    configured,
    free_port,
    pinned,
)
from clearfunds.perf import Profile, Scenario, measure

SUBSCRIBERS: Final = 9
RATE: Final = 2_000
IDLE: Final = 1_000
FIRST: Final = 20
"""Connections before those that are counted: what is made once is not."""

SETTLE_SECONDS: Final = 0.5


@attrs.frozen
class Papers:
    """A certificate, its key, and who has signed it; files."""

    chain: Path
    key: Path
    trusted: Path


def papers_in(folder: Path) -> Papers:
    """Make what a server on this machine needs."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    papers = Papers(folder / "server.pem", folder / "server.key", folder / "authority.pem")
    papers.chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(papers.key)
    authority.cert_pem.write_to_path(papers.trusted)
    # mosquitto, started by root, is somebody else.
    folder.chmod(0o755)
    papers.key.chmod(0o644)
    return papers


def servers_of(papers: Papers, port: int) -> dict[str, AnyServer]:
    """Return the servers; each listens with TLS on that port, too."""

    def mosquitto(scratch: Path, plain: int) -> list[str]:
        return configured(
            scratch / "mosquitto.conf",
            f"listener {plain} 127.0.0.1\nallow_anonymous true\npersistence false\n"
            f"listener {port} 127.0.0.1\ncertfile {papers.chain}\nkeyfile {papers.key}\n",
        )

    options = (f"--listen=mqtt+tls://127.0.0.1:{port}", f"--tls-certificate={papers.chain}")
    # The relay wants one that nobody else can read.
    private = papers.key.with_suffix(".private")
    private.touch(mode=0o600)
    private.write_bytes(papers.key.read_bytes())
    more = (f"--tls-key={private}", "--log-level=warning")
    return {
        "relay": Relay(protocols=("mqtt",), options=(*options, *more)),
        "mosquitto": Server(
            "mosquitto", "mqtt", "mosquitto", mosquitto, "-h", SHALLOW, package="mosquitto"
        ),
    }


@attrs.frozen
class Measured:
    """What was found of one server, with TLS or without."""

    one: float
    """CPU seconds for a million deliveries, one at a time."""
    pipelined: float
    connecting: float
    """CPU milliseconds for each that connects."""
    idle: float
    """KiB for each that is idle."""


def cost(running: Running, scenario: Scenario, core: int | None) -> float:
    """Run a scenario; return the server's CPU seconds for a million deliveries."""
    before = cpu_seconds(running.pid)
    with pinned(core):
        result = trio.run(measure, scenario)
    deliveries = result.received
    if not deliveries:
        raise SystemExit("nothing was delivered")
    return (cpu_seconds(running.pid) - before) / deliveries * 1e6


def connecting(
    running: Running,
    port: int,
    secure: Callable[[socket.socket], socket.socket] | None,
    clients: int,
) -> tuple[float, float]:
    """Connect many; return CPU milliseconds and KiB for each of them."""
    with contextlib.ExitStack() as stack:
        for number in range(FIRST):
            stack.enter_context(connect(port, number, secure))
        time.sleep(SETTLE_SECONDS)
        cpu, memory = cpu_seconds(running.pid), resident_kib(running.pid)
        for number in range(FIRST, FIRST + clients):
            stack.enter_context(connect(port, number, secure))
        time.sleep(SETTLE_SECONDS)
        cpu, memory = cpu_seconds(running.pid) - cpu, resident_kib(running.pid) - memory
    return cpu / clients * 1e3, memory / clients


@contextlib.contextmanager
def fresh(server: AnyServer, cores: Cores) -> Generator[Running]:
    """Run a server that has done nothing so far."""
    with (
        tempfile.TemporaryDirectory(prefix="tls-") as scratch,
        server.running(Path(scratch), cores.server) as running,
    ):
        yield running


def measured(
    server: AnyServer,
    port: int | None,
    papers: Papers,
    seconds: float,
    cores: Cores,
    clients: int = IDLE,
) -> Measured:
    """Measure a server, with TLS if there is a port for it."""
    trusting = ssl.create_default_context(cafile=papers.trusted)
    found: list[float] = []
    for rate in (RATE, None):
        with fresh(server, cores) as running:
            where = running.port if port is None else port
            scenario = Scenario(
                uri=f"{'mqtt' if port is None else 'mqtts'}://127.0.0.1:{where}",
                tls_ca=None if port is None else str(papers.trusted),
                subscribers=SUBSCRIBERS,
                rate=None if rate is None else Profile.parse(str(rate)),
                seconds=seconds,
                processes=1,
            )
            found.append(cost(running, scenario, cores.generator))
    with fresh(server, cores) as running, pinned(cores.generator):
        cpu, memory = connecting(
            running,
            running.port if port is None else port,
            None
            if port is None
            else lambda sock: trusting.wrap_socket(sock, server_hostname="127.0.0.1"),
            clients,
        )
    return Measured(found[0], found[1], cpu, memory)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    arguments = parser.parse_args()
    cores = Cores.choose()
    found: dict[tuple[str, bool], list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        papers = papers_in(Path(folder))
        port = free_port()
        for name, server in servers_of(papers, port).items():
            missing = server.missing()
            if missing is not None:
                print(missing)
                continue
            for _ in range(arguments.passes):
                for secure in (False, True):
                    each = measured(
                        server, port if secure else None, papers, arguments.seconds, cores
                    )
                    found.setdefault((name, secure), []).append(each)
    print(f"The median of {arguments.passes} passes, with the least and the most of them;")
    print("CPU seconds for a million deliveries, CPU ms for each that connects, KiB for each.")
    for (name, secure), passes in found.items():
        print(f"{name}{' with TLS' if secure else ''}")
        for field in attrs.fields(Measured):
            values = [getattr(each, field.name) for each in passes]
            print(
                f"    {field.name:12} {median(values):8.2f}  ({min(values):.2f}-{max(values):.2f})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
