"""The stored state of a sink for a restart, without the staged parts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..wire import PartKey

if TYPE_CHECKING:
    from ._sink import Sink


def state_of(sink: Sink) -> bytes:
    """Return the state for a restart."""
    publishing = sink.publishing
    parts = None if publishing is None else [part.key[1:] for part in publishing.parts]
    return json.dumps(
        {
            "incarnation": sink.incarnation.hex(),
            "generation": sink.generation,
            "last": sink.last,
            "at": sink.committed_at,
            "publishing": parts,
        },
        separators=(",", ":"),
    ).encode()


def take_up(sink: Sink, state: bytes) -> list[PartKey] | None:
    """Restore a sink from the result of `state_of`.

    Returns:
        The parts of the batch that was being published, if there was one.

    Raises:
        ValueError: It is invalid.
    """
    try:
        found = json.loads(state)
        sink.incarnation = bytes.fromhex(found["incarnation"])
        sink.generation = int(found["generation"])
        sink.last = int(found["last"])
        sink.committed_at = float(found["at"])
        pairs = found["publishing"]
        return None if pairs is None else [PartKey(sink.last, int(p), int(a)) for p, a in pairs]
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"the stored state of writer {sink.sink} is none: {exc!r}"
        raise ValueError(msg) from exc
