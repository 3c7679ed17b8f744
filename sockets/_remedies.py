"""Sentences about what the system refuses: the system's reason, then what to do."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from pathlib import Path

_WITH_FILES: Final = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.EISDIR: "give a file in it",
    errno.EACCES: "let this user read and write there (chmod, chown), or give another path",
    errno.EPERM: "let this user read and write there (chmod, chown), or give another path",
    errno.EROFS: "the file system is read-only: give another path",
    errno.ENOSPC: "free some space there, or give another path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENAMETOOLONG: "give a shorter path",
}

_IN_USE: Final = "end the program that listens there, or choose another (port 0: any free)"
_NOT_HERE: Final = "give an address of this machine, or 0.0.0.0 or [::] for all of them"
_PRIVILEGED: Final = (
    "choose a port from 1024 on, or allow this process the lower ones (CAP_NET_BIND_SERVICE)"
)
_WHICH_HOST: Final = "check the host's name"

_LISTENING: Final = {
    errno.EADDRINUSE: _IN_USE,
    errno.EADDRNOTAVAIL: _NOT_HERE,
    errno.EACCES: _PRIVILEGED,
    errno.EAFNOSUPPORT: _NOT_HERE,
}

_LISTENING_AT_A_PATH: Final = {
    **_WITH_FILES,
    errno.ENOENT: "make the folder first",
    errno.EADDRINUSE: "end the program that listens there; if it is another file, choose another "
    "path",
}


def trouble_with_file(path: Path | str, error: OSError) -> str:
    """Return the path, the reason why the file or folder there cannot be used, and a remedy."""
    return f"{path}: {_reason(error)}{_remedy(_WITH_FILES, error)}"


def trouble_with_listening(error: OSError, *, at_path: bool = False) -> str:
    """Return the reason why an address cannot be listened on, and a remedy.

    Args:
        error: The system's.
        at_path: The address is the path of a Unix socket.
    """
    if isinstance(error, socket.gaierror):
        return f"{_reason(error)}; {_WHICH_HOST}"
    advice = _LISTENING_AT_A_PATH if at_path else _LISTENING
    return f"{_reason(error)}{_remedy(advice, error)}"


def trouble_with_connecting(error: OSError) -> str:
    """Return the reason why there is no connection to an address, and a remedy."""
    cause: Any = error.__cause__
    if not error.errno and isinstance(cause, ExceptionGroup):
        # Trio's own error counts the attempts only; each has its reason.
        error = cast("Any", cause).exceptions[-1]
    if isinstance(error, socket.gaierror):
        return f"{_reason(error)}; {_WHICH_HOST}"
    return f"{_reason(error)}; is a server listening there?"


def _reason(error: OSError) -> str:
    # Trio puts sentences of its own in place of some of the system's.
    if error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _remedy(advice: dict[int, str], error: OSError) -> str:
    found = advice.get(error.errno or 0)
    return "" if found is None else f"; {found}"
