"""Runs: contiguous QoS 0 publications that go to the same holders, found without decoding them.

A QoS 0 PUBLISH with no flag set leaves a server as it came in, so a run of them is forwarded as one
slice of the buffer, whatever their sizes and topics, as long as they concern the same holders.

Theory of operation. A frame's header (first byte, remaining length, topic) tells whom it concerns;
what follows is payload, which may be anything. A frame that begins with exactly the header of the
one before it needs no parsing: same length, same topic, valid. Where many such frames follow each
other, their headers are compared column by column: `buffer[at::length]` is the same byte of each
frame, so one comparison of a few hundred bytes does for a few hundred frames. Measured on 310
frames of 205 bytes: 3 us, against 25 us frame by frame.

Whatever is not plainly a whole, valid QoS 0 PUBLISH ends the run and is left to `Connection`, which
says what is wrong with it: nothing is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import attrs

from ...dataspace import Destinations, Publication, Route
from .._errors import RemoteProtocolError
from ._frames import (
    DISCONNECT,
    DUP,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    QOS_2,
    RETAIN,
    body_of,
    encode_remaining_length,
)
from ._packets5 import decode5
from ._reasons import Reason

PROBE = 4
"""After this many equal headers in a row, columns are compared: below it, that costs more."""

STRETCH_BYTES: Final = 8 << 10
"""What is looked at for one run where that takes long: where each publication of a few bytes is on
another topic than the one before. That is a millisecond's worth."""


@attrs.define(slots=True)
class Run:
    """A run that was found at `Connection.position`."""

    destinations: Destinations
    """Whom all of it concerns."""
    end: int
    """Where it ends in the buffer."""
    count: int
    """How many publications it is."""
    cut: bool
    """Whether it was cut because there is no room for what follows it in the account."""
    topic: str = attrs.field(default="", eq=False)
    """Of its first publication; for who tells what it is about."""
    last: bool = attrs.field(default=False, eq=False)
    """Whether nothing that is whole, or that there is room for, follows it in the buffer."""


def find_run(
    buffer: bytes,
    start: int,
    routes: Mapping[bytes, Route],
    resolve: Callable[[bytes], Route | None],
    room: tuple[int, int],
    max_packet_size: int,
    payer_of: Callable[[bytes], object] | None = None,
    *,
    properties: bool = False,
    most: int = 0,
) -> Run | None:
    """Find the longest run at `start` that the account has room for.

    Each publication is looked at before it is admitted (rule 9): it is, while what the ones before
    it cost leaves the debt at or below the limit. So k = 1 + room // price are, in items and bytes,
    where one costs its input and a copy for each holder.

    Args:
        buffer: What was read.
        start: Where a packet begins.
        routes: Known routes, by the topic as it stands in the packet: two bytes of length, UTF-8.
        resolve: Finds the route of another one; None leaves the packet to `Connection`.
        room: What the account may still borrow before its readers wait; see `Account.room`.
        max_packet_size: Larger packets are left to `Connection`.
        payer_of: Tells who pays for a topic, where that is not always the same: a run ends where
            it is somebody else.
        properties: Whether it is MQTT 5, where a length of properties follows the topic: one that
            is not 0 ends the run, and what has an alias for a topic is left to `Connection`.
        most: How many bytes may be looked at; 0: all.

    Returns:
        The run, with a count of 0 if there is no room at all; None if what stands at `start` is not
        a whole, valid QoS 0 PUBLISH.
    """
    end = len(buffer)
    if most and end - start > most:
        end = start + most
    position = start
    count = 0
    destinations: Destinations | None = None
    room_items, room_bytes = room
    max_count = last_start = 0
    topic = ""
    last = False
    payer: object = None
    while end - position >= 2 and buffer[position] == PUBLISH:
        length = buffer[position + 1]
        at = position + 2
        if length >= 128:
            # Two bytes of length are by far the most common; the rest is for a loop.
            if at >= end:
                break
            byte = buffer[at]
            at += 1
            length = (length & 127) | (byte & 127) << 7
            shift = 14
            while byte >= 128 and shift < 28 and at < end:
                byte = buffer[at]
                at += 1
                length |= (byte & 127) << shift
                shift += 7
            if byte >= 128 or (properties and not byte):
                break  # too long; or in more bytes than it takes, which MQTT 5 does not have
        stop = at + length
        if length < 3 or stop - position > max_packet_size:
            break
        if stop > end:
            last = True  # the rest of it has not come
            break
        header_end = at + 2 + (buffer[at] << 8 | buffer[at + 1])
        if header_end > stop:
            break
        if properties and (header_end == stop or buffer[header_end]):
            break
        key = buffer[at:header_end]
        route = routes.get(key)
        if route is None:
            if count:
                break  # what was found so far goes out first: this one may be refused
            route = resolve(key)
            if route is None:
                return None
        if payer_of is not None:
            pays = payer_of(key)
            if count and pays is not payer:
                break
            payer = pays
        run = route.run
        if run is not destinations or run is None:
            if count:
                break
            if run is None:
                return None
            destinations = run
            topic = route.topic
            if room_items < 0 or room_bytes < 0:
                return Run(destinations, start, 0, True, last=True)
            if stop == end:
                return Run(destinations, stop, 1, False, topic, True)  # all there is, most often
            price = len(destinations.holders) + 1
            max_count = 1 + room_items // price
            last_start = start + room_bytes // price
        if count >= max_count or position > last_start:
            return Run(run, position, count, True, topic, True)
        count += 1
        frame = stop - position
        header = buffer[position : header_end + properties]
        position = stop
        # The frames that follow with this very header.
        limit = min(
            (end - position) // frame,
            max_count - count,
            (last_start - position) // frame + 1 if last_start >= position else 0,
        )
        if limit > 0:
            equal = 0
            probes = min(limit, PROBE)
            while equal < probes and buffer.startswith(header, position):
                equal += 1
                position += frame
            if equal == PROBE and limit > PROBE:
                more = equal_headers(buffer, position, header, frame, limit - PROBE)
                equal += more
                position += more * frame
            count += equal
    if destinations is None:
        return None
    return Run(destinations, position, count, False, topic, last or end - position < 2)


def equal_headers(buffer: bytes, position: int, header: bytes, frame: int, limit: int) -> int:
    """Return how many frames of `frame` bytes from `position` on begin with `header`.

    At most `limit`, which must fit into the buffer.
    """
    for place, byte in enumerate(header):
        first = position + place
        column = buffer[first : first + (limit - 1) * frame + 1 : frame]
        limit -= len(column.lstrip(bytes((byte,))))
        if not limit:
            break
    return limit


@attrs.frozen(slots=True)
class Single:
    """What a read began with that was one whole QoS 0 PUBLISH: the next may be just like it.

    As frames in a run, such a one needs no parsing: same length, same topic, valid.
    """

    size: int
    """Of the packet."""
    header: bytes
    """The packet up to the end of its topic."""
    key: bytes
    """The topic as it stands in the packet."""
    topic: str
    """The topic."""
    plain: bytes = b""
    """Of MQTT 5: the same header in MQTT 3.1.1, where there are no properties."""

    @classmethod
    def of(cls, packet: bytes, topic: str, *, properties: bool = False) -> Single:
        """Remember a packet that `find_run` has found to be whole and valid."""
        at, _ = body_of(packet, 0)
        end = at + 2 + (packet[at] << 8 | packet[at + 1])
        if not properties:
            return cls(len(packet), packet[:end], packet[at:end], topic)
        length = encode_remaining_length(len(packet) - at - 1)
        plain = b"".join((packet[:1], length, packet[at:end]))
        return cls(len(packet), packet[: end + 1], packet[at:end], topic, plain)


def publications(raw: bytes) -> Iterator[Publication]:
    """Decode a run that was found here, for those who look at publications."""
    position = 0
    end = len(raw)
    while position < end:
        at, position = body_of(raw, position)
        topic_end = at + 2 + (raw[at] << 8 | raw[at + 1])
        yield Publication(raw[at + 2 : topic_end].decode(), raw[topic_end:position])


def topic_key(buffer: bytes, position: int) -> bytes | None:
    """Return the topic of the PUBLISH at `position`, with its length before it; None if it is none.

    Whether all of the packet is there, and as it should be, is for others to say.
    """
    at = position + 1
    end = len(buffer)
    while at < end and buffer[at] >= 128 and at < position + 4:
        at += 1
    at += 1
    if at + 2 > end:
        return None
    stop = at + 2 + (buffer[at] << 8 | buffer[at + 1])
    return buffer[at:stop] if stop <= end else None


def take_acknowledgements(
    buffer: bytes,
    start: int = 0,
    passed: dict[int, int] | None = None,
    *,
    origin: int = 0,
    handled: int = 0,
    reasons: bool = False,
) -> tuple[list[tuple[int, int]], bytes, int]:
    """Take what reduces debt, and pings, out of a connection's unparsed input (rule 10).

    Acknowledgements and PINGREQ do not wait behind publications that do; all else stays, in order.
    So does a PUBREL whose own publication waits: before it that one is a duplicate, to be dropped,
    after it a new one [MQTT-4.3.3-2].

    Args:
        buffer: Unparsed input, beginning with a packet.
        start: From where on it has not been looked at before.
        passed: Where the QoS 2 publications before that begin in all that was ever kept, by packet
            identifier; it is added to.
        origin: Where `buffer` begins in that.
        handled: How much of that has been handled, so that it is not waited for any more.
        reasons: Whether it is MQTT 5, where a reason code may follow the identifier. That of a
            PUBREC which says that it was not taken is `REFUSED_PUBREC` in what is returned.

    Returns:
        (first byte, packet identifier or 0) of each packet taken, the buffer without them, and
        where in that to go on next time: at the first packet that is not whole, or not valid.
    """
    taken: list[tuple[int, int]] = []
    kept: list[bytes] = []
    passed = {} if passed is None else passed
    removed = 0
    end = len(buffer)
    position = keep_from = start
    while end - position >= 2:
        first = buffer[position]
        length = shift = 0
        at = position + 1
        while True:
            byte = buffer[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128 or at >= end or shift >= 28:
                break
        if byte >= 128 or at + length > end:
            break
        stop = at + length
        if (
            first in ACKNOWLEDGEMENTS
            and (length == 2 or (reasons and length > 2))
            and (buffer[at] or buffer[at + 1])
        ):
            packet_id = buffer[at] << 8 | buffer[at + 1]
            if length > 2 and not _is_valid(first, buffer[at:stop]):
                break  # it is refused in its turn
            if first == PUBREL and passed.get(packet_id, -1) >= handled:
                position = stop
                continue
            if first == PUBREC and length > 2 and buffer[at + 2] >= Reason.UNSPECIFIED_ERROR:
                first = REFUSED_PUBREC
            taken.append((first, packet_id))
        elif first == PINGREQ and not length:
            taken.append((first, 0))
        elif first & 0xF0 != PUBLISH and first not in (0x82, 0xA2):
            break  # DISCONNECT, or something to be refused: in its turn
        else:
            if first & ~(DUP | RETAIN) == PUBLISH | QOS_2 and length > 4:
                at += 2 + (buffer[at] << 8 | buffer[at + 1])
                packet_id = int.from_bytes(buffer[at : at + 2], "big")
                passed[packet_id] = origin + position - removed
            position = stop
            continue
        kept.append(buffer[keep_from:position])
        removed += stop - position
        position = keep_from = stop
    if not taken:
        return taken, buffer, position
    rest = b"".join((buffer[:start], *kept, buffer[keep_from:]))
    return taken, rest, len(rest) - (end - position)


def _is_valid(first: int, body: bytes) -> bool:
    try:
        decode5(first, body)
    except RemoteProtocolError:
        return False
    return True


def is_disconnect(buffer: bytes | bytearray, position: int) -> bool:
    """Whether a whole DISCONNECT stands at `position`: the packet that costs nothing.

    In MQTT 5 it may say why, at some length; then it is not looked ahead for beyond 127 bytes.
    """
    end = len(buffer)
    return (
        end - position >= 2
        and buffer[position] == DISCONNECT
        and position + 2 + buffer[position + 1] <= min(end, position + 2 + 127)
    )


REFUSED_PUBREC = 0x51
"""No first byte of a packet: a PUBREC whose reason says that the publication was not taken."""
ACKNOWLEDGEMENTS = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP})
"""What may overtake publications, by its first byte."""
