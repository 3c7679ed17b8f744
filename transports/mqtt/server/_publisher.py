"""One client as a publisher: its PUBLISH packets, and their acknowledgements."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ....accounts import OverLimitPolicy
from ....dataspace import Publication
from ..codec._identifiers import AwaitingRelease
from ..codec._packets import PubAck, PubComp, PubRec
from ..codec._properties import NO_PROPERTIES
from ..codec._reasons import Reason, ReasonedError
from ._persistent_session import PersistentIdentifier
from ._publisher_acks import ACKNOWLEDGING, Identifier, PublisherAck, PublisherAcks

if TYPE_CHECKING:
    from ....accounts import Account
    from ..codec._packets import Publish
    from ._client import Client
    from ._over_limit import Excess


class Publisher:
    """Publishes what one client sends, and acknowledges it.

    Args:
        client: The client.

    Attributes:
        acks: The acknowledgements that it is owed; None before its first publication with QoS 1
            or 2.
    """

    __slots__ = ("_awaiting", "_client", "acks")

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acks: PublisherAcks | None = None
        # The identifiers of QoS 2 publications whose PUBREL has not come.
        self._awaiting = None if client.persistent is None else client.persistent.awaiting

    @property
    def awaits_release(self) -> bool:
        """Whether the PUBREL of some QoS 2 publication has not come."""
        return bool(self._awaiting)

    def stop_acking(self) -> None:
        """Forget the acknowledgements: the client has gone, or is told nothing more. Idempotent."""
        if self.acks is not None:
            left = self.acks.close()
            if left and self._client.persistent is not None:
                self._client.persistent.left_unacked(left)

    def publish(self, packet: Publish) -> None:
        """Publish in its own turn, and acknowledge it as soon as a holder is responsible."""
        client = self._client
        server = client.server
        mqtt5 = client.mqtt5
        server.counters.received += 1
        packet_id = packet.packet_id
        persistent = client.persistent
        excess = client.excess
        over = None if excess is None else excess.take()
        ack: PublisherAck | None = None
        duplicate = False
        if packet.qos:
            acks = self.acks
            if acks is None:
                refusal = None if mqtt5 is None else self._refusal
                sender = client.sender
                note = partial(server.ledger.faults.note, sender.outlet, ACKNOWLEDGING)
                acks = self.acks = PublisherAcks(sender.send, sender.cut, refusal, note)
            if packet.dup and packet.qos == 1 and self._is_unacked(acks, packet_id):
                return  # it is answered once, and its debt is that of the first
            if mqtt5 is not None:
                self._check_receive_maximum(acks, packet)
            if packet.qos == 1:
                ack = acks.begin(PubAck(packet_id))
            else:
                if self._awaiting is None:
                    self._awaiting = AwaitingRelease(server.settings.max_awaiting_release)
                duplicate = not self._awaiting.add(packet_id)
                unacked = None if persistent is None else persistent.still_unacked(packet_id)
                if duplicate and unacked is not None:
                    # It is being written still: it is answered once, when that is done.
                    unacked.moved_to(acks)
                    return
                identifier: Identifier | None = None
                if persistent is not None and not duplicate:
                    identifier = PersistentIdentifier(persistent, packet_id)
                ack = acks.begin(PubRec(packet_id), identifier)
                if identifier is not None and persistent is not None:
                    persistent.begun(packet_id, ack)
        if duplicate:
            over = None  # it has been accepted
        elif excess is not None and over is not None:
            self._do_without(excess, *over, ack)
        else:
            if mqtt5 is None:
                publication = Publication(packet.topic, packet.payload, packet.qos, packet.retain)
            else:
                publication = server.publication(packet)
            unrouted = server.dataspace.unrouted
            billing = client.billing
            payer = billing.of(packet.topic) if billing.by_topic else billing.own
            if excess is not None:
                excess.handed = True
            refused = server.publish(payer, publication, ack, client.rights)
            if ack is not None and mqtt5 is not None:
                ack.note_reached(server.dataspace.unrouted == unrouted)
            if refused is not None:
                # 3.1.1 has no way to say so but to close; the publication is acknowledged and
                # dropped, as section 3.3.5 has it for one that is not authorized.
                server.counters.rejected += 1
                client.complain(f"a publication was dropped: {refused.why}")
                if refused.reason is Reason.NOT_AUTHORIZED:
                    server.authority.denied.publish += 1
                if ack is not None and mqtt5 is not None:
                    ack.refuse_with(self._refusal(ack.packet, refused.why, refused.reason))
        if ack is not None:
            if (
                packet.retain
                and over is None
                and server.sessions_are_durable
                and server.persistent_sessions is not None
            ):
                ack.expect()
                server.persistent_sessions.persistence.when_durable(ack.taken, client.sender.outlet)
            # Only now is it accepted (rule 7): it has been handed over, or counted as rejected.
            ack.handed_over()

    def _do_without(
        self, excess: Excess, payer: Account, policy: OverLimitPolicy, ack: PublisherAck | None
    ) -> None:
        """Refuse a publication that `payer` has no funds for, or drop it.

        What cannot be refused is acknowledged, as everything is that is dropped: otherwise a client
        would send it again.
        """
        if policy is OverLimitPolicy.REFUSE and ack is not None and self._client.mqtt5 is not None:
            ack.refuse_with(self._refusal(ack.packet, excess.refuse(payer)))
        else:
            excess.shed(payer, policy)

    def release(self, packet_id: int) -> None:
        """Handle a PUBREL: the identifier may mean another publication from now on."""
        client = self._client
        sender, persistent = client.sender, client.persistent
        if persistent is None:
            known = self._awaiting is not None and self._awaiting.release(packet_id)
        else:
            known = packet_id in persistent.awaiting
        unknown = not known and client.mqtt5 is not None
        ack = PubComp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND if unknown else 0)
        if persistent is None:
            sender.send(ack)
        else:
            persistent.released(packet_id, partial(sender.send_later, ack))

    def _is_unacked(self, acks: PublisherAcks, packet_id: int) -> bool:
        """Whether a QoS 1 publication that comes again has been taken, and is not acknowledged.

        Once it has been acknowledged, it is a new one [MQTT-4.3.2-2].
        """
        if acks.awaits(packet_id):
            return True
        persistent = self._client.persistent
        ack = None if persistent is None else persistent.take_unacked(packet_id)
        if ack is None:
            return False
        ack.moved_to(acks)
        return True

    def _check_receive_maximum(self, acks: PublisherAcks, packet: Publish) -> None:
        """See that a client that speaks MQTT 5 has no more under way than it was told it may.

        Raises:
            RemoteProtocolError: If it has.
        """
        most = self._client.server.receive_maximum
        awaiting = self._awaiting
        if awaiting is not None and packet.qos > 1 and packet.packet_id in awaiting:
            return  # the same again
        if acks.pending_pubacks + (0 if awaiting is None else len(awaiting)) >= most:
            msg = (
                f"more than {most} publications are under way and not acknowledged, which is the "
                "receive maximum that it was told"
            )
            raise ReasonedError(msg, Reason.RECEIVE_MAXIMUM_EXCEEDED)

    def _refusal(
        self, packet: PubAck | PubRec, why: str, reason: Reason = Reason.QUOTA_EXCEEDED
    ) -> PubAck | PubRec:
        """Return the acknowledgement that says why a publication was not taken (MQTT 5)."""
        client = self._client
        mqtt5, persistent = client.mqtt5, client.persistent
        properties = NO_PROPERTIES if mqtt5 is None else mqtt5.explain(why)
        if isinstance(packet, PubRec):
            # The exchange is over: the identifier may mean another publication (section 4.3.3).
            if persistent is not None:
                persistent.forget_identifier(packet.packet_id)
            elif self._awaiting is not None:
                self._awaiting.release(packet.packet_id)
        return type(packet)(packet.packet_id, reason, properties)
