"""Answering for many numbers at once: the `multiple` flag."""

from bisect import bisect_left
from collections.abc import Iterable


def coalesce(
    numbers: Iterable[int], smallest_open: int | None, others: Iterable[int] = ()
) -> list[tuple[int, bool]]:
    """Put answers that say the same into as few as can be, and return them in order.

    An answer with the flag set stands for its number and for all smaller ones that nobody has
    answered, so everything below the smallest number that is still open, and below all those that
    are to be answered otherwise, goes into one; the rest goes singly, and so does a number that is
    alone.

    Source: RabbitMQ's coalesce_and_send (rabbit_channel.erl).

    Args:
        numbers: what is answered, in any order, with or without repetitions.
        smallest_open: the smallest number that there is no answer for yet; None if there is none.
        others: what is to be answered otherwise, at the same time.

    Returns:
        pairs of a number and its flag.
    """
    ordered = sorted(set(numbers))
    if not ordered:
        return []
    if len(ordered) == 1:
        return [(ordered[0], False)]
    cutoff = ordered[-1] + 1 if smallest_open is None else smallest_open
    cutoff = min(cutoff, min(others, default=cutoff))
    below = bisect_left(ordered, cutoff)
    swept = [(ordered[below - 1], True)] if below else []
    return swept + [(number, False) for number in ordered[below:]]
