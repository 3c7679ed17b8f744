"""Requests to the pages of a relay, each over its own connection: looks, and changes."""

import json
import ssl
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import attrs
import h11
import trio

from clearfunds.sockets import trouble, trouble_with_connecting

from ._errors import CommandFailedError, UsageError
from ._printable import printable

_SECONDS: Final = 10.0
# Seconds for one page.

_UNAUTHORIZED: Final = 401
_LOG_IN: Final = (
    "Give the right one: --token-file FILE, or --username and CLEARFUNDS_HTTP_PASSWORD."
)

_WHICH_PORT: Final = "is that the port of the relay's --http?"

_BYTES_MAX: Final = 64 << 20
# A ledger of ten thousand accounts has ten million.

DEFAULT_URL: Final = "http://127.0.0.1:9100"

URL_VARIABLE: Final = "CLEARFUNDS_URL"
"""The environment variable with the URL of the pages, for all commands that ask for them."""

_DEFAULT_PORT: Final = 9100
# As in the examples; the ports of Prometheus's exporters begin there.

_SENTENCE_MAX: Final = 500
# Bytes of the body that are read with a status other than 200.


def pages_url(text: str) -> str:
    """Return the beginning of the URLs of a relay's pages, as `http://127.0.0.1:9100`.

    Args:
        text: `http://HOST:PORT`, `https://HOST:PORT`, `HOST:PORT` or `HOST`. The path of a worker's
            pages may follow, `/NAME/` (`clearfunds relay --workers`).

    Raises:
        UsageError: It is none of these.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        path = parts.path.rstrip("/")
        plain = (not path or parts.path.endswith("/")) and not (
            parts.query or parts.fragment or parts.username
        )
        if parts.scheme in ("http", "https") and parts.hostname and plain:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            return f"{parts.scheme}://{host}:{parts.port or _DEFAULT_PORT}{path}"
    except ValueError:  # An invalid port, or a bracket that is not closed.
        pass
    msg = (
        f'"{text}" is no URL of a relay\'s pages: write http://HOST:PORT, https://HOST:PORT, '
        "HOST:PORT or HOST"
    )
    raise UsageError(msg)


class PageStatusError(CommandFailedError):
    """A page answers with a status other than 200."""

    def __init__(self, url: str, status: int, sentence: str) -> None:
        advice = f" {_LOG_IN}" if status == _UNAUTHORIZED else ""
        super().__init__(f"{url} answers {status}: {sentence}{advice}")
        self.status = status
        self.sentence = sentence


@attrs.frozen
class Visitor:
    """The login of a visitor, and the certificates that it trusts."""

    authorization: str | None = attrs.field(default=None, repr=False)
    """The value of the header field of that name."""
    context: ssl.SSLContext | None = None
    """The TLS context for https; None: the system's default."""


async def fetch_json(
    url: str,
    seconds: float = _SECONDS,
    visitor: Visitor = Visitor(),
    most: int = _BYTES_MAX,
) -> Any:
    """Return the content of the page at `url`, decoded from JSON.

    The arguments and errors are those of `fetch_text`.

    Raises:
        CommandFailedError: Also if the answer is no JSON.
    """
    return _decoded(url, await fetch_text(url, seconds, visitor, most))


async def send_json(url: str, method: str, content: object, visitor: Visitor = Visitor()) -> Any:
    """Send a change (POST or PATCH) as JSON; return the answer, decoded from JSON.

    The errors are those of `fetch_json`. Cancellation: it has been done, or not.
    """
    body = json.dumps(content).encode()
    return _decoded(url, await fetch_text(url, visitor=visitor, method=method, body=body))


def _decoded(url: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"{url}: the answer is not JSON; {_WHICH_PORT}"
        raise CommandFailedError(msg) from error


async def fetch_text(
    url: str,
    seconds: float = _SECONDS,
    visitor: Visitor = Visitor(),
    most: int = _BYTES_MAX,
    *,
    method: str = "GET",
    body: bytes | None = None,
) -> str:
    """Return the content of the page at `url` (http or https, with a port).

    Args:
        url: The page.
        seconds: Time limit for the whole answer.
        visitor: The login, and the trusted certificates.
        most: Maximum bytes of the answer.
        method: The method of the request.
        body: Its body, as JSON; None: it has none.

    Raises:
        PageStatusError: It answers with a status other than 200.
        CommandFailedError: Nobody listens there, or the answer breaks off, or takes longer than
            `seconds`, or is longer than `most`.
    """
    try:
        with trio.fail_after(seconds):
            status, answer = await _fetch(url, visitor, most, method, body)
    except trio.TooSlowError as error:
        msg = f"{url}: no answer within {seconds:g} s"
        raise CommandFailedError(msg) from error
    except h11.RemoteProtocolError as error:
        msg = f"{url}: the answer breaks off, or is not HTTP; {_WHICH_PORT}"
        raise CommandFailedError(msg) from error
    except trio.BrokenResourceError as error:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLError):
            msg = f"cannot read {url} by TLS: {trouble(cause)}"
        else:
            msg = f"{url}: the connection breaks off; {_WHICH_PORT}"
        raise CommandFailedError(msg) from error
    text = answer.decode("utf-8", "replace")
    if status != 200:
        raise PageStatusError(url, status, printable(text[:_SENTENCE_MAX].strip()))
    return text


async def _fetch(
    url: str, visitor: Visitor, most: int, method: str, sent: bytes | None
) -> tuple[int, bytearray]:
    parts = urlsplit(url)
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", parts.netloc), ("Connection", "close")]
    if visitor.authorization is not None:
        headers.append(("Authorization", visitor.authorization))
    if sent is not None:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(sent)))]
    request = h11.Request(
        method=method,
        target=f"{parts.path}?{parts.query}" if parts.query else parts.path,
        headers=headers,
    )
    status = 0
    body = bytearray()
    async with await _connect(url, visitor) as stream:
        await stream.send_all(connection.send(request) or b"")
        if sent is not None:
            await stream.send_all(connection.send(h11.Data(data=sent)) or b"")
        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some()))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > most:
                    msg = f"{url}: the answer has more than {most >> 20} MiB"
                    raise CommandFailedError(msg)
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif isinstance(event, h11.ConnectionClosed):
                msg = f"{url}: the answer ends in the middle"
                raise CommandFailedError(msg)


async def _connect(url: str, visitor: Visitor) -> trio.abc.Stream:
    """Connect to a relay's pages.

    Raises:
        CommandFailedError: Nobody listens there.
    """
    parts = urlsplit(url)
    try:
        return await _open(parts, visitor)
    except UnicodeError as error:
        raise CommandFailedError(f"{parts.hostname} is no name of a host: check it") from error
    except OSError as error:
        msg = (
            f"cannot reach {parts.scheme}://{parts.netloc}: {trouble_with_connecting(error)} "
            "(a relay serves its pages with --http HOST:PORT)"
        )
        raise CommandFailedError(msg) from error


async def _open(parts: SplitResult, visitor: Visitor) -> trio.abc.Stream:
    assert parts.hostname is not None
    assert parts.port is not None
    if parts.scheme == "http":
        return await trio.open_tcp_stream(parts.hostname, parts.port)
    context = ssl.create_default_context() if visitor.context is None else visitor.context
    return await trio.open_ssl_over_tcp_stream(
        parts.hostname, parts.port, ssl_context=context, https_compatible=True
    )
