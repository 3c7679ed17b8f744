"""`clearfunds relay`: options, the lines on stdout, signals."""

import gc
import json
import logging
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final, Protocol

import trio
from cyclopts import Parameter

from clearfunds.access import BearerTokens, Passwords
from clearfunds.pipeline._errors import PipelineError
from clearfunds.relay import Companion, RelayAddresses, RelayReport, RelaySettings, serve_relay
from clearfunds.relay._memory import (
    CLUSTER_MMAP_THRESHOLD,
    MMAP_THRESHOLD,
    let_go_of_large,
)
from clearfunds.store import StoreError
from clearfunds.transports import ListenURLError, TransportError

from ._descriptors import within_descriptors
from ._errors import CommandFailedError, UsageError
from ._journal_options import Journal
from ._log_rate import LINES_A_SECOND, LimitedHandler, keep_summing_up
from ._logging import LogFormat, LogLevel, configure_logging
from ._relay_options import RUNNING, Options
from ._running import alone, run_async
from ._secret_file import check_secret
from ._tls_options import Tls
from ._token_options import TokenOptions
from ._types import OptionalCount

log = logging.getLogger("clearfunds.relay")

# Objects made and not freed, and collections of the younger generation, before each collection;
# CPython's own are 700, 10 and 10.
_YOUNG: Final = 50_000
_MIDDLE: Final = 20
_OLD: Final = 100


class Serve(Protocol):
    """Serves a relay, as `serve_relay` does."""

    def __call__(
        self,
        settings: RelaySettings,
        *,
        task_status: trio.TaskStatus[RelayAddresses],
        stop: trio.Event,
        companion: Companion | None,
    ) -> Awaitable[RelayReport]:
        """Run a relay until `stop` is set."""
        ...


def relay(
    *,
    options: Options = Options(),  # noqa: B008  (frozen)
    tls: Tls = Tls(),  # noqa: B008
    tokens: TokenOptions = TokenOptions(),  # noqa: B008
    journal: Journal = Journal(),  # noqa: B008
    log_level: Annotated[
        LogLevel, Parameter(group=RUNNING, help="Minimum log level; logs go to stderr.")
    ] = "info",
    log_format: Annotated[
        LogFormat,
        Parameter(
            group=RUNNING, help="Log format: a line of text per event, or a JSON object per line."
        ),
    ] = "text",
    log_rate: Annotated[
        OptionalCount,
        Parameter(
            group=RUNNING,
            help="Log rate limit, in lines per second of one kind of event. Further lines are "
            "counted, and one line a second gives their number; none: no limit.",
        ),
    ] = LINES_A_SECOND,
    serve: Annotated[Serve, Parameter(parse=False)] = serve_relay,
) -> int:
    """Run a relay (MQTT and Syndicate server) until SIGTERM or SIGINT.

    Prints each address as a line of JSON on stdout, with the real port:
    `{"listening": "mqtt+tcp://..."}`, `{"http": "http://..."}`, then `{"ready": true}`. Logs go to
    stderr. At the first signal the relay stops accepting connections and delivers outstanding
    messages; a second one ends it at once. SIGHUP reloads passwords, keys, the access control list
    and certificates. Sizes in bytes may have a unit (`8MiB`).
    """
    limited = configure_logging(log_level, log_format, log_rate)
    if options.anonymous and options.passwords is None and tokens.jwt_key is None:
        raise UsageError("--anonymous needs --passwords FILE or --jwt-key FILE")
    try:
        settings = options.settings(tls=tls.of_server(), tokens=tokens.read())
        companion = journal.companion()
    except ValueError as error:
        raise UsageError(str(error)) from error
    if settings.range_owner is not None and not settings.has_users:
        raise UsageError(
            "--range-owner needs users: give --passwords FILE, --jwt-key FILE or --tls-client-ca "
            "FILE"
        )
    if settings.tls is not None and not any(
        _is_secure(url) for url in (*settings.listen, settings.http or "")
    ):
        log.warning(
            "no listener uses the certificate: give --listen mqtt+tls://HOST:PORT or --http "
            "https://HOST:PORT"
        )
    _spare_the_collector()
    settings = within_descriptors(settings, journal=companion is not None)
    let_go_of_large(MMAP_THRESHOLD if settings.cluster is None else CLUSTER_MMAP_THRESHOLD)
    try:
        return run_async(partial(_serve, serve, limited), settings, companion)
    finally:
        if limited is not None:
            limited.flush()


def _is_secure(url: str) -> bool:
    return url.partition(":")[0].endswith(("+tls", "+wss", "https"))


def _spare_the_collector() -> None:
    """Make the garbage collector look at long-lived objects as seldom as possible.

    A full collection stops the relay for 25 ms with 10,000 accounts (measured), and finds nothing:
    reference counts free forwarded messages and closed connections; only exceptions make cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


async def _serve(
    serve: Serve,
    limited: LimitedHandler | None,
    settings: RelaySettings,
    companion: Companion | None,
) -> int:
    stop = trio.Event()
    status = 0
    async with trio.open_nursery() as nursery:

        async def serving(task_status: trio.TaskStatus[RelayAddresses]) -> None:
            report = await serve(settings, task_status=task_status, stop=stop, companion=companion)
            _report(report)
            nursery.cancel_scope.cancel()

        async def ending() -> None:
            nonlocal status
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for number in signals:
                    name = signal.Signals(number).name
                    if stop.is_set():
                        log.warning(
                            "%s again: ending at once, without delivering outstanding messages",
                            name,
                        )
                        status = 1
                        nursery.cancel_scope.cancel()
                    else:
                        log.info("%s: ending", name)
                        stop.set()

        nursery.start_soon(ending)
        if limited is not None:
            nursery.start_soon(keep_summing_up, limited)
        nursery.start_soon(_reload_at_sighup, _reloads(settings))
        try:
            addresses: RelayAddresses = await nursery.start(serving)
        except Exception as error:
            cause = alone(error)
            if isinstance(cause, ListenURLError):
                raise UsageError(str(cause)) from error
            if isinstance(cause, OSError | TransportError | StoreError | PipelineError):
                raise CommandFailedError(str(cause)) from error
            raise
        for listening in addresses.listening:
            _tell(listening=listening)
        if addresses.http is not None:
            _tell(http=addresses.http)
        _tell(ready=True)
    return status


def _reloads(settings: RelaySettings) -> dict[str, Callable[[], object]]:
    """Return the functions to call at SIGHUP, by the name of the data; each raises if it fails."""
    reloads: dict[str, Callable[[], object]] = {}
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


async def _reload_at_sighup(reloads: dict[str, Callable[[], object]]) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if not reloads:  # The relay goes on, as mosquitto does: its terminal may have gone.
                log.info(
                    "SIGHUP: there is no file to read again", extra={"event": "nothing_to_reload"}
                )
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


def _tell(**line: object) -> None:
    print(json.dumps(line), flush=True)


def _report(report: RelayReport) -> None:
    for sentence in report.unflushed:
        log.warning("not delivered: %s", sentence, extra={"event": "not_delivered"})
    log.info(
        "ended; %s",
        "all outstanding messages are delivered"
        if not report.unflushed
        else f"{len(report.unflushed)} did not get their outstanding messages",
        extra={"event": "ended", "not_delivered": len(report.unflushed)},
    )
