"""The properties of messages: opaque bytes here, which a protocol reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from .._events import Publication
from ._message import Message
from ._tables import Table


class Properties(Protocol):
    """Reads and writes the properties of messages. Given by the protocol; it must not await.

    Bytes that a peer has made wrong must not make any of these raise: they have no headers then.
    """

    def headers(self, message: Message) -> Table:
        """Return the header table of a message; `Message.headers` where that is there."""
        ...

    def with_headers(self, message: Message, headers: Table) -> Message:
        """Return a message with another header table, in its properties, too.

        The property `expiration` goes if `Message.expiration` is None. All others stay.
        """
        ...

    def from_publication(
        self, publication: Publication, exchange: str, routing_key: str, expiration: float | None
    ) -> Message:
        """Return a publication of MQTT as a message.

        Persistent with QoS 1 and 2; with the properties that both have: content type, correlation
        data, response topic, user properties; `expiration` in seconds, if it expires.
        """
        ...

    def to_publication(
        self, message: Message, topic: str, qos: int, expires: float | None
    ) -> Publication:
        """Return a message as a publication on `topic`, with the properties that both have.

        `expires` is on the wall clock; see `Publication`.
        """
        ...


class PlainProperties:
    """Properties of programs without a protocol: the headers are in `Message.headers` only."""

    def headers(self, message: Message) -> Table:
        """See `Properties.headers`."""
        return {} if message.headers is None else message.headers

    def with_headers(self, message: Message, headers: Mapping[str, object]) -> Message:
        """See `Properties.with_headers`."""
        return attrs.evolve(message, headers=headers)

    def from_publication(
        self, publication: Publication, exchange: str, routing_key: str, expiration: float | None
    ) -> Message:
        """See `Properties.from_publication`."""
        return Message(
            exchange, routing_key, b"", publication.payload,
            persistent=publication.qos > 0, expiration=expiration,
        )  # fmt: skip

    def to_publication(
        self, message: Message, topic: str, qos: int, expires: float | None
    ) -> Publication:
        """See `Properties.to_publication`."""
        return Publication(topic, message.body, qos, expires=expires)
