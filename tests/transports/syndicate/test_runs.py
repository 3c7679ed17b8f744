"""Runs of messages: what is forwarded by a template is what would be said of each message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.syndicate import Connection, Message, Record, Symbol, Turn, TurnEvent
from clearfunds.transports.syndicate._connection import NEED_DATA
from clearfunds.transports.syndicate._packets import encode
from clearfunds.transports.syndicate._runs import (
    MessageRun,
    Template,
    find_run,
    make_template,
    varying_atom,
)
from clearfunds.transports.syndicate._scan import Scanner, event_parts

LOTS = (1 << 40, 1 << 40)
BIG = 2 << 20


class StandInTarget:
    def __init__(self, oid: int) -> None:
        self.oid = oid


class StandInPort:
    """What a template asks of a port."""

    def __init__(self, oid: int, captures: tuple[tuple[Any, ...], ...]) -> None:
        self.target = StandInTarget(oid)
        self.captures = captures


def packet(body: Any, oid: int = 0) -> bytes:
    return encode(Turn((TurnEvent(oid, Message(body)),)))


def learn(data: bytes, *ports: StandInPort) -> Template | None:
    scanner = Scanner()
    end = scanner.find_end(data, 0)
    assert end is not None
    parts = event_parts(data, 0, scanner.marks)
    assert parts is not None
    some: Any = ports
    return make_template(data, 0, end, parts[0], some, 0)


def says(what: Any, who: Any = "tony") -> Record:
    return Record(Symbol("Says"), (who, what))


def decoded(data: bytes) -> list[Any]:
    """Return the bodies of the messages in some packets, each a turn of its own."""
    connection = Connection()
    connection.receive_data(data)
    bodies: list[Any] = []
    while (found := connection.next_packet()) is not NEED_DATA:
        assert isinstance(found, Turn)
        (entry,) = found.events
        assert isinstance(entry.event, Message)
        bodies.append((entry.oid, entry.event.body))
    assert not connection.unparsed_bytes
    return bodies


def shown(body: Any, captures: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    """Return what an observer is told of a body, by brute force."""

    def at(path: tuple[Any, ...]) -> Any:
        value = body
        for key in path:
            value = value.fields[key] if isinstance(value, Record) else value[key]
        return value

    return tuple([at(path) for path in captures])


WHOLE = ((),)
BODIES = {
    "record": lambda atom: says(atom),
    "nested": lambda atom: Record(Symbol("Says"), (("a", says("x")), atom)),
    "sequence": lambda atom: (1, atom),
    "alone": lambda atom: atom,
    "one field": lambda atom: Record(Symbol("x"), (atom,)),
}
CAPTURES: dict[str, list[tuple[tuple[Any, ...], ...]]] = {
    "record": [WHOLE, ((0,),), ((1,),), ((0,), (1,)), ((1,), (0,)), ((0,), ()), ()],
    "nested": [WHOLE, ((0,), (1,)), ((0, 1, 0), (1,)), ((0, 1),)],
    "sequence": [WHOLE, ((0,), (1,)), ()],
    "alone": [WHOLE, ()],
    "one field": [WHOLE, ((0,),)],
}
atoms = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(120, 20_000).map(lambda n: b"x" * n),
    st.integers(16_380, 16_390).map(lambda n: "ß" * (n // 2) + "x" * (n % 2)),
)


@given(st.data(), st.sampled_from(sorted(BODIES)))
def test_what_a_template_says_is_what_is_shown_of_each(data: st.DataObject, kind: str) -> None:
    make = BODIES[kind]
    kinds = data.draw(st.sampled_from([str, bytes]))
    several = data.draw(st.lists(atoms.filter(lambda a: isinstance(a, kinds)), min_size=1))
    bodies = [make(atom) for atom in several]
    ports = [
        StandInPort(data.draw(st.integers(0, 300)), captures)
        for captures in data.draw(st.lists(st.sampled_from(CAPTURES[kind]), max_size=4))
    ]
    oid = data.draw(st.integers(0, 300))
    template = learn(packet(bodies[0], oid), *ports)
    assert template is not None
    packets = [packet(body, oid) for body in bodies]
    before, after = data.draw(st.binary(max_size=3)), data.draw(st.binary(max_size=3))
    stream = before + b"".join(packets) + after
    found, end, cut = find_run(stream, len(before), template, LOTS, BIG)
    assert (len(found), end, cut) == (len(packets), len(stream) - len(after), False)
    run = MessageRun(template, found, end - len(before))
    assert run.count == len(packets)
    for port in ports:
        some: Any = port
        told = [(port.target.oid, shown(body, port.captures)) for body in bodies]
        assert decoded(run.chunk(some)) == told
        assert b"".join(run.packets(some)) == run.chunk(some)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=9), st.data())
def test_only_whole_packets_are_found(several: list[bytes], data: st.DataObject) -> None:
    packets = [packet(says(atom)) for atom in several]
    template = learn(packets[0], StandInPort(0, WHOLE))
    assert template is not None
    stream = b"".join(packets)
    size = data.draw(st.integers(0, len(stream)))
    found, end, cut = find_run(stream[:size], 0, template, LOTS, BIG)
    ends = [0]
    for each in packets:
        ends.append(ends[-1] + len(each))
    whole = sum(1 for at in ends[1:] if at <= size)
    assert (len(found), end, cut) == (whole, ends[whole], False)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=9), st.data())
def test_a_run_is_cut_by_the_room_there_is(several: list[bytes], data: st.DataObject) -> None:
    """Each message is admitted while what came before leaves the debt at or below the limit."""
    packets = [packet(says(atom)) for atom in several]
    observers = [StandInPort(0, WHOLE)] * data.draw(st.integers(0, 3))
    template = learn(packets[0], *observers)
    assert template is not None
    price = len(template.ports) + 1
    room = data.draw(st.tuples(st.integers(-1, 30), st.integers(-1, 600)))
    left_items, left_bytes = room
    admitted = 0
    for each in packets:
        if left_items < 0 or left_bytes < 0:
            break
        left_items -= price
        left_bytes -= price * len(each)
        admitted += 1
    found, end, cut = find_run(b"".join(packets), 0, template, room, BIG)
    assert len(found) == admitted
    assert end == sum(map(len, packets[:admitted]))
    assert cut == (admitted < len(packets))


def find_all(stream: bytes, template: Template | None, largest: int = BIG) -> int:
    assert template is not None
    return len(find_run(stream, 0, template, LOTS, largest)[0])


def test_what_is_not_of_the_template_ends_the_run() -> None:
    template = learn(packet(says(b"x")), StandInPort(0, WHOLE))
    one = packet(says(b"y"))
    for other in (
        packet(says("a string")),
        packet(says(b"x", who="jan")),
        packet(says(b"x"), oid=1),
        packet(Record(Symbol("Says"), ("tony", b"x", 1))),
        encode(Turn((TurnEvent(0, Message(says(b"x"))), TurnEvent(0, Message(says(b"x")))))),
        b"\x80",
    ):
        assert find_all(one + other + one, template) == 1


def test_a_string_has_to_be_utf_8() -> None:
    good = packet(says("grüße"))
    template = learn(good, StandInPort(0, WHOLE))
    bad = good.replace("ü".encode(), b"\xff\xff")
    assert len(bad) == len(good)
    assert find_all(good + bad + good, template) == 1
    # In a byte string it is nobody's business.
    good = packet(says("grüße".encode()))
    template = learn(good, StandInPort(0, WHOLE))
    bad = good.replace("ü".encode(), b"\xff\xff")
    assert find_all(good + bad + good, template) == 3


def test_a_packet_that_is_too_large_is_left_to_be_refused() -> None:
    good = packet(says(b"x" * 100))
    template = learn(good, StandInPort(0, WHOLE))
    larger = packet(says(b"x" * 101))
    assert find_all(good + larger, template, len(good)) == 1
    assert find_all(good + larger, template, len(larger)) == 2


def test_a_length_longer_than_it_need_be_is_not_forwarded() -> None:
    """The connection accepts it; what is sent out is in the shortest form."""
    good = packet(says(b"x"))
    template = learn(good, StandInPort(0, WHOLE))
    padded = good.replace(b"\xb2\x01x", b"\xb2\x81\x00x")
    assert find_all(padded, template) == 0
    padded = good.replace(b"\xb2\x01x", b"\xb2\x81\x80\x00x")
    assert find_all(padded, template) == 0


@pytest.mark.parametrize(
    "body",
    [1, Symbol("x"), Record(Symbol("x"), ()), (), says(1), says((b"x",)), {"a": "b"}, says(True)],
    ids=str,
)
def test_what_has_no_such_atom(body: Any) -> None:
    data = packet(body)
    assert learn(data, StandInPort(0, WHOLE)) is None


def test_where_the_atom_stands() -> None:
    body = b"\xb4\xb3\x01x\xb5\xb1\x01y\x84\xb2\x01z\x84"
    assert varying_atom(body) == (9, (1,))
    assert varying_atom(b"\xb1\x01x") == (0, ())


def test_an_atom_that_is_shown_twice_has_no_template() -> None:
    assert learn(packet(says("x")), StandInPort(0, ((), (1,)))) is None
    assert learn(packet(says("x")), StandInPort(0, ((1,), (1,)))) is None
