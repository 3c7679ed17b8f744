"""The options for tenants, and for rates at which some accounts may publish.

A tenant is written `NAME,key=value,...` on the command line, and as a table in a file, which
arrives here as JSON (`_sources.py`):

    --tenant press,user=newsroom,user=ticker,weight=3,items=5000,bytes=16MiB
    [[relay.tenant]]
    name = "press"
    user = ["newsroom", "ticker"]
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar, cast

from cyclopts import CoercionError, Parameter, Token

from clearfunds.access import AccountRate, Tenant
from clearfunds.transports import parse_size

from ._rule_tables import a_text, is_table, number_or_none, read_table, size_or_none

PATTERNS: Final = ("user", "client", "listener", "topic")
FLAGS: Final = ("default", "users")
COUNTS: Final = ("items", "user_items", "connections")
SIZES: Final = ("bytes", "rate_bytes", "user_bytes", "user_rate_bytes", "kept")
NUMBERS: Final = ("weight", "rate", "user_rate", "latency")
KEYS: Final = (*PATTERNS, *FLAGS, *COUNTS, *SIZES, *NUMBERS)

_FORM: Final = 'write NAME,key=value,... ("press,user=newsroom,weight=3,items=5000,bytes=16MiB")'

T = TypeVar("T")


def _tenant(text: str) -> Tenant:
    if text.startswith("{"):
        return _of_table(_table(text))
    name, *fields = text.split(",")
    found: dict[str, Any] = {"name": name.strip()}
    if "=" in name:
        msg = f'"{text}" does not begin with a tenant\'s name: {_FORM}.'
        raise ValueError(msg)
    for field in fields:
        key, equals, value = field.partition("=")
        key = _known(key.strip(), name, text)
        value = value.strip()
        if not equals:
            if key not in FLAGS:
                msg = f'tenant {name}: {key} in "{text}" has no value: {_FORM}.'
                raise ValueError(msg)
            value = "true"
        if key in PATTERNS:
            found.setdefault(key, []).append(value)
        elif key in found:
            msg = f'tenant {name}: {key} is given twice in "{text}".'
            raise ValueError(msg)
        else:
            found[key] = value
    return _of_table(found)


def _table(text: str) -> dict[str, Any]:
    try:
        table: Any = json.loads(text)
    except ValueError as error:
        msg = f'"{text}" begins with {{ and is not JSON: {error}. Or {_FORM}.'
        raise ValueError(msg) from error
    return dict(table)


def _known(key: str, name: object, where: str | None = None) -> str:
    found = key.replace("-", "_")
    if found not in KEYS:
        place = "" if where is None else f' in "{where}"'
        msg = f"tenant {name}: unknown key {key!r}{place}; keys: {', '.join(KEYS)}."
        raise ValueError(msg)
    return found


def _of_table(table: Mapping[str, Any]) -> Tenant:
    name = table.get("name")
    if not isinstance(name, str):
        msg = f"a tenant has no name: {json.dumps(dict(table))}."
        raise ValueError(msg)  # noqa: TRY004 (it is the operator's)
    found: dict[str, Any] = {"name": name}
    for written, value in table.items():
        if written == "name":
            continue
        key = _known(written, name)
        if key in found:
            msg = f"tenant {name}: {key} is given twice."
            raise ValueError(msg)
        found[key] = _value(name, key, value)
    return Tenant(**found)


def _value(name: str, key: str, value: object) -> object:
    if key in PATTERNS:
        each = cast("list[object]", value) if isinstance(value, list) else [value]
        if not all(isinstance(one, str) for one in each):
            msg = f"tenant {name}: {key} is {value!r}; it must be a pattern, or a list of them."
            raise ValueError(msg)
        return tuple(each)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if key in FLAGS:
        if text.lower() not in ("true", "false"):
            msg = f"tenant {name}: {key} is {value!r}; it must be true or false."
            raise ValueError(msg)
        return text.lower() == "true"
    return _amount(f"tenant {name}: {key}", key, text)


def _amount(what: str, key: str, text: str) -> float | None:
    if key in COUNTS:
        if not re.fullmatch(r"[0-9][0-9_]*", text):
            msg = f'{what} is "{text}", which is not a whole number.'
            raise ValueError(msg)
        return int(text)
    if key in SIZES:
        return _size(what, text)
    return _number(what, text)


def _size(what: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        msg = f'{what} is "{text}", which is not a size ("8MiB").'
        raise ValueError(msg) from None


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        msg = f'{what} is "{text}", which is not a number.'
        raise ValueError(msg) from None


def _rate(text: str) -> AccountRate:
    if is_table(text):
        readers = {"pattern": a_text, "items": number_or_none, "bytes": size_or_none}
        return AccountRate(**read_table("a rate", text, readers, ["pattern", "items"]))
    # A pattern may have = and , in it; the amounts after it have no =.
    pattern, equals, amounts = text.rpartition("=")
    items, comma, nbytes = amounts.partition(",")
    items, nbytes = items.strip().lower(), nbytes.strip().lower()
    if not pattern or not equals or not items or (comma and not nbytes):
        msg = (
            f'"{text}" is not PATTERN=ITEMS or PATTERN=ITEMS,BYTES, with events and bytes a '
            'second, or none for no limit ("press/*=500,2MiB").'
        )
        raise ValueError(msg)
    what = f'the rate in "{text}"'
    return AccountRate(
        pattern,
        None if items == "none" else _number(what, items),
        None if nbytes in ("", "none") else float(_size(what, nbytes)),
    )


def _each(
    read: Callable[[str], T],
) -> Callable[[object, Sequence[Token]], tuple[T, ...]]:
    def convert(_: object, tokens: Sequence[Token]) -> tuple[T, ...]:
        found: list[T] = []
        for token in tokens:
            if token.implicit_value == []:  # An empty list in a file.
                continue
            try:
                found.append(read(token.value))
            except ValueError as error:
                # Only here is it known which of several it was.
                raise CoercionError(msg=str(error), token=token) from error
        return tuple(found)

    return convert


Tenants = Annotated[
    tuple[Tenant, ...],
    Parameter(converter=_each(_tenant), n_tokens=1, negative=(), json_list=False),
]
"""Tenants, each `NAME,key=value,...`; the option may be given several times."""

AccountRates = Annotated[
    tuple[AccountRate, ...],
    Parameter(converter=_each(_rate), n_tokens=1, negative=(), json_list=False),
]
"""Rates of some accounts, each `PATTERN=ITEMS[,BYTES]`; may be given several times."""
