"""The queue of one consumer, with its policies for when it is slow, and which of them is due next.

Rules of this file:
1. Where one policy is for all messages, none is looked at.
2. Where the policy depends on the topic, the messages here decide. They are looked at when somebody
   asks, each once. In an incomplete send they cannot be told apart any more: what is for them is
   noted when the send begins.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ..access._subscription_policies import PolicyRule
from ..accounts import DEFAULT_PATIENCE, RETAIN_LIMIT, LoanedItem, LoanQueue, StuckPolicy
from ._treatments import Found, first_due, look_at, rules_of

if TYPE_CHECKING:
    from ..accounts import Ledger, Limit
    from ._outlet_backlog import ConsumerPolicy, OutletBacklog

NO_RULES: Final[frozenset[PolicyRule]] = frozenset()


class ConsumerQueue(LoanQueue):
    """The queue of one consumer.

    Attributes:
        begun_rules: The treatments of the messages in the last, incomplete send.

    Raises:
        UnfitPolicyError: If it does not support its policy.
    """

    __slots__ = ("_consumer_policy", "_lagging", "_unbegun", "begun_rules")

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        consumer_policy: ConsumerPolicy | None,
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        retain_limit: Limit = RETAIN_LIMIT,
    ) -> None:
        self._consumer_policy = consumer_policy
        super().__init__(ledger, name, patience=patience, policy=policy, retain_limit=retain_limit)
        self._lagging: OutletBacklog | None = None
        self.begun_rules: set[PolicyRule] | frozenset[PolicyRule] = NO_RULES
        # The treatments of the messages after those, line by line, as far as somebody has asked.
        self._unbegun: list[Found] | None = None

    @property
    @abc.abstractmethod
    def blocked(self) -> bool:
        """Whether the consumer takes nothing at the moment."""

    @abc.abstractmethod
    def _lines(self) -> Iterable[Iterable[LoanedItem[Any]]]:
        """Return what waits here, without the incomplete send.

        Until one is taken off, new lines come last.
        """

    def deal_by(self, consumer_policy: ConsumerPolicy) -> None:
        """Use these policies from now on, including those that `consumer_policy` makes possible.

        Raises:
            UnfitPolicyError: If something is to be spilled, and there is no place for it.
        """
        rules = consumer_policy.rules
        if consumer_policy.open_spool is None and StuckPolicy.SPILL in rules.policies:
            super().check_policy(StuckPolicy.SPILL)
        self._consumer_policy = consumer_policy
        self._unbegun = None
        self.patience = rules.patience
        self.policy = rules.default.policy

    @property
    def consumer_policy(self) -> ConsumerPolicy | None:
        """The policies for it as a slow consumer, if `deal_by` has set them."""
        return self._consumer_policy

    def check_policy(self, policy: StuckPolicy) -> None:
        consumer_policy = self._consumer_policy
        if consumer_policy is None or policy not in consumer_policy.rules.policies:
            super().check_policy(policy)

    @property
    def policy(self) -> StuckPolicy:
        """See `Holder.policy`; where it depends on the topic, the messages here decide.

        The policy whose patience is over first comes first; to wait comes last.
        """
        due = self._due()
        return self._policy if due is None else due.policy

    @policy.setter
    def policy(self, policy: StuckPolicy) -> None:
        self.set_policy(policy)

    @property
    def patience(self) -> float:
        """See `Holder.patience`; that of the next policy, where it depends on the topic."""
        # A holder that has just made progress needs no closer look.
        if self.ledger.clock() - self.progressed_at < self._patience:
            return self._patience
        due = self._due()
        return self._patience if due is None else due.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self.set_patience(seconds)

    def _due(self) -> PolicyRule | None:
        """Return the treatment that is due next; None: one treatment is for everything."""
        consumer_policy, full = self._consumer_policy, self.full_patience
        if consumer_policy is None or consumer_policy.rules.only is not None:
            return None if full is None else PolicyRule(StuckPolicy.DISCONNECT, full)
        lagging = self._lagging
        if lagging is None:
            found = self._look(consumer_policy) or {consumer_policy.rules.default}
        else:
            found = lagging.staying(self.begun_rules) | lagging.unspilled()
            found = found or {PolicyRule(lagging.policy, self._patience)}
        return first_due(found)

    def _look(self, consumer_policy: ConsumerPolicy) -> set[PolicyRule]:
        """Return the treatments of all messages here; those seen before are not scanned again."""
        if self._unbegun is None or not self.blocked:
            # A queue that is not blocked may send all, and nothing of an earlier scan is left.
            self._unbegun = []
        found = look_at(self._unbegun, consumer_policy, self._lines(), self)
        return found.union(self.begun_rules)

    def _note_begun(self, loans: Iterable[LoanedItem[Any]]) -> None:
        """Remember the treatments of messages that cannot be told apart any more."""
        consumer_policy = self._consumer_policy
        if consumer_policy is not None and consumer_policy.rules.only is None:
            self.begun_rules = rules_of(consumer_policy, loans, self)
            self._unbegun = None
