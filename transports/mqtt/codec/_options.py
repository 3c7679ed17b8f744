"""The options of a subscription in MQTT 5: one byte for each topic filter (section 3.8.3.1)."""

from __future__ import annotations

from typing import Final

from ._reasons import Reason
from ._topics import SHARED_PREFIX

HIGHEST_QOS: Final = 0x03
"""The highest QoS wanted; MQTT 3.1.1 has only this option."""

NO_LOCAL: Final = 0x04
"""Leave out the client's own publications."""

RETAIN_AS_PUBLISHED: Final = 0x08
"""Leave RETAIN as published."""

RETAIN_HANDLING: Final = 0x30
"""When to send retained messages; 0: at each SUBSCRIBE."""
RETAINED_TO_NEW: Final = 0x10
"""Only if the client had no such subscription before."""
RETAINED_TO_NONE: Final = 0x20
"""Never."""

_RESERVED: Final = 0xC0


def options_fault(topic_filter: str, options: int) -> tuple[str, int] | None:
    """Return the fault of a subscription's options, and its reason code; None: no fault."""
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
