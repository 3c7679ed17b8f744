"""The options of a subscription in MQTT 5: one byte with each topic filter (section 3.8.3.1)."""

from __future__ import annotations

from typing import Final

from ._reasons import Reason
from ._topics import SHARED_PREFIX

HIGHEST_QOS: Final = 0x03
"""The QoS that is wanted; all that there is of it in MQTT 3.1.1."""

NO_LOCAL: Final = 0x04
"""Not what the client itself publishes."""

RETAIN_AS_PUBLISHED: Final = 0x08
"""RETAIN stays as it was published."""

RETAIN_HANDLING: Final = 0x30
"""Who is told what is retained: all who subscribe, or"""
RETAINED_TO_NEW: Final = 0x10
"""who had not subscribed to this before, or"""
RETAINED_TO_NONE: Final = 0x20
"""nobody."""

_RESERVED: Final = 0xC0


def options_fault(topic_filter: str, options: int) -> tuple[str, int] | None:
    """Say what is wrong with the options of a subscription, and what reason code that is."""
    if options & _RESERVED:
        return (
            f"options {options:#04x} have reserved bits set [MQTT-3.8.3-5]",
            Reason.MALFORMED_PACKET,
        )
    if options & HIGHEST_QOS == HIGHEST_QOS:
        return "QoS 3 is asked for; it is 0, 1 or 2 (section 3.8.3.1)", Reason.PROTOCOL_ERROR
    if options & RETAIN_HANDLING == RETAIN_HANDLING:
        return "retain handling is 3; it is 0, 1 or 2 (section 3.8.3.1)", Reason.PROTOCOL_ERROR
    if options & NO_LOCAL and topic_filter.startswith(SHARED_PREFIX):
        return "a shared subscription cannot be 'no local' [MQTT-3.8.3-4]", Reason.PROTOCOL_ERROR
    return None
