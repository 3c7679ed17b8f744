"""Configurations of streams and consumers, and what the server says of them.

Durations are seconds here, and nanoseconds in the server's JSON. Fields and their meaning:
docs.nats.io (JetStream, model deep dive) and nats-server `stream.go`, `consumer.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, TypeVar

import attrs

from ..._errors import RemoteProtocolError

T = TypeVar("T")

NANOSECONDS: Final = 1_000_000_000


def decoded(make: Callable[[Mapping[str, Any]], T], found: Mapping[str, Any]) -> T:
    """Return what `make` makes of the server's JSON.

    Raises:
        RemoteProtocolError: A part is missing, or of another type.
    """
    try:
        return make(found)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"JetStream's answer lacks a part: {error!r}") from error


def _named(name: str, default: Any = None) -> Any:
    return attrs.field(default=default, metadata={"name": name})


def _seconds(name: str) -> Any:
    return attrs.field(default=None, metadata={"name": name, "seconds": True})


def _in_nanoseconds(seconds: float | Sequence[float]) -> int | list[int]:
    if isinstance(seconds, Sequence):
        return [round(each * NANOSECONDS) for each in seconds]
    return round(seconds * NANOSECONDS)


def _in_seconds(nanoseconds: int | list[int]) -> float | tuple[float, ...]:
    if isinstance(nanoseconds, list):
        return tuple(each / NANOSECONDS for each in nanoseconds)
    return nanoseconds / NANOSECONDS


@attrs.frozen(kw_only=True)
class _Config:
    """A configuration; None leaves a field to the server."""

    more: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Further fields, as in the server's JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as the server's JSON has it."""
        found: dict[str, Any] = {}
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if value is None or field.name == "more":
                continue
            if field.metadata.get("seconds"):
                value = _in_nanoseconds(value)
            found[field.metadata.get("name", field.name)] = value
        return found | dict(self.more)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the configuration that the server's JSON has."""
        rest = dict(found)
        known: dict[str, Any] = {}
        for field in attrs.fields(cls):
            value = rest.pop(field.metadata.get("name", field.name), None)
            if value is None or field.name == "more":
                continue
            if field.metadata.get("seconds"):
                value = _in_seconds(value)
            elif value.__class__ is list:
                value = tuple(value)
            known[field.name] = value
        return cls(**known, more=rest)


@attrs.frozen(kw_only=True)
class StreamConfig(_Config):
    """A stream.

    Attributes:
        name: Its name: no dots, blanks and wildcards.
        subjects: The subjects that it keeps.
        storage: Where.
        replicas: On how many servers: 1, 3 or 5.
        retention: When messages go: by the limits; when no consumer wants them (`interest`); when
            one has acknowledged them (`workqueue`).
        max_messages, max_bytes, max_messages_per_subject: Limits; -1: none.
        max_age: Seconds that a message is kept; 0: for ever.
        max_message_size: Bytes of one message; -1: as many as the server takes.
        discard: What a full stream does: discard the oldest message, or refuse the new one.
        discard_new_per_subject: Whether `new` goes for the limit of each subject, too.
        duplicate_window: Seconds for which the identifiers of messages are kept to find duplicates.
        allow_direct: Whether any replica may answer `JetStream.get_message`, not only the leader.
        allow_rollup: Whether a message may replace all earlier ones of its subject.
        deny_delete, deny_purge: Whether messages cannot be deleted, or purged.
        allow_message_ttl: Whether messages may have a time to live of their own (NATS 2.11).
        delete_marker_ttl: Seconds for which a marker stands where the last message of a subject has
            expired (NATS 2.11).
        description: Text for readers.
        metadata: Texts for programs.
    """

    name: str
    subjects: tuple[str, ...] | None = None
    storage: Literal["file", "memory"] = "file"
    replicas: int = _named("num_replicas", 1)
    retention: Literal["limits", "interest", "workqueue"] = "limits"
    max_messages: int | None = _named("max_msgs")
    max_bytes: int | None = None
    max_messages_per_subject: int | None = _named("max_msgs_per_subject")
    max_age: float | None = _seconds("max_age")
    max_message_size: int | None = _named("max_msg_size")
    discard: Literal["old", "new"] | None = None
    discard_new_per_subject: bool | None = None
    duplicate_window: float | None = _seconds("duplicate_window")
    allow_direct: bool | None = None
    allow_rollup: bool | None = _named("allow_rollup_hdrs")
    deny_delete: bool | None = None
    deny_purge: bool | None = None
    allow_message_ttl: bool | None = _named("allow_msg_ttl")
    delete_marker_ttl: float | None = _seconds("subject_delete_marker_ttl")
    description: str | None = None
    metadata: Mapping[str, str] | None = None


@attrs.frozen(kw_only=True)
class ConsumerConfig(_Config):
    """A consumer that is asked for messages (a pull consumer).

    Attributes:
        name: Its name; None: one that nobody else has; the consumer ends when it is not used.
        durable: Its name, if it is to last until it is deleted.
        filters: Subjects, of those that the stream keeps; None: all.
        deliver: Where it begins; `by_start_sequence` needs `start_sequence`, `by_start_time`
            `start_time`.
        start_sequence: A sequence of the stream.
        start_time: A time as in RFC 3339.
        ack: Whether each message has to be acknowledged; `all`: each acknowledges those before it.
        ack_wait: Seconds after which an unacknowledged message is sent again.
        max_deliver: How often; -1: for ever.
        backoff: Seconds between those times, in place of `ack_wait`.
        max_ack_pending: Unacknowledged messages at which no more are sent: the in-flight window.
        max_waiting: Requests that may wait.
        inactive_threshold: Seconds without requests after which it ends.
        replicas: On how many servers; 0: as its stream.
        memory: Whether its state is kept in memory only.
        headers_only: Whether payloads are left out.
        description: Text for readers.
        metadata: Texts for programs.
    """

    name: str | None = None
    durable: str | None = _named("durable_name")
    filters: tuple[str, ...] | None = _named("filter_subjects")
    deliver: Literal[
        "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
    ] = _named("deliver_policy", "all")
    start_sequence: int | None = _named("opt_start_seq")
    start_time: str | None = _named("opt_start_time")
    ack: Literal["explicit", "all", "none"] = _named("ack_policy", "explicit")
    ack_wait: float | None = _seconds("ack_wait")
    max_deliver: int | None = None
    backoff: tuple[float, ...] | None = _seconds("backoff")
    max_ack_pending: int | None = None
    max_waiting: int | None = None
    inactive_threshold: float | None = _seconds("inactive_threshold")
    replicas: int | None = _named("num_replicas")
    memory: bool | None = _named("mem_storage")
    headers_only: bool | None = None
    description: str | None = None
    metadata: Mapping[str, str] | None = None


@attrs.frozen
class StreamInfo:
    """What the server says of a stream.

    Attributes:
        config: Its configuration, with the server's defaults.
        messages, bytes: What it has.
        first_sequence, last_sequence: Of its messages; the last one that it has given.
        consumers: The number of its consumers.
        leader: The server that leads it; None without a cluster, or while none does.
        raw: All that the server said.
    """

    config: StreamConfig
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    consumers: int
    leader: str | None
    raw: Mapping[str, Any] = attrs.field(repr=False)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamInfo:
        """Return what the server's JSON says."""
        state = found["state"]
        cluster: Mapping[str, Any] = found.get("cluster") or {}
        return cls(
            StreamConfig.from_json(found["config"]),
            state["messages"],
            state["bytes"],
            state["first_seq"],
            state["last_seq"],
            state["consumer_count"],
            cluster.get("leader"),
            found,
        )


@attrs.frozen
class ConsumerInfo:
    """What the server says of a consumer.

    Attributes:
        stream, name: Its stream, and its name.
        config: Its configuration, with the server's defaults.
        pending: Messages of the stream that it has not sent yet.
        ack_pending: Messages sent and not acknowledged.
        redelivered: Those of them that were sent more than once.
        waiting: Requests for messages that wait.
        delivered: The last sequence of the stream that it has sent.
        sent: How often it has sent a message.
        acknowledged: The sequence up to which all are acknowledged.
        raw: All that the server said.
    """

    stream: str
    name: str
    config: ConsumerConfig
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    delivered: int
    sent: int
    acknowledged: int
    raw: Mapping[str, Any] = attrs.field(repr=False)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ConsumerInfo:
        """Return what the server's JSON says."""
        return cls(
            found["stream_name"],
            found["name"],
            ConsumerConfig.from_json(found["config"]),
            found["num_pending"],
            found["num_ack_pending"],
            found["num_redelivered"],
            found["num_waiting"],
            found["delivered"]["stream_seq"],
            found["delivered"]["consumer_seq"],
            found["ack_floor"]["stream_seq"],
            found,
        )
