"""What the peers of a server may make grow, and how long they may take, whatever they speak."""

from __future__ import annotations

import attrs

from ..accounts import DEFAULT_PATIENCE, Limit, StuckPolicy


@attrs.frozen(slots=True, kw_only=True)
class ServerSettings:
    """What holds for the peers of every protocol; each with the precedent of its default.

    All times are in seconds.
    """

    limit: Limit = attrs.field(factory=Limit)
    """The debt of one connection above which it is not read."""
    max_connections: int = 10_000
    """Connections at a time, over all listeners; below the usual 20,000 descriptors of a process,
    with room for the listeners, the HTTP side and files."""
    connect_timeout: float = 10.0
    """From the connection to the end of its first packet, which is CONNECT with MQTT; the handshake
    of WebSocket included. HiveMQ's and EMQX's idle time-outs are 10 and 15."""
    idle_timeout: float | None = None
    """Without a packet, where the peer names no time itself, as MQTT's keep-alive does unless it is
    0; None for ever: observers are silent."""
    patience: float = DEFAULT_PATIENCE
    """How long a peer on whom others wait may make no progress."""
    stuck: StuckPolicy = StuckPolicy.DISCONNECT
    """What happens to it then."""
