"""`clearfunds pub`: publish one message, a file, or lines as they come."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Final, Literal

import trio
from cyclopts import Group, Parameter

from clearfunds.sockets import trouble_with_file

from ._client import ClientOptions, connected, run_client
from ._errors import UsageError
from ._mqtt5_options import MessageProperties, given
from ._types import Count

_MESSAGE: Final = Group("Message", sort_key=1)
_READ_BYTES: Final = 65536


def pub(
    *,
    topic: Annotated[str, Parameter(name=["--topic", "-t"], group=_MESSAGE, help="Topic.")],
    message: Annotated[
        str | None,
        Parameter(name=["--message", "-m"], group=_MESSAGE, help="Payload, as UTF-8."),
    ] = None,
    file: Annotated[
        Path | None,
        Parameter(name=["--file", "-f"], group=_MESSAGE, help="File with the payload."),
    ] = None,
    count: Annotated[
        Count | None,
        Parameter(group=_MESSAGE, help="Number of times to publish the message [default: 1]."),
    ] = None,
    qos: Annotated[
        Literal[0, 1, 2],
        Parameter(
            name=["--qos", "-q"],
            group=_MESSAGE,
            help="QoS: 0 at most once, 1 at least once, 2 exactly once.",
        ),
    ] = 0,
    retain: Annotated[
        bool,
        Parameter(
            name=["--retain", "-r"],
            group=_MESSAGE,
            negative=(),
            help="Retain the message for later subscribers.",
        ),
    ] = False,
    said: MessageProperties = MessageProperties(),  # noqa: B008  (frozen)
    connection: ClientOptions = ClientOptions(),  # noqa: B008  (frozen)
) -> int:
    """Publish MQTT messages.

    Without --message and --file, each line of stdin is a message. Publishes as fast as the relay
    accepts messages, and ends when all are sent (QoS 0) or acknowledged (QoS 1 and 2). With MQTT 5
    a message that the relay refuses is an error, with the relay's reason.
    """
    if message is not None and file is not None:
        msg = "--message and --file exclude each other"
        raise UsageError(msg)
    if message is None and file is None:
        if count is not None:
            msg = "--count needs --message or --file: each line of stdin is published once"
            raise UsageError(msg)
        payloads = _lines_of_stdin()
    else:
        payload = _read(file) if file is not None else (message or "").encode()
        payloads = _times(payload, count or 1)
    run_client(_publish, connection, said, topic, payloads, qos, retain)
    return 0


async def _publish(
    connection: ClientOptions,
    said: MessageProperties,
    topic: str,
    payloads: AsyncGenerator[bytes],
    qos: int,
    retain: bool,
) -> None:
    properties = said.properties()
    async with connected(connection, needs_5=given(said)) as client, aclosing(payloads):
        async for payload in payloads:
            await client.publish(topic, payload, qos, retain, properties=properties, wait=False)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error


async def _times(payload: bytes, count: int) -> AsyncGenerator[bytes]:
    for _ in range(count):
        yield payload


async def _lines_of_stdin() -> AsyncGenerator[bytes]:
    """Yield lines as they come, without their ends; the last one may have none."""
    # Not sys.stdin's buffer: a thread that waits inside it, abandoned when the connection is
    # lost, would hold its lock at the interpreter's end.
    descriptor = sys.stdin.fileno()
    text = b""
    while piece := await trio.to_thread.run_sync(
        os.read, descriptor, _READ_BYTES, abandon_on_cancel=True
    ):
        *lines, text = (text + piece).split(b"\n")
        for line in lines:
            yield line
    if text:
        yield text
