"""Resource alarms for memory and disk: all publishers wait until there is room again.

As RabbitMQ's resource alarms, with its defaults. `accounts` has the effect of an alarm; here are
the measurements: resident memory of this process against its limit, and free space on the store's
disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..accounts import DISK, MEMORY, Alarms, Watermark
from ..transports._ticker import next_tick
from ._memory import MemoryInUse, give_back, memory_used

if TYPE_CHECKING:
    from ..accounts import Account

logger = logging.getLogger("clearfunds.relay")

DEFAULT_MEMORY_SHARE: Final = 0.6
"""As RabbitMQ's vm_memory_high_watermark."""

DEFAULT_DISK_FREE: Final = 50_000_000
"""Bytes: as RabbitMQ's disk_free_limit. Little: a fast store writes more than that in a second, so
raise it if you can afford to."""

CLEAR_SHARE: Final = 0.05
"""Distance beyond its mark at which an alarm is over. RabbitMQ has no such distance; a twentieth is
more than a measure moves by itself from one second to the next."""

SAMPLE_SECONDS: Final = 1.0
"""The interval of measurements: some megabytes can be written or read in between, and the marks
leave room for that."""


@attrs.frozen(slots=True, kw_only=True)
class AlarmSettings:
    """Thresholds of the alarms."""

    memory: float | int | None = DEFAULT_MEMORY_SHARE
    """Memory of this process: up to 1.0, a share of its limit; above, bytes; None: it is not
    watched."""
    disk_free: int | None = DEFAULT_DISK_FREE
    """Bytes free on the store's disk; None: it is not watched."""
    seconds: float = SAMPLE_SECONDS
    """The interval of measurements."""

    def __attrs_post_init__(self) -> None:
        if self.memory is not None and self.memory <= 0:
            msg = f"memory must be above 0, or None for no alarm, not {self.memory}"
            raise ValueError(msg)
        if self.disk_free is not None and self.disk_free <= 0:
            msg = f"disk_free must be above 0, or None for no alarm, not {self.disk_free}"
            raise ValueError(msg)
        if self.seconds <= 0:
            msg = f"seconds must be above 0, not {self.seconds}"
            raise ValueError(msg)

    def memory_mark(self, limit: int) -> int | None:
        """Return the threshold in bytes, given the `limit` of the process."""
        if self.memory is None:
            return None
        return int(self.memory * limit) if self.memory <= 1.0 else int(self.memory)


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of RAM that this process may have.

    This is the machine's memory, or less if a control group that it is in (version 1 or 2, or one
    above) allows less.

    Raises:
        OSError: If /proc does not tell the machine's memory.
    """
    limit = _total(proc)
    for line in _lines(proc / "self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (
            (cgroups / "memory", "memory.limit_in_bytes")
            if controllers
            else (cgroups, "memory.max")
        )
        # Inside a container the path may be that outside, which is not there; then its own group is
        # mounted.
        group = base / path.strip("/")
        for each in (group, *group.parents):
            for text in _lines(each / name):
                if text.strip().isdigit():
                    limit = min(limit, int(text))
            if each == base:
                break
    return limit


def _total(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    msg = f"{proc / 'meminfo'} does not say MemTotal"
    raise OSError(msg)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def disk_free(directory: str | os.PathLike[str]) -> int:
    """Return the bytes that are free for this process on the disk of `directory`. May block.

    Raises:
        OSError: If the disk does not tell.
    """
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def watermarks(settings: AlarmSettings, limit: int, *, disk: bool) -> dict[str, Watermark]:
    """Return the thresholds at which alarms begin and end, for a process with `limit` bytes."""
    marks: dict[str, Watermark] = {}
    memory = settings.memory_mark(limit)
    if memory is not None:
        marks[MEMORY] = Watermark(memory, memory - max(1, int(memory * CLEAR_SHARE)))
    if disk and settings.disk_free is not None:
        free = settings.disk_free
        marks[DISK] = Watermark(free, free + max(1, int(free * CLEAR_SHARE)))
    return marks


async def watch_alarms(
    account: Account,
    settings: AlarmSettings | None = None,
    directory: str | os.PathLike[str] | None = None,
    *,
    used: Callable[[], int] = memory_used,
    trim: Callable[[], object] | None = give_back,
    limit: Callable[[], int] = memory_limit,
    free: Callable[[str | os.PathLike[str]], int] = disk_free,
    task_status: trio.TaskStatus[Alarms] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Measure memory and the disk once a second, and halt `account` while either is short.

    Start it in a nursery: `await nursery.start(watch_alarms, server, settings, directory)` returns
    the alarms; the first measures are taken at once.

    Args:
        account: The top account: its readers wait, and those of its descendants.
        settings: The thresholds.
        directory: The directory of the store; None: the disk is not watched.
        used: Measures resident memory.
        trim: Gives free memory back, before an alarm goes up and while it is up; called in a
            thread. None: nothing does.
        limit: Returns the memory limit; called once.
        free: Measures free disk space; called in a thread, since a disk may not answer.
        task_status: For `nursery.start`.

    A measurement that fails is logged, once until it works again, and the alarm stays as it is. A
    disk that does not answer is waited for; memory is measured nonetheless.

    Cancellation: the alarms are over then. A thread that waits for the disk is left to itself.

    Raises:
        OSError: If the memory limit cannot be found out.
    """
    settings = AlarmSettings() if settings is None else settings
    marks = watermarks(settings, limit(), disk=directory is not None)
    alarms = Alarms(account, marks)

    memory = MemoryInUse(marks[MEMORY].clear if MEMORY in marks else 0, used=used, trim=trim)

    async def of_disk() -> int:
        assert directory is not None
        return await trio.to_thread.run_sync(free, directory, abandon_on_cancel=True)

    try:
        async with trio.open_nursery() as nursery:
            for kind, measure in ((MEMORY, memory.measure), (DISK, of_disk)):
                if kind in marks:
                    nursery.start_soon(_watch, alarms, kind, settings.seconds, measure)
            task_status.started(alarms)
            # There may be nothing to watch; even so this ends only when its starter ends it.
            nursery.start_soon(trio.sleep_forever)
    finally:
        alarms.clear_all()


async def _watch(
    alarms: Alarms, kind: str, seconds: float, measure: Callable[[], Awaitable[int]]
) -> None:
    """Take one measure after the other."""
    failed = False
    while True:
        try:
            alarms.sample(kind, await measure())
            failed = False
        except OSError as exc:
            if not failed:
                logger.warning(
                    "the alarm of %s stays as it is: it cannot be measured: %s",
                    kind,
                    exc.strerror or exc,
                    extra={"event": "alarm_unknown", "kind": kind, "reason": str(exc)},
                )
            failed = True
        await next_tick(seconds)
