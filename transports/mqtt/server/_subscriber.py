"""One client as a subscriber: SUBSCRIBE, UNSUBSCRIBE, and its acknowledgements."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from ....accounts import Profile
from ..codec._options import HIGHEST_QOS, RETAIN_HANDLING, RETAINED_TO_NEW, RETAINED_TO_NONE
from ..codec._packets import (
    PROTOCOL_LEVEL_31,
    SUBSCRIPTION_FAILED,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
)
from ..codec._properties import NO_PROPERTIES
from ..codec._reasons import Reason, ReasonedError
from ..codec._topics import is_shared, shared_fault
from ._inflight import Inflight
from ._permissions import lost_shares, not_readable
from ._persistent_inflight import PersistentInflight
from ._shared import stop
from ._slow_consumer_policy import SLOW_CONSUMER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ....accounts import Recipient
    from ..codec._packets import Packet, Subscribe, Unsubscribe
    from ._client import Client
    from ._replays import Replays
    from ._subscriptions import Subscriptions


class Subscriber:
    """Changes the subscriptions of one client, and takes its acknowledgements.

    Args:
        client: The client.
        subscriptions: Its subscriptions.
        replays: The retained publications still to be sent to it.
        version: Its protocol level.

    Attributes:
        client: See above.
        subscriptions: See above.
        version: See above.
    """

    __slots__ = ("_live", "_replays", "client", "subscriptions", "version")

    def __init__(
        self, client: Client, subscriptions: Subscriptions, replays: Replays, version: int
    ) -> None:
        self.client = client
        self._replays = replays
        self.version = version
        self.subscriptions = subscriptions
        # Filters for which nobody is to wait for this client.
        self._live: frozenset[str] = frozenset()

    def replay(self) -> None:
        """Send some of the retained publications that are to be sent: see `Replays.step`."""
        client = self.client
        retained = client.server.dataspace.retained
        self._replays.step(retained, client.account, self._replayed_to, client.rights)
        if not client.outlet.lagging:
            self._keep_order()

    def _replayed_to(self, qos: int) -> Recipient:
        """Return the recipient of a retained publication with a QoS, which is sent to it next."""
        # They are the client's debt, but their publishers' messages: those before them on a topic
        # are to go first, and those after them later.
        self._keep_order()
        return self.subscriptions.recipient(qos)

    def _keep_order(self) -> None:
        self.client.outlet.keep_order()
        inflight = self.subscriptions.inflight
        if isinstance(inflight, Inflight):
            inflight.keep_order()

    def subscribe(self, packet: Subscribe) -> Iterator[trio.Event | None]:
        """Subscribe to one filter in each step; say so when all have been."""
        client = self.client
        server = client.server
        settings = server.settings
        subscriptions = self.subscriptions
        mqtt5 = client.mqtt5
        identifier = next(iter(packet.properties.subscription_ids), 0)
        granted: list[str] = []
        faults: dict[str, tuple[str, int]] = {}
        # Of equal filters in one packet the last counts; to do what the others say first would let
        # one packet hold up everybody.
        for text, options in dict(packet.filters).items():
            fault = client.server.topics.filter_fault(text)
            reason = Reason.TOPIC_FILTER_INVALID
            if is_shared(text):
                fault, reason = self._share_fault(text, fault)
            if fault is None:
                reason = Reason.NOT_AUTHORIZED
                fault = None if client.rights is None else not_readable(client.rights, text)
            if fault is None:
                reason = Reason.QUOTA_EXCEEDED
                new = text not in subscriptions
                if new and subscriptions.count >= settings.max_subscriptions:
                    fault = (
                        f"{settings.max_subscriptions} subscriptions are the limit for one client"
                    )
                else:
                    fault = subscriptions.subscribe(text, options, identifier)
                    if fault is None and not is_shared(text):
                        self._subscribed(text, options, new)
                        granted.append(text)
            if fault is not None:
                failed = SUBSCRIPTION_FAILED if mqtt5 is None else reason
                # As mosquitto: MQTT 3.1 has no code for it but the QoS that was asked for.
                faults[text] = fault, options if self.version == PROTOCOL_LEVEL_31 else failed
            yield None
        live = (SLOW_CONSUMER, Profile.LIVE) in packet.properties.user
        self._set_live(granted, live=live)
        properties = NO_PROPERTIES
        if faults:
            count, (first, _) = len(faults), next(iter(faults.values()))
            client.complain(f"{count} of {len(packet.filters)} subscriptions were refused: {first}")
            if mqtt5 is not None:
                properties = mqtt5.explain(first)
        codes = (
            faults[text][1] if text in faults else options & HIGHEST_QOS
            for text, options in packet.filters
        )
        yield from self._confirm(SubAck(packet.packet_id, tuple(codes), properties))

    def _subscribed(self, text: str, options: int, new: bool) -> None:
        """Have retained publications sent that match a filter; not for a shared one (4.8.2)."""
        client = self.client
        if client.mqtt5 is not None:
            # What is queued may have the identifiers of more than there are now.
            outlet = client.outlet
            outlet.framing_bytes = max(outlet.framing_bytes, client.mqtt5.framing_bytes)
        handling = options & RETAIN_HANDLING
        if (
            len(client.server.dataspace.retained)
            and handling != RETAINED_TO_NONE
            and (new or handling != RETAINED_TO_NEW)
        ):
            self._replays.add(text, options & HIGHEST_QOS)

    def _set_live(self, filters: Iterable[str], *, live: bool) -> None:
        """Note whether somebody may have to wait for this client's messages of some filters."""
        before = self._live
        self._live = before.union(filters) if live else before.difference(filters)
        if self._live != before:
            self.deal()

    def deal(self) -> None:
        """Apply the policies for slow consumers, as they are now."""
        client, inflight = self.client, self.subscriptions.inflight
        client.server.dealings.begin(
            client.outlet, client.peer.name, client.peer.client, live=self._live
        )
        consumer_policy = client.outlet.consumer_policy
        if isinstance(inflight, Inflight) and consumer_policy is not None:
            inflight.deal_by(consumer_policy)

    def _share_fault(self, text: str, fault: str | None) -> tuple[str | None, Reason]:
        """Say why a shared subscription is not granted, of what is wrong with its filter.

        Raises:
            ReasonedError: In MQTT 5, if it is none [MQTT-4.8.2-1][MQTT-4.8.2-2]. To 3.1.1 it is a
                filter as any other, which may be refused.
        """
        client = self.client
        malformed = shared_fault(text)
        if malformed is not None and client.mqtt5 is not None:
            raise ReasonedError(malformed, Reason.PROTOCOL_ERROR)
        if not client.server.settings.max_share_groups:
            no = "there are no shared subscriptions here (max_share_groups)"
            return no, Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        return malformed or fault, Reason.TOPIC_FILTER_INVALID

    def unsubscribe(self, packet: Unsubscribe) -> Iterator[trio.Event | None]:
        """Unsubscribe from one filter in each step; say so when that is done."""
        client = self.client
        subscriptions = self.subscriptions
        reasons = tuple(
            0 if text in subscriptions else Reason.NO_SUBSCRIPTION_EXISTED
            for text in packet.filters
        )
        for text in dict.fromkeys(packet.filters):
            observation = subscriptions.unsubscribe(text)
            if observation is not None:
                with client.account.turn() as turn:
                    stop(client.server.dataspace, turn, observation)
            yield None
        self._set_live(packet.filters, live=False)
        said = () if client.mqtt5 is None else reasons
        yield from self._confirm(UnsubAck(packet.packet_id, said))

    def _confirm(self, packet: Packet) -> Iterator[trio.Event]:
        """Say that subscriptions have changed; of a persistent session's, when that is on disk."""
        client = self.client
        if client.persistent is None:
            client.sender.send(packet)
            self._begin_sharing()
            return
        hold = trio.Event()

        def on_durable() -> None:
            client.sender.send_later(packet)
            self._begin_sharing()
            hold.set()

        client.persistent.write()
        client.server.when_durable(on_durable, client.outlet)
        if not hold.is_set():
            yield hold  # what comes next, and what is retained, comes after it

    def _begin_sharing(self) -> None:
        if self.client.shares is not None:
            self.client.shares.begin()

    def acknowledge(self, packet: PubAck | PubRec | PubComp) -> None:
        """Take an acknowledgement.

        Raises:
            RemoteProtocolError: If it is for a message that has not been sent yet, or not its turn.
        """
        packet_id = packet.packet_id
        inflight = self.subscriptions.inflight
        if isinstance(packet, PubComp):
            if inflight is not None:
                inflight.completed(packet_id)
            return
        client = self.client
        known = False
        if inflight is not None:
            if isinstance(packet, PubAck):
                inflight.acknowledged(packet_id)
                return
            if packet.reason >= Reason.UNSPECIFIED_ERROR:
                inflight.refused(packet_id)
                return
            known = inflight.received(packet_id)
            if known and client.persistent is not None:
                release = partial(client.sender.send_later, PubRel(packet_id))
                client.persistent.received(packet_id, release)
                return
        if isinstance(packet, PubRec) and packet.reason < Reason.UNSPECIFIED_ERROR:
            # Also for one that is not known, or the client would never be done with it.
            unknown = not known and client.mqtt5 is not None
            reason = Reason.PACKET_IDENTIFIER_NOT_FOUND if unknown else 0
            client.sender.send(PubRel(packet_id, reason))

    def acknowledges_no_more(self) -> None:
        """Give what it has not acknowledged to others who may have it, and settle the rest."""
        inflight, shares = self.subscriptions.inflight, self.client.shares
        if inflight is not None:
            if shares is not None:
                shares.close()
            inflight.close()

    def pause(self) -> None:
        """Take no more of what is kept; messages in flight may still be acknowledged."""
        inflight, shares = self.subscriptions.inflight, self.client.shares
        if isinstance(inflight, PersistentInflight):
            inflight.pause()
        if shares is not None:
            shares.pause()

    def rules_changed(self) -> None:
        """End what its rights no longer allow."""
        client = self.client
        rights, subscriptions = client.rights, self.subscriptions
        if rights is None:
            return
        if subscriptions.inflight is not None:
            subscriptions.inflight.look_again(rights)
        if found := subscriptions.texts:
            lost = lost_shares(rights, found)
            with client.account.turn() as turn:
                for text in lost:
                    stop(client.server.dataspace, turn, subscriptions.unsubscribe(text))
            if lost and client.persistent is not None:
                client.persistent.write()
