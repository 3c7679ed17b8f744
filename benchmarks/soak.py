"""Hours of mixed load on one relay, which must not leak or lose anything: `make soak`.

All at once, on a relay with a store, a journal, pages and two tenants, at a pace that leaves half
of a core free:

    steady    publishers and subscribers of QoS 0 that stay
    stalls    the same with QoS 1, a third of the subscribers read nothing for ten of thirty seconds
    kept      a subscriber with a persistent session comes and goes; it must get all messages later
    ranges    a reader of ranges fetches and acknowledges, and comes back under its name
    churn     clients connect, subscribe, leave something retained and a will, and go without a word
    fives     publishers and subscribers that speak MQTT 5, with QoS 1 and a Receive Maximum
    leaving   clients that speak MQTT 5 come under twenty names, with aliases, properties, options
              of subscriptions and what expires, and leave sessions and wills that do, too
    stuck     a subscriber that never reads keeps its publishers waiting until it is cut off

Every `--every` seconds the benchmark checks that the books balance, and records the relay's memory,
descriptors and threads. In the end it stops the relay, which must shut down in order. The checks
(exit status 1 if one fails): every audit balanced; no message missing that must not be lost; after
the warm-up, memory has grown by no more than 5 %, by the medians of its first and last quarter;
descriptors are back where they were; the relay ends with status 0.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final, cast
from urllib.request import urlopen

import attrs
import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.servers import Relay, Running, ServerError
from clearfunds.perf import PerfError, Profile, Result, Scenario, Sizes, measure, parse_stalls
from clearfunds.ranges.client import RangeError, RangeReader
from clearfunds.transports import TransportError
from clearfunds.transports.mqtt import (
    ClientSession,
    Connect,
    MqttClient,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    Subscribe,
    Will,
    encode5,
    open_mqtt,
)

FLAT: Final = 0.05
"""By how much memory may differ between the first and the last quarter after the warm-up."""

WARM_UP: Final = 0.2
"""Of the time, at the beginning, that memory is not judged by: queues and caches fill."""

LEAST_SECONDS: Final = 180.0
"""A shorter run is all warm-up: memory is not judged by it."""

ROUND_SECONDS: Final = 60.0
"""How long one run of a scenario is; then its clients leave, and others come."""

NO_LOCAL: Final = 4
RETAIN_AS_PUBLISHED: Final = 8
"""Options of a subscription (MQTT 5, section 3.8.3.1)."""

PATIENCE: Final = 10.0
"""Of the relay, in seconds: less than its default, so that there is more to see in an hour."""


@attrs.define
class Look:
    """What the relay looked like once."""

    at: float
    """Seconds since the start."""
    rss_mib: float
    descriptors: int
    threads: int
    cpu: float
    """CPU seconds so far."""
    accounts: int
    debt_items: int
    balanced: bool


@attrs.define
class Soak:
    """What is going on, and what has come of it."""

    running: Running
    until: float
    looks: list[Look] = attrs.field(factory=list[Look])
    counts: Counter[str] = attrs.field(factory=Counter[str])
    wrong: list[str] = attrs.field(factory=list[str])
    began: float = attrs.field(factory=time.monotonic)

    def now(self) -> float:
        """Return seconds since the start."""
        return time.monotonic() - self.began

    @property
    def over(self) -> bool:
        """Whether nothing new is to be begun."""
        return self.now() >= self.until

    def left(self) -> float:
        """Return seconds until then."""
        return max(self.until - self.now(), 0.0)


# -- the load -----------------------------------------------------------------------------------


def _counted(soak: Soak, name: str, result: Result, *, may_lose: bool = False) -> None:
    soak.counts[f"{name}: published"] += result.published
    soak.counts[f"{name}: received"] += result.received
    if result.missing and not may_lose:
        soak.wrong.append(f"{name}: {result.missing} never came ({soak.now():.0f} s)")
    losses = sum(each.losses for each in result.publishers)
    losses += sum(each.losses for each in result.subscribers)
    soak.counts[f"{name}: cut off"] += losses
    if losses and not may_lose:
        soak.wrong.append(f"{name}: {losses} connections were lost ({soak.now():.0f} s)")


async def _rounds(soak: Soak, name: str, scenario: Scenario, *, may_lose: bool = False) -> None:
    while not soak.over:
        seconds = min(ROUND_SECONDS, soak.left())
        if seconds < 1:
            return
        try:
            result = await measure(attrs.evolve(scenario, seconds=seconds))
        except* PerfError as group:
            # One round of hours: what it is, is said in the end.
            soak.wrong.append(f"{name}: {_first(group)} ({soak.now():.0f} s)")
            await trio.sleep(1)
        else:
            _counted(soak, name, result, may_lose=may_lose)


def _first(error: BaseException) -> BaseException:
    """Return an error that a group is of."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return _first(group.exceptions[0])


def _scenario(soak: Soak, name: str, **more: Any) -> Scenario:
    topic = f"{name}/{{publisher}}"
    return Scenario(
        name=name, uri=f"mqtt://127.0.0.1:{soak.running.port}", topic=topic, processes=1, **more
    )


async def steady(soak: Soak) -> None:
    """Publish and subscribe, with payloads of all sizes."""
    scenario = _scenario(
        soak, "steady", publishers=3, subscribers=5, rate=Profile.parse("60:5,20:5"),
        size=Sizes.parse("24-4000"), drain=20.0,
    )  # fmt: skip
    await _rounds(soak, "steady", scenario)


async def stalls(soak: Soak) -> None:
    """Let some of the subscribers read nothing for a while, again and again."""
    scenario = _scenario(
        soak, "stalls", publishers=2, subscribers=3, qos=1, rate=Profile.parse("60"), slow=1,
        slow_stalls=parse_stalls("5:6,30:6"), receive_buffer=8192, drain=30.0,
        size=Sizes.parse("2000"),
    )  # fmt: skip
    await _rounds(soak, "stalls", scenario)


async def stuck(soak: Soak) -> None:
    """Have one that never reads."""
    scenario = _scenario(
        soak, "stuck", publishers=1, subscribers=2, rate=Profile.parse("300"), slow=1,
        slow_stalls=parse_stalls("1:3600"), receive_buffer=4096, size=Sizes.parse("30000"),
        reconnect=None, drain=5.0,
    )  # fmt: skip
    await _rounds(soak, "stuck", scenario, may_lose=True)


def _kept_client(port: int, session: ClientSession) -> AbstractAsyncContextManager[MqttClient]:
    return open_mqtt("127.0.0.1", port, client_id="soak-kept", clean_session=False, session=session)


async def kept(soak: Soak) -> None:
    """Publish with QoS 1 to one that comes and goes."""
    port = soak.running.port
    session = ClientSession()
    got: set[int] = set()
    sent = 0
    # It is known before anything is published.
    async with _kept_client(port, session) as first:
        await first.subscribe("kept/#", qos=1)

    async def publish() -> None:
        nonlocal sent
        async with open_mqtt("127.0.0.1", port, client_id="soak-kept-publisher") as client:
            while not soak.over:
                await client.publish("kept/a", b"%d" % sent + b"x" * 200, qos=1)
                sent += 1
                await trio.sleep(0.02)

    async def take(seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with _kept_client(port, session) as client:
                async for message in client:
                    got.add(int(message.payload.rstrip(b"x")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        while not soak.over:
            await take(8)
            await trio.sleep(min(4.0, soak.left()))
    for _ in range(30):
        if len(got) == sent:
            break
        await take(2)
    soak.counts["kept: published"] += sent
    soak.counts["kept: received"] += len(got)
    if len(got) != sent:
        soak.wrong.append(f"kept: {sent - len(got)} of {sent} never came")


async def ranges(soak: Soak) -> None:
    """Read ranges, and come back under the same name."""
    port = soak.running.ports["subscribe"]

    def read(seconds: float) -> int:
        rows = 0
        with RangeReader(
            "127.0.0.1", port, "soak", filters=["steady/#"], start="latest", durable=True
        ) as reader:
            at = reader.start
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                end = reader.head().next
                for block in reader.fetch(at, end):
                    rows += sum(1 for _ in block.rows())
                reader.ack(end)
                at = end
                time.sleep(0.2)
        return rows

    while not soak.over:
        try:
            soak.counts["ranges: read"] += await trio.to_thread.run_sync(read, 20.0)
        except RangeError as error:
            soak.wrong.append(f"ranges: {error}")
            await trio.sleep(1)
        await trio.sleep(min(2.0, soak.left()))


async def churn(soak: Soak) -> None:
    """Connect, leave something behind, and go without a word."""
    port = soak.running.port
    number = 0
    while not soak.over:
        number += 1
        will = Will(f"churn/{number % 50}/will", b"gone", retain=True)
        with suppress(TransportError, ZeroDivisionError):
            async with open_mqtt("127.0.0.1", port, client_id=f"churn-{number}", will=will) as it:
                await it.subscribe(f"churn/{number % 50}/#")
                await it.publish(f"churn/{number % 50}/state", b"here" * 20, retain=True)
                if number % 2:
                    raise ZeroDivisionError  # no DISCONNECT: the will is published
        soak.counts["churn: connections"] += 1
        await trio.sleep(0.05)


async def fives(soak: Soak) -> None:
    """Publish and subscribe with MQTT 5."""
    scenario = _scenario(
        soak, "fives", publishers=2, subscribers=4, qos=1, mqtt="5", prefetch=20,
        rate=Profile.parse("40:5,10:5"), size=Sizes.parse("24-2000"), drain=20.0,
    )  # fmt: skip
    await _rounds(soak, "fives", scenario)


def _leaving(number: int) -> bytes:
    """Return all that a client says which comes and goes in a moment."""
    topic = f"leaving/{number % 20}"
    will = Will(f"{topic}/will", b"gone", properties=Properties(will_delay=1, message_expiry=5))
    user = (("number", str(number)), ("trace", "x" * 40))
    about = Properties(message_expiry=3, topic_alias=1, user=user)
    filters = ((f"{topic}/#", 1 | NO_LOCAL), (f"{topic}/+", RETAIN_AS_PUBLISHED))
    said: tuple[Packet, ...] = (
        Connect(
            f"leaving-{number % 20}",
            clean_session=number % 3 == 0,
            will=will,
            protocol_level=5,
            properties=Properties(session_expiry=number % 7),
        ),
        Subscribe(1, filters, Properties(subscription_ids=(number % 100 + 1,))),
        Publish(f"{topic}/a", b"first", 1, retain=True, packet_id=2, properties=about),
        Publish("", b"second", 1, packet_id=3, properties=Properties(topic_alias=1)),
        Publish(f"{topic}/b", b"third", properties=Properties(user=user)),
        PingReq(),
    )
    return b"".join(map(encode5, said))


PONG: Final = encode5(PingResp())


async def leaving(soak: Soak) -> None:
    """Come with all that MQTT 5 has, hear the answer to a ping, and go without a word."""
    port = soak.running.port
    number = 0
    while not soak.over:
        number += 1
        heard = bytearray()
        with trio.move_on_after(10), suppress(OSError, trio.BrokenResourceError):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(_leaving(number))
                while PONG not in heard:
                    data = await stream.receive_some()
                    if not data:
                        break
                    heard += data
        if PONG not in heard:
            soak.wrong.append(f"leaving: number {number} was not answered ({soak.now():.0f} s)")
        soak.counts["leaving: connections"] += 1
        await trio.sleep(0.05)


LOADS: Final[tuple[Callable[[Soak], Awaitable[None]], ...]] = (
    steady, stalls, stuck, kept, ranges, churn, fives, leaving,
)  # fmt: skip


# -- looking ------------------------------------------------------------------------------------


def look(soak: Soak, page: str) -> Look:
    """Look at the relay once."""
    proc = Path(f"/proc/{soak.running.pid}")
    status = dict(
        line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
    )
    stat = (proc / "stat").read_text().rpartition(")")[2].split()
    with urlopen(f"{page}/ledger.json", timeout=30) as answer:
        ledger: dict[str, Any] = json.load(answer)
    return Look(
        at=round(soak.now(), 1),
        rss_mib=round(int(status["VmRSS"].split()[0]) / 1024, 2),
        descriptors=len(list((proc / "fd").iterdir())),
        threads=int(status["Threads"]),
        cpu=(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
        accounts=len(ledger["accounts"]),
        debt_items=int(ledger["totals"]["debt"]["items"]),
        balanced=bool(ledger["audit"]["balanced"]),
    )


async def watch(soak: Soak, page: str, every: float, on_look: Callable[[Look], object]) -> None:
    """Look again and again, until cancelled."""
    while True:
        await trio.sleep(every)
        try:
            found = await trio.to_thread.run_sync(look, soak, page)
        except OSError as error:
            soak.wrong.append(f"no look at {soak.now():.0f} s: {error}")
            continue
        soak.looks.append(found)
        if not found.balanced:
            soak.wrong.append(f"the books did not balance at {found.at:.0f} s")
        on_look(found)


def flatness(looks: list[Look]) -> tuple[float, float] | None:
    """Return MiB in the first and in the last quarter after the warm-up; None: it is too short."""
    if not looks or looks[-1].at < LEAST_SECONDS:
        return None
    after = [each for each in looks if each.at >= WARM_UP * looks[-1].at]
    if len(after) < 8:
        return None
    quarter = len(after) // 4
    return (
        median(each.rss_mib for each in after[:quarter]),
        median(each.rss_mib for each in after[-quarter:]),
    )


async def run(soak: Soak, page: str, every: float, on_look: Callable[[Look], object]) -> None:
    """Put all loads on the relay until time is up, and wait until nothing is owed."""
    async with trio.open_nursery() as watching:
        watching.start_soon(watch, soak, page, every, on_look)
        async with trio.open_nursery() as nursery:
            for load in LOADS:
                nursery.start_soon(load, soak)
        watching.cancel_scope.cancel()
    # Everybody has gone: what is left is what the relay keeps.
    last = await trio.to_thread.run_sync(look, soak, page)
    for _ in range(60):
        if not last.debt_items:
            break
        await trio.sleep(1)
        last = await trio.to_thread.run_sync(look, soak, page)
    soak.looks.append(last)
    if last.debt_items or not last.balanced:
        soak.wrong.append(f"{last.debt_items} events are owed for when everybody has gone")


# -- the command --------------------------------------------------------------------------------


def show(each: Look) -> None:
    """Print one look."""
    print(
        f"{each.at:8.0f} s  {each.rss_mib:7.1f} MiB  {each.descriptors:4} descriptors  "
        f"{each.threads:2} threads  {each.cpu:8.1f} CPU s  {each.accounts:4} accounts  "
        f"{each.debt_items:7} owed  {'balanced' if each.balanced else 'NOT BALANCED'}",
        flush=True,
    )


def judge(soak: Soak, first: Look) -> None:
    """Add what does not hold."""
    last = soak.looks[-1]
    flat = flatness(soak.looks[:-1])
    if flat is None:
        print(
            "too short to say whether memory is flat: that takes "
            f"{LEAST_SECONDS:g} s, and 8 looks after the warm-up"
        )
    else:
        before, after = flat
        growth = after / before - 1
        print(f"memory {before:.1f} MiB -> {after:.1f} MiB ({growth:+.1%})")
        if growth > FLAT:
            soak.wrong.append(f"memory has grown by {growth:.1%}, at most {FLAT:.0%}")
    # Files of the store and the journal are open now and were not at the start.
    if last.descriptors > first.descriptors + 8:
        soak.wrong.append(f"{first.descriptors} descriptors at the start, {last.descriptors} left")


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between looks (15)")
    parser.add_argument("--csv", type=Path, help="write the looks there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        relay = Relay(
            protocols=("mqtt", "subscribe"),
            options=(
                f"--store={scratch / 'store'}",
                f"--journal={scratch / 'journal'}",
                f"--patience={PATIENCE:g}",
                "--tenant=loud,client=perf-*",
                "--tenant=quiet,client=*",
                "--log-level=error",
            ),
        )
        try:
            with relay.running(scratch, None) as running:
                soak = Soak(running, options.minutes * 60)
                page = running.page
                first = look(soak, page)
                show(first)
                trio.run(run, soak, page, options.every, show)
                show(soak.looks[-1])
                judge(soak, first)
        except (ServerError, PerfError) as error:
            print(f"soak: {error}", file=sys.stderr)
            return 1
    for name, count in sorted(soak.counts.items()):
        print(f"{name:24}{count:>12,}")
    if options.csv is not None:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(attrs.asdict(soak.looks[0])))
            writer.writeheader()
            writer.writerows(attrs.asdict(each) for each in soak.looks)
    for each in soak.wrong:
        print(f"soak: {each}", file=sys.stderr)
    print("soak: " + ("NOT as it should be" if soak.wrong else "all is as it should be"))
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
