"""The stored form of a persistent session, in JSON: its owner, its expiry, its subscriptions."""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from ..codec._frames import MAX_REMAINING_LENGTH
from ..codec._topics import is_shared, shared_fault, topic_filter_fault

AS_SET: Final = -1.0
"""The expiry of a session that follows the settings."""


@attrs.frozen(slots=True)
class StoredSession:
    """The stored form of a session, without its packet identifiers and its queue.

    Each filter is [text, granted] or, with MQTT 5, [text, granted, options, identifier]. There is
    an expiry only if the session has its own, and a client identifier only if it differs from the
    value's key. Older versions have no user, and do not escape the names of users; a value that
    needs neither is written in their format.
    """

    name: str
    left: float | None
    filters: list[tuple[str, int, int, int]]
    expiry: float | None = AS_SET
    user: str | None = None
    """Its user, if verified."""
    client: str | None = None
    is_older: bool = False

    @classmethod
    def of(cls, value: bytes) -> StoredSession:
        """Decode a stored session.

        Raises:
            ValueError: If it is malformed.
        """
        try:
            stored = json.loads(value)
            name, left, expiry = stored["name"], stored["left"], stored.get("expiry", AS_SET)
            if not isinstance(name, str) or not isinstance(left, float | int | None):
                raise TypeError("its name or its time has a wrong type")
            if not isinstance(expiry, float | int | None):
                raise TypeError("its expiry has a wrong type")
            user, client = stored.get("user"), stored.get("client")
            if not isinstance(user, str | None) or not isinstance(client, str | None):
                raise TypeError("its user or its client has a wrong type")
            filters = [(*each, 0, 0) if len(each) == 2 else each for each in stored["filters"]]
            for text, granted, options, identifier in filters:
                fault = shared_fault(text) if is_shared(text) else topic_filter_fault(text)
                if fault is not None or granted not in (0, 1, 2):
                    raise ValueError(fault or f"there is no QoS {granted}")
                if type(options) is not int or type(identifier) is not int:
                    raise TypeError("its options or its identifier have a wrong type")
                if not (0 <= options <= 0xFF and 0 <= identifier <= MAX_REMAINING_LENGTH):
                    raise ValueError(f"options {options} or identifier {identifier} out of range")
        except (TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from exc
        filters = [(t, g, o, i) for t, g, o, i in filters]
        return cls(name, left, filters, expiry, user, client, is_older="user" not in stored)

    def encode(self) -> bytes:
        """Return the stored form."""
        stored: dict[str, Any] = {
            "name": self.name,
            "left": self.left,
            "filters": [each if each[2] or each[3] else each[:2] for each in self.filters],
        }
        if self.user is not None or "%" in self.name:
            stored["user"] = self.user
        if self.expiry != AS_SET:
            stored["expiry"] = self.expiry
        if self.client is not None:
            stored["client"] = self.client
        return json.dumps(stored, separators=(",", ":")).encode()
