"""The input and the output of a page's handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import attrs

TEXT = "text/plain; charset=utf-8"

QUERY_FIELDS_MAX = 32
"""Fields read in one query string; our own pages know fewer than ten."""


LOOKING: Final = ("GET", "HEAD")
"""Methods that look at a page."""

CHANGING: Final = ("POST", "PATCH")
"""Methods that change something."""


@attrs.frozen
class Request:
    """A request that has been read and checked."""

    method: str
    """One of `LOOKING`, which a handler may treat alike, as the server omits the body; or one of
    `CHANGING`."""
    path: str
    """The path, percent-decoded, without the query string."""
    query: Mapping[str, tuple[str, ...]]
    """The values of each field of the query string, in order."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """The header fields in order, names in lower case."""
    body: bytes = attrs.field(default=b"", repr=False)
    """The body; only a request that changes something has one."""

    @classmethod
    def parse(
        cls, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> Request:
        """Parse a request's target, in origin or absolute form [RFC 9112 section 3.2].

        Raises:
            ValueError: The target is malformed.
        """
        if target.startswith("/"):
            # Not with urlsplit, which would take the start of `//x/y` for a host's name.
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
        """Return the value of a header field, by its name in lower case; None if it is missing.

        The first, if there are several.
        """
        return next((value for each, value in self.headers if each == name), None)


@attrs.frozen
class Response:
    """A page: its status and its body, in one piece or in many.

    A body given as an async iterator is sent piece by piece, in chunked transfer coding; the
    iterator is closed if the peer leaves before its end.
    """

    body: bytes | AsyncIterator[bytes] = b""
    """The page's content."""
    status: int = 200
    """The status code."""
    content_type: str = TEXT
    """The body's media type."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further header fields. The server adds those of framing, date and connection."""
    endless: bool = False
    """Whether the body has no end of its own, such as a stream of events.

    It ends when the peer leaves, which is noticed at once, or does not take its data; the kernel
    buffers little for it. The connection serves nothing else afterwards.
    """
    on_sending: Callable[[Callable[[], object]], object] | None = attrs.field(
        default=None, eq=False
    )
    """Called when it is sent, with a function that breaks that off and ends the connection."""

    @classmethod
    def sentence(cls, status: int, text: str, *headers: tuple[str, str]) -> Response:
        """Return a plain sentence, with a line's end: for a person at `curl`."""
        return cls(f"{text}\n".encode(), status, TEXT, headers)


Handler = Callable[[Request], Awaitable[Response]]
"""Makes one page. An exception is logged and answered 500."""


@attrs.frozen
class Operator:
    """The sender of a request that changes something: the holder of a token."""

    token: int
    """The position of its token in the file, from 1."""
    peer: str
    """Its address with the port, for people."""

    def __str__(self) -> str:
        return f"{self.peer} (token {self.token})"


Action = Callable[[Request, Operator], Awaitable[Response]]
"""Carries out the requests that change something, at all paths; an exception as of `Handler`."""
