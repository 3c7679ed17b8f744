"""Retained publications that outlive the relay (section 3.3.1.3): small values in its store.

A value: a byte with the QoS and flags; the owner's name, with its length in front (u32); the time
of expiry (a double), if any; the properties (MQTT 5), if any, with their length in front (u32); the
payload. Values of older versions have neither flag, and neither field.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping

from ....accounts import Ledger, QuotaExceededError
from ....dataspace import Publication, RetainedStore
from ..codec._topics import topic_name_fault
from ._persistent_session import Persistence

logger = logging.getLogger("clearfunds.transports.mqtt")

RETAINED_PREFIX = "mqtt/retained/"

HIGHEST_QOS = 2

_QOS = 3
_EXPIRES = 4
_PROPERTIES = 8

_DOUBLE = struct.Struct(">d")


def persist_retained(
    retained: RetainedStore, ledger: Ledger, persistence: Persistence, values: Mapping[str, bytes]
) -> None:
    """Restore the retained publications from before a restart, and persist new ones.

    Publications that have expired meanwhile are dropped.

    Args:
        retained: The retained publications.
        ledger: Its accounts' quotas cover them (rule 16).
        persistence: The store.
        values: All values in the store.
    """
    now = retained.wall()
    for key, value in values.items():
        if not key.startswith(RETAINED_PREFIX):
            continue
        try:
            publication, owner = decode_retained(key.removeprefix(RETAINED_PREFIX), value)
        except ValueError as exc:
            logger.error(
                "the stored value %r is not a retained publication: %s",
                key,
                exc,
                extra={"event": "unreadable", "key": key},
            )
            continue
        if publication.has_expired(now):
            persistence.delete(key)
            continue
        try:
            retained.set(publication, ledger.standing_of(owner))
        except QuotaExceededError as exc:
            # The limits are lower than before. It stays on disk until they are raised.
            logger.warning("a retained publication is not restored: %s", exc)

    def changed(topic: str, publication: Publication | None, owner: str) -> None:
        if publication is None:
            persistence.delete(RETAINED_PREFIX + topic)
        else:
            persistence.set(RETAINED_PREFIX + topic, encode_retained(publication, owner))

    retained.on_change = changed


def encode_retained(publication: Publication, owner: str) -> bytes:
    """Return a retained publication as a value; its key has its topic."""
    name = owner.encode()
    expires, properties = publication.expires, publication.properties
    first = publication.qos
    parts = [len(name).to_bytes(4, "big"), name]
    if expires is not None:
        first |= _EXPIRES
        parts.append(_DOUBLE.pack(expires))
    if properties:
        first |= _PROPERTIES
        parts += (len(properties).to_bytes(4, "big"), properties)
    return b"".join((bytes((first,)), *parts, publication.payload))


def decode_retained(topic: str, value: bytes) -> tuple[Publication, str]:
    """Return a retained publication and its owner's name from a value.

    Raises:
        ValueError: It is none.
    """
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ValueError(fault)
    first = value[0] if value else 0
    at = 5 + int.from_bytes(value[1:5], "big")
    owner = value[5:at]
    expires: float | None = None
    properties = b""
    if first & _EXPIRES:
        if len(value) >= at + _DOUBLE.size:
            (expires,) = _DOUBLE.unpack_from(value, at)
        at += _DOUBLE.size
    if first & _PROPERTIES:
        start = at + 4
        at = start + int.from_bytes(value[at:start], "big")
        properties = value[start:at]
    if len(value) <= at or first & _QOS > HIGHEST_QOS or first > _QOS | _EXPIRES | _PROPERTIES:
        raise ValueError(f"{len(value)} bytes: its QoS, its owner or its payload is missing")
    publication = Publication(
        topic,
        value[at:],
        first & _QOS,
        retain=True,
        properties=properties,
        expires=expires,
    )
    return publication, owner.decode()
