"""A blocking client that writes batches to a relay exactly once; the standard library is enough.

`ranges/wire/_sink_frames.py` describes the protocol. ::

    with SinkWriter("127.0.0.1", 7700, "hourly-means") as writer:
        parts = [
            writer.stage(7, 0, 1, [("means/plant-1", b"20.5"), ("means/plant-2", b"21")]),
            writer.stage(7, 1, 1, [("means/plant-3", b"19")]),
        ]
        writer.commit(7, parts)  # published: these rows, in this order, and only once

Many connections, from many processes, may stage parts of one batch: give them `writer.ticket`, and
let them join with `SinkWriter.join`. Rows that are staged and not committed are visible to nobody;
`abort` discards them, and so does the relay some time later.

Staged rows, and the work that publishing them causes, are debt of the writer. While it owes too
much, the relay does not read on (backpressure): `stage` and `commit` take longer then.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import count, repeat
from types import TracebackType
from typing import NamedTuple, NoReturn, Self, TypeVar

from ..wire import (
    HIGHEST_QOS,
    MAX_TEXT_BYTES,
    RETAIN,
    ROW_OVERHEAD,
    UNKNOWN,
    WITH_PROPERTIES,
    WRITERS_ERRORS,
    Abort,
    AskLast,
    Commit,
    Forget,
    Kind,
    Open,
    PartKey,
    Ping,
    RangeError,
    RefusedError,
    Request,
    StageEnd,
    WrongAnswerError,
    encode_frame,
    encode_request,
    encode_rows,
    encode_text,
    layouts,
    with_properties,
)
from ._access import NOBODY, Access, connect
from ._reader import GREETING, PAUSES, AwayError, check_login, error_of, not_agreed, taken_apart

DEFAULT_SILENCE = 30.0
"""Seconds without a sign of life after which the relay counts as away. While a writer has to wait
for its debt, the relay sends a sign each second."""

DEFAULT_REPLAY_BYTES = 16 << 20
"""Bytes of one part that are kept until it is staged, to resend it if the connection breaks."""

FRAME_BYTES = 128 << 10
"""Approximate size of a frame of rows: two reads of the relay's."""

MAX_ANSWER_BYTES = 1 << 20

QOS = tuple(range(HIGHEST_QOS + 1))

_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Exceptions of a socket that would block, with TLS and without."""

T = TypeVar("T")


class TornError(AwayError):
    """The connection broke in the middle of a part that is too large to be resent from here.

    Nothing of it will be published. Stage the part again, best as another attempt.
    """


class ThrottledError(RangeError):
    """The writer owes too much, and the relay has not read on for longer than its patience."""


class _SilentError(TimeoutError):
    """The relay has sent no sign of life for too long."""


class WriterTicket(NamedTuple):
    """The data that others need to write to the same batches; it can be pickled."""

    writer: str
    generation: int
    incarnation: bytes


class SinkRow(NamedTuple):
    """One message to be published."""

    topic: str | bytes
    """The topic's name: no wildcards."""
    value: bytes | str
    """The payload."""
    qos: int = 1
    """0 at most once, 1 at least once, 2 exactly once: subscribers get the lower of this and their
    subscription's. With 0 it is not queued for clients that are away."""
    retain: bool = False
    """Whether it becomes its topic's retained value."""
    properties: bytes = b""
    """Its properties of MQTT 5, as they travel: see `encode_properties`."""


class Staged(NamedTuple):
    """A completely staged part; for `SinkWriter.commit`. It can be pickled."""

    partition: int
    attempt: int
    rows: int = 0


class SinkWriter:
    """A writer of batches, over one connection. Threads may share it.

    A writer is identified by its name: for each name, the relay remembers the last committed batch.
    Batches have numbers from 0 on, which only grow; each is committed once, however often that is
    requested. If the connection breaks, the next request connects again.

    Args:
        host: The relay's host; or a URL, `subscribe+tls://HOST:PORT` or `subscribe+tcp://`.
        port: Its port for readers and writers (`subscribe+tcp://`); None with a URL.
        writer: The writer's name: for Spark, the query's id.
        take_over: Whether to fence off earlier writers with this name (`FencedError`), and to
            discard the rows that they have staged and not committed.
        timeout: Seconds without any sign of life after which the relay counts as away. While a
            writer has to wait, the relay sends one each second: so not below three.
        patience: Seconds that one request may take while the relay says that the writer owes too
            much; None: no limit.
        replay_bytes: Bytes of one part that are kept, to resend it if the connection breaks.
        access: The writer's login, and the TLS settings.

    Attributes:
        ticket: The data that others need to write to the same batches.

    Raises:
        AwayError: The relay cannot be reached in time.
        NotAuthorizedError: It does not admit this user, or TLS failed for good.
        RefusedError: It does not allow this writer; the message has the reason.
        ValueError: An argument is invalid; no request was sent then.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        writer: str,
        *,
        take_over: bool = False,
        timeout: float = DEFAULT_SILENCE,
        patience: float | None = None,
        replay_bytes: int = DEFAULT_REPLAY_BYTES,
        access: Access = NOBODY,
    ) -> None:
        encode_text(writer, "a name")
        self._prepare(host, port, timeout, patience, replay_bytes, access)
        self._take_over = take_over
        self.ticket = WriterTicket(writer, 0, UNKNOWN)
        self._open()

    @classmethod
    def join(
        cls,
        host: str,
        port: int | None,
        ticket: WriterTicket,
        *,
        timeout: float = DEFAULT_SILENCE,
        patience: float | None = None,
        replay_bytes: int = DEFAULT_REPLAY_BYTES,
        access: Access = NOBODY,
    ) -> Self:
        """Write to the same batches as the owner of this ticket.

        Raises:
            FencedError: Another writer has taken the name over since, or the relay does not know
                this writer any more.
            AwayError: The relay cannot be reached in time.
        """
        writer = cls.__new__(cls)
        writer._prepare(host, port, timeout, patience, replay_bytes, access)
        writer.ticket = WriterTicket(*ticket)
        writer._open()
        return writer

    def _prepare(
        self,
        host: str,
        port: int | None,
        timeout: float,
        patience: float | None,
        replay_bytes: int,
        access: Access,
    ) -> None:
        host, port, self._access = access.reach(host, port)
        self._address = (host, port)
        self._context = self._access.context()
        self._timeout = timeout
        self._patience = patience
        self.replay_bytes = replay_bytes
        self._take_over = False
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._sock: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._buffer = bytearray()
        self._answers: dict[int, tuple[int, bytes]] = {}
        # Requests whose answers are awaited; all other answers are ignored.
        self._wanted: set[int] = set()
        self._connections = 0
        self._alive = 0.0
        self._closed = False
        self.max_frame = FRAME_BYTES
        self.max_rows = 1

    def __reduce__(self) -> tuple[Callable[..., SinkWriter], tuple[object, ...]]:
        host, port = self._address
        settings = (self._timeout, self._patience, self.replay_bytes, self._access)
        return _joined, (type(self), host, port, self.ticket, settings)

    def __repr__(self) -> str:
        host, port = self._address
        state = "closed" if self._closed else "away" if self._sock is None else "connected"
        return f"<SinkWriter {self.ticket.writer} at {host}:{port}: {state}>"

    # -- requests to call -----------------------------------------------------------------------

    def last_committed(self) -> int | None:
        """Return the number of the last committed batch; None: there is none yet.

        Raises:
            AwayError: The relay cannot be reached in time.
        """
        (last,) = taken_apart(layouts.BATCH, self._ask(AskLast(), Kind.LAST_IS))
        return None if last < 0 else last

    def stage(
        self,
        batch: int,
        partition: int,
        attempt: int,
        rows: Iterable[SinkRow | tuple[str | bytes, bytes | str]],
        *,
        qos: int = 1,
        retain: bool = False,
    ) -> Staged:
        """Stage one part of a batch as a whole: none of its rows is published before `commit`.

        Args:
            batch: The number of the batch.
            partition: The number of the part: parts are published in the order of these numbers.
            attempt: The number of the attempt at this part; of several, `commit` takes one.
            rows: Its rows, in order: `SinkRow`, or (topic, value).
            qos: The QoS of (topic, value) rows.
            retain: The retain flag of (topic, value) rows.

        Returns:
            the argument for `commit`.

        Raises:
            RefusedError: The relay does not accept it: a topic has a wildcard, a row or a batch is
                too large. It keeps nothing of the part then.
            FencedError: Another writer has taken the name over.
            AwayError: The relay cannot be reached in time.
            ThrottledError: The relay has throttled this writer for longer than its patience.
        """
        with self.stager(batch, partition, attempt, qos=qos, retain=retain) as stager:
            stager.write(rows)
            return stager.complete()

    def stager(
        self, batch: int, partition: int, attempt: int, *, qos: int = 1, retain: bool = False
    ) -> Stager:
        """Begin to stage one part piece by piece; for the arguments see `stage`."""
        return Stager(self, batch, partition, attempt, _flags(qos, retain))

    def commit(self, batch: int, parts: Iterable[Staged | tuple[int, int]]) -> bool:
        """Publish these parts of a batch, whole and in order, and nothing else that was staged.

        When this returns, the relay's decision is final: with a store, it is on disk. Without one,
        everything has been handed to the subscribers.

        Args:
            batch: The number of the batch. For one that is already committed, or older, nothing
                happens.
            parts: Results of `stage`, or (partition, attempt).

        Returns:
            Whether it was committed now; False: it was before.

        Raises:
            NotStagedError: A part is not staged.
            RefusedError: The relay does not allow it.
            FencedError: Another writer has taken the name over.
            DiskError: The relay's disk fails; the batch may be committed, so ask again.
            AwayError: The relay cannot be reached in time; ask again.
            ThrottledError: The relay has throttled this writer for longer than its patience.
        """
        request = Commit(batch, tuple([(part[0], part[1]) for part in parts]))
        try:
            encode_request(0, request)
        except struct.error as exc:
            raise ValueError(f"an invalid batch, partition or attempt: {exc}") from exc
        _, already, _ = taken_apart(layouts.COMMITTED, self._ask(request, Kind.COMMITTED))
        return not already

    def abort(self, batch: int) -> None:
        """Discard the staged rows of a batch; for a committed batch nothing happens.

        Raises:
            FencedError: Another writer has taken the name over.
            AwayError: The relay cannot be reached in time; it discards them itself, later.
        """
        _check_numbers(batch)
        self._ask(Abort(batch), Kind.ABORTED)

    def forget(self) -> None:
        """Make the relay forget this writer, and close: for names that are not used again.

        The relay discards staged rows; committed ones are published all the same.

        Raises:
            AwayError: The relay cannot be reached in time.
        """
        self._ask(Forget(), Kind.FORGOTTEN)
        self.close()

    def ping(self) -> None:
        """Check that the relay answers.

        Raises:
            AwayError: It cannot be reached in time.
        """
        self._ask(Ping(), Kind.PONG)

    def close(self) -> None:
        """Close the connection. Staged rows stay at the relay. Idempotent; never raises.

        In another thread that waits for an answer, an error says that the writer was closed.
        """
        self._closed = True
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not TLS's own method: it would change the state that another thread reads with.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        with self._lock:
            self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- requests -------------------------------------------------------------------------------

    def _open(self) -> None:
        self.again(self.connect)

    def _ask(self, request: Request, answer: Kind) -> bytes:
        """Send a request, and wait for the answer; again, if the connection breaks."""
        return self.again(lambda: self._once(request, answer))

    def _once(self, request: Request, answer: Kind) -> bytes:
        self.connect()
        return self.exchange(self.new_number(), request, answer)

    def exchange(self, number: int, request: Request, answer: Kind) -> bytes:
        """Send a request, and wait for the answer. For `Stager`; within `again`."""
        self.send(encode_request(number, request))
        return self.wait(number, answer)

    def again(self, attempt: Callable[[], T]) -> T:
        """Run an exchange with the relay; again, if the connection breaks. For `Stager`.

        Any other error in the middle of it ends the connection, too: the next bytes would be
        unknown.
        """
        with self._lock:
            broken: float | None = None  # Since when it is unreachable.
            for tried in count():
                self.check_open()
                began = time.monotonic()
                try:
                    return attempt()
                except (WrongAnswerError, TornError, ThrottledError):
                    self._disconnect()
                    raise
                except RangeError:
                    raise  # A complete answer.
                except OSError as exc:
                    self._disconnect()
                    fault = not_agreed(self._address, exc)
                    if fault is not None:
                        raise fault from exc
                    why = exc
                except ValueError:
                    raise  # Nothing was sent.
                except BaseException:
                    self._disconnect()
                    raise
                now = time.monotonic()
                if broken is None or now - began > self._timeout:
                    broken = now  # Until then it answered.
                pause = PAUSES[min(tried, len(PAUSES) - 1)]
                if isinstance(why, _SilentError) or now + pause - broken >= self._timeout:
                    self._check_away(why)
                time.sleep(pause)
        raise AssertionError  # The loop has no end.

    def _check_away(self, why: Exception) -> NoReturn:
        self.check_open()
        host, port = self._address
        msg = f"the relay at {host}:{port} gave no answer for {self._timeout:g} s: {why}"
        raise AwayError(msg) from why

    def check_open(self) -> None:
        """Raise if the writer was closed. For `Stager`."""
        if self._closed:
            raise RangeError("this writer was closed")

    def new_number(self) -> int:
        """Return a number for a request whose answer is awaited. For `Stager`."""
        number = next(self._numbers) & 0xFFFFFFFF or next(self._numbers) & 0xFFFFFFFF
        self._wanted.add(number)
        return number

    def no_longer_wanted(self, number: int) -> None:
        """Ignore later answers to a request. For `Stager`."""
        with self._lock:
            self._wanted.discard(number)
            self._answers.pop(number, None)

    @property
    def connections(self) -> int:
        """The number of connections so far, which identifies the present one. For `Stager`."""
        return self._connections

    def connect(self) -> None:
        """Connect, if it is not connected. For `Stager`; within `again`."""
        if self._sock is not None:
            return
        try:
            sock = self._sock = connect(self._address, self._timeout, self._context)
        except TimeoutError as exc:
            raise _SilentError(f"the connection failed: {exc}") from exc
        sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        try:
            self._introduce()
        except RangeError:
            self._disconnect()  # It is not admitted: the next request may try again.
            raise
        self._connections += 1

    def _introduce(self) -> None:
        """Send the login and the writer's name; the relay may refuse at any point."""
        welcome = self.exchange(self.new_number(), GREETING, Kind.WELCOME)
        login = self._access.login()
        if login is not None:
            check_login(welcome)
            self.exchange(self.new_number(), login, Kind.AUTHENTICATED)
        name, generation, incarnation = self.ticket
        take_over = self._take_over and not self._connections
        request = Open(name, generation, incarnation, take_over)
        payload = self.exchange(self.new_number(), request, Kind.OPENED)
        try:
            answer = layouts.OPENED.unpack(payload)
        except struct.error as exc:
            raise WrongAnswerError(f"an answer that cannot be read: {exc}") from exc
        generation, incarnation, _, self.max_frame, self.max_rows = answer
        self.ticket = WriterTicket(name, generation, incarnation)

    def _disconnect(self) -> None:
        sock, self._sock = self._sock, None
        selector, self._selector = self._selector, None
        self._answers.clear()
        self._wanted.clear()
        self._buffer.clear()
        if selector is not None:
            selector.close()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    def send(self, frame: bytes) -> None:
        """Send a frame, and receive meanwhile. For `Stager`; within `again`."""
        self._pump(memoryview(frame), None)

    def wait(self, number: int, wanted: int) -> bytes:
        """Wait for an answer, and return its payload. For `Stager`; within `again`."""
        self._pump(memoryview(b""), number)
        self._wanted.discard(number)
        kind, payload = self._answers.pop(number)
        if kind == Kind.ERROR:
            raise error_of(payload, WRITERS_ERRORS)
        if kind != wanted:
            raise WrongAnswerError(f"an answer of kind {kind} instead of {wanted}")
        return payload

    def look(self, number: int) -> None:
        """Raise the relay's error for a request that is answered only if it is refused."""
        found = self._answers.pop(number, None)
        if found is not None:
            # There may be another error: the end of a refused part is refused, too.
            raise error_of(found[1], WRITERS_ERRORS)

    def _pump(self, unsent: memoryview, number: int | None) -> None:
        """Send, and receive, until everything is sent and `number` is answered.

        Both at once: a relay that throttles its writer reads nothing, but sends signs of life.

        Raises:
            OSError: The connection breaks, or the relay sends no sign of life for too long.
        """
        sock, selector = self._sock, self._selector
        assert sock is not None
        assert selector is not None
        began = self._alive = time.monotonic()
        while unsent or (number is not None and number not in self._answers):
            selector.modify(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0))
            now = time.monotonic()
            if self._patience is not None and now - began > self._patience:
                msg = (
                    f"writer {self.ticket.writer} owes so much that the relay has not read on for "
                    f"{self._patience:g} s: the subscribers of its rows do not keep up"
                )
                raise ThrottledError(msg)
            seconds = self._alive + self._timeout - now
            if seconds <= 0:
                raise _SilentError("it is silent")
            if self._patience is not None:
                seconds = min(seconds, max(0.0, began + self._patience - now) + 0.001)
            for _, events in selector.select(seconds):
                if events & selectors.EVENT_READ:
                    self._receive(sock)
                if events & selectors.EVENT_WRITE:
                    with contextlib.suppress(*_BLOCKED):
                        unsent = unsent[sock.send(unsent) :]
                        self._alive = time.monotonic()
        if number is None:
            self._receive(sock)  # The relay may have refused it.

    def _receive(self, sock: socket.socket) -> None:
        buffer = self._buffer
        while True:
            try:
                data = sock.recv(1 << 16)
            except _BLOCKED:
                return
            if not data:
                self.check_open()
                raise ConnectionResetError("the relay has closed the connection")
            buffer += data
            self._alive = time.monotonic()
            self._take_answers(buffer)
            if not isinstance(sock, ssl.SSLSocket):
                return
            # The descriptor does not show the bytes that TLS has decrypted already.

    def _take_answers(self, buffer: bytearray) -> None:
        at = 0
        while len(buffer) - at >= layouts.HEADER.size:
            length, kind, number = layouts.HEADER.unpack_from(buffer, at)
            if not layouts.HEADER.size - 4 <= length <= MAX_ANSWER_BYTES:
                raise WrongAnswerError(f"an answer of {length} bytes is not of this protocol")
            end = at + 4 + length
            if len(buffer) < end:
                break
            payload = bytes(buffer[at + layouts.HEADER.size : end])
            at = end
            if kind == Kind.ERROR and number == 0:
                raise error_of(payload, WRITERS_ERRORS)  # For the whole connection.
            if kind != Kind.WAITING and number in self._wanted:
                # Keep the first: the end of a refused part is refused, too.
                self._answers.setdefault(number, (kind, payload))
        del buffer[:at]


def _joined(
    cls: type[SinkWriter],
    host: str,
    port: int,
    ticket: WriterTicket,
    settings: tuple[float, float | None, int, Access],
) -> SinkWriter:
    timeout, patience, replay_bytes, access = settings
    return cls.join(
        host,
        port,
        ticket,
        timeout=timeout,
        patience=patience,
        replay_bytes=replay_bytes,
        access=access,
    )


class Stager:
    """One part that is being staged; made by `SinkWriter.stager`. A context manager.

    It does not count before `complete`; after leaving the block without it, the relay discards the
    part. For one thread.
    """

    def __init__(
        self, writer: SinkWriter, batch: int, partition: int, attempt: int, flags: int
    ) -> None:
        _check_numbers(batch, partition, attempt)
        if batch < 0:
            raise ValueError(f"batches have numbers from 0 on, not {batch}")
        self._writer = writer
        self._part = PartKey(batch, partition, attempt)
        self._flags = flags
        # Rows that are not in a frame yet.
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._row_flags = bytearray()
        self._size = 0
        # Frames that the relay may not have yet; None: more than are kept.
        self._frames: list[bytes] | None = []
        self._kept = 0
        self._sent = 0
        self._connection = -1
        self._number = 0
        self._crc = 0
        self.rows = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._frames = None
        self._keys.clear()
        self._values.clear()
        self._writer.no_longer_wanted(self._number)

    def write(self, rows: Iterable[SinkRow | tuple[str | bytes, bytes | str]]) -> None:
        """Add rows; for its errors see `SinkWriter.stage`."""
        default = self._flags
        for row in rows:
            topic, value = row[0], row[1]
            key = topic.encode() if isinstance(topic, str) else topic
            data = value.encode() if isinstance(value, str) else value
            if isinstance(row, SinkRow):
                flags = _flags(row.qos, row.retain)
                if row.properties:
                    flags |= WITH_PROPERTIES
                    data = with_properties(row.properties, data)
                self._add(key, data, flags)
            else:
                self._add(key, data, default)

    def write_columns(
        self,
        topics: Iterable[bytes],
        values: Iterable[bytes],
        flags: Iterable[int] | None = None,
    ) -> None:
        """Add rows in columns.

        A row's flags are its QoS, plus `RETAIN` for a retained value, plus `WITH_PROPERTIES` if its
        value is one of `with_properties`.

        Raises:
            ValueError: The columns have different lengths.
        """
        every = repeat(self._flags) if flags is None else flags
        for key, value, each in zip(topics, values, every, strict=flags is not None):
            self._add(key, value, each)

    def _add(self, key: bytes, value: bytes, flags: int) -> None:
        size = len(key) + len(value) + ROW_OVERHEAD
        if len(key) > MAX_TEXT_BYTES:
            raise RefusedError(f"a topic of {len(key)} bytes: {MAX_TEXT_BYTES} are the most")
        if size + 1024 > self._writer.max_frame:
            msg = (
                f"a row of {size} bytes, topic and value: the relay takes frames of "
                f"{self._writer.max_frame} bytes (its --max-packet-size)"
            )
            raise RefusedError(msg)
        if self._keys and (
            self._size + size > FRAME_BYTES or len(self._keys) >= self._writer.max_rows
        ):
            self._flush()
        self._keys.append(key)
        self._values.append(value)
        self._row_flags.append(flags)
        self._size += size

    def _flush(self) -> None:
        keys, values = self._keys, self._values
        if not keys:
            return
        number = len(keys)
        block = encode_rows(keys, values, self._row_flags)
        keys.clear()
        values.clear()
        self._row_flags.clear()
        self._size = 0
        batch, partition, attempt = self._part
        frame = layouts.STAGE.pack(batch, partition, 0, attempt, self.rows) + block
        self._crc = zlib.crc32(block, self._crc)
        self.rows += number
        self.bytes += len(block)
        self._kept += len(frame)
        if self._frames is None:
            frames = [frame]
        else:
            self._frames.append(frame)
            frames = self._frames[-1:]
        self._writer.again(lambda: self._send(frames))
        if self._kept > self._writer.replay_bytes:
            self._frames = None

    def _send(self, frames: Sequence[bytes]) -> None:
        """Send new frames; on a new connection, all."""
        writer = self._writer
        writer.connect()
        if self._connection != writer.connections:
            if self._connection >= 0:
                if self._frames is None:
                    raise self._torn()
                frames = self._frames
            self._connection = writer.connections
            self._number = writer.new_number()
        for payload in frames:
            writer.send(encode_frame(Kind.STAGE, self._number, payload))
        writer.look(self._number)

    def _torn(self) -> TornError:
        return TornError(
            f"the connection broke in the middle of {self._part}, of which {self.bytes} bytes were "
            "sent: more than are kept to be sent again (replay_bytes); stage it anew"
        )

    @contextlib.contextmanager
    def _torn_if_refused(self) -> Generator[None]:
        try:
            yield
        except RefusedError as exc:
            raise self._torn() from exc

    def complete(self) -> Staged:
        """End the part; return the argument for `SinkWriter.commit`.

        Raises:
            RefusedError: The relay has not accepted it; and as `SinkWriter.stage`.
        """
        self._flush()
        request = StageEnd(self._part, self.rows, self.bytes, self._crc)

        def end() -> bytes:
            try:
                self._send([])
            except TornError:
                # All of it was sent, and may have arrived.
                self._connection = self._writer.connections
                self._number = self._writer.new_number()
                with self._torn_if_refused():
                    return self._writer.exchange(self._number, request, Kind.STAGED)
            return self._writer.exchange(self._number, request, Kind.STAGED)

        rows, _, _ = taken_apart(layouts.STAGED, self._writer.again(end))
        self._frames = None
        if rows != self.rows:
            raise WrongAnswerError(f"{self.rows} rows were staged, and {rows} were taken")
        return Staged(self._part.partition, self._part.attempt, self.rows)


def _flags(qos: int, retain: bool) -> int:
    if qos not in QOS:
        raise ValueError(f"QoS is 0, 1 or 2, not {qos!r}")
    return qos | (RETAIN if retain else 0)


def _check_numbers(batch: int, partition: int = 0, attempt: int = 0) -> None:
    try:
        layouts.STAGE.pack(batch, partition, 0, attempt, 0)
    except struct.error as exc:
        numbers = (batch, partition, attempt)
        msg = f"batches, partitions and attempts are positive whole numbers: {numbers} ({exc})"
        raise ValueError(msg) from exc
