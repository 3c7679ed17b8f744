"""A label for an event, in a word or two."""

from __future__ import annotations

from typing import Any


def label_of(event: object) -> str:
    """Return the topic of an event, else the name of its class; never its content."""
    topic: Any = getattr(event, "topic", None)
    return topic if isinstance(topic, str) else type(event).__name__
