"""Runs of messages: what is forwarded by a template is what would be said of each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.dataspace import Destinations
from clearfunds.transports.syndicate import (
    NEED_DATA,
    Connection,
    Message,
    Record,
    Symbol,
    Turn,
    TurnEvent,
)
from clearfunds.transports.syndicate._packets import encode
from clearfunds.transports.syndicate._runs import (
    MAX_PREFIX,
    MAX_PREFIX_SIZES,
    MAX_TEMPLATES,
    Template,
    Templates,
    ToldAs,
    find_run,
    make_template,
    varying_atom,
)
from clearfunds.transports.syndicate._scan import Scanner, event_parts

LOTS = (1 << 40, 1 << 40)
BIG = 2 << 20
VERSION = 7
WHOLE = ((),)


def to(*told: ToldAs) -> Destinations:
    """Return so many destinations; who they are does not matter here."""
    holders: Any = tuple(range(len(told)))
    return Destinations(holders)


def packet(body: Any, oid: int = 0) -> bytes:
    return encode(Turn((TurnEvent(oid, Message(body)),)))


def learn(data: bytes, *told: ToldAs, destinations: Destinations | None = None) -> Template | None:
    scanner = Scanner()
    end = scanner.find_end(data, 0)
    assert end is not None
    parts = event_parts(data, 0, scanner.marks)
    assert parts is not None
    where = to(*told) if destinations is None else destinations
    return make_template(data, 0, end, parts[0], where, told, VERSION)


def known(*templates: Template | None) -> Templates:
    all_known = Templates()
    for template in templates:
        assert template is not None
        all_known.add(template)
    return all_known


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


BODIES: dict[str, Callable[[Any], Any]] = {
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
sizes = st.one_of(st.integers(0, 300), st.integers(16_380, 16_390))
texts = st.text(max_size=300) | sizes.map(lambda n: "ß" * (n // 2) + "x" * (n % 2))
strings = st.binary(max_size=300) | sizes.map(bytes)


@given(st.data())
def test_what_a_run_says_is_what_is_shown_of_each(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(BODIES)), min_size=1, max_size=3))
    common = [c for c in CAPTURES[kinds[0]] if all(c in CAPTURES[kind] for kind in kinds)]
    told = [
        (data.draw(st.integers(0, 300)), captures)
        for captures in data.draw(st.lists(st.sampled_from(common), max_size=4))
    ]
    oid = data.draw(st.integers(0, 300))
    bodies: list[Any] = []
    templates: list[Template | None] = []
    destinations = to(*told)
    for kind in kinds:
        make = BODIES[kind]
        for type_ in (str, bytes):
            some = data.draw(st.lists(texts if type_ is str else strings, max_size=4))
            bodies += [make(atom) for atom in some]
            if some:
                first = packet(make(some[0]), oid)
                templates.append(learn(first, *told, destinations=destinations))
    bodies = data.draw(st.permutations(bodies))
    packets = [packet(body, oid) for body in bodies]
    before, after = data.draw(st.binary(max_size=3)), data.draw(st.binary(max_size=3))
    stream = before + b"".join(packets) + after
    found = find_run(stream, len(before), known(*templates), VERSION, LOTS, BIG)
    if not bodies:
        assert found is None
        return
    assert found is not None
    run, end, cut = found
    assert (run.count, end, cut) == (len(packets), len(stream) - len(after), False)
    assert run.nbytes == sum(map(len, packets))
    assert run.destinations is destinations
    for each in told:
        expected = [(each[0], shown(body, each[1])) for body in bodies]
        assert decoded(run.chunk(each)) == expected
        assert b"".join(run.packets(each)) == run.chunk(each)


def find(
    stream: bytes, *templates: Template | None, room: tuple[int, int] = LOTS, largest: int = BIG
) -> tuple[int, int, bool]:
    """Return how many are found, where the run ends, and whether it was cut."""
    found = find_run(stream, 0, known(*templates), VERSION, room, largest)
    return (0, 0, False) if found is None else (found[0].count, found[1], found[2])


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=9), st.data())
def test_only_whole_packets_are_found(several: list[bytes], data: st.DataObject) -> None:
    packets = [packet(says(atom)) for atom in several]
    template = learn(packets[0], (0, WHOLE))
    stream = b"".join(packets)
    size = data.draw(st.integers(0, len(stream)))
    ends = [0]
    for each in packets:
        ends.append(ends[-1] + len(each))
    whole = sum(1 for at in ends[1:] if at <= size)
    assert find(stream[:size], template) == (whole, ends[whole], False)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=9), st.data())
def test_a_run_is_cut_by_the_room_there_is(several: list[bytes], data: st.DataObject) -> None:
    """Each message is admitted while what came before leaves the debt at or below the limit."""
    who = st.sampled_from(["tony", "jan"])
    packets = [packet(says(atom, data.draw(who))) for atom in several]
    told = [(0, WHOLE)] * data.draw(st.integers(0, 3))
    destinations = to(*told)
    templates = [
        learn(packet(says(b"", name)), *told, destinations=destinations) for name in ("tony", "jan")
    ]
    price = len(told) + 1
    room = data.draw(st.tuples(st.integers(-1, 30), st.integers(-1, 600)))
    left_items, left_bytes = room
    admitted = 0
    for each in packets:
        if left_items < 0 or left_bytes < 0:
            break
        left_items -= price
        left_bytes -= price * len(each)
        admitted += 1
    end = sum(map(len, packets[:admitted]))
    assert find(b"".join(packets), *templates, room=room) == (
        admitted,
        end,
        admitted < len(packets),
    )


def test_what_is_not_of_the_template_ends_the_run() -> None:
    template = learn(packet(says(b"x")), (0, WHOLE))
    one = packet(says(b"y"))
    for other in (
        packet(says("a string")),
        packet(says(b"x", who="jan")),
        packet(says(b"x"), oid=1),
        packet(Record(Symbol("Says"), ("tony", b"x", 1))),
        encode(Turn((TurnEvent(0, Message(says(b"x"))), TurnEvent(0, Message(says(b"x")))))),
        b"\x80",
    ):
        assert find(one + other + one, template) == (1, len(one), False)


def test_a_run_goes_on_while_the_observers_are_the_same() -> None:
    tony, jan = packet(says(b"x")), packet(says(b"y", who="jan"))
    here, there = to((0, WHOLE)), to((0, WHOLE))
    ours = [learn(each, (0, WHOLE), destinations=here) for each in (tony, jan)]
    assert find(tony + jan + jan + tony, *ours)[0] == 4
    theirs = learn(jan, (0, WHOLE), destinations=there)
    assert find(tony + tony + jan, ours[0], theirs)[0] == 2


def test_what_was_found_out_of_an_older_dataspace_is_not_used() -> None:
    one = packet(says(b"x"))
    templates = known(learn(one, (0, WHOLE)))
    assert find_run(one, 0, templates, VERSION, LOTS, BIG) is not None
    assert find_run(one, 0, templates, VERSION + 1, LOTS, BIG) is None


def test_a_string_has_to_be_utf_8() -> None:
    good = packet(says("grüße"))
    template = learn(good, (0, WHOLE))
    bad = good.replace("ü".encode(), b"\xff\xff")
    assert len(bad) == len(good)
    assert find(good + bad + good, template)[0] == 1
    # In a byte string it is nobody's business.
    good = packet(says("grüße".encode()))
    template = learn(good, (0, WHOLE))
    bad = good.replace("ü".encode(), b"\xff\xff")
    assert find(good + bad + good, template)[0] == 3


def test_a_packet_that_is_too_large_is_left_to_be_refused() -> None:
    good = packet(says(b"x" * 100))
    template = learn(good, (0, WHOLE))
    larger = packet(says(b"x" * 101))
    assert find(good + larger, template, largest=len(good))[0] == 1
    assert find(good + larger, template, largest=len(larger))[0] == 2


def test_a_length_longer_than_it_need_be_is_not_forwarded() -> None:
    """The connection accepts it; what is sent out is in the shortest form."""
    good = packet(says(b"x"))
    template = learn(good, (0, WHOLE))
    for padded in (b"\xb2\x81\x00x", b"\xb2\x81\x80\x00x"):
        assert find(good.replace(b"\xb2\x01x", padded), template)[0] == 0


@pytest.mark.parametrize(
    "body",
    [1, Symbol("x"), Record(Symbol("x"), ()), (), says(1), says((b"x",)), {"a": "b"}, says(True)],
    ids=str,
)
def test_what_has_no_such_atom(body: Any) -> None:
    assert learn(packet(body), (0, WHOLE)) is None


def test_where_the_atom_stands() -> None:
    body = b"\xb4\xb3\x01x\xb5\xb1\x01y\x84\xb2\x01z\x84"
    assert varying_atom(body) == (9, (1,))
    assert varying_atom(b"\xb1\x01x") == (0, ())


def test_an_atom_that_is_shown_twice_has_no_template() -> None:
    assert learn(packet(says("x")), (0, ((), (1,)))) is None
    assert learn(packet(says("x")), (0, ((1,), (1,)))) is None


def test_templates_are_bounded_and_made_for_what_comes_again() -> None:
    templates = Templates()
    for number in range(3 * MAX_TEMPLATES):
        template = learn(packet(says(b"x", who=str(number))), (0, WHOLE))
        assert template is not None
        assert not templates.wants(template.prefix, VERSION)
        assert templates.wants(template.prefix, VERSION)
        templates.add(template)
        assert len(templates) <= MAX_TEMPLATES
    assert templates.find(packet(says(b"y", who="0")), 0) is None
    assert templates.find(packet(says(b"y", who=str(3 * MAX_TEMPLATES - 1))), 0) is not None
    templates.refuse(b"prefix", VERSION)
    assert not templates.wants(b"prefix", VERSION)
    assert templates.wants(b"prefix", VERSION + 1)
    templates.clear()
    assert len(templates) == 0


def test_long_beginnings_are_not_known_again() -> None:
    templates = Templates()
    for size in (MAX_PREFIX + 1, 2 << 20):
        for _ in range(3):
            assert not templates.wants(b"x" * size, VERSION)
    assert not templates._seen  # pyright: ignore[reportPrivateUsage]
    assert not templates.wants(b"x" * MAX_PREFIX, VERSION)
    assert templates.wants(b"x" * MAX_PREFIX, VERSION)
    assert MAX_PREFIX <= 1024


def test_beginnings_of_few_different_lengths_are_known_again() -> None:
    """Each length is looked for at the beginning of each packet."""
    assert MAX_PREFIX_SIZES <= 8
    templates = Templates()
    packets = [packet(says(b"x", who="y" * n)) for n in range(3 * MAX_PREFIX_SIZES)]

    def known_again(data: bytes) -> bool:
        template = learn(data, (0, WHOLE))
        assert template is not None
        wanted = [templates.wants(template.prefix, VERSION) for _ in range(2)]
        if wanted[1]:
            templates.add(template)
        assert templates.find(data, 0) is (template if wanted[1] else None)
        return wanted[1]

    assert [known_again(data) for data in packets] == [
        n < MAX_PREFIX_SIZES for n in range(len(packets))
    ]
    assert len(templates) == MAX_PREFIX_SIZES
    # Of a length that there is already there may be more; and a length may be let go.
    assert known_again(packet(says(b"x", who="z")))
    template = templates.find(packets[0], 0)
    assert template is not None
    templates.discard(template.prefix)
    assert known_again(packets[-1])
