"""How far a query has read, as Spark writes it into its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._errors import OptionError, PipelineError


class Offset(NamedTuple):
    """A place between two messages of a subscription.

    Spark takes two of them for equal if their JSON is, so it has nothing in it that changes while
    the place does not.
    """

    incarnation: str
    """Which life of the subscription the number is of: it is made anew with each that is lost."""
    subscription: str
    number: int
    """The first message that was not read."""

    def to_json(self) -> dict[str, Any]:
        """Return what Spark is to write down."""
        return self._asdict()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Offset:
        """Take what Spark has written down.

        Raises:
            PipelineError: If it is not what `to_json` gave.
        """
        try:
            incarnation, name, number = (found[field] for field in cls._fields)
            if isinstance(incarnation, str) and isinstance(name, str) and type(number) is int:
                return cls(incarnation, name, number)
        except (KeyError, TypeError):
            pass
        msg = (
            f"the checkpoint has an offset that this source has not written: {json.dumps(found)}; "
            "a query with another source needs a checkpointLocation of its own"
        )
        raise PipelineError(msg)


class Position(NamedTuple):
    """A number that a user has given, perhaps with what it is of."""

    number: int
    incarnation: str | None
    """None: that of the subscription as it is."""

    @classmethod
    def parse(cls, option: str, text: str, subscription: str, words: str) -> Position:
        """Parse a number, or an offset as the progress of a query shows it.

        Raises:
            OptionError: If it is none, or another subscription's.
        """
        fields: dict[str, Any] = {}
        try:
            found: Any = json.loads(text)
            fields = {"number": found} if isinstance(found, int) else dict(found)
        except (ValueError, TypeError):
            pass
        number, incarnation = fields.get("number"), fields.get("incarnation")
        if (
            type(number) is not int
            or number < 1
            or not (incarnation is None or isinstance(incarnation, str))
        ):
            msg = (
                f"the option {option!r} is {words}, a number from 1 on, or an offset as "
                f'{{"number": 12}}, not {text!r}'
            )
            raise OptionError(msg)
        name = fields.get("subscription", subscription)
        if name != subscription:
            msg = (
                f"the option {option!r} is an offset of subscription {name!r}, not of "
                f"{subscription!r}"
            )
            raise OptionError(msg)
        return cls(number, incarnation)
