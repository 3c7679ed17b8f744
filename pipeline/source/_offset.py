"""A query's reading position, as Spark writes it to its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._errors import OptionError, PipelineError


class Offset(NamedTuple):
    """A place between two messages of a subscription.

    Spark considers two offsets equal if their JSON is equal, so the JSON must not change while the
    place does not.
    """

    incarnation: str
    """The life of the subscription that the number belongs to; a lost subscription that is made
    anew has another."""
    subscription: str
    number: int
    """The first message that was not read."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that Spark writes to the checkpoint."""
        return self._asdict()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Offset:
        """Parse the object that Spark has written to the checkpoint.

        Raises:
            PipelineError: If it does not come from `to_json`.
        """
        try:
            incarnation, name, number = (found[field] for field in cls._fields)
            if isinstance(incarnation, str) and isinstance(name, str) and type(number) is int:
                return cls(incarnation, name, number)
        except (KeyError, TypeError):
            pass
        msg = (
            f"the checkpoint has an offset that this source has not written: {json.dumps(found)}; "
            "a query with another source needs its own checkpointLocation"
        )
        raise PipelineError(msg)


class Position(NamedTuple):
    """A number given by the user, perhaps with the life of the subscription."""

    number: int
    incarnation: str | None
    """None: the present life of the subscription."""

    @classmethod
    def parse(cls, option: str, text: str, subscription: str, words: str) -> Position:
        """Parse a number, or an offset as in the progress of a query.

        Raises:
            OptionError: If it is neither, or of another subscription.
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
