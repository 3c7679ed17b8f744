"""Kinds of values that options take: counts, sizes, seconds, and the absence of one."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Final, TypeVar

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from clearfunds.transports import parse_size

Value = TypeVar("Value", int, float, str)


def _count(_: object, tokens: Sequence[Token]) -> int:
    # cyclopts' conversion rounds "3.5" to 4; nobody who writes 3.5 here means 4.
    text = tokens[0].value
    if not re.fullmatch(r"-?[0-9][0-9_]*", text):
        msg = f'"{text}" is not a whole number.'
        raise ValueError(msg)
    return int(text)


def _size(_: object, tokens: Sequence[Token]) -> int:
    try:
        return parse_size(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"{error}.") from None


def _seconds(_: object, tokens: Sequence[Token]) -> float:
    try:
        return float(tokens[0].value)
    except ValueError:
        msg = f'"{tokens[0].value}" is not a number of seconds.'
        raise ValueError(msg) from None


def _text(_: object, tokens: Sequence[Token]) -> str:
    return tokens[0].value


def _share_or_size(_: object, tokens: Sequence[Token]) -> float:
    text = tokens[0].value
    if re.fullmatch(r"0?\.[0-9]+|1(\.0*)?", text):
        return float(text)
    if re.fullmatch(r"[1-9][0-9]?%?|100%?", text):
        # So few bytes are nothing: it is meant as a percentage.
        msg = f'"{text}" is a percentage, or too few bytes: write {_share(text)} for the share.'
        raise ValueError(msg)
    with suppress(ValueError):
        size = parse_size(text)
        if size > 1:
            return size
    msg = f'"{text}" is neither a fraction of the memory or disk ("0.6") nor a size ("512MiB").'
    raise ValueError(msg)


def _share(percentage: str) -> str:
    return f"{int(percentage.removesuffix('%')) / 100:g}"


def _or_none(
    read: Callable[[object, Sequence[Token]], Value],
) -> Callable[[object, Sequence[Token]], Value | None]:
    # TOML has no null, and an empty environment variable is too easily an accident.
    def convert(kind: object, tokens: Sequence[Token]) -> Value | None:
        return None if tokens[0].value.lower() == "none" else read(kind, tokens)

    return convert


Count = Annotated[int, Parameter(converter=_count, validator=Number(gte=1))]
"""A whole number of things, at least one."""

Size = Annotated[int, Parameter(converter=_size, validator=Number(gte=1))]
"""Bytes: `8388608`, `8MiB`."""

OptionalCount = Annotated[
    int | None, Parameter(converter=_or_none(_count), validator=Number(gte=1))
]
"""A count, or `none` for no limit."""

OptionalSize = Annotated[int | None, Parameter(converter=_or_none(_size), validator=Number(gte=1))]
"""A size, or `none` for no limit."""

Seconds = Annotated[float, Parameter(converter=_seconds, validator=Number(gte=0))]
"""A length of time."""

NO_LIMIT: Final = 0
"""Stands for `none`, where None stands for an option that is not given."""


def _or_no_limit(
    read: Callable[[object, Sequence[Token]], int],
) -> Callable[[object, Sequence[Token]], int]:
    def convert(kind: object, tokens: Sequence[Token]) -> int:
        if tokens[0].value.lower() == "none":
            return NO_LIMIT
        value = read(kind, tokens)
        if value < 1:
            msg = f'"{tokens[0].value}" is not at least 1, nor none for no limit.'
            raise ValueError(msg)
        return value

    return convert


NewCount = Annotated[int | None, Parameter(converter=_or_no_limit(_count), show_default=False)]
"""A count, or `NO_LIMIT`; None: it is not given."""

NewSize = Annotated[int | None, Parameter(converter=_or_no_limit(_size), show_default=False)]
"""A size, or `NO_LIMIT`; None: it is not given."""

OptionalText = Annotated[str | None, Parameter(converter=_or_none(_text))]
"""A text, or `none` for its absence."""

OptionalSeconds = Annotated[
    float | None, Parameter(converter=_or_none(_seconds), validator=Number(gte=0))
]
"""A length of time, or `none` for no limit."""

OptionalShareOrSize = Annotated[float | None, Parameter(converter=_or_none(_share_or_size))]
"""A share of the whole, `0.6`; or a size, `512MiB`; or `none` for no limit."""
