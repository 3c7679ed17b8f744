"""Units of settings, stated in their types, and the ranges of their values."""

import math
from typing import Annotated, Any, Final

import attrs

Count = Annotated[int, "count"]
"""A whole number of things; at least one, unless the setting has a range of its own."""

Size = Annotated[int, "bytes"]
"""Bytes, at least one."""

Seconds = Annotated[float, "seconds"]
"""A length of time, not negative."""

ShareOrSize = Annotated[float, "share or bytes"]
"""Up to 1 a share of the whole, above 1 bytes."""

Text = Annotated[str, "text"]
"""A text; on the command line the word `none` is none."""


RELOADABLE: Final = {"reloadable": True}
"""Metadata of a setting that may be changed while the server runs (SIGHUP)."""


def is_reloadable(field: "attrs.Attribute[Any]") -> bool:
    """Whether a setting may be changed while the server runs."""
    return "reloadable" in field.metadata


@attrs.frozen
class Between:
    """Validates that a setting is within a range, or None."""

    least: float
    most: float | None = None

    def __call__(self, _: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
        """Raise ValueError if it is not."""
        most = math.inf if self.most is None else self.most
        if value is not None and not self.least <= value <= most:
            msg = f"{attribute.name} must be from {self.least} to {most}, not {value}"
            raise ValueError(msg)


def above_nothing(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    """Validate that a length of time is above 0 and finite, or None."""
    if value is not None and not 0 < value < math.inf:
        msg = f"{attribute.name} must be above 0 seconds, or None for no such limit, not {value}"
        raise ValueError(msg)
