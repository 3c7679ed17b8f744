"""`clearfunds sub`: subscribe and write messages to stdout."""

import base64
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import trio
from cyclopts import Group, Parameter

from clearfunds.transports.mqtt import NO_PROPERTIES, MqttClient, Properties, Publish

from ._client import ClientOptions, connected, run_client
from ._errors import CommandFailedError, UsageError
from ._logging import LogLevel, configure_logging
from ._mqtt5_options import SubscriptionOptions, given
from ._printable import printable, printable_lines
from ._types import Count

log = logging.getLogger("clearfunds.sub")

_SUBSCRIPTION: Final = Group("Subscription", sort_key=1)
_OUTPUT: Final = Group("Output", sort_key=2)

_BATCH: Final = 256
# Messages in one write, if that many are there: one write each would be most of the work.


def sub(
    *topics: Annotated[
        str, Parameter(group=_SUBSCRIPTION, help="Topic filters, with + and # as wildcards.")
    ],
    topic: Annotated[
        tuple[str, ...],
        Parameter(
            name=["--topic", "-t"],
            group=_SUBSCRIPTION,
            negative=(),
            show_default=False,
            help="Topic filter, as an option. Repeatable.",
        ),
    ] = (),
    qos: Annotated[
        Literal[0, 1, 2],
        Parameter(name=["--qos", "-q"], group=_SUBSCRIPTION, help="Maximum QoS."),
    ] = 0,
    persistent: Annotated[
        bool,
        Parameter(
            group=_SUBSCRIPTION,
            negative=(),
            help="Persistent session: while this client is away, the relay keeps its subscriptions "
            "and queues QoS 1 and 2 messages until it reconnects with --persistent. Needs "
            "--client-id.",
        ),
    ] = False,
    count: Annotated[
        Count | None, Parameter(group=_OUTPUT, help="Exit after this many messages.")
    ] = None,
    format: Annotated[  # noqa: A002  (an option's name)
        Literal["text", "json", "raw"],
        Parameter(
            group=_OUTPUT,
            help="Output format. text: a line per message, in a terminal with control characters "
            "escaped; json: an object per line, with topic, QoS, time and MQTT 5 properties; "
            "raw: the payload's bytes, nothing added.",
        ),
    ] = "text",
    show_topic: Annotated[
        bool,
        Parameter(group=_OUTPUT, negative=(), help="Begin each line of text with the topic."),
    ] = False,
    log_level: Annotated[
        LogLevel, Parameter(group=_OUTPUT, help="Minimum log level; logs go to stderr.")
    ] = "warning",
    options: SubscriptionOptions = SubscriptionOptions(),  # noqa: B008  (frozen)
    connection: ClientOptions = ClientOptions(),  # noqa: B008  (frozen)
) -> int:
    """Subscribe over MQTT and write messages to stdout.

    Ends after --count messages, at SIGINT or SIGTERM. While nobody reads its stdout, it reads no
    messages, and the relay waits for it (backpressure). Messages with QoS 1 and 2 are acknowledged
    once they are written.
    """
    filters = topics or topic
    if not filters:
        msg = "no topic: give at least one, as in clearfunds sub 'flights/#'"
        raise UsageError(msg)
    if show_topic and format != "text":
        msg = f"--show-topic needs --format text, not {format}"
        raise UsageError(msg)
    if persistent and not connection.client_id:
        msg = "--persistent needs --client-id: the relay recognises the client by it"
        raise UsageError(msg)
    if options.session_expiry is not None and not persistent:
        msg = "--session-expiry needs --persistent: other sessions are not kept"
        raise UsageError(msg)
    configure_logging(log_level)
    write = _FORMATS["topic" if show_topic else format]
    if format == "text" and sys.stdout.isatty():
        write = _shown_with_topic if show_topic else _shown
    came = run_client(_subscribe, connection, options, filters, qos, persistent, count, write)
    if count is not None and came < count:
        msg = f"ended by a signal after {came} of {count} messages"
        raise CommandFailedError(msg)
    return 0


async def _subscribe(
    connection: ClientOptions,
    options: SubscriptionOptions,
    filters: tuple[str, ...],
    qos: int,
    persistent: bool,
    count: int | None,
    write: Callable[[Publish], bytes],
) -> int:
    came = 0
    async with (
        connected(
            connection,
            needs_5=given(options),
            clean_session=not persistent,
            manual_ack=True,
            receive_maximum=options.receive_maximum,
            session_expiry=options.session_expiry,
        ) as client,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(_until_signal, nursery.cancel_scope)
        granted = await client.subscribe(
            filters,
            qos,
            no_local=options.no_local,
            retain_as_published=options.retain_as_published,
            retained=options.retained,
        )
        for name, level in zip(filters, granted, strict=True):
            log.info("subscribed to %s with QoS %d", name, level)
        if persistent:
            log.info("the session %s", "was kept" if client.session_present else "is a new one")
        while count is None or came < count:
            batch = await _take(client, _BATCH if count is None else min(_BATCH, count - came))
            text = b"".join([write(message) for message in batch])
            # In a thread: while stdout is blocked, pings must still be sent.
            await trio.to_thread.run_sync(_write_all, text, abandon_on_cancel=True)
            for message in batch:
                client.ack(message)
            came += len(batch)
        nursery.cancel_scope.cancel()
    return came


async def _until_signal(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            # Leaving the connection's block sends DISCONNECT; a second signal finds the default.
            scope.cancel()
            return


async def _take(client: MqttClient, most: int) -> list[Publish]:
    """Wait for a message, and return it with those that are there already."""
    batch = [await client.receive()]
    while len(batch) < most:
        try:
            batch.append(client.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            break
    return batch


def _write_all(text: bytes) -> None:
    # Not sys.stdout's buffer, for the reason that `pub` does not read stdin's.
    descriptor = sys.stdout.fileno()
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _text(message: Publish) -> bytes:
    # Bytes that are not UTF-8 are escaped: a terminal is no place for arbitrary bytes.
    return message.payload.decode(errors="backslashreplace").encode() + b"\n"


def _shown(message: Publish) -> bytes:
    # A publisher must not control the terminal of its readers.
    text = message.payload.decode(errors="backslashreplace")
    return printable_lines(text).encode(errors="backslashreplace") + b"\n"


def _shown_with_topic(message: Publish) -> bytes:
    # The beginning of a line is a topic, and nothing of a payload.
    text = f"{message.topic} {message.payload.decode(errors='backslashreplace')}"
    return printable(text).encode(errors="backslashreplace") + b"\n"


def _json(message: Publish) -> bytes:
    line: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
    }
    line |= _bytes_of("payload", message.payload)
    if message.properties is not NO_PROPERTIES:
        line |= _properties(message.properties)
    return json.dumps(line).encode() + b"\n"


def _bytes_of(name: str, value: bytes) -> dict[str, object]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _properties(said: Properties) -> dict[str, object]:
    """Return the MQTT 5 properties of a message that are set."""
    line: dict[str, object] = {
        name: value
        for name in ("content_type", "response_topic", "message_expiry")
        if (value := getattr(said, name)) is not None
    }
    if said.correlation_data is not None:
        line |= _bytes_of("correlation_data", said.correlation_data)
    if said.user:
        line["user_properties"] = said.user
    return line


_FORMATS: Final[dict[str, Callable[[Publish], bytes]]] = {
    "text": _text,
    "topic": lambda message: message.topic.encode() + b" " + _text(message),
    "json": _json,
    "raw": lambda message: message.payload,
}
