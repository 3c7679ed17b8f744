"""SIGHUP: the file of `--config`, and the files that options name, are read again.

Rules of this file:
1. SIGHUP never ends a relay.
2. The options are read as at the start: what the command line says wins over the file.
3. All or nothing: if the options have a mistake, none of them changes.
"""

import logging
import signal
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from clearfunds.access import BearerTokens, Passwords
from clearfunds.relay import AdjustError, Adjusting, RelaySettings
from clearfunds.transports._units import is_reloadable

from ._errors import UsageError
from ._secret_file import check_secret
from ._service import Service

log = logging.getLogger("clearfunds.relay")

Reloads = dict[str, Callable[[], object]]
"""Functions that read a file again, by the name of the data; each raises if it fails."""

Arguments = Mapping[str, Any]
"""Arguments of a command, by name; some are several options (attrs)."""

RELOADABLE_OPTIONS: Final = (
    *(each.name for each in attrs.fields(RelaySettings) if is_reloadable(each)),
    "log_level",
)
"""The options of a relay that may be changed while it runs, by the names of their settings."""


_WHY: Final = {"tenant": " (amounts can change; who belongs to a tenant, kept and latency cannot)"}


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


class Configuration:
    """The options of a running relay, to be read again.

    Args:
        read: Reads the arguments of the command again; it takes a tenth of a second. It raises
            UsageError. None: no file has options.
        given: The arguments with which the relay was started.
        adjusting: Puts them into force.
        only: The options of which it is said that they stay as they are; None: all.
        fitted: Makes settings fit this process, as at the start.
    """

    def __init__(
        self,
        read: Callable[[], Arguments] | None,
        given: Arguments,
        adjusting: Adjusting,
        only: Collection[str] | None = None,
        *,
        fitted: Callable[[RelaySettings], RelaySettings] = lambda settings: settings,
    ) -> None:
        self.read = read
        self._options = options_of(given)
        self._settings = adjusting.settings
        self._adjusting = adjusting
        self._only = only
        self._fitted = fitted

    def __repr__(self) -> str:
        return f"<Configuration: {len(self._options)} options>"

    async def reload(self) -> None:
        """Read the options again; log what has changed, and what has not though it differs.

        Cancellation: nothing has changed.
        """
        if self.read is None:
            return
        try:
            # In a thread: the relay goes on meanwhile.
            options = options_of(await trio.to_thread.run_sync(self.read))
            changed, unchanged = self._take(options)
        except Exception as error:  # Whatever it is, the relay goes on.
            log.error(
                "SIGHUP: the configuration stays unchanged: %s",
                error,
                exc_info=not isinstance(error, UsageError | AdjustError),
                extra={"event": "not_reloaded", "what": "configuration", "reason": str(error)},
            )
            return
        if self._only is None:
            log.info(
                "SIGHUP: the configuration was read again; %s",
                f"changed: {', '.join(map(_option, changed))}" if changed else "nothing changes",
                extra={"event": "reconfigured", "changed": changed},
            )
        else:
            unchanged = [name for name in unchanged if name in self._only]
        if unchanged:
            log.warning(
                "SIGHUP: a restart is needed to change %s",
                ", ".join(_option(name) + _WHY.get(name, "") for name in unchanged),
                extra={"event": "restart_needed", "options": unchanged},
            )

    def _take(self, options: Arguments) -> tuple[list[str], list[str]]:
        """Put options into force; return which have changed, and which have not."""
        differ = [name for name, value in self._options.items() if value != options[name]]
        new = {name: options[name] for name in RELOADABLE_OPTIONS}
        level = new.pop("log_level")
        try:
            settings = self._fitted(attrs.evolve(self._settings, **new))
        except ValueError as error:
            raise UsageError(str(error)) from error
        done = self._adjusting.reload(settings)
        if level != self._options["log_level"]:
            self._adjusting.set_log_level(level)
        unchanged = [
            name for name in differ if name not in RELOADABLE_OPTIONS or name in done.unchanged
        ]
        changed = [name for name in differ if name not in unchanged]
        self._options = {**self._options, **{name: options[name] for name in changed}}
        return changed, unchanged


def options_of(arguments: Arguments) -> dict[str, Any]:
    """Return the options in arguments, by the names of their settings."""
    options: dict[str, Any] = {}
    for name, value in arguments.items():
        if attrs.has(value.__class__):
            options.update(attrs.asdict(value, recurse=False))
        else:
            options[name] = value
    return options


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


async def reload_at_sighup(
    reloads: Reloads, service: Service, configuration: Configuration
) -> None:
    """Read files again at each SIGHUP, and tell systemd, until cancelled."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if not reloads and configuration.read is None:
                # The relay goes on, as mosquitto does: its terminal may have gone.
                log.info(
                    "SIGHUP: there is no file to read again", extra={"event": "nothing_to_reload"}
                )
            with service.reloading():
                await configuration.reload()
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
