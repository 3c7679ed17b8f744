"""paho-mqtt, driven by the commands of `tests.clients.peers`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

if TYPE_CHECKING:  # its types are not whole
    Properties: Any
else:
    from paho.mqtt.properties import Properties

NAMES = {
    "user": "UserProperty",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation": "CorrelationData",
    "message_expiry": "MessageExpiryInterval",
    "alias": "TopicAlias",
}
"""Properties of a publication, as the tests call them."""


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event} | more), flush=True)


class Client:
    def connect(self, command: dict[str, Any]) -> None:
        self.five = command["version"] == 5
        options: dict[str, Any] = {} if self.five else {"clean_session": command["clean"]}
        client = self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            command["id"],
            protocol=paho.MQTTv5 if self.five else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=command.get("manual", False),
            **options,
        )
        client.on_connect = self.on_connect
        client.on_message = self.on_message
        client.on_subscribe = lambda _c, _u, _m, codes, _p: say(
            "suback", codes=[each.value for each in codes]
        )
        client.on_publish = lambda _c, _u, _m, code, _p: say("puback", code=code.value)
        client.on_disconnect = lambda _c, _u, _f, code, _p: say("closed", code=code.value)
        if "user" in command:
            client.username_pw_set(command["user"], command["password"])
        if will := command.get("will"):
            client.will_set(will["topic"], will["payload"], will["qos"], will["retain"])
        wanted: dict[str, Any] = {}
        if self.five:
            said = Properties(PacketTypes.CONNECT)
            said.SessionExpiryInterval = command.get("expiry", 0)
            said.TopicAliasMaximum = command.get("aliases", 0)
            if "maximum_packet" in command:
                said.MaximumPacketSize = command["maximum_packet"]
            wanted = {"clean_start": command["clean"], "properties": said}
        client.connect("127.0.0.1", command["port"], keepalive=command["keep_alive"], **wanted)
        client.loop_start()

    def on_connect(self, _c: Any, _u: Any, flags: Any, code: Any, properties: Any) -> None:
        say(
            "connack",
            code=code.value,
            present=flags.session_present,
            assigned=getattr(properties, "AssignedClientIdentifier", None),
            keep_alive=getattr(properties, "ServerKeepAlive", None),
        )

    def on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        said = message.properties
        correlation = getattr(said, "CorrelationData", None)
        say(
            "message",
            topic=message.topic,
            payload=message.payload.decode(),
            qos=message.qos,
            retain=message.retain,
            dup=message.dup,
            user=getattr(said, "UserProperty", []),
            content_type=getattr(said, "ContentType", None),
            response_topic=getattr(said, "ResponseTopic", None),
            correlation=correlation.decode() if correlation else None,
            message_expiry=getattr(said, "MessageExpiryInterval", None),
            alias=getattr(said, "TopicAlias", None),
            identifiers=getattr(said, "SubscriptionIdentifier", []),
        )

    def subscribe(self, command: dict[str, Any]) -> None:
        if not self.five:
            self.client.subscribe(command["filter"], command["qos"])
            return
        said = Properties(PacketTypes.SUBSCRIBE)
        if "identifier" in command:
            said.SubscriptionIdentifier = command["identifier"]
        options = SubscribeOptions(qos=command["qos"])
        self.client.subscribe(command["filter"], options=options, properties=said)

    def publish(self, command: dict[str, Any]) -> None:
        said = Properties(PacketTypes.PUBLISH) if self.five else None
        for name, value in command.get("properties", {}).items():
            if name == "user":
                value = [tuple(pair) for pair in value]
            elif name == "correlation":
                value = value.encode()
            setattr(said, NAMES[name], value)
        self.client.publish(
            command["topic"], command["payload"], command["qos"], command["retain"], said
        )

    def disconnect(self, _: dict[str, Any]) -> None:
        self.client.disconnect()


client = Client()
for line in sys.stdin:
    command = json.loads(line)
    getattr(client, command["do"])(command)
