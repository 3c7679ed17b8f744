"""The cost of monitoring a relay: CPU, the longest step of a page, and the sizes of pages.

The relay is a process with its defaults, and each account is a connected MQTT client. Each has
published one message, which a subscriber holds unacknowledged (`--idle`: none has); with
`--waiting` each has published more than it may owe, and waits. A few more messages a second go
through. Then the relay is monitored as by an operator, for `--seconds`: one browser has the live
page open, and `/metrics` and `/metrics/detailed` are fetched as in dashboards/prometheus.yml. It
prints

    CPU       of the relay, as part of one core: unwatched, watched, and the difference
    steps     the longest time that a task of the HTTP server ran without a checkpoint, garbage
              collections left out, in milliseconds: while it was watched, and then for each page
              (the usual fetch and the worst)
    gc        the longest pass of the garbage collector meanwhile
    page      how far apart the live page's samples came
    sizes     of the pages, in bytes, with 10, 1,000 and 10,000 accounts

The budget (`--check`): less than 3 % of a core, no step longer than 5 ms, and a `/metrics` of
constant size (but for the lengths of names and numbers).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import connect, subscribe, utf8
from benchmarks.scrape import Longest
from benchmarks.servers import ServerError, lines_until, started
from clearfunds.__main__ import main as clearfunds

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

ROOT: Final = Path(__file__).resolve().parent.parent
BUDGET_SHARE: Final = 0.03
BUDGET_MILLISECONDS: Final = 5.0
HOLDERS: Final = 16
"""Subscribers that acknowledge nothing."""
TRAFFIC_SECONDS: Final = 0.05
OTHERS: Final = HOLDERS + 2
"""Connections beside those that owe: the holders, and two for the traffic."""


# -- the relay -------------------------------------------------------------------------------------


def relay(arguments: list[str]) -> None:
    """Run the relay's command line, and at SIGUSR1 write a line about steps since the last one."""
    longest = Longest()
    gc.callbacks.append(longest.collector_called)

    def tell(_number: int, _frame: FrameType | None) -> None:
        step, _, collection = longest.take()
        print(json.dumps({"step": step, "gc": collection}), flush=True)

    signal.signal(signal.SIGUSR1, tell)
    # The command line knows of no instruments.
    setattr(trio, "run", partial(trio.run, instruments=[longest]))  # noqa: B010
    sys.argv[1:] = ["relay", *arguments]
    clearfunds()


@attrs.define
class Watched:
    """A relay that is measured."""

    process: subprocess.Popen[bytes]
    port: int
    http: str

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
        )

    def longest(self) -> tuple[float, float]:
        """Return its longest step and garbage collection since it was last asked."""
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.stdout is not None
        for line in lines_until(self.process.stdout, time.monotonic() + 10):
            said: dict[str, float] = json.loads(line)
            return said["step"], said["gc"]
        raise ServerError("the relay does not answer a signal")

    def fetch(self, path: str) -> int:
        """Get a page; return its size."""
        with urllib.request.urlopen(self.http + path, timeout=60) as page:
            return len(page.read())


@contextlib.contextmanager
def running(options: list[str]) -> Generator[Watched]:
    """Start a relay; end it at the end of the block."""
    command = [sys.executable, str(Path(__file__).resolve()), "--relay", *options]
    command += ["--listen=mqtt+tcp://127.0.0.1:0", "--http=127.0.0.1:0", "--log-level=warning"]
    with (
        tempfile.TemporaryDirectory() as scratch,
        started("relay", command, Path(scratch), None, piped=True) as process,
    ):
        assert process.stdout is not None
        addresses: dict[str, str] = {}
        for line in lines_until(process.stdout, time.monotonic() + 15):
            addresses.update(json.loads(line))
            if "ready" in addresses:
                break
        else:
            raise ServerError("the relay did not say that it is ready")
        port = int(addresses["listening"].rpartition(":")[2])
        yield Watched(process, port, addresses["http"])


# -- its clients -----------------------------------------------------------------------------------


def publication(topic: str, payload: bytes, qos: int = 0, packet_id: int = 1) -> bytes:
    """Return a PUBLISH."""
    body = utf8(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + payload
    assert len(body) < 128
    return bytes((0x30 | qos << 1, len(body))) + body


@contextlib.contextmanager
def clients(port: int, accounts: int, copies: int) -> Generator[None]:
    """Connect that many, each of which owes for so many messages."""
    socks: list[socket.socket] = []
    ended = threading.Event()
    try:
        for number in range(HOLDERS):
            socks.append(connect(port, 1_000_000 + number))
            subscribe(socks[-1], f"held/{number}", 1)
        for number in range(accounts):
            socks.append(connect(port, number))
            for copy in range(copies):
                topic = f"held/{number % HOLDERS}"
                socks[-1].sendall(publication(topic, b"a reading", 1, copy + 1))
        reader, writer = connect(port, 2_000_000), connect(port, 2_000_001)
        socks += [reader, writer]
        subscribe(reader, "tick", 0)

        def tick() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(TRAFFIC_SECONDS):
                    writer.sendall(publication("tick", b"tock"))
                    reader.recv(4096)

        threading.Thread(target=tick).start()
        yield
    finally:
        ended.set()
        for sock in socks:
            sock.close()


# -- those who watch -------------------------------------------------------------------------------


@attrs.frozen
class Scrape:
    """What Prometheus asks for, and how often."""

    path: str
    seconds: float


def scrapes() -> list[Scrape]:
    """Return what dashboards/prometheus.yml says."""
    text = (ROOT / "dashboards" / "prometheus.yml").read_text(encoding="utf-8")
    general, _, jobs = text.partition("scrape_configs:")

    def interval(of: str, default: float) -> float:
        found = re.search(r"^ *scrape_interval: (\d+)s$", of, re.MULTILINE)
        return float(found[1]) if found else default

    usual = interval(general, 60.0)
    made: list[Scrape] = []
    for job in jobs.split("- job_name:")[1:]:
        found = re.search(r"metrics_path: (\S+)", job)
        params = re.findall(r'^ +(\w+): \["([^"]*)"\]$', job, re.MULTILINE)
        query = "&".join(f"{name}={value}" for name, value in params)
        path = (found[1] if found else "/metrics") + (f"?{query}" if query else "")
        made.append(Scrape(path, interval(job, usual)))
    return made


class Watchers:
    """A browser and a Prometheus, in threads."""

    def __init__(self, watched: Watched, made: list[Scrape], *, page: bool) -> None:
        self._ended = threading.Event()
        self._watched = watched
        self.samples: list[float] = []
        self.scraped = 0
        self._threads = [threading.Thread(target=self._scrape, args=(each,)) for each in made]
        if page:
            self._threads.append(threading.Thread(target=self._browse))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _scrape(self, each: Scrape) -> None:
        due = time.monotonic()
        while True:
            self._watched.fetch(each.path)
            self.scraped += 1
            due += each.seconds
            if self._ended.wait(max(0.0, due - time.monotonic())):
                return

    def _browse(self) -> None:
        with urllib.request.urlopen(f"{self._watched.http}/live/events", timeout=60) as page:
            for line in page:
                if line.startswith(b"event: sample"):
                    self.samples.append(time.monotonic())
                if self._ended.is_set():
                    return


def share(watched: Watched, seconds: float) -> float:
    """Return which part of a core the relay takes."""
    began, before = time.monotonic(), watched.cpu_seconds()
    time.sleep(seconds)
    return (watched.cpu_seconds() - before) / (time.monotonic() - began)


# -- the report ------------------------------------------------------------------------------------


def settle(watched: Watched) -> None:
    """Wait until the relay has read what it was sent."""
    while share(watched, 0.5) > 0.1:
        pass


def measure(accounts: int, options: Any, paths: list[str]) -> tuple[dict[str, int], float, float]:
    """Print all of it for so many accounts; return sizes, the cost of being watched, the step."""
    copies, relay_options = 1, []
    if options.idle:
        copies = 0
    elif options.waiting:
        copies, relay_options = 3, ["--limit-items=1", "--stuck=wait"]
    with running(relay_options) as watched, clients(watched.port, accounts, copies):
        settle(watched)
        if accounts != options.accounts:
            return {path: watched.fetch(path) for path in paths}, 0.0, 0.0
        made = scrapes()
        print(
            f"{accounts} accounts; watched for {options.seconds:g} s, with the live page open and"
        )
        for each in made:
            print(f"    {each.path} every {each.seconds:g} s")
        unwatched = share(watched, options.seconds / 3)
        print(f"CPU: unwatched {unwatched:.2%} of a core")
        for path in ["the page", *(each.path for each in made)] if options.apart else ():
            some = [each for each in made if each.path == path]
            with Watchers(watched, some, page=not some):
                time.sleep(1.0)
                cost = share(watched, options.seconds) - unwatched
            print(f"     {cost:.2%} for {path} alone")
        watched.longest()
        with Watchers(watched, made, page=True) as watchers:
            cost = share(watched, options.seconds) - unwatched
        step, collection = watched.longest()
        gaps = [b - a for a, b in zip(watchers.samples, watchers.samples[1:], strict=False)]
        print(f"     watched {cost + unwatched:.2%}: to be watched costs {cost:.2%}")
        print(f"steps: at most {step:.2f} ms, gc at most {collection:.2f} ms")
        print(f"page: {len(gaps) + 1} samples, at most {max(gaps, default=0.0):.1f} s apart")
        sizes: dict[str, int] = {}
        worst = step
        for path in paths:
            steps: list[float] = []
            for _ in range(options.rounds):
                sizes[path] = watched.fetch(path)
                steps.append(watched.longest()[0])
            worst = max(worst, *steps)
            print(f"    {median(steps):6.2f} ms ({max(steps):.2f})  {path}")
        return sizes, cost, worst


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--accounts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=5, help="fetches of each page, for its steps")
    parser.add_argument("--idle", action="store_true", help="nobody owes anything")
    parser.add_argument("--waiting", action="store_true", help="everybody waits")
    parser.add_argument("--apart", action="store_true", help="what each watcher costs alone, too")
    parser.add_argument("--check", action="store_true", help="fail if the budget is exceeded")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The relay lets in as many as it does by default.
    options.accounts = min(options.accounts, 10_000 - OTHERS, most - 300)
    detailed = [each.path for each in scrapes() if "detailed" in each.path]
    paths = ["/metrics", *detailed, "/ledger.json", "/ledger.json?top=20"]
    found: dict[int, dict[str, int]] = {}
    cost = step = 0.0
    for accounts in sorted({10, min(1000, options.accounts), options.accounts}):
        sizes, cost, step = measure(accounts, options, paths)
        found[accounts] = sizes
    print("sizes in bytes, with " + ", ".join(str(accounts) for accounts in found) + " accounts:")
    for path in paths:
        print("    " + ", ".join(str(sizes[path]) for sizes in found.values()) + f"  {path}")
    grows = max(s["/metrics"] for s in found.values()) / min(s["/metrics"] for s in found.values())
    if options.check and (cost >= BUDGET_SHARE or step > BUDGET_MILLISECONDS or grows > 1.1):
        print("The budget is exceeded.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--relay"]:
        relay(sys.argv[2:])
    sys.exit(main())
