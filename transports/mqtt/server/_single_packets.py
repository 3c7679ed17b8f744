"""Reads that are one packet alone, handled in one short step.

Where clients send a packet now and then, nearly every read is one PUBLISH, or PUBACKs. Parsing them
as any other packet, and making a turn for them, costs several times what is to be done. The cases
here are the plain ones: where there is anything more to it, nothing is done, and `MqttSession`
handles it as any read.

Whatever is done here has the same effect on the ledger and on the wire as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....accounts import borrow_run, hold_all
from ....dataspace import Publication
from ....dataspace._at_least_once import AtLeastOnce
from ..._direct_send import answer_and_send
from ..._flusher import OUTLETS_A_STEP
from ..._outlet import Outlet
from ..codec._connection import State
from ..codec._frames import PUBACK, PUBLISH, QOS_1, body_of
from ._inflight import Inflight
from ._mqtt5 import AtMostOnce
from ._selecting import Selecting

if TYPE_CHECKING:
    from ....accounts import Recipient
    from ..codec._connection import Connection
    from ._client import Client
    from ._forwarder import Forwarder
    from ._publisher import Publisher
    from ._replays import Replays
    from ._subscriber import Subscriber

CONFIRMED: Final = PUBLISH | QOS_1
"""The first byte of a QoS 1 PUBLISH, neither sent again nor to be retained."""

LEAST_BYTES: Final = 7
"""A QoS 1 PUBLISH has at least a fixed header, a topic of one byte, and an identifier."""

ACKING: Final = (Inflight, AtLeastOnce, Selecting)
"""Recipients of QoS 1 that may be responsible for a publication at once: if an `Inflight` holds
it. A queue is when it has written it."""

NOT_ACKING: Final = (Outlet, AtMostOnce)
"""The same of those that get it with QoS 0."""


class SinglePackets:
    """Handles one client's packets that come alone.

    Args:
        client: The client.
        connection: Its protocol state.
        forwarder: Forwards its QoS 0 publications.
        publisher: Publishes its others.
        subscriber: Takes its acknowledgements.
        replays: The retained publications still to be sent to it, before anything else.
    """

    __slots__ = ("_client", "_connection", "_forwarder", "_publisher", "_replays", "_subscriber")

    def __init__(
        self,
        client: Client,
        connection: Connection,
        forwarder: Forwarder,
        publisher: Publisher,
        subscriber: Subscriber,
        replays: Replays,
    ) -> None:
        self._client = client
        self._connection = connection
        self._forwarder = forwarder
        self._publisher = publisher
        self._subscriber = subscriber
        self._replays = replays

    def handle(self, data: bytes) -> bool | None:
        """Handle a read; see `Session._handle_read`."""
        connection = self._connection
        if not data or connection.position < len(connection.buffer) or connection.missing:
            return None  # it is not all there is
        if self._replays.granted or connection.state is not State.CONNECTED:
            return None
        first = data[0]
        if first == PUBLISH:
            return self._forwarder.forward_single(data)
        if first == CONFIRMED:
            return self.confirm(data)
        if first == PUBACK:
            return self.acknowledge(data)
        return None

    def acknowledge(self, data: bytes) -> bool | None:
        """Take PUBACKs; see `handle`."""
        inflight = self._subscriber.subscriptions.inflight
        if type(inflight) is not Inflight or not inflight.acknowledged_all(data):
            return None
        return self._end(data)

    def _end(self, data: bytes) -> bool:
        client = self._client
        server = client.server
        server.counters.received_bytes += len(data)
        flusher = server.flusher
        if flusher.dirty and not flusher.passing:
            flusher.flush_now()
        return client.account.is_open_wide()

    def confirm(self, data: bytes) -> bool | None:
        """Publish with QoS 1, and acknowledge it; see `handle`."""
        client = self._client
        publisher = self._publisher
        acks = publisher.acks
        if acks is None or len(acks) or client.excess is not None or client.billing.by_topic:
            return None
        size = len(data)
        if size < LEAST_BYTES or (data[1] > 127 and data[2] > 127):
            return None  # reads that are handled here are no longer than two digits can say
        at, stop = body_of(data, 0)
        if stop != size or size > self._connection.max_packet_size:
            return None
        end = at + 2 + (data[at] << 8 | data[at + 1])
        tail = end + 2
        if tail > size:
            return None
        route = self._forwarder.route_of(data[at:end])
        if route is None or route.looked_into:
            return None
        identifier = data[end:tail]
        holders, plain = route.acked.holders, route.unacked.holders
        copies = len(holders) + len(plain)
        mqtt5 = client.mqtt5
        if mqtt5 is not None:
            if data[tail : tail + 1] != b"\0" or publisher.awaits_release:
                return None  # it has properties, or there may be too many under way
            if not copies:
                return None  # it is told so
            tail += 1
        account = client.account
        ledger = account.ledger
        if (
            identifier == b"\0\0"
            or copies > OUTLETS_A_STEP  # others have a turn in between
            or ledger.recorder is not None
            or account.tracers is not None
            or account.tracing is not None
            or not account.is_open_wide()
        ):
            return None
        inflights: list[Inflight] = []
        for holder in holders:
            inflight = holder.last_holder
            if type(holder) not in ACKING or type(inflight) is not Inflight:
                return None
            inflights.append(inflight)
        for holder in plain:
            if type(holder) not in NOT_ACKING:
                return None
        server = client.server
        nbytes = end - at - 2 + size - tail
        borrow_run(account, 1, nbytes, copies)
        now = ledger.clock()
        others: list[Recipient] = []
        for holder, inflight in zip(holders, inflights, strict=True):
            if (
                mqtt5 is not None
                or type(holder) is Selecting
                or not inflight.hold_packet(account, data[:end], data[tail:], nbytes, now)
            ):
                others.append(holder)
        if others:
            hold_all(account, others, Publication(route.topic, data[tail:], 1), 1, nbytes)
            for holder in others:
                holder.ready()
        if plain:
            hold_all(account, plain, Publication(route.topic, data[tail:]), 1, nbytes)
        server.dataspace.count_run(1, copies)
        server.counters.received += 1
        answer_and_send(client.sender.outlet, account, b"\x40\x02" + identifier)
        return self._end(data)
