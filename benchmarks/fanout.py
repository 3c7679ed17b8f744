"""One publisher, N subscribers: the relay beside other servers, in the same run.

The figure to look at is the server's CPU seconds per million deliveries, as a ratio to a peer's in
the same pass: deliveries a second depend on the machine, on what else runs on it, and on the
generator. Passes are interleaved (each regime with each server in turn, then again), every
measurement gets a fresh server, and the tables show medians with their spread.

    python benchmarks/fanout.py               # all regimes; mosquitto, NATS and Redis; 3 passes
    python benchmarks/fanout.py --regimes pipelined-9 --seconds 1
    python benchmarks/fanout.py --check --json results.json

README.md beside this file says what each regime means, and what to distrust.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import profiling
from benchmarks.loadgen import GeneratorError, Load, Measurement, build, run
from benchmarks.servers import (
    BROKERS,
    PEERS,
    AnyServer,
    CommandServer,
    Relay,
    ServerError,
    pinned,
    those_here,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable


@dataclasses.dataclass(frozen=True)
class Regime:
    """A kind of traffic."""

    name: str
    meaning: str
    subscribers: int
    payload: tuple[int, int] = (200, 200)
    topics: int = 1
    wildcard: bool = False
    in_flight: int | None = None
    """Messages in flight, each a write of its own; None: pipelined, as deep as the server bears."""

    protocol: str = "mqtt"
    """What the relay is driven with; its peers are driven with their own protocols."""

    def obstacle(self, server: AnyServer) -> str | None:
        """Say why ``server`` cannot be given this traffic; None if it can."""
        if server.speaks(self.protocol) is None:
            return "it does not speak the protocol"
        if self.wildcard and not server.wildcards:
            return "it has no wildcards"
        return None

    def suits(self, server: AnyServer) -> bool:
        """Say whether ``server`` can be given this traffic."""
        return self.obstacle(server) is None

    def load(self, server: AnyServer, seconds: float) -> Load:
        """Return this traffic as ``server`` gets it.

        Raises:
            ServerError: It does not speak the protocol.
        """
        protocol = server.speaks(self.protocol)
        if protocol is None:
            raise ServerError(f"{server.name} does not speak {self.protocol}")
        return Load(
            protocol=protocol,
            subscribers=self.subscribers,
            window=self.in_flight or server.windows.of(self.subscribers),
            payload=self.payload,
            topics=self.topics,
            wildcard=self.wildcard,
            single=self.in_flight is not None,
            seconds=seconds,
        )


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("pipelined-1", "200 bytes, one topic, writes of up to 64 KiB", 1),
        Regime("pipelined-9", "the same, nine subscribers", 9),
        Regime("pipelined-100", "the same, a hundred subscribers", 100),
        Regime("random-9", "50 to 400 bytes at random", 9, payload=(50, 400)),
        Regime("topics8-9", "eight topics, alternating message by message", 9, topics=8),
        Regime(
            "topics8-wild-9", "the same, subscribed to by one wildcard", 9, topics=8, wildcard=True
        ),
        Regime("inflight32-9", "32 messages in flight, one write each", 9, in_flight=32),
        Regime("one-9", "one message in flight", 9, in_flight=1),
        Regime("syndicate-1", "as pipelined-1, the relay with Syndicate", 1, protocol="syndicate"),
        Regime("syndicate-9", "the same, nine observers", 9, protocol="syndicate"),
        Regime("syndicate-100", "the same, a hundred observers", 100, protocol="syndicate"),
        Regime(
            "syndicate-random-9",
            "50 to 400 bytes at random",
            9,
            payload=(50, 400),
            protocol="syndicate",
        ),
        Regime(
            "syndicate-topics8-9",
            "eight speakers, alternating message by message",
            9,
            topics=8,
            protocol="syndicate",
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """The CPU per delivery that the relay may take at most, as a ratio to a peer's."""

    regime: str
    peer: str
    ratio: float


BUDGETS = (
    Budget("pipelined-1", "nats", 1.2),
    Budget("pipelined-9", "nats", 0.8),
    Budget("pipelined-100", "nats", 0.8),
    Budget("random-9", "nats", 1.5),
    Budget("topics8-9", "nats", 2.0),
    Budget("pipelined-1", "mosquitto", 0.08),
    Budget("pipelined-9", "mosquitto", 0.025),
    Budget("pipelined-100", "mosquitto", 0.025),
    Budget("one-9", "mosquitto", 1.2),
    Budget("syndicate-9", "mosquitto", 0.15),
    Budget("syndicate-100", "mosquitto", 0.06),
)


# ---- Measuring -----------------------------------------------------------------------------------

BUSY = 0.05
"""A measurement during which other processes took more than this share of the time is disturbed."""


@dataclasses.dataclass(frozen=True)
class Cores:
    """Where the server and the generator run: a core each, if there are two."""

    server: int | None
    generator: int | None

    @classmethod
    def choose(cls) -> Cores:
        """Take the first two cores this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(usable[0], usable[1]) if len(usable) > 1 else cls(None, None)

    def __str__(self) -> str:
        """Say it in words."""
        if self.server is None:
            return "server and generator share the only core: distrust every figure"
        return f"server on core {self.server}, generator on core {self.generator}"


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measurement, and what was measured."""

    number: int
    """Of the pass, from 1."""

    regime: str
    server: str
    measurement: Measurement


@dataclasses.dataclass
class Results:
    """All samples of a run, and what could not be measured."""

    samples: list[Sample] = dataclasses.field(default_factory=list[Sample])
    failures: list[str] = dataclasses.field(default_factory=list[str])

    def of(self, regime: str, server: str) -> list[Measurement]:
        """Return the measurements of one server in one regime."""
        return [
            sample.measurement
            for sample in self.samples
            if sample.regime == regime and sample.server == server
        ]

    def cpu_ratios(self, regime: str, server: str, peer: str) -> list[float]:
        """Return CPU per delivery of ``server`` over ``peer``'s, pass by pass."""
        cost = {
            (sample.server, sample.number): sample.measurement.cpu_seconds_per_million
            for sample in self.samples
            if sample.regime == regime
        }
        passes = sorted({number for name, number in cost if name == server})
        return [
            cost[server, number] / cost[peer, number]
            for number in passes
            if cost.get((peer, number), 0.0) > 0
        ]


def measure(regime: Regime, server: AnyServer, seconds: float, cores: Cores) -> Measurement:
    """Start the server, put the regime's load on it, stop it.

    Raises:
        ServerError: It did not start or stop as it should.
        GeneratorError: Nothing could be measured.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fanout-") as scratch,
        server.running(Path(scratch), cores.server) as running,
        pinned(cores.generator),
    ):
        load = regime.load(server, seconds)
        return run(load, port=running.ports[load.protocol], pid=running.pid)


def measure_quietly(
    regime: Regime, server: AnyServer, seconds: float, cores: Cores, retries: int
) -> Measurement:
    """Measure again while other processes disturbed it, `retries` times at most.

    The least disturbed counts: what it is chosen by is not what it shows. Raises as `measure`.
    """
    best = measure(regime, server, seconds, cores)
    for _ in range(retries):
        if best.kept_waiting <= BUSY:
            break
        again = measure(regime, server, seconds, cores)
        best = min(best, again, key=lambda found: found.kept_waiting)
    return best


def measure_all(
    regimes: list[Regime],
    servers: list[AnyServer],
    arguments: argparse.Namespace,
    cores: Cores,
    report: Callable[[str], None],
) -> Results:
    """Measure everything, interleaved; a measurement that fails is noted and left out."""
    results = Results()
    seconds, retries = arguments.seconds, arguments.retries
    for number in range(1, arguments.passes + 1):
        for regime in regimes:
            # Nobody is always first: who follows whom changes from pass to pass.
            turn = number % len(servers)
            for server in servers[turn:] + servers[:turn]:
                if not regime.suits(server):
                    continue
                what = f"pass {number}, {regime.name}, {server.name}"
                try:
                    found = measure_quietly(regime, server, seconds, cores, retries)
                except (GeneratorError, ServerError) as error:
                    results.failures.append(f"{what}: {error}")
                    report(f"{what}: FAILED: {error}")
                    continue
                results.samples.append(Sample(number, regime.name, server.name, found))
                report(
                    f"{what}: {found.deliveries_per_second:,.0f} deliveries/s, "
                    f"{found.cpu_seconds_per_million:.3f} CPU s per M"
                    + ("" if found.kept_waiting <= BUSY else " (machine busy)")
                    + ("" if found.whole else " (NOT ALL ARRIVED)")
                )
    return results


def profile(regime: Regime, server: AnyServer, seconds: float, cores: Cores) -> profiling.Profile:
    """Put the regime's load on the relay while it samples itself.

    Raises:
        ServerError, GeneratorError, profiling.ProfileError: It was not possible.
    """
    with tempfile.TemporaryDirectory(prefix="fanout-") as scratch:
        output = Path(scratch) / "samples.json"
        relay = profiling.sampled(server, output)
        with relay.running(Path(scratch), cores.server) as running, pinned(cores.generator):
            profiling.begin(running.pid)
            load = regime.load(relay, seconds)
            run(load, port=running.ports[load.protocol], pid=running.pid)
        return profiling.read(output)


@contextlib.contextmanager
def progress(total: int) -> Generator[Callable[[str], None]]:
    """Give a function that reports one finished step on stderr: a bar where rich is installed."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)

        def report(text: str) -> None:
            bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            bar.advance(task)

        yield report


# ---- Reporting -----------------------------------------------------------------------------------


def middle(values: Iterable[float], form: str) -> str:
    """Return the median and, if there are several values, their spread: ``4.2 (3.9-4.6)``."""
    ordered = sorted(values)
    if not ordered:
        return "-"
    median = f"{statistics.median(ordered):{form}}"
    if len(ordered) == 1:
        return median
    return f"{median} ({ordered[0]:{form}}-{ordered[-1]:{form}})"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["-"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def results_table(results: Results, regimes: list[Regime], servers: list[AnyServer]) -> str:
    """Return what was measured, a row for each regime and server."""
    head = [
        "regime",
        "server",
        "deliveries/s",
        "CPU s per M deliveries",
        "user",
        "x mosquitto",
        "x NATS",
        "server share",
        "generator share",
        "kept waiting",
        "RSS MB, before and peak",
        "lost",
    ]
    rows: list[list[str]] = []
    for regime in regimes:
        for server in servers:
            found = results.of(regime.name, server.name)
            if not found:
                continue
            ratios = [
                middle(results.cpu_ratios(regime.name, server.name, peer), ".3f")
                if peer != server.name
                else "1"
                for peer in ("mosquitto", "nats")
            ]
            user = sum(m.cpu_user_seconds for m in found) / sum(m.cpu_seconds for m in found)
            before = statistics.median(m.rss_before_mb for m in found)
            peak = max(m.rss_peak_mb for m in found)
            rows.append(
                [
                    regime.name,
                    server.name,
                    middle((m.deliveries_per_second for m in found), ",.0f"),
                    middle((m.cpu_seconds_per_million for m in found), ".3f"),
                    f"{user:.0%}",
                    *ratios,
                    middle((m.server_share for m in found), ".2f"),
                    middle((m.generator_share for m in found), ".2f"),
                    f"{statistics.median(m.kept_waiting for m in found):.0%}",
                    f"{before:.0f}, {peak:.0f}",
                    str(sum(m.lost for m in found)),
                ]
            )
    return table(head, rows)


def noise(results: Results) -> str:
    """Return a warning if other processes took the cores while it was measured; else nothing."""
    shares = [sample.measurement.kept_waiting for sample in results.samples]
    if not shares or statistics.median(shares) <= BUSY:
        return ""
    return (
        "\n**The machine was busy**: other processes kept the server or the generator waiting for "
        f"{statistics.median(shares):.0%} of the time (median; up to {max(shares):.0%}). Caches "
        "and batches suffer from that: measure again when it is idle, or with --retries.\n"
    )


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a budget."""

    budget: Budget
    ratio: float | None
    """The median over the passes; None: not measured."""

    @property
    def word(self) -> str:
        """One word for the table."""
        if self.ratio is None:
            return "not measured"
        return "held" if self.ratio <= self.budget.ratio else "MISSED"


def judge(results: Results) -> list[Verdict]:
    """Hold the relay's ratios against the budgets."""
    verdicts: list[Verdict] = []
    for budget in BUDGETS:
        ratios = results.cpu_ratios(budget.regime, "relay", budget.peer)
        verdicts.append(Verdict(budget, statistics.median(ratios) if ratios else None))
    return verdicts


def verdicts_table(verdicts: list[Verdict]) -> str:
    """Return the budgets and what became of them."""
    rows = [
        [
            verdict.budget.regime,
            f"at most {verdict.budget.ratio:g} x {verdict.budget.peer}",
            "-" if verdict.ratio is None else f"{verdict.ratio:.3f}",
            verdict.word,
        ]
        for verdict in verdicts
    ]
    return table(["regime", "budget of CPU per delivery", "measured", "verdict"], rows)


def machine() -> dict[str, str]:
    """Describe the machine, as far as it matters to the figures."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "trio": importlib.metadata.version("trio"),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


# ---- The command line ----------------------------------------------------------------------------


def positive(text: str) -> float:
    """Read a positive number."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Server CPU per delivery: the relay beside other servers.",
        epilog="regimes: " + "; ".join(f"{r.name}: {r.meaning}" for r in REGIMES.values()),
    )
    parser.add_argument("--passes", type=int, default=3, help="how often all is measured (3)")
    parser.add_argument(
        "--seconds", type=positive, default=3.0, help="of publishing in a measurement (3)"
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        help="measure again, this often at most, when other processes disturbed it (0)",
    )
    parser.add_argument("--regimes", help="names, separated by commas (all)")
    names = ["relay", *(peer.name for peer in PEERS)]
    usual = ["relay", *(broker.name for broker in BROKERS)]
    parser.add_argument(
        "--servers",
        help=f"names, separated by commas, of {','.join(names)}; or all ({','.join(usual)})",
    )
    parser.add_argument(
        "--relay-command",
        metavar="COMMAND",
        help="measure another MQTT server in the relay's place: a command line with {port} in it",
    )
    parser.add_argument(
        "--relay-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="give `clearfunds relay` a further option, as in --relay-option=--limit-items=1000",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="instead, sample the relay under pipelined-9 (or --regimes), and show how much of its "
        "time is the bookkeeping of debt",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if the relay misses a budget"
    )
    arguments = parser.parse_args()
    if arguments.passes < 1:
        parser.error("--passes: at least 1")
    if arguments.retries < 0:
        parser.error("--retries: at least 0")
    if arguments.profile:
        arguments.servers = "relay"
        arguments.regimes = arguments.regimes or "pipelined-9"
    if arguments.servers == "all":
        arguments.servers = ",".join(names)
    # Python's brokers and RabbitMQ would double the time that all regimes take.
    for option, known, wanted in (
        ("regimes", list(REGIMES), list(REGIMES)),
        ("servers", names, usual),
    ):
        given: str | None = getattr(arguments, option)
        chosen = wanted if given is None else [word for word in given.split(",") if word]
        for word in chosen:
            if word not in known:
                parser.error(f"--{option}: {word} is not one of {', '.join(known)}")
        if not chosen:
            parser.error(f"--{option}: none given")
        setattr(arguments, option, [word for word in known if word in chosen])
    return arguments


def choose_servers(arguments: argparse.Namespace) -> list[AnyServer]:
    """Return the chosen servers that are here; say on stderr which are not."""
    relay: AnyServer = Relay(options=tuple(arguments.relay_option))
    if arguments.relay_command:
        relay = CommandServer(arguments.relay_command)
    servers = those_here(each for each in (relay, *PEERS) if each.name in arguments.servers)
    if not servers:
        sys.exit("fanout: none of the chosen servers is here, so there is nothing to measure.")
    return servers


def write_json(
    path: Path, about: dict[str, Any], results: Results, verdicts: list[Verdict]
) -> None:
    """Write everything that was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        **about,
        "samples": [dataclasses.asdict(sample) for sample in results.samples],
        "failures": results.failures,
        "budgets": [
            {**dataclasses.asdict(v.budget), "measured": v.ratio, "verdict": v.word}
            for v in verdicts
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def exit_status(results: Results, verdicts: list[Verdict], *, check: bool) -> int:
    """Return 1 when something failed or, with ``--check``, was not as it has to be."""
    wrong = [f"could not be measured: {failure}" for failure in results.failures]
    if check:
        missed = [v for v in verdicts if v.word == "MISSED"]
        wrong += [f"budget missed: {v.budget.regime}, x {v.budget.peer}" for v in missed]
        if all(v.ratio is None for v in verdicts):
            wrong.append("no budget could be judged: it takes the relay and a peer")
        wrong += [
            f"{sample.regime}, pass {sample.number}: not everything arrived from the relay"
            for sample in results.samples
            if sample.server == "relay" and not sample.measurement.whole
        ]
    for line in wrong:
        print(f"fanout: {line}", file=sys.stderr)
    return 1 if wrong else 0


def main_profile(arguments: argparse.Namespace, regimes: list[Regime], cores: Cores) -> int:
    """Profile the relay and hold the bookkeeping's share against what it may take."""
    (relay,) = choose_servers(arguments)
    missed = False
    for regime in regimes:
        try:
            found = profile(regime, relay, arguments.seconds, cores)
        except (GeneratorError, ServerError, profiling.ProfileError) as error:
            sys.exit(f"fanout: {regime.name} could not be profiled: {error}")
        print(f"## {relay.name}, {regime.name}: {found.samples.total()} samples\n")
        print(table(["share", "function", "file", "bookkeeping of debt"], found.rows()))
        missed |= found.bookkeeping > profiling.BOOKKEEPING_SHARE
        print(
            f"\nIn the kernel: {1 - found.user:.1%} of the CPU time. "
            f"Bookkeeping of debt: {found.bookkeeping:.1%}, "
            f"at most {profiling.BOOKKEEPING_SHARE:.0%} wanted at N=9, pipelined\n"
        )
    return 1 if missed and arguments.check else 0


def main() -> int:
    """Measure, report, judge."""
    arguments = parse_arguments()
    try:
        build()
    except GeneratorError as error:
        sys.exit(f"fanout: {error}")
    regimes = [REGIMES[name] for name in arguments.regimes]
    cores = Cores.choose()
    if arguments.profile:
        return main_profile(arguments, regimes, cores)
    servers = choose_servers(arguments)
    about: dict[str, Any] = {
        "machine": machine(),
        "pinning": str(cores),
        "servers": {server.name: server.version() for server in servers},
        "passes": arguments.passes,
        "seconds": arguments.seconds,
        "retries": arguments.retries,
    }

    unsuited = [(r, s, obstacle) for r in regimes for s in servers if (obstacle := r.obstacle(s))]
    for regime, server, obstacle in unsuited:
        print(f"{server.name} is left out of {regime.name}: {obstacle}.", file=sys.stderr)
    steps = arguments.passes * (len(regimes) * len(servers) - len(unsuited))
    with progress(steps) as report:
        results = measure_all(regimes, servers, arguments, cores, report)
    verdicts = judge(results)

    print("## Fan-out: one publisher, N subscribers\n")
    print("; ".join(f"{name} {value}" for name, value in about["machine"].items()))
    print("; ".join(f"{name}: {version}" for name, version in about["servers"].items()))
    print(f"{cores}; passes: {arguments.passes}, interleaved; seconds: {arguments.seconds:g}")
    print("Medians (least-most); ratios are of CPU per delivery, within a pass.\n")
    print(results_table(results, regimes, servers))
    print(noise(results))
    print("### Budgets of the relay\n")
    print(verdicts_table(verdicts))
    if arguments.json is not None:
        write_json(arguments.json, about, results, verdicts)
    return exit_status(results, verdicts, check=arguments.check)


if __name__ == "__main__":
    sys.exit(main())
