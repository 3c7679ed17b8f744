"""Fetching one of the relay's pages: a GET over a connection of its own."""

import json
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import trio

from ._errors import CommandFailedError
from ._printable import printable

_SECONDS: Final = 10.0
# For one page.

_BYTES_MAX: Final = 64 << 20
# A ledger of ten thousand accounts has ten million.

_SENTENCE_MAX: Final = 500
# Of what is said beside a status that is not 200.


class PageStatusError(CommandFailedError):
    """A page answers something else than 200."""

    def __init__(self, url: str, status: int, sentence: str) -> None:
        super().__init__(f"{url} answers {status}: {sentence}")
        self.status = status
        self.sentence = sentence


async def fetch_json(url: str, seconds: float = _SECONDS) -> Any:
    """Return what the page at `url` (http, with a port) says, decoded from JSON.

    Raises:
        PageStatusError: it answers something else than 200.
        CommandFailedError: it answers no JSON, or breaks off, or takes longer than `seconds`.
        OSError: nobody is there.
    """
    try:
        with trio.fail_after(seconds):
            status, body = await _fetch(url)
    except trio.TooSlowError as error:
        msg = f"{url} takes longer than {seconds:g} s"
        raise CommandFailedError(msg) from error
    except (h11.RemoteProtocolError, trio.BrokenResourceError) as error:
        msg = f"{url} breaks off: {error or 'the connection is gone'}"
        raise CommandFailedError(msg) from error
    text = body.decode("utf-8", "replace")
    if status != 200:
        raise PageStatusError(url, status, printable(text[:_SENTENCE_MAX].strip()))
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"{url} answers with something that is not JSON"
        raise CommandFailedError(msg) from error


async def _fetch(url: str) -> tuple[int, bytearray]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    connection = h11.Connection(h11.CLIENT)
    request = h11.Request(
        method="GET",
        target=f"{parts.path}?{parts.query}" if parts.query else parts.path,
        headers=[("Host", parts.netloc), ("Connection", "close")],
    )
    status = 0
    body = bytearray()
    async with await trio.open_tcp_stream(parts.hostname, parts.port) as stream:
        await stream.send_all(connection.send(request) or b"")
        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _BYTES_MAX:
                    msg = f"{url} has more than {_BYTES_MAX >> 20} MiB"
                    raise CommandFailedError(msg)
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif isinstance(event, h11.ConnectionClosed):
                msg = f"{url} ends in the middle"
                raise CommandFailedError(msg)
