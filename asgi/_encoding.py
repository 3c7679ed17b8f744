"""Events as text for browsers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from ..dataspace import Asserted, Publication, Retracted

T = TypeVar("T")


class Once(Generic[T]):
    """Encodes a publication once for all clients that get it one after the other.

    Any other event may have changed meanwhile.
    """

    __slots__ = ("_encode", "_encoded", "_event")

    def __init__(self, encode: Callable[[Any], T]) -> None:
        self._encode = encode
        self._event: Any = self  # no event is this
        self._encoded: T | None = None

    def __call__(self, event: Any) -> T:
        """Return the event, encoded."""
        if event.__class__ is not Publication:
            return self._encode(event)
        if event is not self._event or self._encoded is None:
            self._encoded = self._encode(event)
            self._event = event
        return self._encoded


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


same_text_of = Once(text_of)
"""`text_of`, once for all clients."""
