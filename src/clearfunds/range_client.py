"""A blocking client for subscriptions that are read by ranges; the standard library is enough.

It stands here, and not with the relay's side of the protocol, because importing anything below
`clearfunds.transports` imports Trio, and who reads from Spark's workers has no loop. So it speaks
the protocol in its own words; `transports/subscriptions/_frames.py` has it written down. ::

    with RangeReader("127.0.0.1", 7700, "readings", filters=["plant/#"], start="latest") as reader:
        at = reader.start
        while True:
            low, end = reader.head()
            for block in reader.fetch(at, end):
                for row in block.rows():
                    ...
            if at == end:
                time.sleep(0.1)  # nothing has come since: who asks at once asks all the time
                continue
            at = end
            reader.ack(at)  # repaid: the publishers may go on

What was fetched and not acknowledged can be fetched again, also by others at the same time: give
them `reader.ticket`, and let them read along with `RangeReader.join`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import accumulate, count, pairwise
from types import TracebackType
from typing import Literal, NamedTuple, Self

from clearfunds.relay_client import NOBODY, Access, connect, tls_fault

MAX_FRAME_BYTES = 300 << 20
"""A larger answer is taken for garbage: one message of MQTT's largest size, and some more."""

MAX_TEXT_BYTES = 65_535
"""Bytes of a name or a filter that the protocol has room for; a relay allows less."""

DEFAULT_TIMEOUT = 30.0
"""Seconds within which a request is answered, reconnecting included; as psycopg's pool has it."""

DEFAULT_FETCH_BYTES = 1 << 20
"""Bytes of one answer; as Kafka's `max.partition.fetch.bytes`. One more is asked for meanwhile."""

MAGIC = b"CLFR"
VERSION = 1
HEADER = struct.Struct("<IB3xI")
GREETING = struct.Struct("<4sHH")
_WELCOME = struct.Struct("<HHI")
AUTH_IS_KNOWN = 1
"""A flag of WELCOME; a relay that is older sends none."""
_ATTACH = struct.Struct("<Q16sdBBBB")
_ATTACHED = struct.Struct("<IIQQQQ16s")
_HEAD_IS = struct.Struct("<QQQQ")
_FETCH = struct.Struct("<IIQQ")
_RECORDS = struct.Struct("<QII")
_ACK = struct.Struct("<IIQ")
_REACH = struct.Struct("<IIQQ")
_REACHED = struct.Struct("<Q")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_TWO = struct.Struct("<QQ")
_BLOCK = struct.Struct("<QIIIIII")

HELLO, WELCOME, ERROR, PING, PONG, AUTH, AUTHENTICATED = 1, 2, 3, 4, 5, 6, 7
ATTACH, ATTACHED, DETACH, DETACHED = 16, 17, 18, 19
HEAD, HEAD_IS, FETCH, RECORDS, ACK, ACKED, DROP, DROPPED = 24, 25, 26, 27, 28, 29, 30, 31
REACH, REACHED = 32, 33

_STARTS: dict[str | None, int] = {None: 0, "earliest": 1, "latest": 2}
_AFTER_GRACE: dict[str | None, int] = {None: 0, "hold": 1, "drop": 2, "write_off": 3}
_UNKNOWN = bytes(16)
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to reach the relay again; the last one from then on."""


class RangeClientError(Exception):
    """Something that was asked of a relay could not be had."""


class AwayError(RangeClientError, ConnectionError):
    """The relay cannot be reached, or did not answer in time. It may later."""


class RefusedError(RangeClientError):
    """The relay does not allow it, or does not know it; the message says why."""


class NotAuthorizedError(RefusedError):
    """The relay does not let this user in, or does not show who it is itself; the message says."""


class FencedError(RangeClientError):
    """A newer reader has attached to the subscription; this one is out."""


class DataLossError(RangeClientError):
    """What is asked for is not there any more, or was another subscription's of this name."""


class StoreError(RangeClientError):
    """The relay's disk does not do what it should. It may later."""


class WrongAnswerError(RangeClientError):
    """What came is not an answer of this protocol's; or this client's question was none."""


_ERRORS: dict[int, type[RangeClientError]] = {
    1: WrongAnswerError,
    2: RefusedError,
    3: FencedError,
    4: DataLossError,
    5: DataLossError,
    6: StoreError,
    8: NotAuthorizedError,
}


class Head(NamedTuple):
    """What can be fetched: from `low` to before `next`."""

    low: int
    next: int


class Owed(NamedTuple):
    """What is not acknowledged."""

    items: int
    bytes: int


class Standing(NamedTuple):
    """What can be fetched, and what is not acknowledged, both at one time."""

    low: int
    next: int
    items: int
    bytes: int


class Ticket(NamedTuple):
    """What others need to read along; it can be pickled.

    With a name only: to read along with whoever is attached.
    """

    subscription: str
    generation: int = 0
    incarnation: bytes = _UNKNOWN


class Row(NamedTuple):
    """One message."""

    number: int
    key: bytes
    value: bytes
    time_us: int
    account: str


class Block:
    """Messages in a row, column by column: views on the bytes in which they came.

    The columns of integers can be buffers of Arrow's as they are; `offsets` makes of lengths what
    its binary columns want.

    Attributes:
        first: The number of the first message.
        count: How many there are.
        times: When each came, in microseconds since 1970: int64.
        codes: Whose each is: places in `accounts`: uint32.
        key_lengths: How long each key is: uint32.
        value_lengths: How long each value is: uint32.
        keys: All keys, joined; of publications, the topics.
        values: All values, joined.
        accounts: Names of accounts: who is charged for it, the ultimate cause.
    """

    __slots__ = (
        "accounts", "codes", "count", "first", "key_lengths", "keys", "times", "value_lengths",
        "values",
    )  # fmt: skip

    def __init__(self, view: memoryview) -> None:
        try:
            first, rows, names, name_bytes, key_bytes, value_bytes, _ = _BLOCK.unpack_from(view)
        except struct.error as exc:
            raise WrongAnswerError(f"a block of {len(view)} bytes has no header") from exc
        self.first: int = first
        self.count: int = rows
        at = _BLOCK.size

        def take(size: int) -> memoryview:
            nonlocal at
            at += size
            if at > len(view):
                msg = f"a block of {len(view)} bytes is shorter than it says"
                raise WrongAnswerError(msg)
            return view[at - size : at]

        self.times = _integers(take(8 * rows), "q")
        self.codes = _integers(take(4 * rows), "I")
        self.key_lengths = _integers(take(4 * rows), "I")
        self.value_lengths = _integers(take(4 * rows), "I")
        lengths = _integers(take(4 * names), "I")
        joined = bytes(take(name_bytes))
        self.keys = take(key_bytes)
        self.values = take(value_bytes)
        # Who makes Arrow's arrays of these must not read beyond them: 0.03 us for each row.
        if (
            sum(self.key_lengths) != key_bytes
            or sum(self.value_lengths) != value_bytes
            or sum(lengths) != name_bytes
            or max(self.codes, default=-1) >= names
        ):
            raise WrongAnswerError("a block whose columns do not fit each other")
        ends = accumulate(lengths, initial=0)
        self.accounts = [joined[a:b].decode(errors="replace") for a, b in pairwise(ends)]

    def __repr__(self) -> str:
        return f"<Block of messages {self.first} to {self.end - 1}>"

    @property
    def end(self) -> int:
        """The number after that of the last message."""
        return self.first + self.count

    @staticmethod
    def offsets(lengths: memoryview) -> array[int]:
        """Return where each entry begins and the last one ends: int32, as Arrow's binary has it."""
        return array("i", accumulate(lengths, initial=0))

    def rows(self) -> Iterator[Row]:
        """Yield the messages one by one."""
        accounts = self.accounts
        key_at = value_at = 0
        keys, values = bytes(self.keys), bytes(self.values)
        columns = zip(self.key_lengths, self.value_lengths, self.times, self.codes, strict=True)
        for number, (key, value, when, code) in enumerate(columns, self.first):
            key_end, value_end = key_at + key, value_at + value
            yield Row(
                number, keys[key_at:key_end], values[value_at:value_end], when, accounts[code]
            )
            key_at, value_at = key_end, value_end


def _integers(raw: memoryview, typecode: Literal["q", "I"]) -> memoryview:
    if sys.byteorder == "little":
        return raw.cast(typecode)
    numbers = array(typecode, raw.tobytes())
    numbers.byteswap()
    return memoryview(numbers)


class _Connection:
    """One TCP connection, from its greeting on. Not thread-safe."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout: float,
        context: ssl.SSLContext | None = None,
        login: bytes | None = None,
    ) -> None:
        self.sock = connect(address, timeout, context)
        try:
            self.send(HELLO, 0, GREETING.pack(MAGIC, VERSION, VERSION))
            payload = self._answer(WELCOME, "a greeting")
            if login is not None:
                check_login(payload)
                self.send(AUTH, 0, login)
                self._answer(AUTHENTICATED, "a log-in")
        except BaseException:
            self.sock.close()
            raise

    def _answer(self, wanted: int, what: str) -> memoryview:
        kind, _, payload = self.receive()
        if kind == ERROR:
            raise error_of(payload)
        if kind != wanted:
            raise WrongAnswerError(f"the answer to {what} is of kind {kind}")
        return payload

    def send(self, kind: int, number: int, payload: bytes) -> None:
        """Send a frame."""
        self.sock.sendall(HEADER.pack(len(payload) + HEADER.size - 4, kind, number) + payload)

    def receive(self) -> tuple[int, int, memoryview]:
        """Return the kind, the number and the contents of the next frame."""
        length, kind, number = HEADER.unpack(self._exactly(HEADER.size))
        size = length - HEADER.size + 4
        if not 0 <= size <= MAX_FRAME_BYTES:
            raise WrongAnswerError(f"an answer of {length} bytes is none of this protocol's")
        return kind, number, self._exactly(size)

    def _exactly(self, size: int) -> memoryview:
        # In a piece of memory of its own, so that columns in it are aligned.
        view = memoryview(bytearray(size))
        at = 0
        while at < size:
            got = self.sock.recv_into(view[at:])
            if not got:
                raise ConnectionResetError("the relay has closed the connection")
            at += got
        return view


def check_login(welcome: memoryview | bytes) -> None:
    """See whether a relay understands a log-in, before it is told a password.

    Raises:
        NotAuthorizedError: If it does not.
    """
    _, flags, _ = taken_apart(_WELCOME, welcome)
    if not flags & AUTH_IS_KNOWN:
        raise NotAuthorizedError(
            "the relay is too old to ask anybody who he is: it was not told the password; leave "
            "out the user, or update it"
        )


def not_agreed(address: tuple[str, int], exc: OSError) -> NotAuthorizedError | None:
    """Return what is wrong with TLS for good, if that is it; also for `sink_client`."""
    fault = tls_fault(exc)
    if fault is None:
        return None
    host, port = address
    return NotAuthorizedError(f"the relay at {host}:{port}: {fault}")


def error_of(
    payload: memoryview | bytes, errors: Mapping[int, type[RangeClientError]] = _ERRORS
) -> RangeClientError:
    """Return the exception that an ERROR means; also for `sink_client`, which has its own codes."""
    try:
        (code,) = _U16.unpack_from(payload)
        sentence = bytes(payload[4:]).decode()
    except (struct.error, ValueError):
        return WrongAnswerError("an error that cannot be read")
    return errors.get(code, RangeClientError)(sentence)


def taken_apart(form: struct.Struct, payload: memoryview | bytes) -> tuple[int, ...]:
    """Return the numbers of an answer; also for `sink_client`."""
    try:
        return form.unpack(payload)
    except struct.error as exc:
        raise WrongAnswerError(f"an answer that cannot be read: {exc}") from exc


def text_of(text: str, what: str = "a name or a filter") -> bytes:
    """Return a text as it is sent, after its length; also for `sink_client`."""
    raw = text.encode()
    if len(raw) > MAX_TEXT_BYTES:
        raise ValueError(f"{what} of {len(raw)} bytes: {MAX_TEXT_BYTES} are the most")
    return _U16.pack(len(raw)) + raw


def _choice(what: str, given: str | None, codes: dict[str | None, int]) -> int:
    code = codes.get(given)
    if code is None:
        there = ", ".join(map(repr, codes))
        raise ValueError(f"{what} is one of {there}, not {given!r}")
    return code


class RangeReader:
    """A reader of one subscription, over one connection. Threads may share it.

    Making one attaches, which puts out whoever was attached before; the subscription is made if
    there is none of this name, which takes `filters`. If the connection breaks, the next request
    connects again, with the same generation. Leaving the `with` block, or `close`, detaches.

    Args:
        host: Where the relay is; or a URL, `subscribe+tls://HOST:PORT` or `subscribe+tcp://`.
        port: Where it listens for readers; None with a URL.
        subscription: The subscription's name.
        filters: What it is bound to: a list of MQTT's topic filters. Empty: it is there already.
        start: Where to begin that was not read before: `earliest` or `latest`; see `start` below.
        durable: Whether a subscription that is made goes to the relay's disk.
        grace: Seconds that it waits for its reader to come back; None: as it is, or the relay's.
        after_grace: What it does then: `hold` its debt, `drop` it all, or `write_off` its debt.
        timeout: Seconds within which each request has to be answered, or the next part of an answer
            has to come.
        fetch_bytes: Bytes of one answer to a fetch.
        access: Who reads, and what the connection is encrypted with.

    Attributes:
        start: With which message to begin that has not read before. The relay has it pinned: it
            stays the same for one word, but for what has been acknowledged.
        ticket: What others need to read along.

    Raises:
        AwayError: If the relay cannot be reached in time.
        NotAuthorizedError: If the relay does not let this user in, or TLS finds something wrong.
        RefusedError: If the subscription cannot be made so.
        ValueError: If an argument cannot be one; nothing was asked for then.
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
        wanted = [text_of(text) for text in filters]
        self._prepare(host, port, timeout, fetch_bytes, access)
        self._options = (
            -1.0 if grace is None else grace,
            _choice("start", start, _STARTS),
            _choice("after_grace", after_grace, _AFTER_GRACE),
            durable,
        )
        self._texts = b"".join((text_of(subscription), _U16.pack(len(wanted)), *wanted))
        self._join = False
        self.start = 0
        self.ticket = Ticket(subscription, 0, _UNKNOWN)
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
        """Read along with who has this ticket; the subscription stays theirs.

        Raises:
            FencedError: If somebody else has attached since.
            RefusedError: If there is no such subscription.
            DataLossError: If the subscription was made anew since.
            AwayError: If the relay cannot be reached in time.
        """
        reader = cls.__new__(cls)
        reader._prepare(host, port, timeout, fetch_bytes, access)
        reader._options = (-1.0, 0, 0, False)
        reader._texts = text_of(ticket.subscription) + _U16.pack(0)
        reader._join = True
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
        # Answers that came while another one was waited for, and whose nobody waits for any more.
        self._answers: dict[int, tuple[int, memoryview]] = {}
        self._abandoned: set[int] = set()
        self._connections = 0
        self._attached = False
        self._closed = False

    def __repr__(self) -> str:
        host, port = self._address
        state = "closed" if self._closed else "away" if self._connection is None else "attached"
        return f"<RangeReader of {self.ticket.subscription} at {host}:{port}: {state}>"

    # -- what can be asked for ------------------------------------------------------------------

    def head(self) -> Head:
        """Return what can be fetched now.

        Raises: see `fetch`.
        """
        return Head(*self.standing()[:2])

    def owed(self) -> Owed:
        """Return what has not been acknowledged."""
        return Owed(*self.standing()[2:])

    def standing(self) -> Standing:
        """Return what can be fetched now, and what has not been acknowledged."""
        return Standing(*taken_apart(_HEAD_IS, self._ask(HEAD, HEAD_IS, _U32)))

    def reach(self, start: int, max_bytes: int) -> int:
        """Return before which number the messages from `start` on have `max_bytes`, or fewer.

        At least one message, if there is any. Each counts with its key, its value and 20 bytes;
        what is on the relay's disk only, with an average.

        Raises: see `fetch`.
        """
        (end,) = taken_apart(_REACHED, self._ask(REACH, REACHED, _REACH, 0, start, max_bytes))
        return end

    def fetch(self, start: int, end: int) -> Iterator[Block]:
        """Yield the messages from `start` to before `end`, in blocks, as often as you like.

        What is there at the time; one answer is asked for while the one before is looked at.

        Raises:
            DataLossError: If they are not there any more: acknowledged, or given up.
            FencedError: If another reader has attached.
            RefusedError: If the range is not one, or the subscription was dropped.
            AwayError: If the relay cannot be reached in time.
        """
        begun: tuple[int, int] | None = None
        at = start
        try:
            while True:
                arguments = (self._fetch_bytes, at, end)
                if begun is None:
                    payload = self._ask(FETCH, RECORDS, _FETCH, *arguments)
                else:
                    payload, begun = self._finish(begun, arguments), None
                following, number, _ = _RECORDS.unpack_from(payload)
                if not number:
                    return
                if following <= at:
                    raise WrongAnswerError(f"messages from {at} on end before {following}")
                at = following
                if at < end:
                    begun = self._begin(self._fetch_bytes, at, end)
                yield from _blocks(payload, number)
                if at >= end:
                    return
        except struct.error as exc:
            raise WrongAnswerError(f"an answer that cannot be read: {exc}") from exc
        finally:
            if begun is not None:
                self._abandon(begun)

    def ack(self, upto: int) -> Head:
        """Acknowledge everything below `upto`; it is repaid to those who published it.

        Raises:
            RefusedError: If that is more than there is.
            FencedError: If another reader has attached.
            AwayError: If the relay cannot be reached in time.
        """
        return Head(*taken_apart(_TWO, self._ask(ACK, ACKED, _ACK, 0, upto)))

    def ping(self, timeout: float | None = None) -> None:
        """See whether the relay is there, and attach again if the connection was lost.

        Args:
            timeout: Seconds for it; None: as for every request. Others wait for that long, too.

        Raises:
            AwayError: If it cannot be reached in time.
        """
        with self._lock:
            deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
            self._again(deadline, lambda: self._once(PING, PONG, None, ()))

    def drop(self) -> None:
        """Let the relay forget the subscription with all it holds, and close."""
        with contextlib.suppress(DataLossError):  # it is forgotten already
            self._ask(DROP, DROPPED, _U32)
        self.close()

    def close(self) -> None:
        """Detach, and close the connection. Idempotent; never raises.

        Another thread that waits for an answer is told that the reader was closed.
        """
        self._closed = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                # Not TLS's own, which would change what another thread reads with.
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
        with self._lock:
            self._disconnect()  # which is how a relay learns of it

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

    def _ask(
        self, kind: int, answer: int, form: struct.Struct | None, *arguments: int
    ) -> memoryview:
        """Ask for something, and wait for the answer; again, if the connection breaks."""
        with self._lock:
            return self._again(
                time.monotonic() + self._timeout, lambda: self._once(kind, answer, form, arguments)
            )

    @contextlib.contextmanager
    def _in_step(self) -> Generator[None]:
        """Disconnect if what happens in the block leaves it unknown what comes next.

        Control-C may come in the middle of an answer, too.
        """
        try:
            yield
        except WrongAnswerError:
            self._disconnect()
            raise
        except (RangeClientError, ValueError):
            raise  # an answer, and the whole of it; or nothing was sent
        except BaseException:
            self._disconnect()
            raise

    def _again(self, deadline: float, attempt: Callable[[], memoryview]) -> memoryview:
        self._deadline = deadline
        why: Exception | None = None
        for tried in count():
            if self._closed:
                raise RangeClientError("this reader was closed")
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
            raise RangeClientError("this reader was closed")
        host, port = self._address
        msg = f"the relay at {host}:{port} did not answer within {self._timeout:g} s: {why}"
        raise AwayError(msg) from why

    def _once(
        self, kind: int, answer: int, form: struct.Struct | None, arguments: tuple[int, ...]
    ) -> memoryview:
        self._connect()
        connection = self._connection
        assert connection is not None
        connection.sock.settimeout(self._remaining())
        number = self._send(kind, form, arguments)
        return self._wait(number, answer)

    def _remaining(self) -> float:
        return max(0.01, self._deadline - time.monotonic())

    def _send(self, kind: int, form: struct.Struct | None, arguments: tuple[int, ...]) -> int:
        connection = self._connection
        assert connection is not None
        number = next(self._numbers) & 0xFFFFFFFF
        try:
            payload = b"" if form is None else form.pack(self._handle, *arguments)
        except struct.error as exc:
            msg = f"numbers of messages, and of bytes, are positive and not that large: {arguments}"
            raise ValueError(msg) from exc
        connection.send(kind, number, payload)
        return number

    def _wait(self, number: int, wanted: int) -> memoryview:
        connection = self._connection
        assert connection is not None
        while number not in self._answers:
            kind, of, payload = connection.receive()
            if of == 0 and kind == ERROR:
                raise error_of(payload)  # of the whole connection
            if of in self._abandoned:
                self._abandoned.discard(of)
            else:
                self._answers[of] = kind, payload
        kind, payload = self._answers.pop(number)
        if kind == ERROR:
            raise error_of(payload)
        if kind != wanted:
            raise WrongAnswerError(f"an answer of kind {kind} to what wants {wanted}")
        return payload

    def _begin(self, *arguments: int) -> tuple[int, int] | None:
        """Ask for messages, to be waited for later; return what for, and on which connection."""
        with self._lock:
            if self._connection is None:
                return None
            with contextlib.suppress(OSError), self._in_step():
                return self._connections, self._send(FETCH, _FETCH, arguments)
            return None  # it will be asked for anew

    def _finish(self, begun: tuple[int, int], arguments: tuple[int, ...]) -> memoryview:
        connection, number = begun
        with self._lock:
            if connection == self._connections and self._connection is not None:
                self._connection.sock.settimeout(self._timeout)
                with contextlib.suppress(OSError), self._in_step():
                    return self._wait(number, RECORDS)
            return self._ask(FETCH, RECORDS, _FETCH, *arguments)

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
        grace, where, after_grace, durable = self._options
        name, generation, incarnation = self.ticket
        fixed = _ATTACH.pack(
            generation, incarnation, grace, where, after_grace, durable, self._join
        )
        number = next(self._numbers) & 0xFFFFFFFF
        self._connection.send(ATTACH, number, fixed + self._texts)
        try:
            payload = self._wait(number, ATTACHED)
            self._handle, _, generation, _, _, start, incarnation = _ATTACHED.unpack(payload)
        except struct.error as exc:
            raise WrongAnswerError(f"an answer that cannot be read: {exc}") from exc
        except RangeClientError:
            self._disconnect()  # it is not attached: it may be asked again
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
    sizes = struct.unpack_from(f"<{number}I", payload, _RECORDS.size)
    at = _RECORDS.size + 4 * (number + number % 2)
    for size in sizes:
        yield Block(payload[at : at + size])
        at += size
