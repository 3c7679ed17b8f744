"""The relay's housekeeping of its journal: hours that are over are merged, old ones deleted."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from .._errors import PipelineError
from ._compact import PATIENCE, alone, compact
from ._keep import delete_old
from ._names import folder_of

if TYPE_CHECKING:
    from ._settings import JournalSettings

logger = logging.getLogger("clearfunds.journal")

EVERY: Final = 60.0
"""Seconds between two passes."""


async def keep_house(folder: Path, settings: JournalSettings, every: float = EVERY) -> None:
    """Merge and delete files of a journal in a thread, until cancelled.

    A merge under way is then given up; its files stay as they were.
    """
    ended = threading.Event()
    house = _House(folder, settings, ended)
    try:
        while True:
            await trio.to_thread.run_sync(house.work, abandon_on_cancel=True)
            await trio.sleep(every)
    finally:
        ended.set()


class _House:
    """What the passes know from each other; used by one thread at a time."""

    def __init__(self, folder: Path, settings: JournalSettings, ended: threading.Event) -> None:
        self._folder = folder
        self._settings = settings
        self._ended = ended
        self._done: set[Path] = set()
        self._named: set[str] = set()
        self._fails = False

    def work(self) -> None:
        try:
            with alone(self._folder) as nobody_else:
                if nobody_else:
                    self._delete()
                    self._compact()
        except (OSError, PipelineError) as error:
            if not self._fails:
                why = getattr(error, "strerror", None) or error
                logger.error(
                    "old files of the journal in %s cannot be merged or deleted (%s): it grows "
                    "until they can; the next try is in %.0f s",
                    self._folder,
                    why,
                    EVERY,
                    extra={
                        "event": "journal_not_tidied",
                        "folder": str(self._folder),
                        "reason": str(why),
                    },
                )
            self._fails = True
        else:
            self._fails = False

    def _delete(self) -> None:
        seconds, nbytes = self._settings.keep_seconds, self._settings.keep_bytes
        if seconds is None and nbytes is None:
            return
        deleted = delete_old(self._folder, now=time.time(), seconds=seconds, nbytes=nbytes)
        if deleted.until is not None:
            date, hour = folder_of(int(deleted.until) // 3600 - 1)
            logger.info(
                "%d files of the journal in %s, up to %s %s, are deleted (%d bytes): it keeps no "
                "more (--journal-keep)",
                deleted.files,
                self._folder,
                date.removeprefix("date="),
                hour.removeprefix("hour=") + ":59",
                deleted.bytes,
                extra={
                    "event": "journal_deleted",
                    "folder": str(self._folder),
                    "files": deleted.files,
                    "bytes": deleted.bytes,
                    "until": deleted.until,
                },
            )

    def _compact(self) -> None:
        after = self._settings.compact_after
        if after is None:
            return
        result = compact(
            self._folder,
            before=time.time() - after,
            max_bytes=self._settings.roll_bytes,
            done=self._done,
            stopped=self._ended.is_set,
            patience=PATIENCE,
        )
        if result.into:
            logger.info(
                "%d files of the journal in %s are merged into %d",
                result.files,
                self._folder,
                result.into,
                extra={
                    "event": "journal_compacted",
                    "folder": str(self._folder),
                    "files": result.files,
                    "into": result.into,
                },
            )
        for damage in result.damaged:
            if damage.path not in self._named:
                self._named.add(damage.path)
                logger.warning(
                    "a file of the journal is damaged, and left where it is: %s",
                    damage,
                    extra={
                        "event": "journal_damaged",
                        "path": damage.path,
                        "reason": damage.why,
                    },
                )
