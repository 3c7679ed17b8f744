"""The option for the age or the size that a journal may reach."""

import re
from collections.abc import Sequence
from typing import Annotated, Final

import attrs
from cyclopts import CoercionError, Parameter, Token

_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)},
}
_BOUND: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)", re.IGNORECASE)


@attrs.frozen
class Bound:
    """An age, or a size."""

    seconds: float | None = None
    bytes: int | None = None


def _bound(text: str) -> Bound:
    match = _BOUND.fullmatch(text)
    unit = "" if match is None else match[2].lower()
    number = 0.0 if match is None else float(match[1])
    if number > 0 and unit in _SECONDS:
        return Bound(seconds=number * _SECONDS[unit])
    if number > 0 and unit in _BYTES:
        return Bound(bytes=max(int(number * _BYTES[unit]), 1))
    msg = (
        f'"{text}" is neither an age (s, min, h, d or w, as "7d") nor a size (MB, GB, MiB or GiB, '
        'as "10GB").'
    )
    raise ValueError(msg)


def _bounds(_: object, tokens: Sequence[Token]) -> tuple[Bound, ...]:
    found: list[Bound] = []
    for token in tokens:
        if token.implicit_value == []:  # An empty list in a file.
            continue
        try:
            found.append(_bound(token.value))
        except ValueError as error:
            # Only here is it known which of several it was.
            raise CoercionError(msg=str(error), token=token) from error
    return tuple(found)


Bounds = Annotated[
    tuple[Bound, ...], Parameter(converter=_bounds, n_tokens=1, negative=(), json_list=False)
]
"""Ages and sizes; the option may be given several times."""


def least_age(bounds: Sequence[Bound]) -> float | None:
    """Return the least of the ages, in seconds; None if there is none."""
    return min((each.seconds for each in bounds if each.seconds is not None), default=None)


def least_size(bounds: Sequence[Bound]) -> int | None:
    """Return the least of the sizes; None if there is none."""
    return min((each.bytes for each in bounds if each.bytes is not None), default=None)
