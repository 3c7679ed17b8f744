"""WebSocket, server side: a sans-I/O layer below any protocol of binary messages or of a stream.

Needs h11 and wsproto, of the extra `relay`.
"""

from ._client import WebSocketClient as WebSocketClient
from ._client import WebSocketURL as WebSocketURL
from ._client import open_websocket as open_websocket
from ._link import WebSocketLink as WebSocketLink
from ._message_socket import MessageSocket as MessageSocket
from ._websocket import DEFAULT_MAX_HANDSHAKE_SIZE as DEFAULT_MAX_HANDSHAKE_SIZE
from ._websocket import GOING_AWAY as GOING_AWAY
from ._websocket import NORMAL_CLOSURE as NORMAL_CLOSURE
from ._websocket import PROTOCOL_ERROR as PROTOCOL_ERROR
from ._websocket import WebSocket as WebSocket
