"""The journal: records the changes of the books, which a thread writes to disk.

Theory of operation. In the middle of turns, the names and numbers of a row are appended to a list
(`_sample.py`); that takes a quarter of a microsecond. Eight thousand rows at once become columns
(`_columns.py`), at the same cost for each. A task passes these to a thread, which writes them
(`_files.py`). Nothing ever waits for the thread: if it is slow, or the disk is full, rows are
sampled.

Rows are counted each second. If more come than may be written, the journal keeps one row in k from
then on. If even more come within a second, k doubles each time that the second's allowance is used
up, so that the cost is bounded from the first moment. A list that is full because the thread is
slow also discards half of its rows, and doubles k.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import threading
import time
from collections import Counter, deque
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import IO, TYPE_CHECKING, Any, Final

import attrs
import trio

from ...accounts import Outcome, label_of
from ...accounts._cooperative import run_to_end, with_pauses
from .._errors import PipelineError
from ._columns import SECOND, Columns
from ._compact import LOCK as COMPACTING
from ._files import TableFiles, Written, leftovers, open_file
from ._housekeeping import keep_house
from ._readers import Readers, make_folder, take_folder
from ._sample import MAX_ROWS, Rows, Sample
from ._settings import JournalSettings
from ._snapshot import snapshot
from ._stall_rows import MAX_KEYS, StallRows
from ._tables import NO_HOLDER, NO_KIND, TABLES, arrow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping

    from ...accounts import Account, Gone, Holder, Ledger

logger = logging.getLogger("clearfunds.journal")

TICK: Final = 1.0
"""Seconds between two counts of rows, and at most until rows are passed to the thread."""

BATCH: Final = 16384
"""So many rows are passed to the thread before the next tick: some milliseconds of its time."""

STEP: Final = 1024
"""Rows between two checks for too many rows."""

RETRY: Final = (1.0, 30.0)
"""Seconds until a failed write is tried again, at first and at most."""

STRETCH_SECONDS: Final = 10.0
"""Sampling is over when every row has been kept for this long. The log has one line for its
beginning and one for its end."""

FINISH_SECONDS: Final = 10.0
"""How long closing a journal may take; the stop timeouts of service managers are longer."""

CUT_SHORT_SECONDS: Final = 2.0
"""The same after a cancellation or an exception."""

MAX_LABEL: Final = 256
"""Characters of a publication's topic that are kept. Topics may be 64 KiB long."""

LOCK: Final = ".lock"

_ADVICE: Final = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "raise its quota, or make room on its disk",
    errno.EROFS: "make its disk writable",
    errno.EACCES: "let the relay's user write there",
    errno.EPERM: "let the relay's user write there",
    errno.ENOENT: "mount its disk, or make the directory",
    errno.ENOTDIR: "move the file away that stands in place of a directory",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


@attrs.frozen
class JournalFigures:
    """The figures of a journal. All but `waiting` and `one_in` only increase."""

    written: Mapping[str, Written]
    """Counts of rows that were written or lost, by table."""
    sampled_out: Mapping[str, int]
    """Rows that sampling left out, by table; the kept rows' weights count for them."""
    waiting: Mapping[str, int]
    """Rows that are in no complete file yet, by table."""
    errors: int
    """How often a write failed."""
    one_in: int
    """The k of sampling: the journal keeps one row in k now."""


class Journal:
    """Records what the ledger reports; made by `open_journal`.

    It is the ledger's `Recorder`. Other code calls only `flush` and `figures`.

    Attributes:
        folder: The folder of its files.
        settings: Limits on its cost, and when files are complete.
    """

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        settings: JournalSettings,
        *,
        label: Callable[[object], str],
        opener: Callable[[Path], IO[bytes]],
        random: Random,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self._ledger = ledger
        self._clock = ledger.clock
        self._label = label
        offset_ns = time.time_ns() - round(ledger.clock() * SECOND)
        started = datetime.fromtimestamp(time.time(), UTC)
        run = f"{started:%Y%m%dT%H%M%S.%f}-{os.getpid()}"
        self._columns = {name: Columns(table, offset_ns) for name, table in TABLES.items()}
        self._files = {
            name: TableFiles(folder, table, self._columns[name], settings, run, opener)
            for name, table in TABLES.items()
        }
        self._unfit = dict.fromkeys(TABLES, 0)
        allowance = settings.rows_per_second
        self._allowance = math.inf if allowance is None else float(allowance)
        step = int(min(STEP, max(1.0, self._allowance / 16)))
        self._step = step
        self._samples = {
            name: Sample(
                step,
                partial(self._full, name),
                random,
                partial(self._pack, name),
                self._columns[name].width,
            )
            for name in ("settlements", "publications")
        }
        self._settlements = self._samples["settlements"]
        self._publications = self._samples["publications"]
        self._stalls = StallRows()
        self._limits: dict[str, tuple[Any, ...]] = {}
        self._snapshots: dict[str, list[tuple[Any, ...]]] = {}
        # For the rate of rows: the k of sampling, and the rows kept since the last tick.
        self._by_rate = 1
        self._by_room = 1
        self._kept = 0
        self._ticked = ledger.clock()
        self._seen = 0
        # When sampling began, when it was last needed, and the rows left out before it began.
        self._stretch: tuple[float, int] | None = None
        self._sampled_at = 0.0
        self._wake = trio.Event()
        self._writing = trio.Lock()
        self._at_work = threading.Lock()
        # Rows on their way to the thread.
        self._handed: deque[dict[str, list[Rows]]] = deque()
        self._trouble: str | None = None
        self._errors = 0

    def __repr__(self) -> str:
        return f"<Journal in {self.folder}: one row in {self._settlements.one_in} is kept>"

    # -- the recorder -----------------------------------------------------------------------------

    def settled(
        self,
        account: Account,
        holder: Holder | Gone | None,
        items: int,
        nbytes: int,
        outcome: Outcome,
        opened: float | None,
    ) -> None:
        sample = self._settlements
        if sample.skip:
            sample.skip -= 1
            return
        now = self._clock()
        parent = account.parent
        rows = sample.rows
        rows += (
            now if opened is None else opened,
            now,
            account.name,
            None if parent is None else parent.name,
            NO_HOLDER if holder is None else holder.name,
            NO_KIND if holder is None else holder.kind,
            outcome,
            items,
            nbytes,
        )
        if len(rows) >= sample.look_at or sample.one_in > 1:
            sample.appended()

    def delivered(
        self, account: Account, ended: Collection[tuple[Holder, int, int, float]]
    ) -> None:
        sample = self._settlements
        if sample.one_in > 1:
            if sample.skip >= len(ended):
                sample.skip -= len(ended)
                return
            for holder, items, nbytes, opened in ended:
                self.settled(account, holder, items, nbytes, Outcome.DELIVERED, opened)
            return
        now, name, above = self._clock(), account.name, account.parent
        parent = None if above is None else above.name
        rows = sample.rows
        for holder, items, nbytes, opened in ended:
            # 0 is Outcome.DELIVERED.
            rows += (opened, now, name, parent, holder.name, holder.kind, 0, items, nbytes)
        if len(rows) >= sample.look_at:
            sample.appended()

    def published(
        self,
        account: Account,
        about: object,
        items: int,
        nbytes: int,
        copies: int,
        copied_bytes: int,
    ) -> None:
        sample = self._publications
        if sample.skip:
            sample.skip -= 1
            return
        parent = account.parent
        topic = self._label(about)
        rows = sample.rows
        rows += (
            self._clock(),
            account.name,
            None if parent is None else parent.name,
            topic if len(topic) <= MAX_LABEL else topic[:MAX_LABEL],
            items,
            nbytes,
            copies,
            copied_bytes,
        )
        if len(rows) >= sample.look_at or sample.one_in > 1:
            sample.appended()

    def stalled(
        self,
        account: Account,
        at: Account,
        culprit: str,
        seconds: float,
        ended: float,
        reason: str,
    ) -> None:
        self._stalls.add(account.name, at.name, culprit, seconds, ended, reason)

    def limit_changed(self, account: Account) -> None:
        """See `Recorder.limit_changed`: of several changes between two writes, keep the last."""
        limit, name = account.limit, account.name
        low_items = None if limit.items is None else account.low_items
        low_bytes = None if limit.bytes is None else account.low_bytes
        # Removed first, so that rows stay in the order of time.
        self._limits.pop(name, None)
        self._limits[name] = self._clock(), name, limit.items, limit.bytes, low_items, low_bytes

    # -- how much is kept -------------------------------------------------------------------------

    def _pack(self, name: str, rows: Rows) -> None:
        """Turn rows into columns; called in the middle of a turn."""
        count = len(rows)
        try:
            self._columns[name].pack(rows)
        except Exception:  # noqa: BLE001 (it is logged)
            self._unfit[name] += count - len(rows)
            self._errors += 1
            self._tell_lost(name)

    def _tell_lost(self, name: str) -> None:
        logger.exception(
            "rows of the journal's table %s are lost",
            name,
            extra={"event": "journal_rows_lost", "folder": str(self.folder), "table": name},
        )

    def _full(self, name: str) -> None:
        """Check a list that has grown by a step."""
        sample = self._samples[name]
        waiting = len(sample)
        self._kept += self._step
        if waiting >= MAX_ROWS:
            sample.thin()
            self._by_room *= 2
            self._choose()
        elif waiting >= BATCH:
            self._wake.set()
        if self._kept >= self._allowance * TICK:
            self._kept = 0
            self._by_rate *= 2
            self._choose()

    def _choose(self) -> None:
        """Set the k of sampling for settlements and publications."""
        k = self._by_rate * self._by_room
        for sample in self._samples.values():
            sample.keep_one_in(k)
        now = self._clock()
        if k > 1:
            self._sampled_at = now
            if self._stretch is None:
                self._stretch = now, self._sampled_out()
                logger.warning(
                    "%s",
                    self._why(k),
                    extra={"event": "journal_samples", "folder": str(self.folder), "one_in": k},
                )

    def _why(self, k: int) -> str:
        stands = f"one in {k}, drawn at random, is kept and counts for {k}"
        if self._by_room > 1:
            return (
                f"the journal in {self.folder} is not written as fast as rows come: {stands}; a "
                "faster disk, or fewer rows (--journal-rows-per-second), makes sampling steadier"
            )
        return (
            f"more than {self._allowance:,.0f} rows a second for the journal in {self.folder}: "
            f"{stands}; --journal-rows-per-second allows more, at about a microsecond a row"
        )

    def _sampled_out(self) -> int:
        return sum(sample.sampled_out for sample in self._samples.values())

    def _tick(self) -> None:
        """Count the rows since the last tick, and adjust the sampling."""
        now = self._clock()
        seconds = max(now - self._ticked, TICK / 2)
        self._ticked = now
        seen = sum(sample.seen for sample in self._samples.values())
        came = seen - self._seen
        self._seen = seen
        self._kept = 0
        self._by_rate = max(1, math.ceil(came / (self._allowance * seconds)))
        room = all(len(sample) < MAX_ROWS // 4 for sample in self._samples.values())
        if self._by_room > 1 and room and self._trouble is None:
            self._by_room //= 2
        self._choose()
        if self._stretch is not None and now - self._sampled_at >= STRETCH_SECONDS:
            since, before = self._stretch
            self._stretch = None
            seconds, rows = self._sampled_at - since, self._sampled_out() - before
            logger.info(
                "the journal in %s keeps every row again; in %.0f s it did not keep %d rows",
                self.folder,
                seconds,
                rows,
                extra={
                    "event": "journal_keeps_all",
                    "folder": str(self.folder),
                    "seconds": round(seconds, 3),
                    "rows": rows,
                },
            )

    # -- writing ----------------------------------------------------------------------------------

    def _take(self, *, everything: bool) -> dict[str, list[Rows]]:
        """Take the waiting rows; if there are many, leave those that can wait longer."""
        taken = {name: sample.take() for name, sample in self._samples.items()}
        most = MAX_KEYS if everything else int(min(self._allowance, MAX_KEYS))
        names = list(self._limits) if everything else list(self._limits)[:most]
        few = {
            "stalls": self._stalls.take(most),
            "limits": [self._limits.pop(name) for name in names],
            **self._snapshots,
        }
        self._snapshots = {}
        taken.update({name: [Rows(1, rows)] for name, rows in few.items() if rows})
        return taken

    async def _hand_over(self, *, everything: bool = False) -> bool:
        """Have the thread write the waiting rows; return whether it could."""
        async with self._writing:
            # The thread still has the rows of a failed write: it gets no more until they are
            # written.
            if self._trouble is None:
                # Cleared only once the thread has them: a cancellation may come before it starts.
                self._handed.append(self._take(everything=everything))
            work = partial(self._work, self._clock(), everything=everything)
            why = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
            if why is None and self._trouble is not None:
                logger.info(
                    "the journal in %s is written again",
                    self.folder,
                    extra={"event": "journal_writes", "folder": str(self.folder)},
                )
            if why is not None:
                self._errors += 1
                if self._trouble is None:
                    logger.error(
                        "%s",
                        why,
                        extra={
                            "event": "journal_fails",
                            "folder": str(self.folder),
                            "reason": why,
                        },
                    )
            self._trouble = why
        return why is None

    def _work(self, now: float, *, everything: bool) -> str | None:
        """Write, in a thread; return a sentence about the first failure, if any."""
        why: str | None = None
        rows: dict[str, list[Rows]] = {}
        with self._at_work:
            while self._handed:
                for name, some in self._handed.popleft().items():
                    rows.setdefault(name, []).extend(some)
            for name, files in self._files.items():
                try:
                    if name in rows:
                        files.put(rows[name])
                    files.work(now, everything=everything)
                except OSError as exc:
                    advice = _ADVICE.get(exc.errno or 0, "check its disk")
                    why = (
                        f"the journal in {self.folder} cannot be written ({exc.strerror or exc}); "
                        f"the relay goes on, and keeps a sample of new rows: {advice}, and writing "
                        "goes on by itself"
                    )
                except Exception as exc:  # noqa: BLE001 (it is logged)
                    self._tell_lost(name)
                    why = why or f"rows of the journal's table {name} are lost: {exc!r}"
        return why

    async def flush(self) -> None:
        """Write all rows so far to complete files.

        Raises:
            PipelineError: They cannot be written now.
        """
        if self._trouble is not None:
            await self._hand_over(everything=True)  # the rows of a failed write
        if self._trouble is not None or not await self._hand_over(everything=True):
            raise PipelineError(self._trouble or "")

    async def keep_writing(self) -> None:
        """Write new rows, until cancelled."""
        pause = RETRY[0]
        while True:
            with trio.move_on_after(TICK):
                await self._wake.wait()
            self._wake = trio.Event()
            if await self._hand_over():
                pause = RETRY[0]
            else:
                await trio.sleep(pause)
                pause = min(2 * pause, RETRY[1])

    async def keep_time(self) -> None:
        """Count rows each tick, until cancelled."""
        while True:
            await trio.sleep(TICK)
            self._tick()

    async def keep_snapshots(self, every: float) -> None:
        """Take snapshots, until cancelled."""
        while True:
            await trio.sleep(every)
            if self._snapshots:
                continue  # the last snapshot is not written yet
            found, _ = await with_pauses(snapshot(self._ledger), 0.0)
            self._keep_snapshot(*found)

    def take_snapshot(self) -> None:
        """Take a snapshot now, in one step."""
        self._keep_snapshot(*run_to_end(snapshot(self._ledger)))

    def _keep_snapshot(self, accounts: list[tuple[Any, ...]], loans: list[tuple[Any, ...]]) -> None:
        self._ledger.tell_stalls()
        if self._snapshots:
            for name, rows in (("accounts", accounts), ("open_loans", loans)):
                self._snapshots[name] = self._snapshots.get(name, []) + rows
        else:
            self._snapshots = {"accounts": accounts, "open_loans": loans}

    async def finish(self, seconds: float) -> None:
        """Stop recording, and write all rows within `seconds`; the rest is lost."""
        self.take_snapshot()
        self._ledger.recorder = None
        until = trio.current_time() + seconds
        with suppress(PipelineError), trio.CancelScope(shield=True, deadline=until):
            await self.flush()  # a failure has been logged
        left = sum(self.figures().waiting.values())
        if left:
            logger.error(
                "%d rows of the journal in %s could not be written within %g s, and are lost",
                left,
                self.folder,
                seconds,
                extra={
                    "event": "journal_incomplete",
                    "folder": str(self.folder),
                    "rows": left,
                },
            )

    # -- looking ----------------------------------------------------------------------------------

    def figures(self) -> JournalFigures:
        """Return the figures so far."""
        others = {"stalls": len(self._stalls), "limits": len(self._limits)}
        others.update({name: len(rows) for name, rows in self._snapshots.items()})
        handed = Counter[str]()
        for each in list(self._handed):
            handed.update({name: sum(map(len, some)) for name, some in each.items()})
        samples = self._samples
        return JournalFigures(
            written={
                name: attrs.evolve(files.written, lost=files.written.lost + self._unfit[name])
                for name, files in self._files.items()
            },
            sampled_out={
                **{name: sample.sampled_out for name, sample in samples.items()},
                "stalls": self._stalls.lost,
            },
            waiting={
                name: files.waiting
                + handed[name]
                + (len(samples[name]) if name in samples else others.get(name, 0))
                for name, files in self._files.items()
            },
            errors=self._errors,
            one_in=self._settlements.one_in,
        )


@asynccontextmanager
async def open_journal(
    ledger: Ledger,
    folder: Path | str,
    settings: JournalSettings | None = None,
    *,
    label: Callable[[object], str] = label_of,
    opener: Callable[[Path], IO[bytes]] = open_file,
    random: Random | None = None,
) -> AsyncGenerator[Journal]:
    """Keep a journal of a ledger for the length of a block::

        async with open_journal(ledger, "/var/lib/clearfunds/journal"):
            ...

    When the block ends, all rows are written to complete files, if the disk takes them within
    `FINISH_SECONDS`; within `CUT_SHORT_SECONDS` if the block is cancelled or raises an exception.

    Args:
        ledger: The books; it must have no other recorder.
        folder: The folder of the files; made if it is missing.
        settings: Limits on its cost, and when files are complete.
        label: Returns a publication's topic; must not raise.
        opener: Opens a new file.
        random: The random numbers of sampling.

    Raises:
        MissingError: pyarrow is not installed.
        PipelineError: The journal cannot use that folder, or the ledger has a recorder.
    """
    if ledger.recorder is not None:
        raise PipelineError("this ledger has a recorder already; end it before another begins")
    path = Path(folder)
    chosen = JournalSettings() if settings is None else settings
    lock = await trio.to_thread.run_sync(_prepare, path, chosen.readers)
    try:
        journal = Journal(
            ledger, path, chosen,
            label=label, opener=opener, random=Random() if random is None else random,
        )  # fmt: skip
        async with trio.open_nursery() as nursery:
            ledger.recorder = journal
            nursery.start_soon(journal.keep_writing)
            nursery.start_soon(journal.keep_time)
            if chosen.snapshot_every is not None:
                nursery.start_soon(journal.keep_snapshots, chosen.snapshot_every)
            nursery.start_soon(keep_house, path, chosen)
            seconds = CUT_SHORT_SECONDS
            try:
                yield journal
                seconds = FINISH_SECONDS
            finally:
                await journal.finish(seconds)
                nursery.cancel_scope.cancel()
    finally:
        ledger.recorder = None
        lock.close()


def _prepare(folder: Path, readers: Readers) -> IO[bytes]:
    """Make the folder, lock it, and remove the unfinished files of an earlier run."""
    arrow("pyarrow.parquet")
    # The first batch imports modules for a third of a second: not while the relay serves.
    Columns(TABLES["stalls"], 0).pack(Rows(1, [(0.0, 0.0, "", "", "", "")]))
    try:
        take_folder(folder, readers, frozenset({LOCK, COMPACTING, *TABLES}))
        lock = (folder / LOCK).open("ab")
        for table in TABLES:  # a reader that follows a table needs its folder
            make_folder(folder / table, readers)
    except OSError as exc:
        advice = _ADVICE.get(exc.errno or 0, "name another directory")
        msg = f"there can be no journal in {folder} ({exc.strerror or exc}): {advice}"
        raise PipelineError(msg) from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        msg = (
            f"another relay keeps its journal in {folder}: give each a directory of its own, or "
            "end the other first"
        )
        raise PipelineError(msg) from None
    logger.info(
        "keeping a journal in %s", folder, extra={"event": "journal", "folder": str(folder)}
    )
    left = leftovers(folder)
    for path in left:
        with suppress(OSError):
            path.unlink()
    if left:
        logger.warning(
            "the last run that kept a journal in %s did not end in an orderly way: %s removed, and "
            "the rows in %s are lost",
            folder,
            "its unfinished file is" if len(left) == 1 else f"its {len(left)} unfinished files are",
            "it" if len(left) == 1 else "them",
            extra={"event": "journal_leftovers", "folder": str(folder), "files": len(left)},
        )
    return lock
