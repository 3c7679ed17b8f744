"""Blocks of rows for the tests of writers."""

from __future__ import annotations

from collections.abc import Sequence

from clearfunds.dataspace import Publication
from clearfunds.ranges.wire import RETAIN
from clearfunds.ranges.wire import encode_rows as encode


def encode_rows(rows: Sequence[Publication]) -> bytes:
    """Return the block of these rows."""
    return encode(
        [row.topic.encode() for row in rows],
        [row.payload for row in rows],
        bytes(row.qos | (RETAIN if row.retain else 0) for row in rows),
    )
