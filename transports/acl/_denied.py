"""Counts of what was refused for want of a permission."""

from __future__ import annotations

import attrs


@attrs.define(slots=True)
class Denied:
    """What was refused since the start; totals that never fall."""

    publish: int = 0
    """Publications that were not routed."""
    subscribe: int = 0
    """Topic filters that were refused: nothing that they match may be read."""
    will: int = 0
    """Wills that were not published."""
    queued: int = 0
    """Messages that were queued and may not be read any more."""
    connection: int = 0
    """Connections cut because bytes were on their way that may not be read any more."""
