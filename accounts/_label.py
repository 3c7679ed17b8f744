"""What an event is about, in a word or two."""

from __future__ import annotations

from typing import Any


def label_of(event: object) -> str:
    """Return what an event is about, and nothing of what it says: its topic, else its class."""
    topic: Any = getattr(event, "topic", None)
    return topic if isinstance(topic, str) else type(event).__name__
