"""Answers for many numbers at once: the `multiple` flag."""

from bisect import bisect_left
from collections.abc import Iterable


def coalesce(
    numbers: Iterable[int], smallest_open: int | None, others: Iterable[int] = ()
) -> list[tuple[int, bool]]:
    """Merge equal answers into as few as possible, and return them in order.

    An answer with the flag set stands for its number and for all smaller ones that are not
    answered. So all numbers below the smallest open one, and below all numbers with another answer,
    go into one; the rest go singly, and so does a number that is alone.

    Source: RabbitMQ's coalesce_and_send (rabbit_channel.erl).

    Args:
        numbers: the numbers to answer, in any order, with or without repetitions.
        smallest_open: the smallest number that there is no answer for yet; None if there is none.
        others: numbers that get another answer at the same time.

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
