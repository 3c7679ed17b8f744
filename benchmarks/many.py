"""Many publishers: pairs and fan-in, from 10 connections to 5,000, with QoS 0 and 1.

The relay beside other servers, interleaved: in each pass all of them are started, and every row is
measured with one after the other. The figure to look at is the server's CPU seconds per million
deliveries, as a ratio to a peer's in the same pass; and the latency at a pace, from when a message
was due. Every delivery is checked: topic, content, order and number.

    python benchmarks/many.py                              # all rows, 3 passes
    python benchmarks/many.py --rows pairs-100-qos1,fan-in-1000 --servers relay,mosquitto,mochi
    python benchmarks/many.py --rows pairs-1000 --relay-root ../other-checkout

A peer is driven with its own protocol: NATS has no QoS 1 and is left out there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import Cores, machine, middle, positive, progress, table
from benchmarks.loadgen import GeneratorError, ManyLoad, build, run_many
from benchmarks.servers import (
    TODAY,
    AnyServer,
    Relay,
    Running,
    Server,
    ServerError,
    pinned,
    those_here,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


@dataclasses.dataclass(frozen=True)
class Setting:
    """How to measure."""

    cores: Cores
    passes: int = 3
    seconds: float = 3.0
    sleep: bool = False
    """As `ManyLoad` has it."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A load."""

    kind: str
    publishers: int
    rate: float | None
    """Of all publishers together; None: dense, with `window` in flight for each."""

    qos: int = 0
    window: int = 4

    @property
    def name(self) -> str:
        """How the command line calls it."""
        dense = "-dense" if self.rate is None else ""
        return f"{self.kind}-{self.publishers}{'-qos1' if self.qos else ''}{dense}"

    @property
    def meaning(self) -> str:
        """The load in words."""
        pace = f"{self.window} in flight each" if self.rate is None else f"{self.rate:,.0f}/s"
        return f"{self.publishers:,} {self.kind}, QoS {self.qos}, {pace}"

    def load(self, protocol: str, setting: Setting) -> ManyLoad:
        """Return it as a server with this protocol gets it."""
        return ManyLoad(
            protocol=protocol,
            kind=self.kind,
            publishers=self.publishers,
            qos=self.qos,
            rate=self.rate,
            window=self.window,
            seconds=setting.seconds,
            sleep=setting.sleep,
        )


ROWS = {
    row.name: row
    for row in (
        Row("pairs", 5, 500),
        Row("pairs", 100, 2000),
        Row("pairs", 1000, 5000),
        Row("pairs", 2500, 5000),
        Row("fan-in", 100, 2000),
        Row("fan-in", 1000, 20000),
        Row("fan-in", 5000, 20000),
        Row("pairs", 100, None),
        Row("pairs", 1000, None),
        Row("fan-in", 1000, None),
        Row("pairs", 5, 500, qos=1),
        Row("pairs", 100, 2000, qos=1),
        Row("pairs", 1000, 8000, qos=1),
        Row("fan-in", 1000, 8000, qos=1),
        Row("pairs", 100, None, qos=1),
    )
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measurement."""

    number: int
    """Of the pass, from 1."""

    row: str
    server: str
    found: dict[str, Any]
    """All that the generator says (`run_many`)."""


@dataclasses.dataclass
class Results:
    """All samples, and what could not be measured."""

    samples: list[Sample] = dataclasses.field(default_factory=list[Sample])
    failures: list[str] = dataclasses.field(default_factory=list[str])

    def of(self, row: str, server: str) -> list[dict[str, Any]]:
        """Return the measurements of one server under one load."""
        return [s.found for s in self.samples if s.row == row and s.server == server]

    def ratios(
        self, row: str, peer: str, of: Callable[[dict[str, Any]], float], server: str = "relay"
    ) -> list[float]:
        """Return a figure of `server` over `peer`'s, pass by pass; 0 of either is no figure."""
        figures = {(s.server, s.number): of(s.found) for s in self.samples if s.row == row}
        return [
            figure / figures[peer, number]
            for (name, number), figure in figures.items()
            if name == server and figure > 0 and figures.get((peer, number), 0.0) > 0
        ]


def cpu(found: dict[str, Any]) -> float:
    """Return CPU seconds of the server per million deliveries."""
    return float(found["cpu_seconds_per_million"])


def p99(found: dict[str, Any]) -> float:
    """Return the 99th percentile of latency in seconds."""
    return float(found["latency"]["p99"]) if found["latency"] else 0.0


def protocol_for(row: Row, server: AnyServer) -> str | None:
    """Return the protocol to drive it with; None if it cannot be given this load."""
    protocol = server.speaks("mqtt")
    return None if protocol is None or (row.qos > 0 and protocol != "mqtt") else protocol


def measure(row: Row, server: AnyServer, running: Running, setting: Setting) -> dict[str, Any]:
    """Put the load on a server that runs.

    Raises:
        ServerError: It does not take this load.
        GeneratorError: Nothing could be measured.
    """
    protocol = protocol_for(row, server)
    if protocol is None:
        raise ServerError(f"{server.name} has no QoS {row.qos}")
    load = row.load(protocol, setting)
    if isinstance(server, Server) and server.warmup is not None:
        load = dataclasses.replace(load, warmup=server.warmup)
    with pinned(setting.cores.generator):
        return run_many(load, port=running.ports[protocol], pid=running.pid)


def steps(
    rows: Sequence[Row], servers: Sequence[AnyServer], number: int
) -> Iterator[tuple[Row, AnyServer]]:
    """Yield what is measured in a pass, in order: nobody is always first."""
    if not servers:
        return
    turn = number % len(servers)
    for row in rows:
        for server in (*servers[turn:], *servers[:turn]):
            if protocol_for(row, server) is not None:
                yield row, server


def measure_all(
    rows: Sequence[Row],
    servers: Sequence[AnyServer],
    setting: Setting,
    report: Callable[[str], None],
    *,
    once: Sequence[AnyServer] = (),
    first: int = 1,
) -> Results:
    """Measure everything, interleaved; what fails is noted and left out.

    All servers run during a pass, and one of them at a time has something to do. Those of ``once``
    are measured in the first pass only; ``first`` is its number.
    """
    results = Results()
    for number in range(first, first + setting.passes):
        of_pass = (*servers, *(once if number == first else ()))
        with contextlib.ExitStack() as stack:
            here: dict[str, Running] = {}
            for server in of_pass:
                starting = _running(server, number, setting, results)
                if (running := stack.enter_context(starting)) is not None:
                    here[server.name] = running
            for row, server in steps(rows, of_pass, number):
                if server.name not in here:
                    continue
                where = f"{row.name}, {server.name}, pass {number}"
                try:
                    found = measure(row, server, here[server.name], setting)
                except (ServerError, GeneratorError) as error:
                    results.failures.append(f"{where}: {error}")
                    report(f"{where}: could not be measured")
                    continue
                results.samples.append(Sample(number, row.name, server.name, found))
                report(
                    f"{where}: {cpu(found):.1f} CPU s per million deliveries, "
                    f"p99 {p99(found) * 1e3:.2f} ms" + ("" if found["whole"] else " (NOT WHOLE)")
                )
    return results


@contextlib.contextmanager
def _running(
    server: AnyServer, number: int, setting: Setting, results: Results
) -> Generator[Running | None]:
    """Run a server for a block; note it if it does not start or end as it should."""
    started = False
    try:
        with (
            tempfile.TemporaryDirectory(prefix="many-") as scratch,
            server.running(Path(scratch), setting.cores.server) as running,
        ):
            started = True
            yield running
    except ServerError as error:
        results.failures.append(f"{server.name}, pass {number}: {error}")
        if not started:
            yield None


def results_table(results: Results, rows: Sequence[Row], servers: Sequence[str]) -> str:
    """Return a line for each load and server."""
    head = [
        "load",
        "server",
        "CPU s per M deliveries",
        "the relay's / its",
        "p50 ms",
        "p99 ms",
        "the relay's p99 / its",
        "PUBACK p50 ms",
        "deliveries/s",
        "server share",
        "RSS MB by then",
        "not whole",
    ]
    lines: list[list[str]] = []
    for row in rows:
        for server in servers:
            found = results.of(row.name, server)
            if not found:
                continue
            relay = server == "relay"
            acknowledged = [f["confirmation"]["p50"] * 1e3 for f in found if f["confirmation"]]
            lines.append(
                [
                    row.meaning,
                    server,
                    middle(map(cpu, found), ".1f"),
                    "1" if relay else middle(results.ratios(row.name, server, cpu), ".2f"),
                    middle((f["latency"]["p50"] * 1e3 for f in found if f["latency"]), ".2f"),
                    middle((p99(f) * 1e3 for f in found), ".2f"),
                    "1" if relay else middle(results.ratios(row.name, server, p99), ".2f"),
                    middle(acknowledged, ".2f"),
                    f"{statistics.median(f['deliveries_per_second'] for f in found):,.0f}",
                    f"{statistics.median(f['server_share'] for f in found):.2f}",
                    f"{max(f['rss_mb'] for f in found):.0f}",
                    str(sum(not f["whole"] for f in found)),
                ]
            )
    return table(head, lines)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Many publishers: the relay beside other servers.",
        epilog="rows: " + "; ".join(f"{name}: {row.meaning}" for name, row in ROWS.items()),
    )
    parser.add_argument("--passes", type=int, default=3, help="how often all is measured (3)")
    parser.add_argument("--seconds", type=positive, default=3.0, help="of a measurement (3)")
    parser.add_argument("--rows", help="names, separated by commas (all)")
    names = ["relay", *(peer.name for peer in TODAY)]
    parser.add_argument("--servers", help=f"names, separated by commas, of {','.join(names)} (all)")
    parser.add_argument(
        "--relay-root",
        action="append",
        default=[],
        metavar="FOLDER",
        help="measure the relay of another checkout, too, named by its folder; may be repeated",
    )
    parser.add_argument("--relay-option", action="append", default=[], metavar="OPTION")
    parser.add_argument(
        "--sleep",
        action="store_true",
        help="let the generator sleep while nothing is to be done: latencies have its wake-ups in "
        "them, and the machine's other users keep its core",
    )
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        metavar="N",
        help="run servers and generator so much before other processes (0 to 20; root)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    arguments = parser.parse_args()
    for option, known in (("rows", list(ROWS)), ("servers", names)):
        given: str | None = getattr(arguments, option)
        chosen = known if given is None else [word for word in given.split(",") if word]
        if unknown := [word for word in chosen if word not in known]:
            parser.error(f"--{option}: {unknown[0]} is not one of {', '.join(known)}")
        if not chosen:
            parser.error(f"--{option}: none given")
        setattr(arguments, option, chosen)
    return arguments


def choose_servers(arguments: argparse.Namespace) -> list[AnyServer]:
    """Return the chosen servers that are here; say on stderr which are not."""
    options = tuple(arguments.relay_option)
    others = [
        Relay(name=Path(root).resolve().name, options=options, root=Path(root).resolve())
        for root in arguments.relay_root
    ]
    known: tuple[AnyServer, ...] = (Relay(options=options), *TODAY)
    chosen = those_here(server for server in known if server.name in arguments.servers)
    return [*chosen, *others]


@contextlib.contextmanager
def before_others(steps: int = 20) -> Generator[None]:
    """Run this process, and those that it starts, before others for the length of a block.

    Raises:
        PermissionError: Only root may do that.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    # Where Linux shares the cores by session, niceness counts within one; that is the session's.
    session = Path("/proc/self/autogroup")
    os.setpriority(os.PRIO_PROCESS, 0, before - steps)
    try:
        with contextlib.suppress(OSError):
            session.write_text(str(-steps))
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        with contextlib.suppress(OSError):
            session.write_text(str(before))


def main() -> int:
    """Measure and report."""
    arguments = parse_arguments()
    try:
        build()
    except GeneratorError as error:
        sys.exit(f"many: {error}")
    rows = [ROWS[name] for name in arguments.rows]
    servers = choose_servers(arguments)
    if not servers:
        sys.exit("many: none of the chosen servers is here, so there is nothing to measure.")
    cores = Cores.choose()
    setting = Setting(cores, arguments.passes, arguments.seconds, arguments.sleep)
    count = arguments.passes * sum(1 for _ in steps(rows, servers, 1))
    with contextlib.ExitStack() as stack:
        if arguments.nice:
            stack.enter_context(before_others(arguments.nice))
        report = stack.enter_context(progress(count))
        results = measure_all(rows, servers, setting, report)
    about = machine()
    versions = {server.name: server.version() for server in servers}
    print("## Many publishers\n")
    print("; ".join(f"{name} {value}" for name, value in about.items()))
    print("; ".join(f"{name}: {version}" for name, version in versions.items()))
    print(f"{cores}; passes: {arguments.passes}, interleaved; seconds: {arguments.seconds:g}")
    print("Medians (least-most); ratios are within a pass.\n")
    print(results_table(results, rows, [server.name for server in servers]))
    for failure in results.failures:
        print(f"many: could not be measured: {failure}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "machine": about,
            "servers": versions,
            "passes": arguments.passes,
            "seconds": arguments.seconds,
            "samples": [dataclasses.asdict(sample) for sample in results.samples],
            "failures": results.failures,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
