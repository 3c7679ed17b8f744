"""MQTT 3.1.1 and 5 (and 3.1): packets, a core without I/O, and a small client.

`Connection` speaks all of them, each as CONNECT asks for it.
"""

from .._need_data import NEED_DATA as NEED_DATA
from .._need_data import NeedData as NeedData
from .client._client import MqttClient as MqttClient
from .client._client import MqttClientStatistics as MqttClientStatistics
from .client._errors import ConnectionLostError as ConnectionLostError
from .client._errors import ConnectRefusedError as ConnectRefusedError
from .client._errors import PublicationRefusedError as PublicationRefusedError
from .client._errors import SubscriptionRefusedError as SubscriptionRefusedError
from .client._open import MQTT_PORT as MQTT_PORT
from .client._open import MQTT_TLS_PORT as MQTT_TLS_PORT
from .client._open import open_mqtt as open_mqtt
from .client._session import ClientSession as ClientSession
from .codec._connection import Connection as Connection
from .codec._connection import Role as Role
from .codec._connection import State as State
from .codec._frames import DEFAULT_MAX_PACKET_SIZE as DEFAULT_MAX_PACKET_SIZE
from .codec._frames import encode_remaining_length as encode_remaining_length
from .codec._granted import Granted as Granted
from .codec._identifiers import MAX_PACKET_ID as MAX_PACKET_ID
from .codec._identifiers import AwaitingRelease as AwaitingRelease
from .codec._identifiers import PacketIds as PacketIds
from .codec._packets import SUBSCRIPTION_FAILED as SUBSCRIPTION_FAILED
from .codec._packets import Auth as Auth
from .codec._packets import ConnAck as ConnAck
from .codec._packets import Connect as Connect
from .codec._packets import ConnectReturnCode as ConnectReturnCode
from .codec._packets import Disconnect as Disconnect
from .codec._packets import Packet as Packet
from .codec._packets import PingReq as PingReq
from .codec._packets import PingResp as PingResp
from .codec._packets import PubAck as PubAck
from .codec._packets import PubComp as PubComp
from .codec._packets import Publish as Publish
from .codec._packets import PubRec as PubRec
from .codec._packets import PubRel as PubRel
from .codec._packets import SubAck as SubAck
from .codec._packets import Subscribe as Subscribe
from .codec._packets import UnacceptableConnectError as UnacceptableConnectError
from .codec._packets import UnsubAck as UnsubAck
from .codec._packets import Unsubscribe as Unsubscribe
from .codec._packets import Will as Will
from .codec._packets import decode as decode
from .codec._packets import encode as encode
from .codec._packets5 import PROTOCOL_LEVEL_5 as PROTOCOL_LEVEL_5
from .codec._packets5 import decode5 as decode5
from .codec._packets5 import encode5 as encode5
from .codec._properties import NO_PROPERTIES as NO_PROPERTIES
from .codec._properties import Properties as Properties
from .codec._reasons import Reason as Reason
from .codec._reasons import ReasonedError as ReasonedError
from .codec._reasons import in_words as in_words
from .codec._topics import TopicLimits as TopicLimits
