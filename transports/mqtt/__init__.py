"""MQTT: packets of 3.1.1 and 5, a core without I/O, and a small client (of 3.1.1).

`Connection` speaks both as a server, each with whoever asks for it; as a client it speaks 3.1.1.
"""

from .._need_data import NEED_DATA as NEED_DATA
from .._need_data import NeedData as NeedData
from ._client import MqttClient as MqttClient
from ._client import MqttClientStatistics as MqttClientStatistics
from ._client_errors import ConnectionLostError as ConnectionLostError
from ._client_errors import ConnectRefusedError as ConnectRefusedError
from ._client_errors import SubscriptionRefusedError as SubscriptionRefusedError
from ._client_session import ClientSession as ClientSession
from ._connection import Connection as Connection
from ._connection import Role as Role
from ._connection import State as State
from ._frames import DEFAULT_MAX_PACKET_SIZE as DEFAULT_MAX_PACKET_SIZE
from ._frames import encode_remaining_length as encode_remaining_length
from ._identifiers import MAX_PACKET_ID as MAX_PACKET_ID
from ._identifiers import AwaitingRelease as AwaitingRelease
from ._identifiers import PacketIds as PacketIds
from ._open import MQTT_PORT as MQTT_PORT
from ._open import MQTT_TLS_PORT as MQTT_TLS_PORT
from ._open import open_mqtt as open_mqtt
from ._packets import SUBSCRIPTION_FAILED as SUBSCRIPTION_FAILED
from ._packets import Auth as Auth
from ._packets import ConnAck as ConnAck
from ._packets import Connect as Connect
from ._packets import ConnectReturnCode as ConnectReturnCode
from ._packets import Disconnect as Disconnect
from ._packets import Packet as Packet
from ._packets import PingReq as PingReq
from ._packets import PingResp as PingResp
from ._packets import PubAck as PubAck
from ._packets import PubComp as PubComp
from ._packets import Publish as Publish
from ._packets import PubRec as PubRec
from ._packets import PubRel as PubRel
from ._packets import SubAck as SubAck
from ._packets import Subscribe as Subscribe
from ._packets import UnacceptableConnectError as UnacceptableConnectError
from ._packets import UnsubAck as UnsubAck
from ._packets import Unsubscribe as Unsubscribe
from ._packets import Will as Will
from ._packets import decode as decode
from ._packets import encode as encode
from ._packets5 import PROTOCOL_LEVEL_5 as PROTOCOL_LEVEL_5
from ._packets5 import decode5 as decode5
from ._packets5 import encode5 as encode5
from ._passwords import Authenticator as Authenticator
from ._passwords import PasswordFileError as PasswordFileError
from ._passwords import Passwords as Passwords
from ._properties import NO_PROPERTIES as NO_PROPERTIES
from ._properties import Properties as Properties
from ._reasons import Reason as Reason
from ._reasons import ReasonedError as ReasonedError
from ._topics import TopicLimits as TopicLimits
