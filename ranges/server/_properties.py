"""Checks of the properties that writers give their rows: MQTT 5 subscribers get them unchanged."""

from __future__ import annotations

from collections.abc import Iterable

from ...transports.mqtt.codec._packets import Publish
from ...transports.mqtt.codec._properties import (
    application_properties,
    decode_properties,
    variable_int,
)
from ...transports.mqtt.codec._reasons import ReasonedError


def properties_fault(found: Iterable[bytes]) -> str | None:
    """Return the fault of the first properties that may not travel; None if there is none."""
    for raw in found:
        try:
            decoded, _ = decode_properties(variable_int(len(raw)) + raw, 0, Publish.kind)
        except ReasonedError as exc:
            return f"a row has invalid properties: {exc}"
        if application_properties(decoded) != raw:
            return (
                "a row has properties that do not travel with a message; payload format, content "
                "type, response topic, correlation data and user properties do, in this order"
            )
    return None
