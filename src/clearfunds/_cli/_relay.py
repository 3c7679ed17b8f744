"""`clearfunds relay`: options, the lines on stdout, signals."""

import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final, Protocol

import trio
from cyclopts import Parameter
from cyclopts.validators import Number

from clearfunds.pipeline._errors import PipelineError
from clearfunds.relay import (
    Adjusting,
    Companion,
    RelayAddresses,
    RelayReport,
    RelaySettings,
    serve_relay,
)
from clearfunds.relay._memory import (
    CLUSTER_MMAP_THRESHOLD,
    MMAP_THRESHOLD,
    let_go_of_large,
)
from clearfunds.store import StoreError
from clearfunds.transports import ListenURLError, TransportError

from ._collector import spare_the_collector
from ._descriptors import within_descriptors
from ._errors import CommandFailedError, UsageError
from ._journal_options import Journal
from ._log_rate import LINES_A_SECOND, LimitedHandler, keep_summing_up
from ._logging import LogFormat, LogLevel, configure_logging
from ._relay_options import RUNNING, Options
from ._reloading import Arguments, Configuration, reload_at_sighup, reloads_of
from ._running import run_async, sentence_of, tell
from ._service import Service
from ._tls_options import Tls
from ._token_options import TokenOptions
from ._types import Count, OptionalCount

log = logging.getLogger("clearfunds.relay")

_WORKERS_MAX: Final = 64
# Each is a process on this machine, and has a connection of NATS to each of the others.


class Serve(Protocol):
    """Serves a relay, as `serve_relay` does."""

    def __call__(
        self,
        settings: RelaySettings,
        *,
        task_status: trio.TaskStatus[RelayAddresses],
        stop: trio.Event,
        companion: Companion | None,
        adjusting: Adjusting | None,
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
    workers: Annotated[
        Count,
        Parameter(
            group=RUNNING,
            help="Relay processes that share the listeners, for as many cores: a cluster on this "
            "machine, with one page at --http. Starts a NATS server unless --cluster is given "
            "(pip install 'clearfunds[nats]'). Limits are per worker, except a --memory-alarm "
            "that is a share; worker K keeps its part of --store and --journal in DIR/worker-K.",
            validator=Number(gte=1, lte=_WORKERS_MAX),
        ),
    ] = 1,
    serve: Annotated[Serve, Parameter(parse=False)] = serve_relay,
    argv: Annotated[Sequence[str], Parameter(parse=False)] = (),
    read_again: Annotated[Callable[[], Arguments] | None, Parameter(parse=False)] = None,
) -> int:
    """Run a relay (MQTT and Syndicate server) until SIGTERM or SIGINT.

    Prints each address as a line of JSON on stdout, with the real port:
    `{"listening": "mqtt+tcp://..."}`, `{"http": "http://..."}`, then `{"ready": true}`. Logs go to
    stderr. At the first signal the relay stops accepting connections and delivers outstanding
    messages; a second one ends it at once. SIGHUP reads the file of --config again, and passwords,
    keys, the access control list and certificates. Sizes in bytes may have a unit (`8MiB`).
    """
    given: Arguments = {
        "options": options,
        "tls": tls,
        "tokens": tokens,
        "journal": journal,
        "log_level": log_level,
        "log_format": log_format,
        "log_rate": log_rate,
        "workers": workers,
    }
    limited = configure_logging(log_level, log_format, log_rate)
    settings, companion = prepared(options, tls, tokens, journal, workers)
    if workers > 1:
        # Imported here: most relays are one process.
        from ._cluster._workers import Plan, run_workers

        plan = Plan(argv, workers, settings, journal.journal, read_again, given)
        return run_workers(plan)
    spare_the_collector()
    fitted = partial(within_descriptors, journal=companion is not None)
    settings = fitted(settings)
    let_go_of_large(MMAP_THRESHOLD if settings.cluster is None else CLUSTER_MMAP_THRESHOLD)
    adjusting = Adjusting(settings)
    configuration = Configuration(read_again, given, adjusting, fitted=fitted)
    served = partial(_serve, serve, limited, adjusting, configuration)
    try:
        return run_async(served, settings, companion)
    except ListenURLError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        raise
    except (OSError, TransportError, StoreError, PipelineError) as error:
        raise CommandFailedError(sentence_of(error)) from error
    finally:
        if limited is not None:
            limited.flush()


def prepared(
    options: Options, tls: Tls, tokens: TokenOptions, journal: Journal, workers: int
) -> tuple[RelaySettings, Companion | None]:
    """Return the settings of a relay with these options, and its companion; reads their files.

    Raises:
        UsageError: They contradict each other, or a file has a mistake.
    """
    if options.anonymous and options.passwords is None and tokens.jwt_key is None:
        raise UsageError("--anonymous needs --passwords FILE or --jwt-key FILE")
    try:
        settings = options.settings(has_name=workers > 1, tls=tls.of_server(), tokens=tokens.read())
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
    return settings, companion


def _is_secure(url: str) -> bool:
    return url.partition(":")[0].endswith(("+tls", "+wss", "https", "mqtts", "amqps"))


async def _serve(
    serve: Serve,
    limited: LimitedHandler | None,
    adjusting: Adjusting,
    configuration: Configuration,
    settings: RelaySettings,
    companion: Companion | None,
) -> int:
    stop = trio.Event()
    status = 0
    service = Service.from_environment()
    async with trio.open_nursery() as nursery:

        async def serving(task_status: trio.TaskStatus[RelayAddresses]) -> None:
            report = await serve(
                settings,
                task_status=task_status,
                stop=stop,
                companion=companion,
                adjusting=adjusting,
            )
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
                        service.stopping()
                        stop.set()

        nursery.start_soon(ending)
        if limited is not None:
            nursery.start_soon(keep_summing_up, limited)
        nursery.start_soon(reload_at_sighup, reloads_of(settings), service, configuration)
        nursery.start_soon(service.keep_alive)
        addresses: RelayAddresses = await nursery.start(serving)
        for listening in addresses.listening:
            tell(listening=listening)
        if addresses.http is not None:
            tell(http=addresses.http)
        tell(ready=True)
        service.ready(", ".join((*addresses.listening, addresses.http or "no pages")))
    return status


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
