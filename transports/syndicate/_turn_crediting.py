"""Credit for the turns of one connection, in both directions (see `_turn_credit.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...accounts import Account
from ._turn_credit import DO, WILL, Credited, CreditGiven, credit, credit_of

if TYPE_CHECKING:
    from .._flusher import Flusher
    from .._settings import ServerSettings
    from ._packets import Extension
    from ._sender import Sender


class Crediting:
    """The agreement with a peer about credit, and the credit due to it.

    Args:
        account: the peer's account.
        sender: the way out to the peer; its `credited` is set when the peer agrees to give credit.
        flusher: flushes the outlets.
        settings: say whether credit is given, and how long a peer may take to give it.
        cut: ends the connection.
    """

    __slots__ = ("_account", "_asked", "_cut", "_flusher", "_giving", "_sender", "_settings")

    def __init__(
        self,
        account: Account,
        sender: Sender,
        flusher: Flusher,
        settings: ServerSettings,
        *,
        cut: Callable[[str], object],
    ) -> None:
        self._account = account
        self._sender = sender
        self._flusher = flusher
        self._settings = settings
        self._cut = cut
        self._asked = False
        self._giving: CreditGiven | None = None

    def ask(self) -> None:
        """Ask the peer to give credit, if the settings say so."""
        if self._settings.turn_credit == "request":
            self._asked = True
            self._sender.say(DO)

    def handle(self, packet: Extension) -> bool:
        """Handle an extension; return whether it was about credit."""
        settings = self._settings
        sender = self._sender
        if packet == DO and settings.turn_credit != "off":
            if self._giving is None:
                self._giving = CreditGiven()
            sender.say(WILL)
            return True
        if packet == WILL and self._asked:
            if sender.credited is None:
                outlet = sender.outlet
                sender.credited = Credited(
                    outlet.ledger,
                    outlet,
                    outlet.name,
                    on_broken=self._cut,
                    patience=settings.patience,
                    policy=settings.undroppable_policy,
                )
                sender.credited.owner = self._account
            return True
        turns = credit_of(packet)
        if turns is not None and sender.credited is not None:
            sender.credited.credit(turns)
            return True
        return False

    def took(self, turns: int) -> None:
        """Note that turns of the peer have been committed."""
        if self._giving is not None:
            self._giving.took(turns, self._sender.outlet.ledger.clock())

    @property
    def uncredited(self) -> int:
        """The number of the peer's turns without credit."""
        return len(self._giving) if self._giving is not None and not self._sender.gone else 0

    def give(self, oldest: float = float("inf")) -> None:
        """Give credit for turns that are no longer owed for.

        Args:
            oldest: when the oldest event was held that the peer owes for; without it, credit is
                given only if none is held.
        """
        giving = self._giving
        if giving is None or not giving or self._sender.gone:
            return
        if oldest == float("inf") and self._account.debt_items:
            return
        turns = giving.due(oldest)
        if turns:
            self._sender.say(credit(turns))
            self._flusher.flush_now()
