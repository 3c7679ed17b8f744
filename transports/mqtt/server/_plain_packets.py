"""Plain packets, handled in one short step: QoS 0 alone in its read, PUBACKs, QoS 1 in a row.

Where clients send a packet now and then, nearly every read is one of these. Parsing them as any
other packet, and making a turn for them, costs several times what is to be done. Where there is
anything more to a packet, nothing is done here, and `MqttSession` handles it as any other.

Whatever is done here has the same effect on the ledger and on the wire as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....accounts import borrow_run, hold_all, make_ready, under_confirm
from ....dataspace import Publication
from ....dataspace._at_least_once import AtLeastOnce
from ..._direct_send import answer_and_send
from ..._flusher import OUTLETS_A_STEP
from ..._outlet import Outlet
from ..codec._connection import State
from ..codec._frames import PUBACK, PUBLISH, QOS_1, body_of
from ..codec._packets import PubAck
from ._framing import Alike
from ._inflight import Inflight
from ._mqtt5 import AtMostOnce
from ._publisher_acks import MAX_UNACKED
from ._reframe import NONE
from ._selecting import Selecting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....accounts import Recipient
    from ..._scheduler import Work
    from ..codec._connection import Connection
    from ._client import Client
    from ._forwarder import Forwarder
    from ._publisher import Publisher
    from ._publisher_acks import PublisherAck, PublisherAcks
    from ._replays import Replays
    from ._subscriber import Subscriber

CONFIRMED: Final = PUBLISH | QOS_1
"""The first byte of a QoS 1 PUBLISH, neither sent again nor to be retained."""

LEAST_BYTES: Final = 7
"""A QoS 1 PUBLISH has at least a fixed header, a topic of one byte, and an identifier."""

ANSWER_BYTES: Final = 4
"""The size of a PUBACK."""

MOST_PACKETS: Final = 32
"""Packets that are acknowledged with one send; then other connections may have their turn."""

ACKING: Final = (Inflight, AtLeastOnce, Selecting)
"""Recipients of QoS 1 that may be responsible for a publication at once: if an `Inflight` holds
it. Others say when they are: a queue when it has written it."""

NOT_ACKING: Final = (Outlet, AtMostOnce)
"""The same of those that get it with QoS 0."""


class PlainPackets:
    """Handles one client's plain packets.

    Args:
        client: The client.
        connection: Its protocol state.
        work: Its CPU time.
        forwarder: Forwards its QoS 0 publications.
        publisher: Publishes its others.
        subscriber: Takes its acknowledgements.
        replays: The retained publications still to be sent to it, before anything else.

    Attributes:
        rest: What `handle` has left of a read, to be handled as anything else.
    """

    __slots__ = (
        "_client", "_connection", "_forwarder", "_publisher", "_replays", "_subscriber", "_tried",
        "_work", "rest",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        connection: Connection,
        work: Work,
        forwarder: Forwarder,
        publisher: Publisher,
        subscriber: Subscriber,
        replays: Replays,
    ) -> None:
        self._client = client
        self._connection = connection
        self._work = work
        self._forwarder = forwarder
        self._publisher = publisher
        self._subscriber = subscriber
        self._replays = replays
        # Whether the next packet has been looked at, and is not plain.
        self._tried = False
        self.rest = b""

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
            return self._confirm_all(data)
        if first == PUBACK:
            return self.acknowledge(data)
        return None

    def _confirm_all(self, data: bytes) -> bool | None:
        """Handle a read that begins with a QoS 1 PUBLISH, as far as all is plain; see `handle`."""
        size = len(data)
        if size < LEAST_BYTES:
            return None
        end = body_of(data, 0)[1]
        several = end < size
        work = self._work
        if end > size or (several and not work.begin()):
            return None
        position = self.confirm(data)
        if several:
            work.end()
        if position == size:
            return self._end(data)
        self._tried = True
        if not position:
            return None
        self.rest = data[position:]
        self._end(data[:position])
        return False

    def confirm_more(self, data: bytes, position: int) -> int:
        """Do as `confirm`, with what `handle` has left."""
        if self._tried:
            self._tried = False
            return position
        return self.confirm(data, position)

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

    def confirm(self, data: bytes, position: int = 0) -> int:
        """Publish with QoS 1, and acknowledge, as many packets as are plain.

        Args:
            data: What was read.
            position: Where a packet begins whose first byte is `CONFIRMED`.

        Returns:
            Where the packets end that were handled; `position` if none was.
        """
        client = self._client
        acks = self._publisher.acks
        account = client.account
        if (
            acks is None
            or client.excess is not None
            or client.billing.by_topic
            or account.ledger.recorder is not None
            or account.tracers is not None
            or account.tracing is not None
            or self._connection.state is not State.CONNECTED
        ):
            return position
        copies = packets = 0
        size = len(data)
        answers: list[bytes] = []
        while (
            position + LEAST_BYTES <= size
            and data[position] == CONFIRMED
            and copies <= OUTLETS_A_STEP  # others have a turn in between
            and packets < MOST_PACKETS
            and account.is_open_wide()
            and (not answers or self._has_room_for(len(answers)))
        ):
            if data[position + 1] > 127 and data[position + 2] > 127:
                break  # packets that are handled here are no longer than two digits can say
            at, end = body_of(data, position)
            if end > size or end - position > self._connection.max_packet_size:
                break
            middle = at + 2 + (data[at] << 8 | data[at + 1])
            identifier = data[middle : middle + 2]
            if middle + 2 > end or identifier == b"\0\0":
                break
            found = self._publish(data, position, at, middle, end, packets, copies, answers)
            if found is None:
                break
            packets += found[0]
            copies += found[1]
            position += (end - position) * found[0]
        if answers:
            answer_and_send(client.sender.outlet, account, b"".join(answers), len(answers))
        return position

    def _has_room_for(self, answers: int) -> bool:
        """Whether there are funds for one more with so many to be acknowledged (rule 9)."""
        items, nbytes = self._client.account.room()
        return items >= answers and nbytes >= ANSWER_BYTES * answers

    def _publish(
        self,
        data: bytes,
        position: int,
        at: int,
        middle: int,
        end: int,
        packets: int,
        copies: int,
        answers: list[bytes],
    ) -> tuple[int, int] | None:
        """Publish a packet, and those behind it that are like it, as far as there are funds.

        Args:
            data: What was read.
            position: Where the packet begins.
            at: Where its topic begins.
            middle: Where its identifier begins.
            end: Where it ends.
            packets: The number of packets that were handled before it, of the same read.
            copies: The number of their copies.
            answers: The acknowledgements of theirs that are still to be sent; those of these
                packets are added, if somebody is responsible for them at once.

        Returns:
            The numbers of packets and of copies; None if there is more to it.
        """
        client = self._client
        account = client.account
        acks = self._publisher.acks
        assert acks is not None, "`confirm` has seen it"
        route = self._forwarder.route_of(data[at:middle])
        if route is None or route.looked_into:
            return None
        holders, plain = route.acked.holders, route.unacked.holders
        fanout = len(holders) + len(plain)
        mqtt5 = client.mqtt5
        prefix = 0
        if mqtt5 is not None:
            if data[middle + 2 : middle + 3] != NONE or self._publisher.awaits_release:
                return None  # it has properties, or there may be too many under way
            if not fanout or acks.pending:
                return None  # it is told so, or there may be too many
            prefix = len(NONE)
        if fanout > OUTLETS_A_STEP:
            return None
        inflights: Sequence[Inflight] | None = route.acked.noted
        if inflights is None:
            inflights = route.acked.noted = inflights_of(holders)
        later = len(inflights) < len(holders)
        if acks.pending and not later:
            return None  # acknowledgements are in order
        if later and (answers or len(acks.pending) > MAX_UNACKED - MOST_PACKETS):
            return None  # likewise; and `begin` may have to refuse one
        for holder in plain:
            if type(holder) not in NOT_ACKING:
                return None
        step = end - position
        head = data[position:middle]
        nbytes = end - at - 4 - prefix  # the topic without its length, and the payload
        tails = [data[middle + 2 : end]]
        # Those of MQTT 5 that are acknowledged later are counted one by one (receive maximum).
        if not (account.rated or (later and mqtt5)) and data.startswith(head, end):
            # Each of them may be taken while those before it leave room (rule 9), as in `find_run`.
            items, room = account.room()
            unsent = len(answers)
            most = min(
                (items - unsent) // (fanout + 1),
                (room - ANSWER_BYTES * unsent) // (nbytes * fanout + ANSWER_BYTES),
                MOST_PACKETS - packets - 1,
                (OUTLETS_A_STEP - copies) // fanout - 1 if fanout else MOST_PACKETS,
            )
            tails += tails_alike(data, head, NONE[:prefix], end, step, most)
        count = len(tails)
        identifiers = [data[n : n + 2] for n in range(middle, middle + step * count, step)]
        borrow_run(account, count, nbytes * count, fanout)
        begun: Sequence[PublisherAck] = ()
        touched: Sequence[Recipient] = holders
        if later:
            publications = publications_of(route.topic, tails, prefix, 1)
            begun = self.hold_later(acks, identifiers, holders, publications, nbytes)
        else:
            now = account.ledger.clock()
            at_once = not answers and count == 1 and end == len(data)
            touched = []
            form = head, tails
            alike = Alike(None, form) if prefix else Alike(form, None)
            for holder, inflight in zip(holders, inflights, strict=True):
                selected = type(holder) is Selecting
                held = inflight.hold_packets(account, alike, nbytes, now, at_once, selected)
                if held < count:
                    touched.append(holder)
                    for each in publications_of(route.topic, tails[held:], prefix, 1):
                        hold_all(account, (holder,), each, 1, nbytes)
            answers += [b"\x40\x02" + identifier for identifier in identifiers]
        if plain:
            for each in publications_of(route.topic, tails, prefix, 0):
                hold_all(account, plain, each, 1, nbytes)
        if touched:
            make_ready(touched, account.ledger)
        for ack in begun:
            ack.handed_over()
        server = client.server
        server.dataspace.count_run(count, fanout)
        server.counters.received += count
        return count, count * fanout

    def hold_later(
        self,
        acks: PublisherAcks,
        identifiers: Sequence[bytes],
        holders: Sequence[Recipient],
        publications: Sequence[Publication],
        nbytes: int,
    ) -> list[PublisherAck]:
        """Hand over publications, each for holders that say later when they are responsible for it.

        Returns:
            Their acknowledgements, which are due when all have said so.
        """
        account = self._client.account
        begun: list[PublisherAck] = []
        for identifier, publication in zip(identifiers, publications, strict=True):
            ack = acks.begin(PubAck(int.from_bytes(identifier, "big")))
            begun.append(ack)
            under_confirm(account.ledger, ack, hold_all, account, holders, publication, 1, nbytes)
        return begun


def inflights_of(holders: Sequence[Recipient]) -> Sequence[Inflight]:
    """Return the last holders of recipients, until one of them is none that may be responsible."""
    found: list[Inflight] = []
    for holder in holders:
        inflight = holder.last_holder
        if type(holder) not in ACKING or type(inflight) is not Inflight:
            break
        found.append(inflight)
    return found


def publications_of(topic: str, tails: Sequence[bytes], prefix: int, qos: int) -> list[Publication]:
    """Return the publications of packets that are alike, with `prefix` bytes before a payload."""
    return [Publication(topic, tail[prefix:], qos) for tail in tails]


def tails_alike(
    data: bytes, head: bytes, prefix: bytes, start: int, step: int, most: int
) -> list[bytes]:
    """Return what is behind the identifiers of packets that follow each other.

    Args:
        data: What was read.
        head: What each of them has before its identifier.
        prefix: What each has right behind it.
        start: Where the first begins.
        step: The length of each.
        most: The most that are looked for.
    """
    tails: list[bytes] = []
    for position in range(start, min(len(data) - step + 1, start + step * most), step):
        middle = position + len(head)
        if not data.startswith(head, position) or data[middle : middle + 2] == b"\0\0":
            break
        if prefix and not data.startswith(prefix, middle + 2):
            break
        tails.append(data[middle + 2 : position + step])
    return tails
