"""A blocking client for subscriptions that are read by ranges; the standard library is enough.

Spark's workers have no event loop, so nothing here imports Trio. `ranges/wire/_frames.py`
describes the protocol. ::

    with RangeReader("127.0.0.1", 7700, "readings", filters=["plant/#"], start="latest") as reader:
        at = reader.start
        while True:
            low, end = reader.head()
            for block in reader.fetch(at, end):
                for row in block.rows():
                    ...
            if at == end:
                time.sleep(0.1)  # nothing has come since: without a pause this loop would spin
                continue
            at = end
            reader.ack(at)  # repaid: the publishers may go on

Messages that were fetched and not acknowledged can be fetched again, also by other readers at the
same time: give them `reader.ticket`, and let them join with `RangeReader.join`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import accumulate, count, repeat
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeVar

from ..wire import (
    AUTH_IS_KNOWN,
    READERS_ERRORS,
    RETAIN,
    UNKNOWN,
    VERSION,
    Ack,
    AfterGrace,
    AskHead,
    Attach,
    Auth,
    DataLossError,
    Drop,
    Fetch,
    Head,
    Hello,
    Kind,
    NotAuthorizedError,
    OpenBlock,
    Ping,
    RangeError,
    Reach,
    Request,
    Start,
    WrongAnswerError,
    encode_request,
    layouts,
)
from ._access import NOBODY, Access, connect, tls_fault

MAX_FRAME_BYTES = 300 << 20
"""A larger answer counts as garbage: one message of MQTT's largest size, and some more."""

DEFAULT_TIMEOUT = 30.0
"""Seconds within which a request is answered, including reconnects; as in psycopg's pool."""

DEFAULT_FETCH_BYTES = 1 << 20
"""Bytes of one answer; as Kafka's `max.partition.fetch.bytes`. One more is requested meanwhile."""

GREETING = Hello(VERSION, VERSION)

PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to reach the relay again; the last one repeats."""


class AwayError(RangeError, ConnectionError):
    """The relay cannot be reached, or did not answer in time. Try again later."""


class Owed(NamedTuple):
    """The unacknowledged messages: the consumer lag."""

    items: int
    bytes: int


class Standing(NamedTuple):
    """The messages that can be fetched, and the unacknowledged ones, at one moment."""

    low: int
    next: int
    items: int
    bytes: int


class Ticket(NamedTuple):
    """The data that others need to read the same subscription; it can be pickled.

    With a name only, it joins the reader that is attached.
    """

    subscription: str
    generation: int = 0
    incarnation: bytes = UNKNOWN


class Row(NamedTuple):
    """One message."""

    number: int
    key: bytes
    value: bytes
    time_us: int
    account: str
    qos: int = 0
    """As it was published."""
    retain: bool = False
    """Whether it was published to be retained."""
    properties: bytes = b""
    """Its properties of MQTT 5, as they travel: see `parse_properties`."""


class Block(OpenBlock):
    """Consecutive messages, column by column: views of the bytes received.

    The columns of integers can serve as Arrow buffers directly; `offsets` turns lengths into the
    offsets of Arrow's binary columns.

    Attributes:
        accounts: Names of the accounts that are charged: the ultimate causes.
    """

    __slots__ = ("accounts",)

    def __init__(self, view: memoryview) -> None:
        try:
            super().__init__(view)
        except struct.error as exc:
            raise WrongAnswerError(f"a block of {len(view)} bytes has no header") from exc
        except ValueError as exc:
            raise WrongAnswerError(str(exc)) from exc
        # Arrow arrays made of these must not read beyond them: the check takes 0.03 us a row.
        if (
            sum(self.key_lengths) != len(self.keys)
            or sum(self.value_lengths) != len(self.values)
            or max(self.codes, default=-1) >= len(self.names)
        ):
            raise WrongAnswerError("a block whose columns do not fit each other")
        self.accounts = [name.decode(errors="replace") for name in self.names]

    def __repr__(self) -> str:
        return f"<Block of messages {self.first} to {self.end - 1}>"

    @property
    def end(self) -> int:
        """The number after that of the last message."""
        return self.first + self.count

    @staticmethod
    def offsets(lengths: memoryview) -> array[int]:
        """Return the start of each entry and the end of the last: int32, as in Arrow's binary."""
        return array("i", accumulate(lengths, initial=0))

    def rows(self) -> Iterator[Row]:
        """Yield the messages one by one."""
        accounts = self.accounts
        key_at = value_at = property_at = 0
        flags = bytes(self.flags) or bytes(self.count)
        property_lengths = self.property_lengths or repeat(0, self.count)
        properties = bytes(self.properties)
        keys, values = bytes(self.keys), bytes(self.values)
        columns = zip(
            self.key_lengths, self.value_lengths, self.times, self.codes, flags, property_lengths,
            strict=True,
        )  # fmt: skip
        for number, (key, value, when, code, flag, more) in enumerate(columns, self.first):
            key_end, value_end, property_end = key_at + key, value_at + value, property_at + more
            yield Row(
                number, keys[key_at:key_end], values[value_at:value_end], when, accounts[code],
                flag & 3, flag & RETAIN != 0, properties[property_at:property_end],
            )  # fmt: skip
            key_at, value_at, property_at = key_end, value_end, property_end


class _Connection:
    """One TCP connection, from its greeting on. Not thread-safe."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout: float,
        context: ssl.SSLContext | None = None,
        login: Auth | None = None,
    ) -> None:
        self.sock = connect(address, timeout, context)
        try:
            self.send(0, GREETING)
            payload = self._answer(Kind.WELCOME, "a greeting")
            if login is not None:
                check_login(payload)
                self.send(0, login)
                self._answer(Kind.AUTHENTICATED, "a log-in")
        except BaseException:
            self.sock.close()
            raise

    def _answer(self, wanted: int, what: str) -> memoryview:
        kind, _, payload = self.receive()
        if kind == Kind.ERROR:
            raise error_of(payload)
        if kind != wanted:
            raise WrongAnswerError(f"the answer to {what} is of kind {kind}")
        return payload

    def send(self, number: int, request: Request) -> None:
        """Send a request."""
        self.sock.sendall(encode_request(number, request))

    def receive(self) -> tuple[int, int, memoryview]:
        """Return the kind, the number and the contents of the next frame."""
        length, kind, number = layouts.HEADER.unpack(self._exactly(layouts.HEADER.size))
        size = length - layouts.HEADER.size + 4
        if not 0 <= size <= MAX_FRAME_BYTES:
            raise WrongAnswerError(f"an answer of {length} bytes is not of this protocol")
        return kind, number, self._exactly(size)

    def _exactly(self, size: int) -> memoryview:
        # In its own piece of memory, so that columns in it are aligned.
        view = memoryview(bytearray(size))
        at = 0
        while at < size:
            got = self.sock.recv_into(view[at:])
            if not got:
                raise ConnectionResetError("the relay has closed the connection")
            at += got
        return view


def check_login(welcome: memoryview | bytes) -> None:
    """Check that a relay understands a log-in, before sending a password.

    Raises:
        NotAuthorizedError: It does not.
    """
    _, flags, _ = taken_apart(layouts.WELCOME, welcome)
    if not flags & AUTH_IS_KNOWN:
        raise NotAuthorizedError(
            "the relay is too old for log-ins: the password was not sent; leave out the user, or "
            "update the relay"
        )


def not_agreed(address: tuple[str, int], exc: OSError) -> NotAuthorizedError | None:
    """Return an error if TLS failed for good; also for `SinkWriter`."""
    fault = tls_fault(exc)
    if fault is None:
        return None
    host, port = address
    return NotAuthorizedError(f"the relay at {host}:{port}: {fault}")


def error_of(
    payload: memoryview | bytes, errors: Mapping[int, type[RangeError]] = READERS_ERRORS
) -> RangeError:
    """Return the exception for an ERROR; also for `SinkWriter`, which has its own codes."""
    try:
        (code,) = layouts.U16.unpack_from(payload)
        sentence = bytes(payload[4:]).decode()
    except (struct.error, ValueError):
        return WrongAnswerError("an error that cannot be read")
    return errors.get(code, RangeError)(sentence)


def taken_apart(form: struct.Struct, payload: memoryview | bytes) -> tuple[int, ...]:
    """Return the numbers of an answer; also for `SinkWriter`."""
    try:
        return form.unpack(payload)
    except struct.error as exc:
        raise WrongAnswerError(f"an answer that cannot be read: {exc}") from exc


_Choice = TypeVar("_Choice", bound=StrEnum)


def _choice(what: str, given: str | None, of: type[_Choice]) -> _Choice | None:
    if given is None:
        return None
    try:
        return of(given)
    except ValueError:
        there = ", ".join(map(repr, (None, *[each.value for each in of])))
        raise ValueError(f"{what} is one of {there}, not {given!r}") from None


class RangeReader:
    """A reader of one subscription, over one connection. Threads may share it.

    The constructor attaches, which detaches an earlier reader; it makes the subscription if there
    is none of this name, which needs `filters`. If the connection breaks, the next request connects
    again, with the same generation. Leaving the `with` block, or `close`, detaches.

    Args:
        host: The relay's host; or a URL, `subscribe+tls://HOST:PORT` or `subscribe+tcp://`.
        port: Its port for readers; None with a URL.
        subscription: The subscription's name.
        filters: A list of MQTT topic filters. Empty: the subscription exists already.
        start: Where a first reader begins: `earliest` or `latest`; see `start` below.
        durable: Whether a new subscription is kept on the relay's disk.
        grace: Seconds that it waits for its reader to come back; None: unchanged, or the relay's.
        after_grace: The policy after that: `hold` its debt, `drop` it all, or `write_off` its debt.
        timeout: Seconds within which each request has to be answered, or the next part of an answer
            has to come.
        fetch_bytes: Bytes of one answer to a fetch.
        access: The reader's login, and the TLS settings.

    Attributes:
        start: The first message for a reader that has not read before. The relay has it pinned: it
            stays the same for one word, except for acknowledged messages.
        ticket: The data that others need to read the same subscription.

    Raises:
        AwayError: The relay cannot be reached in time.
        NotAuthorizedError: The relay does not admit this user, or TLS failed for good.
        RefusedError: The subscription cannot be made like this.
        ValueError: An argument is invalid; no request was sent then.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        subscription: str,
        *,
        filters: Iterable[str] = (),
        start: Literal["earliest", "latest"] | None = None,
        durable: bool = False,
        grace: float | None = None,
        after_grace: Literal["hold", "drop", "write_off"] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        access: Access = NOBODY,
    ) -> None:
        if isinstance(filters, str):
            raise TypeError(f"filters are a list: [{filters!r}], not {filters!r}")
        attach = Attach(
            name=subscription,
            filters=tuple(filters),
            grace=grace,
            after_grace=_choice("after_grace", after_grace, AfterGrace),
            durable=durable,
            start=_choice("start", start, Start),
        )
        encode_request(0, attach)  # A text that is too long is an error before anything is sent.
        self._prepare(host, port, timeout, fetch_bytes, access)
        self._attach = attach
        self.start = 0
        self.ticket = Ticket(subscription, 0, UNKNOWN)
        self._open()

    @classmethod
    def join(
        cls,
        host: str,
        port: int | None,
        ticket: Ticket,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        access: Access = NOBODY,
    ) -> Self:
        """Read along with the owner of this ticket; the subscription stays theirs.

        Raises:
            FencedError: Another reader has attached since.
            RefusedError: There is no such subscription.
            DataLossError: The subscription was made anew since.
            AwayError: The relay cannot be reached in time.
        """
        reader = cls.__new__(cls)
        reader._prepare(host, port, timeout, fetch_bytes, access)
        reader._attach = Attach(name=ticket.subscription, join=True)
        reader.start = 0
        reader.ticket = ticket
        reader._open()
        return reader

    def _prepare(
        self, host: str, port: int | None, timeout: float, fetch_bytes: int, access: Access
    ) -> None:
        host, port, access = access.reach(host, port)
        self._address = (host, port)
        self._context = access.context()
        self._login = access.login()
        self._timeout = timeout
        self._deadline = 0.0
        self._fetch_bytes = fetch_bytes
        self._lock = threading.RLock()
        self._connection: _Connection | None = None
        self._handle = 0
        self._numbers = count(1)
        # Answers that came while another was awaited, and requests whose answers nobody awaits.
        self._answers: dict[int, tuple[int, memoryview]] = {}
        self._abandoned: set[int] = set()
        self._connections = 0
        self._attached = False
        self._closed = False

    def __repr__(self) -> str:
        host, port = self._address
        state = "closed" if self._closed else "away" if self._connection is None else "attached"
        return f"<RangeReader of {self.ticket.subscription} at {host}:{port}: {state}>"

    # -- requests to call -----------------------------------------------------------------------

    def head(self) -> Head:
        """Return the range that can be fetched now.

        Raises: see `fetch`.
        """
        return Head(*self.standing()[:2])

    def owed(self) -> Owed:
        """Return the unacknowledged messages."""
        return Owed(*self.standing()[2:])

    def standing(self) -> Standing:
        """Return the range that can be fetched now, and the unacknowledged messages."""
        return Standing(*taken_apart(layouts.HEAD_IS, self._ask(AskHead, Kind.HEAD_IS)))

    def reach(self, start: int, max_bytes: int) -> int:
        """Return the number before which the messages from `start` on have at most `max_bytes`.

        At least one message, if there is any. Each counts with its key, its value and 20 bytes;
        one that is on the relay's disk only, with an average.

        Raises: see `fetch`.
        """
        request = partial(Reach, start=start, max_bytes=max_bytes)
        (end,) = taken_apart(layouts.REACHED, self._ask(request, Kind.REACHED))
        return end

    def fetch(self, start: int, end: int) -> Iterator[Block]:
        """Yield the messages from `start` to before `end`, in blocks, as often as you like.

        It yields those that exist at the time; it requests one answer while you use the one before.

        Raises:
            DataLossError: Some are gone: acknowledged, or given up.
            FencedError: Another reader has attached.
            RefusedError: The range is invalid, or the subscription was dropped.
            AwayError: The relay cannot be reached in time.
        """
        begun: tuple[int, int] | None = None
        at = start
        try:
            while True:
                request = partial(Fetch, start=at, end=end, max_bytes=self._fetch_bytes)
                if begun is None:
                    payload = self._ask(request, Kind.RECORDS)
                else:
                    payload, begun = self._finish(begun, request), None
                following, number, _ = layouts.RECORDS.unpack_from(payload)
                if not number:
                    return
                if following <= at:
                    raise WrongAnswerError(f"messages from {at} on end before {following}")
                at = following
                if at < end:
                    begun = self._begin(partial(request, start=at))
                yield from _blocks(payload, number)
                if at >= end:
                    return
        except struct.error as exc:
            raise WrongAnswerError(f"an answer that cannot be read: {exc}") from exc
        finally:
            if begun is not None:
                self._abandon(begun)

    def ack(self, upto: int) -> Head:
        """Acknowledge everything below `upto`; this repays the publishers' debt.

        Raises:
            RefusedError: It is above the last message.
            FencedError: Another reader has attached.
            AwayError: The relay cannot be reached in time.
        """
        answer = self._ask(partial(Ack, upto=upto), Kind.ACKED)
        return Head(*taken_apart(layouts.ACKED, answer))

    def ping(self, timeout: float | None = None) -> None:
        """Check that the relay answers, and attach again if the connection was lost.

        Args:
            timeout: Seconds; None: as for every request. Other threads wait for that long, too.

        Raises:
            AwayError: It cannot be reached in time.
        """
        with self._lock:
            deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
            self._again(deadline, lambda: self._once(lambda _: Ping(), Kind.PONG))

    def drop(self) -> None:
        """Make the relay forget the subscription with all its messages, and close."""
        with contextlib.suppress(DataLossError):  # It is forgotten already.
            self._ask(Drop, Kind.DROPPED)
        self.close()

    def close(self) -> None:
        """Detach, and close the connection. Idempotent; never raises.

        In another thread that waits for an answer, an error says that the reader was closed.
        """
        self._closed = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                # Not TLS's own method: it would change the state that another thread reads with.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
        with self._lock:
            self._disconnect()  # The relay detaches the reader when it notices.

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
        with self._lock:
            self._again(time.monotonic() + self._timeout, self._connect)

    def _ask(self, request: Callable[[int], Request], answer: Kind) -> memoryview:
        """Send a request, and wait for the answer; again, if the connection breaks.

        Args:
            request: Makes the request for a handle, which is another on each connection.
            answer: The kind of the answer.
        """
        with self._lock:
            return self._again(
                time.monotonic() + self._timeout, lambda: self._once(request, answer)
            )

    @contextlib.contextmanager
    def _in_step(self) -> Generator[None]:
        """Disconnect if an exception in the block makes the next bytes unknown.

        Control-C may come in the middle of an answer, too.
        """
        try:
            yield
        except WrongAnswerError:
            self._disconnect()
            raise
        except (RangeError, ValueError):
            raise  # A complete answer; or nothing was sent.
        except BaseException:
            self._disconnect()
            raise

    def _again(self, deadline: float, attempt: Callable[[], memoryview]) -> memoryview:
        self._deadline = deadline
        why: Exception | None = None
        for tried in count():
            if self._closed:
                raise RangeError("this reader was closed")
            try:
                with self._in_step():
                    return attempt()
            except OSError as exc:
                fault = not_agreed(self._address, exc)
                if fault is not None:
                    raise fault from exc
                why = exc
            pause = PAUSES[min(tried, len(PAUSES) - 1)]
            if time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        if self._closed:
            raise RangeError("this reader was closed")
        host, port = self._address
        msg = f"the relay at {host}:{port} did not answer within {self._timeout:g} s: {why}"
        raise AwayError(msg) from why

    def _once(self, request: Callable[[int], Request], answer: Kind) -> memoryview:
        self._connect()
        connection = self._connection
        assert connection is not None
        connection.sock.settimeout(self._remaining())
        return self._wait(self._send(request), answer)

    def _remaining(self) -> float:
        return max(0.01, self._deadline - time.monotonic())

    def _send(self, request: Callable[[int], Request]) -> int:
        connection = self._connection
        assert connection is not None
        number = next(self._numbers) & 0xFFFFFFFF
        made = request(self._handle)
        try:
            connection.send(number, made)
        except struct.error as exc:
            msg = f"numbers of messages, and of bytes, are positive and not that large: {made}"
            raise ValueError(msg) from exc
        return number

    def _wait(self, number: int, wanted: int) -> memoryview:
        connection = self._connection
        assert connection is not None
        while number not in self._answers:
            kind, of, payload = connection.receive()
            if of == 0 and kind == Kind.ERROR:
                raise error_of(payload)  # For the whole connection.
            if of in self._abandoned:
                self._abandoned.discard(of)
            else:
                self._answers[of] = kind, payload
        kind, payload = self._answers.pop(number)
        if kind == Kind.ERROR:
            raise error_of(payload)
        if kind != wanted:
            raise WrongAnswerError(f"an answer of kind {kind} instead of {wanted}")
        return payload

    def _begin(self, request: Callable[[int], Request]) -> tuple[int, int] | None:
        """Request messages without waiting; return the request's number and its connection."""
        with self._lock:
            if self._connection is None:
                return None
            with contextlib.suppress(OSError), self._in_step():
                return self._connections, self._send(request)
            return None  # `fetch` requests them anew.

    def _finish(self, begun: tuple[int, int], request: Callable[[int], Request]) -> memoryview:
        connection, number = begun
        with self._lock:
            if connection == self._connections and self._connection is not None:
                self._connection.sock.settimeout(self._timeout)
                with contextlib.suppress(OSError), self._in_step():
                    return self._wait(number, Kind.RECORDS)
            return self._ask(request, Kind.RECORDS)

    def _abandon(self, begun: tuple[int, int]) -> None:
        connection, number = begun
        with self._lock:
            if connection == self._connections and self._answers.pop(number, None) is None:
                self._abandoned.add(number)

    def _connect(self) -> memoryview:
        if self._connection is not None:
            return memoryview(b"")
        self._connection = _Connection(self._address, self._remaining(), self._context, self._login)
        self._connection.sock.settimeout(self._remaining())
        self._connections += 1
        name, generation, incarnation = self.ticket
        number = next(self._numbers) & 0xFFFFFFFF
        self._connection.send(
            number, replace(self._attach, generation=generation, incarnation=incarnation)
        )
        try:
            payload = self._wait(number, Kind.ATTACHED)
            self._handle, _, generation, _, _, start, incarnation = layouts.ATTACHED.unpack(payload)
        except struct.error as exc:
            raise WrongAnswerError(f"an answer that cannot be read: {exc}") from exc
        except RangeError:
            self._disconnect()  # It is not attached: the next request may try again.
            raise
        if not self._attached:
            self._attached = True
            self.start = start
        self.ticket = Ticket(name, generation, incarnation)
        return payload

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._answers.clear()
        self._abandoned.clear()
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sock.close()


def _blocks(payload: memoryview, number: int) -> Iterator[Block]:
    sizes = struct.unpack_from(f"<{number}I", payload, layouts.RECORDS.size)
    at = layouts.RECORDS.size + 4 * (number + number % 2)
    for size in sizes:
        yield Block(payload[at : at + size])
        at += size
