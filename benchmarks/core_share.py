"""A share of a core for a server, so that the load generator is not what limits it.

Linux's control groups, version 1 or 2; they need root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import attrs

GROUPS: Final = Path("/sys/fs/cgroup")
PERIOD: Final = 10_000
"""Microseconds in which the share is spent: short beside the latencies that are measured."""


class NoShareError(Exception):
    """A share cannot be given here; the message says why."""


@attrs.frozen
class CoreShare:
    """A group of processes that may use so much of a core together."""

    folder: Path

    def takes(self, pid: int) -> None:
        """Let a process, with all its threads, be in the group."""
        (self.folder / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def core_share(share: float, name: str) -> Generator[CoreShare]:
    """Make a group that may use `share` of a core; its processes must have ended before the block.

    Raises:
        NoShareError: There are no control groups here, or only root may make one.
    """
    quota = round(share * PERIOD)
    one, two = GROUPS / "cpu", GROUPS / "cgroup.controllers"
    if (one / "cpu.cfs_quota_us").exists() or (one / "cpu.cfs_period_us").exists():
        folder = one / name
        limits = {"cpu.cfs_period_us": str(PERIOD), "cpu.cfs_quota_us": str(quota)}
    elif two.exists() and "cpu" in two.read_text().split():
        folder = GROUPS / name
        limits = {"cpu.max": f"{quota} {PERIOD}"}
    else:
        raise NoShareError(f"a share of a core needs Linux's control group for CPUs in {GROUPS}")
    try:
        folder.mkdir()
        for file, value in limits.items():
            (folder / file).write_text(value)
    except OSError as exc:
        raise NoShareError(f"a share of a core needs root: {exc}") from None
    try:
        yield CoreShare(folder)
    finally:
        os.rmdir(folder)
