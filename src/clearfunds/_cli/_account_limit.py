"""The option for limits of individual accounts."""

import re
from collections.abc import Sequence
from typing import Annotated

from cyclopts import CoercionError, Parameter, Token

from clearfunds.access import AccountLimit
from clearfunds.transports import parse_size

from ._rule_tables import a_text, count_or_none, is_table, read_table, size_or_none


def _account_limit(text: str) -> AccountLimit:
    if is_table(text):
        readers = {"pattern": a_text, "items": count_or_none, "bytes": size_or_none}
        return AccountLimit(**read_table("an account limit", text, readers, ["pattern", "items"]))
    # A pattern may have = and , in it; the amounts after it have no =.
    pattern, equals, amounts = text.rpartition("=")
    items, comma, nbytes = amounts.partition(",")
    items, nbytes = items.strip(), nbytes.strip()
    try:
        if not (pattern and equals):
            raise ValueError(text)
        count = None if items.lower() == "none" else _number(items)
        size = None if not comma or nbytes.lower() == "none" else parse_size(nbytes)
    except ValueError:
        msg = (
            f'"{text}" is not PATTERN=ITEMS or PATTERN=ITEMS,BYTES, with a number of events and '
            'a size, or none for no limit ("press/*=500,2MiB").'
        )
        raise ValueError(msg) from None
    return AccountLimit(pattern, count, size) if comma else AccountLimit(pattern, count)


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9][0-9_]*", text):
        raise ValueError(text)
    return int(text)


def _account_limits(_: object, tokens: Sequence[Token]) -> tuple[AccountLimit, ...]:
    found: list[AccountLimit] = []
    for token in tokens:
        if token.implicit_value == []:  # An empty list in a file.
            continue
        try:
            found.append(_account_limit(token.value))
        except ValueError as error:
            # Only here is it known which of several it was.
            raise CoercionError(msg=str(error), token=token) from error
    return tuple(found)


AccountLimits = Annotated[
    tuple[AccountLimit, ...],
    Parameter(converter=_account_limits, n_tokens=1, negative=(), json_list=False),
]
"""Limits of some accounts, each `PATTERN=ITEMS[,BYTES]`; the option may be given several times."""
