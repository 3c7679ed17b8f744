"""`clearfunds perf`: load-test an MQTT server."""

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
from clearfunds.relay import parse_address

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
    """Publishers and their messages."""

    uri: Annotated[
        str | None,
        Parameter(
            name=["--url", "--uri", "-u"],
            show_default=False,
            help="Server: mqtt://HOST:PORT, or mqtt://USER:PASSWORD@HOST:PORT; mqtts:// with TLS "
            f"(port 8883); HOST:PORT [default: {DEFAULTS.uri}].",
        ),
    ] = None
    mqtt: Annotated[
        Literal["3.1.1", "5"] | None,
        Parameter(show_default=False, help="MQTT version [default: 3.1.1; 5 with --prefetch]."),
    ] = DEFAULTS.mqtt
    publishers: Annotated[
        int,
        Parameter(
            name=["--publishers", "-x"], validator=Number(gte=0), help="Number of publishers."
        ),
    ] = DEFAULTS.publishers
    rate: Annotated[
        Profile | None,
        Parameter(
            name=["--rate", "-r"],
            converter=_reads(_profile),
            n_tokens=1,
            accepts_keys=False,
            show_default=False,
            help='Publishing rate of each publisher, in messages per second: "1000"; a cycle of '
            'RATE:SECONDS, "1000:10,0:5"; with ramps, "0-1000:10,1000:30". none: as fast as '
            "possible [default: none].",
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
            help='Payload size, in bytes: "200"; several in turn, "100,1000,10000"; random, '
            '"50-5000" [default: 200].',
        ),
    ] = DEFAULTS.size
    topic: Annotated[
        str,
        Parameter(
            name=["--topic", "-t"],
            help="Topic to publish to; {publisher} is the publisher's number, {topic} counts its "
            "topics.",
        ),
    ] = DEFAULTS.topic
    topics: Annotated[Count, Parameter(help="Topics per publisher, used in turn.")] = (
        DEFAULTS.topics
    )
    qos: Annotated[
        Literal[0, 1, 2],
        Parameter(
            name=["--qos", "-q"], help="QoS: 0 at most once, 1 at least once, 2 exactly once."
        ),
    ] = DEFAULTS.qos
    in_flight: Annotated[
        Count,
        Parameter(
            name=["--in-flight", "-c"],
            help="In-flight window: unacknowledged QoS 1 and 2 messages of one publisher.",
        ),
    ] = DEFAULTS.in_flight
    ramp: Annotated[
        Seconds, Parameter(help="Ramp-up time, in seconds: publishers start one after the other.")
    ] = DEFAULTS.ramp


@Parameter(name="*", group=_SUBSCRIBERS)
@attrs.frozen
class Taking:
    """Subscribers, and how fast they read."""

    subscribers: Annotated[
        int,
        Parameter(
            name=["--subscribers", "-y"], validator=Number(gte=0), help="Number of subscribers."
        ),
    ] = DEFAULTS.subscribers
    filter: Annotated[
        str | None,
        Parameter(
            name=["--filter", "-f"],
            show_default=False,
            help="Topic filter of each subscriber; {subscriber} is its number, {topic} counts "
            "topics [default: all published messages].",
        ),
    ] = DEFAULTS.filter
    subscriber_qos: Annotated[
        Literal[0, 1, 2] | None,
        Parameter(show_default=False, help="QoS of subscriptions [default: as --qos]."),
    ] = DEFAULTS.subscriber_qos
    prefetch: Annotated[
        Count | None,
        Parameter(
            name=["--prefetch", "-p"],
            show_default=False,
            help="Prefetch: unacknowledged QoS 1 and 2 messages to one subscriber; Receive Maximum "
            "in MQTT 5 [default: the server's choice].",
        ),
    ] = DEFAULTS.prefetch
    ack_every: Annotated[
        Count | None,
        Parameter(
            name=["--ack-every", "-A"],
            show_default=False,
            help="Acknowledgement batch, in messages. It must not exceed the server's in-flight "
            "window (20 with mosquitto, 32 with clearfunds relay) [default: 1; with "
            "--ack-interval any].",
        ),
    ] = DEFAULTS.ack_every
    ack_interval: Annotated[
        Seconds,
        Parameter(help="Maximum acknowledgement delay, in seconds."),
    ] = DEFAULTS.ack_interval
    delay: Annotated[
        Seconds,
        Parameter(
            name=["--delay", "-L"],
            help="Processing time of each subscriber per message, in seconds.",
        ),
    ] = DEFAULTS.delay
    slow: Annotated[
        int, Parameter(validator=Number(gte=0), help="Number of slow subscribers among them.")
    ] = DEFAULTS.slow
    slow_delay: Annotated[
        Seconds, Parameter(help="Processing time of a slow subscriber per message, in seconds.")
    ] = DEFAULTS.slow_delay
    slow_stalls: Annotated[
        tuple[Stall, ...],
        Parameter(
            converter=_reads(parse_stalls),
            n_tokens=1,
            accepts_keys=False,
            negative=(),
            show_default=False,
            help='Stalls of the slow subscribers, when they read nothing: "5:10", from second 5 '
            "for 10 seconds; several, separated by commas.",
        ),
    ] = DEFAULTS.slow_stalls
    receive_buffer: Annotated[
        Size | None,
        Parameter(
            show_default=False,
            help="Socket buffer of each subscriber, in bytes [default: the system's].",
        ),
    ] = DEFAULTS.receive_buffer


@Parameter(name="*", group=_RUN)
@attrs.frozen
class Running:
    """Duration, processes and clock of a run."""

    seconds: Annotated[
        Seconds, Parameter(name=["--seconds", "-z"], help="Publishing time, in seconds.")
    ] = DEFAULTS.seconds
    drain: Annotated[
        Seconds,
        Parameter(help="Drain time, in seconds, for messages that arrive after publishing."),
    ] = DEFAULTS.drain
    reconnect: Annotated[
        OptionalSeconds,
        Parameter(
            help="Reconnect delay of a client that was cut off, in seconds; none: it stays away."
        ),
    ] = DEFAULTS.reconnect
    processes: Annotated[
        Count | None,
        Parameter(
            show_default=False,
            help="Processes that generate the load [default: estimated].",
        ),
    ] = DEFAULTS.processes
    clock: Annotated[
        Literal["monotonic", "wall"],
        Parameter(
            help="Clock for latency. monotonic: this machine's own; wall: the time of day, for "
            "clients on several machines."
        ),
    ] = DEFAULTS.clock
    seed: Annotated[int, Parameter(help="Random seed.")] = DEFAULTS.seed


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
            help="TOML file with a [[scenario]] for each run; keys are named as the options, a "
            "list of values makes a run for each. It replaces the options of load, "
            "subscribers and run; --uri and those of TLS still apply.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        Parameter(
            group=_OUTPUT, show_default=False, help="CSV file to write, with a line per second."
        ),
    ] = None,
    json: Annotated[
        Path | None,
        Parameter(group=_OUTPUT, show_default=False, help="JSON file to write, with everything."),
    ] = None,
    html: Annotated[
        Path | None,
        Parameter(group=_OUTPUT, show_default=False, help="HTML page to write, with plots."),
    ] = None,
    prometheus: Annotated[
        str | None,
        Parameter(
            group=_OUTPUT,
            show_default=False,
            help="Prometheus endpoint, HOST:PORT, to scrape live measurements beside the expected "
            "values.",
        ),
    ] = None,
    quiet: Annotated[
        bool, Parameter(group=_OUTPUT, negative=(), help="Print only the summary at the end.")
    ] = False,
) -> int:
    """Load-test an MQTT server: throughput, latency, blocked publishers.

    Latency counts from the moment at which a message was due, not from when it could be sent.
    Prints a line per second: messages published and due, received and expected, the number of
    stalled publishers, latency, and how busy the generator itself is.
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
    """Return the result, also after an interruption; None if it had not begun, or after two."""
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
