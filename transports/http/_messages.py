"""What a page's handler is given and what it gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from urllib.parse import parse_qs, unquote, urlsplit

import attrs
import trio

TEXT = "text/plain; charset=utf-8"

QUERY_FIELDS_MAX = 32
"""Fields looked at in one query string; our own pages know fewer than ten."""


@attrs.frozen
class Request:
    """A GET or HEAD request whose head has been read and checked."""

    method: str
    """`GET` or `HEAD`. A handler may treat both alike: the body is left out for it."""
    path: str
    """The path, percent-decoded, without the query string."""
    query: Mapping[str, tuple[str, ...]]
    """The values of each field of the query string, in the order they were given."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """The header fields, names in lower case, in the order they came."""

    @classmethod
    def parse(
        cls, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> Request:
        """Read a request's target, in origin or absolute form [RFC 9112 section 3.2].

        Raises:
            ValueError: the target is not one that can be read.
        """
        if target.startswith("/"):
            # Not left to urlsplit, which would take the start of `//x/y` for a host's name.
            path, _, query = target.partition("?")
        else:
            parts = urlsplit(target)
            path, query = parts.path or "/", parts.query
        fields = parse_qs(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
        return cls(
            method=method,
            path=unquote(path),
            query={name: tuple(values) for name, values in fields.items()},
            headers=headers,
        )

    def field(self, name: bytes) -> bytes | None:
        """Return the value of a header field, by its name in lower case; None if it is not there.

        The first, where there are several.
        """
        return next((value for each, value in self.headers if each == name), None)


@attrs.frozen
class Response:
    """A page: its status and its body, in one piece or in many.

    A body given as an async iterator goes out piece by piece as it is made, in chunked transfer
    coding; the iterator is closed if the peer goes away before its end.
    """

    body: bytes | AsyncIterator[bytes] = b""
    """The page itself."""
    status: int = 200
    """The status code."""
    content_type: str = TEXT
    """The body's media type."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further header fields. Those of framing, date and connection are the server's."""
    endless: bool = False
    """Whether the body has no end of its own, as a stream of events has none.

    It ends when the peer goes away, which is noticed at once, or does not take what is sent; little
    is kept for it in the kernel. The connection serves nothing else afterwards.
    """
    scope: trio.CancelScope | None = attrs.field(default=None, eq=False)
    """Sending ends when this is cancelled: the answer breaks off, and the connection ends."""

    @classmethod
    def sentence(cls, status: int, text: str, *headers: tuple[str, str]) -> Response:
        """A plain sentence, with a line's end: what a person at `curl` sees."""
        return cls(f"{text}\n".encode(), status, TEXT, headers)


Handler = Callable[[Request], Awaitable[Response]]
"""Makes one page. An exception is logged and answered 500."""
