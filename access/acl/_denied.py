"""Counts of operations refused by authorisation."""

from __future__ import annotations

import attrs


@attrs.define(slots=True)
class Denied:
    """Refusals since the start; totals that never fall."""

    publish: int = 0
    """Publications that were not routed."""
    subscribe: int = 0
    """Topic filters that were refused: nothing that they match may be read."""
    will: int = 0
    """Wills that were not published."""
    queued: int = 0
    """Queued messages that may no longer be read."""
    connection: int = 0
    """Connections cut because output that may no longer be read was on its way."""
