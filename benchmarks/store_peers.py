"""The store beside a plain table of SQLite and LMDB, on the same work.

    python benchmarks/store_peers.py work       # CPU a message: put, read, acknowledge
    python benchmarks/store_peers.py space      # files, before and after what is acknowledged goes
    python benchmarks/store_peers.py beside     # a writer's thread beside a busy loop
    python benchmarks/store_peers.py recovery   # opened after a clean end, and after SIGKILL
    python benchmarks/store_peers.py damage     # a wrong byte; a disk that is full
    python benchmarks/store_peers.py path       # the relay: to a persistent session, and from it
    python benchmarks/store_peers.py all --json FILE

`peers/stores.py` has the engines, all with the same rules for fsyncs. Passes are interleaved, the
order of the engines changes, and the tables have CPU of the whole process in microseconds a message
(one message in one queue): the least of all passes, and the median. docs/queues.md explains them.
LMDB is left out where its package (`lmdb`) is missing. `path --other DIR` measures the relay of
another checkout, too. Needs Linux.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fanout import machine
from benchmarks.peers.stores import Engine, Own, engines
from benchmarks.queues import (
    CYCLE,
    RUN,
    Process,
    mqtt_connect,
    publications,
    queue_all,
    take_some,
)
from benchmarks.servers import Relay
from clearfunds.store import repair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEADER: Final = 32
READ: Final = 1000
"""Messages that are read at a time."""
WINDOW: Final = 50
"""Commits whose messages are not acknowledged, in the process that is killed."""
PACE: Final = 1000.0
"""Messages a second, each with a commit of its own."""

Kind: TypeAlias = "type[Engine]"
Figures: TypeAlias = "dict[str, list[float]]"


def say(text: str) -> None:
    """Report on stderr."""
    print(text, file=sys.stderr, flush=True)


def body_of(seq: int, size: int = 200) -> bytes:
    """Return the body of a message: like no other."""
    return b"%016x" % seq + bytes(size - 16)


def header_of(seq: int) -> bytes:
    return b"%032x" % seq


def written() -> int:
    """Return the bytes that this process has given to the system to write."""
    return int(Path("/proc/self/io").read_text("ascii").split()[3])


def size_of(directory: Path) -> int:
    """Return the bytes of all files."""
    return sum(file.stat().st_size for file in directory.iterdir())


def put_all(engine: Engine, queues: int, start: int, stop: int, batch: int, size: int) -> None:
    """Put each message to all queues, some in a commit."""
    headers = [header_of(seq) for seq in range(start, stop)]
    bodies = [body_of(seq, size) for seq in range(start, stop)]
    for low in range(start, stop, batch):
        put = engine.put
        for seq in range(low, min(low + batch, stop)):
            header, body = headers[seq - start], bodies[seq - start]
            given = engine.share(body) if queues > 1 else body
            for queue in range(1, queues + 1):
                put(queue, seq, header, given)
        engine.commit()


def acknowledge(engine: Engine, queues: int, start: int, stop: int, batch: int) -> None:
    """Acknowledge messages of all queues in runs."""
    for low in range(start, stop, batch):
        for queue in range(1, queues + 1):
            engine.done(queue, low, min(low + batch, stop) - 1)
        engine.commit()


# ---- Work ----------------------------------------------------------------------------------------


@attrs.frozen
class Work:
    """Messages put, read and acknowledged."""

    batch: int
    """Publications in a commit."""
    queues: int = 1
    """How many get each."""
    size: int = 200
    number: int = 40_000
    """Messages in all queues together."""

    @property
    def each(self) -> int:
        """Messages of a queue: an even number of batches, two at least."""
        return max(self.number // self.queues // self.batch // 2, 1) * 2 * self.batch


LOADS: Final = (
    *(Work(1, number=20_000), Work(10), Work(100), Work(1000)),
    *(Work(10, 9), Work(10, 100), Work(10, 9, 4096), Work(10, 100, 4096)),
)


def work_once(kind: Kind, directory: Path, load: Work) -> dict[str, tuple[float, ...]]:
    """Return CPU and elapsed seconds and bytes written a message, of each part of the work."""
    batch, queues, each = load.batch, load.queues, load.each
    engine = kind(directory, queues)
    found: dict[str, tuple[float, ...]] = {}

    def measured(name: str, number: int, do: Callable[[], object]) -> None:
        gc.collect()
        nbytes, clock, cpu = written(), time.perf_counter(), time.process_time()
        do()
        engine.sync()
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        found[name] = 1e6 * cpu / number, 1e6 * clock / number, (written() - nbytes) / number

    def read() -> None:
        for queue in range(1, queues + 1):
            at = 0
            while at < each:
                some = engine.read(queue, at, READ)
                assert some[0] == (at, header_of(at), body_of(at, load.size))
                at = some[-1][0] + 1

    def scattered() -> None:
        chance = random.Random(0)
        for low in range(each // 2, each, batch):
            for queue in range(1, queues + 1):
                seqs = list(range(low, low + batch))
                chance.shuffle(seqs)
                for seq in seqs:
                    engine.done(queue, seq, seq)
            engine.commit()

    def passing() -> None:
        for low in range(each, each + each // 2, batch):
            put_all(engine, queues, low, low + batch, batch, load.size)
            acknowledge(engine, queues, low, low + batch, batch)

    half = each // 2
    measured("put", each * queues, lambda: put_all(engine, queues, 0, each, batch, load.size))
    measured("read", each * queues, read)
    measured("ack", half * queues, lambda: acknowledge(engine, queues, 0, half, batch))
    measured("ack, mixed", half * queues, scattered)
    measured("put and ack", half // batch * batch * queues, passing)
    assert engine.counts() == [0] * queues
    engine.close()
    return found


def measure_work(loads: Sequence[Work], passes: int, where: Path) -> list[dict[str, Any]]:
    """Measure each load on each engine, in turn."""
    rows: list[dict[str, Any]] = []
    for load in loads:
        found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
        kinds = list(engines())
        for number in range(passes):
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                with tempfile.TemporaryDirectory(dir=where) as name:
                    for part, figures in work_once(kind, Path(name, "s"), load).items():
                        found.setdefault((part, kind.name), []).append(figures)
        for (part, name), those in found.items():
            cpu, clock, nbytes = zip(*those, strict=True)
            rows.append(
                {
                    **attrs.asdict(load),
                    "part": part,
                    "engine": name,
                    "cpu_least": round(min(cpu), 3),
                    "cpu_median": round(statistics.median(cpu), 3),
                    "clock_least": round(min(clock), 3),
                    "clock_median": round(statistics.median(clock), 3),
                    "written": round(statistics.median(nbytes)),
                }
            )
        say(f"measured: {load}")
    return rows


def work_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return Markdown: CPU a message, the least and (the median; by the clock; bytes written)."""
    names = [kind.name for kind in engines()]
    lines = [
        "| a commit | queues | bytes | | " + " | ".join(names) + " |",
        "|-:|-:|-:|-|" + "-:|" * len(names),
    ]
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = row["batch"], row["queues"], row["size"], row["part"]
        found.setdefault(key, {})[row["engine"]] = row
    for (batch, queues, size, part), by_engine in found.items():
        cells = [
            f"{one['cpu_least']:.2f} ({one['cpu_median']:.2f}; {one['clock_least']:.2f}; "
            f"{one['written']:,})"
            for one in (by_engine[name] for name in names)
        ]
        lines.append(f"| {batch} | {queues} | {size} | {part} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ---- Space ---------------------------------------------------------------------------------------


def measure_space(number: int, where: Path) -> list[dict[str, Any]]:
    """Return file sizes: full, all but each 1,000th acknowledged, and all."""
    rows: list[dict[str, Any]] = []
    for kind in engines():
        with tempfile.TemporaryDirectory(dir=where) as name:
            directory = Path(name, "s")
            engine = kind(directory, 1)
            put_all(engine, 1, 0, number, 100, 200)
            engine.sync()
            row: dict[str, Any] = {"engine": kind.name, "full": size_of(directory)}
            for low in range(0, number, 1000):
                engine.done(1, low + 1, min(low + 1000, number) - 1)
                engine.commit()
            engine.sync()
            row["mostly_acked"] = size_of(directory)
            cpu = time.process_time()
            engine.give_back()
            row["mostly_given_back"] = size_of(directory)
            row["give_back_cpu"] = round(time.process_time() - cpu, 3)
            assert engine.counts() == [-(-number // 1000)]
            for low in range(0, number, 1000):
                engine.done(1, low, low)
            engine.commit()
            engine.give_back()
            row["all_given_back"] = size_of(directory)
            engine.close()
            rows.append(row)
    return rows


# ---- Beside a busy loop --------------------------------------------------------------------------


def write_in_thread(kind: Kind, directory: Path, seconds: float, *, busy: bool) -> float:
    """Return messages a second, of a thread that writes for a while beside a busy one."""
    stop = threading.Event()
    rates: list[float] = []
    most = 100_000

    def writer() -> None:
        engine = kind(directory, 1)
        at, began = 0, time.perf_counter()
        while at < most and time.perf_counter() - began < seconds:
            put_all(engine, 1, at, at + 1000, 100, 200)
            at += 1000
        engine.sync()
        rates.append(at / (time.perf_counter() - began))
        engine.close()
        stop.set()

    thread = threading.Thread(target=writer)
    thread.start()
    if busy:
        while not stop.is_set():
            sum(range(100))
    thread.join()
    return rates[0]


def measure_beside(seconds: float, passes: int, where: Path) -> list[dict[str, Any]]:
    """Return messages a second, alone and beside a thread that runs Python all the time."""
    found: dict[tuple[str, bool], list[float]] = {}
    for _ in range(passes):
        for kind in engines():
            for busy in (False, True):
                with tempfile.TemporaryDirectory(dir=where) as name:
                    rate = write_in_thread(kind, Path(name, "s"), seconds, busy=busy)
                    found.setdefault((kind.name, busy), []).append(rate)
    return [
        {
            "engine": kind.name,
            "alone": round(max(found[kind.name, False])),
            "beside": round(max(found[kind.name, True])),
        }
        for kind in engines()
    ]


# ---- Recovery ------------------------------------------------------------------------------------


def live(name: str, directory: str, window: int) -> None:
    """Put batches of 100 until killed, acknowledge those `window` before; say what is durable."""
    kind = next(kind for kind in engines() if kind.name == name)
    engine = kind(Path(directory), 1)
    said = batch = 0
    while True:
        put_all(engine, 1, 100 * batch, 100 * batch + 100, 100, 200)
        batch += 1
        if window and batch > window:
            engine.done(1, 100 * (batch - window - 1), 100 * (batch - window) - 1)
        if engine.durable > said:
            said = engine.durable
            os.write(1, b"%d\n" % said)


def kill(kind: Kind, directory: Path, batches: int, seconds: float, window: int) -> int:
    """Kill a process that writes; return how many batches it had reported as durable."""
    command = [sys.executable, __file__, "live", kind.name, str(directory), str(window)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines: list[bytes] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if int(line) >= batches:
                break
        else:
            msg = f"{kind.name} ended by itself"
            raise AssertionError(msg)
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
    lines += process.stdout
    process.stdout.close()
    process.wait()
    return int([line for line in lines if line.endswith(b"\n")][-1])


def read_all(engine: Engine) -> list[int]:
    """Return the numbers in the queue, after comparing each message."""
    seqs: list[int] = []
    at = 0
    while some := engine.read(1, at, READ):
        for seq, header, body in some:
            assert (header, body) == (header_of(seq), body_of(seq))
            seqs.append(seq)
        at = seqs[-1] + 1
    return seqs


def check(kind: Kind, directory: Path, durable: int, window: int) -> dict[str, float]:
    """Open what a process left; compare it with what it said, and return what it took."""
    clock, cpu = time.perf_counter(), time.process_time()
    engine = kind(directory, 1)
    (count,) = engine.counts()
    assert engine.read(1, 0, 100)
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    seqs = read_all(engine)
    assert len(seqs) == count
    assert seqs == list(range(seqs[0], seqs[-1] + 1))
    batches = (seqs[-1] + 1) // 100
    lost = max(durable - batches, 0)
    # The acknowledgement of a batch is in the commit after.
    kept = batches - seqs[0] / 100
    assert not window or window <= kept <= window + 1 or batches <= window, (kept, batches)
    engine.close()
    return {"cpu": cpu, "clock": clock, "messages": count, "lost": lost}


def measure_recovery(
    number: int, kills: int, passes: int, seconds: float, where: Path
) -> list[dict[str, Any]]:
    """Return how long it takes to open many messages, and what killed processes lost."""
    rows: list[dict[str, Any]] = []
    chance = random.Random(0)
    for kind in engines():
        clean: list[dict[str, float]] = []
        killed: list[dict[str, float]] = []
        rounds: list[dict[str, float]] = []
        for _ in range(passes):
            with tempfile.TemporaryDirectory(dir=where) as name:
                engine = kind(Path(name, "s"), 1)
                put_all(engine, 1, 0, number, 100, 200)
                engine.close()
                clean.append(check(kind, Path(name, "s"), number // 100, 0))
            with tempfile.TemporaryDirectory(dir=where) as name:
                durable = kill(kind, Path(name, "s"), number // 100, 0.0, 0)
                killed.append(check(kind, Path(name, "s"), durable, 0))
        for _ in range(kills):
            with tempfile.TemporaryDirectory(dir=where) as name:
                durable = kill(kind, Path(name, "s"), 1, chance.uniform(0, seconds), WINDOW)
                rounds.append(check(kind, Path(name, "s"), durable, WINDOW))
        rows.append(
            {
                "engine": kind.name,
                "clean_us": round(min(1e6 * r["cpu"] / r["messages"] for r in clean), 3),
                "clean_ms": round(min(1e3 * r["clock"] for r in clean), 1),
                "killed_us": round(min(1e6 * r["cpu"] / r["messages"] for r in killed), 3),
                "killed_ms": round(min(1e3 * r["clock"] for r in killed), 1),
                "kills": kills + passes,
                "lost": sum(r["lost"] for r in killed + rounds),
            }
        )
        say(f"recovery: {rows[-1]}")
    return rows


# ---- Damage --------------------------------------------------------------------------------------


def in_child(do: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Do something in a process that may crash."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        theirs.send(do(*args))

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    except EOFError:
        process.join()
        found = {"said": f"it ended with {process.exitcode}", "right": 0, "wrong": 0}
    process.join()
    ours.close()
    return found


def look(kind: Kind, directory: Path, number: int) -> dict[str, Any]:
    """Read what has a wrong byte; a store that it makes unreadable is repaired, and read again."""
    said: list[str] = []
    right = wrong = 0
    for _ in range(2 if issubclass(kind, Own) else 1):
        right = wrong = at = 0
        with ExitStack() as open_now:
            try:
                engine = kind(directory, 1)
                open_now.callback(close_somehow, engine)
                while at < number and (some := engine.read(1, at, READ)):
                    for seq, header, body in some:
                        if at <= seq < number and (header, body) == (header_of(seq), body_of(seq)):
                            right += 1
                        else:
                            wrong += 1
                    at = max(some[-1][0] + 1, at + 1)
                if isinstance(engine, Own):
                    said += map(str, engine.store.damages)
                break
            except Exception as error:  # noqa: BLE001 (this is what is looked for)
                said.append(f"{type(error).__name__}: {error}")
        if issubclass(kind, Own):
            said += map(str, repair(directory))
    return {"said": "; ".join(said), "right": right, "wrong": wrong}


def close_somehow(engine: Engine) -> None:
    """Close what may be damaged."""
    with suppress(Exception):
        engine.close()


def measure_damage(number: int, flips: int, where: Path) -> list[dict[str, Any]]:
    """Change one byte after another of the largest file, and read everything."""
    rows: list[dict[str, Any]] = []
    for kind in engines():
        with tempfile.TemporaryDirectory(dir=where) as name:
            good, bad = Path(name, "good"), Path(name, "bad")
            engine = kind(good, 1)
            put_all(engine, 1, 0, number, 100, 200)
            engine.close()
            largest = max(good.iterdir(), key=lambda file: file.stat().st_size)
            size = largest.stat().st_size
            found: list[dict[str, Any]] = []
            for flip in range(flips):
                shutil.copytree(good, bad)
                # Evenly, but not at the same place of each page.
                place = size * flip // flips + flip * 97 % (size // flips)
                with (bad / largest.name).open("r+b") as file:
                    file.seek(place)
                    byte = file.read(1)
                    file.seek(place)
                    file.write(bytes([byte[0] ^ 0xFF]))
                found.append(in_child(look, kind, bad, number))
                shutil.rmtree(bad)
            named = [one for one in found if one["said"]]
            silent = [
                one for one in found if not one["said"] and (one["wrong"] or one["right"] < number)
            ]
            rows.append(
                {
                    "engine": kind.name,
                    "flips": flips,
                    "harmless": flips - len(named) - len(silent),
                    "said": len(named),
                    "silent": len(silent),
                    "lost_where_said": round(
                        statistics.mean(number - one["right"] for one in named) if named else 0
                    ),
                    "most_lost": max((number - one["right"] for one in found), default=0),
                    "sentences": sorted({one["said"] for one in named}, key=len)[:3],
                    "crashes": sum("it ended with" in one["said"] for one in named),
                }
            )
    return rows


def fill(kind: Kind, directory: Path) -> dict[str, Any]:
    """Write more than files may have; then allow it, and try again."""
    engine = kind(directory, 1)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    said = again = ""
    number = 0
    try:
        while number < 20_000:
            number += 100
            put_all(engine, 1, number - 100, number, 100, 200)
            if not number % 2000:
                engine.sync()
    except Exception as error:  # noqa: BLE001 (this is what is looked for)
        said = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    durable = 100 * engine.durable
    try:
        engine.sync()
    except Exception as error:  # noqa: BLE001 (likewise)
        again = f"{type(error).__name__}: {error}"
    return {"said": said, "put": number, "durable": durable, "again": again}


def count(kind: Kind, directory: Path) -> dict[str, Any]:
    """Return how many messages there are, for another process."""
    return {"there": kind(directory, 1).counts()[0]}


def measure_full(where: Path) -> list[dict[str, Any]]:
    """Return how each goes on after a disk that refused."""
    rows: list[dict[str, Any]] = []
    for kind in engines():
        with tempfile.TemporaryDirectory(dir=where) as name:
            directory = Path(name, "s")
            found = {**in_child(fill, kind, directory), **in_child(count, kind, directory)}
            rows.append({"engine": kind.name, **found})
    return rows


# ---- The whole path ------------------------------------------------------------------------------


def program_of(checkout: Path | None) -> tuple[str, ...]:
    """Return what the interpreter runs for the relay of a checkout; None: of this one."""
    if checkout is None:
        return "-m", "clearfunds", "relay"
    start = f"import sys; sys.path.insert(0, {str(checkout.resolve() / 'src')!r}); "
    return "-c", f"{start}from clearfunds.__main__ import main; main()", "relay"


def queue_at_pace(number: int, rate: float, port: int) -> None:
    """Publish one message after another, so that each has a commit of its own."""
    runs = publications(200)
    length = len(runs[0]) // RUN
    with mqtt_connect(port, b"pace") as sock:
        came = 0
        began = time.monotonic()
        for sent in range(number):
            at = sent % CYCLE
            data = runs[at // RUN]
            sock.sendall(data[at % RUN * length : (at % RUN + 1) * length])
            time.sleep(max(began + (sent + 1) / rate - time.monotonic(), 0))
            with suppress(BlockingIOError):
                came += len(sock.recv(1 << 16, socket.MSG_DONTWAIT))
        while came < 4 * number:
            came += len(sock.recv(1 << 16))
        sock.sendall(b"\xe0\0")


def run_relay(program: tuple[str, ...], number: int, where: Path) -> dict[str, float]:
    """Return CPU microseconds a message of the relay: queued, and taken; and messages a commit."""
    with tempfile.TemporaryDirectory(dir=where) as name:
        limits = ("max-queued", "max-queued-bytes", "disk-limit")
        options = [f"--store={name}/store", *(f"--{limit}=none" for limit in limits)]
        options += ["--session-expiry=none", "--max-inflight=1000"]
        relay = Relay(protocols=("mqtt",), options=tuple(options), program=program)
        with relay.running(Path(name), None) as running:

            def commits() -> float:
                with urllib.request.urlopen(f"{running.page}/metrics") as page:
                    lines = page.read().decode().splitlines()
                (found,) = (x for x in lines if x.startswith("clearfunds_store_commits_total "))
                return float(found.split()[1])

            server = Process(running.pid)
            with mqtt_connect(running.port, b"away") as subscriber:
                subscriber.sendall(b"\x82\x0a\0\x01\0\x05ten/m\x01")
                assert subscriber.recv(5)[-1] == 1
                subscriber.sendall(b"\xe0\0")
            before, committed = server.cpu(), commits()
            queue_all(number, 200, running.port, server)
            queued, committed_then = server.cpu(), commits()
            taken = take_some(number, running.port, server)["taken"]
            time.sleep(0.5)  # The last acknowledgements are written.
            found = {
                "put": 1e6 * (queued - before) / number,
                "take": 1e6 * (server.cpu() - queued) / taken,
                "put_batch": number / (committed_then - committed),
                "take_batch": taken / (commits() - committed_then),
            }
            few = max(number // 20, 1)
            before, committed = server.cpu(), commits()
            queue_at_pace(few, PACE, running.port)
            found["paced"] = 1e6 * (server.cpu() - before) / few
            found["paced_batch"] = few / (commits() - committed)
            return found


def measure_path(number: int, passes: int, where: Path, other: Path | None) -> list[dict[str, Any]]:
    """Return CPU microseconds of the relay a message: the least, and the median."""
    checkouts = [None] if other is None else [None, other]
    found: dict[Path | None, list[dict[str, float]]] = {each: [] for each in checkouts}
    for _ in range(passes):
        for checkout, runs in found.items():
            runs.append(run_relay(program_of(checkout), number, where))
        say(f"path: {[runs[-1] for runs in found.values()]}")
    return [
        {
            "relay": "this checkout" if checkout is None else str(checkout),
            **{
                part: f"{min(seen):.1f} ({statistics.median(seen):.1f})"
                for part in runs[0]
                if (seen := [run[part] for run in runs])
            },
        }
        for checkout, runs in found.items()
    ]


# ---- The command line ----------------------------------------------------------------------------


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as Markdown."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|-" * len(rows[0]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, r.values())) + " |" for r in rows)])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = ("work", "space", "beside", "recovery", "damage", "path")
    parser.add_argument("command", choices=(*commands, "all"))
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--messages", type=int, help="fewer or more than as it comes, everywhere")
    parser.add_argument("--batches", help="only these publications a commit, as 1,100")
    parser.add_argument("--flips", type=int, default=100, help="bytes that are changed in turn")
    parser.add_argument("--seconds", type=float, default=2.0, help="for how long beside a loop")
    parser.add_argument("--other", type=Path, help="another checkout, whose relay is measured, too")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    parser.add_argument("--scratch", type=Path, help="where to write; else for temporary files")
    given = parser.parse_args()
    wanted = commands if given.command == "all" else (given.command,)
    number: int | None = given.messages
    result: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="clearfunds-", dir=given.scratch) as name:
        where = Path(name)
        if "work" in wanted:
            loads = [
                load if number is None else attrs.evolve(load, number=number)
                for load in LOADS
                if given.batches is None or str(load.batch) in given.batches.split(",")
            ]
            result["work"] = measure_work(loads, given.passes, where)
            print(work_table(result["work"]))
        if "space" in wanted:
            result["space"] = measure_space(number or 400_000, where)
        if "beside" in wanted:
            result["beside"] = measure_beside(given.seconds, given.passes, where)
        if "recovery" in wanted:
            result["recovery"] = measure_recovery(
                number or 200_000, 2 * given.passes, given.passes, given.seconds, where
            )
        if "damage" in wanted:
            result["damage"] = measure_damage(number or 5000, given.flips, where)
            result["full"] = measure_full(where)
        if "path" in wanted:
            result["path"] = measure_path(number or 100_000, given.passes, where, given.other)
        for title in ("space", "beside", "recovery", "damage", "full", "path"):
            if title in result:
                print(f"\n{title}\n\n{table(result[title])}")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["live"]:
        with suppress(BrokenPipeError):
            live(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
