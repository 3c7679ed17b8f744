"""`clearfunds store`: verify, repair or dump a relay's store."""

import base64
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from clearfunds.store import Damage, Inspection, Record, StoreError, Verification
from clearfunds.store import repair as repair_store

from ._errors import CommandFailedError, UsageError
from ._printable import printable
from ._types import Size

#: Bytes of a body that are shown, without another limit.
_SHOWN: Final = 1024

Directory = Annotated[Path, Parameter(help="Store directory of the relay (its --store).")]

store = App(
    name="store",
    help="Verify, repair or dump a relay's store on disk. The relay must not be running.",
)


@store.command
def verify(directory: Directory, /) -> int:
    """Verify every message and checksum of a store, and change nothing.

    Exit status 0: the store is intact. 1: something is damaged; the output names it.
    """
    with _failing(), _progress() as progress, Inspection(_found(directory), progress) as found:
        verification = found.verify()
    for damage in verification.damages:
        print(_damage(damage))
    number = len(verification.damages)
    state = f"{_count(number, 'damage')} (clearfunds store repair)" if number else "all is well"
    print(f"{_summary(verification)}: {state}")
    return 1 if number else 0


@store.command
def repair(directory: Directory, /) -> int:
    """Repair a store: keep readable data, put damaged data aside and name it.

    Damaged rows go to the table `damaged`, and their messages count as done. If the structure of
    the database is damaged, its readable rows are copied to a new one, and the old file stays as
    `messages.db.damaged-1`. Then free room is given back to the system.
    """
    with _failing(), _progress() as progress:
        damages = repair_store(_found(directory), progress)
        with Inspection(directory, progress) as found:
            verification = found.verify()
    for damage in damages:
        print(_damage(damage))
    print(f"{_summary(verification)}; {'repaired' if damages else 'nothing was damaged'}")
    return 1 if verification.damages else 0


@store.command
def dump(
    directory: Directory,
    /,
    *,
    queue: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(), show_default=False, help="Queue to print; without it, all. Repeatable."
        ),
    ] = (),
    as_json: Annotated[
        bool,
        Parameter(
            name="--json",
            negative=(),
            show_default=False,
            help="Print a JSON object per line; data that is not UTF-8 is in base64, as "
            "`body_base64`.",
        ),
    ] = False,
    values: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Also print the relay's stored keys and values."
        ),
    ] = False,
    max_body: Annotated[
        Size, Parameter(help="Maximum bytes of a body or value to print.")
    ] = _SHOWN,
) -> int:
    """Print every message of a store, in order, and change nothing.

    Exit status 1: something could not be read; stderr names it.
    """
    with _failing(), Inspection(_found(directory)) as found:
        for name in queue:
            if name not in found.queues:
                there = ", ".join(map(repr, sorted(found.queues))) or "none"
                msg = f"there is no queue {name!r}; queues: {there}"
                raise UsageError(msg)
        show = _as_json if as_json else _as_text
        for name in queue or sorted(found.queues):
            for record in found.records(found.queues[name]):
                print(show(_message(name, record, max_body)))
        if values:
            for key in sorted(found.values):
                print(show({"key": key, **_shown("value", found.values[key], max_body)}))
        damages = found.damages
    for damage in damages:
        print(f"clearfunds store dump: {_damage(damage)}", file=sys.stderr)
    return 1 if damages else 0


def _message(name: str, record: Record, limit: int) -> dict[str, Any]:
    return {
        "queue": name,
        "seq": record.seq,
        "bytes": record.nbytes,
        **_shown("header", record.header, None),
        **_shown("body", record.body, limit),
    }


def _shown(name: str, data: bytes, limit: int | None) -> dict[str, Any]:
    """Return the part of some bytes to show: text if they are, and no more than the limit."""
    shown: dict[str, Any] = {}
    part = data if limit is None else data[:limit]
    try:
        # A limit may cut a character in half; the rest is text all the same.
        text = part.decode("utf-8", "strict" if len(part) == len(data) else "ignore")
        if len(part) < len(data) and len(text.encode()) < len(part) - 3:
            raise UnicodeError
        shown[name] = text
    except UnicodeError:
        shown[f"{name}_base64"] = base64.b64encode(part).decode("ascii")
    if len(part) < len(data):
        shown[f"{name}_bytes"] = len(data)
    return shown


def _as_json(shown: dict[str, Any]) -> str:
    # Names and keys may come from bytes that are not text; a line has to be valid all the same.
    return json.dumps(shown, ensure_ascii=True)


def _as_text(shown: dict[str, Any]) -> str:
    words: list[str] = []
    for name, value in shown.items():
        if name in ("queue", "key", "seq"):
            words.append(printable(str(value)))
        else:
            words.append(f"{name}={printable(str(value))}")
    return " ".join(words).encode("utf-8", "backslashreplace").decode("utf-8")


def _found(directory: Path) -> Path:
    if not directory.is_dir():
        msg = f"{directory} is no directory: give the one that `clearfunds relay --store` has"
        raise CommandFailedError(msg)
    return directory


def _summary(verification: Verification) -> str:
    return (
        f"{_count(verification.queues, 'queue')}, {_count(verification.messages, 'message')}, "
        f"{_count(verification.message_bytes, 'byte')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _damage(damage: Damage) -> str:
    return printable(str(damage)).encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def _failing() -> Generator[None]:
    """Turn the store's errors into the command's."""
    try:
        yield
    except StoreError as error:
        raise CommandFailedError(printable(str(error))) from error


@contextmanager
def _progress() -> Generator[Callable[[str, int, int], None]]:
    """Show progress on stderr, if it is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as shown:
        tasks: dict[str, Any] = {}

        def note(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for task in tasks.values():
                    shown.update(task, visible=False)
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done, total=total)

        yield note
