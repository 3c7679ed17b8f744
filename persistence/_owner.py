"""The owner of a shelf: the holder to end if telling it of durability fails."""

from __future__ import annotations

from typing import Any, Final

TELLING: Final = "being told what is durable"

READING: Final = "taking what was read back"


def owner_of(user: Any) -> object:
    """Return the holder that uses a shelf: a queue, or the outlet that has spilled messages."""
    return getattr(user, "holder", user)
