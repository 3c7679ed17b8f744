"""Limits of some connections' accounts that are not those of all others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Any, Final, Literal

import attrs

from ..accounts import Limit

_ESCAPED: Final = re.compile(r"\[([*?\[])\]")


def _no_less_than_one(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, int) and value < 1:
        msg = f"{attribute.name} must be at least 1, or None for no limit, not {value}"
        raise ValueError(msg)


def _not_empty(_: object, __: object, value: str) -> None:
    if not value:
        raise ValueError("the pattern of an account limit is empty; * matches every account")


@attrs.frozen(slots=True)
class AccountLimit:
    """The limit of the accounts that a pattern matches."""

    pattern: str = attrs.field(validator=_not_empty)
    """For an account's whole name, as `mqtt:1883/press/ticker`, or for what its client calls itself
    (MQTT) or comes from (Syndicate). `*` is any text, `/` included, `?` any character, `[ab]` one
    of some; `[*]` is an asterisk."""
    items: int | None = attrs.field(validator=_no_less_than_one)
    """Events it may owe, or None for no limit."""
    bytes: int | Literal["default"] | None = attrs.field(
        default="default", validator=_no_less_than_one
    )
    """Bytes it may owe, or None for no limit; `default`: as many as all others."""


class AccountLimits:
    """Whose limit is which: the first pattern that matches says.

    Args:
        rules: The patterns, the most important first.
        others: The limit where none of them matches.
    """

    def __init__(
        self,
        rules: Sequence[AccountLimit] = (),
        others: Limit = Limit(),  # noqa: B008 (frozen)
    ) -> None:
        self._others = others
        # Most are of one account each, and there may be thousands of those.
        self._exact: dict[str, tuple[int, Limit]] = {}
        self._globs: list[tuple[int, re.Pattern[str], Limit]] = []
        for place, rule in enumerate(rules):
            nbytes = others.bytes if rule.bytes == "default" else rule.bytes
            limit = Limit(items=rule.items, bytes=nbytes)
            name = _only_name(rule.pattern)
            if name is None:
                self._globs.append((place, re.compile(translate(rule.pattern)), limit))
            else:
                self._exact.setdefault(name, (place, limit))

    def __repr__(self) -> str:
        return f"<AccountLimits: {len(self._exact) + len(self._globs)} patterns>"

    def of(self, *names: str) -> Limit:
        """Return the limit of an account that has these names."""
        first, found = None, self._others
        for name in names:
            place, limit = self._exact.get(name, (None, found))
            if place is not None and (first is None or place < first):
                first, found = place, limit
        for place, pattern, limit in self._globs:
            if first is not None and place > first:
                break
            if any(map(pattern.match, names)):
                return limit
        return found


def _only_name(pattern: str) -> str | None:
    """Return the one name that a pattern matches; None if it matches more."""
    if re.search(r"[*?\[]", _ESCAPED.sub("", pattern)):
        return None
    return _ESCAPED.sub(r"\1", pattern)
