"""A client that has been let in, as the parts of its connection know it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import attrs

from ._bridges import BRIDGE_OPTIONS, Bridge
from ._framing import Framing
from ._mqtt5 import AtMostOnce, Mqtt5
from ._shared import Shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....access._tenants import Peer
    from ....access.acl import Rights
    from ....accounts import Account, Recipient
    from ..._outlet import Outlet
    from ..._partings import Steps
    from ..codec._packets import Connect
    from ._billing import Billing
    from ._entry import Entry
    from ._over_limit import Excess
    from ._persistent_session import PersistentSession
    from ._sender import Sender
    from ._server import MqttServer


@attrs.define(slots=True, eq=False, kw_only=True)
class Client:
    """A client that has been let in: its names, its rights, and the ways to it."""

    server: MqttServer
    peer: Peer
    account: Account
    """Pays for everything but publications that another tenant pays for: see `billing`."""
    billing: Billing
    rights: Rights | None
    """What it may publish and read; None: everything."""
    sender: Sender
    """Sends it the server's own packets."""
    way: Recipient
    """Takes QoS 0 publications for it: its outlet, or a framing before that."""
    mqtt5: Mqtt5 | None
    """Its side of MQTT 5, if it speaks that."""
    bridge: Bridge | None
    persistent: PersistentSession | None
    """Its persistent session, if any."""
    complain: Callable[[str], object]
    """Logs what it did wrong."""
    excess: Excess | None = None
    """What is done with its publications above its limits; None: they wait."""
    shares: Shares | None = None
    """Its shared subscriptions; None: there have been none."""

    @classmethod
    def of(
        cls,
        entry: Entry,
        account: Account,
        billing: Billing,
        sender: Sender,
        packet: Connect,
        complain: Callable[[str], object],
    ) -> Client:
        """Return the client of an entry, that the CONNECT `packet` began."""
        server, outlet, mqtt5, persistent = (
            entry.server,
            sender.outlet,
            sender.mqtt5,
            entry.persistent,
        )
        way: Recipient = outlet
        bridge: Bridge | None = None
        if mqtt5 is not None:
            mqtt5.is_own = billing.has
            if persistent is not None:
                mqtt5.filters = persistent.filters
            way = AtMostOnce(mqtt5, outlet)
            outlet.framing_bytes = mqtt5.framing_bytes
        elif packet.bridge:
            bridge = Bridge(server.wall)
            bridge.is_own = billing.has
            way = AtMostOnce(bridge, outlet)
        return cls(
            server=server,
            peer=entry.peer,
            account=account,
            billing=billing,
            rights=entry.rights,
            sender=sender,
            way=way,
            mqtt5=mqtt5,
            bridge=bridge,
            persistent=persistent,
            complain=complain,
        )

    @property
    def outlet(self) -> Outlet:
        """Its outlet."""
        return self.sender.outlet

    @property
    def selects(self) -> Mqtt5 | Bridge | None:
        """Selects the publications that it gets, if that is necessary."""
        return self.bridge if self.mqtt5 is None else self.mqtt5

    @property
    def framing(self) -> Framing:
        """Encodes the publications that it acknowledges."""
        return Framing(self.server.wall) if self.mqtt5 is None else self.mqtt5

    @property
    def window(self) -> int:
        """The most publications in flight to it."""
        most = self.server.settings.max_inflight
        return most if self.mqtt5 is None else min(most, self.mqtt5.receive_maximum)

    def options_of(self, options: int) -> int:
        """Return the options of MQTT 5 that apply to a subscription of it."""
        return options & BRIDGE_OPTIONS if self.bridge is None else BRIDGE_OPTIONS

    def have_shares(self) -> Shares:
        """Return `shares`; make them if necessary."""
        if self.shares is None:
            sender = self.sender
            self.shares = Shares(
                self.server.groups,
                self.peer,
                sender.outlet,
                self.mqtt5,
                self.persistent,
                sender.cut,
            )
        return self.shares

    def leaving(self, steps: Steps) -> Steps:
        """Return the steps that end its shared subscriptions, and then `steps`."""
        shares, self.shares = self.shares, None
        return steps if shares is None else chain(shares.leaving(self.account), steps)
