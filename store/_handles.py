"""The segments that are open for reading, up to a limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from ._files import File, Files


class Handles:
    """Files by name, opened on demand; for any thread."""

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[str, File] = OrderedDict()
        self._users: dict[File, int] = {}

    @contextmanager
    def use(self, name: str) -> Generator[File]:
        """Keep the file of that name open for the length of a block.

        Raises:
            OSError: The file does not exist, or cannot be opened.
        """
        with self._lock:
            file = self._open.get(name)
            if file is None:
                file = self._files.open(name)
                self._open[name] = file
                self._users[file] = 0
            self._open.move_to_end(name)
            self._users[file] += 1
            unused = self._surplus()
        for other in unused:
            other.close()
        try:
            yield file
        finally:
            self._release(file)

    def _surplus(self) -> list[File]:
        unused: list[File] = []
        for name, file in list(self._open.items()):
            if len(self._open) <= self._limit:
                break
            if not self._users[file]:
                del self._open[name], self._users[file]
                unused.append(file)
        return unused

    def _release(self, file: File) -> None:
        with self._lock:
            self._users[file] -= 1
            if self._users[file] or file in self._open.values():
                return
            del self._users[file]
        file.close()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there, and close it as soon as nobody uses it.

        Raises:
            OSError: The disk refused.
        """
        with suppress(FileNotFoundError):
            self._files.unlink(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            file = self._open.pop(name, None)
            if file is None or self._users[file]:
                return
            del self._users[file]
        file.close()

    def close(self) -> None:
        """Close them all."""
        for name in list(self._open):
            self._forget(name)
