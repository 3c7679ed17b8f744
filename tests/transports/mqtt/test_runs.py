"""Runs of publications, and what may overtake them: against slow, plain implementations."""

from __future__ import annotations

import itertools
import random
from typing import Any, cast

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import Holder
from clearfunds.dataspace import Destinations, Publication, Route
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import (
    Disconnect,
    PingReq,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
)
from clearfunds.transports.mqtt.codec._frames import encode_remaining_length, find_frame
from clearfunds.transports.mqtt.codec._packets5 import encode5
from clearfunds.transports.mqtt.codec._properties import Properties
from clearfunds.transports.mqtt.server._reframe import as_mqtt311
from clearfunds.transports.mqtt.server._runs import (
    PROBE,
    REFUSED_PUBREC,
    Run,
    Single,
    clears_retained,
    equal_headers,
    find_run,
    is_disconnect,
    publications,
    take_acknowledgements,
    topic_key,
)

LOTS = (1 << 60, 1 << 60)
BIG = 1 << 28


def destinations(n: int) -> Destinations:
    return Destinations(cast("tuple[Holder, ...]", tuple(object() for _ in range(n))))


class Routes:
    """Routes of a few topics; `a...` concern three holders, `b...` one, `c...` nobody.

    Topics that begin with `x` may not be routed so.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, Route] = {}
        self.by_letter = {"a": destinations(3), "b": destinations(1), "c": destinations(0)}
        self.asked: list[bytes] = []

    def resolve(self, key: bytes) -> Route | None:
        self.asked.append(key)
        try:
            topic = key[2:].decode()
        except UnicodeDecodeError:
            return None
        if topic[:1] not in self.by_letter:
            return None
        plain = self.by_letter[topic[0]]
        route = Route(topic, plain, plain, destinations(0), plain)
        self.known[key] = route
        return route

    def find(
        self, buffer: bytes, start: int = 0, room: tuple[int, int] = LOTS, largest: int = BIG
    ) -> Run | None:
        return find_run(buffer, start, self.known, self.resolve, room, largest)


def plain_frame(buffer: bytes, position: int, largest: int) -> tuple[bytes, int] | None:
    """The topic's key and the end of a whole QoS 0 PUBLISH at `position`, if there is one."""
    if position >= len(buffer) or buffer[position] != 0x30:
        return None
    try:
        frame = find_frame(buffer, position, largest)
    except RemoteProtocolError:
        return None
    if frame is None or frame[1] > len(buffer):
        return None
    body = buffer[slice(*frame)]
    if len(body) < 3 or len(body) < 2 + int.from_bytes(body[:2]):
        return None
    return body[: 2 + int.from_bytes(body[:2])], frame[1]


def slow_find_run(
    routes: Routes, buffer: bytes, start: int, room: tuple[int, int], largest: int
) -> Run | None:
    """What `find_run` says it does, one publication after the other."""
    position, count = start, 0
    plain: Destinations | None = None
    left = list(room)
    while (frame := plain_frame(buffer, position, largest)) is not None:
        key, end = frame
        route = routes.known.get(key)
        if route is None:
            if count:
                break
            route = routes.resolve(key)
            if route is None:
                return None
        if plain is not None and route.run is not plain:
            break
        plain = route.run
        if plain is None:
            return None
        if min(left) < 0:
            return Run(plain, position, count, True)
        price = len(plain.holders) + 1
        left[0] -= price
        left[1] -= price * (end - position)
        position = end
        count += 1
    return None if plain is None else Run(plain, position, count, False)


# -- what is tried --------------------------------------------------------------------------------

topics = st.sampled_from(["a", "a/b", "a/c", "aß", "a" * 130, "b", "b/b", "b" * 127, "c", "x"])
sizes = st.one_of(
    st.sampled_from([0, 1, 124, 125, 126, 127, 128, 129, 16_380, 16_381, 16_382, 16_383, 16_384]),
    st.integers(0, 300),
)


@st.composite
def plain_publishes(draw: st.DrawFn) -> bytes:
    """The same publication several times, or several with one topic and one size."""
    topic, size = draw(topics), draw(sizes)
    count = draw(st.integers(1, 3 * PROBE if size < 400 else 2))
    fill = draw(st.sampled_from([b"\0", b"0", b"\xff", b"0\x03\x00\x01a"]))
    payload = (fill * (size // len(fill) + 1))[:size]
    return encode(Publish(topic, payload)) * count


@st.composite
def flagged_publishes(draw: st.DrawFn) -> bytes:
    """A publication with flags, or without."""
    qos = draw(st.integers(0, 2))
    dup = bool(qos) and draw(st.booleans())
    return encode(
        Publish(draw(topics), b"odd", qos, draw(st.booleans()), dup, packet_id=7 if qos else 0)
    )


oddities = st.one_of(
    flagged_publishes(),
    st.sampled_from(
        [
            encode(PingReq()),
            encode(PubAck(3)),
            b"\x30\x00",
            b"\x30\x02\x00\x00",
            b"\x30\x03\x00\x09a",
            b"\x30\x03\x00\x01\xff",  # not UTF-8
            b"\x30\x83\x00\x00\x01a",  # a length of two bytes where one would do
            b"\x30\x84\x80\x80\x00\x00\x01aa",
            b"\x30\xff\xff\xff\xff\x01",
            b"\x30\x80\x80\x80\x80",
            b"\x30",
            b"\x31\x03\x00\x01a",
        ]
    ),
    st.binary(max_size=6),
)
streams = st.lists(st.one_of(plain_publishes(), plain_publishes(), oddities), max_size=8).map(
    b"".join
)
rooms = st.tuples(
    st.one_of(st.just(1 << 60), st.integers(-2, 60)),
    st.one_of(st.just(1 << 60), st.integers(-2, 60_000)),
)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_a_run_is_what_a_slow_search_finds(data: st.DataObject) -> None:
    buffer = data.draw(streams)
    cut = data.draw(st.integers(0, len(buffer)) | st.just(len(buffer)))
    buffer = buffer[:cut]
    room = data.draw(rooms)
    largest = data.draw(st.sampled_from([BIG, 200, 16_386]))
    fast, slow = Routes(), Routes()
    slow.by_letter = fast.by_letter
    if data.draw(st.booleans()):  # some routes are known
        for topic in ("a", "a/b", "b", "c"):
            key = len(topic).to_bytes(2) + topic.encode()
            fast.resolve(key)
            slow.resolve(key)
    position = astray = 0
    while position < len(buffer) and astray < 50:
        run = fast.find(buffer, position, room, largest)
        assert run == slow_find_run(slow, buffer, position, room, largest)
        if run is not None and run.count:
            position = run.end
        else:
            position += 1  # wherever a packet might be said to begin
            astray += 1
    assert fast.asked == slow.asked


@settings(max_examples=200, deadline=None)
@given(streams)
def test_a_run_ends_where_somebody_else_pays(buffer: bytes) -> None:
    """What is found without payers, cut where the payer changes; never another way."""

    def payer_of(key: bytes) -> object:
        return len(key) % 2

    def found(payers: bool) -> list[tuple[int, bytes]]:
        routes = Routes()
        publishes: list[tuple[int, bytes]] = []
        position = 0
        while True:
            run = find_run(
                buffer, position, routes.known, routes.resolve, LOTS, BIG,
                payer_of if payers else None,
            )  # fmt: skip
            if run is None or not run.count:
                return publishes
            keys: list[bytes] = []
            start = position
            while start < run.end:
                frame = plain_frame(buffer, start, BIG)
                assert frame is not None
                assert topic_key(buffer, start) == frame[0]
                keys.append(frame[0])
                start = frame[1]
            if payers:
                assert len({payer_of(key) for key in keys}) == 1
            publishes += [(len(run.destinations.holders), key) for key in keys]
            position = run.end

    assert found(True) == found(False)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 100, 200, 20_000, 3_000_000])
def test_the_topic_of_any_publication_is_found(size: int, qos: int, retain: bool) -> None:
    packet = encode(Publish("a/\u00e4", bytes(size), qos, retain, packet_id=7 if qos else 0))
    key = b"\0\4a/\xc3\xa4"
    assert topic_key(b"xx" + packet, 2) == key
    header = packet.index(key) + len(key)
    assert [topic_key(packet[:cut], 0) for cut in range(1, header)] == [None] * (header - 1)


@given(st.binary(max_size=12), st.integers(0, 12))
def test_no_garbage_breaks_the_search_for_a_topic(garbage: bytes, start: int) -> None:
    found = topic_key(garbage, start)
    assert found is None or len(found) == 2 + int.from_bytes(found[:2], "big")


@settings(max_examples=100, deadline=None)
@given(streams, st.lists(st.integers(0, 40_000), max_size=6))
def test_how_the_input_was_cut_does_not_matter(buffer: bytes, cuts: list[int]) -> None:
    """The same publications to the same holders, whatever the reads were."""

    def found(pieces: list[bytes]) -> list[tuple[int, bytes]]:
        routes = Routes()
        publishes: list[tuple[int, bytes]] = []
        rest = b""
        for piece in pieces:
            rest += piece
            while (run := routes.find(rest)) is not None and run.count:
                publishes += [
                    (len(run.destinations.holders), encode(Publish(each.topic, each.payload)))
                    for each in publications(rest[: run.end])
                ]
                rest = rest[run.end :]
        return publishes

    at = [0, *sorted(cut for cut in cuts if cut < len(buffer)), len(buffer)]
    pieces = [buffer[a:b] for a, b in itertools.pairwise(at)]
    assert found(pieces) == found([buffer])


@settings(deadline=None)
@given(streams)
def test_what_is_in_a_run_is_what_the_codec_reads(buffer: bytes) -> None:
    run = Routes().find(buffer)
    if run is None:
        return
    position = 0
    decoded: list[Publication] = []
    while position < run.end:
        frame = find_frame(buffer, position)
        assert frame is not None
        packet = decode(0x30, buffer[slice(*frame)])
        assert isinstance(packet, Publish)
        assert (packet.qos, packet.retain, packet.dup) == (0, False, False)
        decoded.append(Publication(packet.topic, packet.payload))
        position = frame[1]
    assert position == run.end
    assert len(decoded) == run.count
    assert list(publications(buffer[: run.end])) == decoded
    assert run.topic == (decoded[0].topic if decoded else "")


@pytest.mark.parametrize("size", [0, 1, 120, 123, 124, 200, 16_380, 16_384, 3_000_000])
@pytest.mark.parametrize("topic", ["a", "a/\u00e4", "0" * 200])
def test_a_single_one_is_remembered_by_its_header(topic: str, size: int) -> None:
    packet = encode(Publish(topic, b"0" * size))
    single = Single.of(packet, topic)
    assert single.size == len(packet)
    assert single.key == topic_key(packet, 0)
    assert single.header + b"0" * size == packet


@pytest.mark.parametrize(
    ("more", "last"),
    [
        (b"", True),
        (b"\x30", True),
        (encode(Publish("a", b"12"))[:-1], True),
        (encode(Publish("a", b"12")), True),  # of the same run
        (encode(Publish("b")), False),
        (encode(PingReq()), False),
        (b"\x30\x02\x00\x00", False),  # nothing valid: to be refused at once
    ],
)
def test_a_run_says_whether_something_whole_follows_it(more: bytes, last: bool) -> None:
    routes = Routes()
    for key in (b"\0\1a", b"\0\1b"):
        routes.resolve(key)
    run = routes.find(encode(Publish("a", b"1")) + more)
    assert run is not None
    assert run.last == last


def test_a_run_that_is_cut_is_the_last() -> None:
    routes = Routes()
    routes.resolve(b"\0\1a")
    run = routes.find(encode(Publish("a", b"1")) * 9, room=(4, BIG))
    assert run is not None
    assert (run.count, run.cut, run.last) == (2, True, True)


# -- by hand --------------------------------------------------------------------------------------


def test_topics_of_the_same_holders_are_one_run() -> None:
    routes = Routes()
    first = b"".join(
        encode(Publish(topic, bytes(n))) for n, topic in enumerate(["a", "a/b", "a/c"] * 3)
    )
    for key in (b"\0\1a", b"\0\3a/b", b"\0\3a/c"):
        routes.resolve(key)
    buffer = first + encode(Publish("b"))
    run = routes.find(buffer)
    assert run == Run(routes.by_letter["a"], len(first), 9, False)


@pytest.mark.parametrize(("room", "count"), [(LOTS, 2), ((0, BIG), 1), ((-1, BIG), 0)])
def test_a_run_says_what_its_first_publication_is_about(room: tuple[int, int], count: int) -> None:
    routes = Routes()
    raw = encode(Publish("b/\u00e4", b"1")) + encode(Publish("b", b"2"))
    for key in (b"\0\4b/\xc3\xa4", b"\0\1b"):
        routes.resolve(key)
    run = routes.find(raw, room=room)
    assert run is not None
    assert (run.count, run.topic) == (count, "b/\u00e4" if count else "")


def test_an_unknown_topic_ends_a_run_before_it_is_asked_for() -> None:
    routes = Routes()
    a, b = encode(Publish("a", b"1")), encode(Publish("a/b", b"2"))
    run = routes.find(a + b)
    assert run is not None
    assert (run.count, run.end) == (1, len(a))
    assert routes.asked == [b"\0\1a"]


def test_a_payload_that_looks_like_a_header_is_a_payload() -> None:
    inner = encode(Publish("a", b"inner"))
    buffer = encode(Publish("a", inner)) * 20
    run = Routes().find(buffer)
    assert run is not None
    assert (run.count, run.end) == (20, len(buffer))


@pytest.mark.rule(9)
@pytest.mark.parametrize("holders", [0, 1, 3])
@pytest.mark.parametrize("room", [-1, 0, 1, 3, 4, 7, 8, 399, 400])
def test_a_run_is_cut_at_the_first_publication_above_the_limit(holders: int, room: int) -> None:
    """Rule 9: each is admitted while what those before it cost leaves the debt at the limit."""
    letter = {3: "a", 1: "b", 0: "c"}[holders]
    frame = encode(Publish(letter, bytes(95)))
    assert len(frame) == 100
    price = holders + 1
    admitted = 0 if room < 0 else 1 + room // price
    run = Routes().find(frame * 500, room=(room, 1 << 60))
    assert run is not None
    assert run.count == min(admitted, 500)
    assert run.cut == (admitted < 500)
    assert run.end == run.count * 100
    run = Routes().find(frame * 500, room=(1 << 60, room * 100))
    assert run is not None
    assert run.count == min(admitted, 500)


@pytest.mark.parametrize("seed", range(5))
def test_columns_agree_with_rows(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        header = bytes(chance.choices(b"\x000a", k=chance.randint(1, 6)))
        frame = len(header) + chance.randint(0, 3)
        rows = [
            (header if chance.random() < 0.95 else bytes(chance.choices(b"\x000a", k=len(header))))
            + chance.randbytes(frame - len(header))
            for _ in range(chance.randint(1, 60))
        ]
        lead = chance.randbytes(chance.randint(0, 3))
        equal = [*(row.startswith(header) for row in rows), False].index(False)
        buffer = lead + b"".join(rows)
        assert equal_headers(buffer, len(lead), header, frame, len(rows)) == equal


# -- what overtakes -------------------------------------------------------------------------------

taking = st.sampled_from(
    [encode(PubAck(1)), encode(PubAck(65_535)), encode(PubRel(300)), encode(PingReq())]
)
staying = st.one_of(
    plain_publishes(),
    st.integers(0, 200).map(lambda n: encode(Publish("a", bytes(n), 1, packet_id=n + 1))),
    st.just(encode(Subscribe(1, (("a", 0),)))),
    st.just(encode(Unsubscribe(1, ("a",)))),
)


@given(st.lists(st.one_of(taking, staying), max_size=30), st.data())
def test_acknowledgements_overtake_and_all_else_stays_in_order(
    packets: list[bytes], data: st.DataObject
) -> None:
    buffer = b"".join(packets)
    expected = [p for p in packets if p[0] in (0x40, 0x62, 0xC0)]
    rest = b"".join(p for p in packets if p[0] not in (0x40, 0x62, 0xC0))
    taken: list[tuple[int, int]] = []
    held, looked_at = b"", 0
    position = 0
    while position < len(buffer):
        step = data.draw(st.integers(1, len(buffer) - position))
        held += buffer[position : position + step]
        position += step
        found, held, looked_at = take_acknowledgements(held, looked_at)
        taken += found
        assert looked_at <= len(held)
    assert held == rest
    assert taken == [(p[0], int.from_bytes(p[2:4])) for p in expected]


@pytest.mark.parametrize(
    "barrier",
    [
        b"\xe0\x00",  # DISCONNECT: nothing after it counts
        b"\x10\x00",  # a second CONNECT
        b"\x40\x02\x00\x00",  # no packet identifier
        b"\x40\x03\x00\x01\x00",
        b"\xc0\x01\x00",
        b"\x00\x00",
        b"\xf0\x00",
        b"\x30\xff\xff\xff\xff\x01",  # no length at all
        b"\x30\x80\x80\x01",  # not all there yet
    ],
)
def test_nothing_overtakes_what_is_to_be_refused_or_is_not_all_there(barrier: bytes) -> None:
    before = encode(PubAck(1)) + encode(Publish("a"))
    after = encode(PubAck(2)) + encode(PingReq())
    taken, held, looked_at = take_acknowledgements(before + barrier + after, 0)
    assert taken == [(0x40, 1)]
    assert held == encode(Publish("a")) + barrier + after
    again: Any = take_acknowledgements(held, looked_at)
    assert again == ([], held, looked_at)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_no_garbage_breaks_the_look_ahead(garbage: bytes, start: int) -> None:
    start = min(start, len(garbage))
    taken, held, looked_at = take_acknowledgements(garbage, start)
    assert held.startswith(garbage[:start])
    assert start <= looked_at <= len(held)
    # What was taken is gone, and nothing else.
    assert len(garbage) - len(held) == sum(2 if first == 0xC0 else 4 for first, _ in taken)


@given(st.integers(0, 268_435_455))
def test_a_length_at_its_edges(length: int) -> None:
    """A frame that is not all there is none, whatever the form of its length."""
    head = b"\x30" + encode_remaining_length(length)
    buffer = head + b"\0"
    whole = len(head) + length if length < 2 else 0
    assert take_acknowledgements(buffer, 0) == ([], buffer, whole)


# -- MQTT 5 ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a1", "a2", "b1", "x1"]), st.integers(0, 9), st.integers(1, 12)),
        max_size=5,
    ),
    st.integers(0, 30),
)
def test_runs_of_mqtt_5_are_those_of_3_1_1(several: list[tuple[str, int, int]], cut: int) -> None:
    packets = [Publish(topic, b"p" * size) for topic, size, n in several for _ in range(n)]
    old, new = Routes(), Routes()
    plain = b"".join(map(encode, packets))
    run = find_run(plain, 0, old.known, old.resolve, LOTS, BIG)
    buffer = b"".join(map(encode5, packets))
    same = find_run(buffer, 0, new.known, new.resolve, LOTS, BIG, properties=True)
    if run is None or same is None:
        assert run is same
        return
    assert (same.count, same.topic, same.last) == (run.count, run.topic, run.last)
    assert as_mqtt311(buffer[: same.end]) == plain[: run.end]
    # However it is cut, nothing of what is not whole belongs to it.
    short = buffer[: max(0, len(buffer) - cut)]
    part = find_run(short, 0, new.known, new.resolve, LOTS, BIG, properties=True)
    assert part is None or part.end <= len(short)


def test_a_property_ends_a_run() -> None:
    routes = Routes()
    plain, said = Publish("a", b"1"), Publish("a", b"2", properties=Properties(content_type="x"))
    nameless = b"\x30\x07\x00\x00\x03\x23\x00\x01x"
    for other in (encode5(said), nameless):
        buffer = encode5(plain) * 9 + other + encode5(plain)
        run = find_run(buffer, 0, routes.known, routes.resolve, LOTS, BIG, properties=True)
        assert run is not None
        assert (run.count, run.end) == (9, 9 * len(encode5(plain)))
        assert (
            find_run(buffer, run.end, routes.known, routes.resolve, LOTS, BIG, properties=True)
            is None
        )


def test_a_single_of_mqtt_5_knows_its_header_in_3_1_1() -> None:
    for size in (0, 1, 124, 125, 126, 200):
        packet = Publish("a/b", b"x" * size)
        single = Single.of(encode5(packet), "a/b", properties=True)
        assert single.size == len(encode5(packet))
        assert encode5(packet).startswith(single.header)
        assert single.plain + encode5(packet)[len(single.header) :] == encode(packet)


def test_acknowledgements_with_reasons_overtake() -> None:
    kept = encode5(Publish("a", b"x", 1, packet_id=5))
    buffer = b"".join(
        (
            kept,
            encode5(PubAck(1)),
            encode5(PubAck(2, 0x97, Properties(reason_string="full"))),
            encode5(PubRec(3, 0x10)),
            encode5(PubRec(4, 0x97)),
            encode5(PubRel(6, 0x92)),
            encode5(PingReq()),
            encode5(Disconnect(0x04)),
        )
    )
    taken, rest, at = take_acknowledgements(buffer, reasons=True)
    assert taken == [(0x40, 1), (0x40, 2), (0x50, 3), (REFUSED_PUBREC, 4), (0x62, 6), (0xC0, 0)]
    assert rest == kept + encode5(Disconnect(0x04))
    assert at == len(kept)
    # In 3.1.1 what is longer than an identifier is to be refused, in its turn.
    taken, _, at = take_acknowledgements(buffer)
    assert taken == [(0x40, 1)]
    assert at == len(kept)


def test_an_acknowledgement_that_is_malformed_waits_for_its_turn() -> None:
    kept = encode5(Publish("a", b"x", 1, packet_id=5))
    for bad in (b"\x40\x05\x00\x01\x55\xff\xff", b"\x50\x04\x00\x01\x00\x05"):
        taken, rest, at = take_acknowledgements(
            kept + encode5(PubAck(1)) + bad + encode5(PubAck(2)), reasons=True
        )
        assert taken == [(0x40, 1)]
        assert rest == kept + bad + encode5(PubAck(2))
        assert at == len(kept)


def test_a_length_in_more_bytes_than_it_takes_is_none_of_a_run() -> None:
    routes = Routes()
    whole = encode5(Publish("a", b"x"))
    padded = b"\x30\x85\x00\x00\x01a\x00x"
    run = find_run(whole + padded, 0, routes.known, routes.resolve, LOTS, BIG, properties=True)
    assert run is not None
    assert run.end == len(whole)
    # 3.1.1 says nothing of it.
    old = b"\x30\x84\x00\x00\x01ax"
    run = find_run(old, 0, routes.known, routes.resolve, LOTS, BIG)
    assert run is not None
    assert run.count == 1


def test_a_whole_disconnect_is_told() -> None:
    for packet in (
        Disconnect(),
        Disconnect(0x04),
        Disconnect(0x80, Properties(reason_string="why" * 30)),
    ):
        data = encode5(packet)
        for end in range(len(data)):
            assert not is_disconnect(b"xx" + data[:end], 2)
        assert is_disconnect(b"xx" + data, 2)
        assert is_disconnect(data + b"more", 0)
    assert not is_disconnect(encode5(PingReq()), 0)
    assert not is_disconnect(encode5(Disconnect(0x80, Properties(reason_string="x" * 200))), 0)


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("retain", "payload"), [(True, b""), (True, b"x"), (False, b"")])
def test_what_takes_a_retained_value_away_is_known(
    level: int, qos: int, retain: bool, payload: bytes
) -> None:
    packet = Publish("a/b", payload, qos, retain, packet_id=7 if qos else 0)
    data = encode(packet) if level == 4 else encode5(packet)
    five = level == 5
    found = clears_retained(b"??" + data, 2, 1_000, properties=five)
    assert found == (retain and not payload)
    # Not before all of it is there, nor where it says more.
    assert not any(
        clears_retained(data[:n], 0, 1_000, properties=five) for n in range(1, len(data))
    )
    if five:
        said = attrs.evolve(packet, payload=b"", properties=Properties(content_type="t"))
        assert not clears_retained(encode5(said), 0, 1_000, properties=True)
