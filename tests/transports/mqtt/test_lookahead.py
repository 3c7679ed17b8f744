"""What came while a connection waited: in order, but for what overtakes, and looked at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.mqtt import (
    Disconnect,
    PingReq,
    PubAck,
    Publish,
    PubRel,
    Subscribe,
    encode,
)
from clearfunds.transports.mqtt.server._lookahead import PIECE_BYTES, Lookahead
from clearfunds.transports.mqtt.server._runs import take_acknowledgements

LOOK = "clearfunds.transports.mqtt.server._lookahead.take_acknowledgements"

SMALL = encode(Publish("a"))
LARGE = encode(Publish("a", bytes(2 * PIECE_BYTES)))
DISCONNECT = encode(Disconnect())

packets = st.one_of(
    st.just(SMALL),
    st.just(LARGE),
    st.integers(0, 300).map(lambda n: encode(Publish("a", bytes(n), 1, packet_id=n + 1))),
    st.integers(1, 3).map(lambda n: encode(Publish("a", b"", 2, packet_id=n))),
    st.integers(1, 3).map(lambda n: encode(PubRel(n))),
    st.integers(1, 65_535).map(lambda n: encode(PubAck(n))),
    st.just(encode(PingReq())),
    st.just(encode(Subscribe(1, (("a", 0),)))),
)


def taken_up(lookahead: Lookahead) -> bytes:
    """All that is whole, and then the rest."""
    pieces = list(iter(lookahead.take_up, b""))
    return b"".join(pieces) + lookahead.take_rest()


@given(st.lists(packets, max_size=30), st.data())
def test_acknowledgements_overtake_and_all_else_stays_in_order(
    sent: list[bytes], data: st.DataObject
) -> None:
    """Cut anywhere, with the pieces taken up in between."""
    lookahead = Lookahead()
    held: list[bytes] = []  # what was not handled yet, and before that what was
    handled: list[bytes] = []
    expected: list[tuple[int, int]] = []
    taken: list[tuple[int, int]] = []
    in_hand = b""
    cut = b""
    for packet in sent:
        first, packet_id = packet[0], int.from_bytes(packet[2:4])
        waits = first == 0x62 and any(each[0] == 0x34 and each[-2:] == packet[2:] for each in held)
        if first in (0x40, 0xC0) or (first == 0x62 and not waits):
            expected.append((first, packet_id))
        else:
            held.append(packet)
        stream = cut + packet
        at = data.draw(st.integers(0, len(packet)))
        taken += lookahead.add(stream[: len(cut) + at], len(in_hand))
        taken += lookahead.add(stream[len(cut) + at :], len(in_hand))
        if data.draw(st.booleans()):
            # A packet is handled; a piece is taken up when the one before it has been.
            in_hand = in_hand or lookahead.take_up()
            if in_hand:
                handled.append(held.pop(0))
                assert in_hand.startswith(handled[-1])
                in_hand = in_hand[len(handled[-1]) :]
        assert lookahead.size + len(in_hand) == sum(map(len, held))
    assert taken == expected
    assert in_hand + taken_up(lookahead) == b"".join(held)
    assert not lookahead.size


@given(st.lists(packets, max_size=8), st.integers(0, 2 * PIECE_BYTES))
def test_a_piece_ends_where_a_packet_ends(sent: list[bytes], missing: int) -> None:
    staying = [packet for packet in sent if packet[0] not in (0x40, 0x62, 0xC0)]
    lookahead = Lookahead()
    stream = b"".join([*staying, LARGE])
    lookahead.add(stream[: len(stream) - 1 - missing])
    whole = b"".join(iter(lookahead.take_up, b""))
    assert whole == b"".join(staying)
    assert not lookahead.has_whole_packets
    assert lookahead.take_rest() == LARGE[: len(LARGE) - 1 - missing]


@pytest.mark.parametrize("barrier", [DISCONNECT, b"\x10\x00", b"\x30\xff\xff\xff\xff\x01"])
def test_nothing_overtakes_what_is_to_be_refused(barrier: bytes) -> None:
    lookahead = Lookahead()
    assert lookahead.add(SMALL + encode(PubAck(1)) + barrier[:1]) == [(0x40, 1)]
    assert lookahead.add(barrier[1:]) == []
    assert lookahead.add(encode(PubAck(2))) == []
    assert not lookahead.begins_with_disconnect
    assert lookahead.take_up() == SMALL
    assert lookahead.begins_with_disconnect == (barrier == DISCONNECT)
    assert lookahead.take_up() == b""
    assert lookahead.take_rest() == barrier + encode(PubAck(2))


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_no_garbage_breaks_it(reads: list[bytes]) -> None:
    lookahead = Lookahead()
    taken = [each for data in reads for each in lookahead.add(data)]
    kept = taken_up(lookahead)
    assert sum(map(len, reads)) - len(kept) == sum(2 if f == 0xC0 else 4 for f, _ in taken)


MUCH = 4 << 20


@pytest.mark.parametrize(
    ("stream", "read"),
    [
        (SMALL * (MUCH // 5), 60_000),
        (SMALL * 10_000, 7),
        (LARGE * (MUCH // len(LARGE)), 60_000),
        (encode(Publish("a", bytes(MUCH))), 1_000),
        (SMALL + DISCONNECT + bytes(MUCH), 1_000),
        (SMALL + b"\x30\xff\xff\xff\xff\x01" + bytes(MUCH), 1_000),
        (SMALL * 100_000 + encode(PingReq()) * 1_000, 60_000),
        ((SMALL * 100 + encode(PingReq())) * 1_000, 501),
    ],
    ids=["small", "in pieces", "large", "one", "left", "garbage", "pings behind", "pings"],
)
def test_what_is_kept_is_looked_at_once(
    stream: bytes, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read costs what is new in it, however much is kept."""
    looked_at = 0

    def counted(buffer: bytes, *args: Any, **kwargs: Any) -> Any:
        nonlocal looked_at
        looked_at += len(buffer)
        return take_acknowledgements(buffer, *args, **kwargs)

    monkeypatch.setattr(LOOK, counted)
    lookahead = Lookahead()
    starts = range(0, len(stream), read)
    for start in starts:
        lookahead.add(stream[start : start + read])
    # Twice: a packet that is cut in two is looked at when it begins and when it ends.
    assert looked_at <= 2 * len(stream) + 5 * len(starts)


def test_packets_of_a_few_bytes_are_joined() -> None:
    """A read may be one of them; each by itself would take many times its size."""
    lookahead = Lookahead()
    for _ in range(20_000):
        lookahead.add(SMALL)
    pieces = list(iter(lookahead.take_up, b""))
    assert b"".join(pieces) == SMALL * 20_000
    assert len(pieces) <= 1 + 100_000 // PIECE_BYTES
