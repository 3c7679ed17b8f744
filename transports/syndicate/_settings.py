"""What the peers of a Syndicate server may make grow, and what is counted of them."""

from __future__ import annotations

from typing import Literal

import attrs

from ...accounts import DEFAULT_PATIENCE, Limit, StuckPolicy
from ._membrane import DEFAULT_MAX_ASSERTIONS, DEFAULT_MAX_REFERENCES
from ._scan import DEFAULT_MAX_DEPTH, DEFAULT_MAX_PACKET_SIZE
from ._scan_text import DEFAULT_MAX_TEXT_SIZE
from ._sturdy import DEFAULT_MAX_CAVEATS_SIZE


@attrs.frozen(slots=True, kw_only=True)
class SyndicateSettings:
    """What peers may make grow, how long they may take, and what is done as they expect it.

    Each has the precedent of its default, here or beside the constant. All times are in seconds.
    """

    limit: Limit = attrs.field(factory=Limit)
    """The debt of one connection above which it is not read."""
    max_connections: int = 10_000
    """Connections at a time, over all listeners; below the usual 20,000 descriptors of a process,
    with room for the listeners, the HTTP side and files."""
    max_packet_size: int = DEFAULT_MAX_PACKET_SIZE
    """Bytes of one packet."""
    max_text_size: int = DEFAULT_MAX_TEXT_SIZE
    """Bytes of one packet written as text."""
    max_depth: int = DEFAULT_MAX_DEPTH
    """How deep values in a packet may be nested, the packet itself included."""
    max_references: int = DEFAULT_MAX_REFERENCES
    """References that one side of a connection may know of the other's."""
    max_assertions: int = DEFAULT_MAX_ASSERTIONS
    """Assertions of one connection that may stand, in each direction."""
    max_observations: int = 1_000
    """Patterns that one connection may observe; as MQTT's `max_subscriptions`."""
    max_caveats_size: int = DEFAULT_MAX_CAVEATS_SIZE
    """Bytes of the caveats of one reference."""
    connect_timeout: float = 10.0
    """From the connection to the end of its first packet, the handshake of WebSocket included; as
    MQTT's, from the connection to its CONNECT."""
    idle_timeout: float | None = None
    """Without a packet; None for ever: the protocol has no keep-alive, and observers are silent."""
    patience: float = DEFAULT_PATIENCE
    """How long a peer on whom others wait may make no progress."""
    stuck: StuckPolicy = StuckPolicy.DISCONNECT
    """What happens to it then."""
    resolve_answer: Literal["ok", "accepted"] = "ok"
    """How a gatekeeper answers `<resolve ...>`: `<ok ref>` and `<error reason>`, as the protocol
    has it since September 2024 (gatekeeper.prs, rpc.prs), or `<accepted ref>` and
    `<rejected reason>`, as before and as syndicate-py 0.19.3 still expects it."""
    credit: Literal["off", "accept", "request"] = "accept"
    """The experimental credit on the wire (protocol.prs): not answered, given to peers who ask for
    it, or also asked for. To ask is no default: no other implementation is known to answer."""
    oid: str = "syndicate"
    """What the dataspace is called in sturdyrefs; as in syndicate-rs's configuration for its
    examples."""
    key: bytes | None = attrs.field(default=None, repr=False)
    """What sturdyrefs are checked against; None: there is no gatekeeper. Not in the `repr`."""


@attrs.define(slots=True)
class SyndicateCounters:
    """What has happened since the start; totals that never fall."""

    accepted: int = 0
    """Connections accepted."""
    refused: int = 0
    """Connections closed at once, because there were too many, and handshakes refused."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol."""
    timeouts: int = 0
    """Connections closed because the peer was silent for too long."""
    internal_errors: int = 0
    """Connections closed because of a fault of the relay's own; each is logged with its trace."""
    received: int = 0
    """Messages received."""
    received_bytes: int = 0
    """Bytes read from sockets."""
    rejected: int = 0
    """Messages that were not routed: caveats let nothing through, or over a quota."""
