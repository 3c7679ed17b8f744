"""Open files: the number of connections that leaves enough descriptors for everything else.

A relay without a free descriptor can neither accept nor answer `/healthz`, and its store waits for
one to put its directory on the disk. So connections are fewer than files.
"""

import contextlib
import logging
import resource
from typing import Final

import attrs

from clearfunds.relay import RelaySettings

log = logging.getLogger("clearfunds.relay")

_STANDING: Final = 64
"""For the loop, threads, modules, logs, DNS and the listeners themselves."""

_LISTENER: Final = 64
"""As many as are accepted in one step, before surplus ones are closed again."""

_STORE: Final = 96
"""The database and its log, for the writer, and again for each thread that reads."""

_JOURNAL: Final = 16
"""A file for each of its tables, and its lock."""


def within_descriptors(settings: RelaySettings, *, journal: bool) -> RelaySettings:
    """Raise this process's limit of open files as far as allowed; return settings that fit it.

    It logs a line if fewer connections fit than are wanted.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # Not allowed: the present limit has to do.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return settings
    others = _STANDING + _LISTENER * len(settings.listen)
    others += _STORE * (settings.store is not None) + _JOURNAL * journal
    pages = settings.max_http_connections if settings.http is not None else 0
    if settings.max_connections + others + pages <= allowed:
        return settings
    # With next to no descriptors, half of them are for connections.
    pages = min(pages, max(1, allowed // 8))
    fit = max(1, allowed // 2, allowed - others - pages)
    fit = min(fit, settings.max_connections)
    log.warning(
        "%d open files are allowed, enough for %d connections, not %d (--max-connections); for "
        "more, raise the limit (ulimit -n, LimitNOFILE=)",
        allowed,
        fit,
        settings.max_connections,
        extra={"event": "few_descriptors", "allowed": allowed, "connections": fit},
    )
    return attrs.evolve(
        settings, max_connections=fit, max_http_connections=pages or settings.max_http_connections
    )
