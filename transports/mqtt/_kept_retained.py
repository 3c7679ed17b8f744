"""Retained publications that outlive the relay (section 3.3.1.3): small values in its store."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ...accounts import Ledger, QuotaExceededError
from ...dataspace import Publication, RetainedStore
from ._kept import Keeping
from ._topics import topic_name_fault

logger = logging.getLogger("clearfunds.transports.mqtt")

RETAINED_PREFIX = "mqtt/retained/"

HIGHEST_QOS = 2


def keep_retained(
    retained: RetainedStore, ledger: Ledger, keeping: Keeping, values: Mapping[str, bytes]
) -> None:
    """Take up the retained publications from before a restart, and keep those that come.

    Args:
        retained: Where they are.
        ledger: Whose quotas they stand on (rule 16).
        keeping: What they are kept in.
        values: All that was kept there.
    """
    for key, value in values.items():
        if not key.startswith(RETAINED_PREFIX):
            continue
        try:
            publication, owner = _decoded(key.removeprefix(RETAINED_PREFIX), value)
        except ValueError as exc:
            logger.error(
                "what is kept as %r is no retained publication: %s",
                key,
                exc,
                extra={"event": "unreadable", "key": key},
            )
            continue
        try:
            retained.set(publication, ledger.standing_of(owner))
        except QuotaExceededError as exc:
            # The limits are lower than they were. It stays on disk, for when they are not.
            logger.warning("a retained publication is not taken up: %s", exc)

    def changed(topic: str, publication: Publication | None, owner: str) -> None:
        if publication is None:
            keeping.delete(RETAINED_PREFIX + topic)
        else:
            keeping.set(RETAINED_PREFIX + topic, _encoded(publication, owner))

    retained.on_change = changed


def _encoded(publication: Publication, owner: str) -> bytes:
    name = owner.encode()
    return bytes((publication.qos,)) + len(name).to_bytes(4, "big") + name + publication.payload


def _decoded(topic: str, value: bytes) -> tuple[Publication, str]:
    end = 5 + int.from_bytes(value[1:5], "big")
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ValueError(fault)
    if len(value) <= end or value[0] > HIGHEST_QOS:
        raise ValueError(f"{len(value)} bytes: its QoS, its owner or its payload is missing")
    publication = Publication(topic, value[end:], value[0], retain=True)
    return publication, value[5:end].decode()
