"""Limits and rates for the accounts of some connections, by pattern."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import attrs

from ..accounts import Limit
from ._patterns import FirstMatch


def _no_less_than_one(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, int) and value < 1:
        msg = f"{attribute.name} must be at least 1, or None for no limit, not {value}"
        raise ValueError(msg)


def _above_nothing(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        msg = f"a rate's {attribute.name} must be above 0, or None for no limit, not {value}"
        raise ValueError(msg)


def _not_empty(_: object, __: object, value: str) -> None:
    if not value:
        raise ValueError("the pattern for an account is empty; * matches every account")


@attrs.frozen(slots=True)
class AccountLimit:
    """The limit of the accounts that a pattern matches."""

    pattern: str = attrs.field(validator=_not_empty)
    """For an account's whole name, as `mqtt:1883/press/ticker`, or for the client identifier (MQTT)
    or the peer's address (Syndicate). `*` is any text, `/` included, `?` any character, `[ab]` one
    of some; `[*]` is an asterisk."""
    items: int | None = attrs.field(validator=_no_less_than_one)
    """Events it may owe, or None for no limit."""
    bytes: int | Literal["default"] | None = attrs.field(
        default="default", validator=_no_less_than_one
    )
    """Bytes it may owe, or None for no limit; `default`: as many as other accounts."""


class AccountLimits:
    """Limits by account: the first pattern that matches counts.

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
        self._rules: FirstMatch[Limit] = FirstMatch(
            (
                rule.pattern,
                Limit(
                    items=rule.items,
                    bytes=others.bytes if rule.bytes == "default" else rule.bytes,
                ),
            )
            for rule in rules
        )

    def __repr__(self) -> str:
        return f"<AccountLimits: {len(self._rules)} patterns>"

    def names(self, *names: str) -> bool:
        """Whether a pattern matches an account with these names."""
        return self._rules.of(*names) is not None

    def of(self, *names: str) -> Limit:
        """Return the limit of an account with these names."""
        found = self._rules.of(*names)
        return self._others if found is None else found


@attrs.frozen(slots=True)
class AccountRate:
    """The rate limit for publishing of the accounts that a pattern matches; see `AccountLimit`."""

    pattern: str = attrs.field(validator=_not_empty)
    """As `AccountLimit.pattern`."""
    items: float | None = attrs.field(validator=_above_nothing)
    """Events a second, or None for no limit."""
    bytes: float | None = attrs.field(default=None, validator=_above_nothing)
    """Their bytes a second, or None for no limit."""
