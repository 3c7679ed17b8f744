"""The cost of a relay's journal: CPU as a share of a core, with `--journal` and without.

    row        in this process: microseconds a row, from the call to the file, and bytes a row
    paced      two relays with their defaults, one of which keeps a journal, get the same load of
               10,000 settlements a second, in turn: a message to each of ten subscribers (`ten`),
               and ten publishers with a subscriber each (`one`), where each message is one
               settlement and one publication
    unbounded  as much as a relay can do with nine subscribers, deep windows and one message in
               flight, without a journal, with one, and with one without a limit on rows:
               CPU seconds per million deliveries, and the number of rows

The budget (`--check`): less than 3 % of a core more at 10,000 settlements a second.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs
import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import connect, subscribe, utf8
from benchmarks.loadgen import GeneratorError, Load, Measurement, run
from benchmarks.servers import Relay, ServerError
from clearfunds.accounts import Ledger, Outcome, commit_run
from clearfunds.accounts import LoanQueue as Queue
from clearfunds.pipeline.journal import JournalSettings, open_journal

BUDGET_SHARE: Final = 0.03
RATE: Final = 10_000
TICKS: Final = 1_000
PAYLOAD: Final = b"x" * 200


# -- in this process ----------------------------------------------------------------------------


class Box(Queue):
    """A holder that keeps what it gets."""

    __slots__ = ()

    def ready(self) -> None:
        """Do nothing."""

    def give_up(self, why: str) -> None:
        """Do nothing."""


@attrs.frozen
class PerRow:
    """What a row costs."""

    told: float
    """Microseconds of the one who settles."""
    written: float
    """Microseconds of the thread."""
    nbytes: float
    """In a file."""


async def rows_cost(folder: Path, count: int) -> PerRow:
    """Settle loans at a pace that the thread keeps up with; nine in ten rows are settlements."""
    ledger = Ledger()
    publishers = [ledger.open(f"mqtt:1883/-/publisher-{number}") for number in range(5)]
    boxes = [Box(ledger, f"mqtt:1883/-/subscriber-{number}") for number in range(9)]

    def settle(times: int) -> float:
        began = time.thread_time()
        for number in range(times):
            commit_run(publishers[number % 5], boxes, "run", 1, 205)
            for box in boxes:
                box.settle_all(Outcome.DELIVERED)
        return time.thread_time() - began

    settings = JournalSettings(rows_per_second=None, snapshot_every=None)
    told = alone = 0.0
    written = 0.0
    async with open_journal(ledger, folder, settings, label=str) as journal:
        settle(1_000)
        await journal.flush()
        before = journal.figures().written["settlements"]
        rest = count
        while rest > 0:
            recorder, ledger.recorder = ledger.recorder, None
            alone += settle(800)
            ledger.recorder = recorder
            told += settle(800)
            rest -= 8_000
            began = time.process_time() - time.thread_time()
            await trio.sleep(0.05)
            await trio.lowlevel.checkpoint()
            written += time.process_time() - time.thread_time() - began
        began = time.process_time() - time.thread_time()
        await journal.flush()
        written += time.process_time() - time.thread_time() - began
        after = journal.figures().written
    rows = after["settlements"].rows - before.rows
    nbytes = after["settlements"].bytes - before.bytes
    every = rows * 10 / 9
    return PerRow((told - alone) / every * 1e6, written / every * 1e6, nbytes / rows)


# -- at a pace ----------------------------------------------------------------------------------


def subscriber(port: int, number: int, topic: str) -> socket.socket:
    """Connect a client that has subscribed."""
    sock = connect(port, number)
    subscribe(sock, topic)
    return sock


class Drain(threading.Thread):
    """Reads, and counts, whatever comes."""

    def __init__(self, socks: list[socket.socket]) -> None:
        super().__init__(daemon=True)
        self.socks = socks
        self.bytes = 0
        self.ended = threading.Event()

    def run(self) -> None:
        """Read until it is told to end."""
        with selectors.DefaultSelector() as selector:
            for sock in self.socks:
                selector.register(sock, selectors.EVENT_READ)
            while not self.ended.is_set():
                for key, _ in selector.select(0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    self.bytes += len(key.fileobj.recv(1 << 16))


class Paced:
    """A load of `RATE` settlements a second on one relay."""

    def __init__(self, port: int, shape: str) -> None:
        if shape == "ten":
            publishers, subscribers = 1, 10
        else:
            publishers, subscribers = 10, 1
        count = RATE // TICKS // subscribers
        assert count == publishers
        topics = [f"measured/{number}" for number in range(publishers)]
        self._subscribers = [
            subscriber(port, 1 + at * subscribers + number, topic)
            for at, topic in enumerate(topics)
            for number in range(subscribers)
        ]
        self._publishers = [connect(port, 1_000 + number) for number in range(publishers)]
        self._frames = [self._frame(topic) for topic in topics]
        self._expected = sum(map(len, self._frames)) * subscribers
        self._drain = Drain(self._subscribers)
        self._drain.start()

    @staticmethod
    def _frame(topic: str) -> bytes:
        body = utf8(topic) + PAYLOAD
        return bytes((0x30, len(body) & 127 | 128, len(body) >> 7)) + body

    def put(self, seconds: float) -> float:
        """Send at the pace for so long; return the share of it that was really delivered."""
        before = self._drain.bytes
        began = time.perf_counter()
        sent = 0
        while True:
            passed = time.perf_counter() - began
            due = int(min(passed, seconds) * TICKS)
            while sent < due:
                for sock, frame in zip(self._publishers, self._frames, strict=True):
                    sock.sendall(frame)
                sent += 1
            if passed >= seconds:
                break
            time.sleep(0.0005)
        time.sleep(0.1)
        return (self._drain.bytes - before) / (self._expected * seconds * TICKS)

    def close(self) -> None:
        """Close all connections."""
        self._drain.ended.set()
        self._drain.join()
        for sock in (*self._subscribers, *self._publishers):
            sock.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


@attrs.frozen
class Share:
    """One pass of a paced load."""

    without: float
    """CPU seconds a second of the relay without a journal."""
    with_: float
    """Of the one that keeps one."""
    delivered: float
    """The least share of the load that came through."""


def relay(folder: Path | None, *more: str) -> Relay:
    """Return a relay, with a journal if there is a folder for it."""
    options = () if folder is None else (f"--journal={folder}", *more)
    return Relay(protocols=("mqtt",), options=("--log-level=warning", *options))


def paced(shape: str, scratch: Path, passes: int, seconds: float) -> list[Share]:
    """Put the load on two relays in turn; return each pass."""
    found: list[Share] = []
    folders = [scratch / "without", scratch / "with"]
    for folder in folders:
        folder.mkdir()
    with (
        relay(None).running(folders[0], None) as plain,
        relay(scratch / "journal").running(folders[1], None) as keeping,
        contextlib.ExitStack() as stack,
    ):
        loads: list[tuple[int, Paced]] = []
        for running in (plain, keeping):
            load = Paced(running.port, shape)
            stack.callback(load.close)
            load.put(0.5)
            loads.append((running.pid, load))
        for number in range(passes):
            shares = [0.0, 0.0]
            least = 1.0
            for at in (0, 1) if number % 2 else (1, 0):
                pid, load = loads[at]
                before, began = cpu_seconds(pid), time.perf_counter()
                least = min(least, load.put(seconds))
                shares[at] = (cpu_seconds(pid) - before) / (time.perf_counter() - began)
            found.append(Share(shares[0], shares[1], least))
    return found


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Return (rows, bytes) of each table."""
    parquet: Any = import_module("pyarrow.parquet")
    found: dict[str, tuple[int, int]] = {}
    for table in ("settlements", "publications"):
        paths = list((folder / table).glob("date=*/hour=*/part-*.parquet"))
        rows = sum(parquet.ParquetFile(path).metadata.num_rows for path in paths)
        found[table] = rows, sum(path.stat().st_size for path in paths)
    return found


# -- as much as it can --------------------------------------------------------------------------


@contextlib.contextmanager
def scratch_folder() -> Generator[Path]:
    """Make an empty folder for the length of a block."""
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def unbounded(load: Load, *more: str, journal: bool) -> tuple[Measurement, str]:
    """Put a load on a relay; return what was measured, and what its journal has."""
    with scratch_folder() as scratch:
        folder = scratch / "journal" if journal else None
        with relay(folder, *more).running(scratch, None) as running:
            found = run(load, port=running.port, pid=running.pid)
        said = ""
        if folder is not None:
            rows = written(folder)
            said = ", ".join(f"{n:,} {table} ({b:,} B)" for table, (n, b) in rows.items())
        return found, said


# -- the command --------------------------------------------------------------------------------


def spread(values: list[float], form: str) -> str:
    """Return the median, the least and the most."""
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def show_rows(repeats: int) -> None:
    """Measure a row's cost and print it."""
    found: list[PerRow] = []
    for _ in range(repeats):
        with scratch_folder() as folder:
            found.append(trio.run(rows_cost, folder, 200_000))
    print(
        f"row: {spread([f.told for f in found], '.2f')} us to tell, "
        f"{spread([f.written for f in found], '.2f')} us of the thread, "
        f"{spread([f.nbytes for f in found], '.1f')} bytes"
    )


def show_paced(passes: int, seconds: float) -> float:
    """Measure the paced loads and print them; return the worst median of what is added."""
    worst = 0.0
    for shape in ("ten", "one"):
        with scratch_folder() as scratch:
            found = paced(shape, scratch, passes, seconds)
            rows = written(scratch / "journal")
        added = [f.with_ - f.without for f in found]
        worst = max(worst, median(added))
        tables = ", ".join(
            f"{count:,} {table} ({nbytes / max(count, 1):.1f} B each)"
            for table, (count, nbytes) in rows.items()
        )
        print(
            f"paced, {shape}: without {spread([f.without for f in found], '.2%')}, "
            f"with {spread([f.with_ for f in found], '.2%')}, added {spread(added, '.2%')} of a "
            f"core; at least {min(f.delivered for f in found):.1%} of the load came through; "
            f"{tables}"
        )
    return worst


def show_unbounded(passes: int, seconds: float) -> None:
    """Measure the loads that are as much as can be and print them."""
    kinds: dict[str, tuple[bool, tuple[str, ...]]] = {
        "without": (False, ()),
        "with": (True, ()),
        "with everything": (True, ("--journal-rows-per-second=none",)),
    }
    for window in (8_000, 1):
        load = Load("mqtt", subscribers=9, window=window, seconds=seconds)
        for name, (journal, more) in kinds.items():
            runs = [unbounded(load, *more, journal=journal) for _ in range(passes)]
            costs = spread([found.cpu_seconds_per_million for found, _ in runs], ".3f")
            rates = spread([found.deliveries_per_second for found, _ in runs], ",.0f")
            print(
                f"unbounded, window {window}, {name}: {costs} CPU s per M, {rates}/s {runs[-1][1]}"
            )


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=5, help="of each measurement (5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each pass (5)")
    parser.add_argument("--only", choices=("row", "paced", "unbounded"))
    parser.add_argument("--check", action="store_true", help="fail above the budget")
    options = parser.parse_args()
    worst = 0.0
    try:
        if options.only in (None, "row"):
            show_rows(options.passes)
        if options.only in (None, "paced"):
            worst = show_paced(options.passes, options.seconds)
        if options.only in (None, "unbounded"):
            show_unbounded(options.passes, options.seconds)
    except (ServerError, GeneratorError) as error:
        print(f"journal: {error}", file=sys.stderr)
        return 1
    if options.check and worst > BUDGET_SHARE:
        print(f"journal: {worst:.2%} of a core, at most {BUDGET_SHARE:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
