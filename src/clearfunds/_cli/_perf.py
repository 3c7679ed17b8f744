"""`clearfunds perf`: put a load on an MQTT server, and say what came of it."""

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import attrs
import trio
from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from clearfunds.perf import (
    HEADING,
    Exposition,
    PerfError,
    Profile,
    Result,
    Sample,
    Scenario,
    ScenarioError,
    Sizes,
    Stall,
    check_files,
    check_histogram,
    check_tls,
    exposed,
    measure,
    parse_stalls,
    read_scenarios,
    sample_line,
    summary,
    write,
)
from clearfunds.transports import parse_address

from ._client_tls import ClientTls
from ._errors import CommandFailedError, UsageError
from ._running import run_async
from ._types import Count, OptionalSeconds, Seconds, Size

DEFAULTS: Final = Scenario()

_LOAD: Final = Group("Load", sort_key=1)
_SUBSCRIBERS: Final = Group("Subscribers", sort_key=2)
_RUN: Final = Group("Run", sort_key=3)
_OUTPUT: Final = Group("Output", sort_key=4)

Value = TypeVar("Value")


def _reads(parse: Callable[[str], Value]) -> Callable[[object, Sequence[Token]], Value]:
    def convert(_: object, tokens: Sequence[Token]) -> Value:
        if len(tokens) > 1:
            raise ValueError("It was given more than once.")
        try:
            return parse(tokens[0].value)
        except ScenarioError as error:
            raise ValueError(f"{error}.") from error

    return convert


def _profile(text: str) -> Profile | None:
    return None if text.lower() == "none" else Profile.parse(text)


@Parameter(name="*", group=_LOAD)
@attrs.frozen
class Load:
    """What is published."""

    uri: Annotated[
        str | None,
        Parameter(
            name=["--uri", "-u"],
            show_default=False,
            help="The server: mqtt://HOST:PORT, or mqtt://USER:PASSWORD@HOST:PORT; mqtts:// with "
            f"TLS (port 8883) [default: {DEFAULTS.uri}].",
        ),
    ] = None
    mqtt: Annotated[
        Literal["3.1.1", "5"] | None,
        Parameter(
            show_default=False, help="Which version is spoken [default: 3.1.1; 5 with --prefetch]."
        ),
    ] = DEFAULTS.mqtt
    publishers: Annotated[
        int, Parameter(name=["--publishers", "-x"], validator=Number(gte=0), help="How many.")
    ] = DEFAULTS.publishers
    rate: Annotated[
        Profile | None,
        Parameter(
            name=["--rate", "-r"],
            converter=_reads(_profile),
            n_tokens=1,
            accepts_keys=False,
            show_default=False,
            help='Messages a second of each publisher: "1000"; a cycle, "1000:10,0:5", of '
            'RATE:SECONDS; with ramps, "0-1000:10,1000:30". none: as fast as they can '
            "[default: none].",
        ),
    ] = DEFAULTS.rate
    size: Annotated[
        Sizes,
        Parameter(
            name=["--size", "-s"],
            converter=_reads(Sizes.parse),
            n_tokens=1,
            accepts_keys=False,
            show_default=False,
            help='Bytes of payloads: "200"; in turn, "100,1000,10000"; by lot, "50-5000" '
            "[default: 200].",
        ),
    ] = DEFAULTS.size
    topic: Annotated[
        str,
        Parameter(
            name=["--topic", "-t"],
            help="Where to; {publisher} is the publisher's number, {topic} counts its topics.",
        ),
    ] = DEFAULTS.topic
    topics: Annotated[Count, Parameter(help="Topics of each publisher, in turn.")] = DEFAULTS.topics
    qos: Annotated[
        Literal[0, 1, 2],
        Parameter(name=["--qos", "-q"], help="0 at most, 1 at least, 2 exactly once."),
    ] = DEFAULTS.qos
    in_flight: Annotated[
        Count,
        Parameter(
            name=["--in-flight", "-c"],
            help="Messages of a publisher that are not acknowledged, at most (QoS 1 and 2).",
        ),
    ] = DEFAULTS.in_flight
    ramp: Annotated[
        Seconds, Parameter(help="Seconds within which publishers begin, one after the other.")
    ] = DEFAULTS.ramp


@Parameter(name="*", group=_SUBSCRIBERS)
@attrs.frozen
class Taking:
    """Who takes it, and how."""

    subscribers: Annotated[
        int, Parameter(name=["--subscribers", "-y"], validator=Number(gte=0), help="How many.")
    ] = DEFAULTS.subscribers
    filter: Annotated[
        str | None,
        Parameter(
            name=["--filter", "-f"],
            show_default=False,
            help="What they subscribe to; {subscriber} is the subscriber's number, {topic} counts "
            "topics [default: all that is published].",
        ),
    ] = DEFAULTS.filter
    subscriber_qos: Annotated[
        Literal[0, 1, 2] | None,
        Parameter(show_default=False, help="Their QoS [default: as --qos]."),
    ] = DEFAULTS.subscriber_qos
    prefetch: Annotated[
        Count | None,
        Parameter(
            name=["--prefetch", "-p"],
            show_default=False,
            help="Messages a server may send to each that are not acknowledged (QoS 1 and 2): "
            "Receive Maximum of MQTT 5 [default: as many as the server likes to].",
        ),
    ] = DEFAULTS.prefetch
    ack_every: Annotated[
        Count | None,
        Parameter(
            name=["--ack-every", "-A"],
            show_default=False,
            help="They acknowledge so many at a time, which is to be no more than the server sends "
            "unacknowledged (20 with mosquitto, 32 with clearfunds relay) [default: 1; with "
            "--ack-interval any].",
        ),
    ] = DEFAULTS.ack_every
    ack_interval: Annotated[
        Seconds,
        Parameter(help="They acknowledge what they have no more than so many seconds later."),
    ] = DEFAULTS.ack_interval
    delay: Annotated[
        Seconds, Parameter(name=["--delay", "-L"], help="Seconds each takes for each message.")
    ] = DEFAULTS.delay
    slow: Annotated[
        int, Parameter(validator=Number(gte=0), help="How many of them are slow ones.")
    ] = DEFAULTS.slow
    slow_delay: Annotated[Seconds, Parameter(help="Seconds a slow one takes for each message.")] = (
        DEFAULTS.slow_delay
    )
    slow_stalls: Annotated[
        tuple[Stall, ...],
        Parameter(
            converter=_reads(parse_stalls),
            n_tokens=1,
            accepts_keys=False,
            negative=(),
            show_default=False,
            help='When slow ones read nothing: "5:10", from second 5 for 10 seconds; several, '
            "separated by commas.",
        ),
    ] = DEFAULTS.slow_stalls
    receive_buffer: Annotated[
        Size | None,
        Parameter(
            show_default=False,
            help="Bytes of their sockets' buffers [default: the system's].",
        ),
    ] = DEFAULTS.receive_buffer


@Parameter(name="*", group=_RUN)
@attrs.frozen
class Running:
    """How long, and by whom."""

    seconds: Annotated[
        Seconds, Parameter(name=["--seconds", "-z"], help="How long is published.")
    ] = DEFAULTS.seconds
    drain: Annotated[
        Seconds, Parameter(help="Seconds in which, after that, the rest may still arrive.")
    ] = DEFAULTS.drain
    reconnect: Annotated[
        OptionalSeconds,
        Parameter(help="Seconds until a client comes back that was cut off; none: it does not."),
    ] = DEFAULTS.reconnect
    processes: Annotated[
        Count | None,
        Parameter(
            show_default=False,
            help="Processes that generate the load [default: by an estimate].",
        ),
    ] = DEFAULTS.processes
    clock: Annotated[
        Literal["monotonic", "wall"],
        Parameter(help="The machine's own; or the time of day, with clients on several machines."),
    ] = DEFAULTS.clock
    seed: Annotated[int, Parameter(help="For what is by lot.")] = DEFAULTS.seed


def perf(
    *,
    load: Load = Load(),
    taking: Taking = Taking(),
    running: Running = Running(),
    tls: ClientTls = ClientTls(),  # noqa: B008  (frozen)
    scenario: Annotated[
        Path | None,
        Parameter(
            group=_RUN,
            show_default=False,
            help="A TOML file with a [[scenario]] for each run; names as of the options, a list of "
            "values is a run for each. The other options say nothing then, but for --uri and "
            "those of TLS.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        Parameter(group=_OUTPUT, show_default=False, help="Write a line for each second there."),
    ] = None,
    json: Annotated[
        Path | None, Parameter(group=_OUTPUT, show_default=False, help="Write everything there.")
    ] = None,
    html: Annotated[
        Path | None,
        Parameter(group=_OUTPUT, show_default=False, help="Write a page with plots there."),
    ] = None,
    prometheus: Annotated[
        str | None,
        Parameter(
            group=_OUTPUT,
            show_default=False,
            help="HOST:PORT where Prometheus can scrape what is measured while it is, beside what "
            "was to be.",
        ),
    ] = None,
    quiet: Annotated[
        bool, Parameter(group=_OUTPUT, negative=(), help="Say only what came out in the end.")
    ] = False,
) -> int:
    """Put a load on an MQTT server, and say what came, how late, and who had to wait.

    Latency counts from the moment at which a message was due, not from when it could be sent. A
    line a second while it runs: what was published and was due, what was received of what should
    be, how many publishers could not send, latency, and how busy the generator itself is.
    """
    secured: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in attrs.asdict(tls).items()
        if value
    }
    try:
        if scenario is None:
            published = attrs.asdict(
                attrs.evolve(load, uri=load.uri or DEFAULTS.uri), recurse=False
            )
            runs = [
                Scenario(
                    **published,
                    **attrs.asdict(taking, recurse=False),
                    **attrs.asdict(running, recurse=False),
                    **secured,
                )
            ]
        else:
            runs = read_scenarios(scenario)
            given: dict[str, Any] = secured if load.uri is None else {"uri": load.uri, **secured}
            runs = [attrs.evolve(each, **given) for each in runs]
        check_tls(runs)
        check_files((csv, json, html))
        check_histogram()
    except ScenarioError as error:
        raise UsageError(str(error)) from error
    except PerfError as error:
        raise CommandFailedError(str(error)) from error
    address = None
    if prometheus is not None:
        try:
            address = parse_address(prometheus)
        except ValueError as error:
            msg = f"--prometheus {error}"
            raise UsageError(msg) from error
    results: list[Result] = []
    try:
        with ExitStack() as stack:
            shown = None if address is None else stack.enter_context(exposed(*address))
            for each in runs:
                if len(runs) > 1:
                    print(f"{each.name}", flush=True)
                result = run_async(_measure, each, quiet, shown)
                if result is None:
                    print("interrupted before it began", file=sys.stderr)
                    return 130
                if shown is not None:
                    shown.over(each.name)
                results.append(result)
                for line in summary(result):
                    print(line, flush=True)
                if result.interrupted:
                    return 130
                if len(runs) > 1:
                    print()
    except PerfError as error:
        raise CommandFailedError(str(error)) from error
    finally:
        if results:
            try:
                made = write(results, csv_file=csv, json_file=json, html_file=html)
            except PerfError as error:
                raise CommandFailedError(str(error)) from error
            if made:
                print(f"written: {', '.join(map(str, made))}")
    return 0


async def _measure(scenario: Scenario, quiet: bool, shown: Exposition | None) -> Result | None:
    """Return what was measured, until it was interrupted; None if it had not begun, or twice."""
    stop = trio.Event()
    has_begun = False

    def on_begin() -> None:
        nonlocal has_begun
        has_begun = True

    def on_sample(sample: Sample) -> None:
        if not quiet:
            print(sample_line(sample), flush=True)
        if shown is not None:
            shown.show(scenario.name, sample)

    result: Result | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:
                async for _ in signals:
                    if stop.is_set() or not has_begun:
                        nursery.cancel_scope.cancel()
                    stop.set()

            nursery.start_soon(interrupt)
            if not quiet:
                print(HEADING, flush=True)
            result = await measure(scenario, on_sample, stop, on_begin)
            nursery.cancel_scope.cancel()
    return result
