"""A broadcast to WebSockets and server-sent events: the hub beside what people write by hand.

One Starlette program under uvicorn (`peers/web_app.py`) publishes 200 bytes at a fixed rate to all
clients, by WebSocket or by server-sent events (SSE), in each of these ways:

    unbounded             an unbounded asyncio.Queue for each client
    bounded-await         asyncio.Queue(1000) for each client; the publisher awaits `put`
    bounded-drop          the same; a message for which a queue has no room is dropped
    broadcaster           the package broadcaster with its memory backend
    loop                  `await socket.send_text(...)` to each client in turn (WebSocket alone)
    clearfunds-balanced   clearfunds.asgi with a hub of this profile
    clearfunds-live       likewise

    python benchmarks/web.py                        # everything: half an hour
    python benchmarks/web.py --kinds ws --clients 100 --only unbounded,balanced --passes 1

Each pass has two runs of each way, one after the other: all clients read, and three of them are
asleep, which means that they connect and never read. Another run, with few clients and messages of
8 KiB, shows how memory grows. The program freezes what is there before the first message
(`gc.freeze`), as a server with many clients should. The rate is the same for all: 60 % of what the
most expensive one could do, by a short run before. Latencies count from when a message was due, so
that a publisher that is held up cannot hide it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import platform
import re
import select
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.clients import connect, resident
from benchmarks.fairness import percentile
from benchmarks.journal import cpu_seconds
from benchmarks.servers import (
    PEERS_FOLDER,
    ServerError,
    free_port,
    from_the_root,
    pinned,
    started,
    wait_until_it_accepts,
)

KINDS: Final = {"ws": "WebSocket", "sse": "server-sent events"}
VARIANTS: Final = (
    "unbounded", "bounded-await", "bounded-drop", "broadcaster", "loop", "clearfunds-balanced",
    "clearfunds-live",
)  # fmt: skip
PACKAGES: Final = ("clearfunds", "starlette", "uvicorn", "websockets", "httptools", "broadcaster")
OURS: Final = ("clearfunds-balanced", "clearfunds-live")
BARE: Final = "unbounded"
"""The way that most people write: the others' CPU is a ratio to its."""
SIZE: Final = 200
"""Bytes of a message."""
CLIENTS: Final = (100, 1_000)
ASLEEP: Final = 3
GROWTH_SIZE: Final = 8 << 10
GROWTH_CLIENTS: Final = 20
GROWTH_RATE: Final = 600.0
"""Messages a second, where memory grows: 5 MB/s for each client."""
FILL: Final = 32
FILL_SIZE: Final = 16 << 10
"""Messages, and their bytes, before a run with some asleep. They fill what the kernel and uvicorn
keep for those: a few hundred kilobytes, which 200 bytes at a time would take minutes for."""
FILL_BYTES: Final = 12e6
"""Bytes a second at most, to all clients, while these are sent."""
SHARE: Final = 0.6
"""The share of a core that the most expensive way takes at the chosen rate."""
FIRST: Final = 1_000_000
"""The number of the first message that is measured."""
GRACE: Final = 1.5
"""Seconds after the last message was due in which messages still come in time."""
QUIET: Final = 0.3
"""Seconds without a message after which all have come."""
WAKING: Final = 8.0
"""Seconds, at most, in which those that were asleep read what is left for them."""
LOOK: Final = 0.1
"""Seconds between two looks at the memory."""
READ: Final = 1 << 18
CALIBRATION: Final = 1.5
"""Seconds of the run that finds the rate."""
SPILL_MB: Final = (16 << 20) / 1e6
"""The hub's memory for backlogs, in `peers/web_app.py`."""
SLACK_MB: Final = (16 << 20) / 1e6
"""A publisher's debt (8 MiB), and as much for buffers of connections and of the interpreter."""
CPU_BUDGET: Final = 1.3
LATENCY_BUDGET: Final = 1.2

MESSAGE: Final = re.compile(rb"@(\d{10}) (\d{19});")
MISSED: Final = re.compile(rb'"missed": (\d+)}|event: missed\ndata: (\d+)\n')
PING: Final = re.compile(rb"\x89\x04(.{4})", re.DOTALL)
"""uvicorn's: it closes connections that do not answer for 20 s [RFC 6455, section 5.5.2]."""
TAIL: Final = 48
"""Bytes in which anything of these that is cut has its beginning."""


# -- the clients --------------------------------------------------------------------------------


class Client:
    """One client over a plain socket; what it parses is only what is counted.

    Attributes:
        got: Messages.
        told: The number of messages of which it was told that it missed them.
        closed: Whether the server has closed the connection.
        delays: Nanoseconds from when a message was due to when it had come, of those measured.
    """

    __slots__ = ("_tail", "asleep", "closed", "delays", "got", "sock", "told")

    def __init__(self, kind: str, port: int, name: str, *, asleep: bool) -> None:
        lines = [f"GET /{kind}/{name} HTTP/1.1", "Host: localhost"]
        if kind == "ws":
            lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
            lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        hello = "\r\n".join([*lines, "", ""]).encode()
        self.sock, self._tail = connect(port, name, hello, lambda got: b"\r\n\r\n" in got)
        self.asleep = asleep
        self.got = self.told = 0
        self.closed = False
        self.delays: list[int] = []

    def read(self) -> int:
        """Read what has come, once; return the number of messages."""
        try:
            data = self.sock.recv(READ)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        now = time.monotonic_ns()
        if not data:
            self.closed = True
            return 0
        if b"\x89\x04" in data:
            for found in PING.finditer(data):
                with contextlib.suppress(OSError):  # an empty mask leaves the bytes as they are
                    self.sock.send(b"\x8a\x84\0\0\0\0" + found[1])
        data = self._tail + data
        end = count = 0
        for found in MESSAGE.finditer(data):
            count += 1
            end = found.end()
            if int(found[1]) >= FIRST:
                self.delays.append(now - int(found[2]))
        if b"missed" in data:
            for found in MISSED.finditer(data):
                self.told += int(found[1] or found[2])
                end = max(end, found.end())
        self._tail = data[max(end, len(data) - TAIL) :]
        self.got += count
        return count


class Clients:
    """All clients of one run, in one thread.

    Args:
        kind: `ws` or `sse`.
        port: The server's port.
        count: The number of clients.
        asleep: The number of those that never read; they are in the middle of the others.
    """

    def __init__(self, kind: str, port: int, count: int, asleep: int) -> None:
        self._port = port
        self._poll = select.epoll()
        self._by_number: dict[int, Client] = {}
        self.all: list[Client] = []
        sleeping = range(count // 2, count // 2 + asleep)
        try:
            for number in range(count):
                name = f"asleep-{number}" if number in sleeping else f"client-{number}"
                client = Client(kind, port, name, asleep=number in sleeping)
                self.all.append(client)
                if not client.asleep:
                    self._listen(client)
            deadline = time.monotonic() + 15
            while self.ask("GET", "/clients") != count:
                if time.monotonic() > deadline:
                    raise ServerError(f"not all of {count} clients were served within 15 s")
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise
        self.awake = [client for client in self.all if not client.asleep]

    def _listen(self, client: Client) -> None:
        self._by_number[client.sock.fileno()] = client
        self._poll.register(client.sock, select.EPOLLIN)

    def ask(self, method: str, path: str) -> Any:
        """Return the program's answer.

        Raises:
            ServerError: It refused, or did not answer.
        """
        asking = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            asking.request(method, path)
            answer = asking.getresponse()
            said = answer.read()
        except OSError as error:
            raise ServerError(f"no answer to {path}: {error}") from error
        finally:
            asking.close()
        if answer.status != 200:
            raise ServerError(f"{path} was answered with {answer.status}")
        return json.loads(said) if said else None

    def step(self, seconds: float) -> int:
        """Read what comes within some seconds, once; return the number of messages."""
        count = 0
        for number, _ in self._poll.poll(seconds):
            client = self._by_number[number]
            count += client.read()
            if client.closed:
                self._poll.unregister(number)
        return count

    def until_quiet(self, most: float) -> None:
        """Read until nothing has come for a while, or time is up."""
        now = time.monotonic()
        end, quiet = now + most, now + QUIET
        while now < min(end, quiet):
            before = time.monotonic()
            if self.step(0.05):
                quiet = before + QUIET
            now = time.monotonic()

    def wake(self) -> None:
        """Let those that were asleep read what there is for them, too."""
        for client in self.all:
            if client.asleep:
                self._listen(client)
        self.until_quiet(WAKING)

    def close(self) -> None:
        """Close all connections."""
        self._poll.close()
        for client in self.all:
            client.sock.close()


# -- one run ------------------------------------------------------------------------------------


@attrs.frozen
class Terms:
    """The load."""

    kind: str
    """`ws` or `sse`."""
    clients: int
    rate: float
    """Messages a second."""
    seconds: float
    asleep: int = 0
    size: int = SIZE


@attrs.frozen
class Found:
    """The results of one run; times are in seconds."""

    variant: str
    terms: Terms
    due: int
    """Messages that were due."""
    published: int
    p50: float
    """The latency of those that came to the clients awake."""
    p99: float
    cpu: float
    """The server's, in seconds per million deliveries; NaN: there were none."""
    server: float
    """The share of a core that it took."""
    driver: float
    """The share of a core that the clients took."""
    came: float
    """The share of the due messages that came to the worst served of the clients awake, in time."""
    lost: int
    """The published messages that never came to one of the clients awake, all together."""
    held_up: float
    """The longest time for which one message held up the publisher."""
    memory: float
    """Megabytes by which the server grew at most, from when all clients were there."""
    cut: int
    """Of those asleep, how many the server disconnected."""
    kept: int
    """Messages that those asleep got when they read at last, all together."""
    missed: int
    """Messages that they never got, all together."""
    told: int
    """Of these, the number of which they were told."""
    named: tuple[str, ...]
    """The clients that the program names as slow."""
    log: tuple[str, ...]
    """The last lines of its log."""


def run(variant: str, terms: Terms, scratch: Path, cores: tuple[int, int] | None = None) -> Found:
    """Measure one way once.

    Args:
        variant: The way.
        terms: The load.
        scratch: An empty directory.
        cores: The program's, and the clients'; None: any.

    Raises:
        ServerError: It did not start, or not end, as it should.
    """
    port = free_port()
    command = [sys.executable, str(PEERS_FOLDER / "web_app.py"), str(port)]
    environment = {**from_the_root(), "WEB_VARIANT": variant}
    with (
        started(
            variant, command, scratch, None if cores is None else cores[0], environment=environment
        ) as process,
        pinned(None if cores is None else cores[1]),
    ):
        wait_until_it_accepts(variant, process, port)
        clients = Clients(terms.kind, port, terms.clients, terms.asleep)
        try:
            found = _measured(clients, variant, terms, process.pid)
        finally:
            clients.close()
        log = (scratch / f"{variant}.log").read_text(errors="replace").splitlines()
        return attrs.evolve(found, log=tuple(log[-5:]))


def _publish(clients: Clients, rate: float, count: int, size: int, first: int) -> Generator[float]:
    """Let it publish, and read until all has come or time is up; yield every now and then."""
    clients.ask("POST", f"/start?rate={rate}&count={count}&size={size}&first={first}")
    now = time.monotonic()
    end, looked = now + count / rate + GRACE, now
    left = count * len(clients.awake)
    while left > 0 and now < end:
        left -= clients.step(0.02)
        now = time.monotonic()
        if now - looked >= LOOK:
            looked = now
            yield now
    yield now


def _measured(clients: Clients, variant: str, terms: Terms, pid: int) -> Found:
    small = resident([pid])
    large = small
    filled = 0
    if terms.asleep:
        fill_rate = min(terms.rate, FILL_BYTES / FILL_SIZE / terms.clients)
        for _ in _publish(clients, fill_rate, FILL, FILL_SIZE, 0):
            large = max(large, resident([pid]))
        filled = clients.ask("POST", "/stop")["published"]
        clients.until_quiet(1.0)
    cpu, own, began = cpu_seconds(pid), time.process_time(), time.monotonic()
    count = max(1, round(terms.rate * terms.seconds))
    for _ in _publish(clients, terms.rate, count, terms.size, FIRST):
        large = max(large, resident([pid]))
    passed = time.monotonic() - began
    cpu, own = cpu_seconds(pid) - cpu, time.process_time() - own
    came = [len(client.delays) for client in clients.awake]
    delays = [delay for client in clients.awake for delay in client.delays]
    said = clients.ask("POST", "/stop")
    clients.until_quiet(1.0)
    published = filled + said["published"]
    lost = sum(max(0, published - client.got) for client in clients.awake)
    clients.wake()
    sleepers = [client for client in clients.all if client.asleep]
    return Found(
        variant=variant,
        terms=terms,
        due=count,
        published=said["published"],
        p50=percentile(delays, 0.5) / 1e9,
        p99=percentile(delays, 0.99) / 1e9,
        cpu=cpu / sum(came) * 1e6 if sum(came) else float("nan"),
        server=cpu / passed,
        driver=own / passed,
        came=min(came) / count,
        lost=lost,
        held_up=said["held_up"],
        memory=large - small,
        cut=sum(client.closed for client in sleepers),
        kept=sum(client.got for client in sleepers),
        missed=sum(max(0, published - client.got) for client in sleepers),
        told=sum(client.told for client in sleepers),
        named=tuple(said["named"]),
        log=(),
    )


# -- the tables ---------------------------------------------------------------------------------


@attrs.frozen
class Pair:
    """The two runs of a way in one pass."""

    all_read: Found
    some_asleep: Found


def fate(found: Found) -> str:
    """Return what became of the clients asleep, in a few words."""
    words: list[str] = []
    if found.cut:
        words.append(f"{found.cut} of {found.terms.asleep} cut off")
    if not found.missed:
        words.append("all kept")
    elif not found.cut:
        words.append(f"{found.kept:,} kept")
    if found.missed and found.told:
        words.append(f"{found.missed:,} lost ({found.told:,} told)")
    elif found.missed and not found.cut:
        words.append(f"{found.missed:,} lost, untold")
    return ", ".join(words)


def names(found: Found) -> str:
    """Return the clients that the program names as slow, in a few words."""
    shown, more = found.named[:ASLEEP], len(found.named) - ASLEEP
    return (", ".join(shown) or "nobody") + (f" and {more} more" if more > 0 else "")


def middle(values: Iterable[float], form: str) -> str:
    """Return a median, with the least and the most if there are several."""
    every = list(values)
    if len(every) == 1:
        return format(every[0], form)
    return f"{median(every):{form}} ({min(every):{form}}-{max(every):{form}})"


def ratios(pairs: Sequence[Pair], bare: Sequence[Pair]) -> list[float]:
    """Return the CPU of a way as a ratio to another's, for each pass, with nobody asleep."""
    return [
        mine.all_read.cpu / theirs.all_read.cpu for mine, theirs in zip(pairs, bare, strict=False)
    ]


def slower(pair: Pair) -> float:
    """Return the p99 with some asleep, as a ratio to that with nobody asleep."""
    return pair.some_asleep.p99 / pair.all_read.p99


COLUMNS: Final = (
    "way", "p50, ms", "p99, ms", "p99 with three asleep", "ratio", "CPU s per M", "of unbounded",
    "came in time, with three asleep", "lost by those awake", "publisher held up, s",
    "those asleep", "slow clients named", "core: program", "core: clients",
)  # fmt: skip


def row(pairs: Sequence[Pair], bare: Sequence[Pair]) -> tuple[str, ...]:
    """Return the passes of a way as a row of the table."""
    last = pairs[-1].some_asleep
    return (
        last.variant,
        middle((each.all_read.p50 * 1e3 for each in pairs), ".1f"),
        middle((each.all_read.p99 * 1e3 for each in pairs), ".1f"),
        middle((each.some_asleep.p99 * 1e3 for each in pairs), ".1f"),
        middle(map(slower, pairs), ".2f"),
        middle((each.all_read.cpu for each in pairs), ".1f"),
        middle(ratios(pairs, bare), ".2f") if bare else "-",
        f"{min(each.some_asleep.came for each in pairs):.1%}",
        f"{sum(each.all_read.lost + each.some_asleep.lost for each in pairs):,}",
        f"{max(each.some_asleep.held_up for each in pairs):.2f}",
        fate(last),
        names(last),
        f"{max(each.all_read.server for each in pairs):.0%}",
        f"{max(each.all_read.driver for each in pairs):.0%}",
    )


GROWTH_COLUMNS: Final = (
    "way", "memory, MB", "came in time", "p99, ms", "lost by those awake", "publisher held up, s",
    "those asleep", "slow clients named",
)  # fmt: skip


def growth_row(found: Found) -> tuple[str, ...]:
    """Return the run in which memory grows as a row of its table."""
    return (
        found.variant,
        f"+{found.memory:.0f}",
        f"{found.came:.1%}",
        f"{found.p99 * 1e3:.1f}",
        f"{found.lost:,}",
        f"{found.held_up:.2f}",
        fate(found),
        names(found),
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# -- the verdicts -------------------------------------------------------------------------------


@attrs.frozen
class Verdict:
    """A claim, with the measured value and the most that it may be."""

    claim: str
    variant: str
    where: str
    value: float
    budget: float

    @property
    def holds(self) -> bool:
        """Whether it holds; not a number does not."""
        return self.value <= self.budget

    def __str__(self) -> str:
        word = "holds" if self.holds else "FAILS"
        where = f"{self.variant}, {self.where}"
        return f"{word}: {where}: {self.claim}: {self.value:.2f} (at most {self.budget:.2f})"


def judge(where: str, pairs: dict[str, list[Pair]]) -> list[Verdict]:
    """Judge the runs of one kind and one number of clients."""
    found: list[Verdict] = []
    for variant in OURS:
        mine = pairs.get(variant)
        if not mine:
            continue
        found.append(
            Verdict(
                "p99 of clients awake, three asleep, in ratio to nobody asleep", variant, where,
                median(map(slower, mine)), LATENCY_BUDGET,
            )
        )  # fmt: skip
        if bare := pairs.get(BARE):
            found.append(
                Verdict(
                    "CPU in ratio to the unbounded queue's", variant, where,
                    median(ratios(mine, bare)), CPU_BUDGET,
                )
            )  # fmt: skip
    return found


def judge_growth(where: str, found: Iterable[Found]) -> list[Verdict]:
    """Judge the runs in which memory grows."""
    claim = (
        f"MB of memory, bounded by {SPILL_MB:.1f} MB for backlogs and {SLACK_MB:.1f} MB of slack"
    )
    return [
        Verdict(claim, each.variant, where, each.memory, SPILL_MB + SLACK_MB)
        for each in found
        if each.variant in OURS
    ]


# -- the command --------------------------------------------------------------------------------


class Bench:
    """All runs, each with a folder of its own."""

    def __init__(self, folder: Path, cores: tuple[int, int] | None) -> None:
        self._folder = folder
        self._cores = cores
        self._number = 0
        self.failures: list[str] = []

    def run(self, variant: str, terms: Terms) -> Found | None:
        """Measure; None: it could not be, and `failures` says why."""
        self._number += 1
        scratch = self._folder / str(self._number)
        scratch.mkdir()
        what = f"{variant}, {terms.kind}, {terms.clients} clients, {terms.asleep} asleep"
        print(f"{what} ...", file=sys.stderr, flush=True)
        try:
            return run(variant, terms, scratch, self._cores)
        except (ServerError, OSError) as error:
            self.failures.append(f"{what}: {error}")
            print(f"web: {self.failures[-1]}", file=sys.stderr)
            return None

    def rate(self, kind: str, clients: int, variants: Iterable[str]) -> float:
        """Return the messages a second at which the most expensive way takes `SHARE` of a core.

        Raises:
            ServerError: No way could be measured.
        """
        terms = Terms(kind, clients, max(4.0, 4_000 / clients), CALIBRATION)
        costs = [found.cpu / 1e6 for each in variants if (found := self.run(each, terms))]
        if not costs:
            raise ServerError("no way could be measured")
        return round(SHARE / max(costs) / clients, 1)


def variants_of(kind: str, words: Sequence[str]) -> list[str]:
    """Return the ways there are for a kind whose names have one of these words."""
    return [
        each
        for each in VARIANTS
        if (kind == "ws" or each != "loop") and (not words or any(word in each for word in words))
    ]


def arguments() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="ws,sse")
    parser.add_argument(
        "--clients", default=",".join(map(str, CLIENTS)), help="numbers of clients (100,1000)"
    )
    parser.add_argument("--only", default="", help="words of the ways' names, with commas")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (5)")
    parser.add_argument("--growth", type=float, default=10.0, help="seconds; 0: no such run (10)")
    parser.add_argument("--rate", type=float, help="messages a second (by a short run before)")
    parser.add_argument("--cores", default="0,1", help="of the program and the clients; '': any")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a claim fails")
    parser.add_argument("--json", type=Path, help="write all that was found there")
    return parser.parse_args()


def main() -> int:
    """Measure and print; return the exit status."""
    options = arguments()
    words = [word for word in options.only.split(",") if word]
    first, _, second = options.cores.partition(",")
    cores = (int(first), int(second)) if second else None
    verdicts: list[Verdict] = []
    found: list[Found] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), cores)
        for kind in options.kinds.split(","):
            variants = variants_of(kind, words)
            for clients in map(int, options.clients.split(",")):
                where = f"{clients:,} clients by {KINDS[kind]}"
                rate = options.rate or bench.rate(kind, clients, variants)
                pairs = passes(
                    bench, Terms(kind, clients, rate, options.seconds), variants, options.passes
                )
                print(f"\n{where}, {rate:g} messages of {SIZE} bytes a second:\n")
                bare = pairs.get(BARE, [])
                print(table(COLUMNS, [row(each, bare) for each in pairs.values()]), flush=True)
                verdicts += judge(where, pairs)
                for each in pairs.values():
                    found += [one for pair in each for one in (pair.all_read, pair.some_asleep)]
            if options.growth:
                terms = Terms(
                    kind, GROWTH_CLIENTS, GROWTH_RATE, options.growth, ASLEEP, GROWTH_SIZE
                )
                grown = [one for each in variants if (one := bench.run(each, terms))]
                where = f"{GROWTH_CLIENTS} clients by {KINDS[kind]}, {ASLEEP} asleep"
                print(
                    f"\n{where}, {GROWTH_RATE:g} messages of 8 KiB a second for "
                    f"{options.growth:g} s:\n"
                )
                print(table(GROWTH_COLUMNS, map(growth_row, grown)), flush=True)
                verdicts += judge_growth(where, grown)
                found += grown
    print()
    for verdict in verdicts:
        print(verdict)
    if options.json is not None:
        made = {
            "python": platform.python_version(),
            "versions": {each: version(each) for each in PACKAGES},
            "runs": [attrs.asdict(each) for each in found],
            "verdicts": [{**attrs.asdict(each), "holds": each.holds} for each in verdicts],
        }  # fmt: skip
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    return int(bool(bench.failures) or (options.check and not all(v.holds for v in verdicts)))


def passes(
    bench: Bench, terms: Terms, variants: Sequence[str], count: int
) -> dict[str, list[Pair]]:
    """Measure each way in each pass; the order of the ways changes from pass to pass."""
    asleep = attrs.evolve(terms, asleep=ASLEEP)
    pairs: dict[str, list[Pair]] = {each: [] for each in variants}
    for number in range(count):
        at = number % len(variants)
        for variant in [*variants[at:], *variants[:at]]:
            first, second = bench.run(variant, terms), bench.run(variant, asleep)
            if first is not None and second is not None:
                pairs[variant].append(Pair(first, second))
    return {variant: each for variant, each in pairs.items() if each}


if __name__ == "__main__":
    sys.exit(main())
