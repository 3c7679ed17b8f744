"""The treatments of messages in a queue: which rules for slow consumers apply to them.

They depend on the topic (`PolicyRules`). Only whole frames have one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..access._subscription_policies import PolicyRule
from ..accounts import LoanedItem, StuckPolicy

if TYPE_CHECKING:
    from ..accounts import Holder
    from ._outlet_backlog import ConsumerPolicy


class Found:
    """Treatments of the messages in a line of loans that only grows at its end.

    Each chunk is scanned once, however often somebody asks: 8 MiB of short messages are a tenth of
    a second, and each check of a slow consumer asks several times. Once something has been taken
    off the front of the line, the result is of no use any more.
    """

    __slots__ = ("_chunks", "_loans", "_rules")

    def __init__(self) -> None:
        self._rules: set[PolicyRule] = set()
        # How many loans have been scanned, and how many chunks of the last of them.
        self._loans = self._chunks = 0

    def look(
        self, consumer_policy: ConsumerPolicy, loans: Iterable[LoanedItem[Any]], holder: Holder
    ) -> set[PolicyRule]:
        """Scan new chunks; return all treatments found."""
        found = self._rules
        if len(found) == len(consumer_policy.rules.every):
            return found
        # The last one may have grown.
        first = max(0, self._loans - 1)
        known = self._chunks
        for place, loan in enumerate(islice(loans, first, None), first + 1):
            chunks = loan.item
            if loan.holder is holder:
                _find(found, consumer_policy, islice(chunks, known, None))
            known = 0
            self._loans = place
            self._chunks = len(chunks)
        return found


def look_at(
    found: list[Found],
    consumer_policy: ConsumerPolicy,
    lines: Iterable[Iterable[LoanedItem[Any]]],
    holder: Holder,
) -> set[PolicyRule]:
    """Return the treatments of the messages in several lines; what is `found` is noted there."""
    rules: set[PolicyRule] = set()
    for place, line in enumerate(lines):
        if place == len(found):
            found.append(Found())
        rules |= found[place].look(consumer_policy, line, holder)
    return rules


def first_due(rules: Iterable[PolicyRule]) -> PolicyRule:
    """Return the treatment that is due first; to wait comes last."""
    order = list(StuckPolicy)
    return min(
        rules,
        key=lambda each: (
            each.policy is StuckPolicy.WAIT,
            each.patience,
            order.index(each.policy),
        ),
    )


def rules_of(
    consumer_policy: ConsumerPolicy, loans: Iterable[LoanedItem[Any]], holder: Holder
) -> set[PolicyRule]:
    """Return the treatments of the messages in some loans of a holder."""
    return Found().look(consumer_policy, loans, holder)


def _find(found: set[PolicyRule], consumer_policy: ConsumerPolicy, chunks: Iterable[bytes]) -> None:
    framing, rules = consumer_policy.framing, consumer_policy.rules
    for chunk in chunks:
        if len(found) == len(rules.every):
            return
        if framing.may_drop(chunk):
            found.update([rules.of(frame[0]) for frame in framing.frames(chunk)])
