"""What the peers of a Syndicate server may make grow, and what is done as they expect it."""

from __future__ import annotations

from typing import Literal

import attrs

from .._settings import ServerSettings
from ._membrane import DEFAULT_MAX_ASSERTIONS, DEFAULT_MAX_REFERENCES
from ._scan import DEFAULT_MAX_DEPTH, DEFAULT_MAX_PACKET_SIZE
from ._scan_text import DEFAULT_MAX_TEXT_SIZE
from ._sturdy import DEFAULT_MAX_CAVEATS_SIZE


@attrs.frozen(slots=True, kw_only=True)
class SyndicateSettings(ServerSettings):
    """What peers may make grow besides, and what is done as they expect it.

    Each has the precedent of its default, here or beside the constant.
    """

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
    max_turn_deliveries: int = 100_000
    """Deliveries that the events of one packet may cause, but for the last of them: how many
    observe one event is not its sender's to say. As many as one connection may have standing by
    default (`DEFAULT_STANDING_ITEMS`), told to one observer; it takes about a second."""
    max_caveats_size: int = DEFAULT_MAX_CAVEATS_SIZE
    """Bytes of the caveats of one reference."""
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
    origins: tuple[str, ...] = ()
    """Whose pages may connect over WebSocket, as `https://example.com`; none: those of the same
    host; `*`: anybody's."""
    key: bytes | None = attrs.field(default=None, repr=False)
    """What sturdyrefs are checked against; None: there is no gatekeeper. Not in the `repr`."""
