"""WebSocket, server side: a sans-I/O layer under any protocol of binary messages.

Needs h11 and wsproto, of the extra `relay`.
"""

from ._websocket import DEFAULT_MAX_HANDSHAKE_SIZE as DEFAULT_MAX_HANDSHAKE_SIZE
from ._websocket import WebSocket as WebSocket
