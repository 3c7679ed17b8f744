"""Keys with values, on a stream that keeps the last message of each subject [NATS ADR-8]."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Literal, Self

import attrs
import trio

from ..._errors import LocalProtocolError
from ..codec._headers import Headers, HeadersToSend
from ._config import ConsumerConfig, StreamConfig
from ._errors import WrongSequenceError
from ._jetstream import JetStream
from ._message import Delivered
from ._ordered import OrderedMessages

Operation = Literal["put", "delete", "purge"]

_KEY: Final = re.compile(r"[-/_=A-Za-z0-9]+(\.[-/_=A-Za-z0-9]+)*")
_PATTERN: Final = re.compile(r"([-/_=A-Za-z0-9]+|\*)(\.([-/_=A-Za-z0-9]+|\*))*(\.>)?|>")
_BUCKET: Final = re.compile(r"[-_A-Za-z0-9]+")
"""Names that every client accepts [ADR-8]."""

MAX_HISTORY: Final = 64
"""Values of a key that every client accepts [ADR-8]."""

_OPERATION: Final = "KV-Operation"
_OPERATIONS: Final[dict[str, Operation]] = {"DEL": "delete", "PURGE": "purge"}
_MARKER: Final = "Nats-Marker-Reason"
"""The header of the marker that a server puts where a value has expired [ADR-43]."""


@attrs.frozen
class Entry:
    """A value of a key, or that it is gone.

    Attributes:
        key: The key.
        value: The value; empty if it is gone.
        revision: The sequence of this change in its bucket; it only grows.
        operation: `put`; `delete` and `purge` if it is gone, `purge` also if it has expired.
        time: When it changed, in seconds since the epoch.
    """

    key: str
    value: bytes
    revision: int
    operation: Operation
    time: float

    @property
    def is_there(self) -> bool:
        """Whether the key has a value."""
        return self.operation == "put"


class KeyValue:
    """A bucket of keys with values; `open_bucket` makes one.

    Args:
        js: JetStream.
        bucket: The bucket's name.
    """

    def __init__(self, js: JetStream, bucket: str) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise LocalProtocolError(
                f"{bucket!r} is no name of a bucket: letters, digits, - and _ make one"
            )
        self.bucket = bucket
        self._js = js
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    def __repr__(self) -> str:
        return f"<KeyValue {self.bucket}>"

    async def get(self, key: str, *, direct: bool = True) -> Entry | None:
        """Return the value of a key, or None.

        Args:
            key: The key.
            direct: As for `JetStream.get_message`: any replica answers, and may be behind.

        Raises:
            LocalProtocolError: It cannot be a key.
            TransportError: As `JetStream.get_message`.
        """
        found = await self._last(key, direct=direct)
        return found if found is not None and found.is_there else None

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Set a value, and return its revision.

        Args:
            key: The key.
            value: The value.
            ttl: Seconds, at least 1, after which it expires.

        Raises:
            LocalProtocolError: It cannot be a key.
            TransportError: As `JetStream.publish`.
        """
        ack = await self._js.publish(self._subject(key), value, ttl=ttl)
        return ack.sequence

    async def create(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Set the value of a key that has none, and return its revision.

        Raises:
            WrongSequenceError: It has one.
            LocalProtocolError, TransportError: As `put`.
        """
        try:
            return await self.update(key, value, 0, ttl=ttl)
        except WrongSequenceError:
            last = await self._last(key, direct=False)
            if last is not None and last.is_there:
                raise
            return await self.update(key, value, last.revision if last is not None else 0, ttl=ttl)

    async def update(
        self, key: str, value: bytes, revision: int, *, ttl: float | None = None
    ) -> int:
        """Set a value if the key still has this revision (0: none), and return the new one.

        Raises:
            WrongSequenceError: It has another one.
            LocalProtocolError, TransportError: As `put`.
        """
        ack = await self._js.publish(
            self._subject(key), value, expect_last_for_subject=revision, ttl=ttl
        )
        return ack.sequence

    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        purge: bool = False,
        ttl: float | None = None,
    ) -> int:
        """Remove a key's value, and return the revision of that.

        Args:
            key: The key.
            revision: Only if it still has this revision.
            purge: Whether to remove its history, too.
            ttl: Seconds, at least 1, after which nothing tells any more that there was a value.

        Raises:
            WrongSequenceError: It has another revision.
            LocalProtocolError, TransportError: As `put`.
        """
        headers: HeadersToSend = (
            {_OPERATION: "PURGE", "Nats-Rollup": "sub"} if purge else {_OPERATION: "DEL"}
        )
        ack = await self._js.publish(
            self._subject(key), headers=headers, expect_last_for_subject=revision, ttl=ttl
        )
        return ack.sequence

    async def keys(self, pattern: str = ">") -> list[str]:
        """Return the keys that have a value, in the order of their last changes.

        Raises:
            LocalProtocolError: It is no pattern.
            TransportError: As `JetStream.create_consumer`.
        """
        return [entry.key for entry in await self._present(pattern, headers_only=True)]

    async def entries(self, pattern: str = ">") -> list[Entry]:
        """Return the values that keys have, in the order of their last changes.

        Raises:
            LocalProtocolError, TransportError: As `keys`.
        """
        return await self._present(pattern, headers_only=False)

    async def _present(self, pattern: str, *, headers_only: bool) -> list[Entry]:
        found: list[Entry] = []
        async with self._watch(pattern, "last_per_subject", 1.0, headers_only) as changes:
            async for entry in changes:
                if entry is None:
                    break
                if entry.is_there:
                    found.append(entry)
        return found

    @contextlib.asynccontextmanager
    async def watch(
        self, pattern: str = ">", *, only_new: bool = False, heartbeat: float = 1.0
    ) -> AsyncGenerator[Watch, None]:
        """Iterate over the last values of keys, and then over all changes.

        The iterator yields None once, when the values that there were at the beginning have come.
        After the loss of a server it yields what it had missed, and no change twice.

        Args:
            pattern: Which keys; `*` stands for one token, `>` at the end for all that follow.
            only_new: Whether to leave out the values that there are.
            heartbeat: Seconds in which a lost server is noticed, twice as many at most.

        Raises:
            LocalProtocolError: It is no pattern.
            TransportError: As `JetStream.create_consumer`; `NotFoundError` without such a bucket.
        """
        deliver: Literal["new", "last_per_subject"] = "new" if only_new else "last_per_subject"
        async with self._watch(pattern, deliver, heartbeat, headers_only=False) as changes:
            yield changes

    @contextlib.asynccontextmanager
    async def _watch(
        self,
        pattern: str,
        deliver: Literal["new", "last_per_subject"],
        heartbeat: float,
        headers_only: bool,
    ) -> AsyncGenerator[Watch, None]:
        if not _PATTERN.fullmatch(pattern):
            raise LocalProtocolError(f"{pattern!r} is no pattern of keys")
        config = ConsumerConfig(
            filters=(self._prefix + pattern,),
            deliver=deliver,
            headers_only=headers_only or None,
        )
        messages = OrderedMessages(self._js, self._stream, config, heartbeat=heartbeat)
        async with messages:
            yield Watch(messages, self._prefix)

    async def _last(self, key: str, *, direct: bool) -> Entry | None:
        found = await self._js.get_message(self._stream, last_for=self._subject(key), direct=direct)
        if found is None:
            return None
        operation = operation_of(found.headers)
        return Entry(key, found.payload, found.sequence, operation, found.time)

    def _subject(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise LocalProtocolError(
                f"{key!r} is no key: letters, digits, - / _ = make one, and dots between them"
            )
        return self._prefix + key


class Watch(AsyncIterator["Entry | None"]):
    """The changes of a bucket; `KeyValue.watch` makes one."""

    def __init__(self, messages: OrderedMessages, prefix: str) -> None:
        self._messages = messages
        self._prefix = prefix
        self._is_complete = False
        self._left = messages.pending

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry | None:
        """Return the next change.

        Cancellation: no change is lost.

        Raises:
            NotFoundError: The bucket has been deleted.
        """
        messages = self._messages
        try:
            while not self._is_complete:
                if not self._left:
                    self._is_complete = True
                    await trio.lowlevel.checkpoint()
                    return None
                message = await messages.next()
                if message is None:
                    # It has begun anew. Values may have expired meanwhile.
                    self._left = min(self._left, messages.pending)
                    continue
                # Those that were replaced meanwhile come later, as changes.
                self._left = min(self._left - 1, message.pending)
                return self._entry(message)
            return self._entry(await messages.receive())
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def _entry(self, message: Delivered) -> Entry:
        return Entry(
            message.subject[len(self._prefix) :],
            message.payload,
            message.sequence,
            operation_of(message.headers),
            message.time,
        )


def operation_of(headers: Headers) -> Operation:
    """Return what a message of a bucket does to its key."""
    reason = headers.get(_MARKER)
    if reason is not None:
        return "delete" if reason == "Remove" else "purge"
    return _OPERATIONS.get(headers.get(_OPERATION) or "", "put")


async def open_bucket(
    js: JetStream,
    bucket: str,
    *,
    history: int = 1,
    ttl: float | None = None,
    marker_ttl: float | None = None,
    max_bytes: int | None = None,
    max_value_size: int | None = None,
    storage: Literal["file", "memory"] = "file",
    replicas: int = 1,
) -> KeyValue:
    """Return a bucket, which is created if there is none.

    Args:
        js: JetStream.
        bucket: Its name.
        history: Values to keep of each key, 64 at most.
        ttl: Seconds after which any value expires; None: never.
        marker_ttl: Seconds, at least 1, for which a marker tells watchers that a value has expired;
            None: values have no times to live of their own (`KeyValue.put` with `ttl`).
        max_bytes: Bytes of the whole bucket; None: no limit.
        max_value_size: Bytes of a value; None: as many as the server takes.
        storage: Where it lies.
        replicas: On how many servers: 1, 3 or 5.

    Raises:
        JetStreamError: It exists with another configuration, or the server cannot.
        LocalProtocolError: It cannot be a name.
        TransportError: As `JetStream.call`.
    """
    found = KeyValue(js, bucket)
    if not 1 <= history <= MAX_HISTORY:
        raise LocalProtocolError(f"a bucket keeps 1 to {MAX_HISTORY} values, not {history}")
    config = StreamConfig(
        name=f"KV_{bucket}",
        subjects=(f"$KV.{bucket}.>",),
        storage=storage,
        replicas=replicas,
        max_messages_per_subject=history,
        max_bytes=-1 if max_bytes is None else max_bytes,
        max_message_size=-1 if max_value_size is None else max_value_size,
        max_age=ttl,
        discard="new",
        duplicate_window=None if ttl is None else min(ttl, 120.0),
        allow_direct=True,
        allow_rollup=True,
        deny_delete=True,
        allow_message_ttl=None if marker_ttl is None else True,
        delete_marker_ttl=marker_ttl,
    )
    await js.create_stream(config)
    return found
