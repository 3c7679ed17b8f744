"""The limits that a server sets for a client: those of its CONNACK, and defaults for the rest."""

from __future__ import annotations

import attrs

from ._identifiers import MAX_PACKET_ID
from ._packets import ConnAck
from ._properties import NO_PROPERTIES, Properties


@attrs.frozen(kw_only=True)
class Granted:
    """Limits and demands of a server (MQTT 5, section 3.2.2.3).

    MQTT 3.1.1 cannot express them: there the defaults of MQTT 5 hold.
    """

    receive_maximum: int = MAX_PACKET_ID
    """The client's unacknowledged publications with QoS 1 and 2."""
    maximum_qos: int = 2
    """The highest QoS of publications."""
    retain_available: bool = True
    maximum_packet_size: int | None = None
    """Bytes; None: no limit."""
    topic_alias_maximum: int = 0
    """The largest topic alias that the client may use; 0: none."""
    keep_alive: int | None = None
    """Seconds, in place of those that the client asked for [MQTT-3.2.2-21]; 0: no keep-alive; None:
    as the client asked."""
    session_expiry: int | None = None
    """Seconds that the server keeps the session, if the client asked for something else."""
    client_id: str = ""
    """The identifier that the server has assigned, if any."""
    properties: Properties = NO_PROPERTIES
    """All properties of the CONNACK."""

    @classmethod
    def of(cls, packet: ConnAck) -> Granted:
        """Read a CONNACK that accepts."""
        said = packet.properties
        if said is NO_PROPERTIES:
            return cls()
        return cls(
            receive_maximum=said.receive_maximum or MAX_PACKET_ID,
            maximum_qos=2 if said.maximum_qos is None else said.maximum_qos,
            retain_available=said.retain_available != 0,
            maximum_packet_size=said.maximum_packet_size,
            topic_alias_maximum=said.topic_alias_maximum or 0,
            keep_alive=said.server_keep_alive,
            session_expiry=said.session_expiry,
            client_id=said.assigned_client_id or "",
            properties=said,
        )
