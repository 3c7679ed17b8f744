"""JSON for the pages; a bad number does not break off a page.

JSON has no infinity and no NaN. Such a number is an internal error; it is written as null, so that
the rest of the page is still served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from json import JSONEncoder
from typing import Any, Final, cast

Encode = Callable[[object], str]
"""Makes JSON, in ASCII, of dictionaries, lists, tuples, texts, numbers, booleans and None."""


def encoder(*separators: str) -> Encode:
    """Return a function that makes JSON with these separators, as in `json.dumps`.

    One function for all rows: `json.dumps` with options makes a new encoder for each call.
    """
    item, name = separators
    encode = JSONEncoder(allow_nan=False, separators=(item, name)).encode

    def safely(value: object) -> str:
        try:
            return encode(value)
        except ValueError:
            return encode(_finite(value))

    return safely


compact: Final = encoder(",", ":")
readable: Final = encoder(", ", ": ")


def _finite(value: object) -> object:
    """Return a copy with null for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, object]", value)
        return {name: _finite(each) for name, each in fields.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in cast("list[object]", value)]
    return value
