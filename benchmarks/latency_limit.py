"""A real relay, a publisher that always has more, and a subscriber whose pace changes 100-fold.

The same is run with `--limit-latency` and with several fixed limits. Each relay is its own process.
Its settlements are recorded as for a journal: the time, the number of messages, the age of the
oldest. The subscriber reads a fixed number of bytes a second from its socket. The socket's segments
are as long as Ethernet's: with those of the loopback, of 64 KiB, the kernel would take whole
megabytes at a time. It prints, for each limit and each pace,

    age    of settlements, the 99th percentile, in targets: from the change of pace on, and after
           20 targets, once it has settled
    got    by the subscriber, as part of its pace, after 20 targets

`--json` writes the results, `--plot` draws them:

    python benchmarks/latency_limit.py --json docs/data/latency-limit.json
    python benchmarks/latency_limit.py --plot docs/data/latency-limit.json docs/latency-limit.svg
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import ACCEPTED, utf8
from benchmarks.queue_plots import BLUE, GREEN, INK, ORANGE, PINK, figure_of, save
from clearfunds.relay import RelaySettings, serve_relay

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Generator

    from clearfunds.accounts import Account, Holder, Ledger, Outcome
    from clearfunds.accounts._leaks import Gone

TOPIC: Final = "pace"
MESSAGE: Final = 1_000
"""Bytes of a message on the wire."""
SEGMENT: Final = 1_448
"""Bytes that an Ethernet segment carries."""
SETTLED: Final = 20
"""Targets after a change of pace within which ages and throughput should have settled."""
PACES: Final = (100, 1_000, 10_000, 1_000, 100)
STEP_SECONDS: Final = 0.005


# -- the relay: a process of its own ---------------------------------------------------------------


class Notes:
    """Notes what is settled by the way out to the subscriber: when, the age, how many messages."""

    def __init__(self, ledger: Ledger) -> None:
        self.clock = ledger.clock
        self.settlements: list[tuple[float, float, int]] = []
        self.limits: list[tuple[float, int | None, int | None]] = []

    def settled(
        self,
        account: Account,
        holder: Holder | Gone | None,
        items: int,
        nbytes: int,
        outcome: Outcome,
        opened: float | None,
    ) -> None:
        if holder is not None and holder.kind == "outlet" and opened is not None:
            now = self.clock()
            self.settlements.append((now, now - opened, items))

    def delivered(
        self, account: Account, ended: Collection[tuple[Holder, int, int, float]]
    ) -> None:
        now = self.clock()
        self.settlements += [(now, now - opened, items) for _, items, _, opened in ended]

    def published(
        self,
        account: Account,
        about: object,
        items: int,
        nbytes: int,
        copies: int,
        copied_bytes: int,
    ) -> None:
        pass

    def stalled(
        self,
        account: Account,
        at: Account,
        culprit: str,
        seconds: float,
        ended: float,
        reason: str,
    ) -> None:
        pass

    def limit_changed(self, account: Account) -> None:
        limit = account.limit
        self.limits.append((self.clock(), limit.items, limit.bytes))


def serve(path: str, options: dict[str, Any]) -> None:
    """Run a relay until told to end; write down what it has settled."""
    taken: list[Notes] = []

    @asynccontextmanager
    async def companion(ledger: Ledger) -> AsyncGenerator[None]:
        notes = Notes(ledger)
        taken.append(notes)
        ledger.recorder = notes
        yield
        ledger.recorder = None

    async def run() -> None:
        stop = trio.Event()
        settings = RelaySettings(listen=("mqtt+tcp://127.0.0.1:0",), grace=0.1, **options)
        async with trio.open_nursery() as nursery:

            async def served(*, task_status: Any) -> None:
                await serve_relay(settings, stop=stop, companion=companion, task_status=task_status)

            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                addresses = await nursery.start(served)
                print(addresses.listening[0].rpartition(":")[2], flush=True)
                async for _ in signals:
                    stop.set()
                    return

    trio.run(run)
    (notes,) = taken
    found = {"settlements": notes.settlements, "limits": notes.limits}
    Path(path).write_text(json.dumps(found))


@contextmanager
def relay(options: dict[str, Any], scratch: Path) -> Generator[tuple[int, Path]]:
    """Yield the port of a relay that runs as long as the block, and where its notes will be."""
    path = scratch / "notes.json"
    arguments = [sys.executable, __file__, "--serve", str(path), json.dumps(options)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), path
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


# -- who publishes, and who subscribes -------------------------------------------------------------


def connected(port: int, name: str, *, narrow: bool = False) -> socket.socket:
    """Return a client's socket, accepted by the relay."""
    sock = socket.socket()
    if narrow:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    sock.connect(("127.0.0.1", port))
    body = utf8("MQTT") + b"\x04\x02\x00\x00" + utf8(name)
    sock.sendall(bytes((0x10, len(body))) + body)
    if sock.recv(4, socket.MSG_WAITALL) != ACCEPTED:
        raise SystemExit(f"{name} was not accepted")
    return sock


def publish(port: int) -> None:
    """Publish as fast as the relay reads, until killed."""
    body = utf8(TOPIC)
    length = MESSAGE - 3
    body += bytes(length - len(body))
    message = b"\x30" + bytes((length & 0x7F | 0x80, length >> 7)) + body
    assert len(message) == MESSAGE
    sock = connected(port, "publisher")
    some = message * 16
    try:
        while True:
            sock.sendall(some)
    except OSError:
        pass


@attrs.define
class Subscriber:
    """Takes so many messages a second."""

    sock: socket.socket
    pace: float
    taken: list[tuple[float, int]] = attrs.field(factory=list[tuple[float, int]])
    """When, and how many bytes in all by then."""
    over: bool = False

    def run(self) -> None:
        """Read until told to end."""
        total = 0
        allowed = 0.0
        then = time.monotonic()
        self.sock.settimeout(STEP_SECONDS)
        while not self.over:
            time.sleep(STEP_SECONDS)
            now = time.monotonic()
            allowed += self.pace * MESSAGE * (now - then)
            then = now
            while allowed >= 1:
                try:
                    some = len(self.sock.recv(min(int(allowed), 1 << 16)))
                except TimeoutError:
                    allowed = 0.0  # what there was no work for is lost
                    break
                total += some
                allowed -= some
            self.taken.append((now, total))


def run(options: dict[str, Any], paces: list[float], seconds: float) -> dict[str, Any]:
    """Let the subscriber have each pace for so long; return what there was to see."""
    changes: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        with relay(options, Path(scratch)) as (port, path):
            sock = connected(port, "subscriber", narrow=True)
            body = b"\x00\x01" + utf8(TOPIC) + b"\x00"
            sock.sendall(bytes((0x82, len(body))) + body)
            sock.recv(5, socket.MSG_WAITALL)
            subscriber = Subscriber(sock, paces[0])
            thread = threading.Thread(target=subscriber.run)
            thread.start()
            arguments = [sys.executable, __file__, "--publish", str(port)]
            publisher = subprocess.Popen(arguments)
            try:
                for pace in paces:
                    subscriber.pace = pace
                    changes.append(time.monotonic())
                    time.sleep(seconds)
                changes.append(time.monotonic())
            finally:
                publisher.kill()
                publisher.wait()
                subscriber.over = True
                thread.join()
                sock.close()
        notes = json.loads(path.read_text())
    began = changes[0]
    return {
        "changes": [at - began for at in changes],
        "settlements": [(at - began, age, items) for at, age, items in notes["settlements"]],
        "limits": [(at - began, items, nbytes) for at, items, nbytes in notes["limits"]],
        "taken": [(at - began, nbytes / MESSAGE) for at, nbytes in subscriber.taken],
    }


# -- what came of it -------------------------------------------------------------------------------


def percentile(ages: list[tuple[float, int]], part: float) -> float:
    """Return the age that such a part of all messages did not exceed; 0.0 for none."""
    left = part * sum(items for _, items in ages)
    for age, items in sorted(ages):
        left -= items
        if left <= 0:
            return age
    return 0.0


def ages_between(seen: dict[str, Any], since: float, until: float) -> list[tuple[float, int]]:
    """Return ages, and how many messages had them, of what was settled then."""
    return [(age, items) for at, age, items in seen["settlements"] if since <= at < until]


def got(seen: dict[str, Any], since: float, until: float) -> float:
    """Return how many messages a second the subscriber got."""
    taken: list[tuple[float, float]] = seen["taken"]
    totals = [(at, total) for at, total in taken if since <= at < until]
    (first, before), (last, after) = totals[0], totals[-1]
    return (after - before) / (last - first)


def summary(seen: dict[str, Any], paces: list[float], target: float) -> list[dict[str, float]]:
    """Return ages and throughput for each pace."""
    rows: list[dict[str, float]] = []
    for number, pace in enumerate(paces):
        since, until = seen["changes"][number : number + 2]
        settled = since + SETTLED * target
        rows.append(
            {
                "pace": pace,
                "age": percentile(ages_between(seen, since, until), 0.99),
                "settled_age": percentile(ages_between(seen, settled, until), 0.99),
                "got": got(seen, settled, until) / pace,
            }
        )
    return rows


def by_second(seen: dict[str, Any]) -> list[tuple[float, float | None, float]]:
    """Return, for each half second: when, the 99th percentile of ages, messages a second."""
    width = 0.5
    found: list[tuple[float, float | None, float]] = []
    for step in range(math.floor(seen["changes"][-1] / width)):
        since, until = step * width, (step + 1) * width
        ages = ages_between(seen, since, until)
        age = percentile(ages, 0.99) if ages else None
        found.append((since + width / 2, age, got(seen, since, until)))
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all of it; print and return what came of it."""
    paces: list[float] = [float(pace) for pace in args.paces.split(",")]
    runs: dict[str, dict[str, Any]] = {}
    limits: list[dict[str, Any]] = [{"limit_latency": args.target}]
    limits += [{"limit_items": int(items)} for items in args.fixed.split(",") if items]
    print(f"target {args.target:g} s, {args.seconds:g} s at each pace; ages in targets")
    for options in limits:
        name = ", ".join(f"{key}={value:g}" for key, value in options.items())
        seen = run(options, paces, args.seconds)
        rows = summary(seen, paces, args.target)
        print(f"\n{name}\n{'pace/s':>10} {'p99 age':>9} {'settled':>9} {'got':>7}")
        for row in rows:
            print(
                f"{row['pace']:>10,.0f} {row['age'] / args.target:>9.2f} "
                f"{row['settled_age'] / args.target:>9.2f} {row['got']:>7.1%}",
                flush=True,
            )
        runs[name] = {
            "rows": rows,
            "changes": seen["changes"],
            "by_second": by_second(seen),
            "limits": seen["limits"][:: max(1, len(seen["limits"]) // 1_000)],
        }
    return {
        "target": args.target,
        "seconds": args.seconds,
        "paces": paces,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "runs": runs,
    }


def plot(source: Path, to: Path) -> None:
    """Draw ages and throughput over time.

    Raises:
        ImportError: There is no matplotlib.
    """
    save(partial(picture, json.loads(source.read_text())), to)
    print(to)


def picture(result: dict[str, Any]) -> Any:
    """Return the figure of that."""
    figure = figure_of(8.2, 6.0)
    ages, rates = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    colours = [BLUE, GREEN, ORANGE, PINK, INK]
    runs: dict[str, dict[str, Any]] = result["runs"]
    for colour, (name, seen) in zip(colours, runs.items(), strict=False):
        ours = "latency" in name
        label = name.replace("limit_latency=", "a latency limit of ") + " s" * ours
        label = label.replace("limit_items=", "a limit of ") + " messages" * (not ours)
        style: dict[str, Any] = {"color": colour, "linewidth": 2.2 if ours else 1.2}
        rows: list[tuple[float, float | None, float]] = seen["by_second"]
        times = [at for at, _, _ in rows]
        # Where the kernel takes much at once, there is nothing to be seen for seconds.
        old = [(at, max(age, 1e-3)) for at, age, _ in rows if age is not None]
        ages.plot(*zip(*old, strict=True), label=label, marker=".", markersize=3, **style)
        rates.plot(times, [max(speed, 1) for _, _, speed in rows], **style)
    ages.axhline(result["target"], color=INK, dashes=(4, 3), linewidth=1)
    ages.annotate("target", (0, result["target"]), xytext=(2, 3), textcoords="offset points")
    ages.set_ylabel("age when settled, p99 [s]")
    rates.set_ylabel("messages a second")
    rates.set_xlabel("seconds")
    for axis in (ages, rates):
        axis.set_yscale("log")
    changes = [number * result["seconds"] for number in range(len(result["paces"]) + 1)]
    rates.step(
        changes, [*result["paces"], result["paces"][-1]], where="post", color=INK,
        linestyle=":", linewidth=1, label="the subscriber's pace",
    )  # fmt: skip
    ages.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    return figure


def main() -> None:
    """Measure, or draw, or be one of the processes that this takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=20.0, help="at each pace")
    parser.add_argument("--paces", default=",".join(map(str, PACES)), help="messages a second")
    parser.add_argument("--fixed", default="10,100,1000,10000", help="limits to compare with")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, nargs=2, metavar=("JSON", "SVG"))
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--publish", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve[0], json.loads(args.serve[1]))
    elif args.publish:
        publish(args.publish)
    elif args.plot:
        plot(*args.plot)
    else:
        result = measure(args)
        if args.json:
            args.json.write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
