"""Finding a place that is given as a time."""

from __future__ import annotations

from datetime import UTC, datetime

from ...ranges.client import Head, RangeReader
from .._errors import OptionError
from ._options import Moment


def place_of(wanted: Moment, reader: RangeReader, head: Head, name: str) -> int:
    """Return the number of the first message that came at a time, or later.

    Some twenty messages are asked for: half of those left are ruled out each time.

    Args:
        wanted: The time.
        reader: A reader of the subscription.
        head: The messages that are there.
        name: The option that gave it.

    Raises:
        OptionError: If there is none, and that is an error.
        RangeError: The client's.
    """
    low, high = head
    while low < high:
        middle = (low + high) // 2
        block = next(reader.fetch(middle, middle + 1))
        if block.times[0] < wanted.time_us:
            low = middle + 1
        else:
            high = middle
    if low == head.next and not wanted.latest:
        when = datetime.fromtimestamp(wanted.time_us / 1e6, UTC).isoformat(" ", "milliseconds")
        raise OptionError(
            f"the option {name!r} is {when}, and no message came so late; let the option "
            "'startingOffsetsByTimestampStrategy' be 'latest' to begin with the next one"
        )
    return low
