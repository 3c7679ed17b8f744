"""Limits on the peers of a Syndicate server, and the variants of the protocol that it speaks."""

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
    """Limits on peers beyond those of every server, and variants of the protocol.

    Each default has its precedent here or beside the constant.
    """

    max_packet_size: int = DEFAULT_MAX_PACKET_SIZE
    """Bytes of one packet."""
    max_text_size: int = DEFAULT_MAX_TEXT_SIZE
    """Bytes of one packet written as text."""
    max_depth: int = DEFAULT_MAX_DEPTH
    """Deepest nesting of values in a packet, the packet included."""
    max_references: int = DEFAULT_MAX_REFERENCES
    """References that one side of a connection may know of the other's."""
    max_assertions: int = DEFAULT_MAX_ASSERTIONS
    """Live assertions of one connection, in each direction."""
    max_observations: int = 1_000
    """Patterns that one connection may observe; as MQTT's `max_subscriptions`."""
    max_turn_deliveries: int = 100_000
    """Deliveries that the events of one packet may cause, without those of the last event: a sender
    cannot know how many peers observe one event. As many as one connection may have standing by
    default (`DEFAULT_STANDING_ITEMS`), told to one observer; it takes about a second."""
    max_caveats_size: int = DEFAULT_MAX_CAVEATS_SIZE
    """Bytes of the caveats of one reference."""
    resolve_answer: Literal["ok", "accepted"] = "ok"
    """The form of a gatekeeper's answer to `<resolve ...>`: `<ok ref>` and `<error reason>`, the
    protocol since September 2024 (gatekeeper.prs, rpc.prs), or `<accepted ref>` and
    `<rejected reason>`, the form before, which syndicate-py 0.19.3 still expects."""
    turn_credit: Literal["off", "accept", "request"] = "accept"
    """Credit for turns, an experimental extension (protocol.prs): not answered, given to peers
    that ask for it, or also asked for. Asking is not the default: no other implementation is known
    to answer."""
    oid: str = "syndicate"
    """The name of the dataspace in sturdyrefs; as in syndicate-rs's configuration for its
    examples."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect over WebSocket, such as `https://example.com`; empty:
    the same host only; `*`: any."""
    key: bytes | None = attrs.field(default=None, repr=False)
    """The key to check sturdyrefs against; None: there is no gatekeeper. Not in the `repr`."""
