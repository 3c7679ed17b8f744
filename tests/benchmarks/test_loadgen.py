"""The load generator tells the truth: against real servers, and against ones that cheat.

Every figure in benchmarks/ rests on its counting, so the counting is tested from both sides:
nothing is missing where a real server delivers everything, and whatever a server of our own
drops, repeats, swaps, alters or cuts off is reported as exactly that.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trio

from benchmarks.servers import wait_until_it_accepts
from tests.benchmarks.frames import frame_end
from tests.ports import lasting_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

LOADGEN = Path(__file__).parents[2] / "benchmarks" / "loadgen.py"
SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Compile the generator once, where there is a compiler."""
    if shutil.which("cc") is None:
        pytest.skip("the load generator is a C program, and there is no cc here to compile it")
    subprocess.run([sys.executable, str(LOADGEN), "--help"], check=True, capture_output=True)


async def generate(port: int, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run the generator; return its exit status, what it printed (parsed), and its stderr."""
    done = await trio.run_process(
        [sys.executable, str(LOADGEN), f"--port={port}", *options],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return done.returncode, found, done.stderr.decode()


# ---- Real servers --------------------------------------------------------------------------------


def mosquitto(scratch: Path, port: int) -> list[str]:
    config = scratch / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
    return ["mosquitto", "-c", str(config)]


def nats(_scratch: Path, port: int) -> list[str]:
    return ["nats-server", "--addr", "127.0.0.1", "--port", str(port)]


def redis(scratch: Path, port: int) -> list[str]:
    where = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(scratch)]
    return ["redis-server", *where, "--save", "", "--appendonly", "no"]


def relay(_scratch: Path, port: int) -> list[str]:
    listen = f"--listen=syndicate+tcp://127.0.0.1:{port}"
    return [sys.executable, "-m", "clearfunds", "relay", listen]


SERVERS: dict[str, Callable[[Path, int], list[str]]] = {
    "mqtt": mosquitto,
    "nats": nats,
    "redis": redis,
    "syndicate": relay,
}


class Server(NamedTuple):
    """A server that accepts connections."""

    protocol: str
    port: int
    pid: int


@contextlib.contextmanager
def running(protocol: str, scratch: Path, prefix: tuple[str, ...] = ()) -> Generator[Server]:
    """Start the real server for a protocol, or skip the test."""
    port = lasting_port()
    program, *arguments = SERVERS[protocol](scratch, port)
    found = shutil.which(program, path=SBIN)
    if found is None:
        pytest.skip(f"{program} is not installed")
    with (scratch / "log").open("wb") as log:
        process = subprocess.Popen([*prefix, found, *arguments], stdout=log, stderr=log)
    try:
        wait_until_it_accepts(program, process, port)
        yield Server(protocol, port, process.pid)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Server]:
    """Start a real server, once for each protocol."""
    with running(request.param, tmp_path) as found:
        yield found


LOADS = {
    "pipelined": ("--payload=200",),
    "sizes, topics": ("--payload=8:3000", "--topics=8"),
    "wildcard, cut anywhere": ("--payload=50:400", "--topics=8", "--wildcard", "--chunk=77"),
    "one in flight": ("--window=1", "--single", "--topics=3"),
    "many topics": ("--topics=3000", "--wildcard"),
}


AT_LENGTH = ("pipelined", "sizes, topics")
"""Of which the others have something each."""


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(load, id=name, marks=[pytest.mark.long] if name in AT_LENGTH else [])
        for name, load in LOADS.items()
    ],
)
async def test_a_real_server_delivers_everything_in_order(
    server: Server, load: tuple[str, ...]
) -> None:
    status, found, complaint = await generate(
        server.port,
        f"--protocol={server.protocol}",
        f"--pid={server.pid}",
        "--subscribers=3",
        "--seconds=0.4",
        "--warmup=0.1",
        "--window=500",
        *load,
        "--verify",
    )
    assert (status, complaint) == (0, "")
    assert found["total_published"] > 100
    assert found["total_delivered"] == 3 * found["total_published"]
    assert 0 < found["delivered"] < found["total_delivered"], "the warm-up is not measured"
    assert found["lost"] == found["surplus"] == found["reordered"] == found["altered"] == 0
    assert 0 < found["generator_share"] < 1.1
    assert all((found[name] or 0) >= 0 for name in ("generator_queued", "server_queued"))
    assert found["rss_peak_mb"] >= found["rss_before_mb"] > 1
    split = found["cpu_user_seconds"] + found["cpu_system_seconds"]
    assert found["cpu_seconds"] == pytest.approx(split, abs=0.011)


@pytest.fixture
def child(tmp_path: Path) -> Generator[Server]:
    """Start a shell that starts a broker; give the shell, which itself does nothing."""
    script = '"$@" & child=$!; trap "kill $child" TERM; wait; wait'
    with running("mqtt", tmp_path, ("sh", "-c", script, "sh")) as found:
        yield found


async def test_the_time_of_the_servers_children_is_counted(child: Server) -> None:
    status, found, _ = await generate(
        child.port, "--protocol=mqtt", f"--pid={child.pid}", "--seconds=0.5", "--window=500"
    )
    assert status == 0
    assert found["cpu_seconds"] > 0


# ---- Servers that cheat --------------------------------------------------------------------------


class FakeBroker:
    """As much of an MQTT server as the generator needs, with a fault of our choice.

    ``deliver(subscriber, number, frame)`` says what to write in place of the frame: ``number``
    counts the publications, from 0.
    """

    def __init__(self, deliver: Callable[[int, int, bytes], list[bytes]]) -> None:
        self.deliver = deliver
        self.subscribers: list[trio.SocketStream] = []
        self.published = 0

    async def handle(self, stream: trio.SocketStream) -> None:
        pending = b""
        try:
            async for data in stream:
                pending += data
                while (end := frame_end(pending)) is not None:
                    frame, pending = pending[:end], pending[end:]
                    await self.take(stream, frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def take(self, stream: trio.SocketStream, frame: bytes) -> None:
        match frame[0]:
            case 0x10:
                await stream.send_all(b"\x20\x02\x00\x00")
            case 0x82:
                self.subscribers.append(stream)
                await stream.send_all(b"\x90\x03" + frame[2:4] + b"\x00")
            case 0x30:
                number, self.published = self.published, self.published + 1
                for index, subscriber in enumerate(self.subscribers):
                    for answer in self.deliver(index, number, frame):
                        if answer == HANG_UP:
                            await subscriber.aclose()
                        else:
                            await subscriber.send_all(answer)
            case other:
                raise AssertionError(f"an unexpected packet: {other:#x}")


HANG_UP = b""


async def against(
    handle: Callable[[trio.SocketStream], Awaitable[None]], *options: str
) -> tuple[int, dict[str, Any], str]:
    """Run the generator for 300 messages against a server of our own; return what it says."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port: int = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        with trio.fail_after(30):
            answer = await generate(
                port,
                "--subscribers=3",
                "--messages=300",
                "--window=20",
                "--payload=50:400",
                "--warmup=0",
                "--seconds=20",
                "--drain=0.5",
                *options,
            )
        nursery.cancel_scope.cancel()
    return answer


async def cheated(
    deliver: Callable[[int, int, bytes], list[bytes]], *options: str
) -> tuple[int, dict[str, Any], str]:
    """Run the generator for 300 messages against a FakeBroker; return what it says."""
    return await against(FakeBroker(deliver).handle, "--protocol=mqtt", *options)


def faults(found: dict[str, Any]) -> dict[str, int]:
    """Return what is wrong, without what is not."""
    names = ("lost", "surplus", "reordered", "altered", "subscribers_closed")
    return {name: found[name] for name in names if found[name]}


@pytest.mark.parametrize("verify", [(), ("--verify",)], ids=["counting", "verifying"])
async def test_an_honest_fake_is_found_honest(verify: tuple[str, ...]) -> None:
    status, found, _ = await cheated(lambda _s, _n, frame: [frame], *verify)
    assert (status, faults(found)) == (0, {})
    assert (found["published"], found["delivered"]) == (300, 900)
    assert found["cpu_seconds"] is None, "without --pid there is nobody whose CPU it could be"


@pytest.mark.parametrize("verify", [(), ("--verify",)], ids=["counting", "verifying"])
async def test_one_dropped_delivery_is_one_lost(verify: tuple[str, ...]) -> None:
    def drop(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        return [] if (subscriber, number) == (1, 100) else [frame]

    status, found, _ = await cheated(drop, *verify)
    assert (status, faults(found)) == (1, {"lost": 1})
    assert found["delivered"] == 899


async def test_the_last_delivery_is_waited_for_and_missed_when_it_does_not_come() -> None:
    def drop(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        return [] if number == 299 else [frame]

    status, found, _ = await cheated(drop)
    assert (status, faults(found)) == (1, {"lost": 3})


async def test_a_repeated_delivery_is_a_surplus() -> None:
    def repeat(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        return [frame, frame] if (subscriber, number) == (2, 299) else [frame]

    status, found, _ = await cheated(repeat)
    assert (status, faults(found)) == (1, {"surplus": 1})
    status, found, _ = await cheated(repeat, "--verify")
    assert (status, faults(found)) == (1, {"surplus": 1, "reordered": 1})


async def test_a_loss_made_up_by_a_repetition_is_seen_when_verifying() -> None:
    def replace(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        if subscriber == 0 and number == 100:
            return []
        return [frame, frame] if subscriber == 0 and number == 200 else [frame]

    status, found, _ = await cheated(replace, "--verify")
    assert (status, faults(found)) == (1, {"reordered": 1})


async def test_a_swap_is_reordering_within_a_topic_but_not_between_topics() -> None:
    held: list[bytes] = []

    def swap(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        if (subscriber, number) == (0, 100):
            held.append(frame)
            return []
        return [frame, held.pop()] if (subscriber, number) == (0, 101) else [frame]

    status, found, _ = await cheated(swap, "--verify")
    assert (status, faults(found)) == (1, {"reordered": 1})
    status, found, _ = await cheated(swap, "--verify", "--topics=2")
    assert (status, faults(found)) == (0, {})


async def test_an_altered_byte_is_seen_when_verifying() -> None:
    def alter(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        if (subscriber, number) != (1, 100):
            return [frame]
        return [frame[:-1] + bytes([frame[-1] ^ 1])]

    status, found, _ = await cheated(alter, "--verify")
    assert (status, faults(found)) == (1, {"altered": 1})


async def test_a_wrong_size_is_seen_when_counting() -> None:
    # The payload of a message with a two-digit length loses its last byte, and says so itself.
    def shorten(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        if (subscriber, number) != (1, 100):
            return [frame]
        body = frame[3:] if frame[1] & 0x80 else frame[2:]
        size = len(body) - 1
        return [frame[:1] + bytes([size & 0x7F | 0x80, size >> 7]) + body[:-1]]

    status, found, _ = await cheated(shorten)
    assert (status, faults(found)) == (1, {"altered": 1})


async def test_a_subscriber_cut_off_is_reported_with_its_losses() -> None:
    def cut(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        if subscriber == 1 and number >= 100:
            return [HANG_UP] if number == 100 else []
        return [frame]

    status, found, _ = await cheated(cut)
    assert (status, faults(found)) == (1, {"lost": 200, "subscribers_closed": 1})


async def test_a_refusal_ends_the_run_and_is_shown() -> None:
    def disconnect(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        return [b"\xe0\x00"] if number == 100 else [frame]

    status, found, complaint = await cheated(disconnect)
    assert (status, found) == (2, {})
    assert "an unexpected frame" in complaint
    assert "\\xe0" in complaint


async def test_nobody_there_is_said_in_a_sentence() -> None:
    status, found, complaint = await generate(lasting_port(), "--protocol=mqtt")
    assert (status, found) == (2, {})
    assert "cannot connect" in complaint


# ---- A server that wants to know whether the publisher is alive ----------------------------------


class FakeNats:
    """As much of a NATS server as the generator needs; it pings the publisher all the time."""

    def __init__(self) -> None:
        self.subscriber: trio.SocketStream | None = None
        self.pings = 0
        self.pongs = 0

    async def handle(self, stream: trio.SocketStream) -> None:
        await stream.send_all(b'INFO {"server_id":"fake"}\r\n')
        pending, publishing = b"", False
        try:
            async for data in stream:
                pending += data
                while b"\r\n" in pending:
                    line, rest = pending.split(b"\r\n", 1)
                    verb, *words = line.split(b" ")
                    if verb == b"PUB":
                        publishing = True
                        size = int(words[1])
                        if len(rest) < size + 2:
                            break
                        payload, rest = rest[: size + 2], rest[size + 2 :]
                        assert payload.endswith(b"\r\n"), "something stands inside a frame"
                        assert self.subscriber is not None
                        header = b"MSG " + words[0] + b" 0 " + words[1] + b"\r\n"
                        await self.subscriber.send_all(header + payload)
                    else:
                        await self.line(stream, verb)
                    pending = rest
                if publishing and self.pings < self.pongs + 2:
                    self.pings += 1
                    await stream.send_all(b"PING\r\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def line(self, stream: trio.SocketStream, verb: bytes) -> None:
        match verb:
            case b"CONNECT":
                pass
            case b"SUB":
                self.subscriber = stream
            case b"PING":
                await stream.send_all(b"PONG\r\n")
            case b"PONG":
                self.pongs += 1
            case other:
                raise AssertionError(f"an unexpected line: {other!r}")


async def test_pings_are_answered_between_messages_never_inside_one() -> None:
    server = FakeNats()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port: int = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.handle, [listener])
        with trio.fail_after(30):
            status, found, complaint = await generate(
                port,
                "--protocol=nats",
                "--messages=2000",
                "--window=20",
                "--chunk=77",
                "--warmup=0",
                "--seconds=20",
                "--drain=0.5",
                "--verify",
            )
        nursery.cancel_scope.cancel()
    assert (status, faults(found), complaint) == (0, {}, "")
    assert server.pongs > 10


# ---- A dataspace ---------------------------------------------------------------------------------


SYNC = bytes.fromhex("b5 b5b000 b4b30153 86b5b000b0010184 84 84 84")
"""``[[0 <S #:[0 1]>]]``"""

SYNCED = bytes.fromhex("b5 b5b00101 b4b3014d 81 84 84 84")
"""``[[1 <M #t>]]``"""

OBSERVE = (
    bytes.fromhex("b5 b5b000 b4b30141")
    + b"\xb4\xb3\x07Observe\xb4\xb3\x04bind\xb4\xb3\x05group\xb4\xb3\x03rec\xb3\x04Says"
    + bytes.fromhex("84 b7 b000 b4b3015f84 b00101 b4b3015f84 84 84 84 86b5b000b00084 84")
    + bytes.fromhex("b00101 84 84 84")
)
"""``[[0 <A <Observe <bind <group <rec Says> {0: <_> 1: <_>}>> #:[0 0]> 1>]]``"""

MESSAGE = bytes.fromhex("b5 b5b000 b4b3014d")
"""The front of ``[[0 <M <Says "bench.0" #x"...">>]]``, which ends with three times 84."""


def event(says: bytes, oid: str = "b000") -> bytes:
    """Return ``[0 <M [<Says ...>]>]``: what an observer gets for a message it captures whole."""
    return bytes.fromhex(f"b5 {oid} b4b3014d b5") + says + b"\x84\x84\x84"


def turn(*events: bytes) -> bytes:
    return b"\xb5" + b"".join(events) + b"\x84"


def value_end(data: bytes, at: int = 0) -> int:
    """Return where the Preserves value at ``at`` ends; IndexError when it is not all there."""
    tag, at = data[at], at + 1
    if tag in (0x80, 0x81):
        return at
    if tag == 0x86:
        return value_end(data, at)
    if tag in (0xB4, 0xB5, 0xB7):
        while data[at] != 0x84:
            at = value_end(data, at)
        return at + 1
    assert 0xB0 <= tag <= 0xB3, f"an unexpected tag: {tag:#x}"
    size, shift = 0, 0
    while True:
        size |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            break
    if at + size > len(data):
        raise IndexError
    return at + size


class FakeDataspace:
    """As much of a Syndicate server as the generator needs, with a fault of our choice.

    ``deliver(observer, number, says)`` gives the bytes to write to an observer for a record that
    was published: ``number`` counts the publications, from 0.
    """

    def __init__(self, deliver: Callable[[int, int, bytes], list[bytes]]) -> None:
        self.deliver = deliver
        self.observers: list[trio.SocketStream] = []
        self.published = 0
        self.topics: set[bytes] = set()

    async def handle(self, stream: trio.SocketStream) -> None:
        pending = b""
        try:
            async for data in stream:
                pending += data
                while pending:
                    try:
                        end = value_end(pending)
                    except IndexError:
                        break
                    packet, pending = pending[:end], pending[end:]
                    await self.take(stream, packet)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def take(self, stream: trio.SocketStream, packet: bytes) -> None:
        if packet == OBSERVE:
            self.observers.append(stream)
        elif packet == SYNC:
            await stream.send_all(SYNCED)
        else:
            assert packet.startswith(MESSAGE), f"an unexpected packet: {packet!r}"
            assert packet.endswith(b"\x84\x84\x84")
            says = packet[len(MESSAGE) : -3]
            assert says.startswith(b"\xb4\xb3\x04Says\xb1\x07bench.")
            self.topics.add(says[9:16])
            number, self.published = self.published, self.published + 1
            for index, observer in enumerate(self.observers):
                for answer in self.deliver(index, number, says):
                    await observer.send_all(answer)


async def observed(
    deliver: Callable[[int, int, bytes], list[bytes]], *options: str
) -> tuple[int, dict[str, Any], str]:
    """Run the generator for 300 messages against a FakeDataspace; return what it says."""
    return await against(FakeDataspace(deliver).handle, "--protocol=syndicate", *options)


@pytest.mark.parametrize("verify", [(), ("--verify",)], ids=["counting", "verifying"])
async def test_an_honest_dataspace_is_found_honest(verify: tuple[str, ...]) -> None:
    status, found, complaint = await observed(lambda _o, _n, says: [turn(event(says))], *verify)
    assert (status, faults(found), complaint) == (0, {}, "")
    assert (found["published"], found["delivered"]) == (300, 900)


async def test_topics_of_a_dataspace_are_what_the_first_field_says() -> None:
    dataspace = FakeDataspace(lambda _o, _n, says: [turn(event(says))])
    options = ("--protocol=syndicate", "--topics=3", "--wildcard", "--chunk=77", "--verify")
    status, found, complaint = await against(dataspace.handle, *options)
    assert (status, faults(found), complaint) == (0, {}, "")
    assert dataspace.topics == {b"bench.0", b"bench.1", b"bench.2"}


@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_turns_of_many_events_are_counted_event_by_event(piece: int) -> None:
    # Ten messages a turn, wherever the network cuts it; the oid may be any, of any length.
    waiting: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    def gather(observer: int, number: int, says: bytes) -> list[bytes]:
        oid = ("b000", "b00105", "b0020100")[number % 3]
        waiting[observer].append(event(says, oid))
        if len(waiting[observer]) < 10:
            return []
        data = turn(*waiting[observer])
        waiting[observer].clear()
        return [data[at : at + piece] for at in range(0, len(data), piece)]

    status, found, complaint = await observed(gather, "--payload=8:30", "--verify")
    assert (status, faults(found), complaint) == (0, {}, "")
    assert found["delivered"] == 900


async def test_a_turn_may_be_longer_than_any_buffer() -> None:
    waiting: list[bytes] = []

    def gather(_observer: int, number: int, says: bytes) -> list[bytes]:
        waiting.append(event(says))
        return [turn(*waiting)] if number == 299 else []

    status, found, complaint = await observed(
        gather, "--subscribers=1", "--window=300", "--payload=3000", "--verify"
    )
    assert (status, faults(found), complaint) == (0, {}, "")
    assert found["delivered"] == 300


async def test_a_turn_that_does_not_end_has_delivered_nothing() -> None:
    def unfinished(observer: int, number: int, says: bytes) -> list[bytes]:
        whole = turn(event(says))
        return [whole[:-1]] if (observer, number) == (0, 299) else [whole]

    status, found, _ = await observed(unfinished)
    assert (status, faults(found)) == (1, {"lost": 1})


async def test_empty_turns_and_packets_that_say_nothing_are_not_deliveries() -> None:
    status, found, complaint = await observed(lambda _o, _n, s: [b"\x80", turn(), turn(event(s))])
    assert (status, faults(found), complaint) == (0, {}, "")
    assert found["delivered"] == 900


async def test_what_a_dataspace_drops_repeats_or_alters_is_reported() -> None:
    def drop(observer: int, number: int, says: bytes) -> list[bytes]:
        return [] if (observer, number) == (1, 100) else [turn(event(says))]

    status, found, _ = await observed(drop)
    assert (status, faults(found)) == (1, {"lost": 1})

    def repeat(observer: int, number: int, says: bytes) -> list[bytes]:
        return [turn(*[event(says)] * (2 if (observer, number) == (2, 299) else 1))]

    status, found, _ = await observed(repeat)
    assert (status, faults(found)) == (1, {"surplus": 1})

    def alter(observer: int, number: int, says: bytes) -> list[bytes]:
        changed = says[:-2] + bytes([says[-2] ^ 1]) + says[-1:]
        return [turn(event(changed if (observer, number) == (1, 100) else says))]

    status, found, _ = await observed(alter, "--verify")
    assert (status, faults(found)) == (1, {"altered": 1})

    def rename(observer: int, number: int, says: bytes) -> list[bytes]:
        changed = says.replace(b"bench.0", b"bench.1", 1)
        return [turn(event(changed if (observer, number) == (1, 100) else says))]

    status, found, _ = await observed(rename, "--verify")
    assert (status, faults(found)) == (1, {"altered": 1})


def asserted(says: bytes) -> bytes:
    """Return a turn that asserts at the observer what should be a message."""
    return bytes.fromhex("b5 b5b000 b4b30141 b5") + says + bytes.fromhex("84 b00101 84 84 84")


WRONG_ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "error": lambda _says: b"\xb4\xb3\x05error\xb1\x09too large\x80\x84",
    "extension": lambda _says: b"\xb4\xb3\x01C\xb0\x01\x05\x84",
    "text": lambda _says: b"<error ",
    "assertion": asserted,
    "a third field": lambda says: turn(event(says[:-1] + b"\x80\x84")),
    "another label": lambda says: turn(event(says.replace(b"Says", b"Sags", 1))),
    "two captures": lambda says: turn(event(says + says)),
    "an event that does not end": lambda says: turn(event(says)[:-1] + event(says)),
    "far too long": lambda says: turn(event(says[:17] + b"\xff\xff\xff\xff\x0f")),
}


@pytest.mark.parametrize("answer", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
async def test_what_a_dataspace_should_not_say_ends_the_run_and_is_shown(
    answer: Callable[[bytes], bytes],
) -> None:
    def deliver(_observer: int, number: int, says: bytes) -> list[bytes]:
        return [answer(says) if number == 100 else turn(event(says))]

    status, found, complaint = await observed(deliver)
    assert (status, found) == (2, {})
    assert "the server sent the subscriber an unexpected frame:" in complaint


async def test_the_reason_of_a_dataspaces_error_can_be_read() -> None:
    reason = b"Says what? " * 10

    def refuse(_observer: int, _number: int, _says: bytes) -> list[bytes]:
        return [b"\xb4\xb3\x05error\xb1\x6e" + reason + b"\x80\x84"]

    _, _, complaint = await observed(refuse)
    assert reason.decode() in complaint


async def test_many_topics_are_not_subscribed_to_by_name() -> None:
    status, _, complaint = await generate(1, "--protocol=mqtt", "--topics=65")
    assert status == 2
    assert "more than 64 are subscribed to with --wildcard only" in complaint


# ---- At a pace -----------------------------------------------------------------------------------


@pytest.mark.long
async def test_at_a_pace_everything_is_sent_when_it_is_due(server: Server) -> None:
    status, found, complaint = await generate(
        server.port,
        f"--protocol={server.protocol}",
        f"--pid={server.pid}",
        "--subscribers=3",
        "--rate=600",
        "--publishers=2",
        "--topics=4",
        "--seconds=0.5",
        "--warmup=0.1",
        "--payload=8:400",
        "--verify",
    )
    assert (status, complaint) == (0, "")
    assert (found["due"], found["unsent"], found["total_published"]) == (300, 0, 360)
    assert found["total_delivered"] == 3 * 360
    assert found["reordered"] == found["altered"] == found["foreign"] == 0
    assert found["latency"]["count"] == 3 * 300
    assert found["generator_late"]["count"] == found["behind"]["count"] == 300
    assert found["latency_stalled"] is None
    assert found["publishers_waited"] == 0
    ladder = [found["latency"][name] for name in ("p50", "p90", "p99", "p99.9", "max")]
    assert ladder == sorted(ladder)
    assert 0 < ladder[0] < 1
    parts, seconds = zip(*found["latency"]["curve"], strict=True)
    assert (parts[0], parts[-1], seconds[-1]) == (0, 1, ladder[-1])
    assert (list(parts), list(seconds)) == (sorted(parts), sorted(seconds))


class LateBroker(FakeBroker):
    """Delivers everything, but later.

    ``hold(number)`` says for how many seconds to do nothing at all before the publication of that
    number is delivered; each delivery is besides `delay` seconds late.
    """

    def __init__(self, delay: float, hold: Callable[[int], float] = lambda _: 0.0) -> None:
        super().__init__(lambda _subscriber, _number, frame: [frame])
        self.hold = hold
        self.delay = delay
        self.send, self.receive = trio.open_memory_channel[tuple[float, bytes]](math.inf)

    async def take(self, stream: trio.SocketStream, frame: bytes) -> None:
        if frame[0] == 0x30:
            if hold := self.hold(self.published):
                await trio.sleep(hold)
            self.published += 1
            self.send.send_nowait((trio.current_time() + self.delay, frame))
        else:
            await super().take(stream, frame)

    async def deliver_late(self) -> None:
        async for at, frame in self.receive:
            await trio.sleep_until(at)
            for subscriber in self.subscribers:
                await subscriber.send_all(frame)


async def late(broker: LateBroker, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run the generator at a pace against a broker that is late."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.deliver_late)
        answer = await against(
            broker.handle, "--protocol=mqtt", "--subscribers=2", "--rate=500", "--seconds=1",
            "--messages=300", *options,
        )  # fmt: skip
        nursery.cancel_scope.cancel()
    return answer


async def test_a_delay_is_in_every_latency() -> None:
    status, found, _ = await late(LateBroker(0.05))
    assert status == 0
    curve = found["latency"]["curve"]
    assert found["latency"]["count"] == 600
    assert curve[0][1] >= 0.05
    assert found["generator_late"]["p50"] < 0.05, "it is the server that is late, and no one else"


async def test_a_stall_is_in_the_latency_of_every_message_that_was_due_meanwhile() -> None:
    status, found, _ = await late(
        LateBroker(0.0, lambda number: 0.2 if number == 100 else 0.0), "--interval=0.1"
    )
    assert (status, found["latency"]["count"]) == (0, 600)
    # At 500 messages a second 100 were due in those 200 ms, and waited 100 ms in the mean: of 300
    # every third, where one that counts from its own sending would find one or two.
    slow = 1 - max(part for part, seconds in found["latency"]["curve"] if seconds < 0.1)
    assert slow >= 50 / 300 - 0.05
    assert found["latency"]["max"] >= 0.19
    # Each 0.1 s had 50 due; those due in the stall came late, and none is missing.
    series = found["series"]
    assert [line["due"] for line in series[:6]] == [50] * 6
    assert [line["others"]["came"] for line in series[:6]] == [100] * 6
    assert series[2]["others"]["max"] >= 0.19
    assert sum(line["others"]["arrived"] for line in series) == 600


@pytest.mark.long
async def test_messages_that_the_server_does_not_take_are_late_and_its_fault() -> None:
    # It reads nothing for 300 ms, and the generator has more to send than sockets hold.
    broker = LateBroker(0.0, lambda number: 0.3 if number == 20 else 0.0)
    status, found, _ = await late(
        broker, "--payload=200000", "--messages=60", "--rate=400", "--subscribers=1"
    )
    assert status == 0
    assert (found["due"], found["unsent"], found["latency"]["count"]) == (60, 0, 60)
    assert found["publishers_waited_most"] > 0.1
    assert found["behind"]["max"] > 0.1
    assert found["latency"]["max"] >= 0.29


@pytest.mark.long
async def test_what_is_never_taken_is_unsent_and_not_lost() -> None:
    broker = LateBroker(0.0, lambda number: 60.0 if number == 20 else 0.0)
    status, found, _ = await late(
        broker, "--payload=200000", "--messages=100", "--rate=1000", "--subscribers=1"
    )
    assert status == 1
    assert found["unsent"] > 0
    assert found["total_published"] + found["unsent"] == 100
    assert found["lost"] == found["total_published"] - 20
    assert found["latency"]["count"] == 20


async def test_one_lost_at_a_pace_is_missing_where_it_was_due() -> None:
    def drop(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        return [] if (subscriber, number) == (1, 120) else [frame]

    status, found, _ = await cheated(drop, "--rate=500", "--interval=0.1", "--seconds=0.6")
    assert (status, faults(found)) == (1, {"lost": 1})
    came = [line["others"]["came"] for line in found["series"]]
    assert came == [150, 150, 149, 150, 150, 150]


@pytest.mark.long
async def test_a_number_that_was_never_published_is_foreign() -> None:
    def invent(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        if (subscriber, number) != (1, 100):
            return [frame]
        return [frame.replace((100).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"), 1)]

    status, found, _ = await cheated(invent, "--rate=1000", "--seconds=1")
    assert (status, found["foreign"]) == (1, 1)
    assert found["latency"]["count"] == 899


async def test_who_stops_reading_is_counted_apart_and_gets_all_of_it_later() -> None:
    status, found, _ = await cheated(
        lambda _s, _n, frame: [frame],
        "--rate=500",
        "--seconds=1",
        "--interval=0.1",
        "--stalled=1",
        "--stall=0.2:0.2",
    )
    assert (status, faults(found)) == (0, {})
    others, stalled = found["latency"], found["latency_stalled"]
    assert (others["count"], stalled["count"]) == (600, 300)
    assert stalled["max"] >= 0.19
    series = found["series"]
    assert [line["stalled"]["came"] for line in series] == [50] * 6 + [0] * 4
    assert series[3]["stalled"]["arrived"] == 0, "it read nothing then"
    assert sum(line["stalled"]["arrived"] for line in series) == 300
    assert series[2]["stalled"]["max"] >= 0.19


@pytest.mark.long
async def test_who_is_cut_off_comes_back_when_asked_to() -> None:
    def cut(subscriber: int, number: int, frame: bytes) -> list[bytes]:
        if subscriber == 1 and number >= 100:
            return [HANG_UP] if number == 100 else []
        return [frame]

    status, found, _ = await cheated(
        cut, "--rate=500", "--seconds=0.6", "--interval=0.1", "--reconnect"
    )
    assert status == 1
    assert (found["reconnected"], found["subscribers_closed"]) == (1, 0)
    assert 0 < found["lost"] < 200
    assert found["latency"]["count"] == 900 - found["lost"]


@pytest.mark.long
async def test_an_event_is_late_when_its_turn_ends_late() -> None:
    # The first message after the hundredth: its event is there at once, the end of its turn 100 ms
    # later, with that of the next message.
    held: list[bytes] = []

    def hold(observer: int, number: int, says: bytes) -> list[bytes]:
        if (observer, number) == (0, 100):
            held.append(event(says))
            return [b"\xb5" + event(says)]
        if (observer, number) == (0, 150):
            return [b"\x84" + turn(event(says))]
        return [] if observer == 0 and 100 < number < 150 else [turn(event(says))]

    dataspace = FakeDataspace(hold)
    status, found, _ = await against(
        dataspace.handle, "--protocol=syndicate", "--rate=500", "--seconds=0.6"
    )
    assert (status, faults(found)) == (1, {"lost": 49})
    assert found["latency"]["max"] >= 0.099


@pytest.mark.long
async def test_a_pace_is_wanted_for_what_has_no_meaning_without() -> None:
    for option in ("--publishers=2", "--stalled=1", "--interval=1", "--reconnect"):
        status, _, complaint = await generate(1, "--protocol=mqtt", option)
        assert (status, "--rate" in complaint) == (2, True)
