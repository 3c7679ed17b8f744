"""`clearfunds journal`: merge the small files of a relay's journal, or check its files."""

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter

from clearfunds.pipeline.journal import (
    DEFAULT_ROLL_BYTES,
    PipelineError,
    compact_journal,
    verify_journal,
)

from ._errors import CommandFailedError
from ._printable import printable
from ._types import Seconds, Size

Directory = Annotated[Path, Parameter(help="Journal directory (the relay's --journal).")]

_AFTER: Final = 120.0
"""Twice the default of --journal-roll-every: the relay has closed its files of the hour."""

journal = App(
    name="journal",
    help="Merge or verify the files of a relay's journal. The relay may be running.",
)


@journal.command
def compact(
    directory: Directory,
    /,
    *,
    after: Annotated[
        Seconds,
        Parameter(
            help="Age of an hour's files, in seconds, at which they are merged. A query that "
            "reads the journal as a stream should have seen them."
        ),
    ] = _AFTER,
    size: Annotated[Size, Parameter(help="Size of a merged file, about, in bytes.")] = (
        DEFAULT_ROLL_BYTES
    ),
) -> int:
    """Merge the many small files of each hour that is over into few, up to a size.

    The relay does this by itself (--journal-compact-after). Reports may run meanwhile, and a kill
    at any moment loses nothing. Damaged files are named, and stay. Exit status 0: done. 1: a file
    is damaged, or a report was read all the time.
    """
    with _failing(directory):
        result = compact_journal(directory, before=time.time() - after, max_bytes=size)
    for damage in result.damaged:
        _complain(str(damage))
    if result.waits:
        _complain("somebody reads this journal all the time: call it again when the report is done")
    print(
        f"{printable(str(directory))}: {result.files:,} files merged into {result.into:,} "
        f"({result.bytes:,} bytes into {result.bytes_after:,})"
    )
    return 1 if result.damaged or result.waits else 0


@journal.command
def verify(directory: Directory, /) -> int:
    """Verify every file of a journal, by its checksum, and change nothing.

    Exit status 0: all files are whole. 1: something is damaged; the output names it.
    """
    with _failing(directory):
        files, damages = verify_journal(directory)
    for damage in damages:
        print(printable(str(damage)))
    state = f"{len(damages):,} damaged" if damages else "all is well"
    print(f"{printable(str(directory))}: {files:,} files, {state}")
    return 1 if damages else 0


def _complain(sentence: str) -> None:
    print(f"clearfunds journal: {printable(sentence)}", file=sys.stderr)


@contextmanager
def _failing(directory: Path) -> Generator[None]:
    try:
        yield
    except PipelineError as error:
        raise CommandFailedError(printable(str(error))) from error
    except OSError as error:
        where = os.fspath(error.filename or directory)
        msg = f"{printable(where)} cannot be read or written: {error.strerror or error}"
        raise CommandFailedError(msg) from error
