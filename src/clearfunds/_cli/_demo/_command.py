"""The demo's options, and its course."""

import sys
import time
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Annotated, Final

import trio
from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.live import Live

from clearfunds import Profile
from clearfunds.perf import PerfError, check_files
from clearfunds.transports import ProfileWord
from clearfunds.transports.mqtt import MqttAddress, open_mqtt

from .._client import run_client
from .._errors import CommandFailedError
from .._page import fetch_json
from .._types import Count, Seconds
from ._flights import INTERESTS, SLOW, Flight, load_flights
from ._ledger_view import LedgerView
from ._picture import save_picture
from ._progress import PUBLISHER, Progress, Subscriber
from ._receipts import Receipts
from ._relay_process import RelayProcess, relay_process
from ._screen import line, screen
from ._summary import judge, outcome

_DEMO: Final = Group("Demo", sort_key=1)

_PAUSE_AT: Final = 0.4
# The slow subscriber pauses after this part of its messages: in the middle, with others behind.

_PATIENCE_MARGIN: Final = 20.0
# Seconds that the relay waits for a slow subscriber beyond its pause.

_STALL_SECONDS: Final = 30.0
# Seconds without a delivery, and without a pause, after which missing messages count as lost.

_SETTLE_SECONDS: Final = 5.0
# Seconds for the last acknowledgements, once everything has been delivered.

_LOOK_SECONDS: Final = 0.25
_LINE_SECONDS: Final = 1.0

_UNACKNOWLEDGED: Final = 100
# In-flight window: enough to keep the relay busy.

_SLOW_BUFFER: Final = 10
# Messages in the slow subscriber's own memory while it pauses; the rest stays with the relay.


_PROMISES: Final = {
    Profile.LOSSLESS: "everybody waits for the slow one, and nothing is lost.",
    Profile.LIVE: "nobody waits; the slow one loses messages, which are counted.",
    Profile.BALANCED: "hardly anybody waits, and nothing is lost.",
}

_RECEIVE_BUFFER: Final = 64 << 10
# Of the slow subscriber: what is in its kernel has been delivered, for the relay.


def demo(
    *,
    days: Annotated[
        int,
        Parameter(
            group=_DEMO,
            help="Number of days of January 2013 to publish.",
            validator=Number(gte=1, lte=31),
        ),
    ] = 31,
    pause: Annotated[
        Seconds,
        Parameter(group=_DEMO, help="Pause of the slow subscriber, in seconds: it reads nothing."),
    ] = 4.0,
    profile: Annotated[
        tuple[ProfileWord, ...],
        Parameter(group=_DEMO, help="Profiles to show, one after the other; see clearfunds relay."),
    ] = ("lossless", "live", "balanced"),
    limit_items: Annotated[
        Count,
        Parameter(
            group=_DEMO, help="High-water mark of the publisher, in messages; see clearfunds relay."
        ),
    ] = 1_000,
    picture: Annotated[
        Path | None,
        Parameter(group=_DEMO, help="SVG file to write: the table while the publisher waits."),
    ] = None,
) -> int:
    """Show what becomes of one slow subscriber among nine, with a month of flights.

    Publishes the departures of New York's airports in January 2013, in order, to
    flights/ORIGIN/CARRIER, as fast as a relay (a separate process) accepts them. One of nine
    subscribers stops reading for a while: once under each profile. Exit status 0 only if every
    subscriber got all of its messages, in order and unchanged, but for those that profile live
    dropped for the slow one, and the relay's books balance.
    """
    try:
        check_files([picture])
    except PerfError as error:
        raise CommandFailedError(f"--picture: {error}") from error
    return run_client(_demo, load_flights(days), pause, profile, limit_items, picture)


async def _demo(
    flights: list[Flight],
    pause: float,
    profiles: tuple[ProfileWord, ...],
    limit_items: int,
    picture: Path | None,
) -> int:
    print(
        f"{len(flights):,} flights out of New York in January 2013 go to nine MQTT subscribers.",
        f'The subscriber "{SLOW}" reads nothing for {pause:g} s (--pause) in the middle.',
        f"The publisher may owe {limit_items:,} messages (--limit-items). When it owes more, the",
        "relay does not read it. What then becomes of it is the relay's --profile:",
        sep="\n",
        flush=True,
    )
    shown: list[str] = []
    well = True
    for number, each in enumerate(profiles, 1):
        progress = Progress(
            total=len(flights),
            profile=Profile(each),
            limit_items=limit_items,
            subscribers=[Subscriber(one, Receipts(one.select(flights))) for one in INTERESTS],
        )
        print(f"\n{number}. --profile {each}: {_PROMISES[progress.profile]}\n", flush=True)
        ok = await _act(progress, flights, pause, picture if each == "lossless" else None)
        well = well and ok
        shown.append(f"  {each:<9} {outcome(progress)}")
    print("\nShown:", *shown, sep="\n")
    return 0 if well else 1


async def _act(
    progress: Progress, flights: list[Flight], pause: float, picture: Path | None
) -> bool:
    """Run one relay; return whether all went well."""
    options = ["--limit-items", str(progress.limit_items), "--log-level", "error"]
    options += ["--profile", progress.profile, "--patience", f"{pause + _PATIENCE_MARGIN:g}"]
    async with relay_process(options) as relay:
        ledger = await _run(progress, flights, relay, pause, picture)
    verdict = judge(progress, ledger)
    print("\n" + "\n".join(verdict.lines), flush=True)
    for logged in relay.log:
        print(f"the relay logged: {logged}")
    if relay.status != 0:
        msg = f"the relay ended with status {relay.status}"
        raise CommandFailedError(msg)
    return verdict.ok


async def _run(
    progress: Progress,
    flights: list[Flight],
    relay: RelayProcess,
    pause: float,
    picture: Path | None,
) -> LedgerView | None:
    """Publish everything and wait until it is delivered; return the ledger of that moment."""
    target = MqttAddress.parse(relay.mqtt)
    async with trio.open_nursery() as nursery:
        for subscriber in progress.subscribers:
            qos = 0 if subscriber.name != SLOW or progress.profile is Profile.LIVE else 1
            await nursery.start(_subscribe, subscriber, target, pause, qos)
        shown = trio.CancelScope()
        nursery.start_soon(_show, progress, relay, shown)
        if picture is not None:
            nursery.start_soon(_take_picture, progress, pause, picture)
        async with open_mqtt(
            target.host, target.port, client_id=PUBLISHER, max_inflight=_UNACKNOWLEDGED
        ) as publisher:
            started = time.monotonic()
            nursery.start_soon(_keep_time, progress, started)
            for flight in flights:
                # Not awaited one by one; but a free place in the in-flight window needs an
                # acknowledgement, which the relay does not send while it does not read.
                await publisher.publish(flight.topic, flight.payload, qos=1, wait=False)
                progress.published += 1
            await publisher.flush()
            await _all_delivered(progress)
            progress.seconds = time.monotonic() - started
            # While the publisher is still connected: its account is closed with its connection.
            ledger = await _settled(progress, relay)
            shown.cancel()
        nursery.cancel_scope.cancel()
    return ledger


async def _subscribe(
    subscriber: Subscriber,
    target: MqttAddress,
    pause: float,
    qos: int,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Run one of the nine subscribers: check its messages, until cancelled."""
    slow = subscriber.name == SLOW
    receipts = subscriber.receipts
    pause_at = int(receipts.expected * _PAUSE_AT) if slow and pause else None
    stream = await trio.open_tcp_stream(target.host, target.port)
    if slow:
        stream.setsockopt(SOL_SOCKET, SO_RCVBUF, _RECEIVE_BUFFER)
    async with open_mqtt(
        stream, client_id=subscriber.name, max_buffered=_SLOW_BUFFER if slow else 1_000
    ) as client:
        # The archive acknowledges its messages, so that they wait in the relay and not in the
        # kernel; but only those of QoS 0 may be dropped.
        await client.subscribe(subscriber.interest.topic_filter, qos=qos)
        task_status.started()
        async for message in client:
            receipts.take(message.topic, message.payload)
            if receipts.delivered == pause_at:
                pause_at = None
                subscriber.pausing = True
                await trio.sleep(pause)
                subscriber.pausing = False


async def _take_picture(progress: Progress, pause: float, path: Path) -> None:
    """Save the table once the publisher has waited for half of the pause."""
    while True:
        await trio.sleep(_LOOK_SECONDS)
        publisher = progress.ledger and progress.ledger.account(PUBLISHER)
        if publisher and publisher.waiting_seconds > pause / 2:
            save_picture(path, screen(progress))
            return


async def _keep_time(progress: Progress, started: float) -> None:
    while True:
        progress.seconds = time.monotonic() - started
        await trio.sleep(_LOOK_SECONDS / 4)


async def _all_delivered(progress: Progress) -> None:
    """Return when every subscriber has all, or when nothing has come for too long."""
    delivered, since = -1, trio.current_time()
    while not progress.complete:
        pausing = any(each.pausing for each in progress.subscribers)
        if pausing or progress.delivered != delivered:
            delivered, since = progress.delivered, trio.current_time()
        if trio.current_time() - since > _STALL_SECONDS:
            return
        await trio.sleep(_LOOK_SECONDS / 4)


async def _look(progress: Progress, relay: RelayProcess) -> LedgerView | None:
    """Fetch the relay's ledger for the screen and return it; None if the relay does not answer."""
    try:
        ledger = LedgerView.parse(await fetch_json(f"{relay.http}/ledger.json"))
    except (OSError, CommandFailedError) as error:
        progress.fault = str(error)
        return None
    progress.ledger, progress.fault = ledger, None
    return ledger


async def _settled(progress: Progress, relay: RelayProcess) -> LedgerView | None:
    """Return the ledger once nothing is owed: the last acknowledgement may still be in flight."""
    ledger = await _look(progress, relay)
    with trio.move_on_after(_SETTLE_SECONDS):
        while ledger is None or ledger.debt_items or not ledger.balanced:
            await trio.sleep(_LOOK_SECONDS)
            ledger = await _look(progress, relay)
    return ledger


async def _show(progress: Progress, relay: RelayProcess, shown: trio.CancelScope) -> None:
    """Show the progress until `shown` is cancelled: a live table, or a line a second."""
    if not sys.stdout.isatty():
        with shown:
            while True:
                await trio.sleep(_LINE_SECONDS)
                await _look(progress, relay)
                print(line(progress), flush=True)
        return
    with Live(screen(progress), console=Console(), auto_refresh=False) as live:
        with shown:
            while True:
                await _look(progress, relay)
                live.update(screen(progress), refresh=True)
                await trio.sleep(_LOOK_SECONDS)
        live.update(screen(progress), refresh=True)
