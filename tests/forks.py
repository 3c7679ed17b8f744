"""`clearfunds COMMAND` as a process that is a fork of one that has imported it all.

To start an interpreter that imports the relay takes 0.45 s of CPU, a fork 0.05 s, and the tests
start hundreds. The fixture `as_a_user` is for tests of how a command starts and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from functools import cache
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Final, cast

CLEARFUNDS: Final = (sys.executable, "-m", "clearfunds")

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.forked"])


@cache
def ensure_server() -> None:
    """Start what forks, where it finds the modules of the tests."""
    with contextlib.chdir(Path(__file__).parents[1]):
        forkserver.ensure_running()


class _Fd:
    """A descriptor that goes with what is sent to the server of forks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self._fd),)


def _detach(sent: Any) -> int:
    fd: int = sent.detach()
    return fd


def _main(argv: list[str], cwd: str, env: dict[str, str], *fds: int) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    from clearfunds._cli import run

    sys.exit(run(argv))


class Forked(subprocess.Popen[Any]):
    """A `Popen` of `clearfunds ARGV`; only its first step and its last are others."""

    def __init__(self, *argv: str, **options: Any) -> None:
        super().__init__(argv, **options)

    def _execute_child(self, argv: list[str], *others: Any) -> None:
        cwd, env, pipes = others[4], others[5], others[9:15]
        ensure_server()
        with open(os.devnull, "r+b") as nothing:
            fds = [fd if fd != -1 else nothing.fileno() for fd in (pipes[0], pipes[3], pipes[5])]
            self._forked = _CONTEXT.Process(
                target=_main,
                args=(
                    *(list(argv), str(cwd or os.getcwd()), dict(env or os.environ)),
                    *(_Fd(fd) for fd in fds),
                ),
                daemon=True,
            )
            self._forked.start()
        assert self._forked.pid is not None
        self.pid = self._forked.pid
        self._child_created = True
        cast("Any", self)._close_pipe_fds(*pipes)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and (status := self._forked.exitcode) is not None:
            self.returncode = status
            self._forked.close()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._forked.join(timeout)
        status = self._internal_poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status


def start_as_a_user(*argv: str, **options: Any) -> subprocess.Popen[Any]:
    """Start an interpreter of its own."""
    return subprocess.Popen([*CLEARFUNDS, *argv], **options)


def start(*argv: str, **options: Any) -> subprocess.Popen[Any]:
    """Start `clearfunds ARGV`; the options are those of `Popen`."""
    return Forked(*argv, **options)


def clearfunds(
    *argv: str, stdin: str = "", timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start(*argv, **pipes, text=True, **options) as process:
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)
