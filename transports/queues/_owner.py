"""Whose a shelf is: who is ended if it cannot be told what has become durable."""

from __future__ import annotations

from typing import Any, Final

TELLING: Final = "being told what is durable"

READING: Final = "taking what was read back"


def owner_of(user: Any) -> object:
    """Return the holder that a shelf is of: a queue, or the outlet that has put something aside."""
    return getattr(user, "holder", user)
