"""Events as text for browsers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from ..dataspace import Asserted, Publication, Retracted

T = TypeVar("T")


def once(encode: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a function that encodes a publication once for all clients that get it in turn.

    Any other event may have changed meanwhile.
    """
    last: Any = None
    encoded: T | None = None

    def encode_once(event: Any) -> T:
        nonlocal last, encoded
        if event.__class__ is not Publication:
            return encode(event)
        if event is not last or encoded is None:
            encoded = encode(event)
            last = event
        return encoded

    return encode_once


def text_of(event: Any) -> str:
    """Return an event as text: a publication's payload, a text as it is, all else as JSON.

    Instances of attrs classes are objects with their fields; assertions are
    `{"asserted": value}` and `{"retracted": value}`.

    Raises:
        UnicodeDecodeError: For bytes that are no UTF-8.
        TypeError: For a value that JSON does not have.
    """
    if isinstance(event, Publication):
        return event.payload.decode()
    if isinstance(event, bytes):
        return event.decode()
    if isinstance(event, str):
        return event
    return json.dumps(event, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Asserted):
        return {"asserted": value.value}
    if isinstance(value, Retracted):
        return {"retracted": value.value}
    if attrs.has(value.__class__):
        return attrs.asdict(value, recurse=False)
    if isinstance(value, bytes):
        return value.decode()
    msg = f"{value!r} has no form as JSON; give an `encode` for it"
    raise TypeError(msg)


same_text_of = once(text_of)
"""`text_of`, once for all clients."""
