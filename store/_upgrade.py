"""A store of version 0.1.0 becomes one of today: its messages are copied to a new database.

The old files stay as they are until the new database is whole and on the disk, and the mark that
makes it the store is one write. So a process that is killed before begins anew, and one that is
killed after it only has to put the old files aside. They end in a folder that is a whole store, to
go back to.
"""

from __future__ import annotations

import heapq
import os
import shutil
from typing import TYPE_CHECKING, Final

from ._directory import DATABASE, LOCK, OLD_FILES, OLD_MARK
from ._errors import StoreDiskError
from ._old_log import OLD_FILE, CorruptOldError, OldLog, OldMessage, OldQueue
from ._sentences import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ._changes import Body, Changes
    from ._directory import Directory
    from ._store import Store

_NEW: Final = "upgrade"
"""The folder of the new database while it is made."""

_OTHERS: Final = ("quarantine", "snapshot.tmp")

_AT_ONCE: Final = 8 << 20
"""Bytes of messages after which the database gets them."""


def upgrade(directory: Directory, open_store: Callable[[Path], Store]) -> None:
    """Make a store of version 0.1.0 one of today. Blocks for as long as copying it takes.

    Raises:
        StoreError: The disk refused; the store is as it was.
        OSError: Likewise.
    """
    where = directory.where
    logger.warning(
        "the store in %s is of version 0.1.0: its messages are copied to a database, which takes as"
        " much room once more",
        where,
        extra={"event": "store_upgrading", "folder": str(where)},
    )
    new = where / _NEW
    shutil.rmtree(new, ignore_errors=True)
    old = OldLog(where)
    try:
        messages = _copy(old, open_store, new)
    except Exception:
        # Otherwise a disk that was too small would stay full.
        shutil.rmtree(new, ignore_errors=True)
        raise
    (new / DATABASE).replace(where / DATABASE)
    directory.mark()
    for damage in old.damages:
        logger.error("store %s: %s", where, damage)
    put_old_files_aside(where)
    logger.warning(
        "the store in %s has been upgraded: %d messages of %d queues; the old one is in %s, to go"
        " back to or to delete",
        where,
        messages,
        len(old.queues),
        where / OLD_FILES,
        extra={
            "event": "store_upgraded",
            "folder": str(where),
            "queues": len(old.queues),
            "messages": messages,
            "damages": len(old.damages),
        },
    )


def _copy(old: OldLog, open_store: Callable[[Path], Store], new: Path) -> int:
    """Copy everything to a new store; return the number of messages."""
    store = open_store(new)
    try:
        messages = _Copying(old, store).run()
    finally:
        store.close()
    if store.directory.joinpath(f"{DATABASE}-wal").exists():
        msg = f"cannot upgrade the store in {new.parent}: {new} was not written to its end"
        raise StoreDiskError(msg)
    return messages


def put_old_files_aside(where: Path) -> None:
    """Move the files of version 0.1.0 to a folder, which is then a store of that version.

    Raises:
        OSError: The disk refused; the next call goes on.
    """
    aside = where / OLD_FILES
    aside.mkdir(mode=0o700, exist_ok=True)
    mark = os.open(aside / LOCK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(mark, OLD_MARK)
        os.fsync(mark)
    finally:
        os.close(mark)
    for path in list(where.iterdir()):
        if OLD_FILE.fullmatch(path.name) or path.name in _OTHERS:
            path.rename(aside / path.name)
    shutil.rmtree(where / _NEW, ignore_errors=True)


class _Copying:
    """Puts all that an old log has into an empty store."""

    def __init__(self, old: OldLog, store: Store) -> None:
        self._old = old
        self._store = store
        self._changes: Changes = store.begin()
        self._bytes = 0
        self._messages = 0

    def run(self) -> int:
        """Return the number of messages."""
        names = {
            ident: self._changes.declare(queue.name, queue.meta)
            for ident, queue in self._old.queues.items()
        }
        for key, value in self._old.values.items():
            self._changes.set(key, value)
        self._flush()
        # A body of several queues is to be stored once, as before, and for that these get it
        # together: bodies come in the order of their numbers.
        heads: list[tuple[int, int, OldMessage, Iterator[OldMessage]]] = []
        for ident, queue in self._old.queues.items():
            self._advance(heads, names[ident], self._old.messages(queue))
        while heads:
            body = heads[0][0]
            shared = self._share(body)
            self._bytes += 0 if shared is None else len(shared)
            while heads and heads[0][0] == body:
                _, ident, message, rest = heapq.heappop(heads)
                if shared is not None:
                    self._put(ident, message, shared)
                self._advance(heads, ident, rest)
            if self._bytes > _AT_ONCE:
                self._flush()
        self._flush()
        for ident, queue in self._old.queues.items():
            self._keep_number(names[ident], queue)
        self._flush()
        return self._messages

    def _advance(
        self,
        heads: list[tuple[int, int, OldMessage, Iterator[OldMessage]]],
        ident: int,
        messages: Iterator[OldMessage],
    ) -> None:
        """Copy messages of a queue up to the next one whose body is shared."""
        for message in messages:
            if isinstance(message.body, int):
                heapq.heappush(heads, (message.body, ident, message, messages))
                return
            self._put(ident, message, message.body)
            self._bytes += len(message.body)
            if self._bytes > _AT_ONCE:
                self._flush()

    def _share(self, body: int) -> bytes | Body | None:
        try:
            return self._changes.share(self._old.body(body))
        except CorruptOldError as error:
            self._old.damages.append(f"the body {body} of some messages: {error}; they are lost")
            return None

    def _put(self, ident: int, message: OldMessage, body: bytes | Body) -> None:
        self._changes.put(ident, message.seq, message.header, body, size=message.size)
        self._bytes += len(message.header) + 100
        self._messages += 1

    def _keep_number(self, ident: int, queue: OldQueue) -> None:
        """Let the next message of a queue get the number that it would have had."""
        last = queue.next_seq - 1
        if self._store.queues[queue.name].next_seq <= last:
            self._changes.put(ident, last, b"", b"")
            self._changes.done(ident, last)

    def _flush(self) -> None:
        if self._changes:
            self._store.commit(self._changes)
            self._store.flush()
        self._changes = self._store.begin()
        self._bytes = 0
