"""Fetching one of the relay's pages: a GET over a connection of its own."""

import json
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import trio

from .._errors import CommandFailedError

_SECONDS: Final = 10.0
# For one page of a relay on the same machine.


async def fetch_json(url: str) -> Any:
    """Return what the page at `url` (http, this machine) says, decoded from JSON.

    Raises:
        CommandFailedError: it answers something else than 200, or breaks off.
        OSError: nobody is there.
    """
    try:
        with trio.fail_after(_SECONDS):
            return await _fetch(url)
    except trio.TooSlowError as error:
        msg = f"{url} takes longer than {_SECONDS:g} s"
        raise CommandFailedError(msg) from error
    except (h11.RemoteProtocolError, trio.BrokenResourceError) as error:
        msg = f"{url} breaks off: {error}"
        raise CommandFailedError(msg) from error


async def _fetch(url: str) -> Any:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    connection = h11.Connection(h11.CLIENT)
    request = h11.Request(
        method="GET",
        target=parts.path,
        headers=[("Host", parts.netloc), ("Connection", "close")],
    )
    body = bytearray()
    async with await trio.open_tcp_stream(parts.hostname, parts.port) as stream:
        await stream.send_all(connection.send(request) or b"")
        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response) and event.status_code != 200:
                msg = f"{url} answers {event.status_code}"
                raise CommandFailedError(msg)
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return json.loads(body)
            elif isinstance(event, h11.ConnectionClosed):
                msg = f"{url} ends in the middle"
                raise CommandFailedError(msg)
