"""A work queue over TCP: on disk, confirmed, shared among workers; from the public API alone.

    python examples/work_queue.py serve 127.0.0.1:7001 --directory jobs --queue resize=jobs/resize
    seq 100 | python examples/work_queue.py put 127.0.0.1:7001 jobs/resize
    python examples/work_queue.py work 127.0.0.1:7001 resize --prefetch 10

A queue has a name, and gets jobs published under topics that match its filter. Each job goes to one
of its workers, in turn, as long as their prefetch has room. A job without a queue is refused;
`work --filter` declares a queue, too. With a directory, jobs are confirmed when they are on disk,
and survive a crash of the server. Without one they stay in memory, charged to their publisher's
account: a publisher that is too far ahead of the workers is not read (backpressure). Jobs that a
worker has not acked when its connection ends go to other workers. A job that is requeued too often
is published again under `dead/` and its queue's name (a dead letter).

A frame is a length (4 bytes, big-endian) and that many bytes: a letter and its fields, as in
`Connection.obey` and `Client` below. A connection publishes or works, so that no ack waits behind a
publication.
"""

from __future__ import annotations

import argparse
import json
import signal
import struct
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit, watch_patience
from clearfunds.dataspace import Dataspace, DataspaceError, Publication, TopicFilter
from clearfunds.dataspace.queues import (
    AckBatcher,
    Acknowledgement,
    BackingFactory,
    Channel,
    Confirms,
    Delivery,
    InflightWindow,
    PrefetchWindow,
    Queue,
    QueueSettings,
    SteadyBacking,
    Verdict,
    dead_letter_to,
)
from clearfunds.persistence import Shelves, open_shelves
from clearfunds.store import StoreError, StoreSettings
from clearfunds.transports import Flusher, Link, ListenURL, Outlet, open_flusher, open_listeners

LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 20
MAX_QUEUES = 1_000
MAX_NAME = 255
MAX_PREFETCH = 65_535  # as in AMQP 0-9-1
NUMBER = struct.Struct(">Q?")
"""A publication's number or a delivery's tag, and the flag *multiple*: it covers all before it."""
PREFETCH = struct.Struct(">I")
CHUNK = 64 << 10
QUEUES_PREFIX = "work_queue/"

VERDICTS = {Verdict.ACK: b"A", Verdict.REQUEUE: b"R", Verdict.DISCARD: b"X"}


# -- frames: bytes in, frames out ------------------------------------------------------------------


def frame(*parts: bytes) -> bytes:
    """Make one frame."""
    body = b"".join(parts)
    return LENGTH.pack(len(body)) + body


class Frames:
    """A parser for incoming frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that were read."""
        self._buffer += data

    def take(self) -> bytes | None:
        """Take the next frame if it is complete; ValueError for one that is too large."""
        buffer = self._buffer
        if len(buffer) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(buffer)
        if not 1 <= size <= MAX_FRAME:
            raise ValueError(f"a frame of {size} bytes; 1 to {MAX_FRAME} are allowed")
        end = LENGTH.size + size
        if len(buffer) < end:
            return None
        body = bytes(buffer[LENGTH.size : end])
        del buffer[:end]
        return body


# -- the server ------------------------------------------------------------------------------------


@attrs.frozen
class Options:
    """The options of the server."""

    directory: Path | None = None
    """The directory of the jobs; None: in memory."""
    fsync_interval: float = 0.2
    """Seconds until jobs are on disk and confirmed; 0: at once."""
    backing: BackingFactory = SteadyBacking
    """The paging policy: which jobs are in memory."""
    disk_limit: int = 1 << 30
    """Most bytes of jobs on disk; further jobs are charged to their publishers."""
    queues: tuple[tuple[str, str], ...] = ()
    """The queues declared at the start, each with its name and its topic filter."""
    limit: Limit = attrs.field(factory=lambda: Limit(items=10_000, bytes=8 << 20))
    """The debt (high-water mark) at which a connection is not read."""


class Server:
    """The state that all connections share."""

    def __init__(self, options: Options, flusher: Flusher, shelves: Shelves | None) -> None:
        self.options = options
        self.flusher = flusher
        self.shelves = shelves
        self.ledger = Ledger()
        self.dataspace = Dataspace(self.ledger)
        self.disk = self.ledger.open("disk", limit=Limit(items=None, bytes=options.disk_limit))
        self.backing = options.backing
        self.queues: dict[str, tuple[Queue, str]] = {}
        self.to_confirm: set[Connection] = set()
        self.something_to_confirm = trio.Event()
        if shelves is not None:
            for key, text in shelves.store.values(QUEUES_PREFIX).items():
                self.make_queue(key.removeprefix(QUEUES_PREFIX), text.decode())
        for name, wanted in options.queues:
            try:
                self.declare(name, wanted, lambda: None)
            except ValueError as exc:
                raise JobRefusedError(str(exc)) from exc

    def declare(self, name: str, text: str, done: Callable[[], object]) -> None:
        """Make a queue if it is missing; call `done` once it would survive a crash.

        Raises:
            ValueError: If the queue cannot be made.
        """
        if name not in self.queues:
            if not 1 <= len(name) <= MAX_NAME or len(self.queues) >= MAX_QUEUES:
                raise ValueError(f"at most {MAX_QUEUES} queues, with names of 1 to {MAX_NAME}")
            self.make_queue(name, text)
            if self.shelves is not None:
                self.shelves.set(QUEUES_PREFIX + name, text.encode())
        elif text != self.queues[name][1]:
            raise ValueError(f"queue {name} is bound to {self.queues[name][1]}, not to {text}")
        if self.shelves is None:
            done()
        else:
            self.shelves.when_durable(done)
            self.shelves.hurry()

    def make_queue(self, name: str, text: str) -> None:
        """Make a queue, with the jobs already on its shelf."""
        wanted = TopicFilter(text)
        shelf = None if self.shelves is None else self.shelves.shelf(name)
        # It may use all that is left of the common disk quota.
        account = self.ledger.open(f"queue/{name}", limit=NO_LIMIT, parent=self.disk)
        queue = Queue(
            self.ledger, name,
            account=account,
            settings=QueueSettings(durable=shelf is not None),
            shelf=shelf,
            backing=self.backing,
            dead_letter=dead_letter_to(self.dataspace, f"dead/{name}"),
        )  # fmt: skip
        if shelf is not None:
            shelf.recover(queue)
        with account.turn() as turn:
            queue.bind(turn, self.dataspace, wanted)
        self.queues[name] = queue, text

    async def handle(self, link: Link) -> None:
        """Serve one connection."""
        await Connection(self, link).run()

    def has_to_confirm(self, connection: Connection) -> None:
        """Note that a publisher has confirms to get."""
        self.to_confirm.add(connection)
        self.something_to_confirm.set()

    async def confirm(self) -> None:
        """Send confirms that come between reads, mostly from the disk."""
        while True:
            await self.something_to_confirm.wait()
            self.something_to_confirm = trio.Event()
            with self.flusher.corked():
                for connection in list(self.to_confirm):
                    connection.say_confirms()
            await self.flusher.flush()

    async def keep_time(self) -> None:
        """Run the queues' timers."""
        while True:
            await trio.sleep(1.0)
            with self.flusher.corked():
                for queue, _ in self.queues.values():
                    queue.tick(self.ledger.clock())
            await self.flusher.flush()

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return the counts of each queue."""
        found: dict[str, dict[str, int]] = {}
        for name, (queue, _) in self.queues.items():
            now = queue.statistics()
            found[name] = {
                "ready": now.ready,
                "unacked": now.unacked,
                "in_memory": now.backing.ready_in_ram + now.backing.pending_in_ram,
                "on_disk": now.disk_items,
                "published": now.counters.published,
                "delivered": now.counters.delivered,
                "acked": now.counters.acked,
                "workers": now.consumers,
            }
        return found

    def close(self) -> None:
        """End the queues in this process; jobs on disk stay there."""
        for queue, _ in self.queues.values():
            queue.close()
            queue.account.close()
        self.disk.close()


class Connection:
    """One connection to the server; its publications are charged to its account."""

    def __init__(self, server: Server, link: Link) -> None:
        self.server = server
        self.link = link
        self.frames = Frames()
        self.account: Account = server.ledger.open(f"tcp/{link.peer}", limit=server.options.limit)
        self.outlet = Outlet(
            server.ledger, server.flusher, link.sock, self.account.name, on_broken=link.cut
        )
        self.outlet.owner = self.account
        self.confirms = Confirms(lambda: server.has_to_confirm(self))
        self.channel = Channel(self.account.name)

    async def run(self) -> None:
        """Serve it until it ends."""
        why = "it left"
        try:
            with self.link.scope:
                await self.read()
            why = self.link.why or why
        except (OSError, ValueError, struct.error, DataspaceError) as exc:
            why = str(exc)
            self.send(b"E", why.encode())
        finally:
            print(f"{self.account} closed: {why}", file=sys.stderr, flush=True)
            self.confirms.close()
            self.server.to_confirm.discard(self)
            self.server.flusher.flush_now()
            self.outlet.close()
            with self.server.flusher.corked():
                self.channel.close(failed=True)  # other workers get its jobs
            self.server.flusher.flush_now()
            self.account.close()
            self.link.close()

    async def read(self) -> None:
        """Obey its frames while its funds are clear."""
        flusher = self.server.flusher
        while data := await self.link.receive():
            self.frames.feed(data)
            more = True
            while more:
                with flusher.corked():
                    more = self.obey_while_clear()
                    self.say_confirms()
                await flusher.flush()
                await self.account.ensure_clear_funds()

    def obey_while_clear(self) -> bool:
        """Obey the frames read so far; true if its debt stopped it."""
        while (body := self.frames.take()) is not None:
            self.obey(body)
            if not self.account.funds_are_clear():
                return True
        return False

    def obey(self, body: bytes) -> None:
        """Obey one frame."""
        kind = body[:1]
        if kind == b"P":  # topic, zero, payload: publish; numbered from 1
            self.publish(body)
        elif kind in b"ARX":  # tag, multiple: acked, to be requeued, to be discarded
            tag, multiple = NUMBER.unpack(body[1:])
            if kind == b"A":
                self.channel.ack(tag, multiple=multiple)
            else:
                self.channel.nack(tag, multiple=multiple, requeue=kind == b"R")
        elif kind == b"D":  # queue, zero, filter: declare; answered when it is durable
            name, _, text = body[1:].decode().partition("\0")
            self.server.declare(name, text, lambda: self.send_now(b"D", name.encode()))
        elif kind == b"C":  # prefetch, queue: work
            (prefetch,) = PREFETCH.unpack_from(body, 1)
            self.consume(prefetch, body[1 + PREFETCH.size :].decode())
        elif kind == b"S":  # statistics, as JSON
            self.send(b"S", json.dumps(self.server.statistics()).encode())
        else:
            raise ValueError(f"a frame begins with one of PARXDCS, not {kind!r}")

    def publish(self, body: bytes) -> None:
        """Publish in a turn, to all matching queues or none; confirmed when they have it."""
        if self.channel.consumers:
            raise ValueError("this connection works; publish on another one")
        topic, _, payload = body[1:].partition(b"\0")
        text = topic.decode()
        if not text or "+" in text or "#" in text:
            raise ValueError(f"{text!r} is no topic: it has wildcards, or nothing")
        with self.confirms.begin() as confirm, self.account.turn(body, confirm=confirm) as turn:
            if self.server.dataspace.routes.of(text).acked.holders:
                turn.publish(self.server.dataspace, Publication(text, payload, qos=1))
            else:  # no queue would have it, and a publisher takes a confirmed job for done
                confirm.expect()
                confirm.refused(f"no queue takes {text}; declare one first")

    def say_confirms(self) -> None:
        """Send confirms, as few as possible."""
        self.server.to_confirm.discard(self)
        for answer in self.confirms.flush():
            said = NUMBER.pack(answer.number, answer.multiple)
            if answer.refused:  # with the reason for the last one
                self.send(b"N", said, (self.confirms.reason or "").encode())
            else:
                self.send(b"K", said)

    def consume(self, prefetch: int, name: str) -> None:
        """Take jobs of a queue, `prefetch` at a time."""
        if not 1 <= prefetch <= MAX_PREFETCH:
            raise ValueError(f"a prefetch of {prefetch}; 1 to {MAX_PREFETCH} are allowed")
        if name not in self.server.queues:
            raise ValueError(f"there is no queue {name}; declare it first")
        if self.confirms.begun:
            raise ValueError("this connection publishes; work on another one")
        queue, _ = self.server.queues[name]
        queue.consume(self.deliver, channel=self.channel, window=PrefetchWindow(prefetch))

    def deliver(self, delivery: Delivery) -> None:
        """Send a job; its charge stays with the queue until it is acked."""
        event, delivery.event = delivery.event, None
        tag = NUMBER.pack(delivery.tag, delivery.redelivered)
        delivery.loan.item[:] = [frame(b"M", tag, event.topic.encode(), b"\0", event.payload)]
        self.outlet.forward(delivery.loan)

    def send(self, *parts: bytes) -> None:
        """Send a reply, charged to the connection's account."""
        data = frame(*parts)
        self.account.borrow(1, len(data))
        self.outlet.hold(self.account, data, 1, len(data), self.server.ledger.clock())

    def send_now(self, *parts: bytes) -> None:
        """Send a reply that had to wait for the disk."""
        if not self.outlet.closed:
            self.send(*parts)
            self.server.flusher.ready()


async def serve(host: str, port: int, options: Options) -> None:
    """Serve until SIGINT or SIGTERM."""
    async with AsyncExitStack() as stack:
        # Signals are received by a task, not raised as an exception in the middle of a turn.
        signals = stack.enter_context(trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM))
        (listener,) = await open_listeners(ListenURL("work", "tcp", host, port))
        stack.enter_context(listener)
        flusher = await stack.enter_async_context(open_flusher())
        shelves = None
        if options.directory is not None:
            settings = StoreSettings(fsync_interval=options.fsync_interval)
            opening = open_shelves(options.directory, settings, flusher)
            shelves = await stack.enter_async_context(opening)
        server = Server(options, flusher, shelves)
        stack.callback(server.close)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(watch_patience, server.ledger)  # no silent stalls
        nursery.start_soon(server.confirm)
        nursery.start_soon(server.keep_time)
        nursery.start_soon(listener.serve, server.handle)
        print(f"listening on {listener.url}", flush=True)
        await anext(signals)
        print("stopped", file=sys.stderr)
        nursery.cancel_scope.cancel()


# -- the client ------------------------------------------------------------------------------------


class ServerSaidNoError(Exception):
    """The server has closed the connection, with this message."""


class JobRefusedError(Exception):
    """The server refused jobs; the message says why."""


@attrs.frozen
class Job:
    """A job, as a worker gets it."""

    tag: int
    redelivered: bool
    topic: str
    payload: bytes


class Client:
    """A connection to the server, which publishes or works; made by `connect`.

    Attributes:
        window: The in-flight window: it bounds the publications that are not confirmed.
        on_confirm: Called with numbers of publications and whether they were refused.
        refused: How many were refused.
        reason: Why the last one was refused; empty if none was.
    """

    def __init__(self, stream: trio.SocketStream, in_flight: int) -> None:
        self.window = InflightWindow(in_flight)
        self.on_confirm: Callable[[list[int], bool], object] | None = None
        self.refused = 0
        self.reason = ""
        self._stream = stream
        self._out = bytearray()
        self._sending = False
        self._jobs: deque[Job] = deque()
        self._answers: deque[bytes] = deque()
        self._to_send = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._to_read = trio.lowlevel.ParkingLot()

    async def declare(self, queue: str, text: str) -> None:
        """Declare a queue, bound to a topic filter."""
        self._send(b"D", queue.encode(), b"\0", text.encode())
        await self._answer()

    async def statistics(self) -> dict[str, dict[str, int]]:
        """Ask for the counts of each queue; one request at a time."""
        self._send(b"S")
        found: dict[str, dict[str, int]] = json.loads(await self._answer())
        return found

    async def publish(self, topic: str, payload: bytes) -> int:
        """Publish, once there is room in the window; return the publication's number."""
        number = await self.window.acquire()
        self._send(b"P", topic.encode(), b"\0", payload)
        while len(self._out) > CHUNK:
            await self._room.park()
        return number

    def consume(self, queue: str, prefetch: int) -> None:
        """Ask for jobs, with at most `prefetch` unacked at a time."""
        self._send(b"C", PREFETCH.pack(prefetch), queue.encode())

    async def job(self) -> Job:
        """Wait for the next job; not a checkpoint if there is one."""
        while not self._jobs:
            await self._to_read.park()
        return self._jobs.popleft()

    def acknowledge(self, answer: Acknowledgement) -> None:
        """Acknowledge a job, or all up to it; called by an `AckBatcher`."""
        self._send(VERDICTS[answer.verdict], NUMBER.pack(answer.tag, answer.multiple))

    async def flush(self) -> None:
        """Wait until all is sent."""
        while self._out or self._sending:
            await self._room.park()

    def _send(self, *parts: bytes) -> None:
        self._out += frame(*parts)
        self._to_send.unpark_all()

    async def _answer(self) -> bytes:
        while not self._answers:
            await self._to_read.park()
        return self._answers.popleft()

    async def send(self) -> None:
        """Send queued frames; runs in its own task."""
        while True:
            while not self._out:
                await self._to_send.park()
            data, self._out = self._out, bytearray()
            self._sending = True
            await self._stream.send_all(data)
            self._sending = False
            self._room.unpark_all()

    async def receive(self) -> None:
        """Read incoming frames; runs in its own task."""
        frames = Frames()
        while data := await self._stream.receive_some(CHUNK):
            frames.feed(data)
            while (body := frames.take()) is not None:
                self._take(body[:1], body)
            self._to_read.unpark_all()
        raise ServerSaidNoError("the server has closed the connection")

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == b"M":
            tag, redelivered = NUMBER.unpack_from(body, 1)
            topic, _, payload = body[1 + NUMBER.size :].partition(b"\0")
            self._jobs.append(Job(tag, redelivered, topic.decode(), payload))
        elif kind in b"KN":
            numbers = self.window.answered(*NUMBER.unpack_from(body, 1))
            if kind == b"N":
                self.refused += len(numbers)
                self.reason = body[1 + NUMBER.size :].decode()
            if self.on_confirm is not None:
                self.on_confirm(numbers, kind == b"N")
        elif kind == b"E":
            raise ServerSaidNoError(body[1:].decode())
        else:
            self._answers.append(body[1:])


@asynccontextmanager
async def connect(host: str, port: int, *, in_flight: int = 200) -> AsyncGenerator[Client]:
    """Connect for the length of the block."""
    async with await trio.open_tcp_stream(host, port) as stream, trio.open_nursery() as nursery:
        client = Client(stream, in_flight)
        nursery.start_soon(client.send)
        nursery.start_soon(client.receive)
        yield client
        await client.flush()
        nursery.cancel_scope.cancel()


# -- the command -----------------------------------------------------------------------------------


async def put(host: str, port: int, topic: str) -> None:
    """Publish each line of stdin, and wait until all are confirmed.

    Raises:
        JobRefusedError: If any line was refused.
    """
    async with connect(host, port, in_flight=5_000) as client:
        async for line in trio.wrap_file(sys.stdin.buffer):
            await client.publish(topic, line.rstrip(b"\n"))
        await client.window.wait_answered()
        print(f"{client.window.last - client.refused} confirmed, {client.refused} refused")
        if client.refused:
            raise JobRefusedError(client.reason)


async def work(
    host: str, port: int, queue: str, text: str | None, prefetch: int, every: int
) -> None:
    """Print jobs, and acknowledge them in batches, or after 50 ms."""
    async with connect(host, port) as client, trio.open_nursery() as nursery:
        if text is not None:
            await client.declare(queue, text)
        client.consume(queue, prefetch)
        with AckBatcher(client.acknowledge, prefetch=prefetch, every=every) as acks:
            nursery.start_soon(acks.run)
            while True:
                job = await client.job()
                acks.delivered(job.tag)
                print(job.topic, job.payload.decode(errors="replace"), flush=True)
                acks.ack(job.tag)
                await trio.lowlevel.checkpoint()


def address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return host, int(port)


def named_filter(text: str) -> tuple[str, str]:
    """Parse NAME=FILTER."""
    name, _, wanted = text.partition("=")
    if not (name and wanted):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=FILTER")
    try:
        TopicFilter(wanted)
    except DataspaceError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return name, wanted


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description="A work queue over TCP.")
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve", help="run a server until Ctrl-C")
    server.add_argument("address", type=address, help="HOST:PORT")
    server.add_argument("--directory", type=Path, help="the directory of the jobs")
    server.add_argument(
        "--queue",
        type=named_filter,
        action="append",
        default=[],
        metavar="NAME=FILTER",
        help="declare a queue, with this topic filter; may be given several times",
    )
    server.add_argument("--fsync-interval", type=float, default=Options().fsync_interval)
    server.add_argument("--disk-limit", type=int, default=Options().disk_limit)
    publisher = commands.add_parser("put", help="publish the lines of stdin")
    publisher.add_argument("address", type=address, help="HOST:PORT")
    publisher.add_argument("topic")
    worker = commands.add_parser("work", help="print jobs until Ctrl-C")
    worker.add_argument("address", type=address, help="HOST:PORT")
    worker.add_argument("queue")
    worker.add_argument("--filter", help="declare the queue, with this topic filter")
    worker.add_argument("--prefetch", type=int, default=10)
    worker.add_argument("--ack-every", type=int, default=1)
    return parser


async def main(given: argparse.Namespace, backing: BackingFactory) -> None:
    """Run the chosen command; `backing` is the paging policy of a server."""
    host, port = given.address
    if given.command == "serve":
        options = Options(
            directory=given.directory,
            fsync_interval=given.fsync_interval,
            backing=backing,
            disk_limit=given.disk_limit,
            queues=tuple(given.queue),
        )
        await serve(host, port, options)
    elif given.command == "put":
        await put(host, port, given.topic)
    else:
        await work(host, port, given.queue, given.filter, given.prefetch, given.ack_every)


def first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first exception in it that is no group."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


def run(given: argparse.Namespace, backing: BackingFactory = SteadyBacking) -> None:
    """Run the chosen command until it ends, or until Ctrl-C.

    Raises:
        SystemExit: It failed; the message says why.
    """
    failure: Exception | None = None
    try:
        trio.run(main, given, backing)
    except* KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    except* (
        OSError, trio.BrokenResourceError, StoreError, ServerSaidNoError, JobRefusedError
    ) as failures:  # fmt: skip
        failure = first_of(failures)
    if failure is not None:
        sys.exit(f"work_queue: {failure}")


if __name__ == "__main__":
    run(arguments().parse_args())
