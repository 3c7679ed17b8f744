"""A channel layer for Django Channels that says which channel is over capacity, and with whose.

In the settings of a project with one process (`pip install clearfunds channels`):

    CHANNEL_LAYERS = {"default": {"BACKEND": "channels_layer.LedgerChannelLayer"}}

Like Channels' own layer in memory it delivers at most once, and drops what comes to a channel that
is full. It also keeps books: each message is charged to the group (or the channel) that it was sent
to, until a consumer has received it; the first message that is dropped for a channel is logged, by
name, and `layer.ledger` tells what each channel holds, and of which groups. Give it to
`clearfunds.accounts.DebtCollector` for Prometheus.
"""

from __future__ import annotations

import copy
import logging
from time import monotonic
from typing import Any
from uuid import uuid4

from channels.exceptions import ChannelFull
from channels.layers import BaseChannelLayer

from clearfunds.accounts import NO_LIMIT, Account, Ledger, LoanedItem, Outcome
from clearfunds.dataspace import Mailbox

logger = logging.getLogger("channels_layer")
Message = dict[str, Any]


class Channel:
    """One channel: what it holds, and the loan that is given out message by message."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.box = Mailbox[Message](ledger, name)
        self.in_hand: LoanedItem[list[Message]] | None = None
        self.receivers = 0
        self.dropping = False  # it is over capacity, and the log says so

    def held(self, before: float) -> int:
        """Return how many messages it holds, after dropping what was sent before then."""
        queue = self.box.queue
        while queue and queue[0].opened < before:
            queue.popleft().settle(outcome=Outcome.EXPIRED)
        return sum(loan.items for loan in self.box.loans())


class LedgerChannelLayer(BaseChannelLayer):
    """The layer; the arguments are those of Channels' layers: seconds, and messages."""

    extensions = ("groups", "flush")

    def __init__(
        self, expiry: int = 60, capacity: int = 100, channel_capacity: Any = None, **_: Any
    ) -> None:
        super().__init__(expiry, capacity)
        self.channel_capacity: Any = self.compile_capacities(channel_capacity or {})
        self.ledger = Ledger(clock=monotonic)
        self._channels: dict[str, Channel] = {}
        self._groups: dict[str, dict[str, None]] = {}

    async def send(self, channel: str, message: Message) -> None:
        """Send to one channel; ChannelFull if it is over capacity."""
        self.require_valid_channel_name(channel)
        with self.ledger.open(f"channel {channel}", limit=NO_LIMIT) as account:
            if not self._put(account, channel, message):
                raise ChannelFull(channel)

    async def group_send(self, group: str, message: Message) -> None:
        """Send to all channels of a group that have room."""
        self.require_valid_group_name(group)
        with self.ledger.open(f"group {group}", limit=NO_LIMIT) as account:
            for channel in list(self._groups.get(group, ())):
                self._put(account, channel, message)

    def _put(self, account: Account, name: str, message: Message) -> bool:
        channel = self._channel(name)
        held = channel.held(monotonic() - self.expiry)
        if held >= self.get_capacity(name):
            if not channel.dropping:
                whose = [each.account for each in self.ledger.matrix() if each.holder == name]
                logger.warning("%s is over capacity: %d of %s", name, held, ", ".join(whose))
            channel.dropping = True
            return False
        channel.dropping = False
        with account.turn() as turn:
            # Each consumer has a message of its own, as with layers over a network.
            turn.send(channel.box, copy.deepcopy(message))
        return True

    def _channel(self, name: str) -> Channel:
        if name not in self._channels:
            self._channels[name] = Channel(self.ledger, name)
        return self._channels[name]

    async def receive(self, channel: str) -> Message:
        """Wait for the next message of a channel; it is owed for until then."""
        self.require_valid_channel_name(channel)
        here = self._channel(channel)
        here.held(monotonic() - self.expiry)
        here.receivers += 1
        try:
            while here.in_hand is None:
                here.in_hand = await here.box.receive()
            message = here.in_hand.item.pop(0)
            here.in_hand.settle(1)
            if not here.in_hand.items:
                here.in_hand = None
            return message
        finally:
            here.receivers -= 1
            if not (here.receivers or here.in_hand or here.box.queue):
                self._channels.pop(channel, None)
                self.ledger.unregister(here.box)

    async def new_channel(self, prefix: str = "specific.") -> str:
        """Return a name that nobody else has."""
        return f"{prefix}.inmemory!{uuid4().hex}"

    async def group_add(self, group: str, channel: str) -> None:
        """Let a channel get what is sent to a group."""
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)
        self._groups.setdefault(group, {})[channel] = None

    async def group_discard(self, group: str, channel: str) -> None:
        """Let it not any more."""
        members = self._groups.get(group, {})
        members.pop(channel, None)
        if not members:
            self._groups.pop(group, None)

    async def flush(self) -> None:
        """Drop everything."""
        for channel in self._channels.values():
            channel.box.give_up("the layer is flushed")
        self._channels.clear()
        self._groups.clear()
