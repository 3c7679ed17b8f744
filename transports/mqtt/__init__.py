"""MQTT 3.1.1: packets, a core without I/O that both sides share, and a small client."""

from ._frames import DEFAULT_MAX_PACKET_SIZE as DEFAULT_MAX_PACKET_SIZE
from ._packets import SUBSCRIPTION_FAILED as SUBSCRIPTION_FAILED
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
from ._topics import TopicLimits as TopicLimits
