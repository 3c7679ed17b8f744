"""Bearer tokens for the pages: a file of secrets [RFC 6750].

One token a line. Empty lines and lines that begin with `#` are skipped. There may be several, so
that a new one can be handed out before the old one is taken away.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LEAST_CHARACTERS: Final = 16
"""Of a token: trying all of them is as hard as trying all keys of 96 bits."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The token behind `Bearer` [RFC 6750 section 2.1]."""


class TokenFileError(ValueError):
    """A file of tokens has something else in it; says which line, and what to do, but no secret."""


class BearerTokens:
    """Tokens, as in a file; made by `from_file` or from texts. Safe in several threads.

    Attributes:
        file: The file that they are from; None: from texts.
    """

    __slots__ = ("_digests", "file")

    def __init__(self, tokens: Iterable[str], file: Path | None = None) -> None:
        """Take some tokens.

        Raises:
            TokenFileError: There is none, or one cannot be one.
        """
        self.file = file
        self._digests = _digests(tokens)

    def __repr__(self) -> str:
        return f"<BearerTokens: {len(self._digests)}, {self.file or 'of a program'}>"

    @classmethod
    def from_file(cls, file: Path | str) -> BearerTokens:
        """Read the tokens in a file.

        Raises:
            OSError: It cannot be read.
            TokenFileError: It has something else in it.
        """
        file = Path(file)
        return cls(_read(file), file)

    def reload(self) -> None:
        """Read the file again, if they come from one.

        Raises:
            OSError: It cannot be read; the old tokens stay.
            TokenFileError: It has something else in it; likewise.
        """
        if self.file is not None:
            self._digests = _digests(_read(self.file))

    def check(self, token: bytes) -> bool:
        """Return whether a token is one of these; the time does not depend on which, if any."""
        return self.find(token) > 0

    def find(self, token: bytes) -> int:
        """Return the position of a token among these, from 1; 0: it is none of them.

        The last, if it is there several times.

        The time does not depend on which it is, if any.
        """
        seen = hashlib.sha256(token).digest()
        found = 0
        for position, digest in enumerate(self._digests, 1):
            found = max(found, position * hmac.compare_digest(digest, seen))
        return found


def _digests(tokens: Iterable[str]) -> tuple[bytes, ...]:
    # All of one length, so that a comparison does not tell how long a token is.
    found = tuple(hashlib.sha256(_checked(each, "").encode()).digest() for each in tokens)
    if not found:
        raise TokenFileError("there is no token: give at least one, of 16 characters or more")
    return found


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        msg = f"{where}a token has only letters, digits, and any of -._~+/ with = at its end"
        raise TokenFileError(msg)
    if len(token) < LEAST_CHARACTERS:
        msg = f"{where}a token has at least {LEAST_CHARACTERS} characters, or it can be guessed"
        raise TokenFileError(msg)
    return token


def _read(file: Path) -> list[str]:
    lines = file.read_bytes().decode(errors="replace").split("\n")
    tokens = [
        _checked(line.strip(), f"{file}, line {number}: ")
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
    if not tokens:
        msg = f"{file} has no token in it: openssl rand -hex 32 > {file} makes one"
        raise TokenFileError(msg)
    return tokens
