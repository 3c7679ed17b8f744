"""The parser of what a server sends [docs.nats.io, client protocol; nats-server `client.go`]."""

from __future__ import annotations

from typing import Final

from ..._errors import RemoteProtocolError
from ._messages import Info, Message, Ping, Pong, Received, ServerError
from ._numbers import number

MAX_LINE: Final = 64 << 10
"""Bytes of a line. Servers limit those of clients to 4 KiB; INFO has the addresses of a cluster, 30
bytes each."""

DEFAULT_MAX_MESSAGE_SIZE: Final = (64 << 20) + MAX_LINE
"""A server's largest `max_payload`, and headers that it adds itself."""

_EOL: Final = b"\r\n"


class Parser:
    """Makes messages of bytes, in whatever pieces they come.

    Args:
        max_message_size: The most bytes of one message's headers and payload.
    """

    __slots__ = ("_chunks", "_held", "_max", "_wanted")

    def __init__(self, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> None:
        self._max = max_message_size
        self._chunks: list[bytes] = []
        self._held = 0
        # Bytes below which another look at those held is in vain: a large message comes in pieces.
        self._wanted = 0

    def receive(self, data: bytes) -> list[Received]:
        """Take bytes that the server sent, and return what has become whole with them.

        Raises:
            RemoteProtocolError: They are not what a NATS server sends. What was whole before is
                lost; the connection cannot be used any more.
        """
        if self._chunks:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        found: list[Received] = []
        at, end = 0, len(data)
        self._wanted = 0
        while at < end:
            stop = data.find(_EOL, at, at + MAX_LINE)
            if stop < 0:
                if end - at >= MAX_LINE:
                    raise RemoteProtocolError(f"a line has more than {MAX_LINE} bytes")
                break
            start = stop + 2
            if data.startswith((b"MSG ", b"HMSG "), at):
                words = data[at:stop].split()
                has_headers = len(words[0]) == 4
                head, size = self._sizes(words, has_headers)
                after = start + size
                if after + 2 > end:
                    self._wanted = after + 2 - at
                    break
                if data[after : after + 2] != _EOL:
                    raise RemoteProtocolError(f"a message of {size} bytes has no end")
                found.append(
                    Message(
                        words[1].decode("utf-8", "replace"),
                        data[start + head : after],
                        words[3].decode("utf-8", "replace") if len(words) > 4 + has_headers else "",
                        number(words[2]),
                        data[start : start + head],
                    )
                )
                at = after + 2
            else:
                line = self._line(data[at:stop])
                if line is not None:
                    found.append(line)
                at = start
        if at < end:
            rest = data[at:] if at else data
            self._chunks.append(rest)
            self._held = len(rest)
        return found

    @property
    def unparsed_bytes(self) -> int:
        """Bytes of something that is not whole yet."""
        return self._held if self._chunks else 0

    def _sizes(self, words: list[bytes], has_headers: bool) -> tuple[int, int]:
        """Return the bytes of a message's headers, and of headers and payload."""
        count = len(words) - has_headers
        if count not in (4, 5):
            raise RemoteProtocolError(f"this is no message: {b' '.join(words)[:80]!r}")
        size = number(words[-1])
        head = number(words[-2]) if has_headers else 0
        if head > size:
            raise RemoteProtocolError(f"a message of {size} bytes has headers of {head}")
        if size > self._max:
            raise RemoteProtocolError(
                f"a message has {size} bytes, more than the {self._max} of max_message_size"
            )
        return head, size

    def _line(self, line: bytes) -> Received | None:
        word, _, rest = line.strip().partition(b" ")
        match word.upper():
            case b"PING":
                return Ping()
            case b"PONG":
                return Pong()
            case b"INFO":
                return Info.decode(rest)
            case b"-ERR":
                return ServerError(rest.strip().strip(b"'").decode("utf-8", "replace"))
            case b"+OK":
                return None
            case _:
                raise RemoteProtocolError(
                    f"this is no NATS: {line[:40]!r}; is a NATS server listening there?"
                )
