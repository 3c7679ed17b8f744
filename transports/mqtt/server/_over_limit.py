"""Publications above a limit that are refused or shed, instead of not being read (load shedding).

Rules of this file:
1. Such a publication is not routed, not retained, and charged to nobody: it is gone when it has
   been counted. If it is answered, the answer is the client's own debt.
2. The answers of a client with such a policy have an account of their own beside its own one, with
   the same limit: while that is above its limit the client is not read. So a flood of refused
   publications is bounded by what their publisher reads.
3. While publications are refused for want of funds of some account, that account stands in line
   for them (`OverLimitWatch`): slow consumers are found as if it waited.
4. Counts are exact; lines of the log are not more than one in `LOG_SECONDS`, for all clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ....access._publication_policies import PublicationPolicies
from ....access._topic_rules import TopicRules
from ....accounts import OverLimitPolicy, OverLimitWatch
from ....accounts._gate import is_above_limit
from ..codec._frames import PUBLISH, SUBSCRIBE

if TYPE_CHECKING:
    from ....accounts import Account
    from ._server import MqttServer

LOG_SECONDS: Final = 1.0
"""Least interval between two lines of the log; as for connections that are cut (`_input.py`)."""

ANSWERS: Final = "answers"
"""Behind the name of a client's account, after an `@`: the account of its answers."""


ALWAYS_WAITS: Final[TopicRules[OverLimitPolicy]] = TopicRules(OverLimitPolicy.WAIT)
"""The rules of a client that has no policy any more."""


@attrs.define(slots=True)
class NotAccepted:
    """Numbers of publications that were not accepted."""

    refused: int = 0
    """Answered with a reason code that says so."""
    shed: int = 0
    """Dropped; with QoS 1 and 2 acknowledged as if they had been accepted."""


def no_totals() -> dict[OverLimitPolicy, NotAccepted]:
    """Return the numbers by policy before anything was refused or shed."""
    return {OverLimitPolicy.REFUSE: NotAccepted(), OverLimitPolicy.SHED: NotAccepted()}


class OverLimits:
    """One relay's policies for publishers above their limits, and what came of them.

    Args:
        server: The server; its settings have the policies.

    Attributes:
        watch: Stands in line for the publishers.
        totals: Numbers of publications since the start, by policy.
    """

    def __init__(self, server: MqttServer) -> None:
        self._server = server
        self._policies = PublicationPolicies(server.settings.publication_policy)
        self.watch = OverLimitWatch(server.ledger)
        self.totals = no_totals()
        # What the log has not said yet, by the name of the account that is above its limit.
        self._unsaid: dict[str, NotAccepted] = {}
        self._begun = trio.Event()

    def adjust(self) -> None:
        """Take the policies of the server's settings."""
        self._policies = PublicationPolicies(self._server.settings.publication_policy)

    def of(self, account: Account, *names: str) -> Excess | None:
        """Return what is to be done for a client above its limits; None: it waits.

        Args:
            account: The client's own account.
            names: Its name, and the client identifier.
        """
        rules = self._policies.of(*names)
        if rules is None:
            return None
        ledger = self._server.ledger
        name = f"{account.name}@{ANSWERS}"
        # A tenant may have that name, which then stands behind another account of the client.
        while (known := ledger.accounts.get(name)) is not None and known.parent != account.parent:
            name = f"{name}@{ANSWERS}"
        limit = self._server.settings.limit_of(*names)
        answers = ledger.open(name, limit=limit, parent=account.parent)
        return Excess(self, rules, answers)

    def renew(self, excess: Excess | None, account: Account, *names: str) -> Excess | None:
        """Return the same as `of` for a client that is connected, and has `excess` so far."""
        if excess is None:
            return self.of(account, *names)
        excess.rules = self._policies.of(*names) or ALWAYS_WAITS
        excess.answers.limit = self._server.settings.limit_of(*names)
        return excess

    async def run(self) -> None:
        """Stand in line for publishers, and log what is refused, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch.run, nursery.start_soon)
            try:
                while True:
                    await self._begun.wait()
                    self._begun = trio.Event()
                    self._say()
                    await trio.sleep(LOG_SECONDS)
            finally:
                self._say()

    def count(self, payer: Account, policy: OverLimitPolicy, *, refused: int, shed: int) -> None:
        """Count publications that were not accepted for want of funds of `payer`."""
        total = self.totals[policy]
        total.refused += refused
        total.shed += shed
        unsaid = self._unsaid.get(payer.name)
        if unsaid is None:
            unsaid = self._unsaid[payer.name] = NotAccepted()
            self._begun.set()
        unsaid.refused += refused
        unsaid.shed += shed
        self.watch.note(payer)

    def _say(self) -> None:
        """Log what has been counted since the last line."""
        unsaid, self._unsaid = self._unsaid, {}
        if not unsaid:
            return
        ledger = self._server.ledger
        refused = sum(each.refused for each in unsaid.values())
        shed = sum(each.shed for each in unsaid.values())
        name = max(unsaid, key=lambda each: unsaid[each].refused + unsaid[each].shed)
        account = ledger.accounts.get(name)
        held = None if account is None else self.watch.largest(account)
        others = "" if len(unsaid) == 1 else f" and {len(unsaid) - 1} more"
        holder = "" if held is None else f"; {held} has most of its debt"
        self._server.logger.warning(
            "refused %d and dropped %d publications above a limit, of %s%s%s",
            refused, shed, name, others, holder,
            extra={
                "event": "over_limit", "account": name, "accounts": len(unsaid),
                "refused": refused, "dropped": shed,
                "holder": None if held is None else held.holder,
            },
        )  # fmt: skip


class Excess:
    """One client's publications above its limits, where another policy than to wait may apply.

    A step of the client's reader that has handed something over ends where funds are short: when
    that has been sent there may be room again. So nothing is refused for what is not sent yet.

    Args:
        over: The relay's policies.
        rules: Those for the client, by topic as it stands in a packet.
        answers: The account of the server's answers to it; `close` closes it.

    Attributes:
        answers: See above.
        handed: Whether a publication was handed over in this step of the reader.
        rules: See above.
    """

    __slots__ = ("_due", "_over", "_payers", "answers", "handed", "rules")

    def __init__(
        self, over: OverLimits, rules: TopicRules[OverLimitPolicy], answers: Account
    ) -> None:
        self._over = over
        self.rules = rules
        self.answers = answers
        # The payer without funds, and the policy, for the publication that is parsed next.
        self._due: tuple[Account, OverLimitPolicy] | None = None
        self._payers: set[Account] = set()
        self.handed = False

    def __repr__(self) -> str:
        return f"<Excess of {self.answers.name}: {self.rules.default}>"

    @property
    def overdue(self) -> Account | None:
        """The account of its answers while the client has left too many of them unread."""
        return self.answers if is_above_limit(self.answers) else None

    @property
    def standing(self) -> Account | None:
        """The account for want of whose funds publications are refused, or shed, for longest."""
        watch = self._over.watch
        return max(
            (each for each in self._payers if each in watch), key=watch.seconds, default=None
        )

    def begin(self) -> None:
        """Begin a step: nothing has been handed over, and what was to be parsed next had not come.

        The step before has been sent.
        """
        self._due = None
        self.handed = False

    def passes(self, payer: Account, first: int, key: bytes | None) -> bool:
        """Whether the next packet is handled though `payer` has no funds.

        Args:
            payer: Who would have to pay for it.
            first: The first byte of the packet.
            key: The topic of a publication as it stands in a packet; None if it has not come.
        """
        if first & 0xF0 != PUBLISH:
            # What is retained for a new subscription is charged to the client, and waits.
            return first != SUBSCRIBE
        if key is None:
            return True  # more of it has to be read, or it is no publication
        policy = self.rules.of(key)
        if policy is OverLimitPolicy.WAIT:
            return False
        self._due = payer, policy
        return True

    def take(self) -> tuple[Account, OverLimitPolicy] | None:
        """Return who has no funds for the publication that was just parsed, and the policy."""
        due, self._due = self._due, None
        return due

    def shed(self, payer: Account, policy: OverLimitPolicy, count: int = 1) -> None:
        """Count publications that are dropped."""
        self._payers.add(payer)
        self._over.count(payer, policy, refused=0, shed=count)

    def refuse(self, payer: Account) -> str:
        """Count a publication that is refused; return the reason for its publisher."""
        self._payers.add(payer)
        self._over.count(payer, OverLimitPolicy.REFUSE, refused=1, shed=0)
        return self._over.watch.reason(payer)

    def close(self) -> None:
        """End what stands in line for the client, and close the account of its answers."""
        for payer in self._payers:
            self._over.watch.forget(payer)
        self._payers.clear()
        self.answers.close()
