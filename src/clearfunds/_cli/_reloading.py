"""SIGHUP: files that are read again."""

import logging
import signal
from collections.abc import Callable
from functools import partial

import trio

from clearfunds.access import BearerTokens, Passwords
from clearfunds.relay import RelaySettings

from ._secret_file import check_secret
from ._service import Service

log = logging.getLogger("clearfunds.relay")

Reloads = dict[str, Callable[[], object]]
"""Functions that read a file again, by the name of the data; each raises if it fails."""


def reloads_of(settings: RelaySettings) -> Reloads:
    """Return the functions to call at SIGHUP, by the name of the data; each raises if it fails."""
    reloads: Reloads = {}
    if isinstance(settings.passwords, Passwords):
        reloads["passwords"] = partial(_reload_secrets, settings.passwords)
    if settings.http_token is not None:
        reloads["tokens of the pages"] = partial(_reload_secrets, settings.http_token)
    if isinstance(settings.http_password, Passwords):
        reloads["passwords of the pages"] = partial(_reload_secrets, settings.http_password)
    if settings.tokens is not None:
        reloads["key of tokens"] = settings.tokens.reload
    if settings.acl is not None:
        reloads["access control list"] = settings.acl.reload
    if settings.tls is not None:
        reloads["certificates"] = settings.tls.reload
    return reloads


def _reload_secrets(secrets: Passwords | BearerTokens) -> None:
    if secrets.file is not None:
        check_secret(secrets.file)
    secrets.reload()


async def reload_at_sighup(reloads: Reloads, service: Service) -> None:
    """Read files again at each SIGHUP, and tell systemd, until cancelled."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if not reloads:  # The relay goes on, as mosquitto does: its terminal may have gone.
                log.info(
                    "SIGHUP: there is no file to read again", extra={"event": "nothing_to_reload"}
                )
            with service.reloading():
                reload_files(reloads)


def reload_files(reloads: Reloads) -> None:
    """Read files again; a fault is logged, and what was read before stays in force."""
    for what, reload in reloads.items():
        try:
            reload()
        except Exception as error:  # noqa: BLE001  (whatever it is, the relay goes on)
            why = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                why = f"{error.filename}: {error.strerror}"
            log.error(
                "SIGHUP: the %s stay unchanged: %s",
                what,
                why,
                extra={"event": "not_reloaded", "what": what, "reason": why},
            )
        else:
            log.info(
                "SIGHUP: the %s were read again",
                what,
                extra={"event": "reloaded", "what": what},
            )
