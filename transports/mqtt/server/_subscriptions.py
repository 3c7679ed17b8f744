"""The subscriptions of one connected client: volatile ones, or those of its persistent session.

Both have the same methods. Volatile ones end with the connection. Messages to acknowledge wait in
the connection's in-flight window (`Inflight`), or in the session's queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from ....accounts import Account, QuotaExceededError, Recipient
from ....dataspace import Assertion, AtLeastOnce, Observation, TopicFilter
from ..._errors import RemoteProtocolError
from ..._partings import unobserve_each
from ..codec._options import HIGHEST_QOS
from ..codec._packets import ConnectReturnCode, PubRel
from ..codec._topics import is_shared
from ._inflight import Inflight
from ._persistent_inflight import PersistentInflight
from ._selecting import Selecting

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._partings import Steps
    from ._client import Client
    from ._persistent_session import PersistentSession


class VolatileSubscriptions:
    """The subscriptions of a client without a persistent session.

    Attributes:
        inflight: The messages in flight to the client; None: it has not subscribed to any.
    """

    __slots__ = ("_at_least_once", "_client", "_observations", "inflight")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._observations: dict[str, Observation] = {}
        self._at_least_once: AtLeastOnce | None = None
        self.inflight: Inflight | None = None

    @property
    def texts(self) -> Iterable[str]:
        """The filters of which the access rules may take some away: see `lost_shares`."""
        shares = self._client.shares
        return () if shares is None else shares.standing

    @property
    def filters(self) -> Iterable[str]:
        """All filters."""
        return chain(self._observations, self.texts)

    def __contains__(self, text: str) -> bool:
        """Whether the client has subscribed to a filter."""
        shares = self._client.shares
        return text in self._observations or (shares is not None and text in shares.standing)

    @property
    def count(self) -> int:
        """The number of filters."""
        shares = self._client.shares
        return len(self._observations) + (0 if shares is None else len(shares.standing))

    def subscribe(self, text: str, options: int, identifier: int) -> str | None:
        """Subscribe to a filter; return the reason if not."""
        client = self._client
        account, dataspace = client.account, client.server.dataspace
        qos = options & HIGHEST_QOS
        if qos:
            self._have_inflight()
        if is_shared(text):
            shares = client.have_shares()
            return shares.subscribe(account, text, options, identifier, self.inflight)
        topic_filter = TopicFilter(text)
        try:
            with account.turn() as turn:
                old = self._observations.get(text)
                if old is not None:  # replaced, without a gap [MQTT-3.8.4-3]
                    dataspace.unobserve(turn, old)
                observation = dataspace.observe(
                    turn,
                    topic_filter,
                    client.way,
                    acked=self._acked(qos),
                    granted=qos,
                    consumer=client.outlet,
                    replay=False,
                    allows=None if client.rights is None else client.rights.allows(text),
                )
        except QuotaExceededError as exc:
            return str(exc)
        self._observations[text] = observation
        if client.mqtt5 is not None:
            client.mqtt5.filters.add(text, client.options_of(options), identifier)
        return None

    def _acked(self, granted: int) -> Recipient | None:
        """Return the recipient of publications to acknowledge, for a subscription."""
        acked = (None, self._at_least_once, self.inflight)[granted]
        selects = self._client.selects
        return acked if acked is None or selects is None else Selecting(acked, selects.select)

    def _have_inflight(self) -> None:
        if self.inflight is None:
            self.inflight = self._make_inflight()
            self._at_least_once = AtLeastOnce(self.inflight)

    def _make_inflight(self) -> Inflight:
        client = self._client
        server, outlet = client.server, client.outlet
        consumer_policy = outlet.consumer_policy
        assert consumer_policy is not None
        inflight = server.make_inflight(
            server.ledger,
            outlet,
            client.peer.name,
            window=client.window,
            on_broken=client.sender.cut,
            patience=consumer_policy.undroppable_patience,
            policy=consumer_policy.undroppable_policy,
            open_spool=consumer_policy.open_spool,
            framing=client.framing,
        )
        inflight.owner = client.sender.account
        inflight.fair = outlet.fair
        return inflight

    def unsubscribe(self, text: str) -> Observation | Assertion | None:
        """Forget a subscription; return the observation or assertion to end."""
        shares, mqtt5 = self._client.shares, self._client.mqtt5
        if shares is not None:
            if is_shared(text):
                shares.leave(text)
            if text in shares.standing:
                return shares.standing.pop(text)
        if mqtt5 is not None:
            mqtt5.filters.remove(text)
        return self._observations.pop(text, None)

    def recipient(self, qos: int) -> Recipient:
        """Return the recipient of publications with a QoS."""
        return self.inflight if qos and self.inflight is not None else self._client.way

    def own(self, account: Account) -> None:
        """Note whose reader is waited for by those who wait for the client (rule 11)."""
        if self.inflight is not None:
            self.inflight.owner = account

    def leaving(self) -> Steps:
        """Return the steps that end them, or detach them from the connection."""
        client = self._client
        observations, self._observations = self._observations, {}
        steps = unobserve_each(client.server.dataspace, client.account, observations.values())
        return client.leaving(steps)


class PersistentSubscriptions:
    """The subscriptions of a persistent session whose client is connected.

    It has the interface of `VolatileSubscriptions`.
    """

    __slots__ = ("_client", "_persistent", "inflight")

    def __init__(self, client: Client, persistent: PersistentSession) -> None:
        self._client = client
        self._persistent = persistent
        self.inflight: PersistentInflight | None = None

    def attaching(self) -> Iterator[None]:
        """Have the session's messages go to this connection, one filter in each step.

        Raises:
            RemoteProtocolError: If its subscriptions are more than its account may have standing;
                the client has been told.
        """
        client = self._client
        selects = client.selects
        own = None if selects is None else selects.is_own
        try:
            yield from self._persistent.attaching(
                client.account, client.peer.name, client.way, own=own, rights=client.rights
            )
        except QuotaExceededError as exc:
            client.server.counters.refused += 1
            why = f"its session cannot be taken up: {exc}"
            client.sender.refuse(ConnectReturnCode.SERVER_UNAVAILABLE, why)
            raise RemoteProtocolError(why) from exc

    def resume(self, leaves: Callable[[], bool]) -> None:
        """Go on where the client's last connection has ended [MQTT-4.4.0-1].

        Args:
            leaves: See `PersistentInflight`.
        """
        client, persistent = self._client, self._persistent
        sender = client.sender
        persistent.resume_releasing(lambda packet_id: sender.send_later(PubRel(packet_id)))
        inflight = self.inflight = PersistentInflight(
            persistent, sender.outlet, client.window, framing=client.framing, leaves=leaves
        )
        if client.rights is not None:
            inflight.look_again(client.rights)  # they may have been others when it was queued
        inflight.begin(sender.cut)
        for text, each in persistent.subscriptions.items():
            if each.group is not None:
                options = each.granted | each.options
                client.have_shares().join(text, options, each.identifier, inflight)

    @property
    def texts(self) -> Iterable[str]:
        return self._persistent.subscriptions

    @property
    def filters(self) -> Iterable[str]:
        return self._persistent.subscriptions

    def __contains__(self, text: str) -> bool:
        return text in self._persistent.subscriptions

    @property
    def count(self) -> int:
        return len(self._persistent.subscriptions)

    def subscribe(self, text: str, options: int, identifier: int) -> str | None:
        client, persistent = self._client, self._persistent
        account = client.account
        if is_shared(text):
            shares = client.have_shares()
            return shares.subscribe(account, text, options, identifier, self.inflight)
        qos = options & HIGHEST_QOS
        told = client.options_of(options)
        try:
            with account.turn() as turn:
                observation = persistent.observe(turn, text, qos, client.way, options=told)
        except QuotaExceededError as exc:
            return str(exc)
        persistent.subscribed(text, qos, observation, options=told, identifier=identifier)
        return None

    def unsubscribe(self, text: str) -> Observation | Assertion | None:
        if self._client.shares is not None and is_shared(text):
            self._client.shares.leave(text)
        return self._persistent.unsubscribed(text)

    def recipient(self, qos: int) -> Recipient:
        return self._persistent.queue if qos else self._client.way

    def own(self, account: Account) -> None:
        self._persistent.queue.owner = account

    def leaving(self) -> Steps:
        return self._client.leaving(self._persistent.detaching(self._client.account))


Subscriptions: TypeAlias = VolatileSubscriptions | PersistentSubscriptions
