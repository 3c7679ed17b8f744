"""The option that gives some accounts limits of their own."""

import re
from collections.abc import Sequence
from typing import Annotated

from cyclopts import CoercionError, Parameter, Token

from clearfunds.transports import AccountLimit

from ._types import SIZE, UNITS


def _account_limit(text: str) -> AccountLimit:
    # A pattern may have = and , in it; what comes after it has no =.
    pattern, equals, amounts = text.rpartition("=")
    items, comma, nbytes = amounts.partition(",")
    items, nbytes = items.strip(), nbytes.strip()
    size = SIZE.fullmatch(nbytes)
    if (
        not (pattern and equals)
        or not (items.lower() == "none" or re.fullmatch(r"[0-9][0-9_]*", items))
        or (comma and nbytes.lower() != "none" and size is None)
    ):
        msg = (
            f'"{text}" is not PATTERN=ITEMS or PATTERN=ITEMS,BYTES, with a number of events and '
            'a size, or none for no limit ("press/*=500,2MiB").'
        )
        raise ValueError(msg)
    count = None if items.lower() == "none" else int(items)
    if not comma:
        return AccountLimit(pattern, count)
    return AccountLimit(
        pattern, count, None if size is None else int(size[1]) * UNITS[size[2].upper()]
    )


def _account_limits(_: object, tokens: Sequence[Token]) -> tuple[AccountLimit, ...]:
    found: list[AccountLimit] = []
    for token in tokens:
        if token.implicit_value == []:  # an empty list in a file
            continue
        try:
            found.append(_account_limit(token.value))
        except ValueError as error:
            # Which one it was, of several, only this knows.
            raise CoercionError(msg=str(error), token=token) from error
    return tuple(found)


AccountLimits = Annotated[
    tuple[AccountLimit, ...],
    Parameter(converter=_account_limits, n_tokens=1, negative=(), json_list=False),
]
"""Limits of some accounts, each `PATTERN=ITEMS[,BYTES]`; the option may be given several times."""
