"""Conversion of runs of MQTT publications to columns, and back; five times faster than singly."""

from __future__ import annotations

from collections.abc import Sequence

from ...dataspace import Batch
from ...transports.mqtt.codec._frames import PUBLISH, encode_remaining_length
from ...transports.mqtt.server._runs import publications
from ..log import run_columns


def columns_of(run: Batch) -> tuple[list[bytes], list[bytes]]:
    """Return the topics and the payloads of a run.

    Only MQTT's connections make runs of publications; their raw bytes are QoS 0 PUBLISH packets.
    If the bytes are not exactly the run's number of whole packets, the run's maker splits them.
    """
    return _columns(run.raw, run.count) or run_columns(run)


def _columns(raw: bytes, count: int) -> tuple[list[bytes], list[bytes]] | None:
    keys: list[bytes] = []
    values: list[bytes] = []
    end = len(raw)
    at = 0
    while end - at > 4 and raw[at] == PUBLISH:
        length = shift = 0
        place = at + 1
        while True:
            byte = raw[place]
            place += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128 or place >= end:
                break
        if place + 2 > end:
            break
        topic = place + 2
        payload = topic + (raw[place] << 8 | raw[place + 1])
        stop = place + length
        if stop > end or payload > stop:
            break
        key = raw[topic:payload]
        header = raw[at:payload]
        before = payload - at
        frame = stop - at
        # Following packets with this very header have the same length.
        first = at
        while stop <= end and raw.startswith(header, at):
            values.append(raw[at + before : stop])
            at = stop
            stop += frame
        keys += [key] * ((at - first) // frame)
    return (keys, values) if at == end and len(keys) == count else None


def run_of(keys: Sequence[bytes], values: Sequence[bytes]) -> Batch:
    """Return the run of QoS 0 of these topics and payloads: the reverse of `columns_of`."""
    headers: dict[tuple[bytes, int], bytes] = {}
    pieces: list[bytes] = []
    for key, value in zip(keys, values, strict=True):
        size = len(value)
        header = headers.get((key, size))
        if header is None:
            topic = len(key).to_bytes(2) + key
            length = encode_remaining_length(len(topic) + size)
            header = headers[key, size] = b"".join((bytes((PUBLISH,)), length, topic))
        pieces.append(header)
        pieces.append(value)
    return Batch(
        b"".join(pieces), len(keys), publications, keys[0].decode(), alike=len(headers) == 1
    )
