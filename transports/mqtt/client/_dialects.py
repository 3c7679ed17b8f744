"""Encoding of a client's publications, in each version of MQTT, within the server's limits.

The client refuses a publication that the server would not accept: the server would end the
connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ..._errors import LocalProtocolError
from ..codec._frames import body_of
from ..codec._granted import Granted
from ..codec._packets import Packet, Publish, encode, encode_publish
from ..codec._packets5 import encode5, encode_publish5
from ..codec._properties import NO_PROPERTIES, Properties, bare_properties


class Dialect:
    """MQTT 3.1.1.

    Attributes:
        granted: The server's limits for the client.
        encode: Encodes a packet.
    """

    encode: Callable[[Packet], bytes] = staticmethod(encode)

    def __init__(self, granted: Granted) -> None:
        self.granted = granted

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        packet_id: int,
        properties: Properties,
    ) -> bytes:
        """Encode a PUBLISH.

        Raises:
            LocalProtocolError: it is malformed, or beyond the server's limits.
        """
        if properties is not NO_PROPERTIES and properties != NO_PROPERTIES:
            raise LocalProtocolError(
                "PUBLISH of MQTT 3.1.1 cannot carry properties: open with version='5'"
            )
        return encode_publish(topic, payload, qos, retain, False, packet_id)

    def publish_again(
        self, frame: bytes, topic: str, payload: bytes, retain: bool, properties: Properties
    ) -> bytes:
        """Return a PUBLISH to send again on another connection: without its alias, and without DUP.

        Args:
            frame: The PUBLISH as it was sent.
            topic: The topic it was made of.
            payload: Its payload.
            retain: Its RETAIN flag.
            properties: Its properties.
        """
        return frame


class Dialect5(Dialect):
    """MQTT 5."""

    encode = staticmethod(encode5)

    def __init__(self, granted: Granted) -> None:
        super().__init__(granted)
        # The topics of the aliases sent on this connection.
        self._topics: dict[int, str] = {}

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        packet_id: int,
        properties: Properties,
    ) -> bytes:
        granted = self.granted
        if qos > granted.maximum_qos:
            raise LocalProtocolError(
                f"the server takes QoS {granted.maximum_qos} at the most, not {qos} [MQTT-3.2.2-11]"
            )
        if retain and not granted.retain_available:
            raise LocalProtocolError("the server retains nothing [MQTT-3.2.2-14]")
        encoded = b""
        alias = None
        if properties is not NO_PROPERTIES:
            encoded = bare_properties(properties, Publish.kind)
            alias = properties.topic_alias
            if alias is not None:
                self._check_alias(alias, topic)
            if properties.subscription_ids:
                raise LocalProtocolError(
                    "a client's PUBLISH has no subscription identifier [MQTT-3.3.4-6]"
                )
        frame = encode_publish5(topic, payload, qos, retain, False, packet_id, encoded)
        largest = granted.maximum_packet_size
        if largest is not None and len(frame) > largest:
            raise LocalProtocolError(
                f"a PUBLISH of {len(frame)} bytes is more than the {largest} that the server takes "
                "[MQTT-3.2.2-15]"
            )
        if alias is not None and topic:
            self._topics[alias] = topic
        return frame

    def publish_again(
        self, frame: bytes, topic: str, payload: bytes, retain: bool, properties: Properties
    ) -> bytes:
        alias = properties.topic_alias
        if alias is None:
            return frame
        encoded = bare_properties(attrs.evolve(properties, topic_alias=None), Publish.kind)
        qos = frame[0] >> 1 & 3
        # The packet identifier stands behind the topic, whether that is empty or not.
        at = body_of(frame, 0)[0]
        at += 2 + (frame[at] << 8 | frame[at + 1])
        packet_id = frame[at] << 8 | frame[at + 1]
        named = topic or self._topics[alias]
        return encode_publish5(named, payload, qos, retain, False, packet_id, encoded)

    def _check_alias(self, alias: int, topic: str) -> None:
        most = self.granted.topic_alias_maximum
        if alias > most:
            raise LocalProtocolError(
                f"the server takes topic aliases up to {most}, not {alias} [MQTT-3.3.2-9]"
            )
        if not topic and alias not in self._topics:
            raise LocalProtocolError(
                f"topic alias {alias} has not been given a topic on this connection yet "
                "(section 3.3.2.3.4)"
            )


DIALECTS: Final = {"3.1.1": Dialect, "5": Dialect5}
