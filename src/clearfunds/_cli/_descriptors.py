"""Open files: how many connections a relay may have beside all else that it needs one for.

A relay that has none left can neither accept nor answer `/healthz`, and its store waits for one to
have its directory on the disk. So there are fewer connections than files.
"""

import contextlib
import logging
import resource
from typing import Final

import attrs

from clearfunds.transports import RelaySettings

log = logging.getLogger("clearfunds.relay")

_STANDING: Final = 64
"""For the loop, threads, modules, logs, DNS and the listeners themselves."""

_LISTENER: Final = 64
"""As many as are accepted in one step, before those that are too many are closed again."""

_STORE: Final = 96
"""Segments that are open for reading (`StoreSettings.open_files`), and those that are written."""

_JOURNAL: Final = 16
"""A file for each of its tables, and its lock."""


def within_descriptors(settings: RelaySettings, *, journal: bool) -> RelaySettings:
    """Allow this process as many open files as it may have; return settings that fit these.

    The log is told if fewer connections fit than are wanted.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # not allowed: then what there is has to do
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return settings
    others = _STANDING + _LISTENER * len(settings.listen)
    others += _STORE * (settings.store is not None) + _JOURNAL * journal
    pages = settings.max_http_connections if settings.http is not None else 0
    if settings.max_connections + others + pages <= allowed:
        return settings
    # Where there are next to none, half of them are for connections.
    pages = min(pages, max(1, allowed // 8))
    fit = max(1, allowed // 2, allowed - others - pages)
    fit = min(fit, settings.max_connections)
    log.warning(
        "%d open files are allowed: there may be %d connections, not %d (--max-connections); for "
        "more, raise the limit (ulimit -n, LimitNOFILE=)",
        allowed,
        fit,
        settings.max_connections,
        extra={"event": "few_descriptors", "allowed": allowed, "connections": fit},
    )
    return attrs.evolve(
        settings, max_connections=fit, max_http_connections=pages or settings.max_http_connections
    )
