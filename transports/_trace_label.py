"""A short label of an event's subject: for a trace, which shows nothing of its contents."""

from __future__ import annotations

from typing import Any, Final

from ..dataspace import Asserted, Batch, Foreign, Publication, Retracted

UNKNOWN: Final = "?"


def label_of(event: object) -> str:
    """Return a publication's topic, a record's label, else the name of its class.

    Of a run, the label of its first message. It never raises.
    """
    try:
        if type(event) is Batch and event.topic:
            # Done for each run where there is a journal; MQTT's connections know the topic.
            return event.topic
        return _label(event)
    except Exception:  # noqa: BLE001  (called in the middle of somebody's turn)
        return UNKNOWN


def _label(event: Any) -> str:
    if isinstance(event, Batch):
        return next((publication.topic for publication in event.events()), UNKNOWN)
    if isinstance(event, Publication):
        return event.topic
    if isinstance(event, Asserted):
        return f"assert {_label(event.value)}"
    if isinstance(event, Retracted):
        return f"retract {_label(event.value)}"
    first = getattr(event, "first", None)  # a run of Syndicate messages
    if callable(first):
        return _label(first())
    if isinstance(event, Foreign):
        value = getattr(event, "value", None)
        return _label(value()) if callable(value) else type(event).__name__
    # A record of the `preserves` library, which is optional.
    key = getattr(event, "key", None)
    name = getattr(key, "name", None)
    return name if isinstance(name, str) else type(event).__name__
