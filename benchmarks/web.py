"""A broadcast by WebSocket and by SSE: clearfunds.asgi beside what people write today.

    python benchmarks/web.py                          # all: about ten minutes
    python benchmarks/web.py --clients 100 --kinds ws --variants unbounded,balanced --passes 3

Each variant (`peers/web_app.py`) is the same Starlette program on the same server, uvicorn, with
another way to give a message to all clients. It publishes at a rate that all keep up with; once
while all clients read, and once while three of them are asleep: they are connected, and read
nothing. In each pass the variants come by turns.

Another run floods ten clients, of which three are asleep, as fast as the program may: how much
memory it takes, and whether the clients that are awake still get anything.

The kernel would buffer some megabytes for each client before a program notices that it is asleep.
So that this takes seconds and not minutes, its buffers are small here, for all variants alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import select
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.servers import free_port, started, wait_until_it_accepts

APP: Final = Path(__file__).parent / "peers" / "web_app.py"
VARIANTS: Final = (
    "unbounded", "bounded-await", "bounded-drop", "broadcaster", "loop", "balanced", "live",
)  # fmt: skip
OURS: Final = ("balanced", "live")
KINDS: Final = ("ws", "sse")
ASLEEP: Final = 3
CLIENT_BUFFER: Final = 16 << 10
RECEIVE_BYTES: Final = 256 << 10
MESSAGE: Final = re.compile(rb"<(\d+) (\d+)>")
HEAD: Final = 64
"""The most bytes in which a message's number and time may be cut in two."""
QUIET_SECONDS: Final = 5.0
"""For what was published to come, after the end."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
FLOOD_SIZE: Final = 64 << 10
FLOOD_CLIENTS: Final = 10
CPU_RATIO: Final = 1.3
LATENCY_RATIO: Final = 1.2
MEMORY_BYTES: Final = (8 + 64 + 24) << 20
"""What a flood may cost a hub with its defaults: the limit of its publisher, the memory that it
spills to, and the buffers of server and clients."""


@attrs.define
class Client:
    """One client, which may be asleep."""

    sock: socket.socket
    asleep: bool
    got: int = 0
    missing: int = 0
    next_number: int = 0
    closed: bool = False
    tail: bytes = b""

    def take(self, since: int, late: list[float]) -> None:
        """Read what there is; note how late each message is that was sent after `since`."""
        try:
            data = self.tail + self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if len(data) == len(self.tail):
            self.closed = True
            return
        now = time.monotonic_ns()
        end = 0
        for found in MESSAGE.finditer(data):
            number, sent = int(found[1]), int(found[2])
            self.missing += number - self.next_number
            self.next_number = number + 1
            self.got += 1
            if sent >= since:
                late.append((now - sent) / 1e9)
            end = found.end()
        self.tail = data[max(end, len(data) - HEAD) :]


def connected(port: int, kind: str, number: int, *, asleep: bool) -> Client:
    """Connect one client."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CLIENT_BUFFER)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    name = f"{'asleep' if asleep else 'awake'}{number}"
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    head = f"GET /{kind}/{name} HTTP/1.1\r\nHost: x\r\n{upgrade if kind == 'ws' else ''}\r\n"
    sock.sendall(head.encode())
    end = b"\r\n\r\n" if kind == "ws" else b": open\n\n"
    got = b""
    while end not in got:
        piece = sock.recv(1)
        if not piece:
            raise OSError(f"the server does not let a client in: {got!r}")
        got += piece
    sock.setblocking(False)
    return Client(sock, asleep)


@attrs.define
class Result:
    """One run of one variant."""

    variant: str
    kind: str
    clients: int
    asleep: int
    published: int
    delivered: int
    lost: int
    p50_ms: float
    p99_ms: float
    cpu_per_million: float
    client_share: float
    growth_mb: float
    longest_wait: float
    named: list[str]
    sleepers_closed: int


def memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def ask(port: int, path: str) -> Any:
    """Return what a page of the program says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


@contextmanager
def serving(variant: str, scratch: Path) -> Generator[tuple[int, int]]:
    """Run the program; give its port and its process."""
    port = free_port()
    command = [sys.executable, str(APP), str(port)]
    with started(variant, command, scratch, 0, environment={"VARIANT": variant}) as process:
        wait_until_it_accepts(variant, process, port)
        yield port, process.pid


def run(
    variant: str,
    kind: str,
    clients: int,
    asleep: int,
    *,
    rate: float,
    seconds: float,
    size: int,
    scratch: Path,
) -> Result:
    """Run one variant with some clients; rate 0: as fast as it may."""
    late: list[float] = []
    with serving(variant, scratch) as (port, pid), ExitStack() as stack:
        everybody = [
            connected(port, kind, number, asleep=number < asleep) for number in range(clients)
        ]
        poll = select.epoll()
        stack.callback(poll.close)
        awake: dict[int, Client] = {}
        for each in everybody:
            stack.callback(each.sock.close)
            if not each.asleep:
                awake[each.sock.fileno()] = each
                poll.register(each.sock, select.EPOLLIN)
        before, cpu_before, own = memory(pid), cpu(pid), time.process_time()
        peak = before
        ask(port, f"/start?rate={rate}&seconds={seconds}&size={size}")
        began = time.monotonic()
        # The sleepers' buffers fill in the first quarter: latencies count from then on.
        since = time.monotonic_ns() + int(seconds / 4 * 1e9)
        looked = began
        quiet = seconds + QUIET_SECONDS
        while time.monotonic() - began < quiet and awake:
            ready = poll.poll(0.1)
            for fd, _ in ready:
                client = awake[fd]
                client.take(since, late)
                if client.closed:
                    poll.unregister(fd)
                    del awake[fd]
            now = time.monotonic()
            if now - looked > 0.25:
                looked, peak = now, max(peak, memory(pid))
            if not ready and now - began > seconds:
                break  # all that was published has come
        took = time.monotonic() - began
        used = cpu(pid) - cpu_before
        share = (time.process_time() - own) / took
        peak = max(peak, memory(pid))
        report = ask(port, "/report")
        delivered = sum(each.got for each in everybody if not each.asleep)
        published: int = report["published"]
        lost = sum(published - each.got for each in everybody if not each.asleep)
        return Result(
            variant=variant,
            kind=kind,
            clients=clients,
            asleep=asleep,
            published=published,
            delivered=delivered,
            lost=lost,
            p50_ms=1e3 * quantile(late, 0.5),
            p99_ms=1e3 * quantile(late, 0.99),
            cpu_per_million=used / max(1, delivered) * 1e6,
            client_share=share,
            growth_mb=(peak - before) / (1 << 20),
            longest_wait=report["longest"],
            named=[name for name in report["named"] if name.startswith("asleep")],
            sleepers_closed=sum(is_closed(each) for each in everybody if each.asleep),
        )


def is_closed(client: Client) -> bool:
    """Whether the server has closed the connection of a client that was asleep."""
    client.sock.setblocking(False)
    while True:
        try:
            if not client.sock.recv(RECEIVE_BYTES):
                return True
        except BlockingIOError:
            return False
        except OSError:
            return True


def quantile(values: list[float], share: float) -> float:
    """Return a quantile; nan of nothing."""
    return sorted(values)[int(len(values) * share)] if values else math.nan


def median(results: Sequence[Result], field: str) -> float:
    """Return the median of one figure of several runs."""
    return statistics.median(getattr(each, field) for each in results)


def shown(variant: str, quiet: Sequence[Result], loud: Sequence[Result]) -> str:
    """Return a row: runs with nobody asleep, and runs with some."""
    last = loud[-1]
    before, after = median(quiet, "p99_ms"), median(loud, "p99_ms")
    named = ", ".join(last.named) or "nobody"
    return (
        f"| {variant} | {median(quiet, 'p50_ms'):.1f} | {before:.1f} | {median(loud, 'p50_ms'):.1f}"
        f" | {after:.1f} | {after / before:.2f} | {median(quiet, 'cpu_per_million'):.1f} |"
        f" {median(loud, 'longest_wait'):.2f} | {last.lost} | {named} |"
    )


def compare(options: argparse.Namespace, kind: str, clients: int, scratch: Path) -> list[Result]:
    """Measure all variants by turns, and print the table."""
    rate = options.deliveries / clients
    found: list[Result] = []
    variants = [each for each in options.variants if not (each == "loop" and kind == "sse")]
    for number in range(options.passes):
        for variant in variants if number % 2 == 0 else reversed(variants):
            for asleep in (0, ASLEEP):
                found.append(
                    run(
                        variant, kind, clients, asleep, rate=rate, seconds=options.seconds,
                        size=options.size, scratch=scratch,
                    )
                )  # fmt: skip
                print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    print(
        f"\n**{kind}, {clients} clients**, {rate:g} messages of {options.size} bytes a second, "
        f"{options.passes} passes of {options.seconds:g} s\n"
    )
    print(
        "| | p50 ms | p99 ms | p50, 3 asleep | p99, 3 asleep | ratio of p99 | CPU s a million |"
        " longest wait s | lost by the awake | named |"
    )
    print("| - | -: | -: | -: | -: | -: | -: | -: | -: | - |")
    for variant in variants:
        of = [each for each in found if each.variant == variant]
        print(shown(variant, [e for e in of if not e.asleep], [e for e in of if e.asleep]))
    share = statistics.median(each.client_share for each in found)
    print(f"\nThe clients took {share:.0%} of their core.")
    return found


def flood(options: argparse.Namespace, scratch: Path) -> list[Result]:
    """Publish as fast as each variant may, to ten clients of which three are asleep."""
    print(
        f"\n**A flood**: {FLOOD_CLIENTS} WebSockets, {ASLEEP} asleep, messages of "
        f"{FLOOD_SIZE >> 10} KiB as fast as the program may, {options.seconds:g} s\n"
    )
    print("| | published | MB more | longest wait s | lost by the awake | sleepers | named |")
    print("| - | -: | -: | -: | -: | - | - |")
    found: list[Result] = []
    for variant in options.variants:
        one = run(
            variant, "ws", FLOOD_CLIENTS, ASLEEP, rate=0, seconds=options.seconds,
            size=FLOOD_SIZE, scratch=scratch,
        )  # fmt: skip
        found.append(one)
        ends = f"{one.sleepers_closed} disconnected" if one.sleepers_closed else "connected"
        print(
            f"| {variant} | {one.published} | {one.growth_mb:.0f} | {one.longest_wait:.2f} |"
            f" {one.lost} | {ends} | {', '.join(one.named) or 'nobody'} |",
            flush=True,
        )
    return found


def claims(found: Sequence[Result], floods: Sequence[Result]) -> list[tuple[str, bool]]:
    """Return what is to hold, and whether it does."""
    verdicts: list[tuple[str, bool]] = []
    for kind, clients in dict.fromkeys((each.kind, each.clients) for each in found):
        here = [each for each in found if (each.kind, each.clients) == (kind, clients)]
        bare = [each for each in here if each.variant == "unbounded" and not each.asleep]
        for variant in OURS:
            ours = [each for each in here if each.variant == variant]
            quiet = [each for each in ours if not each.asleep]
            loud = [each for each in ours if each.asleep]
            if not quiet:
                continue
            ratio = median(loud, "p99_ms") / median(quiet, "p99_ms")
            verdicts.append(
                (
                    f"{variant}, {kind}, {clients}: p99 with three asleep at most "
                    f"{LATENCY_RATIO} x: {ratio:.2f}",
                    ratio <= LATENCY_RATIO,
                )
            )
            if bare:
                cost = median(quiet, "cpu_per_million") / median(bare, "cpu_per_million")
                verdicts.append(
                    (
                        f"{variant}, {kind}, {clients}: CPU at most {CPU_RATIO} x an unbounded "
                        f"queue's: {cost:.2f}",
                        cost <= CPU_RATIO,
                    )
                )
    verdicts += [
        (
            f"{each.variant}: a flood takes at most {MEMORY_BYTES >> 20} MB: {each.growth_mb:.0f}",
            each.growth_mb * (1 << 20) <= MEMORY_BYTES,
        )
        for each in floods
        if each.variant in OURS
    ]
    return verdicts


def main() -> int:
    """Measure and print; the exit status is 1 if something does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--variants", type=listed, default=list(VARIANTS), help="with commas")
    parser.add_argument("--kinds", type=listed, default=list(KINDS), help="ws,sse")
    parser.add_argument("--clients", type=listed, default=["100", "1000"], help="100,1000")
    parser.add_argument("--deliveries", type=float, default=8_000, help="deliveries a second")
    parser.add_argument("--size", type=int, default=4_000, help="bytes of a message")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--no-flood", action="store_true", help="leave out the flood")
    parser.add_argument("--json", type=Path, help="a file for all results")
    options = parser.parse_args()
    found: list[Result] = []
    floods: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for kind in options.kinds:
            for clients in options.clients:
                found += compare(options, kind, int(clients), scratch)
        if not options.no_flood:
            floods = flood(options, scratch)
    verdicts = claims(found, floods)
    print()
    for sentence, holds in verdicts:
        print(f"- {'holds' if holds else 'MISSED'}: {sentence}")
    if options.json is not None:
        rows = [attrs.asdict(each) for each in (*found, *floods)]
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(holds for _, holds in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
