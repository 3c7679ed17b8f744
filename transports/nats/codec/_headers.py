"""Headers of a message: NATS/1.0, then lines as in HTTP [NATS ADR-4]."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from ..._errors import LocalProtocolError, RemoteProtocolError
from ._numbers import number

HeadersToSend: TypeAlias = Mapping[str, str | Sequence[str]]
"""Header names, each with its value or values."""

VERSION: Final = b"NATS/1.0"

_NAME: Final = re.compile(r"[!-9;-~]+")
"""Printable ASCII without the colon [ADR-4]."""


@attrs.frozen
class Headers:
    """The headers of a received message; names keep their case.

    Attributes:
        values: The values of each name, in order.
        status: The status of a message of the server's own (503: no responders), or None.
        description: The text after the status.
    """

    values: Mapping[str, Sequence[str]]
    status: int | None = None
    description: str = ""

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the first value of a header."""
        found = self.values.get(name)
        return found[0] if found else default


NO_HEADERS: Final = Headers({})


def encode_headers(headers: HeadersToSend) -> bytes:
    """Return the block of headers of a message.

    Raises:
        LocalProtocolError: A name or value would break the block.
    """
    lines = [VERSION]
    for name, values in headers.items():
        if not _NAME.fullmatch(name):
            raise LocalProtocolError(
                f"a header's name is printable ASCII without blanks and colons, not {name!r}"
            )
        for value in (values,) if isinstance(values, str) else values:
            if "\r" in value or "\n" in value:
                raise LocalProtocolError(f"the value of header {name} has to be one line")
            lines.append(f"{name}: {value}".encode())
    return b"\r\n".join(lines) + b"\r\n\r\n"


def decode_headers(block: bytes) -> Headers:
    """Return the headers that a block holds.

    Raises:
        RemoteProtocolError: It is no such block.
    """
    if not (block.startswith(VERSION) and block.endswith(b"\r\n\r\n")):
        raise RemoteProtocolError(f"headers have to begin with NATS/1.0, not {block[:20]!r}")
    first, *lines = block[len(VERSION) : -4].decode("utf-8", "replace").split("\r\n")
    status, _, description = first.strip().partition(" ")
    values: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not (colon and name):
            raise RemoteProtocolError(f"a header has to be NAME: VALUE, not {line[:40]!r}")
        values.setdefault(name, []).append(value.strip())
    return Headers(values, number(status) if status else None, description.strip())
