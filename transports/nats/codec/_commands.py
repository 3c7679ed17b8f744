"""What a client sends [docs.nats.io, client protocol]."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ._headers import HeadersToSend, encode_headers

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def encode_connect(options: Mapping[str, Any]) -> bytes:
    """Return CONNECT."""
    return b"CONNECT " + json.dumps(options, separators=(",", ":")).encode() + b"\r\n"


def encode_publication(
    subject: str, payload: bytes, reply: str = "", headers: HeadersToSend | None = None
) -> bytes:
    """Return PUB, or HPUB if there are headers. Subjects are not checked.

    Raises:
        LocalProtocolError: A header's name or value would break the block.
    """
    if headers:
        block = encode_headers(headers)
        reply = f"{reply} " if reply else ""
        line = f"HPUB {subject} {reply}{len(block)} {len(block) + len(payload)}\r\n"
        return b"%s%s%s\r\n" % (line.encode(), block, payload)
    if reply:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(payload), payload)
    return b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)


def encode_subscribe(sid: int, subject: str, queue: str = "") -> bytes:
    """Return SUB. Subject and queue group are not checked."""
    return f"SUB {subject} {queue}{' ' if queue else ''}{sid}\r\n".encode()


def encode_unsubscribe(sid: int) -> bytes:
    """Return UNSUB."""
    return b"UNSUB %d\r\n" % sid
