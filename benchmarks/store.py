"""The cost of the store beside plain appends to a file, and its memory.

    python benchmarks/store.py                 # rates at batches of 1, 10, 100 and 1000 messages
    python benchmarks/store.py --size 4096
    python benchmarks/store.py --rss           # 10 million messages of 200 bytes: memory, times

The comparison. All messages exist before a pass begins, each as one object, and also as a header
and a body; the garbage collector skips these lists (`gc.freeze`). A batch is appended to the file
with one `write` of its joined messages ("one"), or of its joined headers and bodies ("two"), which
the store gets, too. The file has neither checksums nor lengths. The store gets the same bytes in
the same batches, with the writer in the same thread, as for the file, and in another, as in a
relay. Both are fsynced every 200 ms and at the end, which counts: a rate is that of messages on
disk. The file is read with one `pread` a batch, which is cut into messages of one length. The store
returns records, with checksums compared. Both read data just written, from the system's cache.
Passes are interleaved. The tables have the fastest pass, the one that other processes
disturbed least, and the median: messages a second, by a clock that stands still while other
processes have the core of the measuring thread (Linux reports this time); and the median CPU time
of the whole process a message; each also as a multiple of both ways to append.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clearfunds.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = 20
INTERVAL = 0.2
#: How far the store may be behind what was committed: a relay waits there, too.
AHEAD = 8 << 20

Measure = tuple[float, float]
"""Seconds on the clock, and of CPU."""


def kept_waiting() -> float:
    """Return how long this thread could have run and had no core, in seconds [proc(5)]."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9
    except (FileNotFoundError, IndexError):  # Another system.
        return 0.0


def measured(work: Callable[[], object]) -> Measure:
    """Do the work, and return what it took."""
    waited, clock, cpu = kept_waiting(), time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - clock
    return seconds - (kept_waiting() - waited), time.process_time() - cpu


def file_write(path: Path, messages: list[bytes], batch: int) -> None:
    """Append to a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    synced = time.monotonic()
    for start in range(0, len(messages), batch):
        os.write(fd, b"".join(messages[start : start + batch]))
        if time.monotonic() - synced > INTERVAL:
            os.fsync(fd)
            synced = time.monotonic()
    os.fsync(fd)
    os.close(fd)


def file_write_parts(path: Path, headers: list[bytes], bodies: list[bytes], batch: int) -> None:
    """Append to a file what comes in two parts a message."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    synced = time.monotonic()
    for start in range(0, len(headers), batch):
        end = start + batch
        os.write(fd, b"".join([*headers[start:end], *bodies[start:end]]))
        if time.monotonic() - synced > INTERVAL:
            os.fsync(fd)
            synced = time.monotonic()
    os.fsync(fd)
    os.close(fd)


def file_read(path: Path, number: int, size: int, batch: int) -> None:
    """Read it, and cut it into messages."""
    fd = os.open(path, os.O_RDONLY)
    for start in range(0, number, batch):
        data = os.pread(fd, batch * size, start * size)
        found = [data[at : at + size] for at in range(0, len(data), size)]
        assert len(found) == min(batch, number - start)
    os.close(fd)


def store_write(
    store: Store,
    queue: int,
    headers: list[bytes],
    bodies: list[bytes],
    batch: int,
    *,
    threaded: bool,
) -> None:
    """Put messages to a queue, and return when they are on the disk."""
    synced = time.monotonic()
    ticket = 0
    for start in range(0, len(headers), batch):
        changes = store.begin()
        put = changes.put
        some = zip(headers[start : start + batch], bodies[start : start + batch], strict=True)
        for seq, (header, body) in enumerate(some, start):
            put(queue, seq, header, body)
        ticket = store.commit(changes)
        if threaded:
            while store.ahead() > AHEAD:
                time.sleep(0.0005)
        elif time.monotonic() - synced > INTERVAL or store.ahead() > AHEAD:
            store.flush()
            synced = time.monotonic()
    if not threaded:
        store.flush()
    store.hurry()
    while store.durable < ticket:
        time.sleep(0.0005)


def store_read(store: Store, queue: int, number: int, batch: int) -> None:
    """Read all messages of a queue."""
    at = 0
    while at < number:
        found = store.read(queue, at, count=batch, nbytes=1 << 24)
        at += len(found)
        assert found


def compare(directory: Path, number: int, size: int, batch: int, passes: int) -> None:
    """Print what there is to say of one size of batches."""
    messages = [b"%016x" % seq + bytes(size - 16) for seq in range(number)]
    headers = [message[:HEADER] for message in messages]
    bodies = [message[HEADER:] for message in messages]
    gc.collect()
    gc.freeze()
    results: dict[str, list[Measure]] = {}

    def note(name: str, work: Callable[[], object]) -> None:
        results.setdefault(name, []).append(measured(work))

    for number_of_pass in range(passes):
        path = directory / "plain"
        note("file append", partial(file_write, path, messages, batch))
        note("file read", partial(file_read, path, number, size, batch))
        path.unlink()
        note("file append, two parts", partial(file_write_parts, path, headers, bodies, batch))
        path.unlink()
        for threaded in (False, True):
            place = directory / f"store-{number_of_pass}-{threaded}"
            store = Store.open(place)
            writer = threading.Thread(target=store.run)
            if threaded:
                writer.start()
            changes = store.begin()
            queue = changes.declare("q")
            store.commit(changes)
            work = partial(store_write, store, queue, headers, bodies, batch, threaded=threaded)
            note(f"store put{', writer in a thread' if threaded else ''}", work)
            note("store read", partial(store_read, store, queue, number, batch))
            if threaded:
                store.stop()
                writer.join()
            store.close()
            shutil.rmtree(place)
    gc.unfreeze()
    shown: dict[str, tuple[float, float, float]] = {}
    for name, found in results.items():
        clocks, cpus = zip(*found, strict=True)
        shown[name] = min(clocks), statistics.median(clocks), statistics.median(cpus)
    one, two = shown["file append"], shown["file append, two parts"]
    for name, (best, clock, cpu) in shown.items():
        print(
            f"{batch:>6}  {name:<32} {number / best / 1e6:7.3f} {best / one[0]:6.2f} "
            f"{best / two[0]:6.2f} {number / clock / 1e6:7.3f} {clock / one[1]:6.2f} "
            f"{clock / two[1]:6.2f} {cpu / number * 1e6:8.2f} {cpu / one[2]:6.2f} "
            f"{cpu / two[2]:6.2f}",
            flush=True,
        )


def resident() -> int:
    """Return how much memory this process has, in bytes."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError


def mib_on_disk(store: Store) -> int:
    """Return the size of its files, in MiB."""
    seen = store.statistics()
    return (seen.used_bytes + seen.free_bytes + seen.log_bytes) >> 20


def many(directory: Path, number: int, size: int, batch: int) -> None:
    """Queue many messages, open the store again, drain it; print memory and times."""
    messages = [bytes(size)] * batch
    headers = [message[:HEADER] for message in messages]
    bodies = [message[HEADER:] for message in messages]
    store = Store.open(directory / "store")
    changes = store.begin()
    queue = changes.declare("q")
    store.commit(changes)
    writer = threading.Thread(target=store.run)
    writer.start()
    before = resident()
    peak = before
    started = time.perf_counter()
    for start in range(0, number, batch):
        changes = store.begin()
        for seq, (header, body) in enumerate(zip(headers, bodies, strict=True), start):
            changes.put(queue, seq, header, body)
        store.commit(changes)
        while store.ahead() > AHEAD:
            time.sleep(0.001)
        if start % (100 * batch) == 0:
            peak = max(peak, resident())
    ticket = store.commit(store.begin())
    store.hurry()
    while store.durable < ticket:
        time.sleep(0.001)
    seconds = time.perf_counter() - started
    grown = resident() - before
    peak = max(peak, resident()) - before
    print(
        f"{number} messages of {size} bytes in {seconds:.1f} s ({number / seconds / 1e6:.2f} M/s), "
        f"batches of {batch}: RSS grew by {grown >> 20} MiB (at most {peak >> 20} MiB), "
        f"{grown / number:.2f} bytes a message; {mib_on_disk(store)} MiB on disk"
    )
    store.stop()
    writer.join()
    store.close()
    clock, _ = measured(lambda: Store.open(directory / "store").close())
    print(f"opened and closed again in {clock:.2f} s")
    store = Store.open(directory / "store")
    writer = threading.Thread(target=store.run)
    writer.start()
    before = resident()
    started = time.perf_counter()
    at = 0
    while at < number:
        found = store.read(queue, at, count=1000, nbytes=1 << 20)
        changes = store.begin()
        changes.done(queue, at, found[-1].seq)
        store.commit(changes)
        at = found[-1].seq + 1
    seconds = time.perf_counter() - started
    store.stop()
    writer.join()
    store.compact()
    print(
        f"drained, each one done, in {seconds:.1f} s ({number / seconds / 1e6:.2f} M/s): RSS grew "
        f"by {(resident() - before) >> 20} MiB; {mib_on_disk(store)} MiB on disk"
    )
    store.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, help="how many; so many that it takes seconds")
    parser.add_argument(
        "--size", type=int, default=200, help="bytes of a message with its header of 20, from 40"
    )
    parser.add_argument("--batches", default="1,10,100,1000")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--rss", action="store_true", help="10 million messages: takes a minute")
    parser.add_argument("--directory", help="where to write; else where temporary files go")
    options = parser.parse_args()
    number = options.messages or (10_000_000 if options.rss else 40_000_000 // options.size)
    with tempfile.TemporaryDirectory(prefix="clearfunds-", dir=options.directory) as name:
        needed = number * (options.size + 30) * 2
        if shutil.disk_usage(name).free < needed:
            sys.exit(f"{name} has not the {needed >> 20} MiB free that this may take")
        if options.rss:
            many(Path(name), number, options.size, 1000)
            return
        print(f"{options.size} bytes, {number} messages, {options.passes} passes; M messages/s")
        print(
            f"{'batch':>6}  {'':<32} {'fastest':>7} {'x one':>6} {'x two':>6} {'median':>7} "
            f"{'x one':>6} {'x two':>6} {'CPU us':>8} {'x one':>6} {'x two':>6}"
        )
        for batch in map(int, options.batches.split(",")):
            few = min(number, 20_000 * batch)
            compare(Path(name), few, options.size, batch, options.passes)


if __name__ == "__main__":
    main()
