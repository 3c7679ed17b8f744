"""RabbitMQ's own load generator, PerfTest, against the relay and a real RabbitMQ in one run.

    python -m benchmarks.perftest --quick          # the loads with budgets: two minutes
    python -m benchmarks.perftest                  # all of the seeds' experiments
    python -m benchmarks.perftest --only confirm,prefetch --passes 5
    python -m benchmarks.perftest --quick --check  # fail where a budget is missed
    python -m benchmarks.perftest --plot           # the plots in docs/, from the results

Both servers are started afresh for each pass, on one and the same core; PerfTest has the other one.
Each server may use half of its core (`--core-share`, which needs root): with a whole one, PerfTest
is what limits the rate. They take turns, load by load, and the order of the two changes with each
pass; the one that has no load costs next to nothing meanwhile. Each measurement is one run of
PerfTest. Its first seconds (`WARM_SECONDS`) do not count, as the Java virtual machine compiles
then. Rates and latencies are those that PerfTest reports; the server's CPU time is read at each of
its reports, so that both cover the same seconds. Ratios are taken pass by pass, and their median is
judged.

Results are written as JSON to docs/data/perftest.json (`--json FILE`: elsewhere), with the machine;
docs/rabbitmq.md explains them. Needs Linux, Java, Maven and rabbitmq-server; Maven fetches PerfTest
and what it needs (`PERFTEST`) into its own repository.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.clients import resident
from benchmarks.core_share import NoShareError, core_share
from benchmarks.fanout import Cores, machine, positive
from benchmarks.perftest_plots import draw
from benchmarks.servers import (
    RABBITMQ_AMQP,
    RabbitMQ,
    Relay,
    Running,
    ServerError,
    lines_until,
    pinned,
)

ROOT = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "docs" / "data" / "perftest.json"
PERFTEST: Final = ("com.rabbitmq", "perf-test", "2.22.1")
"""PerfTest's coordinates in Maven Central; the last version before 3.0, which needs Java 21."""
TICK: Final = os.sysconf("SC_CLK_TCK")
MIB: Final = 1 << 20
WARM_SECONDS: Final = 3.0
"""PerfTest's seconds that do not count. On one core its rate still grows in the third."""
SECONDS: Final = 9.0
"""Seconds of one run of PerfTest, with those."""
GRACE_SECONDS: Final = 40.0
"""Seconds beyond its time in which it has to start and end."""
PAYLOAD: Final = 1_000
SHARE: Final = 0.5
"""The share of its core that a server may use. PerfTest cannot do more than 130,000 messages a
second on a core, so with a whole one the server is not what limits the rate."""
BACKLOG_RATE: Final = 3_000
"""Messages a second that go on while a backlog drains: what either server does with ease."""
RECEIVE_BUFFER: Final = 1 << 20
"""Bytes of PerfTest's receive buffers. With the JVM's own, 128 KiB, the window of a loopback
connection is smaller than its segments of 64 KiB. Both sides then wait for timers of the kernel,
4 ms at a time, half of the time, whatever the server."""
PACE: Final = 10_000
"""Messages a second, where neither server is busy: there latencies are the servers' own."""
STALLED_MICROSECONDS: Final = 1_000_000_000
"""A consumer that takes so long with a message has stopped, for all that a run sees."""

MAVEN: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId> <artifactId>perftest</artifactId> <version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>{}</groupId> <artifactId>{}</artifactId> <version>{}</version>
  </dependency></dependencies>
</project>
"""


class PerfTestError(Exception):
    """PerfTest could not be found or did not do its work; the message says why."""


# -- the loads -------------------------------------------------------------------------------------


@attrs.frozen
class Load:
    """One way to run PerfTest."""

    sweep: str
    """The experiment that it belongs to."""
    value: int
    """What is varied in the experiment; 0 if nothing is."""
    options: tuple[str, ...]
    """PerfTest's options, beside those of all loads."""
    payload: int = PAYLOAD
    """Bytes of a message's body."""
    seconds: float = SECONDS
    """Seconds of one run."""
    fresh: bool = False
    """Whether it needs servers of its own: it is about their memory."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.sweep} {self.value}" if self.value else self.sweep


def _loads() -> Iterator[Load]:
    for confirms in (1, 10, 100, 1_000):
        yield Load("confirm", confirms, ("-c", str(confirms), "-q", "100"))
    yield Load("autoack", 0, ("-a",))
    for prefetch in (1, 3, 10, 30, 100, 300, 1_000):
        yield Load("prefetch", prefetch, ("-c", "1000", "-q", str(prefetch)))
    for every in (1, 10, 100, 500):
        multiple = () if every == 1 else ("-A", str(every))
        yield Load("ack-every", every, ("-c", "1000", "-q", "1000", *multiple))
    ten = ("-qp", "ten-%d", "-qpf", "1", "-qpt", "10", "-x", "10", "-y", "10")
    yield Load("ten-queues", 0, (*ten, "-c", "100", "-q", "100"), payload=20_000, seconds=12)
    backlog = ("-c", "1000", "-q", "1000", "-r", str(BACKLOG_RATE), "-csd", "5", "-f", "persistent")
    yield Load("backlog", 0, backlog, seconds=15, fresh=True)
    yield Load("paced", 0, ("-c", "100", "-q", "100", "-r", str(PACE)))
    stalled = ("-q", "100", "-L", str(STALLED_MICROSECONDS))
    yield Load("stalled", 0, stalled, seconds=12, fresh=True)


LOADS: Final = tuple(_loads())
MEANINGS: Final = {
    "confirm": "publications that wait for their confirms (prefetch 100)",
    "autoack": "automatic acknowledgement, no confirms",
    "prefetch": "prefetch (1,000 confirms outstanding, single acknowledgements)",
    "ack-every": "one acknowledgement with `multiple` for so many (1,000 confirms, prefetch 1,000)",
    "ten-queues": "ten queues, ten publishers, ten consumers, 20 kB messages, 100 confirms each",
    "backlog": f"persistent messages, {BACKLOG_RATE:,} a second; consumers come after five seconds",
    "paced": f"{PACE:,} messages a second, which both do with ease; 100 confirms outstanding",
    "stalled": "a consumer that has stopped; its publisher asks for no confirms",
}
QUICK: Final = ("confirm 100", "autoack", "stalled")
"""The loads with budgets."""


# -- one run of PerfTest ---------------------------------------------------------------------------

_REPORT: Final = re.compile(rb"time ([\d.]+) s[,:]")
_RATE: Final = re.compile(rb"(sent|confirmed|received): (\d+) msg/s")
_LATENCY: Final = re.compile(rb"(consumer|confirm) latency: ([\d/]+) ")


@attrs.frozen
class Second:
    """One report of PerfTest, and the server at that moment."""

    at: float
    """Seconds since it began."""
    sent: int
    """Messages a second."""
    received: int
    latency: tuple[int, int] | None
    """From publisher to consumer: median and 99th percentile, in microseconds."""
    confirmed_in: tuple[int, int] | None
    """The same, until the confirm has come."""
    cpu: float
    """Seconds of CPU time that the server has taken so far."""
    rss: int
    """Bytes of memory that it has."""


def parse(line: bytes, cpu: float, rss: int) -> Second | None:
    """Return what a line of PerfTest's output reports; None: it is no report."""
    at = _REPORT.search(line)
    if at is None:
        return None
    rates = {kind: int(rate) for kind, rate in _RATE.findall(line)}
    found: dict[bytes, tuple[int, int]] = {}
    for kind, numbers in _LATENCY.findall(line):
        _, median, _, _, last = map(int, numbers.split(b"/"))
        found[kind] = (median, last)
    return Second(
        float(at[1]), rates.get(b"sent", 0), rates.get(b"received", 0),
        found.get(b"consumer"), found.get(b"confirm"), cpu, rss,
    )  # fmt: skip


def memory(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    return int(1e6 * resident([pid]))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has taken, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@attrs.frozen
class Result:
    """One run of PerfTest against one server."""

    load: str
    sweep: str
    value: int
    server: str
    number: int
    """The pass."""
    sent: float
    """Messages a second, on average over the seconds that count."""
    received: float
    cpu: float | None
    """CPU seconds of the server for a million messages received (published, where none are)."""
    latency_ms: tuple[float, float] | None
    """Median and 99th percentile, from publisher to consumer; medians over the seconds."""
    confirm_ms: tuple[float, float] | None
    rss_before: int
    rss: int
    """Most bytes of memory."""
    seconds: list[list[float]]
    """Each report: its time, messages sent and received a second, bytes of memory."""


def _middle(pairs: Sequence[tuple[int, int] | None]) -> tuple[float, float] | None:
    known = [pair for pair in pairs if pair is not None and pair[1]]
    if not known:
        return None
    return (
        statistics.median([median for median, _ in known]) / 1e3,
        statistics.median([last for _, last in known]) / 1e3,
    )


def summed(load: Load, server: str, number: int, rss_before: int, seconds: list[Second]) -> Result:
    """Return the result of a run from its reports.

    Raises:
        PerfTestError: There are too few of them.
    """
    warm = [place for place, each in enumerate(seconds) if each.at <= WARM_SECONDS + 0.5]
    first = warm[-1] if warm else 0
    counted = seconds[first + 1 :]
    if not counted:
        msg = f"PerfTest has reported {len(seconds)} times only"
        raise PerfTestError(msg)
    sent = received = 0.0
    before = seconds[first].at
    for each in counted:
        took, before = each.at - before, each.at
        sent += each.sent * took
        received += each.received * took
    span = counted[-1].at - seconds[first].at
    messages = received or sent
    cpu = counted[-1].cpu - seconds[first].cpu
    return Result(
        load.name, load.sweep, load.value, server, number,
        sent / span, received / span, 1e6 * cpu / messages if messages else None,
        _middle([each.latency for each in counted]),
        _middle([each.confirmed_in for each in counted]),
        rss_before, max(each.rss for each in seconds),
        [[each.at, each.sent, each.received, each.rss] for each in seconds],
    )  # fmt: skip


def class_path(scratch: Path) -> str:
    """Return the class path of PerfTest; Maven fetches what is missing.

    Raises:
        PerfTestError: There is no Java or no Maven, or it finds no PerfTest.
    """
    for program, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            msg = f"PerfTest needs {program} (Debian: apt install {package})"
            raise PerfTestError(msg)
    (scratch / "pom.xml").write_text(MAVEN.format(*PERFTEST))
    found = scratch / "class-path"
    done = subprocess.run(
        ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={found}"],
        cwd=scratch, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not found.exists():
        msg = f"Maven finds no PerfTest {PERFTEST[2]}:\n{(done.stdout or done.stderr)[-600:]}"
        raise PerfTestError(msg)
    return found.read_text().strip()


@attrs.frozen
class Bench:
    """A place to run PerfTest in."""

    classes: str
    cores: Cores

    def run(self, load: Load, server: str, running: Running, number: int) -> Result:
        """Run PerfTest once.

        Raises:
            PerfTestError: It failed, or did not end in time.
        """
        pid = running.pid
        command = [
            "java", "-cp", self.classes, "com.rabbitmq.perf.PerfTest",
            "-h", f"amqp://guest:guest@127.0.0.1:{running.port}", "-s", str(load.payload),
            "-z", f"{load.seconds:.0f}", "-st", "1", "-trbs", str(RECEIVE_BUFFER), *load.options,
        ]  # fmt: skip
        seconds: list[Second] = []
        tail: list[bytes] = []
        before = memory(pid)
        with pinned(self.cores.generator):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            assert process.stdout is not None
            deadline = time.monotonic() + load.seconds + GRACE_SECONDS
            for line in lines_until(process.stdout, deadline):
                tail = [*tail[-7:], line]
                report = parse(line, cpu_seconds(pid), memory(pid))
                if report is not None and report.at <= load.seconds + 0.5:
                    seconds.append(report)
            if not seconds or seconds[-1].at < load.seconds - 0.5:
                # PerfTest reports no second in which nothing was sent or received.
                seconds.append(
                    Second(load.seconds, 0, 0, None, None, cpu_seconds(pid), memory(pid))
                )
        finally:
            process.kill()
            process.communicate()
        try:
            return summed(load, server, number, before, seconds)
        except PerfTestError as error:
            end = b"\n".join(tail).decode(errors="replace")
            msg = f"{load.name} against {server}: {error}; the end of its output:\n{end}"
            raise PerfTestError(msg) from None


# -- both servers, by turns ------------------------------------------------------------------------

RELAY: Final = Relay(protocols=("amqp",))


@contextlib.contextmanager
def both(cores: Cores, share: float, options: Sequence[str]) -> Generator[dict[str, Running]]:
    """Start both servers, on one core, of which each may use `share`."""
    servers: tuple[Relay | RabbitMQ, ...] = (RELAY, RABBITMQ_AMQP)
    with contextlib.ExitStack() as stack:
        started: dict[str, Running] = {}
        for server in servers:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=server.name)))
            if isinstance(server, Relay):
                # RabbitMQ has a disk to page to, and so has the relay.
                store = f"--store={scratch / 'store'}"
                server = dataclasses.replace(server, options=(store, *options))
            group = None
            if share < 1:
                name = f"clearfunds-{os.getpid()}-{server.name}"
                group = stack.enter_context(core_share(share, name))
            started[server.name] = stack.enter_context(server.running(scratch, cores.server))
            if group is not None:
                group.takes(started[server.name].pid)
        yield started


def measure(
    loads: Sequence[Load], passes: int, cores: Cores, share: float, options: Sequence[str],
    report: Callable[[str], None],
) -> Iterator[list[Result]]:  # fmt: skip
    """Measure each load against both servers; yield all results after each pass.

    Raises:
        NoShareError: See `core_share`.
        PerfTestError: See `Bench.run`.
        ServerError: A server could not be started, or did not end.
    """
    results: list[Result] = []
    groups = [[each for each in loads if not each.fresh]]
    groups += [[each] for each in loads if each.fresh]
    with tempfile.TemporaryDirectory(prefix="perftest") as scratch:
        bench = Bench(class_path(Path(scratch)), cores)
        for number in range(passes):
            for group in filter(None, groups):
                with both(cores, share, options) as servers:
                    for load in group:
                        turns = list(servers.items())
                        for name, running in turns[:: -1 if number % 2 else 1]:
                            result = bench.run(load, name, running, number)
                            results.append(result)
                            report(f"pass {number + 1}  {row(result)}")
            yield results


# -- what comes of it ------------------------------------------------------------------------------


def _ms(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{pair[0]:.1f} / {pair[1]:.1f}"


def row(result: Result) -> str:
    """Return a result as a line."""
    cpu = "" if result.cpu is None else f"{result.cpu:.1f}"
    return (
        f"{result.load:15} {result.server:9} sent {result.sent:8,.0f}/s  "
        f"received {result.received:8,.0f}/s  CPU {cpu:>6} s/million  "
        f"latency {_ms(result.latency_ms) or '-'} ms  confirm {_ms(result.confirm_ms) or '-'} ms  "
        f"RSS {result.rss / MIB:,.0f} MiB"
    )


COLUMNS: Final = (
    "load", "server", "received/s", "CPU s/million", "latency p50 / p99, ms",
    "confirm p50 / p99, ms", "peak RSS, MiB", "rate ratio", "CPU ratio",
)  # fmt: skip


def of(results: Sequence[Result], load: str, server: str) -> list[Result]:
    """Return the results of a load against a server, by pass."""
    found = [each for each in results if (each.load, each.server) == (load, server)]
    return sorted(found, key=lambda each: each.number)


def ratios(
    results: Sequence[Result], load: str, what: Callable[[Result], float | None]
) -> list[float]:
    """Return the relay's figure over RabbitMQ's, pass by pass."""
    pairs = zip(of(results, load, "relay"), of(results, load, "rabbitmq"), strict=False)
    found = [(what(ours), what(theirs)) for ours, theirs in pairs]
    return [ours / theirs for ours, theirs in found if ours is not None and theirs]


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else ""


def table(results: Sequence[Result]) -> str:
    """Return medians over the passes as a table in Markdown, with the ratios."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "| - | - | -: | -: | -: | -: | -: | -: | -: |",
    ]
    for load in dict.fromkeys(each.load for each in results):
        for server in ("relay", "rabbitmq"):
            runs = of(results, load, server)
            if not runs:
                continue
            rate = statistics.median(each.received or each.sent for each in runs)
            costs = [each.cpu for each in runs if each.cpu is not None]
            ours = server == "relay"
            cells = [
                load,
                server,
                f"{rate:,.0f}" if any(each.received for each in runs) else f"{rate:,.0f} sent",
                f"{statistics.median(costs):.1f}" if costs else "",
                _ms(_middle_of([each.latency_ms for each in runs])),
                _ms(_middle_of([each.confirm_ms for each in runs])),
                f"{statistics.median(each.rss for each in runs) / MIB:,.0f}",
                _median(ratios(results, load, _rate)) if ours else "",
                _median(ratios(results, load, _cost)) if ours else "",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _middle_of(pairs: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return None
    first, last = zip(*known, strict=True)
    return statistics.median(first), statistics.median(last)


def _rate(result: Result) -> float:
    return result.received


def _cost(result: Result) -> float | None:
    return result.cpu


def _growth(result: Result) -> float:
    return float(result.rss - result.rss_before)


@attrs.frozen
class Budget:
    """What must hold of a ratio between the relay and RabbitMQ."""

    load: str
    what: str
    of: Callable[[Result], float | None]
    least: float = 0.0
    most: float = float("inf")

    def verdict(self, results: Sequence[Result]) -> tuple[bool, str] | None:
        """Return whether it holds, and a sentence; None: it was not measured."""
        found = ratios(results, self.load, self.of)
        if not found:
            return None
        middle = statistics.median(found)
        holds = self.least <= middle <= self.most
        bound = f"at least {self.least:g}" if self.least else f"at most {self.most:g}"
        each = ", ".join(f"{one:.2f}" for one in found)
        said = "holds" if holds else "MISSED"
        return (
            holds,
            f"{self.load}: {self.what} {middle:.2f} x RabbitMQ's ({each}); {bound}: {said}",
        )


BUDGETS: Final = (
    Budget("confirm 100", "rate", _rate, least=1.0),
    Budget("confirm 100", "CPU a message", _cost, most=0.5),
    Budget("autoack", "rate", _rate, least=2.0),
    Budget("stalled", "growth of memory", _growth, most=0.5),
)
"""What must hold, as ratios of one run."""


def check(results: Sequence[Result]) -> bool:
    """Print which budgets hold; return whether all that were measured do."""
    good = True
    for budget in BUDGETS:
        verdict = budget.verdict(results)
        if verdict is not None:
            good &= verdict[0]
            print(verdict[1])
    return good


def share_of_a_core(text: str) -> float:
    """Read a share: more than 0, at most 1."""
    share = float(text)
    if not 0 < share <= 1:
        raise ValueError
    return share


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="RabbitMQ's PerfTest against the relay and RabbitMQ, by turns.",
        epilog="loads: " + "; ".join(f"{name}: {text}" for name, text in MEANINGS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="only the loads with budgets")
    parser.add_argument("--only", default="", help="only these experiments or loads, with commas")
    parser.add_argument("--passes", type=int, default=0, help="how often (3; with --quick 2)")
    parser.add_argument("--seconds", type=positive, help=f"of one run of PerfTest ({SECONDS:g})")
    parser.add_argument(
        "--core-share", type=share_of_a_core, default=SHARE,
        help=f"the share of a core that each server may use ({SHARE:g}); 1 needs no root",
    )  # fmt: skip
    parser.add_argument(
        "--relay-option", action="append", default=[], help="a further option of the relay"
    )
    parser.add_argument("--json", type=Path, help=f"where the results go ({DATA.name})")
    parser.add_argument("--check", action="store_true", help="fail where a budget is missed")
    parser.add_argument("--plot", action="store_true", help="draw what was measured before")
    return parser.parse_args()


def chosen(arguments: argparse.Namespace) -> list[Load]:
    """Return the loads to measure."""
    loads = [each for each in LOADS if not arguments.quick or each.name in QUICK]
    names = {name.strip() for name in arguments.only.split(",") if name.strip()}
    unknown = names - {each.sweep for each in LOADS} - {each.name for each in LOADS}
    if unknown:
        sys.exit(f"perftest: there are no loads called {', '.join(sorted(unknown))}; "
                 f"there are {', '.join(MEANINGS)}")  # fmt: skip
    if names:
        loads = [each for each in loads if each.sweep in names or each.name in names]
    if arguments.seconds:
        loads = [attrs.evolve(each, seconds=arguments.seconds) for each in loads]
    return loads


def main() -> int:
    """Measure, print, write; return the exit status."""
    arguments = parse_arguments()
    if arguments.plot:
        draw(json.loads((arguments.json or DATA).read_text()), ROOT / "docs")
        return 0
    for server in (RELAY, RABBITMQ_AMQP):
        if (missing := server.missing()) is not None:
            print(missing, file=sys.stderr)
            return 2
    cores = Cores.choose()
    about = machine() | {"where": str(cores), "perftest": PERFTEST[2]}
    about["share of its core for a server"] = f"{arguments.core_share:g}"
    about |= {server.name: server.version() for server in (RELAY, RABBITMQ_AMQP)}
    passes = arguments.passes or (2 if arguments.quick else 3)
    to = arguments.json or (None if arguments.quick or arguments.only else DATA)
    results: list[Result] = []
    try:
        for results in measure(
            chosen(arguments), passes, cores, arguments.core_share, arguments.relay_option,
            lambda text: print(text, file=sys.stderr, flush=True),
        ):  # fmt: skip
            about["load after"] = f"{os.getloadavg()[0]:.2f}"
            if to is not None:
                rows = [attrs.asdict(each) for each in results]
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_text(json.dumps({"about": about, "results": rows}, indent=1) + "\n")
    except (NoShareError, PerfTestError, ServerError) as error:
        hint = "; try --core-share 1" if isinstance(error, NoShareError) else ""
        print(f"{error}{hint}", file=sys.stderr)
        return 2
    print("; ".join(f"{name}: {value}" for name, value in about.items()))
    print(table(results))
    good = check(results)
    return 0 if good or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
