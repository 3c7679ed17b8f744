"""Where a packet written as text ends.

Text is for people at a terminal, so nothing here is made for speed; but it must neither be fooled
nor take time out of proportion, and so what has been looked at is not looked at again. The brackets
are counted, the rest is left to the parser of the `preserves` library: `_connection.py` has it read
exactly the bytes found here, and refuses what does not take all of them.

Theory of operation. `frames` holds what is open: for a bracket the byte that closes it, and for a
prefix (`@annotation`, a comment, `#:`) the number of values that it still takes, as in `_scan.py`.
`inside` is the pattern that ends the token that the input was cut in, if it was.

Source: https://preserves.dev/preserves-text.html.
"""

from __future__ import annotations

import re
from typing import Final

from .._errors import RemoteProtocolError
from ._scan import DEFAULT_MAX_DEPTH

#: What a packet in text may take, unless told otherwise: a screenful of long lines. Parsing one
#: takes about a microsecond a byte, during which nobody else is served: that is 20 ms.
DEFAULT_MAX_TEXT_SIZE = 16 << 10

_SPACE: Final = re.compile(rb"[\s,:]*")
_IN_STRING: Final = re.compile(rb'["\\]')
_IN_SYMBOL: Final = re.compile(rb"['\\]")
_IN_BASE64: Final = re.compile(rb"\]")
_IN_COMMENT: Final = re.compile(rb"[\r\n]")
# As the library's `delimiter_follows`; its white space that is not ASCII only matters to it.
_IN_ATOM: Final = re.compile(rb"[\s(){}\[\]<>\"';,@#:]")

_CLOSED_BY: Final = {ord("["): ord("]"), ord("<"): ord(">"), ord("{"): ord("}")}
_CLOSERS: Final = frozenset(_CLOSED_BY.values())
# Frames that count are smaller than any closing byte.
_ONE, _TWO = 1, 2


class TextScanner:
    """Finds the end of one packet in text after the other."""

    __slots__ = ("_frames", "_inside", "_max_depth", "_max_size", "_offset")

    def __init__(
        self,
        *,
        max_text_size: int = DEFAULT_MAX_TEXT_SIZE,
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> None:
        """Make a scanner that stands at the start of a packet.

        Args:
            max_text_size: how large a packet may be, in bytes.
            max_depth: how deep it may be nested; annotations and comments count like brackets.
        """
        self._max_size = max_text_size
        self._max_depth = max_depth
        self._frames: list[int] = []
        self._offset: int = 0
        self._inside: re.Pattern[bytes] | None = None

    def find_end(self, data: bytes | bytearray, start: int) -> int | None:
        """Find the end of the packet that begins at `start`, as `Scanner.find_end` does.

        A lone `#f` has come in full when the byte behind it has.

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
        """Go over the beginning of a token; return what follows, and whether a value is whole."""
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
                # #x"..." or #xd"...": the quotation mark has to be seen before it is passed.
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
        """Note that a value is whole; say whether it is the packet."""
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
    """Return where to go on, and whether that is behind the token's end."""
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
