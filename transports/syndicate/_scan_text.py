"""The end of a packet in the text syntax.

People at a terminal send text, so nothing here is optimised. But input must neither confuse the
scanner nor take more time than its size warrants, so no byte is scanned twice. The scanner counts
brackets; the parser of the `preserves` library does the rest: `_connection.py` gives it exactly the
bytes found here, and refuses a value that does not take all of them.

Theory of operation. `frames` holds the open values: for a bracket the byte that closes it, and for
a prefix (`@annotation`, a comment, `#:`) the number of values that it still takes, as in
`_scan.py`. `inside` is the pattern that ends the token in which the input was cut, if it was.

Source: https://preserves.dev/preserves-text.html.
"""

from __future__ import annotations

import re
from typing import Final

from .._errors import RemoteProtocolError
from ._scan import DEFAULT_MAX_DEPTH

#: Default limit on a packet in text: a screenful of long lines. Parsing takes about a microsecond
#: a byte, and no other connection is served meanwhile: 20 ms in all.
DEFAULT_MAX_TEXT_SIZE = 16 << 10

_SPACE: Final = re.compile(rb"[\s,:]*")
_IN_STRING: Final = re.compile(rb'["\\]')
_IN_SYMBOL: Final = re.compile(rb"['\\]")
_IN_BASE64: Final = re.compile(rb"\]")
_IN_COMMENT: Final = re.compile(rb"[\r\n]")
# As the library's `delimiter_follows`, whose white space beyond ASCII matters only to the library.
_IN_ATOM: Final = re.compile(rb"[\s(){}\[\]<>\"';,@#:]")

_CLOSED_BY: Final = {ord("["): ord("]"), ord("<"): ord(">"), ord("{"): ord("}")}
_CLOSERS: Final = frozenset(_CLOSED_BY.values())
# Frames that count values are smaller than any closing byte.
_ONE, _TWO = 1, 2


class TextScanner:
    """Finds the ends of packets in text, one after the other."""

    __slots__ = ("_frames", "_inside", "_max_depth", "_max_size", "_offset")

    def __init__(
        self,
        *,
        max_text_size: int = DEFAULT_MAX_TEXT_SIZE,
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> None:
        """Make a scanner that stands at the start of a packet.

        Args:
            max_text_size: the largest packet, in bytes.
            max_depth: its deepest nesting; annotations and comments count like brackets.
        """
        self._max_size = max_text_size
        self._max_depth = max_depth
        self._frames: list[int] = []
        self._offset: int = 0
        self._inside: re.Pattern[bytes] | None = None

    def find_end(self, data: bytes | bytearray, start: int) -> int | None:
        """Find the end of the packet that begins at `start`, as `Scanner.find_end` does.

        A lone `#f` is complete only when the byte after it is known.

        Raises:
            RemoteProtocolError: if it is too large, too deep, or its brackets do not match.
        """
        limit = start + self._max_size
        stop = min(len(data), limit)
        at: int = start + self._offset
        while True:
            if self._inside is not None:
                at, ended = _token_end(data, at, stop, self._inside)
                if not ended:
                    break
                was, self._inside = self._inside, None
                if was is _IN_COMMENT:
                    continue
            else:
                space = _SPACE.match(data, at, stop)
                at = space.end() if space else at
                begun = self._begin(data, at, stop, start)
                if begun is None:
                    break
                at, whole = begun
                if not whole:
                    continue
            if self._completed():
                self._offset = 0
                return at
        self._offset = at - start
        if stop == limit:
            raise RemoteProtocolError(
                f"a packet of more than {self._max_size} bytes in text; send smaller ones or raise "
                "the limit on the size of text"
            )
        return None

    def _begin(
        self, data: bytes | bytearray, at: int, stop: int, start: int
    ) -> tuple[int, bool] | None:
        """Scan the beginning of a token; return the next place, and whether a value is complete."""
        if at >= stop:
            return None
        byte = data[at]
        if byte in _CLOSED_BY:
            self._open(_CLOSED_BY[byte], at - start)
            return at + 1, False
        if byte in _CLOSERS:
            if not self._frames or self._frames.pop() != byte:
                raise RemoteProtocolError(
                    f"an unexpected {chr(byte)!r} at byte {at - start} of a packet in text"
                )
            return at + 1, True
        if byte == ord('"'):
            self._inside = _IN_STRING
            return at + 1, False
        if byte == ord("'"):
            self._inside = _IN_SYMBOL
            return at + 1, False
        if byte == ord("@"):
            self._open(_TWO, at - start)
            return at + 1, False
        if byte == ord("#"):
            return self._begin_special(data, at, stop, start)
        if _IN_ATOM.match(data, at) or (byte >= 128 and not self._frames):
            raise RemoteProtocolError(
                f"an unexpected byte {byte:#04x} at byte {at - start} of a packet in text"
            )
        self._inside = _IN_ATOM
        return at + 1, False

    def _begin_special(
        self, data: bytes | bytearray, at: int, stop: int, start: int
    ) -> tuple[int, bool] | None:
        if at + 1 >= stop:
            return None
        match chr(data[at + 1]):
            case "f" | "t":
                self._inside = _IN_ATOM
            case "{":
                self._open(ord("}"), at - start)
            case "[":
                self._inside = _IN_BASE64
            case '"':
                self._inside = _IN_STRING
            case ":" | "\n" | "\r":
                self._open(_ONE, at - start)
            case " " | "\t" | "!":
                self._open(_ONE, at - start)
                self._inside = _IN_COMMENT
            case "x":
                # #x"..." or #xd"...": the quotation mark must have arrived before it is passed.
                quote = at + 2
                if quote < stop and data[quote] == ord("d"):
                    quote += 1
                if quote >= stop:
                    return None
                if data[quote] != ord('"'):
                    raise RemoteProtocolError(f"#x without bytes at byte {at - start} of a packet")
                self._inside = _IN_STRING
                return quote + 1, False
            case other:
                raise RemoteProtocolError(
                    f"#{other} at byte {at - start} of a packet in text begins no value"
                )
        return at + 2, False

    def _open(self, frame: int, at: int) -> None:
        if len(self._frames) >= self._max_depth:
            raise RemoteProtocolError(
                f"a packet in text is nested more than {self._max_depth} deep at byte {at}; send a "
                "flatter one or raise the limit on the depth"
            )
        self._frames.append(frame)

    def _completed(self) -> bool:
        """Note that a value is complete; return whether it is the packet."""
        frames = self._frames
        while frames and frames[-1] <= _TWO:
            frames[-1] -= 1
            if frames[-1]:
                break
            frames.pop()
        return not frames


def _token_end(
    data: bytes | bytearray, at: int, stop: int, inside: re.Pattern[bytes]
) -> tuple[int, bool]:
    """Return where to continue, and whether that is after the token's end."""
    while found := inside.search(data, at, stop):
        at = found.start()
        if inside is _IN_ATOM:
            return at, True
        if data[at] != ord("\\"):
            return at + 1, True
        if at + 1 >= stop:
            return at, False
        at += 2
    return max(at, stop), False
